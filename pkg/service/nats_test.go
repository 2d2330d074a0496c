package service_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/reeve-pipeline/reeve/pkg/service"
)

// natsServer starts a server that allows its only user to publish to allowed.>.
func natsServer(t *testing.T) *server.Server {
	t.Helper()
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, NoLog: true, NoSigs: true,
		Users: []*server.User{{Username: "sample", Password: "pa55", Permissions: &server.Permissions{
			Publish:   &server.SubjectPermission{Allow: []string{"allowed.>", "_INBOX_sample.>"}},
			Subscribe: &server.SubjectPermission{Allow: []string{"allowed.>", "_INBOX_sample.>"}},
		}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(s.Shutdown)
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("nats-server takes no connections")
	}
	return s
}

func userURL(s *server.Server) string {
	return strings.Replace(s.ClientURL(), "nats://", "nats://sample:pa55@", 1)
}

// get asks the health server of an Env.
func get(t *testing.T, env *service.Env, path string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+env.Addr()+path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// until asks until /readyz says what is wanted.
func until(t *testing.T, env *service.Env, want map[string]string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		code, body := get(t, env, "/readyz")
		var state struct {
			Ready    bool              `json:"ready"`
			NotReady map[string]string `json:"not_ready"`
		}
		if err := json.Unmarshal([]byte(body), &state); err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		ok := state.Ready == (len(want) == 0) && (code == http.StatusOK) == state.Ready && len(state.NotReady) == len(want)
		for name, reason := range want {
			ok = ok && strings.Contains(state.NotReady[name], reason)
		}
		if ok {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("readiness stays %s, want %v", body, want)
		case <-tick.C:
		}
	}
}

func TestNATS_ReadinessFollowsTheConnection(t *testing.T) {
	t.Parallel()
	s := natsServer(t)
	core, logs := observer.New(zap.InfoLevel)
	env, err := service.New("sample", service.Options{
		Version: "v1", Log: zap.New(core), Values: map[string]any{"nats.url": userURL(s), "http.addr": "127.0.0.1:0"},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	opened := make(chan *nats.Conn, 1)
	go func() {
		ended <- service.Run(ctx, env, service.As("fetch", func(_ context.Context, env *service.Env) (service.Runner, error) {
			nc, err := env.NATS()
			if err != nil {
				return nil, err
			}
			opened <- nc
			env.Ready("disk", func(context.Context) error { return errBroken })
			return func(ctx context.Context) error { <-ctx.Done(); return nil }, nil
		}))
	}()
	nc := <-opened
	if again, err := env.NATS(); err != nil || again != nc {
		t.Errorf("a second connection: %v", err)
	}
	if name := nc.Opts.Name; !strings.HasPrefix(name, "sample/v1/") {
		t.Errorf("the connection is called %q", name)
	}
	if inbox := nc.NewInbox(); !strings.HasPrefix(inbox, "_INBOX_sample.") {
		t.Errorf("replies come to %q", inbox)
	}
	until(t, env, map[string]string{"fetch/disk": "broken"})
	if code, body := get(t, env, "/livez"); code != http.StatusOK || body != "ok\n" {
		t.Errorf("%d %s", code, body)
	}
	if code, body := get(t, env, "/metrics"); code != http.StatusOK || !strings.Contains(body, `reeve_build_info{service="sample",version="v1"} 1`) {
		t.Errorf("%d %s", code, body)
	}

	if err := nc.Publish("forbidden.x", nil); err != nil {
		t.Fatal(err)
	}
	until(t, env, map[string]string{"fetch/disk": "broken", "nats": "forbidden.x"})
	if logs.FilterMessage("permission denied").Len() == 0 {
		t.Error("the violation is not logged")
	}

	s.Shutdown()
	until(t, env, map[string]string{"fetch/disk": "broken", "nats": "reconnecting"})

	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if !nc.IsClosed() {
		t.Error("the connection is open")
	}
}

func TestNATS_RefusesWithTheRemedy(t *testing.T) {
	t.Parallel()
	s := natsServer(t)
	for _, tt := range []struct{ name, url, want string }{
		{"nobody there", "nats://127.0.0.1:1", "start nats-server there or set nats.url"},
		{"wrong password", strings.Replace(userURL(s), "pa55", "other", 1), "check nats.url, nats.creds or nats.nkey"},
		{"no URL at all", "nats://me:pa55@[::1", "check nats.url"},
	} {
		env := newEnv(t, service.Options{Values: map[string]any{"nats.url": tt.url}})
		_, err := env.JetStream()
		if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "pa55") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

func TestNATS_ServerInTheSameProcess(t *testing.T) {
	t.Parallel()
	s, err := server.NewServer(&server.Options{DontListen: true, JetStream: true, StoreDir: t.TempDir(), NoLog: true, NoSigs: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(s.Shutdown)
	env := newEnv(t, service.Options{NATS: s})
	js, err := env.JetStream()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.Stream(t.Context(), "NONE"); !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Error(err)
	}
	if err := env.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
