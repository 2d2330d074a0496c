package service_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/reeve-pipeline/reeve/pkg/service"
)

var errBroken = errors.New("broken")

// quiet is an Env that serves nothing, for tests in a bubble of fake time.
func quiet(t *testing.T) *service.Env {
	t.Helper()
	return newEnv(t, service.Options{Values: map[string]any{"http.addr": "off", "grace": "25s"}})
}

func wire(r service.Runner) service.Wire {
	return func(context.Context, *service.Env) (service.Runner, error) { return r, nil }
}

// log collects what happened, in order.
type log struct {
	mu    sync.Mutex
	lines []string
}

func (l *log) add(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, line)
}

func TestRun_AStopLetsWorkInHandFinish(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		env, happened := quiet(t), &log{}
		ctx, stop := context.WithCancel(t.Context())
		worker := func(ctx context.Context, env *service.Env) (service.Runner, error) {
			env.OnClose(func(context.Context) error { happened.add("first closer"); return nil })
			env.OnClose(func(context.Context) error { happened.add("second closer"); return nil })
			return func(ctx context.Context) error {
				<-ctx.Done()
				happened.add("told to stop")
				select {
				case <-time.After(20 * time.Second):
					happened.add("finished")
				case <-env.Work().Done():
					happened.add("cut off")
				}
				return ctx.Err()
			}, nil
		}
		time.AfterFunc(time.Minute, stop)
		began := time.Now()
		if err := service.Run(ctx, env, worker); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took != 80*time.Second {
			t.Errorf("took %v", took)
		}
		if env.Work().Err() == nil {
			t.Error("the context of work in hand outlives the run")
		}
		want := []string{"told to stop", "finished", "second closer", "first closer"}
		if !slices.Equal(happened.lines, want) {
			t.Errorf("%q", happened.lines)
		}
	})
}

func TestRun_WorkThatOutlastsTheGraceIsCutOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		env := quiet(t)
		ctx, stop := context.WithCancel(t.Context())
		time.AfterFunc(time.Minute, stop)
		began := time.Now()
		err := service.Run(ctx, env, wire(func(context.Context) error {
			<-env.Work().Done()
			return env.Work().Err()
		}))
		if err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took != 85*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

func TestRun_ARunnerThatDoesNotStopIsAnError(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		env := quiet(t)
		ctx, stop := context.WithCancel(t.Context())
		time.AfterFunc(time.Minute, stop)
		hang := make(chan struct{})
		defer close(hang)
		began := time.Now()
		err := service.Run(ctx, env, wire(func(context.Context) error { <-hang; return nil }))
		if err == nil || !strings.Contains(err.Error(), "1 runners did not stop") {
			t.Error(err)
		}
		if took := time.Since(began); took != 90*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

func TestRun_ACloserThatHangsIsLeftBehind(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		env := quiet(t)
		hang := make(chan struct{})
		defer close(hang)
		closed := false
		env.OnClose(func(context.Context) error { closed = true; return nil })
		env.OnClose(func(context.Context) error { <-hang; return nil })
		err := service.Run(t.Context(), env, wire(func(context.Context) error { return nil }))
		if err == nil || !strings.Contains(err.Error(), "did not end within") {
			t.Error(err)
		}
		if !closed {
			t.Error("the closers before it were forgotten")
		}
	})
}

func TestRun_AFailureStopsEverything(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stopped := false
		err := service.Run(t.Context(), quiet(t),
			wire(func(ctx context.Context) error { <-ctx.Done(); stopped = true; return ctx.Err() }),
			wire(func(context.Context) error { return errBroken }),
		)
		if !errors.Is(err, errBroken) || err.Error() != "broken" {
			t.Error(err)
		}
		if !stopped {
			t.Error("the other runner went on")
		}
	})
}

func TestRun_EndsWhenAllAreDone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		once := wire(func(context.Context) error { return nil })
		later := wire(func(context.Context) error { <-time.After(time.Minute); return nil })
		if err := service.Run(t.Context(), quiet(t), once, later); err != nil {
			t.Error(err)
		}
	})
}

func TestRun_AWireThatFailsClosesWhatWasOpened(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		closed := false
		open := func(_ context.Context, env *service.Env) (service.Runner, error) {
			env.OnClose(func(context.Context) error { closed = true; return nil })
			return func(context.Context) error { t.Error("it was started"); return nil }, nil
		}
		fail := func(context.Context, *service.Env) (service.Runner, error) { return nil, errBroken }
		if err := service.Run(t.Context(), quiet(t), open, fail); !errors.Is(err, errBroken) {
			t.Error(err)
		}
		if !closed {
			t.Error("what the first wire opened is still open")
		}
	})
}

func TestRun_AStopWhileOpeningIsNoFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, stop)
		err := service.Run(ctx, quiet(t), func(ctx context.Context, _ *service.Env) (service.Runner, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
		if err != nil {
			t.Error(err)
		}
	})
}

func TestRun_UnknownSettings(t *testing.T) {
	t.Parallel()
	load := func(_ context.Context, env *service.Env) (service.Runner, error) {
		if err := env.Load("sample", &sample{Timeout: 1}); err != nil {
			return nil, err
		}
		return func(context.Context) error { t.Error("it was started"); return nil }, nil
	}
	fail := func(context.Context, *service.Env) (service.Runner, error) { return nil, errBroken }
	env := func() *service.Env {
		return newEnv(t, service.Options{Values: map[string]any{"http.addr": "off", "sample.tiemout": "1s"}})
	}

	err := service.Run(t.Context(), env(), load)
	if !errors.Is(err, service.ErrSettings) || !strings.Contains(err.Error(), "did you mean sample.timeout?") {
		t.Errorf("nobody noticed: %v", err)
	}
	// A misspelt setting may be why a wire fails, so it is named then, too.
	err = service.Run(t.Context(), env(), load, fail)
	if !errors.Is(err, errBroken) || !strings.Contains(err.Error(), "did you mean sample.timeout?") {
		t.Errorf("nobody noticed: %v", err)
	}
}

func TestAs(t *testing.T) {
	t.Parallel()
	env := newEnv(t, service.Options{Version: "v1", Values: map[string]any{"http.addr": "off", "fetch.depth": 3}})
	var depth nested
	part := service.As("fetch", func(_ context.Context, part *service.Env) (service.Runner, error) {
		if part.Name != "fetch" || part.Version != "v1" || part.Metrics != env.Metrics || part.Work() != env.Work() {
			t.Errorf("%+v is not part of the process", part)
		}
		if err := part.Load(part.Name, &depth); err != nil {
			return nil, err
		}
		return func(context.Context) error { return nil }, nil
	})
	if err := service.Run(t.Context(), env, part); err != nil {
		t.Error(err)
	}
	if env.Name != "sample" || depth.Depth != 3 {
		t.Errorf("%q %+v", env.Name, depth)
	}
}

func TestMain(m *testing.M) {
	runAsService()
	goleak.VerifyTestMain(m)
}
