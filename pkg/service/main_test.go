package service_test

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/reeve-pipeline/reeve/pkg/service"
)

// asService makes the test binary a service of that behaviour instead.
const asService = "SERVICE_TEST_RUN"

// runAsService is called first in TestMain. It returns in the tests' process.
func runAsService() {
	behaviour, ok := os.LookupEnv(asService)
	if !ok {
		return
	}
	os.Exit(service.Main("sample", func(ctx context.Context, env *service.Env) (service.Runner, error) {
		s := sample{Timeout: 3 * time.Second, MaxSize: 64 << 20, URL: "https://me:pa55@a.example/x"}
		if err := env.Load("sample", &s); err != nil {
			return nil, err
		}
		if behaviour == "nats" {
			if _, err := env.NATS(); err != nil {
				return nil, err
			}
		}
		return func(ctx context.Context) error {
			switch behaviour {
			case "fail":
				return errBroken
			case "hang":
				<-ctx.Done()
				<-env.Work().Done()
			default:
				<-ctx.Done()
			}
			return nil
		}, nil
	}))
}

// start runs the test binary as a service.
func start(t *testing.T, behaviour string, environ []string, args ...string) (*exec.Cmd, *bufio.Scanner, *strings.Builder) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append([]string{asService + "=" + behaviour}, environ...)
	stdout := &strings.Builder{}
	cmd.Stdout = stdout
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, bufio.NewScanner(stderr), stdout
}

// await reads lines until one has the text.
func await(t *testing.T, lines *bufio.Scanner, text string) string {
	t.Helper()
	var seen []string
	for lines.Scan() {
		if strings.Contains(lines.Text(), text) {
			return lines.Text()
		}
		seen = append(seen, lines.Text())
	}
	t.Fatalf("no line says %q:\n%s", text, strings.Join(seen, "\n"))
	return ""
}

// outcome runs a service to its end.
func outcome(t *testing.T, behaviour string, environ []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	cmd, lines, out := start(t, behaviour, environ, args...)
	var all []string
	for lines.Scan() {
		all = append(all, lines.Text())
	}
	err := cmd.Wait()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), strings.Join(all, "\n")
}

func TestMainStopsOnASignal(t *testing.T) {
	t.Parallel()
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		cmd, lines, _ := start(t, "run", nil)
		await(t, lines, `"msg":"ready"`)
		if err := cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
		await(t, lines, `"msg":"stopping"`)
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v: %v", s, err)
		}
	}
}

func TestMainExitsAtOnceOnTheSecondSignal(t *testing.T) {
	t.Parallel()
	cmd, lines, _ := start(t, "hang", []string{"REEVE_GRACE=1h"})
	await(t, lines, `"msg":"ready"`)
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	await(t, lines, `"msg":"stopping"`)
	// A signal that comes with the first is taken for its echo.
	exited := make(chan struct{})
	go func() {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			_ = cmd.Process.Signal(syscall.SIGTERM) // it may be gone by now
			select {
			case <-tick.C:
			case <-exited:
				return
			}
		}
	}()
	await(t, lines, `second signal`)
	close(exited)
	_ = cmd.Wait() // the code is what counts
	if code := cmd.ProcessState.ExitCode(); code != 128+int(syscall.SIGTERM) {
		t.Errorf("exit code %d", code)
	}
}

