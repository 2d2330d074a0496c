// Package sweeper finds work that got lost and brings it back: tasks whose
// message is gone, retries and plans that nobody handed out, counters that do
// not tell the truth. What it does follows from evidence alone, by the pure
// function plan; a queue that is merely long is left alone.
//
// Only one sweeper of a deployment works at a time. Two at once would do no
// harm, since every step is a guarded update.
package sweeper

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/reeve-pipeline/reeve/pkg/bus"
	"github.com/reeve-pipeline/reeve/pkg/fault"
	"github.com/reeve-pipeline/reeve/pkg/ledger"
	"github.com/reeve-pipeline/reeve/pkg/stage"
	"github.com/reeve-pipeline/reeve/pkg/telemetry"
)

// Name is the service's one name.
const Name = "sweeper"

// Findings and what is done about them, as the sweeps table has them.
const (
	LostMessage  = "lost_message"  // handed out, silent, and no message in the stream
	LostTask     = "lost_task"     // that, once too often
	NoConsumers  = "no_consumers"  // messages there, and nobody takes them
	PausedQueue  = "paused_queue"  // messages there, and only the bus knows of a pause
	FanInLag     = "fanin_lag"     // outcomes wait to be counted: nothing can be said
	Undispatched = "undispatched"  // planned long ago, never handed out
	Unqueueable  = "unqueueable"   // no message can hold it
	OverdueRetry = "overdue_retry" // due long ago, not handed out
	OverdueWork  = "overdue_work"  // an external service's, not heard of by its deadline
	CounterDrift = "counter_drift" // counters and tasks differ: a fault of Reeve

	Republished = "republished"
	Failed      = "failed"
	Alarmed     = "alarmed"
	Dispatched  = "dispatched"
	Retried     = "retried"
	Repaired    = "repaired"
)

// maxRecoveries is how often a task is brought back before it is given up.
const maxRecoveries = 3

// page is how many tasks are looked at together.
const page = 2000

// patience is how long a sweep may take before it is given up: the other end
// of a connection may be gone without a word.
const patience = 15 * time.Minute

// Ledger is where the sweeper reads and repairs.
type Ledger interface {
	Lead(ctx context.Context, name string, do func(context.Context) error) (bool, error)
	Silents(ctx context.Context, after ledger.Silent, wiped time.Time, limit int) ([]ledger.Silent, error)
	StillSilent(ctx context.Context, tasks []ledger.Silent) ([]ledger.Silent, error)
	MarkRecovered(ctx context.Context, tasks []ledger.Silent) error
	Record(ctx context.Context, outcomes []stage.Outcome) (ledger.Recorded, error)
	Stale(ctx context.Context) ([]ledger.Backlog, error)
	Undispatched(ctx context.Context, b ledger.Backlog, limit int) ([]ledger.Dispatchable, error)
	MarkDispatched(ctx context.Context, marks []ledger.Backlog) error
	Overdue(ctx context.Context, limit int) ([]ledger.Dispatchable, error)
	Expired(ctx context.Context, limit int) ([]ledger.Dispatchable, error)
	MarkRedispatched(ctx context.Context, tasks []ledger.Dispatchable) error
	Drifts(ctx context.Context) ([]ledger.Drift, error)
	Repair(ctx context.Context, run int64) error
	RecordSweep(ctx context.Context, started time.Time, lookedAt int64, findings []ledger.Finding) error
	Stuck(ctx context.Context, unmoved time.Duration) (int, error)
}

// Bus is where messages are looked for and published again.
type Bus interface {
	TaskSubjects(ctx context.Context, stage string) (bus.Subjects, error)
	ConsumerState(ctx context.Context, stage string) (bus.ConsumerState, error)
	PublishTasks(ctx context.Context, tasks []bus.TaskMessage) []error
	// TasksCreated is when the stream of tasks was made: no message of before
	// can be in it.
	TasksCreated(ctx context.Context) (time.Time, error)
	// OutcomesSettled waits until every outcome that is in the stream now has
	// been counted, for as long as ctx lasts.
	OutcomesSettled(ctx context.Context) error
	// Repair makes streams and consumers that are missing.
	Repair(ctx context.Context) error
}

// Report is what one sweep found and did.
type Report struct {
	Findings []ledger.Finding
	LookedAt int64
	Took     time.Duration
	// Led is false when another sweeper is at work; then nothing was done.
	Led bool
}

// Sweeper brings lost work back.
type Sweeper struct {
	books   Ledger
	bus     Bus
	log     *zap.Logger
	metrics *telemetry.Sweeper
	config  Config
}

