package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/reeve-pipeline/reeve/pkg/pipeline"
)

// Lead runs do while this process, and no other, holds the named lock of the
// database. It returns false when another process holds it. The lock is lost
// with the connection, so what do writes must be guarded by itself.
func (l *Ledger) Lead(ctx context.Context, name string, do func(context.Context) error) (bool, error) {
	conn, err := l.pool.Acquire(ctx)
	if err != nil {
		return false, fmt.Errorf("lead %s: %w", name, err)
	}
	defer conn.Release()
	const try = `SELECT pg_try_advisory_lock(hashtextextended(@name, 0))`
	const release = `SELECT pg_advisory_unlock(hashtextextended(@name, 0))`
	args := pgx.NamedArgs{"name": "reeve/" + name}
	var held bool
	if err := conn.QueryRow(ctx, try, args).Scan(&held); err != nil || !held {
		return false, err
	}
	defer func() {
		// Past the end of ctx too: a connection that goes back to the pool with
		// the lock would hold it for ever.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if _, err := conn.Exec(ctx, release, args); err != nil {
			_ = conn.Conn().Close(ctx)
		}
	}()
	return true, do(ctx)
}

// Silent is a task that was handed out, has not ended, and has said nothing
// for as long as its stage allows.
type Silent struct {
	Dispatchable
	Status     string
	Recoveries int
	// Since is when it was planned, handed out again or last heard of.
	Since time.Time
	// Wiped: the stream that held its message is gone.
	Wiped bool
}

// Silents returns up to limit silent tasks of running runs after the given
// one, in key order, except those of paused stages. Tasks last heard of before the time `wiped` are silent
// whatever their stage allows: the stream that held their messages is gone.
func (l *Ledger) Silents(ctx context.Context, after Silent, wiped time.Time, limit int) ([]Silent, error) {
	const q = `
		SELECT t.run, r.pipeline, r.subject, t.stage, t.item, t.scope, t.generation, t.tries, t.attempts + 1, r.settings, t.spec, t.seq, r.priority,
		       r.trace_id, t.status, t.recoveries, t.updated_at
		FROM run_stages s
		JOIN runs r USING (run)
		JOIN unnest(@stages::text[], @silence::float8[]) AS d(stage, silence) ON d.stage = s.stage
		CROSS JOIN LATERAL (
			SELECT * FROM tasks t
			WHERE t.run = s.run AND t.stage = s.stage AND t.item > CASE WHEN (s.run, s.stage) = (@run, @stage) THEN @item ELSE '' END
			  AND t.status IN ('planned', 'running') AND t.seq <= s.dispatched
			  AND (t.updated_at < now() - d.silence * interval '1 second' OR t.updated_at < @wiped)
			ORDER BY t.item LIMIT @limit
		) t
		WHERE r.status = 'running' AND s.scope = '' AND s.completed + s.failed + s.cancelled < s.total AND (s.run, s.stage) >= (@run, @stage)
		  AND NOT EXISTS (SELECT FROM stages p WHERE p.stage = s.stage AND p.paused)
		ORDER BY s.run, s.stage, t.item LIMIT @limit`
	args := silences()
	args["run"], args["stage"], args["item"], args["wiped"], args["limit"] = after.Run, after.Stage, after.Item, wiped, limit
	rows, err := l.pool.Query(ctx, q, args)
	if err != nil {
		return nil, fmt.Errorf("read silent tasks: %w", err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (s Silent, err error) {
		err = row.Scan(&s.Run, &s.Pipeline, &s.Subject, &s.Stage, &s.Item, &s.Parent, &s.Generation, &s.Try, &s.Attempt, &s.Settings, &s.Spec,
			&s.Seq, &s.Priority, &s.TraceID, &s.Status, &s.Recoveries, &s.Since)
		s.Wiped = s.Since.Before(wiped)
		s.MaxAttempts = 1
		if st, ok := pipeline.StageNamed(s.Stage); ok {
			s.MaxAttempts = st.MaxAttempts
		}
		return s, err
	})
}

// silences is what each stage's tasks may keep silent for, as arguments.
func silences() pgx.NamedArgs {
	var stages []string
	var silence []float64
	for _, s := range pipeline.Stages() {
		stages, silence = append(stages, s.Name), append(silence, s.Silence.Seconds())
	}
	return pgx.NamedArgs{"stages": stages, "silence": silence}
}

// StillSilent returns those of the tasks that have not been heard of since
// they were read: same generation, same try, same time.
func (l *Ledger) StillSilent(ctx context.Context, tasks []Silent) ([]Silent, error) {
	const q = `
		SELECT d.i FROM unnest(@run::bigint[], @stage::text[], @item::text[], @generation::int[], @try::int[], @since::timestamptz[])
			WITH ORDINALITY AS d(run, stage, item, generation, try, since, i)
		JOIN tasks t USING (run, stage, item)
		WHERE t.generation = d.generation AND t.tries = d.try AND t.updated_at = d.since AND t.status IN ('planned', 'running')`
	rows, err := l.pool.Query(ctx, q, silentArgs(tasks))
	if err != nil {
		return nil, fmt.Errorf("read silent tasks again: %w", err)
	}
	indexes, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return nil, fmt.Errorf("read silent tasks again: %w", err)
	}
	still := make([]Silent, 0, len(indexes))
	for _, i := range indexes {
		still = append(still, tasks[i-1])
	}
	return still, nil
}

