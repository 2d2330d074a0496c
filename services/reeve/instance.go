package reeve

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/reeve-pipeline/reeve/migrations"
	"github.com/reeve-pipeline/reeve/pkg/artifact/local"
	"github.com/reeve-pipeline/reeve/pkg/bus"
	"github.com/reeve-pipeline/reeve/pkg/pglocal"
	"github.com/reeve-pipeline/reeve/pkg/service"
	reevev1 "github.com/reeve-pipeline/reeve/proto/reeve/v1"
)

// Options are how an all-in-one runs.
type Options struct {
	// Data holds everything: the files of NATS, S3 and Postgres, their
	// passwords, and the state file.
	Data string
	// Listen is the address of the API. The ports of the others follow its
	// own, one by one, unless they are given; all are free ones when it is 0.
	Listen                                      string
	NATSPort, S3Port, PostgresPort, MonitorPort int
	HealthPort                                  int
	Token                                       string
	Version                                     string
	Args, Environ                               []string // settings of the services
	Log                                         *zap.Logger
	// Say is told of each part that runs.
	Say func(format string, args ...any)
}

// State is where the parts of an all-in-one are. It is kept in the data folder
// as reeve.json, readable by its owner only, for it holds the passwords.
type State struct {
	// PID is 0 when it was stopped in good order.
	PID         int       `json:"pid"`
	Version     string    `json:"version"`
	StartedAt   time.Time `json:"started_at"`
	Data        string    `json:"data_dir"`
	API         string    `json:"api_url"`
	Token       string    `json:"api_token,omitempty"`
	NATS        string    `json:"nats_url"`
	NATSMonitor string    `json:"nats_monitor_url"`
	PostgresDSN string    `json:"postgres_dsn"`
	S3Endpoint  string    `json:"s3_endpoint"`
	S3Bucket    string    `json:"s3_bucket"`
	S3AccessKey string    `json:"s3_access_key"`
	S3SecretKey string    `json:"s3_secret_key"`
	Metrics     string    `json:"metrics_url"`
	// Running is not stored: it says whether the process still lives.
	Running bool `json:"running"`
}

const (
	stateFile = "reeve.json"
	lockFile  = "reeve.lock"
	bucket    = "reeve"
)

// readState returns the state of the all-in-one in a folder, running or not.
func readState(dir string) (State, error) {
	var s State
	b, err := os.ReadFile(filepath.Join(dir, stateFile))
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return s, fmt.Errorf("%s: %w", filepath.Join(dir, stateFile), err)
	}
	l, err := lock(dir)
	if err == nil {
		err = l.Close()
	}
	s.Running = errors.Is(err, errInUse)
	return s, nil
}

