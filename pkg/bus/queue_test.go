package bus_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/reeve-pipeline/reeve/pkg/bus"
	"github.com/reeve-pipeline/reeve/pkg/fault"
	"github.com/reeve-pipeline/reeve/pkg/natstest"
	"github.com/reeve-pipeline/reeve/pkg/pipeline"
	"github.com/reeve-pipeline/reeve/pkg/stage"
)

// handler is a function as a [stage.Handler].
type handler func(context.Context, *stage.Task) (stage.Result, error)

func (h handler) Handle(ctx context.Context, t *stage.Task) (stage.Result, error) { return h(ctx, t) }

// runner is one worker process: a bus, a queue and its hands.
type runner struct {
	stop  context.CancelFunc // takes no more tasks
	end   context.CancelFunc // gives back those in hand
	ended chan error
}

// start starts a worker that ends with the test.
func start(t *testing.T, nc *nats.Conn, hands int, h handler) *runner {
	t.Helper()
	q, err := onConn(t, nc).Queue(t.Context(), "fetch", quiet)
	if err != nil {
		t.Fatal(err)
	}
	pulling, stop := context.WithCancel(context.Background())
	work, end := context.WithCancel(context.Background())
	r := &runner{stop: stop, end: end, ended: make(chan error, 1)}
	go func() {
		defer close(r.ended)
		defer q.Close()
		r.ended <- stage.Run(pulling, work, q, h, stage.Config{Stage: fetch, Hands: hands, Lease: q.Lease(), Worker: "test/1", Log: quiet})
	}()
	t.Cleanup(func() {
		stop()
		end()
		for err := range r.ended {
			if err != nil {
				t.Error(err)
			}
		}
	})
	return r
}

