package fanin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/reeve-pipeline/reeve/pkg/bus"
	"github.com/reeve-pipeline/reeve/pkg/fault"
	"github.com/reeve-pipeline/reeve/pkg/ledger"
	"github.com/reeve-pipeline/reeve/pkg/stage"
	"github.com/reeve-pipeline/reeve/pkg/telemetry"
)

// books is a backlog in memory: runs with so many tasks at one stage.
type books struct {
	Backlog
	backlogs []ledger.Backlog
	due      []ledger.Dispatchable
	failed   []stage.Outcome
}

func (b *books) Backlogs(context.Context, []int64) ([]ledger.Backlog, error) {
	return slices.DeleteFunc(slices.Clone(b.backlogs), func(x ledger.Backlog) bool { return x.Dispatched == x.LastSeq }), nil
}

func (b *books) Undispatched(_ context.Context, at ledger.Backlog, limit int) (list []ledger.Dispatchable, _ error) {
	i := slices.IndexFunc(b.backlogs, func(x ledger.Backlog) bool { return x.Run == at.Run }) // as it is by now
	for seq := at.Dispatched + 1; seq <= b.backlogs[i].LastSeq && len(list) < limit; seq++ {
		list = append(list, ledger.Dispatchable{Task: stage.Task{Run: at.Run, Stage: at.Stage, Item: strconv.FormatInt(seq, 10)}, Seq: seq})
	}
	return list, nil
}

func (b *books) MarkDispatched(_ context.Context, marks []ledger.Backlog) error {
	for _, m := range marks {
		for i := range b.backlogs {
			if b.backlogs[i].Run == m.Run {
				b.backlogs[i].Dispatched = max(b.backlogs[i].Dispatched, m.Dispatched)
			}
		}
	}
	return nil
}

func (b *books) Due(context.Context, int) ([]ledger.Dispatchable, error) {
	due := b.due
	b.due = nil
	return due, nil
}

func (b *books) MarkRedispatched(context.Context, []ledger.Dispatchable) error { return nil }
func (b *books) Live(context.Context) (map[string]int64, error)                { return map[string]int64{}, nil }

func (b *books) Record(_ context.Context, outcomes []stage.Outcome) (ledger.Recorded, error) {
	b.failed = append(b.failed, outcomes...)
	return ledger.Recorded{}, nil
}

// conveyor notes which run each published task is of.
type conveyor struct {
	runs  []int64
	hands int
	fails func(bus.TaskMessage) error
}

func (c *conveyor) PublishTasks(_ context.Context, tasks []bus.TaskMessage) []error {
	errs := make([]error, len(tasks))
	for i, t := range tasks {
		if c.fails != nil {
			errs[i] = c.fails(t)
		}
		if errs[i] == nil {
			c.runs = append(c.runs, t.Task.Run)
		}
	}
	return errs
}

func (c *conveyor) ConsumerState(context.Context, string) (bus.ConsumerState, error) {
	return bus.ConsumerState{Waiting: c.hands}, nil
}

func dispatcher(b *books, c *conveyor) *Dispatcher {
	return NewDispatcher(b, c, zap.NewNop(), telemetry.NewFanIn(prometheus.NewRegistry()), func(int64) bool { return true })
}

func backlog(run int64, priority ledger.Priority, tasks int64) ledger.Backlog {
	return ledger.Backlog{Run: run, Stage: "reduce", Priority: priority, Generation: 1, LastSeq: tasks}
}