// write replaces the state file at once.
func (s State) write() error {
	b, err := json.MarshalIndent(s, "", "  ") //nolint:gosec // it is for the passwords, and its owner's only
	if err != nil {
		return err
	}
	path := filepath.Join(s.Data, stateFile)
	if err := os.WriteFile(path+".new", append(b, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// info is the state without its secrets, for the API.
func (s State) info() *reevev1.InfoResponse {
	return &reevev1.InfoResponse{
		Version: s.Version, DataDir: s.Data, ApiUrl: s.API, NatsUrl: masked(s.NATS), NatsMonitorUrl: s.NATSMonitor,
		PostgresDsn: masked(s.PostgresDSN), S3Endpoint: s.S3Endpoint, S3Bucket: s.S3Bucket, S3AccessKey: s.S3AccessKey,
		MetricsUrl: s.Metrics, StartedAt: timestamppb.New(s.StartedAt),
	}
}

// masked hides the password in a URL.
func masked(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return ""
	}
	return u.Redacted()
}

var errInUse = errors.New("in use")

// lock takes the lock of a data folder, which the system lets go when the
// process ends, however it ends.
func lock(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = errInUse
		}
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// lockSoon takes the lock, past those who only look whether it is held.
func lockSoon(ctx context.Context, dir string) (*os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		f, err := lock(dir)
		if !errors.Is(err, errInUse) {
			return f, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, err
		}
	}
}

// secrets are made once for a data folder.
type secrets struct {
	S3AccessKey  string `json:"s3_access_key"`
	S3SecretKey  string `json:"s3_secret_key"`
	NATSPassword string `json:"nats_password"`
}

func readSecrets(dir string) (secrets, error) {
	path := filepath.Join(dir, "secrets.json")
	var s secrets
	b, err := os.ReadFile(path)
	switch {
	case err == nil:
		if err := json.Unmarshal(b, &s); err != nil {
			return s, fmt.Errorf("%s: %w", path, err)
		}
		return s, nil
	case !errors.Is(err, fs.ErrNotExist):
		return s, fmt.Errorf("secrets: %w", err)
	}
	s = secrets{S3AccessKey: "reeve", S3SecretKey: rand.Text(), NATSPassword: rand.Text()}
	if b, err = json.MarshalIndent(s, "", "  "); err != nil {
		return s, err
	}
	if err := errors.Join(os.WriteFile(path+".new", append(b, '\n'), 0o600), os.Rename(path+".new", path)); err != nil {
		return s, fmt.Errorf("secrets: %w", err)
	}
	return s, nil
}

// ports are those that an all-in-one listens on.
type ports struct{ api, nats, s3, postgres, monitor, health int }

// choosePorts gives each part its port and reports one that is taken, with the
// flag that chooses another.
func choosePorts(ctx context.Context, o Options, before State) (p ports, err error) {
	_, port, err := net.SplitHostPort(o.Listen)
	base, numErr := strconv.Atoi(port)
	if err != nil || numErr != nil {
		return ports{}, fmt.Errorf("--listen %q: give host:port, such as 127.0.0.1:8480", o.Listen)
	}
	// With free ports, those of the last time are taken if they still are free.
	was := portsOf(before)
	var held []net.Listener // until all are chosen, so that none is chosen twice
	defer func() {
		for _, l := range held {
			err = errors.Join(err, l.Close())
		}
	}()
	for i, want := range []struct {
		port       *int
		given, was int
		part, flag string
	}{
		{&p.api, base, was.api, "the API", "--listen"},
		{&p.nats, o.NATSPort, was.nats, "NATS", "--nats-port"},
		{&p.s3, o.S3Port, was.s3, "S3", "--s3-port"},
		{&p.postgres, o.PostgresPort, was.postgres, "Postgres", "--postgres-port"},
		{&p.monitor, o.MonitorPort, was.monitor, "the NATS monitor", "--nats-monitor-port"},
		{&p.health, o.HealthPort, was.health, "health and metrics", "--health-port"},
	} {
		port := want.given
		if port == 0 && base != 0 {
			port = base + i
		}
		anyPort := port == 0
		if anyPort {
			port = want.was
		}
		l, err := listen(ctx, port)
		if err != nil && port == want.was && before.PID != 0 {
			// A killed all-in-one's children let go of their ports a moment later.
			l, err = listenSoon(ctx, port)
		}
		if err != nil && anyPort {
			l, err = listen(ctx, 0)
		}
		if err != nil {
			return p, fmt.Errorf("port %d for %s is taken by another program: free it, or choose another with %s (%w)", port, want.part, want.flag, err)
		}
		held = append(held, l)
		*want.port = l.Addr().(*net.TCPAddr).Port
	}
	return p, nil
}

// listenSoon waits for a port to become free.
func listenSoon(ctx context.Context, port int) (net.Listener, error) {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		l, err := listen(ctx, port)
		if err == nil {
			return l, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, err
		}
	}
}

func listen(ctx context.Context, port int) (net.Listener, error) {
	return (&net.ListenConfig{}).Listen(ctx, "tcp", local127(port))
}

