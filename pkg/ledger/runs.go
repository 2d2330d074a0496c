package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/reeve-pipeline/reeve/pkg/fault"
	"github.com/reeve-pipeline/reeve/pkg/pipeline"
	"github.com/reeve-pipeline/reeve/pkg/stage"
)

// StartRun starts a run: its row, the counters of all its stages and its first
// tasks, in one transaction. The error wraps ErrConflict while another run of
// the subject goes on and n does not supersede it, and ErrNotFound when the
// pipeline or, for civic, the site is not known.
func (l *Ledger) StartRun(ctx context.Context, n NewRun) (Run, error) {
	base, ok := pipeline.Named(n.Pipeline)
	if !ok {
		return Run{}, fmt.Errorf("pipeline %q: %w", n.Pipeline, ErrNotFound)
	}
	settings, err := base.Configure(n.Settings)
	if err != nil {
		return Run{}, fault.Permanent(err)
	}
	for _, it := range append([]stage.Item{{Item: n.Subject}}, n.Items...) {
		if err := stage.ValidItem(it.Item); err != nil {
			return Run{}, fmt.Errorf("a %s run of %q: %w", n.Pipeline, n.Subject, err)
		}
	}
	p := base.For(settings)
	var run int64
	err = l.tx(ctx, func(tx pgx.Tx) error {
		// Starts of one subject wait for each other, so that the second finds the first.
		const lock = `SELECT pg_advisory_xact_lock(hashtextextended(@pipeline || '/' || @subject, 0))`
		args := pgx.NamedArgs{"pipeline": p.Name, "subject": n.Subject}
		if _, err := tx.Exec(ctx, lock, args); err != nil {
			return err
		}
		const other = `SELECT run FROM runs WHERE pipeline = @pipeline AND subject = @subject AND status = 'running'`
		var going int64
		switch err := tx.QueryRow(ctx, other, args).Scan(&going); {
		case errors.Is(err, pgx.ErrNoRows):
		case err != nil:
			return err
		case !n.Supersede && p.Conflict != pipeline.Supersede:
			return fmt.Errorf("%s: run %d goes on; wait for it, cancel it, or supersede it: %w", n.Subject, going, ErrConflict)
		default:
			if err := end(ctx, tx, going, "superseded"); err != nil {
				return err
			}
		}
		spec, err := subjectSpec(ctx, tx, p, n.Subject)
		if err != nil {
			return err
		}
		items := []stage.SpawnedItem{{Item: n.Subject, Spec: spec}}
		if len(n.Items) > 0 {
			items = nil
			for _, it := range n.Items {
				raw, err := json.Marshal(it.Spec)
				if err != nil {
					return fmt.Errorf("spec of %s: %w", it.Item, err)
				}
				items = append(items, stage.SpawnedItem{Item: it.Item, Spec: raw})
			}
		}
		run, err = insertRun(ctx, tx, p, n, settings, items)
		return goesOn(err, n.Subject)
	})
	if err != nil {
		return Run{}, fmt.Errorf("start run: %w", err)
	}
	return l.Run(ctx, run)
}

// goesOn makes a conflict of what the database says when another run of the
// subject has begun in the meantime.
func goesOn(err error, subject string) error {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.ConstraintName == "runs_one_running" {
		return fmt.Errorf("%s: another run has just begun; wait for it or cancel it: %w", subject, ErrConflict)
	}
	return err
}

func insertRun(ctx context.Context, tx pgx.Tx, p *pipeline.Pipeline, n NewRun, settings map[string]any, items []stage.SpawnedItem) (int64, error) {
	const insert = `
		INSERT INTO runs (pipeline, version, subject, priority, trigger, settings)
		VALUES (@pipeline, @version, @subject, @priority, @trigger, @settings) RETURNING run`
	var run int64
	err := tx.QueryRow(ctx, insert, pgx.NamedArgs{
		"pipeline": p.Name, "version": p.Version, "subject": n.Subject, "priority": n.Priority, "trigger": clean(n.Trigger), "settings": settings,
	}).Scan(&run)
	if err != nil {
		return 0, err
	}
	b := batch{tx: tx, runs: map[int64]*runState{}}
	r := &runState{run: run, subject: n.Subject, pipe: p, running: true, counters: map[scopeKey]*counter{}}
	b.runs[run] = r
	for _, s := range p.Stages {
		r.counter("", s.Name)
	}
	var first []newTask
	for _, it := range items {
		first = append(first, newTask{run: run, stage: p.Root, item: it.Item, spec: it.Spec})
	}
	if _, err := b.plan(ctx, first, len(first) > 1); err != nil {
		return 0, err
	}
	if err := b.settle(ctx); err != nil {
		return 0, err
	}
	return run, b.write(ctx, nil)
}

