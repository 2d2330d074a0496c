package bus_test

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/reeve-pipeline/reeve/pkg/bus"
	"github.com/reeve-pipeline/reeve/pkg/fault"
	"github.com/reeve-pipeline/reeve/pkg/natstest"
	"github.com/reeve-pipeline/reeve/pkg/stage"
)

func completed(item string) stage.Outcome {
	return stage.Outcome{Run: 1, Stage: "fetch", Item: item, Try: 1, Status: stage.StatusCompleted}
}

func TestPublishTasks(t *testing.T) {
	t.Parallel()
	b, _ := open(t)
	all := tasks(2000)
	publish(t, b, all...)
	publish(t, b, all...) // queued already
	subjects, err := b.TaskSubjects(t.Context(), "fetch")
	if err != nil {
		t.Fatal(err)
	}
	if len(subjects) != len(all) {
		t.Errorf("%d tasks queued, want %d", len(subjects), len(all))
	}
	for _, m := range all {
		if !subjects.Has(m.Ref()) {
			t.Fatalf("%s is not queued", m.Ref().Subject())
		}
	}
	if subjects.Has(bus.TaskRef{Stage: "fetch", Priority: 1, Pipeline: "civic", Run: 1, Item: "other"}) {
		t.Error("a task is queued that was not published")
	}
}

// A message that is left of an earlier try never keeps a later one away.
func TestPublishTasks_olderGivesWay(t *testing.T) {
	t.Parallel()
	b, nc := open(t)
	old, next, rerun := task("a"), task("a"), task("a")
	next.Task.Try = 2
	rerun.Task.Generation, rerun.Task.Try = 1, 1
	for _, step := range []struct {
		publish bus.TaskMessage
		stands  string // generation and try
	}{{old, "0/1"}, {next, "0/2"}, {old, "0/2"}, {rerun, "1/1"}, {next, "1/1"}, {rerun, "1/1"}} {
		publish(t, b, step.publish)
		s, err := jetStream(t, nc).Stream(t.Context(), bus.TaskStream)
		if err != nil {
			t.Fatal(err)
		}
		msg, err := s.GetLastMsgForSubject(t.Context(), old.Ref().Subject())
		if err != nil {
			t.Fatal(err)
		}
		if got := msg.Header.Get("Reeve-Generation") + "/" + msg.Header.Get("Reeve-Try"); got != step.stands {
			t.Errorf("generation/try %s stands in the queue, want %s", got, step.stands)
		}
	}
}

func TestPublishTasks_headers(t *testing.T) {
	t.Parallel()
	b, nc := open(t)
	m := task("a")
	m.Traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	publish(t, b, m)
	s, err := jetStream(t, nc).Stream(t.Context(), bus.TaskStream)
	if err != nil {
		t.Fatal(err)
	}
	msg, err := s.GetLastMsgForSubject(t.Context(), m.Ref().Subject())
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"Reeve-Schema": "1", "Reeve-Run": "1", "Reeve-Generation": "0", "Reeve-Try": "1", "Reeve-Attempt": "1", "traceparent": m.Traceparent} {
		if got := msg.Header.Get(name); got != want {
			t.Errorf("header %s: got %q, want %q", name, got, want)
		}
	}
}

// Both limits have one error code; only one of them means that all is well.
func TestPublishTasks_full(t *testing.T) {
	t.Parallel()
	nc := natstest.New(t)
	o := options()
	o.TaskBytes = 64 << 10
	provision(t, nc, o)
	b := onConn(t, nc)
	big := tasks(20)
	for i := range big {
		big[i].Task.Spec = json.RawMessage(`{"x":"` + strings.Repeat("x", 10<<10) + `"}`)
	}
	taken := 0
	for _, err := range b.PublishTasks(t.Context(), big) {
		if err == nil {
			taken++
		} else if !errors.Is(err, bus.ErrFull) {
			t.Errorf("got %v, want %v", err, bus.ErrFull)
		}
	}
	if taken == 0 || taken == len(big) {
		t.Errorf("%d of %d taken", taken, len(big))
	}
	publish(t, b, big[0]) // queued already, however full it is
}

