package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/reeve-pipeline/reeve/pkg/pipeline"
	"github.com/reeve-pipeline/reeve/pkg/stage"
)

// Backlog is a stage of a run with tasks that have not been handed out.
type Backlog struct {
	Run        int64
	Stage      string
	Priority   Priority
	Generation int
	// Dispatched and LastSeq bound the tasks: those numbered in between.
	Dispatched, LastSeq int64
}

// Backlogs lists all stages of running runs with tasks to hand out, except
// paused stages. With runs given, only these runs' stages.
func (l *Ledger) Backlogs(ctx context.Context, runs []int64) ([]Backlog, error) {
	const q = `
		SELECT s.run, s.stage, r.priority, s.generation, s.dispatched, s.last_seq
		FROM run_stages s JOIN runs r USING (run)
		WHERE r.status = 'running' AND s.scope = '' AND s.dispatched < s.last_seq
		  AND (@runs::bigint[] IS NULL OR s.run = ANY(@runs))
		  AND NOT EXISTS (SELECT FROM stages p WHERE p.stage = s.stage AND p.paused)
		ORDER BY r.priority, s.run, s.position`
	rows, err := l.pool.Query(ctx, q, pgx.NamedArgs{"runs": runs})
	if err != nil {
		return nil, fmt.Errorf("read backlog: %w", err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (b Backlog, err error) {
		err = row.Scan(&b.Run, &b.Stage, &b.Priority, &b.Generation, &b.Dispatched, &b.LastSeq)
		return b, err
	})
}

// Live counts, for each stage, the tasks of running runs that are on the bus
// or in a worker's hand: handed out, not ended, and not waiting for a retry.
func (l *Ledger) Live(ctx context.Context) (map[string]int64, error) {
	const q = `
		SELECT s.stage, (sum(greatest(0, s.total - (s.last_seq - s.dispatched) - s.completed - s.failed - s.cancelled)) - coalesce(max(w.n), 0))::bigint
		FROM run_stages s JOIN runs r USING (run)
		LEFT JOIN (SELECT stage, count(*) AS n FROM tasks WHERE not_before IS NOT NULL AND status IN ('retry', 'waiting') GROUP BY stage) w USING (stage)
		WHERE r.status = 'running' AND s.scope = '' GROUP BY s.stage`
	rows, err := l.pool.Query(ctx, q)
	if err != nil {
		return nil, fmt.Errorf("read live tasks: %w", err)
	}
	live := map[string]int64{}
	var name string
	var n int64
	_, err = pgx.ForEachRow(rows, []any{&name, &n}, func() error { live[name] = n; return nil })
	return live, err
}

// Dispatchable is a task as it is to be handed out.
type Dispatchable struct {
	stage.Task
	Seq      int64
	Priority Priority
	TraceID  string
}

const selectDispatchable = `
	SELECT t.run, r.pipeline, r.subject, t.stage, t.item, t.scope, t.generation, t.tries, t.attempts + 1, r.settings, t.spec, t.seq, r.priority, r.trace_id
	FROM tasks t JOIN runs r ON `

func scanDispatchable(row pgx.CollectableRow) (d Dispatchable, err error) {
	err = row.Scan(&d.Run, &d.Pipeline, &d.Subject, &d.Stage, &d.Item, &d.Parent, &d.Generation, &d.Try, &d.Attempt, &d.Settings, &d.Spec,
		&d.Seq, &d.Priority, &d.TraceID)
	d.MaxAttempts = 1
	if s, ok := pipeline.StageNamed(d.Stage); ok {
		d.MaxAttempts = s.MaxAttempts
	}
	return d, err
}

// Undispatched returns up to limit planned tasks of a backlog, in order.
func (l *Ledger) Undispatched(ctx context.Context, b Backlog, limit int) ([]Dispatchable, error) {
	// By the index of the backlog and no other: see the migration that made it.
	const q = selectDispatchable + `r.run = @run
		WHERE hashtextextended(t.stage, t.run) = hashtextextended(@stage, @run) AND (t.run, t.stage) IS NOT DISTINCT FROM (@run, @stage)
		  AND t.seq > @after AND t.status = 'planned' AND r.status = 'running'
		ORDER BY t.seq LIMIT @limit`
	rows, err := l.pool.Query(ctx, q, pgx.NamedArgs{"run": b.Run, "stage": b.Stage, "after": b.Dispatched, "limit": limit})
	if err != nil {
		return nil, fmt.Errorf("read planned tasks of run %d: %w", b.Run, err)
	}
	return pgx.CollectRows(rows, scanDispatchable)
}

// MarkDispatched moves the marks up to which tasks have been handed out. Call
// it after the messages are stored: a crash in between publishes them again,
// which the bus refuses while they are there. A mark never moves back, and not
// at all in another generation.
func (l *Ledger) MarkDispatched(ctx context.Context, marks []Backlog) error {
	const q = `
		UPDATE run_stages s SET dispatched = least(s.last_seq, greatest(s.dispatched, m.dispatched)), updated_at = now()
		FROM unnest(@run::bigint[], @stage::text[], @generation::int[], @dispatched::bigint[]) AS m(run, stage, generation, dispatched)
		WHERE s.run = m.run AND s.scope = '' AND s.stage = m.stage AND s.generation = m.generation`
	if len(marks) == 0 {
		return nil
	}
	var run, dispatched []int64
	var name []string
	var generation []int
	for _, m := range marks {
		run, name, generation, dispatched = append(run, m.Run), append(name, m.Stage), append(generation, m.Generation), append(dispatched, m.Dispatched)
	}
	_, err := l.pool.Exec(ctx, q, pgx.NamedArgs{"run": run, "stage": name, "generation": generation, "dispatched": dispatched})
	if err != nil {
		return fmt.Errorf("mark tasks as handed out: %w", err)
	}
	return nil
}

// Due returns up to limit tasks whose wait before the next try is over, except
// those of paused stages, the longest overdue first.
func (l *Ledger) Due(ctx context.Context, limit int) ([]Dispatchable, error) {
	const q = selectDispatchable + `r.run = t.run
		WHERE t.not_before <= now() AND t.status = 'retry' AND r.status = 'running'
		  AND NOT EXISTS (SELECT FROM stages p WHERE p.stage = t.stage AND p.paused)
		ORDER BY t.not_before LIMIT @limit`
	rows, err := l.pool.Query(ctx, q, pgx.NamedArgs{"limit": limit})
	if err != nil {
		return nil, fmt.Errorf("read tasks due: %w", err)
	}
	return pgx.CollectRows(rows, scanDispatchable)
}

// MarkRedispatched puts tasks whose retry has been handed out back to planned.
// Call it after the messages are stored.
func (l *Ledger) MarkRedispatched(ctx context.Context, tasks []Dispatchable) error {
	const q = lockRuns + `
		UPDATE tasks t SET status = 'planned', not_before = NULL, updated_at = now()
		FROM unnest(@run::bigint[], @stage::text[], @item::text[], @generation::int[], @try::int[]) AS d(run, stage, item, generation, try)
		JOIN locked USING (run)
		WHERE t.run = d.run AND t.stage = d.stage AND t.item = d.item AND t.generation = d.generation AND t.tries = d.try AND t.status = 'retry'`
	if len(tasks) == 0 {
		return nil
	}
	if _, err := l.pool.Exec(ctx, q, refs(tasks)); err != nil {
		return fmt.Errorf("mark retries as handed out: %w", err)
	}
	return nil
}

// lockRuns begins a statement on tasks. Whoever changes tasks holds their runs,
// in order, so that none waits for another who waits for it.
const lockRuns = `WITH locked AS MATERIALIZED (SELECT run FROM runs WHERE run = ANY(@run) ORDER BY run FOR NO KEY UPDATE)`

func refs(tasks []Dispatchable) pgx.NamedArgs {
	var run []int64
	var name, item []string
	var generation, try []int
	for _, t := range tasks {
		run, name, item = append(run, t.Run), append(name, t.Stage), append(item, t.Item)
		generation, try = append(generation, t.Generation), append(try, t.Try)
	}
	return pgx.NamedArgs{"run": run, "stage": name, "item": item, "generation": generation, "try": try}
}

// Inputs returns one page of at most limit of what a task reads besides its
// spec, after cursor, and the cursor of the next page, "" after the last. The
// error wraps ErrNotFound when there is no such task.
func (l *Ledger) Inputs(ctx context.Context, run int64, name, item, cursor string, limit int) (page []stage.Input, next string, err error) {
	const get = `
		SELECT r.pipeline, r.subject, r.settings FROM tasks t JOIN runs r USING (run)
		WHERE t.run = @run AND t.stage = @stage AND t.item = @item`
	args := pgx.NamedArgs{"run": run, "stage": name, "item": item, "after": cursor, "limit": limit}
	var pipe, subject string
	var settings map[string]any
	switch err := l.pool.QueryRow(ctx, get, args).Scan(&pipe, &subject, &settings); {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, "", fmt.Errorf("task %s/%s of run %d: %w", name, item, run, ErrNotFound)
	case err != nil:
		return nil, "", fmt.Errorf("inputs of %s/%s of run %d: %w", name, item, run, err)
	}
	p, err := definition(pipe, settings)
	if err != nil {
		return nil, "", err
	}
	s, _ := p.Stage(name)
	switch s.Reads {
	case pipeline.ReadsJoined:
		page, err = l.joinedInputs(ctx, p, name, args)
	case pipeline.ReadsDocuments:
		args["subject"] = subject
		page, err = l.documentInputs(ctx, args)
	case pipeline.ReadsNothing:
	}
	if err != nil {
		return nil, "", fmt.Errorf("inputs of %s/%s of run %d: %w", name, item, run, err)
	}
	if len(page) == limit {
		next = page[len(page)-1].Item
	}
	return page, next, nil
}

func (l *Ledger) joinedInputs(ctx context.Context, p *pipeline.Pipeline, name string, args pgx.NamedArgs) ([]stage.Input, error) {
	// Children that did not get as far as the last stage are inputs too: as failed.
	const q = `
		SELECT item, status, coalesce(output, '{}'), artifacts FROM tasks
		WHERE hashtextextended(scope, run) = hashtextextended(@item, @run) AND (run, scope) IS NOT DISTINCT FROM (@run, @item) AND scope <> ''
		  AND stage = ANY(@through) AND item > @after
		  AND (stage = @last OR status IN ('failed', 'cancelled'))
		ORDER BY item LIMIT @limit`
	for _, e := range p.In(name) {
		if _, through, ok := p.JoinAfter(p.Spawner(e.From)); ok && e.Kind == pipeline.Join {
			args["through"], args["last"] = through, e.From
		}
	}
	if args["last"] == nil {
		return nil, nil
	}
	rows, err := l.pool.Query(ctx, q, args)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (in stage.Input, err error) {
		err = row.Scan(&in.Item, &in.Status, &in.Output, &in.Artifacts)
		return in, err
	})
}

func (l *Ledger) documentInputs(ctx context.Context, args pgx.NamedArgs) ([]stage.Input, error) {
	const q = `
		SELECT subdomain, document_id, kind, meeting, date, ordinal, source, title, status, version, sha256, size, key, etag, last_modified,
		       pages, pages_native, pages_ocr, pages_image, pages_blank, pages_failed, text, duplicate_of, error_class, error_message, updated_at
		FROM documents WHERE subdomain = @subject AND document_id > @after ORDER BY document_id LIMIT @limit`
	rows, err := l.pool.Query(ctx, q, args)
	if err != nil {
		return nil, err
	}
	docs, err := pgx.CollectRows(rows, scanDocument)
	if err != nil {
		return nil, err
	}
	page := make([]stage.Input, len(docs))
	for i, d := range docs {
		raw, err := json.Marshal(d.Document)
		if err != nil {
			return nil, err
		}
		page[i] = stage.Input{Item: d.ID, Status: d.Status, Output: raw}
	}
	return page, nil
}
