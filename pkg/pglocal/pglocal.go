// Package pglocal runs a PostgreSQL of its own in a folder: it finds the
// programs on the machine, initialises the folder, starts the server as an
// unprivileged user and stops it again. The server dies with the process that
// started it, listens on the loopback only and wants a password, which is kept
// in the folder. It is for `reeve up` and for tests; a deployment brings its
// own Postgres.
package pglocal

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// Options say where a server lives and how it runs.
type Options struct {
	// Dir holds everything: data, password and log. It is created when missing
	// and reused when not.
	Dir string
	// Port to listen on; 0 takes a free one.
	Port int
	// Database is created when missing; "reeve" when empty.
	Database string
	// Settings are put on top of the defaults, name by name.
	Settings map[string]string
	// StartTimeout bounds the wait until the server answers, which includes
	// recovery after a crash; 2 minutes when 0.
	StartTimeout time.Duration
}

// User is the server's superuser and the owner of everything in it.
const User = "reeve"

// durable are the settings of a server that keeps what it was told.
var durable = map[string]string{
	"max_connections":    "200",
	"shared_buffers":     "128MB",
	"max_wal_size":       "2GB",
	"checkpoint_timeout": "15min",
	"wal_compression":    "on",
	"random_page_cost":   "1.1",
	"jit":                "off",
	"timezone":           "UTC",
	"log_timezone":       "UTC",
	"log_checkpoints":    "off",
	"log_lock_waits":     "on",
	"wal_level":          "replica",
}

// Fast returns settings for a server whose data nobody will miss.
func Fast() map[string]string {
	return map[string]string{
		"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off",
		"wal_level": "minimal", "max_wal_senders": "0", "shared_buffers": "64MB",
		"autovacuum_naptime": "10s", "max_connections": "400",
	}
}

// Server is a running PostgreSQL. It stops when the process that started it
// ends, however it ends.
type Server struct {
	dsn  string
	port int
	log  string
	cmd  *exec.Cmd
	done chan struct{} // closed when the postmaster has ended
	err  error         // how it ended; read after done
}

// DSN returns the URL to connect to the server's database with.
func (s *Server) DSN() string { return s.dsn }

// Port returns the TCP port on 127.0.0.1.
func (s *Server) Port() int { return s.port }

// Done is closed when the server has ended, asked or not.
func (s *Server) Done() <-chan struct{} { return s.done }

// Start starts the server of a folder and returns when it answers. A server
// that an earlier process left running there is stopped first.
func Start(ctx context.Context, o Options) (*Server, error) {
	o.Database = cmp.Or(o.Database, "reeve")
	o.StartTimeout = cmp.Or(o.StartTimeout, 2*time.Minute)
	ctx, cancel := context.WithTimeoutCause(ctx, o.StartTimeout, fmt.Errorf("no answer for %v", o.StartTimeout))
	defer cancel()

	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("postgres folder %s: %w", o.Dir, err)
	}
	data := filepath.Join(dir, "data")
	major, err := majorOf(data)
	if err != nil {
		return nil, err
	}
	in, err := Find(ctx, major)
	if err != nil {
		if major != 0 {
			return nil, fmt.Errorf("%s was made by PostgreSQL %d: %w", data, major, err)
		}
		return nil, err
	}
	owner, err := unprivileged()
	if err != nil {
		return nil, err
	}
	if err := prepare(dir, owner); err != nil {
		return nil, err
	}
	password, err := readPassword(filepath.Join(dir, "password"), owner)
	if err != nil {
		return nil, err
	}
	if major == 0 {
		if err := initialise(ctx, in, dir, owner); err != nil {
			return nil, err
		}
	}
	unclean, err := stopLeftover(ctx, data)
	if err != nil {
		return nil, err
	}
	s, err := launch(ctx, in, dir, owner, o, password)
	// Backends of a server that was killed let go of its memory a moment later.
	for try := 1; err != nil && unclean && try < 5 && ctx.Err() == nil; try++ {
		select {
		case <-time.After(time.Duration(try) * 200 * time.Millisecond):
			s, err = launch(ctx, in, dir, owner, o, password)
		case <-ctx.Done():
		}
	}
	if err != nil {
		return nil, err
	}
	if err := createDatabase(ctx, s.dsn, o.Database); err != nil {
		return nil, errors.Join(err, s.Stop(context.WithoutCancel(ctx)))
	}
	return s, nil
}

