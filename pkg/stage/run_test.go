package stage_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/reeve-pipeline/reeve/pkg/fault"
	"github.com/reeve-pipeline/reeve/pkg/pipeline"
	"github.com/reeve-pipeline/reeve/pkg/stage"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type handler func(context.Context, *stage.Task) (stage.Result, error)

func (h handler) Handle(ctx context.Context, t *stage.Task) (stage.Result, error) { return h(ctx, t) }

// queue hands out what is in it and keeps what is reported.
type queue struct {
	tasks    chan *delivery
	broken   error                     // what Next says when no task is left
	refuse   func(stage.Outcome) error // what Report says, if not nil
	watching chan func()

	mu       sync.Mutex
	outcomes []stage.Outcome
}

func (q *queue) Next(ctx context.Context) (stage.Delivery, error) {
	select {
	case d := <-q.tasks:
		return d, nil
	default:
	}
	if q.broken != nil {
		return nil, q.broken
	}
	select {
	case d := <-q.tasks:
		return d, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (q *queue) Report(ctx context.Context, o stage.Outcome) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.refuse != nil {
		if err := q.refuse(o); err != nil {
			return err
		}
	}
	q.outcomes = append(q.outcomes, o)
	return ctx.Err()
}

func (q *queue) Inputs(context.Context, *stage.Task) iter.Seq2[stage.Input, error] {
	return func(yield func(stage.Input, error) bool) { yield(stage.Input{Item: "input"}, nil) }
}

func (q *queue) Watch(_ int64, cancelled func()) func() {
	select {
	case q.watching <- cancelled:
	default:
	}
	return func() {}
}

// delivery notes what becomes of its task: done, returned or dropped.
type delivery struct {
	task       *stage.Task
	unreadable error
	deliveries int
	beats      int
	end        string
}

func (d *delivery) Task() (*stage.Task, error) { return d.task, d.unreadable }
func (d *delivery) Queued() time.Time          { return time.Now() }
func (d *delivery) Deliveries() int            { return max(1, d.deliveries) }
func (d *delivery) Working() error             { d.beats++; return nil }
func (d *delivery) Done() error                { d.end += "done"; return nil }
func (d *delivery) Drop(string) error          { d.end += "dropped"; return nil }

func (d *delivery) Return(after time.Duration) error {
	d.end += "returned after " + after.String()
	return nil
}

func task() *stage.Task {
	return &stage.Task{Run: 1, Stage: "fetch", Item: "a", Generation: 2, Try: 3, Attempt: 1, MaxAttempts: 2}
}

// worked is what [stage.Run] made of one delivery.
type worked struct {
	*delivery
	outcomes []stage.Outcome
	log      []observer.LoggedEntry
	took     time.Duration
}

func (w worked) last() stage.Outcome { return w.outcomes[len(w.outcomes)-1] }

// work runs one delivery through, in time that does not pass. during, if not
// nil, is called beside it, with what ends the hands and the work.
func work(t *testing.T, d *delivery, q *queue, h handler, during func(stop, end context.CancelFunc)) worked {
	t.Helper()
	core, logs := observer.New(zapcore.DebugLevel)
	q.tasks = make(chan *delivery, 1)
	q.tasks <- d
	pulling, stop := context.WithCancel(t.Context())
	work, end := context.WithCancel(t.Context())
	defer end()
	if during != nil {
		go during(stop, end)
	} else {
		stop()
	}
	began := time.Now()
	err := stage.Run(pulling, work, q, h, stage.Config{
		Stage: pipeline.Stage{Name: "fetch", Timeout: 10 * time.Minute, Backoff: time.Second, BackoffMax: time.Minute},
		Hands: 1, Lease: 30 * time.Second, Worker: "host/1", Log: zap.New(core),
	})
	if err != nil {
		t.Error(err)
	}
	return worked{d, q.outcomes, logs.All(), time.Since(began)}
}

func TestRun_completes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		got := work(t, &delivery{task: task()}, &queue{}, func(ctx context.Context, task *stage.Task) (stage.Result, error) {
			for in, err := range task.Inputs(ctx) {
				if in.Item != "input" || err != nil {
					t.Errorf("input %+v, error %v", in, err)
				}
			}
			return stage.Result{
				Output: map[string]int{"n": 1}, Skip: "unchanged", Artifacts: []stage.Artifact{{Key: "k"}},
				Metrics: map[string]float64{"good": 1, "bad": math.NaN(), "worse": math.Inf(1)},
			}, nil
		}, nil)
		want := []stage.Outcome{{
			Run: 1, Stage: "fetch", Item: "a", Generation: 2, Try: 3, Status: stage.StatusCompleted, Output: json.RawMessage(`{"n":1}`),
			Skip: "unchanged", Artifacts: []stage.Artifact{{Key: "k"}}, Metrics: map[string]float64{"good": 1},
			Worker: "host/1", StartedAt: began, EndedAt: began,
		}}
		if diff := cmp.Diff(want, got.outcomes); diff != "" {
			t.Errorf("outcome (-want +got):\n%s", diff)
		}
		if got.end != "done" {
			t.Errorf("the task is %s", got.end)
		}
	})
}

