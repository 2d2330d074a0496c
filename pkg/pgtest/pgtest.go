// Package pgtest gives each test a Postgres database of its own, migrated to
// the newest schema, in a tenth of a second. One real server runs per test
// binary, started on first use and gone, with its files, when the binary ends
// in whatever way.
//
// REEVE_TEST_POSTGRES, the DSN of a database whose name contains "test", uses
// that server instead; then the database of a test that failed stays, and the
// test prints where.
package pgtest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/reeve-pipeline/reeve/migrations"
	"github.com/reeve-pipeline/reeve/pkg/pglocal"
)

// server is what New makes databases on.
type server struct {
	admin    string // DSN
	template string // migrated database to copy; empty: migrate each
	keep     bool   // the databases of failed tests outlive the binary
}

// shared starts the binary's one server on first use.
var shared = sync.OnceValues(start)

// New returns the DSN of a database of this test's own, which is dropped when
// the test has ended.
func New(t testing.TB) string {
	t.Helper()
	s, err := shared()
	if err != nil {
		t.Fatalf("a Postgres for tests: %v", err)
	}
	name := "reeve_test_" + strings.ToLower(rand.Text()[:12])
	dsn, err := s.create(t.Context(), name)
	if err != nil {
		t.Fatalf("a database for this test: %v", err)
	}
	t.Cleanup(func() {
		if s.keep && t.Failed() {
			t.Logf("kept: %s", dsn)
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := run(ctx, s.admin, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)"); err != nil {
			t.Logf("drop %s: %v", name, err)
		}
	})
	return dsn
}

// create makes a migrated database and returns its DSN.
func (s *server) create(ctx context.Context, name string) (string, error) {
	statement := "CREATE DATABASE " + name
	if s.template != "" {
		statement += " TEMPLATE " + s.template
	}
	if err := run(ctx, s.admin, statement); err != nil {
		return "", err
	}
	u, err := url.Parse(s.admin)
	if err != nil {
		return "", err
	}
	u.Path = "/" + name
	if s.template != "" {
		return u.String(), nil
	}
	return u.String(), migrations.Up(ctx, u.String())
}

func start() (*server, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if dsn := os.Getenv("REEVE_TEST_POSTGRES"); dsn != "" { //nolint:forbidigo // a test's only setting
		return &server{admin: dsn, keep: true}, refuse(dsn)
	}
	dir, err := os.MkdirTemp("", "reeve-pgtest-")
	if err != nil {
		return nil, err
	}
	if err := reap(dir); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	pg, err := pglocal.Start(ctx, pglocal.Options{Dir: filepath.Join(dir, "postgres"), Database: "reeve_test", Settings: pglocal.Fast()})
	if err != nil {
		return nil, err
	}
	s := &server{admin: pg.DSN()}
	if _, err := s.create(ctx, "reeve_test_template"); err != nil {
		return nil, err
	}
	s.template = "reeve_test_template"
	return s, nil
}

// refuse reports a DSN that may be of a database somebody needs.
func refuse(dsn string) error {
	u, err := url.Parse(dsn)
	if err != nil || !strings.HasPrefix(u.Scheme, "postgres") {
		return errors.New("REEVE_TEST_POSTGRES is not a URL of the form postgres://user:password@host:port/database")
	}
	if !strings.Contains(strings.TrimPrefix(u.Path, "/"), "test") {
		return fmt.Errorf("REEVE_TEST_POSTGRES names the database %q, which does not look like one for tests: its name must contain \"test\"", u.Path)
	}
	return nil
}

// reap leaves a shell behind that waits for the end of this process, however
// it comes, then for the end of the server, and removes the folder.
func reap(dir string) error {
	const script = `read -r _; pid=$(head -n 1 "$0/postgres/data/postmaster.pid") && kill -INT "$pid" &&
while kill -0 "$pid"; do sleep 0.05; done; rm -rf "$0"`
	// Our end of the pipe stays open until we die; nothing is ever written.
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd := exec.Command("/bin/sh", "-c", script, dir) //nolint:noctx // outlives this process
	cmd.Stdin = r
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return errors.Join(err, r.Close(), w.Close())
	}
	ends.Lock()
	defer ends.Unlock()
	ends.open = append(ends.open, w) // referenced, so that it is not closed as garbage
	return errors.Join(r.Close(), cmd.Process.Release())
}

// ends are the pipes whose closing says that this process has died.
var ends struct {
	sync.Mutex
	open []io.Closer
}

func run(ctx context.Context, dsn, statement string) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, statement)
	return errors.Join(err, conn.Close(ctx))
}