func local127(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// portsOf returns the ports in a state; 0 for those it does not have.
func portsOf(s State) ports {
	of := func(raw string) int {
		u, err := url.Parse(raw)
		if err != nil {
			return 0
		}
		n, _ := strconv.Atoi(u.Port()) // 0 when there is none
		return n
	}
	return ports{
		api: of(s.API), nats: of(s.NATS), s3: of("http://" + s.S3Endpoint), postgres: of(s.PostgresDSN),
		monitor: of(s.NATSMonitor), health: of(s.Metrics),
	}
}

// stopTime bounds the stop of each of the three servers.
const stopTime = 30 * time.Second

// Up runs everything until ctx ends, and calls ready with where it is.
func Up(ctx context.Context, o Options, ready func(State)) (err error) {
	if err := os.MkdirAll(o.Data, 0o700); err != nil {
		return fmt.Errorf("data folder: %w; choose another with --data", err)
	}
	before, err := readState(o.Data)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if host, _, err := net.SplitHostPort(o.Listen); err == nil && o.Token == "" && !loopback(host) {
		return fmt.Errorf("--listen %s can be reached from other machines: set a --token (REEVE_TOKEN), or listen on 127.0.0.1", o.Listen)
	}
	held, err := lockSoon(ctx, o.Data)
	if errors.Is(err, errInUse) {
		return fmt.Errorf("%s is in use: reeve %s runs there (process %d, API %s); stop it, or choose another folder with --data", o.Data, before.Version, before.PID, before.API)
	}
	if err != nil {
		return err
	}
	defer held.Close()

	keys, err := readSecrets(o.Data)
	if err != nil {
		return err
	}
	at, err := choosePorts(ctx, o, before)
	if err != nil {
		return err
	}
	host, _, err := net.SplitHostPort(o.Listen)
	if err != nil {
		return err
	}
	st := State{
		PID: os.Getpid(), Version: o.Version, StartedAt: time.Now().UTC(), Data: o.Data, Token: o.Token,
		API:         "http://" + net.JoinHostPort(reachable(host), strconv.Itoa(at.api)),
		NATS:        "nats://reeve:" + keys.NATSPassword + "@" + local127(at.nats),
		NATSMonitor: "http://" + local127(at.monitor),
		S3Endpoint:  local127(at.s3), S3Bucket: bucket, S3AccessKey: keys.S3AccessKey, S3SecretKey: keys.S3SecretKey,
		Metrics: "http://" + local127(at.health) + "/metrics",
	}

	var parts servers
	started := false
	defer func() {
		stopErr := parts.stop(context.WithoutCancel(ctx))
		if stopErr == nil && started {
			st.PID = 0
			stopErr = st.write()
		}
		err = errors.Join(err, stopErr)
	}()
	if err := parts.start(ctx, o, at, keys); err != nil {
		return err
	}
	st.PostgresDSN = parts.postgres.DSN()
	o.Say("postgres  127.0.0.1:%d  database reeve", at.postgres)
	o.Say("nats      %s  monitor %s", local127(at.nats), st.NATSMonitor)
	o.Say("s3        http://%s  bucket %s", st.S3Endpoint, bucket)
	if err := migrations.Up(ctx, st.PostgresDSN); err != nil {
		return err
	}

	env, err := service.New("reeve", service.Options{
		Version: o.Version, Args: o.Args, Environ: serviceEnviron(o.Environ), Log: o.Log, NATS: parts.nats,
		Values: map[string]any{
			"nats.url": st.NATS, "postgres.dsn": st.PostgresDSN, "http.addr": local127(at.health),
			"s3.endpoint": st.S3Endpoint, "s3.bucket": bucket, "s3.access_key": keys.S3AccessKey, "s3.secret_key": keys.S3SecretKey,
			"s3.secure": false, "gateway.addr": net.JoinHostPort(host, strconv.Itoa(at.api)), "gateway.cache": filepath.Join(o.Data, "cache"),
			"gateway.token": o.Token,
		},
	})
	if err != nil {
		return err
	}
	js, err := env.JetStream()
	if err != nil {
		return err
	}
	changes, err := bus.Provision(ctx, js, bus.Options{})
	if err != nil {
		return errors.Join(err, env.Close(context.WithoutCancel(ctx)))
	}
	if len(changes) > 0 {
		o.Log.Info("provisioned", zap.Stringers("changes", changes))
	}
	ended := make(chan struct{})
	defer close(ended)
	context.AfterFunc(ctx, func() {
		select {
		case <-ended:
		case <-time.After(time.Second):
			o.Say("stopping  what is in hand has %v to be finished", env.Grace())
		}
	})
	all := append(wires(allInOne(st)), func(context.Context, *service.Env) (service.Runner, error) {
		return func(ctx context.Context) error {
			if err := st.write(); err != nil {
				return fmt.Errorf("state file: %w", err)
			}
			started = true
			o.Say("services  %s", strings.Join(names(allInOne(st)), " "))
			ready(st)
			err := parts.watch(ctx)
			if err != nil {
				o.Say("stopping  %v", err)
			}
			return err
		}, nil
	})
	return service.Run(ctx, env, all...)
}

// loopback reports whether a listener's host is this machine only.
func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// reachable is the address to reach a listener by.
func reachable(host string) string {
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		return "127.0.0.1"
	}
	return host
}