func TestPublishTasks_tooLarge(t *testing.T) {
	t.Parallel()
	b, _ := open(t)
	large := task("large")
	large.Task.Spec = json.RawMessage(`{"x":"` + strings.Repeat("x", 2<<20) + `"}`)
	broken := task("broken")
	broken.Task.Spec = json.RawMessage(`{`)
	errs := b.PublishTasks(t.Context(), []bus.TaskMessage{large, task("fine"), broken})
	for _, i := range []int{0, 2} {
		if fault.Of(errs[i]) != fault.ClassPermanent {
			t.Errorf("task %d: got %v, want a permanent error", i, errs[i])
		}
	}
	if errs[1] != nil {
		t.Errorf("its neighbour: %v", errs[1])
	}
}

func TestPurgeRun(t *testing.T) {
	t.Parallel()
	b, _ := open(t)
	mine, other := task("a"), task("a")
	other.Task.Run = 2
	publish(t, b, mine, other)
	if err := b.PurgeRun(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		m    bus.TaskMessage
		want bool
	}{{mine, false}, {other, true}} {
		if got, err := b.HasTask(t.Context(), tt.m.Ref()); got != tt.want || err != nil {
			t.Errorf("run %d: queued is %t, error %v; want %t", tt.m.Task.Run, got, err, tt.want)
		}
	}
}

func TestPause(t *testing.T) {
	t.Parallel()
	b, _ := open(t)
	publish(t, b, task("a"))
	if err := b.Pause(t.Context(), "fetch"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "paused with a task pending", func() bool { return state(t, b) == bus.ConsumerState{Pending: 1, Paused: true} })
	if err := b.Resume(t.Context(), "fetch"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "resumed with a task pending", func() bool { return state(t, b) == bus.ConsumerState{Pending: 1} })
	if err := b.Pause(t.Context(), "nonsense"); err == nil {
		t.Error("an unknown stage was paused")
	}
}

