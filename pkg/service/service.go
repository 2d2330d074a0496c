// Package service is the harness that every process of Reeve runs in: its
// settings, its log, its one NATS connection, its health server, and its start
// and stop. A service exports a [Wire]; its main is one call of [Main]. Several
// wires can share a process: see [As].
//
// A stop has two phases. At the first SIGTERM or SIGINT the process reports
// that it is not ready and the context of every [Runner] ends, which means:
// take no further work on. Work in hand goes on under [Env.Work], which ends
// when all runners have returned or the grace time is over. Then the closers
// run and the process exits with 0. A second signal ends it at once.
package service

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/reeve-pipeline/reeve/pkg/telemetry"
)

// Runner works until ctx ends, which is the sign to take no further work on.
// Work in hand then goes on under [Env.Work]. A Runner that is done before
// that returns nil; an error stops the whole process.
type Runner func(ctx context.Context) error

// Wire opens and checks what a service needs, starts nothing, and returns what
// to run. It loads all its settings before it opens anything: --help and
// --print-config call it with a context that has ended, only to learn these.
type Wire func(ctx context.Context, env *Env) (Runner, error)

// Options say where an Env takes its settings from and what it is given. The
// zero value reads nothing and uses the defaults, as tests do.
type Options struct {
	Version string         // empty: that of the build
	Args    []string       // command line without the program's name
	Environ []string       // as of os.Environ
	Values  map[string]any // by dotted key ("nats.url"); these win over all others
	Log     *zap.Logger    // instead of one built from log.level and log.format
	// NATS, when not nil, is a server in this process, dialled instead of nats.url.
	NATS nats.InProcessConnProvider
}

// Env is what a [Wire] is given. Handlers never see it.
type Env struct {
	Name, Version string
	Log           *zap.Logger
	Metrics       *prometheus.Registry

	proc *process
	part string // what readiness checks are named after, in a shared process
}

// process is what all Envs of a process share.
type process struct {
	settings *settings
	common   common
	server   nats.InProcessConnProvider
	describe bool // only learn the settings; open nothing

	work    context.Context //nolint:containedctx // its life is the process's, not a call's
	endWork context.CancelFunc
	phase   atomic.Int32
	addr    atomic.Value // string

	mu        sync.Mutex
	conn      *nats.Conn
	forbidden error // the last permission violation since the connection was made
	closers   []func(context.Context) error
	checks    []check
}

// The phases of a process's life.
const (
	starting int32 = iota
	running
	stopping
)

// common are the settings that every process has.
type common struct {
	Config string        `koanf:"config" help:"YAML file to read settings from"`
	Grace  time.Duration `koanf:"grace" help:"time that work in hand is given at a stop"`
	Log    struct {
		Level  string `koanf:"level" help:"least level logged: debug, info, warn or error"`
		Format string `koanf:"format" help:"json, or console for people"`
	} `koanf:"log"`
	HTTP struct {
		Addr string `koanf:"addr" help:"private address of /livez, /readyz, /metrics and /debug/pprof; port 0 takes any free one, off serves nothing"`
	} `koanf:"http"`
	NATS struct {
		URL   string `koanf:"url" help:"NATS servers, separated by commas"`
		Creds string `koanf:"creds" help:"NATS credentials file"`
		NKey  string `koanf:"nkey" help:"NATS nkey seed file"`
		CA    string `koanf:"ca" help:"file of the authorities that NATS servers are checked against"`
	} `koanf:"nats"`
}

func defaults() common {
	c := common{Grace: 25 * time.Second}
	c.Log.Level, c.Log.Format = "info", "json"
	c.HTTP.Addr = "127.0.0.1:0" // several processes on one machine never collide
	c.NATS.URL = nats.DefaultURL
	return c
}

