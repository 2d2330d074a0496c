// Package fanin counts what the workers report and hands out what follows. It
// reads outcomes off the bus, records them in the ledger, where the next tasks
// are planned in the same transaction, and publishes planned tasks. It also
// answers workers that ask for the inputs of a task.
//
// It keeps nothing in memory that it could not do without: killed at any
// point, the next one goes on from the ledger and the stream.
package fanin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/reeve-pipeline/reeve/pkg/bus"
	"github.com/reeve-pipeline/reeve/pkg/ledger"
	"github.com/reeve-pipeline/reeve/pkg/stage"
	"github.com/reeve-pipeline/reeve/pkg/telemetry"
)

// Name is the service's one name.
const Name = "fanin"

// Books is where outcomes are counted.
type Books interface {
	Record(ctx context.Context, outcomes []stage.Outcome) (ledger.Recorded, error)
	RecordPoison(ctx context.Context, stream string, seq uint64, subject string, data []byte, why string) error
}

// Source is where outcomes come from, a batch at a time.
type Source interface {
	Next(ctx context.Context) (*bus.Batch, error)
}

// Recorder counts outcomes.
type Recorder struct {
	books   Books
	log     *zap.Logger
	metrics *telemetry.FanIn
	// recorded is told of every batch that was committed.
	recorded func(ledger.Recorded)
}

// NewRecorder returns a recorder that tells recorded of every commit.
func NewRecorder(books Books, log *zap.Logger, metrics *telemetry.FanIn, recorded func(ledger.Recorded)) *Recorder {
	return &Recorder{books: books, log: log, metrics: metrics, recorded: recorded}
}

// Run records batches until ctx ends. A batch begun is finished under work. It
// acknowledges a batch only after its commit, so that a crash in between
// brings it again, which changes nothing.
func (r *Recorder) Run(ctx, work context.Context, source Source) error {
	for ctx.Err() == nil {
		batch, err := source.Next(ctx)
		if err != nil {
			if ctx.Err() == nil {
				return fmt.Errorf("read outcomes: %w", err)
			}
			break
		}
		if !r.take(work, batch) {
			break // not acknowledged: it comes again
		}
		if err := batch.Ack(); err != nil {
			r.log.Warn("outcomes not acknowledged; they come again", zap.Error(err))
		}
	}
	return nil
}

// take makes a batch durable, and waits for Postgres as long as that takes. It
// reports false when ctx ended first.
func (r *Recorder) take(ctx context.Context, batch *bus.Batch) bool {
	for _, p := range batch.Poison {
		r.log.Error("unreadable outcome", zap.String("subject", p.Subject), zap.Uint64("seq", p.Seq), zap.Error(p.Err))
		r.metrics.Events.WithLabelValues(telemetry.Unknown).Inc()
		if !r.persist(ctx, func(ctx context.Context) error {
			return r.books.RecordPoison(ctx, bus.DoneStream, p.Seq, p.Subject, p.Data, p.Err.Error())
		}) {
			return false
		}
	}
	return r.record(ctx, batch.Outcomes)
}

// record records outcomes together, or, where one of them can never be
// recorded, all the others: the books must not stop for a single bad message.
func (r *Recorder) record(ctx context.Context, outcomes []stage.Outcome) bool {
	if len(outcomes) == 0 {
		return true
	}
	var done ledger.Recorded
	var unstorable error
	if !r.persist(ctx, func(ctx context.Context) error {
		var err error
		done, err = r.books.Record(ctx, outcomes)
		if ledger.Unstorable(err) || errors.Is(err, ledger.ErrMisfit) {
			unstorable = err
			return nil
		}
		return err
	}) {
		return false
	}
	switch {
	case unstorable == nil:
		r.observe(outcomes, done)
		r.recorded(done)
		return true
	case len(outcomes) > 1:
		half := len(outcomes) / 2
		return r.record(ctx, outcomes[:half]) && r.record(ctx, outcomes[half:])
	}
	return r.refuse(ctx, outcomes[0], unstorable)
}

// refuse keeps an outcome that can never be recorded as poison, and fails its
// task, so that somebody looks at it and the run goes on.
func (r *Recorder) refuse(ctx context.Context, o stage.Outcome, why error) bool {
	r.log.Error("outcome cannot be recorded", zap.Int64("run", o.Run), zap.String("stage", o.Stage), zap.String("item", o.Item), zap.Error(why))
	r.metrics.Events.WithLabelValues(telemetry.Unknown).Inc()
	failed := stage.Outcome{
		Run: o.Run, Stage: o.Stage, Item: o.Item, Generation: o.Generation, Try: o.Try, Status: stage.StatusFailed,
		ErrorClass: "poison", ErrorMessage: "its outcome cannot be recorded: " + why.Error(), Fingerprint: "unrecordable-outcome", Worker: o.Worker,
	}
	evidence, err := json.Marshal(o)
	if err != nil {
		evidence = fmt.Appendf(nil, "%+v", o)
	}
	return r.persist(ctx, func(ctx context.Context) error {
		if err := r.books.RecordPoison(ctx, bus.DoneStream, 0, fmt.Sprintf("%d/%s/%s", o.Run, o.Stage, o.Item), evidence, why.Error()); err != nil && !ledger.Unstorable(err) {
			return err
		}
		done, err := r.books.Record(ctx, []stage.Outcome{failed})
		if err != nil && !ledger.Unstorable(err) {
			return err
		}
		r.recorded(done)
		return nil
	})
}

// persist repeats do until it succeeds, with growing waits. It reports false
// when ctx ended first.
func (r *Recorder) persist(ctx context.Context, do func(context.Context) error) bool {
	const first, most = 50 * time.Millisecond, 2 * time.Second
	for wait := first; ; wait = min(2*wait, most) {
		err := patiently(ctx, do)
		if err == nil {
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		r.log.Warn("ledger does not take outcomes; trying again", zap.Duration("wait", wait), zap.Error(err))
		select {
		case <-ctx.Done():
			return false
		case <-time.After(wait):
		}
	}
}

func (r *Recorder) observe(outcomes []stage.Outcome, done ledger.Recorded) {
	m := r.metrics
	m.BatchSize.Observe(float64(len(outcomes)))
	m.Events.WithLabelValues(telemetry.Applied).Add(float64(done.Applied))
	m.Events.WithLabelValues(telemetry.Duplicate).Add(float64(done.Ignored))
	m.Claims.Add(float64(len(done.Closed)))
	if at := outcomes[0].EndedAt; !at.IsZero() {
		m.Lag.Observe(max(0, time.Since(at).Seconds()))
	}
	failed := map[string]int{}
	for _, o := range done.Failed {
		m.Tasks.WithLabelValues(o.Stage, string(stage.StatusFailed), string(o.ErrorClass)).Inc()
		failed[o.Stage]++
	}
	for name, n := range done.Completed {
		m.Tasks.WithLabelValues(name, string(stage.StatusCompleted), "").Add(float64(n))
		m.SuccessRate.WithLabelValues(name).Set(float64(n) / float64(n+failed[name]))
	}
	for _, c := range done.Closed {
		m.StageSeconds.WithLabelValues(c.Stage).Observe(c.Took.Seconds())
	}
	for _, e := range done.Ended {
		m.Runs.WithLabelValues(e.Status).Inc()
		r.log.Info("run ended", zap.Int64("run", e.Run), zap.String("status", e.Status))
	}
}