// Stop ends the server's connections, lets it write what it knows to disk and
// waits for its end. When ctx ends first the server is made to end at once; it
// then recovers at the next start.
func (s *Server) Stop(ctx context.Context) error {
	if err := s.cmd.Process.Signal(syscall.SIGINT); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop postgres: %w", err)
	}
	select {
	case <-s.done:
		return nil
	case <-ctx.Done():
	}
	if err := s.cmd.Process.Signal(syscall.SIGQUIT); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop postgres: %w", err)
	}
	<-s.done
	return nil
}

// majorOf returns the major version that made a data folder, 0 when there is
// none yet.
func majorOf(data string) (int, error) {
	b, err := os.ReadFile(filepath.Join(data, "PG_VERSION"))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("postgres data: %w", err)
	}
	major, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return 0, fmt.Errorf("%s/PG_VERSION: %q is no major version of PostgreSQL 10 or newer", data, b)
	}
	return major, nil
}

// account is the user that the server runs as; nil is our own.
type account struct {
	name     string
	uid, gid uint32
}

// unprivileged returns the user to run as: nil for ourselves unless we are
// root, which PostgreSQL refuses.
func unprivileged() (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err := errors.Join(err1, err2); err != nil {
			return nil, fmt.Errorf("user %s: %w", name, err)
		}
		return &account{name: name, uid: uint32(uid), gid: uint32(gid)}, nil
	}
	return nil, errors.New("PostgreSQL refuses to run as root and there is no user postgres or nobody to run it as: start as an ordinary user")
}

// own gives a file to the account.
func (a *account) own(path string) error {
	if a == nil {
		return nil
	}
	if err := os.Chown(path, int(a.uid), int(a.gid)); err != nil {
		return fmt.Errorf("give %s to %s: %w", path, a.name, err)
	}
	return nil
}

// prepare makes the folder, which the account can reach and only it can read.
func prepare(dir string, owner *account) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("postgres folder: %w", err)
	}
	if err := owner.own(dir); err != nil {
		return err
	}
	if owner == nil {
		return nil
	}
	for parent := filepath.Dir(dir); ; parent = filepath.Dir(parent) {
		if err := letThrough(parent, owner); err != nil {
			return fmt.Errorf("user %s, which PostgreSQL runs as, cannot reach %s: %w; choose a folder under /var/lib, or run: chmod o+x %s",
				owner.name, dir, err, parent)
		}
		if parent == filepath.Dir(parent) {
			return nil
		}
	}
}

// readPassword returns the kept password, a new one the first time.
func readPassword(path string, owner *account) (string, error) {
	b, err := os.ReadFile(path)
	switch {
	case err == nil && len(b) > 0:
		return strings.TrimSpace(string(b)), nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("postgres password: %w", err)
	}
	password := rand.Text()
	if err := os.WriteFile(path, []byte(password+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("postgres password: %w", err)
	}
	return password, owner.own(path)
}

// initialise makes the data folder. It appears under its name only when it is
// whole, so that a crash in between costs nothing.
func initialise(ctx context.Context, in Install, dir string, owner *account) error {
	half := filepath.Join(dir, "data.new")
	if err := os.RemoveAll(half); err != nil {
		return fmt.Errorf("postgres data: %w", err)
	}
	cmd := exec.CommandContext(ctx, filepath.Join(in.Bin, "initdb"),
		"--pgdata", half, "--username", User, "--pwfile", filepath.Join(dir, "password"),
		"--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C", "--no-instructions")
	confine(cmd, dir, owner)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := run(cmd); err != nil {
		return fmt.Errorf("initdb in %s: %w: %s", dir, err, lastLines(out.Bytes()))
	}
	if err := os.Rename(half, filepath.Join(dir, "data")); err != nil {
		return fmt.Errorf("postgres data: %w", err)
	}
	return nil
}

// run is cmd.Run on a thread that lives as long as the command: a parent's
// death signal is that of the parent's thread.
func run(cmd *exec.Cmd) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return cmd.Run()
}

// stopLeftover stops a server that runs on the data folder, and clears away
// the lock of one that is gone: after a restart of the machine its process id
// may be another's. It reports whether there was a lock at all.
func stopLeftover(ctx context.Context, data string) (bool, error) {
	lock := filepath.Join(data, "postmaster.pid")
	b, err := os.ReadFile(lock)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("postgres lock: %w", err)
	}
	first, _, _ := strings.Cut(string(b), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(first))
	if err == nil && isPostmaster(pid, data) {
		// It may be stopping already, because its parent has died.
		err := syscall.Kill(pid, syscall.SIGINT)
		if err == nil {
			err = poll(ctx, func() bool { return !isPostmaster(pid, data) })
		}
		if err != nil && !errors.Is(err, syscall.ESRCH) {
			return false, fmt.Errorf("stop the postgres that runs in %s (process %d): %w", data, pid, err)
		}
	}
	if err := os.Remove(lock); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("postgres lock: %w", err)
	}
	return true, nil
}