// Outcomes reported at once travel together and arrive once each, in batches
// of what is there.
func TestReport_coalesces(t *testing.T) {
	t.Parallel()
	b, nc := open(t)
	const n = 3000
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			if err := b.Report(t.Context(), 0, completed(strconv.Itoa(i))); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	s, err := jetStream(t, nc).Stream(t.Context(), bus.DoneStream)
	if err != nil {
		t.Fatal(err)
	}
	if msgs := s.CachedInfo().State.Msgs; msgs < n/100 || msgs > n/2 {
		t.Errorf("%d outcomes travelled in %d messages", n, msgs)
	}
	r, err := b.Outcomes(t.Context(), 0, quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	seen := map[string]int{}
	for len(seen) < n {
		batch, err := r.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(batch.Outcomes) > 2100 {
			t.Errorf("a batch of %d", len(batch.Outcomes))
		}
		for _, o := range batch.Outcomes {
			seen[o.Item]++
		}
		if err := batch.Ack(); err != nil {
			t.Error(err)
		}
	}
	for item, times := range seen {
		if times != 1 {
			t.Errorf("%s came %d times", item, times)
		}
	}
}

func TestReport_bounds(t *testing.T) {
	t.Parallel()
	b, _ := open(t)
	large := completed("large")
	large.Output = json.RawMessage(`{"x":"` + strings.Repeat("x", 2<<20) + `"}`)
	if err := b.Report(t.Context(), 0, large); fault.Of(err) != fault.ClassPermanent {
		t.Errorf("got %v, want a permanent error", err)
	}
	// Together these are too large for a message, one by one they are not.
	var all sync.WaitGroup
	for i := range 12 {
		all.Go(func() {
			o := completed(strconv.Itoa(i))
			o.Output = json.RawMessage(`{"x":"` + strings.Repeat("x", 300<<10) + `"}`)
			if err := b.Report(t.Context(), 0, o); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

func TestOutcomes_poison(t *testing.T) {
	t.Parallel()
	b, nc := open(t)
	js := jetStream(t, nc)
	for _, data := range []string{
		`nonsense`,
		`{"outcomes":[{"schema":1,"run":"1","stage":"fetch","item":"a","status":"STATUS_COMPLETED"},{"schema":1}]}`,
	} {
		if _, err := js.Publish(t.Context(), bus.DoneSubject(0, "fetch"), []byte(data)); err != nil {
			t.Fatal(err)
		}
	}
	r, err := b.Outcomes(t.Context(), 0, quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var outcomes []stage.Outcome
	var poison []bus.Poison
	for len(poison) < 2 {
		batch, err := r.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		outcomes, poison = append(outcomes, batch.Outcomes...), append(poison, batch.Poison...)
		if err := batch.Ack(); err != nil {
			t.Error(err)
		}
	}
	if len(outcomes) != 1 || outcomes[0].Item != "a" {
		t.Errorf("got %+v, want the one that can be read", outcomes)
	}
	for i, p := range poison {
		if p.Seq != uint64(i+1) || p.Err == nil || p.Subject != "reeve.done.0.fetch" || len(p.Data) == 0 {
			t.Errorf("poison %d: %+v", i, p)
		}
	}
	eventually(t, "poison is off the stream's books", func() bool {
		c, err := js.Consumer(t.Context(), bus.DoneStream, "fanin-0")
		if err != nil {
			t.Fatal(err)
		}
		return c.CachedInfo().NumAckPending == 0 && c.CachedInfo().NumPending == 0
	})
}

// What a closed reader had not handed over comes at once to the next one, not
// after the messages' AckWait.
func TestOutcomes_closeGivesBack(t *testing.T) {
	t.Parallel()
	b, _ := open(t)
	for i := range 50 {
		if err := b.Report(t.Context(), 0, completed(strconv.Itoa(i))); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	first, err := b.Outcomes(t.Context(), 0, quiet)
	if err != nil {
		t.Fatal(err)
	}
	batch, err := first.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := batch.Ack(); err != nil {
		t.Fatal(err)
	}
	first.Close()
	second, err := b.Outcomes(t.Context(), 0, quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	seen := len(batch.Outcomes)
	for seen < 50 {
		batch, err := second.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		seen += len(batch.Outcomes)
		if err := batch.Ack(); err != nil {
			t.Error(err)
		}
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("took %v: the messages were not given back", took)
	}
}

// The reader works on through a restart and through a server that has
// forgotten everything.
func TestOutcomes_survivesTheServer(t *testing.T) {
	t.Parallel()
	srv := natstest.NewServer(t)
	nc := srv.Connect()
	provision(t, nc, options())
	b := onConn(t, nc)
	r, err := b.Outcomes(t.Context(), 0, quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for _, step := range []struct {
		name string
		do   func()
	}{
		{"at first", func() {}},
		{"restart", srv.Restart},
		{"wipe", func() { srv.Wipe(); reprovision(t, nc) }},
	} {
		step.do()
		eventually(t, step.name+" is reported", func() bool { return b.Report(t.Context(), 0, completed(step.name)) == nil })
		batch, err := r.Next(t.Context())
		if err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if batch.Outcomes[0].Item != step.name {
			t.Errorf("got %s, want %s", batch.Outcomes[0].Item, step.name)
		}
		if err := batch.Ack(); err != nil {
			t.Error(err)
		}
	}
}

// An outcome is settled when it has been acknowledged, not when it has been read.
func TestOutcomesSettled(t *testing.T) {
	t.Parallel()
	b, _ := open(t)
	settled := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		return b.OutcomesSettled(ctx)
	}
	if err := settled(); err != nil {
		t.Errorf("an empty stream: %v", err)
	}
	r, err := b.Outcomes(t.Context(), 0, quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for i := range 20 {
		if err := b.Report(t.Context(), 0, completed(strconv.Itoa(i))); err != nil {
			t.Fatal(err)
		}
		if err := settled(); err == nil {
			t.Fatal("settled as soon as it was published")
		}
		batch, err := r.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := batch.Ack(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "settled", func() bool { return settled() == nil })
	}
}

// What is missing is made again, as it was.
func TestRepair(t *testing.T) {
	t.Parallel()
	nc := natstest.New(t)
	b, js := onConn(t, nc), jetStream(t, nc)
	if err := b.Repair(t.Context()); err != nil {
		t.Fatal(err)
	}
	provision(t, nc, bus.Options{Partitions: 3})
	made, err := b.TasksCreated(t.Context())
	if err != nil || time.Since(made) > time.Minute {
		t.Errorf("stream made at %v, error %v", made, err)
	}
	if err := js.DeleteConsumer(t.Context(), bus.TaskStream, "fetch"); err != nil {
		t.Fatal(err)
	}
	if err := b.Repair(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := b.ConsumerState(t.Context(), "fetch"); err != nil {
		t.Error(err)
	}
	if n, err := b.Partitions(t.Context()); n != 3 || err != nil {
		t.Errorf("%d partitions, error %v; want the 3 there were", n, err)
	}
}