// end ends a run that goes on: its tasks that have not ended are cancelled.
func end(ctx context.Context, tx pgx.Tx, run int64, status string) error {
	args := pgx.NamedArgs{"run": run, "status": status}
	const lock = `SELECT status, pipeline, subject FROM runs WHERE run = @run FOR UPDATE`
	var was, pipe, subject string
	switch err := tx.QueryRow(ctx, lock, args).Scan(&was, &pipe, &subject); {
	case errors.Is(err, pgx.ErrNoRows):
		return fmt.Errorf("run %d: %w", run, ErrNotFound)
	case err != nil:
		return err
	case was != "running":
		return fmt.Errorf("run %d is %s: %w", run, was, ErrConflict)
	}
	const tasks = `
		UPDATE tasks SET status = 'cancelled', not_before = NULL, error_class = 'cancelled', error_message = 'the run was ' || @status,
			ended_at = now(), updated_at = now()
		WHERE run = @run AND status NOT IN ('completed', 'failed', 'cancelled')`
	const counters = `
		UPDATE run_stages SET cancelled = total - completed - failed, sealed = true, closed_at = coalesce(closed_at, now()), updated_at = now()
		WHERE run = @run AND closed_at IS NULL`
	const ended = `UPDATE runs SET status = @status, ended_at = now(), updated_at = now() WHERE run = @run`
	statements := []string{tasks, counters, ended}
	if pipe == civicPipeline {
		args["subdomain"] = subject
		statements = append(statements, freezeSummary)
	}
	for _, q := range statements {
		if _, err := tx.Exec(ctx, q, args); err != nil {
			return err
		}
	}
	return nil
}

// CancelRun ends a run at once: its tasks that have not ended are cancelled,
// and outcomes that still arrive change nothing. The error wraps ErrConflict
// when the run has ended already.
func (l *Ledger) CancelRun(ctx context.Context, run int64) error {
	err := l.tx(ctx, func(tx pgx.Tx) error { return end(ctx, tx, run, "cancelled") })
	if err != nil {
		return fmt.Errorf("cancel: %w", err)
	}
	return nil
}

const selectRuns = `
	SELECT run, pipeline, version, subject, status, priority, trigger, settings, started_at, updated_at, ended_at,
	       note, error_stage, error_class, error_message, error_at
	FROM runs`

func scanRun(row pgx.CollectableRow) (r Run, err error) {
	err = row.Scan(&r.Run, &r.Pipeline, &r.Version, &r.Subject, &r.Status, &r.Priority, &r.Trigger, &r.Settings, &r.StartedAt,
		&r.UpdatedAt, &r.EndedAt, &r.Note, &r.ErrorStage, &r.ErrorClass, &r.ErrorMessage, &r.ErrorAt)
	return r, err
}

// Runs lists runs, newest first. Empty arguments select all; limit 0 is 50.
func (l *Ledger) Runs(ctx context.Context, subject, status, pipeline string, limit int) ([]Run, error) {
	const q = selectRuns + `
		WHERE (@subject = '' OR subject = @subject) AND (@status = '' OR status = @status) AND (@pipeline = '' OR pipeline = @pipeline)
		ORDER BY run DESC LIMIT @limit`
	if limit <= 0 {
		limit = 50
	}
	rows, err := l.pool.Query(ctx, q, pgx.NamedArgs{"subject": subject, "status": status, "pipeline": pipeline, "limit": limit})
	if err != nil {
		return nil, fmt.Errorf("list runs: %w", err)
	}
	return pgx.CollectRows(rows, scanRun)
}

