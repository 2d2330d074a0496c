package pglocal_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/reeve-pipeline/reeve/pkg/pglocal"
)

// parentOf, in the environment, makes this binary start the server of that
// folder, print its DSN and wait to be killed.
const parentOf = "PGLOCAL_TEST_PARENT_OF"

func TestMain(m *testing.M) {
	if dir := os.Getenv(parentOf); dir != "" {
		s, err := pglocal.Start(context.Background(), pglocal.Options{Dir: dir, Settings: pglocal.Fast()})
		if err != nil {
			fmt.Fprintln(os.Stdout, err)
			os.Exit(1)
		}
		fmt.Fprintln(os.Stdout, s.DSN())
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func start(t *testing.T, dir string) *pglocal.Server {
	t.Helper()
	s, err := pglocal.Start(t.Context(), pglocal.Options{Dir: dir, Settings: pglocal.Fast()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

// keep writes what a later server must still have.
func keep(t *testing.T, dsn string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), `CREATE TABLE kept AS SELECT 42 AS n`); err != nil {
		t.Fatal(err)
	}
}

func query[T any](t *testing.T, dsn, sql string) T {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	row, err := conn.Query(t.Context(), sql)
	if err != nil {
		t.Fatal(err)
	}
	v, err := pgx.CollectExactlyOneRow(row, pgx.RowTo[T])
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestStartKeepsDataOverAStop(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "deep", "postgres")
	s := start(t, dir)
	keep(t, s.DSN())
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := query[int](t, start(t, dir).DSN(), `SELECT n FROM kept`); got != 42 {
		t.Fatalf("kept %d", got)
	}
	st, err := os.Stat(filepath.Join(dir, "password"))
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("password file: %v %v", st.Mode(), err)
	}
}

func TestAWrongPasswordIsRefused(t *testing.T) {
	t.Parallel()
	s := start(t, t.TempDir())
	cfg, err := pgx.ParseConfig(s.DSN())
	if err != nil {
		t.Fatal(err)
	}
	cfg.Password = "guessed"
	if _, err := pgx.ConnectConfig(t.Context(), cfg); err == nil {
		t.Fatal("connected with a wrong password")
	}
}

func TestStartAfterTheParentWasKilled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	parent := exec.CommandContext(t.Context(), os.Args[0])
	parent.Env = append(os.Environ(), parentOf+"="+dir)
	stdin, err := parent.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	dsn, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	keep(t, strings.TrimSpace(dsn))
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait() // killed

	if got := query[int](t, start(t, dir).DSN(), `SELECT n FROM kept`); got != 42 {
		t.Fatalf("kept %d", got)
	}
}

func TestStartReplacesARunningServer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := start(t, dir)
	second := start(t, dir)
	select {
	case <-first.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("two servers on one folder")
	}
	query[int](t, second.DSN(), `SELECT 1`)
}

func TestStartAfterThePostmasterWasKilled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := start(t, dir)
	conn, err := pgx.Connect(t.Context(), s.DSN()) // a backend that outlives its postmaster for a moment
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	b, err := os.ReadFile(filepath.Join(dir, "data", "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.Split(string(b), "\n")[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-s.Done()
	query[int](t, start(t, dir).DSN(), `SELECT 1`)
}

func TestAnotherProcessWithTheLocksIDIsLeftAlone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := start(t, dir)
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	stale := strconv.Itoa(os.Getpid()) + "\n" + filepath.Join(dir, "data") + "\n"
	if err := os.WriteFile(filepath.Join(dir, "data", "postmaster.pid"), []byte(stale), 0o600); err != nil {
		t.Fatal(err)
	}
	query[int](t, start(t, dir).DSN(), `SELECT 1`)
}

func TestErrorsNameTheThing(t *testing.T) {
	t.Parallel()
	t.Run("a port that is taken", func(t *testing.T) {
		t.Parallel()
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		port := l.Addr().(*net.TCPAddr).Port
		_, err = pglocal.Start(t.Context(), pglocal.Options{Dir: t.TempDir(), Port: port, Settings: pglocal.Fast()})
		if err == nil || !strings.Contains(err.Error(), strconv.Itoa(port)) {
			t.Fatalf("got %v", err)
		}
	})
	t.Run("data of a version that is not installed", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		if err := os.Mkdir(filepath.Join(dir, "data"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "data", "PG_VERSION"), []byte("99\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := pglocal.Start(t.Context(), pglocal.Options{Dir: dir})
		if !errors.Is(err, pglocal.ErrNotInstalled) || !strings.Contains(err.Error(), "made by PostgreSQL 99") {
			t.Fatalf("got %v", err)
		}
	})
	t.Run("a setting that does not exist", func(t *testing.T) {
		t.Parallel()
		_, err := pglocal.Start(t.Context(), pglocal.Options{Dir: t.TempDir(), Settings: map[string]string{"shared_bufers": "1"}})
		if err == nil || !strings.Contains(err.Error(), "shared_bufers") {
			t.Fatalf("got %v", err)
		}
	})
}
