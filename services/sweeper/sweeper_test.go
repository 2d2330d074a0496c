package sweeper

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/reeve-pipeline/reeve/pkg/bus"
	"github.com/reeve-pipeline/reeve/pkg/fault"
	"github.com/reeve-pipeline/reeve/pkg/ledger"
	"github.com/reeve-pipeline/reeve/pkg/stage"
	"github.com/reeve-pipeline/reeve/pkg/telemetry"
)

// books say what is to be found, and note what is done.
type books struct {
	silents []ledger.Silent
	stale   []ledger.Backlog
	expired []ledger.Dispatchable

	recorded  []stage.Outcome
	recovered []string
	marks     []ledger.Backlog
}

func (b *books) Lead(ctx context.Context, _ string, do func(context.Context) error) (bool, error) {
	return true, do(ctx)
}

func (b *books) Silents(context.Context, ledger.Silent, time.Time, int) ([]ledger.Silent, error) {
	return b.silents, nil
}

func (b *books) StillSilent(_ context.Context, tasks []ledger.Silent) ([]ledger.Silent, error) {
	return tasks, nil
}

func (b *books) MarkRecovered(_ context.Context, tasks []ledger.Silent) error {
	for _, t := range tasks {
		b.recovered = append(b.recovered, t.Stage+"/"+t.Item)
	}
	return nil
}

func (b *books) Record(_ context.Context, outcomes []stage.Outcome) (ledger.Recorded, error) {
	b.recorded = append(b.recorded, outcomes...)
	return ledger.Recorded{}, nil
}

func (b *books) Stale(context.Context) ([]ledger.Backlog, error) { return b.stale, nil }

func (b *books) Undispatched(_ context.Context, at ledger.Backlog, _ int) (list []ledger.Dispatchable, _ error) {
	for seq := at.Dispatched + 1; seq <= at.LastSeq; seq++ {
		list = append(list, ledger.Dispatchable{Task: stage.Task{Run: at.Run, Stage: at.Stage, Item: strconv.FormatInt(seq, 10)}, Seq: seq})
	}
	return list, nil
}

func (b *books) MarkDispatched(_ context.Context, marks []ledger.Backlog) error {
	b.marks = append(b.marks, marks...)
	return nil
}

func (b *books) Overdue(context.Context, int) ([]ledger.Dispatchable, error) { return nil, nil }
func (b *books) Expired(context.Context, int) ([]ledger.Dispatchable, error) { return b.expired, nil }

func (b *books) MarkRedispatched(context.Context, []ledger.Dispatchable) error { return nil }
func (b *books) Drifts(context.Context) ([]ledger.Drift, error)                { return nil, nil }
func (b *books) Repair(context.Context, int64) error                           { return nil }
func (b *books) Stuck(context.Context, time.Duration) (int, error)             { return 0, nil }

func (b *books) RecordSweep(context.Context, time.Time, int64, []ledger.Finding) error { return nil }

// conveyor is an empty bus but for what is queued, by stage.
type conveyor struct {
	queued    map[string]bus.Subjects
	consumers map[string]bus.ConsumerState
	unseen    string                      // a stage that cannot be looked at
	refuse    func(bus.TaskMessage) error // nil: takes all
}

func (c *conveyor) TaskSubjects(_ context.Context, stage string) (bus.Subjects, error) {
	return c.queued[stage], nil
}

var errUnseen = errors.New("consumer not found")

func (c *conveyor) ConsumerState(_ context.Context, stage string) (bus.ConsumerState, error) {
	if stage == c.unseen {
		return bus.ConsumerState{}, errUnseen
	}
	return c.consumers[stage], nil
}

func (c *conveyor) PublishTasks(_ context.Context, tasks []bus.TaskMessage) []error {
	errs := make([]error, len(tasks))
	for i, t := range tasks {
		if c.refuse != nil {
			errs[i] = c.refuse(t)
		}
	}
	return errs
}

func (c *conveyor) TasksCreated(context.Context) (time.Time, error) { return time.Time{}, nil }
func (c *conveyor) OutcomesSettled(context.Context) error           { return nil }
func (c *conveyor) Repair(context.Context) error                    { return nil }

func sweep(t *testing.T, b *books, c *conveyor) (Report, error) {
	t.Helper()
	return New(b, c, zap.NewNop(), telemetry.NewSweeper(prometheus.NewRegistry()), Defaults()).Sweep(t.Context(), false)
}

func silent(stageName, item string) ledger.Silent {
	return ledger.Silent{Dispatchable: ledger.Dispatchable{Task: stage.Task{Run: 1, Pipeline: "civic", Stage: stageName, Item: item, Generation: 1, Try: 1}}}
}

// found lists a report's findings as "found done".
func found(r Report) (list []string) {
	for _, f := range r.Findings {
		list = append(list, f.Found+" "+f.Done)
	}
	return list
}