// collect reads outcomes until n tasks have ended, and returns how often each
// ended and how.
func collect(t *testing.T, b *bus.Bus, n int) map[string][]stage.Status {
	t.Helper()
	r, err := b.Outcomes(t.Context(), 0, quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	ended := map[string][]stage.Status{}
	for len(ended) < n {
		batch, err := r.Next(ctx)
		if err != nil {
			t.Fatalf("%d of %d tasks ended: %v", len(ended), n, err)
		}
		for _, o := range batch.Outcomes {
			if o.Status != stage.StatusWorking {
				ended[o.Item] = append(ended[o.Item], o.Status)
			}
		}
		if err := batch.Ack(); err != nil {
			t.Error(err)
		}
	}
	return ended
}

// once fails the test unless every task completed exactly once.
func once(t *testing.T, ended map[string][]stage.Status) {
	t.Helper()
	for item, statuses := range ended {
		if !cmp.Equal(statuses, []stage.Status{stage.StatusCompleted}) {
			t.Errorf("%s: %v, want one completion", item, statuses)
		}
	}
}

func TestWorker_twoShareTheWork(t *testing.T) {
	t.Parallel()
	b, nc := open(t)
	var shares [2]atomic.Int64
	var both sync.WaitGroup // neither goes on before the other has a task
	both.Add(2)
	for i := range shares {
		start(t, nc, 2, func(context.Context, *stage.Task) (stage.Result, error) {
			if shares[i].Add(1) == 1 {
				both.Done()
				both.Wait()
			}
			return stage.Result{Output: map[string]int{"by": i}}, nil
		})
	}
	publish(t, b, tasks(100)...)
	once(t, collect(t, b, 100))
	eventually(t, "the queue is empty", func() bool { return empty(t, b) })
	if a, b := shares[0].Load(), shares[1].Load(); a+b != 100 {
		t.Errorf("%d and %d tasks worked, want 100 together", a, b)
	}
}

// A free hand asks for one task, so those that wait stay with the server for
// whoever is free first.
func TestWorker_takesNothingAhead(t *testing.T) {
	t.Parallel()
	b, nc := open(t)
	release := make(chan struct{})
	start(t, nc, 2, func(ctx context.Context, _ *stage.Task) (stage.Result, error) {
		<-release
		return stage.Result{}, nil
	})
	publish(t, b, tasks(10)...)
	eventually(t, "two tasks in hand", func() bool { return state(t, b).InHand == 2 })
	if s := state(t, b); s.InHand != 2 || s.Pending != 8 {
		t.Errorf("got %+v, want 2 in hand and 8 pending", s)
	}
	close(release)
	once(t, collect(t, b, 10))
}

// A task that takes longer than the lease stays in hand.
func TestWorker_heartbeats(t *testing.T) {
	t.Parallel()
	b, nc := open(t)
	var calls atomic.Int64
	slow := func(ctx context.Context, _ *stage.Task) (stage.Result, error) {
		calls.Add(1)
		select {
		case <-time.After(3 * options().AckWait):
		case <-ctx.Done():
		}
		return stage.Result{}, nil
	}
	start(t, nc, 1, slow)
	start(t, nc, 1, slow)
	publish(t, b, task("slow"))
	once(t, collect(t, b, 1))
	if n := calls.Load(); n != 1 {
		t.Errorf("worked %d times, want once", n)
	}
}

// A worker that dies with a task in hand costs the task its lease, no more.
func TestWorker_crash(t *testing.T) {
	t.Parallel()
	srv := natstest.NewServer(t)
	nc := srv.Connect()
	provision(t, nc, options())
	b := onConn(t, nc)
	publish(t, b, task("a"))

	dying := srv.Connect()
	q, err := onConn(t, dying).Queue(t.Context(), "fetch", quiet)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := q.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	dying.Close()
	q.Close()

	start(t, nc, 1, func(_ context.Context, task *stage.Task) (stage.Result, error) {
		if task.Attempt != 1 {
			t.Errorf("attempt %d, want 1", task.Attempt)
		}
		return stage.Result{}, nil
	})
	once(t, collect(t, b, 1))
}

// A stop gives the task in hand back: another worker has it soon, and no
// attempt is spent.
func TestWorker_stop(t *testing.T) {
	t.Parallel()
	b, nc := open(t)
	begun := make(chan struct{})
	first := start(t, nc, 1, func(ctx context.Context, _ *stage.Task) (stage.Result, error) {
		close(begun)
		<-ctx.Done()
		return stage.Result{}, fault.Permanent(errors.New("child killed"))
	})
	publish(t, b, task("a"))
	<-begun
	first.stop()
	first.end()
	stopped := time.Now()
	if err := <-first.ended; err != nil {
		t.Error(err)
	}
	start(t, nc, 1, func(_ context.Context, task *stage.Task) (stage.Result, error) {
		if task.Attempt != 1 || task.Try != 1 {
			t.Errorf("attempt %d, try %d; want the first", task.Attempt, task.Try)
		}
		return stage.Result{}, nil
	})
	once(t, collect(t, b, 1))
	if took := time.Since(stopped); took > options().AckWait {
		t.Errorf("taken up again after %v: it was not given back", took)
	}
}

// Work in hand is finished during a stop while its own context lives, and no
// more is taken.
func TestWorker_drains(t *testing.T) {
	t.Parallel()
	b, nc := open(t)
	begun, release := make(chan struct{}, 2), make(chan struct{})
	r := start(t, nc, 1, func(context.Context, *stage.Task) (stage.Result, error) {
		begun <- struct{}{}
		<-release
		return stage.Result{}, nil
	})
	publish(t, b, tasks(2)...)
	<-begun
	r.stop()
	close(release)
	if err := <-r.ended; err != nil {
		t.Error(err)
	}
	once(t, collect(t, b, 1))
	if has, err := b.HasTask(t.Context(), task("item-1").Ref()); !has || err != nil {
		t.Errorf("the other task is in the queue: %t, error %v", has, err)
	}
	if len(begun) != 0 {
		t.Error("a task was taken up during the stop")
	}
}

// An idle worker that stops takes no task with it: whatever was on its way to
// it is given back at once.
func TestWorker_stopLosesNothing(t *testing.T) {
	t.Parallel()
	b, nc := open(t)
	done := handler(func(context.Context, *stage.Task) (stage.Result, error) { return stage.Result{}, nil })
	for i := range 10 {
		r := start(t, nc, 4, done)
		publish(t, b, task(strconv.Itoa(i)))
		r.stop()
		r.end()
		if err := <-r.ended; err != nil {
			t.Error(err)
		}
	}
	began := time.Now()
	start(t, nc, 4, done)
	eventually(t, "all tasks are done", func() bool { return empty(t, b) })
	if took := time.Since(began); took > options().AckWait {
		t.Errorf("took %v: a task was lost until its lease ended", took)
	}
}

func TestWorker_survivesTheServer(t *testing.T) {
	t.Parallel()
	srv := natstest.NewServer(t)
	nc := srv.Connect()
	provision(t, nc, options())
	b := onConn(t, nc)
	start(t, srv.Connect(), 2, func(ctx context.Context, task *stage.Task) (stage.Result, error) {
		if task.Item == "wipe" {
			srv.Wipe() // with the task in hand: its outcome cannot be reported yet
			reprovision(t, nc)
		}
		return stage.Result{}, nil
	})
	for _, step := range []struct {
		name string
		do   func()
	}{
		{"at first", func() {}},
		{"restart", srv.Restart},
		{"consumer deleted", func() {
			if err := jetStream(t, nc).DeleteConsumer(t.Context(), bus.TaskStream, "fetch"); err != nil {
				t.Fatal(err)
			}
			reprovision(t, nc)
		}},
		{"wipe", func() {}},
		{"after the wipe", func() {}},
	} {
		step.do()
		eventually(t, step.name+" is queued", func() bool {
			return b.PublishTasks(t.Context(), []bus.TaskMessage{task(step.name)})[0] == nil
		})
		once(t, collect(t, b, 1))
	}
}

func TestWorker_cancelledRun(t *testing.T) {
	t.Parallel()
	b, nc := open(t)
	begun := make(chan struct{})
	start(t, nc, 1, func(ctx context.Context, task *stage.Task) (stage.Result, error) {
		if task.Run == 1 {
			close(begun)
			<-ctx.Done()
			return stage.Result{}, ctx.Err()
		}
		return stage.Result{}, nil
	})
	cancelled, other := task("a"), task("b")
	other.Task.Run = 2
	publish(t, b, cancelled)
	<-begun
	if err := b.CancelRun(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	publish(t, b, other)
	if ended := collect(t, b, 1); len(ended["b"]) != 1 {
		t.Errorf("got %v, want only the other run's task", ended)
	}
}

func TestWorker_poison(t *testing.T) {
	t.Parallel()
	b, nc := open(t)
	start(t, nc, 1, func(context.Context, *stage.Task) (stage.Result, error) { return stage.Result{}, nil })
	js := jetStream(t, nc)
	for _, m := range []*nats.Msg{
		{Subject: task("a b").Ref().Subject(), Data: []byte("nonsense"), Header: nats.Header{"Reeve-Try": {"4"}, "Reeve-Generation": {"2"}}},
		{Subject: "reeve.task.fetch.nonsense", Data: []byte("nonsense")},
	} {
		if _, err := js.PublishMsg(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	r, err := b.Outcomes(t.Context(), 0, quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	batch, err := r.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	o := batch.Outcomes[0]
	if o.Item != "a b" || o.Run != 1 || o.Try != 4 || o.Generation != 2 || o.Status != stage.StatusFailed || o.ErrorClass != fault.ClassPoison {
		t.Errorf("got %+v, want the task failed as poison", o)
	}
	eventually(t, "the queue is empty", func() bool { return empty(t, b) })
	eventually(t, "the server has noted both", func() bool {
		s, err := js.Stream(t.Context(), bus.AdvisoryStream)
		if err != nil {
			t.Fatal(err)
		}
		return s.CachedInfo().State.Msgs == 2
	})
}

// A task that takes its workers with it is given up in the end.
func TestWorker_lost(t *testing.T) {
	t.Parallel()
	b, nc := open(t)
	publish(t, b, task("killer"))
	q, err := b.Queue(t.Context(), "fetch", quiet)
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		d, err := q.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Return(0); err != nil {
			t.Fatal(err)
		}
	}
	q.Close()
	start(t, nc, 1, func(context.Context, *stage.Task) (stage.Result, error) {
		t.Error("the handler was called")
		return stage.Result{}, nil
	})
	if ended := collect(t, b, 1); !cmp.Equal(ended["killer"], []stage.Status{stage.StatusFailed}) {
		t.Errorf("got %v, want it failed", ended)
	}
}

func TestWorker_spawns(t *testing.T) {
	t.Parallel()
	b, nc := open(t)
	start(t, nc, 1, func(ctx context.Context, task *stage.Task) (stage.Result, error) {
		for i := range 3 {
			var items []stage.Item
			for j := range 700 {
				items = append(items, stage.Item{Item: fmt.Sprintf("%d-%d", i, j%600), Spec: map[string]int{"n": j}})
			}
			if err := task.Spawn(ctx, items...); err != nil {
				return stage.Result{}, err
			}
		}
		return stage.Result{}, nil
	})
	publish(t, b, task("listing"))
	r, err := b.Outcomes(t.Context(), 0, quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	seen := map[string]bool{}
	for {
		batch, err := r.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range batch.Outcomes {
			for _, item := range o.Items {
				seen[item.Item] = true
			}
			if o.Status == stage.StatusCompleted {
				if o.Spawned != 1800 || len(seen) != 1800 {
					t.Errorf("completed with %d spawned and %d seen before, want 1800", o.Spawned, len(seen))
				}
				return
			}
		}
	}
}

// A retry may be handed out before the last word on the try before it has
// reached the server: that word is then of no effect.
func TestWorker_retryOvertakesTheAcknowledgement(t *testing.T) {
	t.Parallel()
	b, _ := open(t)
	q, err := b.Queue(t.Context(), "fetch", quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	first, second := task("a"), task("a")
	second.Task.Try = 2
	publish(t, b, first)
	one, err := q.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	publish(t, b, second)
	if err := one.Done(); err != nil {
		t.Fatal(err)
	}
	two, err := q.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got, err := two.Task(); err != nil || got.Try != 2 || two.Deliveries() != 1 {
		t.Errorf("got %+v, error %v, delivered %d times; want try 2 for the first time", got, err, two.Deliveries())
	}
	if err := two.Done(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the queue is empty", func() bool { return empty(t, b) })
}

// From the publication of a task to its outcome in fan-in's hands: one at a
// time for the latency of a hop, and as many as go for the cost of a task.
func BenchmarkWorker(b *testing.B) {
	nc := natstest.New(b)
	js, err := jetstream.New(nc)
	if err != nil {
		b.Fatal(err)
	}
	s := fetch
	s.MaxInFlight = 1000
	if _, err := bus.Provision(b.Context(), js, bus.Options{Stages: []pipeline.Stage{s}}); err != nil {
		b.Fatal(err)
	}
	bb, err := bus.New(nc)
	if err != nil {
		b.Fatal(err)
	}
	q, err := bb.Queue(b.Context(), "fetch", quiet)
	if err != nil {
		b.Fatal(err)
	}
	defer q.Close()
	r, err := bb.Outcomes(b.Context(), 0, quiet)
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- stage.Run(ctx, ctx, q, handler(func(context.Context, *stage.Task) (stage.Result, error) { return stage.Result{}, nil }),
			stage.Config{Stage: s, Hands: 16, Lease: q.Lease(), Log: quiet})
	}()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			b.Error(err)
		}
	}()
	round := func(n int) {
		for _, err := range bb.PublishTasks(ctx, tasks(n)) {
			if err != nil {
				b.Fatal(err)
			}
		}
		for seen := 0; seen < n; {
			batch, err := r.Next(ctx)
			if err != nil {
				b.Fatal(err)
			}
			seen += len(batch.Outcomes)
			if err := batch.Ack(); err != nil {
				b.Fatal(err)
			}
		}
		for deadline := time.Now().Add(10 * time.Second); ; { // until the last acknowledgement has arrived
			left, err := bb.TaskSubjects(ctx, "fetch")
			if err != nil {
				b.Fatal(err)
			}
			if len(left) == 0 {
				return
			}
			if time.Now().After(deadline) {
				b.Fatalf("%d tasks left", len(left))
			}
		}
	}
	b.Run("hop", func(b *testing.B) {
		for b.Loop() {
			round(1)
		}
	})
	b.Run("thousand", func(b *testing.B) {
		for b.Loop() {
			round(1000)
		}
		b.ReportMetric(float64(b.N)*1000/b.Elapsed().Seconds(), "tasks/s")
	})
}
