package fanin

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/reeve-pipeline/reeve/pkg/bus"
	"github.com/reeve-pipeline/reeve/pkg/ledger"
	"github.com/reeve-pipeline/reeve/pkg/stage"
	"github.com/reeve-pipeline/reeve/pkg/telemetry"
)

// picky takes outcomes unless one of the batch is bad, and is down at first.
type picky struct {
	down     int
	hang     int // calls without an answer
	recorded []string
	poison   []string
}

func (p *picky) Record(ctx context.Context, outcomes []stage.Outcome) (ledger.Recorded, error) {
	if p.hang > 0 {
		p.hang--
		<-ctx.Done()
		return ledger.Recorded{}, ctx.Err()
	}
	if p.down > 0 {
		p.down--
		return ledger.Recorded{}, errors.New("connection refused")
	}
	for _, o := range outcomes {
		if o.Item == "bad" && o.Status != stage.StatusFailed {
			return ledger.Recorded{}, &pgconn.PgError{Code: "22P05"}
		}
	}
	for _, o := range outcomes {
		p.recorded = append(p.recorded, o.Item)
	}
	return ledger.Recorded{}, nil
}

func (p *picky) RecordPoison(_ context.Context, _ string, _ uint64, subject string, data []byte, _ string) error {
	if len(data) == 0 {
		return &pgconn.PgError{Code: "23502"}
	}
	p.poison = append(p.poison, subject)
	return nil
}

// One outcome that can never be stored does not keep the others from being
// counted: it is kept as poison, and its task fails.
func TestRecorder_SetsBadOutcomesAside(t *testing.T) {
	t.Parallel()
	p := &picky{}
	r := NewRecorder(p, zap.NewNop(), telemetry.NewFanIn(prometheus.NewRegistry()), func(ledger.Recorded) {})
	var batch bus.Batch
	for _, item := range []string{"a", "b", "bad", "c", "d"} {
		batch.Outcomes = append(batch.Outcomes, stage.Outcome{Run: 1, Stage: "reduce", Item: item, Status: stage.StatusCompleted})
	}
	if !r.take(t.Context(), &batch) {
		t.Fatal("the batch was not taken")
	}
	slices.Sort(p.recorded)
	if !slices.Equal(p.recorded, []string{"a", "b", "bad", "c", "d"}) || !slices.Equal(p.poison, []string{"1/reduce/bad"}) {
		t.Errorf("recorded %v, poison %v", p.recorded, p.poison)
	}
}

// While Postgres is away, the batch waits; it is not dropped.
func TestRecorder_WaitsForPostgres(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &picky{down: 50}
		r := NewRecorder(p, zap.NewNop(), telemetry.NewFanIn(prometheus.NewRegistry()), func(ledger.Recorded) {})
		if !r.take(t.Context(), &bus.Batch{Outcomes: []stage.Outcome{{Run: 1, Stage: "reduce", Item: "a", Status: stage.StatusCompleted}}}) {
			t.Fatal("the batch was given up")
		}
		ctx, cancel := context.WithCancel(t.Context())
		p.down = 1 << 30
		taken := make(chan bool)
		go func() {
			taken <- r.take(ctx, &bus.Batch{Outcomes: []stage.Outcome{{Run: 1, Stage: "reduce", Item: "b", Status: stage.StatusCompleted}}})
		}()
		synctest.Wait()
		cancel()
		if <-taken {
			t.Error("a batch that was not recorded counts as taken")
		}
	})
}

// A Postgres that has gone without a word does not keep a batch for ever: the
// connection is given up, and the next one takes it.
func TestRecorder_GivesUpADeadConnection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &picky{hang: 3}
		r := NewRecorder(p, zap.NewNop(), telemetry.NewFanIn(prometheus.NewRegistry()), func(ledger.Recorded) {})
		if !r.take(t.Context(), &bus.Batch{Outcomes: []stage.Outcome{{Run: 1, Stage: "reduce", Item: "a", Status: stage.StatusCompleted}}}) || len(p.recorded) != 1 {
			t.Errorf("recorded %v", p.recorded)
		}
	})
}