// launch starts the postmaster and waits until it answers.
func launch(ctx context.Context, in Install, dir string, owner *account, o Options, password string) (*Server, error) {
	port, err := freePort(ctx, o.Port)
	if err != nil {
		return nil, err
	}
	logPath := filepath.Join(dir, "postgres.log")
	logFile, err := openLog(logPath)
	if err != nil {
		return nil, err
	}
	defer logFile.Close()

	settings := maps.Clone(durable)
	maps.Copy(settings, o.Settings)
	settings["listen_addresses"] = "127.0.0.1"
	settings["unix_socket_directories"] = ""
	settings["port"] = strconv.Itoa(port)
	args := []string{"-D", filepath.Join(dir, "data")}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "-c", name+"="+settings[name])
	}
	// The command outlives ctx, which only bounds the start.
	cmd := exec.Command(filepath.Join(in.Bin, "postgres"), args...) //nolint:noctx // stopped by Stop and by our own death
	confine(cmd, dir, owner)
	cmd.Stdout, cmd.Stderr = logFile, logFile

	dsn := url.URL{
		Scheme: "postgres", User: url.UserPassword(User, password),
		Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), Path: "/" + o.Database,
		RawQuery: "sslmode=disable",
	}
	s := &Server{dsn: dsn.String(), port: port, log: logPath, cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		// This thread is the postmaster's parent and must live as long as it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			s.err = cmd.Wait()
			close(s.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	if err := s.waitReady(ctx); err != nil {
		return nil, errors.Join(err, s.Stop(ctx))
	}
	return s, nil
}

// waitReady returns when the server answers a query.
func (s *Server) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-s.done:
			cancel(fmt.Errorf("it ended at once (%w): %s", cmp.Or(s.err, errors.New("exit 0")), tail(s.log)))
		case <-ctx.Done():
		}
	}()
	var last error
	err := poll(ctx, func() bool {
		last = withAdmin(ctx, s.dsn, func(c *pgx.Conn) error { return c.Ping(ctx) })
		return last == nil
	})
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return fmt.Errorf("start postgres on port %d: %w (last answer: %w; log: %s)", s.port, err, cmp.Or(last, errors.New("none")), s.log)
	}
	return nil
}

// poll calls done every few milliseconds until it is true or ctx ends.
func poll(ctx context.Context, done func() bool) error {
	tick := time.NewTicker(15 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// withAdmin calls f with a connection to the database that is always there.
func withAdmin(ctx context.Context, dsn string, f func(*pgx.Conn) error) error {
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		return fmt.Errorf("postgres DSN: %w", err)
	}
	cfg.Database = "postgres"
	cfg.ConnectTimeout = 5 * time.Second
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return err
	}
	return errors.Join(f(conn), conn.Close(ctx))
}

func createDatabase(ctx context.Context, dsn, name string) error {
	err := withAdmin(ctx, dsn, func(c *pgx.Conn) error {
		var there bool
		const q = `SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)`
		if err := c.QueryRow(ctx, q, name).Scan(&there); err != nil || there {
			return err
		}
		_, err := c.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize())
		return err
	})
	if err != nil {
		return fmt.Errorf("create database %s: %w", name, err)
	}
	return nil
}

// freePort returns the port, or a free one for 0.
func freePort(ctx context.Context, port int) (int, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return 0, fmt.Errorf("postgres port %d: %w", port, err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// openLog opens the server's log to append to, and puts a long one aside.
func openLog(path string) (*os.File, error) {
	const long = 16 << 20 // bytes
	if st, err := os.Stat(path); err == nil && st.Size() > long {
		if err := os.Rename(path, path+".1"); err != nil {
			return nil, fmt.Errorf("postgres log: %w", err)
		}
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("postgres log: %w", err)
	}
	return f, nil
}

// tail returns the last lines of a file, for an error.
func tail(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return lastLines(b)
}

// lastLines returns the last lines of an output as one.
func lastLines(b []byte) string {
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-4):], " | ")
}