// Validate reports everything that is wrong, joined.
func (c *common) Validate() error {
	var errs []error
	if c.Grace < 0 {
		errs = append(errs, errors.New("grace must not be negative"))
	}
	if _, err := telemetry.Level(c.Log.Level); err != nil {
		errs = append(errs, fmt.Errorf("log.level: %w", err))
	}
	if c.Log.Format != "json" && c.Log.Format != "console" {
		errs = append(errs, fmt.Errorf("log.format must be json or console, not %q", c.Log.Format))
	}
	if c.NATS.Creds != "" && c.NATS.NKey != "" {
		errs = append(errs, errors.New("nats.creds and nats.nkey exclude each other"))
	}
	return errors.Join(errs...)
}

// New returns the Env of a process or a test, with the common settings read.
// Its errors wrap [ErrSettings].
func New(name string, o Options) (*Env, error) {
	p := &process{settings: newSettings(name, o), server: o.NATS}
	p.work, p.endWork = context.WithCancel(context.Background())
	env := &Env{Name: name, Version: o.Version, Log: o.Log, proc: p}
	if env.Version == "" {
		env.Version = Version()
	}
	load := func() error {
		p.common = defaults()
		return p.settings.load("", &p.common)
	}
	if err := load(); err != nil {
		return env, err
	}
	if path := p.common.Config; path != "" { // the file's name is a setting, too
		if err := errors.Join(p.settings.readFile(path), load()); err != nil {
			return env, err
		}
	}
	if env.Log == nil {
		log, err := telemetry.Logger(p.common.Log.Level, p.common.Log.Format)
		if err != nil {
			return env, fmt.Errorf("log: %w", err)
		}
		env.Log = log.With(zap.String("service", name), zap.String("version", env.Version))
	}
	env.Metrics = telemetry.Registry(name, env.Version)
	return env, nil
}

// For returns the Env of a service that shares this one's process: its own name
// and log, the same settings, connection, metrics and stop.
func (e *Env) For(name string) *Env {
	part := *e
	part.Name, part.part = name, name
	part.Log = e.Log.With(zap.String("service", name))
	return &part
}

// As runs a wire under a name of its own, in a process shared with others.
func As(name string, wire Wire) Wire {
	return func(ctx context.Context, env *Env) (Runner, error) { return wire(ctx, env.For(name)) }
}

// Load fills a settings struct. Each field with a tag `koanf:"name"
// help:"what it means, with its unit"` takes its value from the first of:
//
//   - the program itself ([Options].Values)
//   - the flag --prefix.name
//   - the environment, REEVE_PREFIX_NAME
//   - the file of --config, name: under prefix:
//   - what the struct already holds: the default
//
// Durations are time.Duration (30s), byte sizes [Size] (64MiB), secrets
// [Secret]; lists are separated by commas; structs nest. If the struct has a
// Validate() error, it is called with the values in force. Errors wrap
// [ErrSettings] and name every wrong setting and where it was set. That keys
// are set which no part of the process reads is found by [Run].
func (e *Env) Load(prefix string, into any) error { return e.proc.settings.load(prefix, into) }

// Unknown reports every setting of the process that no Load has asked for, with
// the nearest one that was. [Run] does it; for programs that do not call it.
func (e *Env) Unknown() error { return e.proc.settings.unknown(false) }

// Work is the context for work in hand: it outlives the context of the
// [Runner] by the grace time, so that what was begun can be finished. A worker
// takes tasks while the runner's context lives, and works on each under this
// one.
func (e *Env) Work() context.Context { return e.proc.work }

// Grace is how long [Env.Work] goes on at most after a stop began.
func (e *Env) Grace() time.Duration { return e.proc.common.Grace }

// OnClose registers what to do when all runners have ended. Closers run
// last-registered-first, each with a time limit.
func (e *Env) OnClose(f func(context.Context) error) {
	e.proc.mu.Lock()
	defer e.proc.mu.Unlock()
	e.proc.closers = append(e.proc.closers, f)
}

// JetStream is the JetStream of [Env.NATS].
func (e *Env) JetStream() (jetstream.JetStream, error) {
	nc, err := e.NATS()
	if err != nil {
		return nil, err
	}
	return jetstream.New(nc)
}