// Run returns a run with its counters.
func (l *Ledger) Run(ctx context.Context, run int64) (Run, error) {
	const q = selectRuns + ` WHERE run = @run`
	rows, err := l.pool.Query(ctx, q, pgx.NamedArgs{"run": run})
	if err != nil {
		return Run{}, fmt.Errorf("run %d: %w", run, err)
	}
	r, err := pgx.CollectExactlyOneRow(rows, scanRun)
	if errors.Is(err, pgx.ErrNoRows) {
		return r, fmt.Errorf("run %d: %w", run, ErrNotFound)
	}
	if err != nil {
		return r, fmt.Errorf("run %d: %w", run, err)
	}
	const stages = `
		SELECT stage, generation, total, completed, failed, cancelled, skipped, dispatched, sealed, closed_at IS NOT NULL, opened_at, updated_at, closed_at
		FROM run_stages WHERE run = @run AND scope = '' ORDER BY position`
	rows, err = l.pool.Query(ctx, stages, pgx.NamedArgs{"run": run})
	if err != nil {
		return r, fmt.Errorf("run %d: %w", run, err)
	}
	r.Stages, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (s StageProgress, err error) {
		err = row.Scan(&s.Stage, &s.Generation, &s.Total, &s.Completed, &s.Failed, &s.Cancelled, &s.Skipped, &s.Dispatched, &s.Sealed,
			&s.Closed, &s.OpenedAt, &s.UpdatedAt, &s.ClosedAt)
		return s, err
	})
	return r, err
}

// RetryRun hands out the failed tasks of an ended run again, in a new
// generation; what had completed stays as it is. What was made of the whole,
// such as a compilation, is made again. The error wraps ErrConflict when the
// run goes on, has no failed task, or another run of its subject goes on.
func (l *Ledger) RetryRun(ctx context.Context, run int64) error {
	if err := l.reopen(ctx, run, ""); err != nil {
		return fmt.Errorf("retry: %w", err)
	}
	return nil
}

// RerunRun runs an ended run again from a stage on, in a new generation: the
// stage's tasks are handed out again, and what followed from them is planned
// anew. Outcomes of the generation before no longer count.
func (l *Ledger) RerunRun(ctx context.Context, run int64, from string) error {
	if from == "" {
		return fmt.Errorf("rerun of run %d: name the stage to run again from", run)
	}
	if err := l.reopen(ctx, run, from); err != nil {
		return fmt.Errorf("rerun: %w", err)
	}
	return nil
}

// reopen puts an ended run back to work: the tasks of stage from, or all
// failed tasks when from is empty. Tasks that were planned because of them
// are removed, to be planned again by what comes of the new generation; the
// audit of their attempts stays.
func (l *Ledger) reopen(ctx context.Context, run int64, from string) error {
	return l.tx(ctx, func(tx pgx.Tx) error {
		args := pgx.NamedArgs{"run": run, "from": from}
		const lock = `SELECT pipeline, subject, settings, status FROM runs WHERE run = @run FOR UPDATE`
		var name, subject, status string
		var settings map[string]any
		switch err := tx.QueryRow(ctx, lock, args).Scan(&name, &subject, &settings, &status); {
		case errors.Is(err, pgx.ErrNoRows):
			return fmt.Errorf("run %d: %w", run, ErrNotFound)
		case err != nil:
			return err
		case status == "running":
			return fmt.Errorf("run %d goes on; wait for it or cancel it: %w", run, ErrConflict)
		}
		args["pipeline"], args["subject"] = name, subject
		const other = `SELECT run FROM runs WHERE pipeline = @pipeline AND subject = @subject AND status = 'running'`
		var going int64
		if err := tx.QueryRow(ctx, other, args).Scan(&going); err == nil {
			return fmt.Errorf("%s: run %d goes on; wait for it or cancel it: %w", subject, going, ErrConflict)
		} else if !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		p, err := definition(name, settings)
		if err != nil {
			return err
		}
		if _, ok := p.Stage(from); from != "" && !ok {
			return fmt.Errorf("run %d has no stage %q: %w", run, from, ErrNotFound)
		}
		if _, err := subjectSpec(ctx, tx, p, subject); err != nil {
			return err
		}
		if err := reset(ctx, tx, p, run, from); err != nil {
			return err
		}
		const open = `
			UPDATE runs SET status = 'running', ended_at = NULL, doomed = false, note = '', summary = NULL,
				error_stage = '', error_class = '', error_message = '', error_at = NULL, updated_at = now()
			WHERE run = @run`
		if _, err := tx.Exec(ctx, open, args); err != nil {
			return goesOn(err, subject)
		}
		return recount(ctx, tx, p, run)
	})
}

