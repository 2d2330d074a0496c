package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	"go.uber.org/zap"
)

// Exit codes of [Main].
const (
	ExitOK       = 0
	ExitFailure  = 1
	ExitSettings = 2
)

// version is set by the linker.
var version string

// Version is the version of the build.
func Version() string {
	info, ok := debug.ReadBuildInfo()
	switch {
	case version != "":
		return version
	case ok && info.Main.Version != "" && info.Main.Version != "(devel)":
		return info.Main.Version
	default:
		return "dev"
	}
}

// Main is a whole process: it reads the settings from the command line, the
// environment and the file of --config, runs the wires until a signal comes,
// and returns the exit code. What ended it is one line on stderr.
//
//	NAME                  run
//	NAME healthcheck      exit 0 if the process at http.addr is ready, else 1
//	NAME --help --version --print-config
func Main(name string, wires ...Wire) int {
	return program{
		args: os.Args[1:], environ: os.Environ(), //nolint:forbidigo // settings are read here
		stdout: os.Stdout, stderr: os.Stderr,
		exit: os.Exit, //nolint:forbidigo // at the second signal
	}.main(name, wires)
}

// program is what a process is given by its surroundings.
type program struct {
	args, environ  []string
	stdout, stderr io.Writer
	exit           func(code int)
}

func (p program) main(name string, wires []Wire) int {
	command := ""
	if len(p.args) > 0 && p.args[0] == "healthcheck" {
		command, p.args = p.args[0], p.args[1:]
	}
	asked := func(flags ...string) bool {
		return slices.ContainsFunc(flags, func(f string) bool { return slices.Contains(p.args, f) })
	}
	if asked("--version") {
		fmt.Fprintln(p.stdout, name, Version())
		return ExitOK
	}
	describe := asked("--help", "-h") || asked("--print-config")
	args := slices.DeleteFunc(slices.Clone(p.args), func(a string) bool {
		return a == "--help" || a == "-h" || a == "--print-config"
	})

	opts := Options{Args: args, Environ: p.environ}
	if describe {
		opts.Log = zap.NewNop()
	}
	env, err := New(name, opts)
	if describe {
		return p.describe(env, wires, asked("--help", "-h"), err)
	}
	if err == nil && command == "healthcheck" {
		err = healthcheck(context.Background(), env.proc.common.HTTP.Addr)
	} else if err == nil {
		defer func() { _ = env.Log.Sync() }() // stderr may not know how
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		stopListening := p.listen(env.Log, cancel)
		defer stopListening()
		err = Run(ctx, env, wires...)
	}
	if err == nil {
		return ExitOK
	}
	fmt.Fprintln(p.stderr, p.last(name, err))
	if errors.Is(err, ErrSettings) {
		return ExitSettings
	}
	return ExitFailure
}

// last is the text that a process ends with.
func (p program) last(name string, err error) string {
	lines := strings.Split(err.Error(), "\n")
	for i := range lines {
		lines[i] = name + ": " + lines[i]
	}
	return strings.Join(lines, "\n")
}

// echo is how soon after the first signal another one is taken for the same:
// wrappers such as timeout(1) signal the process and then its group.
const echo = 300 * time.Millisecond

// listen cancels at the first signal and exits at the second. It returns what
// ends the listening.
func (p program) listen(log *zap.Logger, cancel context.CancelFunc) func() {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	done := make(chan struct{})
	go func() {
		var first time.Time
		for {
			select {
			case s := <-signals:
				switch {
				case first.IsZero():
					first = time.Now()
					log.Info("signal", zap.Stringer("signal", s))
					cancel()
				case time.Since(first) > echo:
					log.Warn("second signal, exit at once", zap.Stringer("signal", s))
					p.exit(exitCode(s))
				}
			case <-done:
				return
			}
		}
	}()
	return func() {
		signal.Stop(signals)
		close(done)
	}
}

// exitCode is what a shell reports of a process that the signal ended.
func exitCode(s os.Signal) int {
	if n, ok := s.(syscall.Signal); ok {
		return 128 + int(n)
	}
	return ExitFailure
}

// describe runs the wires only for their settings and prints these: all that
// there are, or the values in force.
func (p program) describe(env *Env, wires []Wire, help bool, err error) int {
	env.proc.describe = true
	over, cancel := context.WithCancel(context.Background())
	cancel()
	for _, wire := range wires {
		if _, wireErr := wire(over, env); errors.Is(wireErr, ErrSettings) {
			err = errors.Join(err, wireErr)
		}
	}
	_ = env.Close(context.Background()) // what a wire opened all the same
	s := env.proc.settings
	if help {
		fmt.Fprintf(p.stdout, `%[1]s is a service of Reeve. It runs until SIGTERM or SIGINT.

  %[1]s [settings]               run
  %[1]s healthcheck [settings]   exit 0 if the process at http.addr is ready, else 1
  %[1]s --print-config           the values in force and where each comes from
  %[1]s --version

Settings come from, the strongest first: the flag, the environment
(--log.level is %[2]s), the YAML file of --config, the default.
A setting of %[1]s itself may leave out the name: --%[1]s.x is --x.

%[3]s`, env.Name, envName("log.level"), s.usage())
		return ExitOK
	}
	err = errors.Join(err, s.unknown(false))
	s.print(p.stdout)
	if err != nil {
		fmt.Fprintln(p.stderr, p.last(env.Name, err))
		return ExitSettings
	}
	return ExitOK
}

// usage lists the flags of all settings.
func (s *settings) usage() string {
	all := pflag.NewFlagSet(s.flags.Name(), pflag.ContinueOnError)
	for _, k := range s.known {
		all.AddFlag(s.flag(k))
	}
	return all.FlagUsages()
}

// print writes the values in force as YAML that --config reads again, each
// with its origin; secrets are commented out.
func (s *settings) print(w io.Writer) {
	all := make([]*setting, 0, len(s.known))
	wide := 0
	for _, k := range s.known {
		all = append(all, k)
		wide = max(wide, len(k.line()))
	}
	slices.SortFunc(all, func(a, b *setting) int { return cmp.Compare(a.key, b.key) })
	for _, k := range all {
		fmt.Fprintf(w, "%-*s  # %s\n", wide, k.line(), k.origin)
	}
}

func (k *setting) line() string {
	value := k.value
	if value == "" || strings.ContainsAny(value, "#:*{}[]&!|>'\"%@`, ") {
		value = fmt.Sprintf("%q", value)
	}
	line := k.key + ": " + value
	if strings.Contains(k.value, mask) || strings.Contains(k.value, ":xxxxx@") {
		line = "# " + line
	}
	return line
}