// serviceEnviron is the environment for the services' settings: without what
// is the command's own.
func serviceEnviron(environ []string) []string {
	return slices.DeleteFunc(append(openFolders(environ), environ...), func(v string) bool {
		return slices.ContainsFunc([]string{"REEVE_API=", "REEVE_DATA=", "REEVE_TOKEN=", "REEVE_TEST_"}, func(own string) bool {
			return strings.HasPrefix(v, own)
		})
	})
}

// openFolders lets an all-in-one read any folder of the machine, which is its
// user's, unless the environment says otherwise; a service among others reads
// none by default.
func openFolders(environ []string) []string {
	const name = "REEVE_FETCH_FOLDERS="
	if slices.ContainsFunc(environ, func(v string) bool { return strings.HasPrefix(v, name) }) {
		return nil
	}
	return []string{name + "/"}
}

// servers are the three that everything stands on.
type servers struct {
	postgres *pglocal.Server
	nats     *natsServer
	s3       *local.Server
}

// start starts them side by side.
func (s *servers) start(ctx context.Context, o Options, at ports, keys secrets) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var errs [3]error
	var all sync.WaitGroup
	try := func(i int, f func() error) {
		all.Go(func() {
			if errs[i] = f(); errs[i] != nil {
				cancel() // the others need not go on
			}
		})
	}
	try(0, func() (err error) {
		s.postgres, err = pglocal.Start(ctx, pglocal.Options{Dir: filepath.Join(o.Data, "postgres"), Port: at.postgres})
		return err
	})
	try(1, func() (err error) {
		s.nats, err = startNATS(o, at, keys.NATSPassword)
		return err
	})
	try(2, func() (err error) {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		s.s3, err = local.Start(ctx, local.Options{
			Command: []string{self, S3Command}, Dir: filepath.Join(o.Data, "s3"), Addr: local127(at.s3),
			AccessKey: keys.S3AccessKey, SecretKey: service.Secret(keys.S3SecretKey), Log: lines(o.Log.Named("s3")),
		})
		return err
	})
	all.Wait()
	// The first that failed for a reason of its own is the one to tell of.
	for _, err := range errs {
		if err != nil && !errors.Is(err, context.Canceled) {
			return err
		}
	}
	return errors.Join(errs[:]...)
}

// watch returns when ctx ends, or with an error when a server has ended.
func (s *servers) watch(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-s.postgres.Done():
		return errors.New("postgres has ended by itself; its log is postgres/postgres.log in the data folder")
	case <-s.s3.Done():
		return s.s3.Err()
	case err := <-s.nats.fatal:
		return err
	}
}

// stop stops those that run.
func (s *servers) stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, stopTime)
	defer cancel()
	var errs []error
	if s.s3 != nil {
		errs = append(errs, s.s3.Close())
	}
	if s.nats != nil {
		s.nats.stop()
	}
	if s.postgres != nil {
		errs = append(errs, s.postgres.Stop(ctx))
	}
	return errors.Join(errs...)
}

// lines logs what is written, line by line.
func lines(log *zap.Logger) io.Writer {
	return writer(func(p []byte) {
		for line := range strings.Lines(string(p)) {
			log.Warn(strings.TrimSpace(line))
		}
	})
}

type writer func(p []byte)

func (w writer) Write(p []byte) (int, error) { w(p); return len(p), nil }