// reset puts tasks back to planned and removes those that follow from them.
func reset(ctx context.Context, tx pgx.Tx, p *pipeline.Pipeline, run int64, from string) error {
	var whole, joining, joined []string
	for _, e := range p.Edges {
		switch {
		case e.Kind == pipeline.All:
			whole = append(append(whole, e.To), p.After(e.To)...)
		case e.Kind == pipeline.Join:
			_, through, _ := p.JoinAfter(p.Spawner(e.From))
			joining = append(joining, through...)
			joined = append(append(joined, e.To), p.After(e.To)...)
		}
	}
	args := pgx.NamedArgs{"run": run, "from": from, "after": p.After(from), "whole": whole, "joining": joining, "joined": joined}
	const bump = `UPDATE run_stages SET generation = generation + 1, updated_at = now() WHERE run = @run`
	if _, err := tx.Exec(ctx, bump, args); err != nil {
		return err
	}
	// Numbers are given anew, above all given before, so that the dispatcher's
	// mark leaves them to be handed out.
	const again = `
		UPDATE tasks t SET status = 'planned', generation = s.generation, attempts = 0, tries = 1, recoveries = 0, not_before = NULL,
			skip = NULL, error_class = NULL, error_message = NULL, fingerprint = NULL, output = NULL, artifacts = NULL, metrics = NULL,
			worker = NULL, started_at = NULL, ended_at = NULL, updated_at = now(), seq = s.last_seq + n.rank
		FROM run_stages s,
			(SELECT stage, item, rank() OVER (PARTITION BY stage ORDER BY seq) AS rank FROM tasks
			 WHERE run = @run AND CASE WHEN @from = '' THEN status IN ('failed', 'cancelled') ELSE stage = @from END) n
		WHERE t.run = @run AND t.stage = n.stage AND t.item = n.item
		  AND s.run = @run AND s.scope = '' AND s.stage = t.stage`
	tag, err := tx.Exec(ctx, again, args)
	if err != nil {
		return err
	}
	if tag.RowsAffected() == 0 {
		return fmt.Errorf("run %d has nothing to run again: %w", run, ErrConflict)
	}
	// After a whole stage, everything that follows goes.
	const following = `DELETE FROM tasks WHERE run = @run AND stage = ANY(@after)`
	// After single items, what their parents were joined to goes, and, when one
	// of them is a part of it, what was made of the whole.
	const parents = `
		DELETE FROM tasks t USING tasks c
		WHERE c.run = @run AND c.status = 'planned' AND c.stage = ANY(@joining)
		  AND t.run = @run AND t.item = c.scope AND t.stage = ANY(@joined)`
	const made = `
		DELETE FROM tasks WHERE run = @run AND stage = ANY(@whole)
		  AND EXISTS (SELECT FROM tasks c WHERE c.run = @run AND c.status = 'planned' AND c.stage <> ALL(@whole))`
	follow := []string{following}
	if from == "" {
		follow = []string{parents, made}
	}
	for _, q := range follow {
		if _, err := tx.Exec(ctx, q, args); err != nil {
			return err
		}
	}
	return nil
}