func TestRun_failures(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		handle handler
		status stage.Status
		class  fault.Class
		says   string
	}{
		{"an error", func(context.Context, *stage.Task) (stage.Result, error) { return stage.Result{}, errors.New("broken") }, stage.StatusRetry, fault.ClassTransient, "broken"},
		{"a panic", func(context.Context, *stage.Task) (stage.Result, error) { panic("oops") }, stage.StatusRetry, fault.ClassTransient, "panic: oops"},
		{"an output that is no object", func(context.Context, *stage.Task) (stage.Result, error) { return stage.Result{Output: 7}, nil }, stage.StatusFailed, fault.ClassPermanent, "output: int"},
		{"an output that is not JSON", func(context.Context, *stage.Task) (stage.Result, error) {
			return stage.Result{Output: func() {}}, nil
		}, stage.StatusFailed, fault.ClassPermanent, "output: json"},
		{"a timeout", func(ctx context.Context, _ *stage.Task) (stage.Result, error) {
			<-ctx.Done()
			return stage.Result{}, fault.Permanent(ctx.Err())
		}, stage.StatusRetry, fault.ClassTransient, "timed out after 10m0s"},
		{"a handler that ends its goroutine", func(context.Context, *stage.Task) (stage.Result, error) {
			runtime.Goexit()
			return stage.Result{}, nil
		}, stage.StatusRetry, fault.ClassTransient, "ended its goroutine"},
		{"a panic with an error", func(context.Context, *stage.Task) (stage.Result, error) {
			panic(fmt.Errorf("wrapped: %w", errors.New("error value")))
		}, stage.StatusRetry, fault.ClassTransient, "panic: wrapped: error value"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				got := work(t, &delivery{task: task()}, &queue{}, tt.handle, nil)
				o := got.last()
				if o.Status != tt.status || o.ErrorClass != tt.class || !strings.Contains(o.ErrorMessage, tt.says) || o.Fingerprint == "" {
					t.Errorf("got %+v, want %s, %s, %q", o, tt.status, tt.class, tt.says)
				}
				if got.end != "done" {
					t.Errorf("the task is %s", got.end)
				}
				errs := 0
				for _, e := range got.log {
					if e.Level == zapcore.ErrorLevel && e.Message == "task failed" {
						errs++
					}
				}
				if want := map[bool]int{true: 1}[tt.status == stage.StatusFailed]; errs != want {
					t.Errorf("%d errors logged, want %d", errs, want)
				}
			})
		})
	}
}

func TestRun_withoutCallingTheHandler(t *testing.T) {
	t.Parallel()
	uncalled := handler(func(context.Context, *stage.Task) (stage.Result, error) { panic("called") })
	for _, tt := range []struct {
		name  string
		d     *delivery
		class fault.Class
		end   string
	}{
		{"a message that cannot be read, of a task that can be told", &delivery{task: task(), unreadable: errors.New("not JSON")}, fault.ClassPoison, "dropped"},
		{"a message that nobody can tell the task of", &delivery{unreadable: errors.New("not JSON")}, "", "dropped"},
		{"a task that was handed out too often", &delivery{task: task(), deliveries: 11}, fault.ClassLost, "done"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				got := work(t, tt.d, &queue{}, uncalled, nil)
				if got.end != tt.end {
					t.Errorf("the message is %s, want %s", got.end, tt.end)
				}
				if tt.class == "" {
					if len(got.outcomes) > 0 {
						t.Errorf("reported %+v", got.outcomes)
					}
					return
				}
				if o := got.last(); o.Status != stage.StatusFailed || o.ErrorClass != tt.class || o.ErrorMessage == "" {
					t.Errorf("got %+v, want it failed as %s", o, tt.class)
				}
			})
		})
	}
}

