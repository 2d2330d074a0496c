package service

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"
)

// checkTime bounds each readiness check.
const checkTime = 2 * time.Second

type check struct {
	name string
	ask  func(context.Context) error
}

// readiness is the body of /readyz.
type readiness struct {
	Service  string            `json:"service"`
	Version  string            `json:"version"`
	Ready    bool              `json:"ready"`
	NotReady map[string]string `json:"not_ready,omitempty"` // by check, why
}

// Ready adds a check to /readyz. It is called on each request, with a time limit.
func (e *Env) Ready(name string, ask func(context.Context) error) {
	if e.part != "" {
		name = e.part + "/" + name
	}
	e.proc.mu.Lock()
	defer e.proc.mu.Unlock()
	e.proc.checks = append(e.proc.checks, check{name, ask})
}

// Addr is where health and metrics are served, or empty.
func (e *Env) Addr() string {
	addr, _ := e.proc.addr.Load().(string)
	return addr
}

// readiness asks all checks at once.
func (e *Env) readiness(ctx context.Context) readiness {
	p := e.proc
	r := readiness{Service: e.Name, Version: e.Version, NotReady: map[string]string{}}
	switch p.phase.Load() {
	case starting:
		r.NotReady["process"] = "starting"
	case stopping:
		r.NotReady["process"] = "stopping"
	}
	p.mu.Lock()
	checks := append([]check(nil), p.checks...)
	p.mu.Unlock()

	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, c := range checks {
		all.Go(func() {
			if err := c.ask(ctx); err != nil {
				mu.Lock()
				defer mu.Unlock()
				r.NotReady[c.name] = err.Error()
			}
		})
	}
	all.Wait()
	r.Ready = len(r.NotReady) == 0
	return r
}

// handler serves the private port.
func (e *Env) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "ok")
	})
	ready := func(w http.ResponseWriter, r *http.Request) {
		state := e.readiness(r.Context())
		w.Header().Set("Content-Type", "application/json")
		if !state.Ready {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_ = json.NewEncoder(w).Encode(state) // nobody is left to tell
	}
	mux.HandleFunc("GET /readyz", ready)
	mux.HandleFunc("GET /healthz", ready)
	mux.Handle("GET /metrics", promhttp.HandlerFor(e.Metrics, promhttp.HandlerOpts{}))
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return mux
}

// serve starts the private port and returns what stops it.
func (e *Env) serve(ctx context.Context) (func(), error) {
	addr := e.proc.common.HTTP.Addr
	if addr == "off" || addr == "" {
		return func() {}, nil
	}
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("health and metrics: %w; set http.addr (%s) to a free address or to off", err, envName("http.addr"))
	}
	e.proc.addr.Store(listener.Addr().String())
	server := &http.Server{
		Handler:           e.handler(),
		ReadHeaderTimeout: 5 * time.Second,
		ErrorLog:          zap.NewStdLog(e.Log.Named("http")),
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			e.Log.Error("health and metrics are gone", zap.Error(err))
		}
	}()
	return func() {
		_ = server.Close() // a profile being read is not worth waiting for
		<-ended
	}, nil
}

// healthcheck asks the running process at addr whether it is ready; it is what
// a container without a shell uses to look after itself.
func healthcheck(ctx context.Context, addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || port == "0" {
		return wrong(fmt.Errorf("healthcheck needs a fixed http.addr (%s), not %q", envName("http.addr"), addr))
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	ctx, cancel := context.WithTimeout(ctx, checkTime+time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(host, port)+"/readyz", http.NoBody)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusOK {
		return nil
	}
	var state readiness
	if err := json.NewDecoder(resp.Body).Decode(&state); err != nil {
		return fmt.Errorf("not ready: %s", resp.Status)
	}
	var why []string
	for name, reason := range state.NotReady {
		why = append(why, name+": "+reason)
	}
	return fmt.Errorf("not ready: %s", strings.Join(why, "; "))
}