// recount sets the counters of a running run from its tasks, opens what is no
// longer full, closes again what is, and plans what follows and is not there.
func recount(ctx context.Context, tx pgx.Tx, p *pipeline.Pipeline, run int64) error {
	args := pgx.NamedArgs{"run": run}
	const counters = `
		UPDATE run_stages s SET
			total = n.total, completed = n.completed, failed = n.failed, cancelled = n.cancelled, skipped = n.skipped,
			last_seq = greatest(s.last_seq, n.last_seq),
			sealed = false, closed_at = NULL, updated_at = now()
		FROM (
			SELECT c.stage, c.scope, count(t.run) AS total,
				count(*) FILTER (WHERE t.status = 'completed') AS completed,
				count(*) FILTER (WHERE t.status = 'failed') AS failed,
				count(*) FILTER (WHERE t.status = 'cancelled') AS cancelled,
				count(*) FILTER (WHERE t.status = 'completed' AND t.skip IS NOT NULL) AS skipped,
				coalesce(max(t.seq), 0) AS last_seq
			FROM run_stages c
			LEFT JOIN tasks t ON t.run = c.run AND t.stage = c.stage AND (c.scope = '' OR t.scope = c.scope)
			WHERE c.run = @run GROUP BY c.stage, c.scope
		) n
		WHERE s.run = @run AND s.stage = n.stage AND s.scope = n.scope`
	if _, err := tx.Exec(ctx, counters, args); err != nil {
		return err
	}
	if err := closeScopes(ctx, tx, p, run); err != nil {
		return err
	}
	b := batch{tx: tx, careful: true, runs: map[int64]*runState{run: {run: run, pipe: p, running: true, counters: map[scopeKey]*counter{}}}}
	const state = `SELECT subject, doomed, note FROM runs WHERE run = @run`
	r := b.runs[run]
	if err := tx.QueryRow(ctx, state, args).Scan(&r.subject, &r.doomed, &r.note); err != nil {
		return err
	}
	rows, err := tx.Query(ctx, runCounters, pgx.NamedArgs{"runs": []int64{run}})
	if err != nil {
		return err
	}
	if err := b.readCounters(rows); err != nil {
		return err
	}
	for _, e := range p.Edges {
		if err := b.missing(ctx, r, e); err != nil {
			return err
		}
	}
	if err := b.settle(ctx); err != nil {
		return err
	}
	return b.write(ctx, nil)
}

// closeScopes seals and closes the counters of every parent's children, in the
// order in which these pass the stages: the children of a parent that has
// ended get no more siblings.
func closeScopes(ctx context.Context, tx pgx.Tx, p *pipeline.Pipeline, run int64) error {
	const q = `
		UPDATE run_stages s SET sealed = true, closed_at = CASE WHEN s.completed + s.failed + s.cancelled = s.total THEN now() END
		WHERE s.run = @run AND s.scope <> '' AND s.stage = @stage AND CASE WHEN @before = ''
			THEN EXISTS (SELECT FROM tasks t WHERE t.run = @run AND t.stage = @spawner AND t.item = s.scope AND t.status IN ('completed', 'failed', 'cancelled'))
			ELSE EXISTS (SELECT FROM run_stages b WHERE b.run = @run AND b.stage = @before AND b.scope = s.scope AND b.closed_at IS NOT NULL) END`
	for _, spawner := range p.Stages {
		before := ""
		for _, at := range chain(p, spawner.Name) {
			if _, err := tx.Exec(ctx, q, pgx.NamedArgs{"run": run, "spawner": spawner.Name, "stage": at, "before": before}); err != nil {
				return err
			}
			before = at
		}
	}
	return nil
}

// missing plans what should have followed from single items by an edge, and is
// not there.
func (b *batch) missing(ctx context.Context, r *runState, e pipeline.Edge) error {
	const q = `
		SELECT t.item, t.scope, t.output FROM tasks t
		WHERE t.run = @run AND t.stage = @from AND t.status = 'completed' AND t.skip IS NULL AND (t.scope <> '' OR NOT @itself)
		  AND NOT EXISTS (SELECT FROM tasks n WHERE n.run = t.run AND n.stage = @to AND n.item = t.item)
		ORDER BY t.seq`
	var through []string
	from := e.From
	switch e.Kind {
	case pipeline.Each:
	case pipeline.Join:
		from = r.pipe.Spawner(e.From)
		_, through, _ = r.pipe.JoinAfter(from)
	case pipeline.Spawn, pipeline.All:
		return nil
	}
	rows, err := b.tx.Query(ctx, q, pgx.NamedArgs{"run": r.run, "from": from, "to": e.To, "itself": r.pipe.SpawnsItself(from)})
	if err != nil {
		return err
	}
	tasks, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (newTask, error) {
		t := newTask{run: r.run, stage: e.To}
		var output []byte
		err := row.Scan(&t.item, &t.scope, &output)
		t.spec = output
		return t, err
	})
	if err != nil {
		return err
	}
	var scopes []parent
	for _, t := range tasks {
		scopes = append(scopes, parent{run: r.run, item: t.scope}, parent{run: r.run, item: t.item})
	}
	if err := b.scopes(ctx, scopes); err != nil {
		return err
	}
	if e.Kind == pipeline.Join {
		tasks = slices.DeleteFunc(tasks, func(t newTask) bool {
			return r.counters[scopeKey{t.item, through[0]}] != nil && !pipeline.ChainDone(through, r.scope(t.item, through))
		})
	}
	_, err = b.plan(ctx, tasks, false)
	return err
}

