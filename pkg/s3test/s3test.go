// Package s3test gives each test a bucket of its own on a real S3 server. The
// server is package s3d, built on first use, one process per test binary; it
// ends with the binary and takes its objects with it.
package s3test

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/reeve-pipeline/reeve/pkg/artifact"
	"github.com/reeve-pipeline/reeve/pkg/artifact/local"
)

// program is the import path of the server's main package.
const program = "github.com/reeve-pipeline/reeve/pkg/s3d/cmd/s3d"

// server is the test binary's one server.
var server = sync.OnceValues(func() (*local.Server, error) {
	path, err := Program()
	if err != nil {
		return nil, err
	}
	return local.Start(context.Background(), local.Options{
		Command: []string{path}, AccessKey: "test", SecretKey: "test-secret-key",
	})
})

// New returns the settings of a bucket of this test's own, which does not
// exist yet: artifact.Open makes it.
func New(t testing.TB) artifact.Config {
	t.Helper()
	s, err := server()
	if err != nil {
		t.Fatalf("s3 server for tests: %v", err)
	}
	return s.Config("test-" + strings.ToLower(rand.Text()))
}

// Open opens a bucket of this test's own.
func Open(t testing.TB) *artifact.Store {
	t.Helper()
	store, err := artifact.Open(t.Context(), New(t))
	if err != nil {
		t.Fatal(err)
	}
	return store
}

// Program compiles the server into the user's cache, where the go command
// finds it up to date the next time, and returns its path.
func Program() (string, error) {
	work, err := exec.CommandContext(context.Background(), "go", "env", "GOWORK").Output()
	if err != nil {
		return "", fmt.Errorf("it is built with the go command: %w; install Go and put it on the PATH", err)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = filepath.Join(os.TempDir(), fmt.Sprintf("cache-%d", os.Getuid()))
	}
	dir := filepath.Join(cache, "reeve")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("it is kept in %s: %w; set XDG_CACHE_HOME to a folder that can be written", dir, err)
	}
	// Checkouts do not share a binary; test binaries of one checkout do, in turn.
	path := filepath.Join(dir, fmt.Sprintf("s3d-%.6x", sha256.Sum256(work)))
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	if out, err := exec.CommandContext(context.Background(), "go", "build", "-o", path, program).CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build %s: %w; run it in the workspace and see: %s", program, err, out)
	}
	return path, nil
}