// New returns a sweeper.
func New(books Ledger, b Bus, log *zap.Logger, metrics *telemetry.Sweeper, config Config) *Sweeper {
	return &Sweeper{books: books, bus: b, log: log, metrics: metrics, config: config}
}

// Run sweeps at once, and then at every interval until ctx ends. A sweep that
// fails is logged; the next one tries again.
func (s *Sweeper) Run(ctx context.Context) error {
	ticker := time.NewTicker(s.config.Every)
	defer ticker.Stop()
	for {
		report, err := s.Sweep(ctx, false)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			s.metrics.Sweeps.WithLabelValues("failed").Inc()
			s.log.Error("sweep failed", zap.Error(err))
		case report.Led:
			s.metrics.Sweeps.WithLabelValues("completed").Inc()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// Sweep looks once, and repairs what it finds unless dryRun is set.
func (s *Sweeper) Sweep(ctx context.Context, dryRun bool) (Report, error) {
	var r Report
	started := time.Now()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	led, err := s.books.Lead(ctx, Name, func(ctx context.Context) error {
		return s.sweep(ctx, dryRun, &r)
	})
	r.Led, r.Took = led, time.Since(started)
	if err != nil {
		return r, fmt.Errorf("sweep: %w", err)
	}
	if len(r.Findings) == 0 || dryRun {
		return r, nil
	}
	for _, f := range r.Findings {
		if f.Done != Alarmed {
			s.metrics.Recoveries.WithLabelValues(f.Found).Inc()
		}
		if f.Found == CounterDrift {
			s.metrics.Violations.Inc()
		}
		s.log.Warn("swept", zap.String("found", f.Found), zap.String("done", f.Done), zap.Int64("run", f.Run),
			zap.String("stage", f.Stage), zap.String("item", f.Item), zap.String("detail", f.Detail))
	}
	return r, s.books.RecordSweep(ctx, started, r.LookedAt, r.Findings)
}

func (s *Sweeper) sweep(ctx context.Context, dryRun bool, r *Report) error {
	if !dryRun && s.config.Provision {
		if err := s.bus.Repair(ctx); err != nil {
			return err
		}
	}
	// Each look is for itself: one that fails does not keep the others.
	return errors.Join(
		s.silent(ctx, dryRun, r),
		s.stale(ctx, dryRun, r),
		s.overdue(ctx, dryRun, r),
		s.expired(ctx, dryRun, r),
		s.drifts(ctx, dryRun, r),
		s.stuck(ctx),
	)
}

// evidence is what is known of one stage while its silent tasks are judged.
type evidence struct {
	seen     bool // else nothing can be said
	subjects bus.Subjects
	consumer bus.ConsumerState
}

// action is what plan says should be done about one task.
type action int

const (
	leave action = iota
	republish
	giveUp
)

// plan decides what is done about a silent task: nothing while its message is
// there, however long; otherwise it is published again, and given up when that
// has not helped maxRecoveries times, the end of the whole stream aside.
func plan(t ledger.Silent, e evidence) action {
	switch {
	case e.subjects.Has(ref(t.Dispatchable)):
		return leave
	case t.Recoveries >= maxRecoveries && !t.Wiped:
		return giveUp
	}
	return republish
}

// silent looks for messages of tasks that were handed out and say nothing.
//
// A task without a message may have ended a moment ago, its outcome still on
// the way to the ledger. So after the stream has been looked at, all outcomes
// that it held are waited for, and only the tasks that are still as they were
// are lost.
func (s *Sweeper) silent(ctx context.Context, dryRun bool, r *Report) error {
	created, err := s.bus.TasksCreated(ctx)
	if err != nil {
		return err
	}
	seen := map[string]evidence{}
	var errs []error
	var after ledger.Silent
	for {
		tasks, err := s.books.Silents(ctx, after, created, page)
		if err != nil || len(tasks) == 0 {
			return errors.Join(append(errs, err)...)
		}
		after = tasks[len(tasks)-1]
		r.LookedAt += int64(len(tasks))
		var missing []ledger.Silent
		for _, t := range tasks {
			e, ok := seen[t.Stage]
			if !ok {
				if e, err = s.look(ctx, t.Stage); err != nil {
					errs = append(errs, err)
				}
				seen[t.Stage] = e
				s.unattended(t.Stage, e, r)
			}
			if e.seen && plan(t, e) != leave {
				missing = append(missing, t)
			}
		}
		errs = append(errs, s.recover(ctx, dryRun, r, seen, missing))
		if len(tasks) < page {
			return errors.Join(errs...)
		}
	}
}

func (s *Sweeper) look(ctx context.Context, name string) (evidence, error) {
	subjects, err := s.bus.TaskSubjects(ctx, name)
	if err != nil {
		return evidence{}, err
	}
	consumer, err := s.bus.ConsumerState(ctx, name)
	return evidence{seen: err == nil, subjects: subjects, consumer: consumer}, err
}

// unattended raises an alarm for a stage whose messages nobody takes. The
// stages looked at are not paused by the ledger.
func (s *Sweeper) unattended(name string, e evidence, r *Report) {
	f := ledger.Finding{Stage: name, Done: Alarmed}
	switch {
	case len(e.subjects) == 0:
		return
	case e.consumer.Paused:
		f.Found = PausedQueue
		f.Detail = fmt.Sprintf("%d tasks are queued and their queue is paused, though the stage is not: resume the stage", len(e.subjects))
	case e.consumer.Waiting == 0 && e.consumer.InHand == 0:
		f.Found = NoConsumers
		f.Detail = fmt.Sprintf("%d tasks are queued and no worker of the stage is there: start one", len(e.subjects))
	default:
		return
	}
	r.Findings = append(r.Findings, f)
}

func (s *Sweeper) recover(ctx context.Context, dryRun bool, r *Report, seen map[string]evidence, missing []ledger.Silent) error {
	if len(missing) == 0 {
		return nil
	}
	settling, cancel := context.WithTimeout(ctx, s.config.Settle)
	defer cancel()
	if err := s.bus.OutcomesSettled(settling); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		r.Findings = append(r.Findings, ledger.Finding{
			Found: FanInLag, Done: Alarmed,
			Detail: fmt.Sprintf("%d tasks look lost, but outcomes have been waiting for %v to be counted: is fan-in running?", len(missing), s.config.Settle),
		})
		return nil
	}
	lost, err := s.books.StillSilent(ctx, missing)
	if err != nil {
		return err
	}
	var again []ledger.Silent
	var given []stage.Outcome
	for _, t := range lost {
		f := ledger.Finding{Run: t.Run, Stage: t.Stage, Item: t.Item, Found: LostMessage, Done: Republished, Detail: fmt.Sprintf("silent since %s", t.Since.UTC().Format(time.RFC3339))}
		if plan(t, seen[t.Stage]) == giveUp {
			f.Found, f.Done = LostTask, Failed
			given = append(given, stage.Outcome{
				Run: t.Run, Stage: t.Stage, Item: t.Item, Generation: t.Generation, Try: t.Try, Status: stage.StatusFailed, ErrorClass: fault.ClassLost,
				ErrorMessage: fmt.Sprintf("%s/%s was lost %d times; see what became of its worker, then retry the run", t.Stage, t.Item, t.Recoveries+1), Fingerprint: "lost",
			})
		} else {
			again = append(again, t)
		}
		r.Findings = append(r.Findings, f)
	}
	if dryRun {
		return nil
	}
	_, failed := s.books.Record(ctx, given)
	tasks := make([]ledger.Dispatchable, len(again))
	for i, t := range again {
		tasks[i] = t.Dispatchable
	}
	n, err := s.publish(ctx, r, tasks)
	return errors.Join(failed, err, s.books.MarkRecovered(ctx, again[:n]))
}

// stale hands out tasks that were planned long ago, a few at a time: the
// dispatcher of fan-in does it if it is there.
func (s *Sweeper) stale(ctx context.Context, dryRun bool, r *Report) error {
	list, err := s.books.Stale(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, b := range list {
		errs = append(errs, s.staleAt(ctx, dryRun, r, b))
	}
	return errors.Join(errs...)
}

func (s *Sweeper) staleAt(ctx context.Context, dryRun bool, r *Report, b ledger.Backlog) error {
	state, err := s.bus.ConsumerState(ctx, b.Stage)
	if err != nil || state.Pending > 0 {
		return err // its workers have enough to do: the backlog is merely long
	}
	tasks, err := s.books.Undispatched(ctx, b, page)
	if err != nil {
		return err
	}
	r.LookedAt += int64(len(tasks))
	if len(tasks) == 0 {
		b.Dispatched = b.LastSeq
	} else {
		r.Findings = append(r.Findings, ledger.Finding{
			Run: b.Run, Stage: b.Stage, Found: Undispatched, Done: Dispatched, Detail: fmt.Sprintf("%d tasks: is fan-in running?", len(tasks)),
		})
	}
	if dryRun {
		return nil
	}
	n, err := s.publish(ctx, r, tasks)
	if n > 0 {
		b.Dispatched = tasks[n-1].Seq
	}
	return errors.Join(err, s.books.MarkDispatched(ctx, []ledger.Backlog{b}))
}

// overdue hands out retries that have been due for long.
func (s *Sweeper) overdue(ctx context.Context, dryRun bool, r *Report) error {
	tasks, err := s.books.Overdue(ctx, page)
	if err != nil {
		return err
	}
	r.LookedAt += int64(len(tasks))
	for _, t := range tasks {
		r.Findings = append(r.Findings, ledger.Finding{Run: t.Run, Stage: t.Stage, Item: t.Item, Found: OverdueRetry, Done: Dispatched})
	}
	if dryRun {
		return nil
	}
	n, err := s.publish(ctx, r, tasks)
	return errors.Join(err, s.books.MarkRedispatched(ctx, tasks[:n]))
}

// expired takes tasks back that an external service has not finished by their
// deadline: its handler, called again, asks the service before it submits anew.
func (s *Sweeper) expired(ctx context.Context, dryRun bool, r *Report) error {
	tasks, err := s.books.Expired(ctx, page)
	if err != nil {
		return err
	}
	r.LookedAt += int64(len(tasks))
	outcomes := make([]stage.Outcome, len(tasks))
	for i, t := range tasks {
		f := ledger.Finding{Run: t.Run, Stage: t.Stage, Item: t.Item, Found: OverdueWork, Done: Retried}
		outcomes[i] = stage.Outcome{
			Run: t.Run, Stage: t.Stage, Item: t.Item, Generation: t.Generation, Try: t.Try, Status: stage.StatusRetry,
			ErrorClass: fault.ClassTransient, ErrorMessage: "no word from the external service until the deadline", Fingerprint: "overdue-work",
		}
		if t.Attempt >= t.MaxAttempts {
			outcomes[i].Status, f.Done = stage.StatusFailed, Failed
		}
		r.Findings = append(r.Findings, f)
	}
	if dryRun {
		return nil
	}
	_, err = s.books.Record(ctx, outcomes)
	return err
}

// drifts repairs runs whose counters do not tell the truth.
func (s *Sweeper) drifts(ctx context.Context, dryRun bool, r *Report) error {
	list, err := s.books.Drifts(ctx)
	if err != nil {
		return err
	}
	var errs []error
	repaired := map[int64]bool{}
	for _, d := range list {
		r.Findings = append(r.Findings, ledger.Finding{Run: d.Run, Stage: d.Stage, Item: d.Scope, Found: CounterDrift, Done: Repaired, Detail: d.Detail})
		if dryRun || repaired[d.Run] {
			continue
		}
		repaired[d.Run] = true
		errs = append(errs, s.books.Repair(ctx, d.Run))
	}
	return errors.Join(errs...)
}

func (s *Sweeper) stuck(ctx context.Context) error {
	n, err := s.books.Stuck(ctx, s.config.Stuck)
	if err == nil {
		s.metrics.StuckSites.Set(float64(n))
	}
	return err
}

// publish queues tasks and returns how many of them, from the first on, are
// dealt with. A task that can never be queued is failed.
func (s *Sweeper) publish(ctx context.Context, r *Report, tasks []ledger.Dispatchable) (int, error) {
	messages := make([]bus.TaskMessage, len(tasks))
	for i, t := range tasks {
		messages[i] = bus.TaskMessage{Task: t.Task, Priority: int(t.Priority), Traceparent: t.TraceID}
	}
	for i, err := range s.bus.PublishTasks(ctx, messages) {
		if err == nil {
			continue
		}
		if fault.Of(err) != fault.ClassPermanent {
			return i, err
		}
		t := tasks[i]
		r.Findings = append(r.Findings, ledger.Finding{Run: t.Run, Stage: t.Stage, Item: t.Item, Found: Unqueueable, Done: Failed, Detail: err.Error()})
		if _, err := s.books.Record(ctx, []stage.Outcome{{
			Run: t.Run, Stage: t.Stage, Item: t.Item, Generation: t.Generation, Try: t.Try, Status: stage.StatusFailed,
			ErrorClass: fault.ClassPermanent, ErrorMessage: fmt.Sprintf("cannot be queued: %v", err), Fingerprint: "unqueueable",
		}}); err != nil {
			return i, err
		}
	}
	return len(tasks), nil
}

func ref(t ledger.Dispatchable) bus.TaskRef {
	return bus.TaskRef{Stage: t.Stage, Priority: int(t.Priority), Pipeline: t.Pipeline, Run: t.Run, Item: t.Item}
}