func TestRun_signsOfLife(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		got := work(t, &delivery{task: task()}, &queue{}, func(ctx context.Context, _ *stage.Task) (stage.Result, error) {
			<-time.After(70 * time.Second)
			return stage.Result{}, ctx.Err()
		}, nil)
		var signs int
		for _, o := range got.outcomes {
			if o.Status == stage.StatusWorking && o.Worker == "host/1" && !o.StartedAt.IsZero() {
				signs++
			}
		}
		if signs != 3 { // at 5, 35 and 65 seconds
			t.Errorf("%d signs of life, want 3", signs)
		}
		if got.beats != 6 && got.beats != 7 { // every ten seconds
			t.Errorf("%d heartbeats", got.beats)
		}
		if got.last().Status != stage.StatusCompleted {
			t.Errorf("got %+v, want it completed", got.last())
		}
	})
}

func TestRun_stop(t *testing.T) {
	t.Parallel()
	waits := handler(func(ctx context.Context, _ *stage.Task) (stage.Result, error) {
		select {
		case <-ctx.Done():
			return stage.Result{}, fmt.Errorf("child: %w", ctx.Err())
		case <-time.After(time.Minute):
			return stage.Result{}, nil
		}
	})
	deaf := handler(func(ctx context.Context, _ *stage.Task) (stage.Result, error) {
		<-time.After(time.Hour)
		return stage.Result{}, nil
	})
	finishes := handler(func(ctx context.Context, _ *stage.Task) (stage.Result, error) {
		<-ctx.Done()
		return stage.Result{}, nil
	})
	both := func(stop, end context.CancelFunc) {
		<-time.After(time.Second)
		stop()
		end()
	}
	for _, tt := range []struct {
		name   string
		handle handler
		during func(stop, end context.CancelFunc)
		end    string
		within time.Duration
	}{
		{"work in hand is finished while its context lives", waits, func(stop, _ context.CancelFunc) { stop() }, "done", time.Minute},
		{"and given back when that ends", waits, both, "returned after 250ms", time.Second},
		{"success during a stop is recorded", finishes, both, "done", time.Second},
		{"a handler that does not listen is left behind", deaf, both, "returned after 250ms", 5 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				got := work(t, &delivery{task: task()}, &queue{}, tt.handle, tt.during)
				if got.end != tt.end {
					t.Errorf("the task is %s, want %s", got.end, tt.end)
				}
				if got.took > tt.within {
					t.Errorf("took %v, want at most %v", got.took, tt.within)
				}
				<-time.After(time.Hour) // which the one left behind takes to end
				for _, o := range got.outcomes {
					if tt.end != "done" && o.Status != stage.StatusWorking {
						t.Errorf("reported %+v", o)
					}
				}
			})
		})
	}
}

func TestRun_cancelledRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := &queue{watching: make(chan func(), 1)}
		got := work(t, &delivery{task: task()}, q, func(ctx context.Context, _ *stage.Task) (stage.Result, error) {
			(<-q.watching)()
			<-ctx.Done()
			return stage.Result{}, ctx.Err()
		}, nil)
		if got.end != "done" || len(got.outcomes) > 0 {
			t.Errorf("the task is %s, reported %+v; want it done without a word", got.end, got.outcomes)
		}
	})
}

// An outcome that the bus does not take yet is held, with its task, until it does.
func TestRun_reportIsRetried(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		up := time.Now().Add(5 * time.Minute)
		q := &queue{refuse: func(stage.Outcome) error {
			if time.Now().Before(up) {
				return errors.New("no server")
			}
			return nil
		}}
		got := work(t, &delivery{task: task()}, q, func(context.Context, *stage.Task) (stage.Result, error) { return stage.Result{}, nil }, nil)
		if got.end != "done" || len(got.outcomes) != 1 {
			t.Errorf("the task is %s, reported %+v", got.end, got.outcomes)
		}
		if got.beats < 25 {
			t.Errorf("%d heartbeats: the task was not held", got.beats)
		}
	})
}