func TestDispatcher_SharesInTurns(t *testing.T) {
	t.Parallel()
	b := &books{backlogs: []ledger.Backlog{backlog(1, ledger.Normal, 100_000), backlog(2, ledger.Normal, 10), backlog(3, ledger.Low, 10), backlog(4, ledger.High, 10)}}
	c := &conveyor{hands: 1000}
	if err := dispatcher(b, c).round(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	count := map[int64]int{}
	for _, run := range c.runs {
		count[run]++
	}
	if first := slices.Index(c.runs, 4); first != 0 {
		t.Errorf("the run of high priority begins at place %d", first)
	}
	if at := slices.Index(c.runs, 2); at < 0 || at > 10+turn {
		t.Errorf("the small run begins at place %d, after more than one turn of the huge one", at)
	}
	if count[3] != 0 {
		t.Errorf("%d tasks of low priority went out while the normal ones wait", count[3])
	}
	if n := len(c.runs); n != 2000 {
		t.Errorf("%d tasks are on the bus, want the window of 2000", n)
	}
}

func TestDispatcher_KeepsToTheWindow(t *testing.T) {
	t.Parallel()
	b := &books{backlogs: []ledger.Backlog{backlog(1, ledger.Normal, 1000)}}
	c := &conveyor{}
	d := dispatcher(b, c)
	if err := d.round(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if len(c.runs) != least {
		t.Fatalf("%d tasks go to a stage that nothing is known of, want %d", len(c.runs), least)
	}
	if err := d.round(t.Context(), false); err != nil || len(c.runs) != least {
		t.Fatalf("a full window takes more: %d, %v", len(c.runs), err)
	}
	if err := d.learn(t.Context(), []ledger.Recorded{{Finished: map[string]int{"reduce": 5}}}); err != nil {
		t.Fatal(err)
	}
	if err := d.round(t.Context(), false); err != nil || len(c.runs) != least+5 {
		t.Errorf("five tasks made room for %d, %v", len(c.runs)-least, err)
	}
}

func TestDispatcher_FullBus(t *testing.T) {
	t.Parallel()
	b := &books{backlogs: []ledger.Backlog{backlog(1, ledger.Normal, 20)}}
	c := &conveyor{fails: func(m bus.TaskMessage) error {
		if m.Task.Item == "8" {
			return fmt.Errorf("queue: %w", bus.ErrFull)
		}
		return nil
	}}
	d := dispatcher(b, c)
	if err := d.round(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if b.backlogs[0].Dispatched != 7 {
		t.Errorf("the mark stands at %d although task 8 was not taken", b.backlogs[0].Dispatched)
	}
	c.fails = nil
	if err := d.round(t.Context(), true); err != nil || b.backlogs[0].Dispatched != 20 {
		t.Errorf("with room again the mark stands at %d, %v", b.backlogs[0].Dispatched, err)
	}
}

func TestDispatcher_TaskThatCannotBeQueued(t *testing.T) {
	t.Parallel()
	b := &books{backlogs: []ledger.Backlog{backlog(1, ledger.Normal, 3)}}
	c := &conveyor{fails: func(m bus.TaskMessage) error {
		if m.Task.Item == "2" {
			return fault.Permanent(errors.New("2 MB do not fit a message"))
		}
		return nil
	}}
	if err := dispatcher(b, c).round(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if len(c.runs) != 2 || b.backlogs[0].Dispatched != 3 || len(b.failed) != 1 || b.failed[0].Item != "2" || b.failed[0].Status != stage.StatusFailed {
		t.Errorf("published %d, mark %d, failed %+v", len(c.runs), b.backlogs[0].Dispatched, b.failed)
	}
}

func TestDispatcher_RetriesGoOut(t *testing.T) {
	t.Parallel()
	b := &books{due: []ledger.Dispatchable{{Task: stage.Task{Run: 7, Stage: "reduce", Item: "x", Try: 2}}}}
	c := &conveyor{}
	if err := dispatcher(b, c).round(t.Context(), true); err != nil || len(c.runs) != 1 {
		t.Errorf("%d retries went out, %v", len(c.runs), err)
	}
}

// Tasks that were planned after the backlog was read are handed out once.
func TestDispatcher_BacklogGrowsMeanwhile(t *testing.T) {
	t.Parallel()
	b := &books{backlogs: []ledger.Backlog{backlog(1, ledger.Normal, 10)}}
	c := &conveyor{}
	d := dispatcher(b, c)
	d.know(backlog(1, ledger.Normal, 3)) // as it was when it was read
	for range 2 {
		if err := d.round(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		d.know(b.backlogs[0])
	}
	if len(c.runs) != 10 || b.backlogs[0].Dispatched != 10 {
		t.Errorf("%d messages for 10 tasks, the mark stands at %d", len(c.runs), b.backlogs[0].Dispatched)
	}
}