func silentArgs(tasks []Silent) pgx.NamedArgs {
	plain := make([]Dispatchable, len(tasks))
	since, wiped := make([]time.Time, len(tasks)), make([]bool, len(tasks))
	for i, t := range tasks {
		plain[i], since[i], wiped[i] = t.Dispatchable, t.Since, t.Wiped
	}
	args := refs(plain)
	args["since"], args["wiped"] = since, wiped
	return args
}

// MarkRecovered counts that tasks have been published again, unless it was the
// stream's end that took their messages. Call it after the messages are stored.
func (l *Ledger) MarkRecovered(ctx context.Context, tasks []Silent) error {
	const q = lockRuns + `
		UPDATE tasks t SET status = 'planned', recoveries = t.recoveries + (NOT d.wiped)::int, updated_at = now()
		FROM unnest(@run::bigint[], @stage::text[], @item::text[], @generation::int[], @try::int[], @since::timestamptz[], @wiped::boolean[])
			AS d(run, stage, item, generation, try, since, wiped)
		JOIN locked USING (run)
		WHERE t.run = d.run AND t.stage = d.stage AND t.item = d.item AND t.generation = d.generation AND t.tries = d.try
		  AND t.updated_at = d.since AND t.status IN ('planned', 'running')`
	if len(tasks) == 0 {
		return nil
	}
	if _, err := l.pool.Exec(ctx, q, silentArgs(tasks)); err != nil {
		return fmt.Errorf("mark tasks as recovered: %w", err)
	}
	return nil
}

