package local_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/reeve-pipeline/reeve/pkg/artifact"
	"github.com/reeve-pipeline/reeve/pkg/artifact/local"
	"github.com/reeve-pipeline/reeve/pkg/s3test"
)

func start(t *testing.T, o local.Options) *local.Server {
	t.Helper()
	path, err := s3test.Program()
	if err != nil {
		t.Fatal(err)
	}
	o.Command, o.AccessKey, o.SecretKey = append([]string{path}, o.Command...), "key", "secret"
	s, err := local.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// What was stored is there when the server is started again over its folder,
// at the same address.
func TestStart_again(t *testing.T) {
	t.Parallel()
	for _, metadata := range []string{"auto", "files"} {
		t.Run(metadata, func(t *testing.T) {
			t.Parallel()
			testStartAgain(t, "--metadata="+metadata)
		})
	}
}

func testStartAgain(t *testing.T, args ...string) {
	dir := filepath.Join(t.TempDir(), "not", "there", "yet")
	s := start(t, local.Options{Dir: dir, Command: args})
	addr := s.Addr()
	store, err := artifact.Open(t.Context(), s.Config("bucket"))
	if err != nil {
		t.Fatal(err)
	}
	a, err := store.Put(t.Context(), "deep/down/k", strings.NewReader("kept"), -1, "text/plain")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := store.Stat(t.Context(), "deep/down/k"); err == nil {
		t.Error("it still answers")
	}
	s = start(t, local.Options{Dir: dir, Addr: addr})
	defer s.Close()
	got, err := store.Stat(t.Context(), "deep/down/k")
	if err != nil || got != a {
		t.Errorf("after the restart: %+v, %v; want %+v", got, err, a)
	}
}

func TestStart_wrong(t *testing.T) {
	t.Parallel()
	s := start(t, local.Options{})
	t.Cleanup(func() { _ = s.Close() })
	path, err := s3test.Program()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, says string
		o          local.Options
	}{
		{"no command", "no command", local.Options{}},
		{"no such program", "no such file", local.Options{Command: []string{file + "x"}}},
		{"no credentials", "REEVE_S3_ACCESS_KEY", local.Options{Command: []string{path}}},
		{"a taken port", "address already in use", local.Options{Command: []string{path}, Addr: s.Addr(), AccessKey: "k", SecretKey: "s"}},
		{"a file for a folder", "not a directory", local.Options{Command: []string{path}, Dir: file, AccessKey: "k", SecretKey: "s"}},
		{"another program", "ended", local.Options{Command: []string{"true"}, AccessKey: "k", SecretKey: "s"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if s, err := local.Start(context.Background(), tt.o); err == nil {
				_ = s.Close()
				t.Error("it started")
			} else if !strings.Contains(err.Error(), tt.says) {
				t.Errorf("error %v, want %q", err, tt.says)
			}
		})
	}
}

func TestServer_Done(t *testing.T) {
	t.Parallel()
	s := start(t, local.Options{})
	select {
	case <-s.Done():
		t.Fatal("it ended by itself:", s.Err())
	default:
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	<-s.Done()
	if s.Err() == nil {
		t.Error("a server that ended has no reason")
	}
}

// A server does not outlive its parent, even one that is killed.
func TestStart_parentKilled(t *testing.T) {
	t.Parallel()
	if os.Getenv("LOCAL_TEST_PARENT") != "" {
		if _, err := fmt.Fprintln(os.Stdout, start(t, local.Options{}).Addr()); err != nil {
			t.Fatal(err)
		}
		select {}
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestStart_parentKilled$", "-test.count=1")
	cmd.Env = append(os.Environ(), "LOCAL_TEST_PARENT=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var addr string
	for lines := bufio.NewScanner(out); addr == "" && lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "127.0.0.1:") {
			addr = lines.Text()
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	config := artifact.Defaults()
	config.Endpoint, config.AccessKey, config.SecretKey = addr, "key", "secret"
	deadline := time.After(20 * time.Second)
	for tick := time.Tick(20 * time.Millisecond); ; {
		if _, err := artifact.Open(t.Context(), config); err != nil {
			return
		}
		select {
		case <-tick:
		case <-deadline:
			t.Fatal("the server outlived its parent")
		}
	}
}
