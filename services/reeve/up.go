package reeve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/reeve-pipeline/reeve/pkg/telemetry"
)

// Hidden commands, which the program calls itself by.
const (
	// S3Command is the S3 server, a child process of the all-in-one.
	S3Command = "__s3d"
	// ServicesCommand is all services without the command around them.
	ServicesCommand = "__services"
)

func (c *command) upCommand() *cobra.Command {
	var o Options
	var logTo, config string
	cmd := &cobra.Command{
		Use: "up [flags] [-- settings of services]", Short: "Run everything in this process until interrupted",
		Long: `Run everything in this process: NATS, an S3 server, Postgres and every service.
All of it lives in the folder --data and is there again after a restart, also
after a crash. Postgres must be installed; everything else is in this program.

The API listens on --listen. The other parts listen on 127.0.0.1, on the ports
that follow: NATS +1, S3 +2, Postgres +3, the NATS monitor +4, health and
metrics +5. With port 0 all take free ones and keep them.

Settings of services are given as on their own: as REEVE_ variables, in the
file of --config, or after a --, such as: reeve up -- --fetch.max_size=64MiB
An all-in-one may fetch from any folder; REEVE_FETCH_FOLDERS narrows that.
They are printed by: reeve config`,
		Args: func(cmd *cobra.Command, args []string) error {
			if n := cmd.ArgsLenAtDash(); len(args) > 0 && n != 0 {
				return fmt.Errorf("no argument %q is taken; settings of services come after --", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if config != "" {
				args = append(args, "--config="+config)
			}
			o.Args = args
			if logTo == "" {
				logTo = "-"
				if c.Err.Columns > 0 {
					logTo = "reeve.log"
				}
			}
			if err := c.complete(&o, logTo); err != nil {
				return err
			}
			defer func() { _ = o.Log.Sync() }() // stderr may not know how
			began := time.Now()
			return Up(cmd.Context(), o, func(st State) {
				if c.json {
					_ = writeJSON(c.Out, st) // a reader that has gone misses it
				}
				fmt.Fprintf(c.Err, "ready     %s  after %.1f s\n", st.API, time.Since(began).Seconds())
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Listen, "listen", "127.0.0.1:8480", "address of the API; another machine can reach only what has a --token")
	f.IntVar(&o.NATSPort, "nats-port", 0, "port of NATS (default: the API's + 1)")
	f.IntVar(&o.S3Port, "s3-port", 0, "port of S3 (default: the API's + 2)")
	f.IntVar(&o.PostgresPort, "postgres-port", 0, "port of Postgres (default: the API's + 3)")
	f.IntVar(&o.MonitorPort, "nats-monitor-port", 0, "port of the NATS monitor (default: the API's + 4)")
	f.IntVar(&o.HealthPort, "health-port", 0, "port of health and metrics (default: the API's + 5)")
	f.StringVar(&logTo, "log", "", "file in --data to log to, or - for stderr (default: - , or reeve.log when stderr is a terminal)")
	f.StringVar(&config, "config", "", "YAML file with settings of services")
	must(cmd.MarkFlagFilename("config", "yaml", "yml"))
	return cmd
}

// complete fills in what the flags leave open.
func (c *command) complete(o *Options, logTo string) (err error) {
	if o.Data, err = c.dataDir(); err != nil {
		return err
	}
	o.Token = cmp.Or(c.token, c.env("REEVE_TOKEN"))
	o.Version, o.Environ = c.Version, c.Environ
	o.Say = func(format string, args ...any) {
		if c.progress != "quiet" {
			fmt.Fprintf(c.Err, format+"\n", args...)
		}
	}
	o.Say("data      %s", o.Data)
	o.Log, err = c.log(o.Data, logTo)
	return err
}

// longLog is when a log is put aside at a start, in bytes.
const longLog = 64 << 20

// log returns a logger to a file of the data folder, or to stderr.
func (c *command) log(data, to string) (*zap.Logger, error) {
	level, format := cmp.Or(c.env("REEVE_LOG_LEVEL"), "info"), cmp.Or(c.env("REEVE_LOG_FORMAT"), "json")
	log, err := telemetry.Logger(level, format)
	if err != nil {
		return nil, fmt.Errorf("log: %w", err)
	}
	if to == "-" {
		return log, nil
	}
	path := to
	if !filepath.IsAbs(path) {
		path = filepath.Join(data, to)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("log: %w; choose another folder with --data", err)
	}
	if st, err := os.Stat(path); err == nil && st.Size() > longLog {
		if err := os.Rename(path, path+".1"); err != nil {
			return nil, fmt.Errorf("log: %w", err)
		}
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("log: %w", err)
	}
	fields := zap.NewProductionEncoderConfig()
	fields.TimeKey, fields.EncodeTime, fields.EncodeDuration = "ts", zapcore.RFC3339NanoTimeEncoder, zapcore.StringDurationEncoder
	at, err := telemetry.Level(level)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if c.progress != "quiet" {
		fmt.Fprintf(c.Err, "log       %s\n", path)
	}
	return zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(fields), f, at)), nil
}

// running returns the state of the all-in-one in the data folder, if one runs.
func (c *command) running() (State, bool) {
	dir, err := c.dataDir()
	if err != nil {
		return State{}, false
	}
	st, err := readState(dir)
	return st, err == nil && st.Running
}

// background runs an all-in-one in this process until stop is called.
func (c *command) background(ctx context.Context, o Options) (st State, stop func() error, err error) {
	ctx, cancel := context.WithCancel(ctx)
	started := make(chan State, 1)
	ended := make(chan error, 1)
	go func() { ended <- Up(ctx, o, func(st State) { started <- st }) }()
	select {
	case st = <-started:
		return st, func() error { cancel(); return <-ended }, nil
	case err = <-ended:
		cancel()
		return st, nil, cmp.Or(err, errors.New("it ended before it was ready"))
	}
}