func TestRun_reportGivesUpAtAStop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := &queue{refuse: func(stage.Outcome) error { return errors.New("no server") }}
		got := work(t, &delivery{task: task()}, q, func(context.Context, *stage.Task) (stage.Result, error) { return stage.Result{}, nil },
			func(stop, end context.CancelFunc) {
				<-time.After(time.Minute)
				stop()
				end()
			})
		if got.end != "returned after 250ms" || got.took > time.Minute+2*time.Second {
			t.Errorf("the task is %s after %v", got.end, got.took)
		}
	})
}

// An outcome that the bus can never take fails the task, and says why.
func TestRun_outcomeTooLarge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := &queue{refuse: func(o stage.Outcome) error {
			if len(o.Output) > 0 {
				return fault.Permanent(errors.New("outcome too large"))
			}
			return nil
		}}
		got := work(t, &delivery{task: task()}, q, func(context.Context, *stage.Task) (stage.Result, error) {
			return stage.Result{Output: map[string]int{"n": 1}, Artifacts: []stage.Artifact{{Key: "k"}}}, nil
		}, nil)
		if o := got.last(); o.Status != stage.StatusFailed || o.ErrorClass != fault.ClassPermanent || o.ErrorMessage != "outcome too large" || len(o.Artifacts) > 0 {
			t.Errorf("got %+v, want it failed", o)
		}
		if got.end != "done" {
			t.Errorf("the task is %s", got.end)
		}
	})
}

func TestRun_spawn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		got := work(t, &delivery{task: task()}, &queue{}, func(ctx context.Context, task *stage.Task) (stage.Result, error) {
			big := strings.Repeat("x", 100<<10)
			for _, items := range [][]stage.Item{
				{{Item: "a", Spec: map[string]string{"x": big}}, {Item: "b", Spec: map[string]string{"x": big}}, {Item: "c", Spec: map[string]string{"x": big}}, {Item: "a"}},
				{{Item: "b"}, {Item: "d"}},
				{},
				{{Item: "d"}},
			} {
				if err := task.Spawn(ctx, items...); err != nil {
					return stage.Result{}, err
				}
			}
			return stage.Result{}, nil
		}, nil)
		var parts []string
		for _, o := range got.outcomes {
			var names []string
			for _, item := range o.Items {
				names = append(names, item.Item)
			}
			parts = append(parts, string(o.Status)+" "+strings.Join(names, ","))
		}
		if diff := cmp.Diff([]string{"working a,b", "working c", "working d", "completed "}, parts); diff != "" {
			t.Errorf("parts (-want +got):\n%s", diff)
		}
		if n := got.last().Spawned; n != 4 {
			t.Errorf("%d spawned, want 4", n)
		}
	})
}

func TestRun_spawnRefuses(t *testing.T) {
	t.Parallel()
	for name, item := range map[string]stage.Item{
		"no name":           {},
		"a name too long":   {Item: strings.Repeat("x", 2000)},
		"no text":           {Item: "\xff"},
		"NUL":               {Item: "a\x00"},
		"a spec that isn't": {Item: "a", Spec: []int{1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				got := work(t, &delivery{task: task()}, &queue{}, func(ctx context.Context, task *stage.Task) (stage.Result, error) {
					return stage.Result{}, task.Spawn(ctx, item)
				}, nil)
				if o := got.last(); o.Status != stage.StatusFailed || o.ErrorClass != fault.ClassPermanent {
					t.Errorf("got %+v, want it failed for good", o)
				}
			})
		})
	}
}

func TestRun_queueGone(t *testing.T) {
	t.Parallel()
	gone := errors.New("connection closed")
	q := &queue{broken: gone}
	err := stage.Run(t.Context(), t.Context(), q, nil, stage.Config{Hands: 3, Log: zap.NewNop()})
	if !errors.Is(err, gone) {
		t.Errorf("got %v, want %v", err, gone)
	}
}