// Stale lists stages of running runs that have tasks to hand out, none of
// which has been handed out for as long as the stage may keep silent. Paused
// stages are not among them.
func (l *Ledger) Stale(ctx context.Context) ([]Backlog, error) {
	const q = `
		SELECT s.run, s.stage, r.priority, s.generation, s.dispatched, s.last_seq
		FROM run_stages s JOIN runs r USING (run)
		JOIN unnest(@stages::text[], @silence::float8[]) AS d(stage, silence) ON d.stage = s.stage
		WHERE r.status = 'running' AND s.scope = '' AND s.dispatched < s.last_seq
		  AND s.updated_at < now() - d.silence * interval '1 second'
		  AND NOT EXISTS (SELECT FROM stages p WHERE p.stage = s.stage AND p.paused)
		ORDER BY r.priority, s.run, s.position`
	rows, err := l.pool.Query(ctx, q, silences())
	if err != nil {
		return nil, fmt.Errorf("read stale backlog: %w", err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (b Backlog, err error) {
		err = row.Scan(&b.Run, &b.Stage, &b.Priority, &b.Generation, &b.Dispatched, &b.LastSeq)
		return b, err
	})
}

// Overdue returns up to limit tasks whose wait was over long ago: for as long
// as their stage may keep silent. Tasks of paused stages are not among them.
func (l *Ledger) Overdue(ctx context.Context, limit int) ([]Dispatchable, error) {
	const q = selectDispatchable + `r.run = t.run
		JOIN unnest(@stages::text[], @silence::float8[]) AS d(stage, silence) ON d.stage = t.stage
		WHERE t.not_before < now() - d.silence * interval '1 second' AND t.status = 'retry' AND r.status = 'running'
		  AND NOT EXISTS (SELECT FROM stages p WHERE p.stage = t.stage AND p.paused)
		ORDER BY t.not_before LIMIT @limit`
	args := silences()
	args["limit"] = limit
	rows, err := l.pool.Query(ctx, q, args)
	if err != nil {
		return nil, fmt.Errorf("read overdue tasks: %w", err)
	}
	return pgx.CollectRows(rows, scanDispatchable)
}

// Expired returns up to limit tasks that were given to an external service and
// not heard of by their deadline.
func (l *Ledger) Expired(ctx context.Context, limit int) ([]Dispatchable, error) {
	const q = selectDispatchable + `r.run = t.run
		WHERE t.not_before <= now() AND t.status = 'waiting' AND r.status = 'running'
		ORDER BY t.not_before LIMIT @limit`
	rows, err := l.pool.Query(ctx, q, pgx.NamedArgs{"limit": limit})
	if err != nil {
		return nil, fmt.Errorf("read tasks past their deadline: %w", err)
	}
	return pgx.CollectRows(rows, scanDispatchable)
}

// Drift is a counter that differs from the task rows that it counts, or a run
// whose counters say that something should have followed which has not.
type Drift struct {
	Run          int64
	Stage, Scope string
	Detail       string
}

// Drifts looks for counters of running runs that do not tell the truth, and
// for stages that are full and sealed but not closed. Both would be faults of
// Reeve itself.
func (l *Ledger) Drifts(ctx context.Context) ([]Drift, error) {
	const q = `
		SELECT s.run, s.stage, s.scope,
			format('total %s, completed %s, failed %s, cancelled %s; the tasks say %s, %s, %s, %s',
				s.total, s.completed, s.failed, s.cancelled, n.total, n.completed, n.failed, n.cancelled)
		FROM run_stages s
		JOIN runs r USING (run)
		CROSS JOIN LATERAL (
			SELECT count(*) AS total,
				count(*) FILTER (WHERE t.status = 'completed') AS completed,
				count(*) FILTER (WHERE t.status = 'failed') AS failed,
				count(*) FILTER (WHERE t.status = 'cancelled') AS cancelled
			FROM tasks t WHERE t.run = s.run AND t.stage = s.stage
		) n
		WHERE r.status = 'running' AND s.scope = ''
		  AND (s.total, s.completed, s.failed, s.cancelled) <> (n.total, n.completed, n.failed, n.cancelled)
		UNION ALL
		SELECT s.run, s.stage, s.scope, 'sealed and full, but not closed'
		FROM run_stages s JOIN runs r USING (run)
		WHERE r.status = 'running' AND s.scope = '' AND s.sealed AND s.closed_at IS NULL AND s.completed + s.failed + s.cancelled = s.total
		UNION ALL
		SELECT r.run, '', '', 'every stage is closed, but the run goes on'
		FROM runs r
		WHERE r.status = 'running' AND NOT EXISTS (SELECT FROM run_stages s WHERE s.run = r.run AND s.scope = '' AND s.closed_at IS NULL)`
	rows, err := l.pool.Query(ctx, q)
	if err != nil {
		return nil, fmt.Errorf("compare counters with tasks: %w", err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (d Drift, err error) {
		err = row.Scan(&d.Run, &d.Stage, &d.Scope, &d.Detail)
		return d, err
	})
}

// Repair sets the counters of a running run from its tasks and plans what
// should have followed. It does nothing to a run that has ended.
func (l *Ledger) Repair(ctx context.Context, run int64) error {
	err := l.tx(ctx, func(tx pgx.Tx) error {
		const lock = `SELECT pipeline, settings FROM runs WHERE run = @run AND status = 'running' FOR UPDATE`
		var name string
		var settings map[string]any
		switch err := tx.QueryRow(ctx, lock, pgx.NamedArgs{"run": run}).Scan(&name, &settings); {
		case errors.Is(err, pgx.ErrNoRows):
			return nil
		case err != nil:
			return err
		}
		p, err := definition(name, settings)
		if err != nil {
			return err
		}
		return recount(ctx, tx, p, run)
	})
	if err != nil {
		return fmt.Errorf("repair run %d: %w", run, err)
	}
	return nil
}

// Finding is one thing that a sweep found, and what it did about it.
type Finding struct {
	Run   int64  `json:"run,omitempty"`
	Stage string `json:"stage,omitempty"`
	Item  string `json:"item,omitempty"`
	// Found: lost_message, lost_task, no_consumers, paused_queue, overdue_retry,
	// overdue_work, undispatched, unqueueable, counter_drift, fanin_lag.
	Found string `json:"found"`
	// Done: republished, failed, alarmed, dispatched, retried, repaired.
	Done   string `json:"done"`
	Detail string `json:"detail,omitempty"`
}

// RecordSweep keeps what a sweep found and did.
func (l *Ledger) RecordSweep(ctx context.Context, started time.Time, lookedAt int64, findings []Finding) error {
	const q = `INSERT INTO sweeps (started_at, looked_at, findings) VALUES (@started, @looked_at, @findings)`
	if _, err := l.pool.Exec(ctx, q, pgx.NamedArgs{"started": started, "looked_at": lookedAt, "findings": findings}); err != nil {
		return fmt.Errorf("record sweep: %w", err)
	}
	return nil
}

// Stuck counts the runs that go on and have not moved for as long.
func (l *Ledger) Stuck(ctx context.Context, unmoved time.Duration) (int, error) {
	const q = `SELECT count(*) FROM runs WHERE status = 'running' AND updated_at < now() - @unmoved * interval '1 microsecond'`
	var n int
	if err := l.pool.QueryRow(ctx, q, pgx.NamedArgs{"unmoved": unmoved.Microseconds()}).Scan(&n); err != nil {
		return 0, fmt.Errorf("count stuck runs: %w", err)
	}
	return n, nil
}

// RecordPoison keeps a message that could not be read.
func (l *Ledger) RecordPoison(ctx context.Context, stream string, seq uint64, subject string, data []byte, why string) error {
	const q = `INSERT INTO poison (stream, seq, subject, data, error) VALUES (@stream, @seq, @subject, @data, @error)`
	_, err := l.pool.Exec(ctx, q, pgx.NamedArgs{"stream": stream, "seq": int64(seq), "subject": clean(subject), "data": data, "error": clean(why)})
	if err != nil {
		return fmt.Errorf("record poison message %s/%d: %w", stream, seq, err)
	}
	return nil
}