func TestMainExitCodes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, behaviour string
		environ, args   []string
		code            int
		stderr          string // its last line, or a part of it
	}{
		{"failure", "fail", nil, nil, 1, "sample: broken"},
		{"wrong setting", "run", []string{"REEVE_SAMPLE_RATE=x"}, nil, 2, `sample: sample.rate (environment REEVE_SAMPLE_RATE): "x" is not a number`},
		{"unknown flag", "run", nil, []string{"--lgo.level=debug"}, 2, "sample: --lgo.level is not a setting; did you mean --log.level?"},
		{"unknown variable", "run", []string{"REEVE_LOG_LEVELS=debug"}, nil, 2, "sample: REEVE_LOG_LEVELS is not a setting; did you mean REEVE_LOG_LEVEL?"},
		{"no NATS", "nats", []string{"REEVE_NATS_URL=nats://me:pa55@127.0.0.1:1"}, nil, 1, "start nats-server there or set nats.url (REEVE_NATS_URL)"},
		{"address taken", "run", nil, []string{"--http.addr=256.0.0.1:1"}, 1, "set http.addr (REEVE_HTTP_ADDR) to a free address or to off"},
		{"healthcheck without a port", "run", nil, []string{"healthcheck"}, 2, "healthcheck needs a fixed http.addr (REEVE_HTTP_ADDR)"},
		{"healthcheck of nothing", "run", nil, []string{"healthcheck", "--http.addr=127.0.0.1:1"}, 1, "connection refused"},
		{"version", "run", nil, []string{"--version"}, 0, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			code, _, stderr := outcome(t, tt.behaviour, tt.environ, tt.args...)
			last := stderr[strings.LastIndexByte(stderr, '\n')+1:]
			if code != tt.code || !strings.Contains(last, tt.stderr) {
				t.Errorf("exit code %d, want %d:\n%s", code, tt.code, stderr)
			}
			if strings.Contains(stderr, "pa55") {
				t.Errorf("a password is told:\n%s", stderr)
			}
		})
	}
}

func TestMainPrintsItsSettings(t *testing.T) {
	t.Parallel()
	environ := []string{"REEVE_SAMPLE_TIMEOUT=120m", "REEVE_SAMPLE_TOKEN=hunter2", "REEVE_NATS_URL=nats://127.0.0.1:1"}
	code, stdout, stderr := outcome(t, "nats", environ, "--print-config", "--sample.hosts=a.example,b.example")
	if code != 0 {
		t.Errorf("exit code %d:\n%s", code, stderr)
	}
	for _, want := range []string{
		"grace: 25s ", "# default", "sample.timeout: 2h ",
		"nats.url: \"nats://127.0.0.1:1\"", "# environment REEVE_NATS_URL",
		"sample.hosts: \"a.example,b.example\"", "# flag --sample.hosts",
		"# sample.token: \"***\"", "# environment REEVE_SAMPLE_TOKEN",
		"sample.max_size: 64MiB",
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("it does not say %q:\n%s", want, stdout)
		}
	}
	if strings.Contains(stdout, "hunter2") || strings.Contains(stdout, "pa55") {
		t.Errorf("it tells a secret:\n%s", stdout)
	}

	// What it prints can be read again.
	code, again, stderr := outcome(t, "nats", nil, "--print-config", "--config="+yamlFile(t, stdout))
	if code != 0 || !strings.Contains(again, "sample.hosts: \"a.example,b.example\"") || !strings.Contains(again, "# file ") {
		t.Errorf("exit code %d:\n%s\n%s", code, stderr, again)
	}

	code, _, stderr = outcome(t, "run", nil, "--print-config", "--sample.tiemout=1s")
	if code != 2 || !strings.Contains(stderr, "did you mean --sample.timeout?") {
		t.Errorf("exit code %d:\n%s", code, stderr)
	}
}

func TestMainHelp(t *testing.T) {
	t.Parallel()
	code, stdout, _ := outcome(t, "nats", nil, "--help")
	if code != 0 {
		t.Errorf("exit code %d", code)
	}
	for _, want := range []string{"--sample.max_size size", "largest document (default 64MiB)", "--sample.dry ", "--nats.url", "healthcheck"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("it does not say %q:\n%s", want, stdout)
		}
	}
	if strings.Contains(stdout, "pa55") {
		t.Errorf("it tells a secret:\n%s", stdout)
	}
}

func TestMainHealthcheck(t *testing.T) {
	t.Parallel()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	cmd, lines, _ := start(t, "run", nil, "--http.addr="+addr)
	await(t, lines, `"msg":"ready"`)
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := outcome(t, "run", nil, "healthcheck", "--http.addr=0.0.0.0:"+port); code != 0 {
		t.Errorf("exit code %d:\n%s", code, stderr)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+"/debug/pprof/goroutine?debug=1", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Error(resp.Status)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}