func TestPlan(t *testing.T) {
	t.Parallel()
	lost := silent("reduce", "a")
	thrice, wiped := lost, lost
	thrice.Recoveries, wiped.Recoveries, wiped.Wiped = maxRecoveries, maxRecoveries, true
	there := evidence{subjects: bus.Subjects{ref(lost.Dispatchable).Subject(): 1}}
	for name, tt := range map[string]struct {
		task ledger.Silent
		e    evidence
		want action
	}{
		"it is queued":                           {thrice, there, leave},
		"its message is gone":                    {lost, evidence{}, republish},
		"that, once too often":                   {thrice, evidence{}, giveUp},
		"that, but all of the stream is gone":    {wiped, evidence{}, republish},
		"another task's message says nothing":    {silent("reduce", "b"), there, republish},
		"nor does the same item's, of elsewhere": {silent("deploy", "a"), there, republish},
	} {
		if got := plan(tt.task, tt.e); got != tt.want {
			t.Errorf("%s: %d, want %d", name, got, tt.want)
		}
	}
}

// A task that no message can hold is failed; those behind it are not held up.
func TestSweep_TaskThatCannotBeQueued(t *testing.T) {
	t.Parallel()
	b := &books{stale: []ledger.Backlog{{Run: 1, Stage: "reduce", Generation: 1, LastSeq: 3}}}
	r, err := sweep(t, b, &conveyor{refuse: func(m bus.TaskMessage) error {
		if m.Task.Item == "2" {
			return fault.Permanent(errors.New("2 MB do not fit a message"))
		}
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	if len(b.marks) != 1 || b.marks[0].Dispatched != 3 || len(b.recorded) != 1 || b.recorded[0].Item != "2" || b.recorded[0].Status != stage.StatusFailed {
		t.Errorf("marks %+v, recorded %+v", b.marks, b.recorded)
	}
	if diff := cmp.Diff([]string{"undispatched dispatched", "unqueueable failed"}, found(r)); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
}

// A stage that cannot be looked at is left alone, and the others are not.
func TestSweep_StageThatCannotBeSeen(t *testing.T) {
	t.Parallel()
	b := &books{
		silents: []ledger.Silent{silent("deploy", "a"), silent("reduce", "b")},
		stale:   []ledger.Backlog{{Run: 1, Stage: "deploy", LastSeq: 1}, {Run: 2, Stage: "reduce", LastSeq: 1}},
	}
	if _, err := sweep(t, b, &conveyor{unseen: "deploy"}); !errors.Is(err, errUnseen) {
		t.Errorf("the sweep does not say what it could not see: %v", err)
	}
	if diff := cmp.Diff([]string{"reduce/b"}, b.recovered); diff != "" {
		t.Errorf("recovered (-want +got):\n%s", diff)
	}
	if len(b.marks) != 1 || b.marks[0].Run != 2 {
		t.Errorf("marks %+v", b.marks)
	}
}

// What an external service has not finished in time is tried again, as often
// as its stage allows.
func TestSweep_ExternalWorkPastItsDeadline(t *testing.T) {
	t.Parallel()
	late := silent("scrape", "a").Dispatchable
	late.Attempt, late.MaxAttempts = 1, 2
	last := late
	last.Item, last.Attempt = "b", 2
	b := &books{expired: []ledger.Dispatchable{late, last}}
	r, err := sweep(t, b, &conveyor{})
	if err != nil || len(b.recorded) != 2 {
		t.Fatalf("recorded %+v, %v", b.recorded, err)
	}
	if b.recorded[0].Status != stage.StatusRetry || b.recorded[0].ErrorClass != fault.ClassTransient || b.recorded[1].Status != stage.StatusFailed {
		t.Errorf("recorded %+v", b.recorded)
	}
	if diff := cmp.Diff([]string{"overdue_work retried", "overdue_work failed"}, found(r)); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
}

// Messages that wait are left alone; that nobody can take them is said.
func TestSweep_QueuesThatNobodyTakesFrom(t *testing.T) {
	t.Parallel()
	waiting := silent("reduce", "a")
	for want, state := range map[string]bus.ConsumerState{
		"no_consumers alarmed": {}, "paused_queue alarmed": {Waiting: 1, Paused: true}, "": {Waiting: 1},
	} {
		b := &books{silents: []ledger.Silent{waiting}}
		r, err := sweep(t, b, &conveyor{
			queued:    map[string]bus.Subjects{"reduce": {ref(waiting.Dispatchable).Subject(): 1}},
			consumers: map[string]bus.ConsumerState{"reduce": state},
		})
		if got := found(r); err != nil || len(b.recovered) > 0 || want == "" && len(got) > 0 || want != "" && !cmp.Equal(got, []string{want}) {
			t.Errorf("%+v: found %v, recovered %v, %v; want %q", state, got, b.recovered, err, want)
		}
	}
}
