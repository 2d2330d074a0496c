package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/reeve-pipeline/reeve/pkg/pdf"
	"github.com/reeve-pipeline/reeve/pkg/sample"
)

// asReeve, in the environment, makes this binary the reeve command.
const asReeve = "REEVE_TEST_AS_REEVE"

func TestMain(m *testing.M) {
	pdf.ChildMain() // readers are started without our environment
	if os.Getenv(asReeve) != "" {
		main()
	}
	os.Exit(m.Run())
}

// command is reeve with arguments.
func command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(os.Environ(), asReeve+"=1", "REEVE_API=", "REEVE_DATA=")
	return cmd
}

// instance is a running all-in-one.
type instance struct {
	*exec.Cmd
	api    string
	stderr *bytes.Buffer
	ended  chan error
}

var readyLine = regexp.MustCompile(`(?m)^ready +(\S+)`)

// up starts an all-in-one and waits until it is ready.
func up(t *testing.T, data string) *instance {
	t.Helper()
	i := &instance{Cmd: command(context.Background(), "up", "--data", data, "--listen", "127.0.0.1:0", "--log", "reeve.log"), stderr: new(bytes.Buffer), ended: make(chan error, 1)}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	i.Stderr = w
	if err := errors.Join(i.Start(), w.Close()); err != nil {
		t.Fatal(err)
	}
	ready := make(chan string, 1)
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := r.Read(buf)
			i.stderr.Write(buf[:n])
			if m := readyLine.FindSubmatch(i.stderr.Bytes()); m != nil && len(ready) == 0 && i.api == "" {
				i.api = string(m[1])
				ready <- i.api
			}
			if err != nil {
				i.ended <- i.Wait()
				return
			}
		}
	}()
	t.Cleanup(func() { _ = i.Process.Kill() })
	select {
	case <-ready:
	case err := <-i.ended:
		t.Fatalf("up ended: %v\n%s", err, i.stderr)
	case <-time.After(2 * time.Minute):
		t.Fatal("up is not ready after two minutes")
	}
	return i
}

// end waits for the process to end.
func (i *instance) end(t *testing.T) error {
	t.Helper()
	select {
	case err := <-i.ended:
		return err
	case <-time.After(time.Minute):
		t.Fatal("it does not end")
		return nil
	}
}

// ask runs a command with --json against the instance of a data folder.
func ask(t *testing.T, data string, code int, into any, args ...string) {
	t.Helper()
	cmd := command(t.Context(), append(args, "--json", "--progress", "quiet", "--data", data)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if got := cmd.ProcessState.ExitCode(); got != code {
		t.Fatalf("reeve %v: %v, want exit %d\n%s%s", args, err, code, out, stderr.String())
	}
	if err := json.Unmarshal(out, into); err != nil {
		t.Fatalf("reeve %v: %v in %s", args, err, out)
	}
}

type endpoints struct {
	API      string `json:"api_url"`
	NATS     string `json:"nats_url"`
	Postgres string `json:"postgres_dsn"`
	S3       string `json:"s3_endpoint"`
	Running  bool   `json:"running"`
}

func TestUp(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	first := up(t, data)
	var before, after endpoints
	ask(t, data, 0, &before, "info")
	if !before.Running || before.API != first.api {
		t.Errorf("info says %+v, up said %s", before, first.api)
	}
	var site struct{ Subdomain string }
	ask(t, data, 0, &site, "site", "add", "alameda", "--source", t.TempDir())

	second := command(t.Context(), "up", "--data", data, "--listen", "127.0.0.1:0", "--log", "-")
	if out, err := second.CombinedOutput(); err == nil || !strings.Contains(string(out), "is in use") || !strings.Contains(string(out), first.api) {
		t.Errorf("a second one on the same folder: %v\n%s", err, out)
	}

	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = first.end(t) // killed
	third := up(t, data)
	ask(t, data, 0, &after, "info")
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("addresses after a restart: %s", diff)
	}
	ask(t, data, 0, &site, "site", "show", "alameda")
	for _, secret := range []string{"reeve.json", "secrets.json", "postgres/password"} {
		if st, err := os.Stat(filepath.Join(data, secret)); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", secret, st.Mode(), err)
		}
	}

	began := time.Now()
	if err := third.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := third.end(t); err != nil {
		t.Errorf("after SIGTERM: %v\n%s", err, third.stderr)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("it took %v to stop", took)
	}
}

func TestDemo(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	town, err := sample.Write(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	type summary struct {
		Status    string
		Note      string
		Documents struct {
			Found, Done, Partial, Failed, Duplicates, Unchanged, Pending int
			Pages                                                        map[string]int
		}
		Problems []struct{ Item, Class, Message string }
		Searches []struct{ Snippet string }
		Files    []struct{ Path string }
	}
	var s summary
	ask(t, data, 0, &s, "demo", "--listen", "127.0.0.1:0")
	d := s.Documents
	if s.Status != "completed" || d.Found != len(town.Files) || d.Done != town.Count("done") || d.Partial != town.Count("partial") ||
		d.Failed != town.Count("failed") || d.Duplicates != town.Count("duplicate") || d.Pending != 0 {
		t.Errorf("got %+v", s)
	}
	if p := town.Pages(); d.Pages["native"] != p.Native || d.Pages["image"] != p.Image || d.Pages["blank"] != p.Blank {
		t.Errorf("pages %v, want %+v", d.Pages, p)
	}
	if len(s.Problems) != d.Failed+d.Partial || len(s.Searches) != 2 || len(s.Files) < 3 {
		t.Errorf("problems %v, searches %v, files %v", s.Problems, s.Searches, s.Files)
	}
	for _, h := range s.Searches {
		if !strings.Contains(h.Snippet, "«") {
			t.Errorf("no match in %q", h.Snippet)
		}
	}

	var again summary
	ask(t, data, 0, &again, "demo", "--listen", "127.0.0.1:0")
	if again.Documents.Unchanged == 0 || again.Documents.Done != 0 {
		t.Errorf("a second time: %+v", again)
	}
}