// Tasks lists tasks in the order of planning.
func (l *Ledger) Tasks(ctx context.Context, f TaskFilter) ([]Task, error) {
	const q = `
		SELECT run, stage, item, scope, status, generation, attempts, tries, coalesce(error_class, ''), coalesce(error_message, ''),
		       coalesce(fingerprint, ''), not_before, updated_at, coalesce(worker, ''), artifacts, spec, output
		FROM tasks
		WHERE (@run::bigint = 0 OR run = @run) AND (@stage = '' OR stage = @stage) AND (@status = '' OR status = @status)
		ORDER BY run DESC, stage, seq LIMIT nullif(@limit::int, 0)`
	rows, err := l.pool.Query(ctx, q, pgx.NamedArgs{"run": f.Run, "stage": f.Stage, "status": f.Status, "limit": f.Limit})
	if err != nil {
		return nil, fmt.Errorf("list tasks: %w", err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (t Task, err error) {
		err = row.Scan(&t.Run, &t.Stage, &t.Item, &t.Parent, &t.Status, &t.Generation, &t.Attempts, &t.Tries, &t.ErrorClass, &t.ErrorMessage,
			&t.Fingerprint, &t.NotBefore, &t.UpdatedAt, &t.Worker, &t.Artifacts, &t.Spec, &t.Output)
		return t, err
	})
}

// Stages says how each stage of the build stands over all runs.
func (l *Ledger) Stages(ctx context.Context) ([]StageState, error) {
	const q = `
		SELECT n.stage, coalesce(p.paused, false), coalesce(b.backlog, 0)
		FROM unnest(@stages::text[]) WITH ORDINALITY AS n(stage, i)
		LEFT JOIN stages p USING (stage)
		LEFT JOIN (
			SELECT s.stage, sum(s.last_seq - s.dispatched)::bigint AS backlog
			FROM run_stages s JOIN runs r USING (run)
			WHERE r.status = 'running' AND s.scope = '' GROUP BY s.stage
		) b USING (stage)
		ORDER BY n.i`
	var names []string
	for _, s := range pipeline.Stages() {
		names = append(names, s.Name)
	}
	rows, err := l.pool.Query(ctx, q, pgx.NamedArgs{"stages": names})
	if err != nil {
		return nil, fmt.Errorf("list stages: %w", err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (s StageState, err error) {
		err = row.Scan(&s.Stage, &s.Paused, &s.Backlog)
		return s, err
	})
}

// PauseStage stops or resumes the handing out of a stage's tasks. The error
// wraps ErrNotFound when this build has no such stage.
func (l *Ledger) PauseStage(ctx context.Context, name string, paused bool) error {
	if _, ok := pipeline.StageNamed(name); !ok {
		return fmt.Errorf("stage %q: %w", name, ErrNotFound)
	}
	const q = `
		INSERT INTO stages (stage, paused) VALUES (@stage, @paused)
		ON CONFLICT (stage) DO UPDATE SET paused = excluded.paused, updated_at = now()`
	if _, err := l.pool.Exec(ctx, q, pgx.NamedArgs{"stage": name, "paused": paused}); err != nil {
		return fmt.Errorf("pause %s: %w", name, err)
	}
	return nil
}
