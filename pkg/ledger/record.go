package ledger

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/reeve-pipeline/reeve/pkg/fault"
	"github.com/reeve-pipeline/reeve/pkg/pipeline"
	"github.com/reeve-pipeline/reeve/pkg/stage"
)

// Recorded says what became of a batch of outcomes.
type Recorded struct {
	// Applied outcomes changed a task. The others had been applied before, or
	// are of an older generation or try, or name a task that is not planned.
	Applied, Ignored int
	// Closed lists the stages that closed.
	Closed []Closing
	// Finished counts, for each stage, the tasks that are off the bus now: they
	// ended, or wait for another try.
	Finished map[string]int
	// Planned lists the stages of runs that have new tasks to hand out.
	Planned []RunStage
	// Ended lists the runs that ended.
	Ended []Ending
	// Completed counts, for each stage, the tasks that completed.
	Completed map[string]int
	// Failed lists the outcomes that ended a task as failed.
	Failed []stage.Outcome
}

// RunStage names a stage of a run.
type RunStage struct {
	Run   int64
	Stage string
}

// Ending is a run that ended, and as what.
type Ending struct {
	Run    int64
	Status string
}

// Closing is a stage of a run that closed, and how long it was open.
type Closing struct {
	RunStage
	Took time.Duration
}

// errPlannedTwice tells that a task to be planned was there already, which
// only happens in a run of several generations or after a fault.
var errPlannedTwice = errors.New("a planned task is there already")

// Record counts outcomes and plans what follows from them, in one transaction:
// all of it happens, or nothing. Recording an outcome again changes nothing.
func (l *Ledger) Record(ctx context.Context, outcomes []stage.Outcome) (Recorded, error) {
	var r Recorded
	if len(outcomes) == 0 {
		return r, nil
	}
	careful := false
	for {
		err := l.tx(ctx, func(tx pgx.Tx) error {
			b := batch{tx: tx, careful: careful}
			var err error
			r, err = b.record(ctx, outcomes)
			return err
		})
		if errors.Is(err, errPlannedTwice) && !careful {
			careful = true
			continue
		}
		if err != nil {
			return Recorded{}, fmt.Errorf("record %d outcomes: %w", len(outcomes), err)
		}
		return r, nil
	}
}

// batch is one transaction of Record: the runs it touches, as they are under
// its locks, and what is to be written back.
type batch struct {
	tx pgx.Tx
	// careful: look whether the tasks to be planned are there already.
	careful bool

	runs map[int64]*runState
	news []newTask
	// last is what is written at the end, in one round trip.
	last pgx.Batch
	out  Recorded
}

// runState is a run and its counters while its row is locked.
type runState struct {
	run      int64
	subject  string
	pipe     *pipeline.Pipeline
	running  bool
	doomed   bool
	note     string
	failure  failure
	ended    string // the status it ended with, or ""
	counters map[scopeKey]*counter
}

type failure struct{ stage, class, message string }

type scopeKey struct{ scope, stage string }

// counter is a row of run_stages.
type counter struct {
	pipeline.Count
	generation int
	lastSeq    int64
	position   int
	openedAt   time.Time
	changed    bool
}

// newTask is a task to plan.
type newTask struct {
	run                int64
	stage, item, scope string
	spec               json.RawMessage
	seq                int64
	generation         int
}

// applied is a task whose outcome has just been counted.
type applied struct {
	stage.Outcome
	scope string
	spec  json.RawMessage // of failed tasks only
}

func (b *batch) record(ctx context.Context, outcomes []stage.Outcome) (Recorded, error) {
	b.out = Recorded{Finished: map[string]int{}, Completed: map[string]int{}}
	folded := fold(outcomes)
	if err := b.load(ctx, folded); err != nil {
		return b.out, err
	}
	if err := b.spawn(ctx, folded); err != nil {
		return b.out, err
	}
	done, err := b.apply(ctx, folded)
	if err != nil {
		return b.out, err
	}
	b.out.Applied += len(done)
	b.out.Ignored = len(outcomes) - b.out.Applied
	if err := b.project(ctx, done); err != nil {
		return b.out, err
	}
	if err := b.scopes(ctx, b.parents(done)); err != nil {
		return b.out, err
	}
	b.count(done)
	if err := b.join(ctx, done); err != nil {
		return b.out, err
	}
	if err := b.settle(ctx); err != nil {
		return b.out, err
	}
	if err := b.write(ctx, done); err != nil {
		return b.out, err
	}
	return b.out, nil
}

// fold merges the outcomes of one batch that are of the same task and
// generation: the children of all of them, and the one that says most of the
// rest. The result is in key order, so that transactions lock rows in one order.
func fold(outcomes []stage.Outcome) []stage.Outcome {
	merged := make(map[taskKey]*stage.Outcome, len(outcomes))
	for _, o := range outcomes {
		o.ErrorMessage = clip(o.ErrorMessage, 500)
		k := taskKey{o.Run, o.Stage, o.Item, o.Generation}
		was, ok := merged[k]
		if !ok {
			merged[k] = &o
			continue
		}
		items := slices.Concat(was.Items, o.Items)
		if saysMore(&o, was) {
			*was = o
		}
		was.Items = items
	}
	list := make([]stage.Outcome, 0, len(merged))
	for _, o := range merged {
		list = append(list, *o)
	}
	slices.SortFunc(list, func(a, b stage.Outcome) int {
		return cmp.Or(cmp.Compare(a.Run, b.Run), cmp.Compare(a.Stage, b.Stage), cmp.Compare(a.Item, b.Item), cmp.Compare(a.Generation, b.Generation))
	})
	return list
}

// saysMore reports whether a of two outcomes of a task is the one to go by.
// Done is done, whichever try it was; else only the latest try can count.
func saysMore(a, b *stage.Outcome) bool {
	weight := func(o *stage.Outcome) int {
		return slices.Index([]stage.Status{stage.StatusWorking, stage.StatusWaiting, stage.StatusRetry, stage.StatusFailed}, o.Status)
	}
	if done := a.Status == stage.StatusCompleted; done != (b.Status == stage.StatusCompleted) {
		return done
	}
	return cmp.Or(cmp.Compare(a.Try, b.Try), cmp.Compare(weight(a), weight(b))) > 0
}

// load locks the runs of the batch, in order, and reads their counters.
func (b *batch) load(ctx context.Context, outcomes []stage.Outcome) error {
	const lock = `
		SELECT run, pipeline, subject, settings, status = 'running', doomed, note
		FROM runs WHERE run = ANY(@runs) ORDER BY run FOR NO KEY UPDATE`
	var ids []int64
	for _, o := range outcomes {
		if len(ids) == 0 || ids[len(ids)-1] != o.Run {
			ids = append(ids, o.Run)
		}
	}
	b.runs = make(map[int64]*runState, len(ids))
	var q pgx.Batch
	q.Queue(lock, pgx.NamedArgs{"runs": ids}).Query(b.readRuns)
	q.Queue(runCounters, pgx.NamedArgs{"runs": ids}).Query(b.readCounters)
	return b.tx.SendBatch(ctx, &q).Close()
}

func (b *batch) readRuns(rows pgx.Rows) error {
	var (
		r        runState
		name     string
		settings map[string]any
	)
	_, err := pgx.ForEachRow(rows, []any{&r.run, &name, &r.subject, &settings, &r.running, &r.doomed, &r.note}, func() error {
		base, ok := pipeline.Named(name)
		if !ok {
			return nil // a pipeline of another build: its outcomes stay unapplied
		}
		p := base.For(settings)
		r := r
		r.pipe, r.counters = p, map[scopeKey]*counter{}
		b.runs[r.run] = &r
		settings = nil
		return nil
	})
	return err
}

const selectCounters = `
	SELECT run, scope, stage, position, generation, total, completed, failed, cancelled,
	       skipped, last_seq, sealed, closed_at IS NOT NULL, opened_at
	FROM run_stages`

// runCounters reads the counters of the run scope of all runs.
const runCounters = selectCounters + ` WHERE run = ANY(@runs) AND scope = ''`

// scopes reads the counters of the given parents' children. Those that are
// known already are left as they are.
func (b *batch) scopes(ctx context.Context, parents []parent) error {
	const q = selectCounters + ` JOIN unnest(@runs::bigint[], @scopes::text[]) AS p(run, scope) USING (run, scope)`
	if len(parents) == 0 {
		return nil
	}
	var runs []int64
	var scopes []string
	for _, p := range parents {
		runs, scopes = append(runs, p.run), append(scopes, p.item)
	}
	rows, err := b.tx.Query(ctx, q, pgx.NamedArgs{"runs": runs, "scopes": scopes})
	if err != nil {
		return err
	}
	return b.readCounters(rows)
}

func (b *batch) readCounters(rows pgx.Rows) error {
	var (
		run int64
		k   scopeKey
		c   counter
	)
	_, err := pgx.ForEachRow(rows, []any{
		&run, &k.scope, &k.stage, &c.position, &c.generation, &c.Total, &c.Completed, &c.Failed, &c.Cancelled,
		&c.Skipped, &c.lastSeq, &c.Sealed, &c.Closed, &c.openedAt,
	}, func() error {
		if r := b.runs[run]; r != nil && r.counters[k] == nil {
			c := c
			r.counters[k] = &c
		}
		return nil
	})
	return err
}

// parent names the item whose children a scope counts, at the stage that
// spawned them.
type parent struct {
	run           int64
	spawner, item string
}

// spawn plans the children that outcomes list, and holds completions against
// the number they claim: a part that got lost must not close a scope early. An
// outcome whose children cannot be planned becomes a failure that says why.
func (b *batch) spawn(ctx context.Context, outcomes []stage.Outcome) error {
	var spawning []*stage.Outcome
	for i := range outcomes {
		o := &outcomes[i]
		if r := b.runs[o.Run]; r != nil && r.running && (len(o.Items) > 0 || o.Spawned > 0) {
			spawning = append(spawning, o)
		}
	}
	if len(spawning) == 0 {
		return nil
	}
	live, err := b.living(ctx, spawning)
	if err != nil {
		return err
	}
	spawning = slices.DeleteFunc(spawning, func(o *stage.Outcome) bool { return !live[taskKey{o.Run, o.Stage, o.Item, o.Generation}] })
	var scopes []parent
	var children []newTask
	for _, o := range spawning {
		to := spawnTarget(b.runs[o.Run].pipe, o.Stage)
		if err := spawnable(to, o); err != nil {
			fail(o, "spawn-refused", err)
			continue
		}
		scopes = append(scopes, parent{o.Run, o.Stage, o.Item})
		for _, it := range o.Items {
			children = append(children, newTask{run: o.Run, stage: to, item: it.Item, scope: o.Item, spec: it.Spec})
		}
	}
	if err := b.scopes(ctx, scopes); err != nil {
		return err
	}
	taken, err := b.plan(ctx, children, true)
	if err != nil {
		return err
	}
	for _, o := range spawning {
		to := spawnTarget(b.runs[o.Run].pipe, o.Stage)
		var there int64
		if c := b.runs[o.Run].counters[scopeKey{o.Item, to}]; c != nil {
			there = c.Total
		}
		switch item, clash := taken[scopeOf{o.Run, to, o.Item}]; {
		case clash:
			fail(o, "spawn-taken", fmt.Errorf("spawned item %s is in the run already, and not of %s", item, o.Item))
		case o.Status == stage.StatusCompleted && there < int64(o.Spawned):
			o.Status, o.ErrorClass, o.After = stage.StatusRetry, fault.ClassInfra, time.Second
			o.ErrorMessage = fmt.Sprintf("%d of %d spawned items arrived; spawning again", there, o.Spawned)
			o.Fingerprint = "spawn-lost"
		}
	}
	return nil
}

// spawnable reports why an outcome may not list the children that it does.
func spawnable(to string, o *stage.Outcome) error {
	if to == "" {
		return fmt.Errorf("stage %s spawns nothing in this pipeline, yet %s has children", o.Stage, o.Item)
	}
	for _, it := range o.Items {
		if err := stage.ValidItem(it.Item); err != nil {
			return fmt.Errorf("spawned by %s: %w", o.Item, err)
		}
	}
	return nil
}

// fail makes an outcome a failure that no further try can help.
func fail(o *stage.Outcome, fingerprint string, why error) {
	o.Status, o.ErrorClass, o.ErrorMessage, o.Fingerprint = stage.StatusFailed, fault.ClassPermanent, clip(why.Error(), 500), fingerprint
	o.Items, o.Spawned, o.Skip = nil, 0, ""
}

// living tells which of the outcomes' tasks have not ended.
func (b *batch) living(ctx context.Context, outcomes []*stage.Outcome) (map[taskKey]bool, error) {
	const q = `
		SELECT t.run, t.stage, t.item, t.generation FROM tasks t
		JOIN unnest(@run::bigint[], @stage::text[], @item::text[]) AS o(run, stage, item) USING (run, stage, item)
		WHERE ` + notEnded
	var runs []int64
	var stages, items []string
	for _, o := range outcomes {
		runs, stages, items = append(runs, o.Run), append(stages, o.Stage), append(items, o.Item)
	}
	rows, err := b.tx.Query(ctx, q, pgx.NamedArgs{"run": runs, "stage": stages, "item": items})
	if err != nil {
		return nil, err
	}
	live := map[taskKey]bool{}
	var k taskKey
	_, err = pgx.ForEachRow(rows, []any{&k.run, &k.stage, &k.item, &k.generation}, func() error { live[k] = true; return nil })
	return live, err
}

func spawnTarget(p *pipeline.Pipeline, from string) string {
	for _, e := range p.Out(from) {
		if e.Kind == pipeline.Spawn {
			return e.To
		}
	}
	return ""
}

// scopeOf names the children that one parent has at a stage.
type scopeOf struct {
	run          int64
	stage, scope string
}

// plan adds tasks to be written and raises the totals they count towards. It
// passes over those that are there already, if told to look, and returns those
// of these that are not their parent's.
func (b *batch) plan(ctx context.Context, tasks []newTask, look bool) (taken map[scopeOf]string, err error) {
	if len(tasks) == 0 {
		return nil, nil
	}
	look = look || b.careful
	for _, t := range tasks {
		if c := b.runs[t.run].counters[scopeKey{"", t.stage}]; c != nil && c.generation > 1 {
			look = true
		}
	}
	there := map[taskKey]string{} // their scopes
	if look {
		if there, err = b.planned(ctx, tasks); err != nil {
			return nil, err
		}
	}
	taken = map[scopeOf]string{}
	for _, t := range tasks {
		k := taskKey{t.run, t.stage, t.item, 0}
		if scope, ok := there[k]; ok {
			if scope != t.scope {
				taken[scopeOf{t.run, t.stage, t.scope}] = t.item
			}
			continue
		}
		if look {
			there[k] = t.scope
		}
		r := b.runs[t.run]
		c := r.counter("", t.stage)
		c.Total++
		c.lastSeq++
		c.changed = true
		t.seq, t.generation = c.lastSeq, c.generation
		if t.scope != "" && r.pipe.Counted(t.stage) {
			s := r.counter(t.scope, t.stage)
			s.Total++
			s.changed = true
		}
		b.news = append(b.news, t)
	}
	return taken, nil
}

// planned returns those of the tasks that are there already, by the database
// or by this batch, with their scopes.
func (b *batch) planned(ctx context.Context, tasks []newTask) (map[taskKey]string, error) {
	const q = `
		SELECT t.run, t.stage, t.item, t.scope FROM tasks t
		JOIN unnest(@runs::bigint[], @stages::text[], @items::text[]) AS o(run, stage, item) USING (run, stage, item)`
	var runs []int64
	var stages, items []string
	for _, t := range tasks {
		runs, stages, items = append(runs, t.run), append(stages, t.stage), append(items, t.item)
	}
	rows, err := b.tx.Query(ctx, q, pgx.NamedArgs{"runs": runs, "stages": stages, "items": items})
	if err != nil {
		return nil, err
	}
	there := map[taskKey]string{}
	var k taskKey
	var scope string
	if _, err := pgx.ForEachRow(rows, []any{&k.run, &k.stage, &k.item, &scope}, func() error { there[k] = scope; return nil }); err != nil {
		return nil, err
	}
	for _, t := range b.news {
		there[taskKey{t.run, t.stage, t.item, 0}] = t.scope
	}
	return there, nil
}

// taskKey names a task in one generation; where only one can be meant, the
// generation is 0.
type taskKey struct {
	run         int64
	stage, item string
	generation  int
}

// counter returns a counter, opening it when there is none.
func (r *runState) counter(scope, name string) *counter {
	k := scopeKey{scope, name}
	if c := r.counters[k]; c != nil {
		return c
	}
	c := &counter{generation: 1, changed: true, position: slices.IndexFunc(r.pipe.Stages, func(s pipeline.Stage) bool { return s.Name == name })}
	if top := r.counters[scopeKey{"", name}]; top != nil {
		c.generation = top.generation
	}
	r.counters[k] = c
	return c
}

// notEnded holds for a task t that has not. It is written so that the planner
// does not look up in its statistics how many these are: made when everything
// had ended, they say none, and it would begin by reading all tasks for them.
const notEnded = `CASE WHEN t.status IN ('completed', 'failed', 'cancelled') THEN false ELSE true END`

// apply makes the guarded update that decides which outcomes count. Outcomes
// of an older generation or of a task that has ended change nothing; those of
// an older try count only when they say that the work is done.
func (b *batch) apply(ctx context.Context, outcomes []stage.Outcome) ([]applied, error) {
	const q = `
		UPDATE tasks t SET
			status          = CASE o.status WHEN 'working' THEN 'running' ELSE o.status END,
			attempts        = t.attempts + o.spent,
			tries           = t.tries + (o.status = 'retry')::int,
			not_before      = CASE WHEN o.status IN ('retry', 'waiting') THEN now() + o.after * interval '1 microsecond' END,
			skip            = nullif(o.skip, ''),
			error_class     = CASE WHEN o.status = 'working' THEN t.error_class ELSE nullif(o.error_class, '') END,
			error_message   = CASE WHEN o.status = 'working' THEN t.error_message ELSE nullif(o.error_message, '') END,
			fingerprint     = CASE WHEN o.status = 'working' THEN t.fingerprint ELSE nullif(o.fingerprint, '') END,
			external_job_id = coalesce(nullif(o.external_job_id, ''), t.external_job_id),
			output          = coalesce(nullif(o.output, '')::jsonb, t.output),
			artifacts       = coalesce(nullif(o.artifacts, '')::jsonb, t.artifacts),
			metrics         = coalesce(nullif(o.metrics, '')::jsonb, t.metrics),
			worker          = nullif(o.worker, ''),
			started_at      = coalesce(o.started_at, t.started_at),
			ended_at        = o.ended_at,
			updated_at      = now()
		FROM unnest(
			@run::bigint[], @stage::text[], @item::text[], @generation::bigint[], @try::bigint[], @status::text[], @spent::int[],
			@after::bigint[], @skip::text[], @error_class::text[], @error_message::text[], @fingerprint::text[],
			@external_job_id::text[], @output::text[], @artifacts::text[], @metrics::text[], @worker::text[],
			@started_at::timestamptz[], @ended_at::timestamptz[]
		) AS o(run, stage, item, generation, try, status, spent, after, skip, error_class, error_message, fingerprint,
			external_job_id, output, artifacts, metrics, worker, started_at, ended_at)
		WHERE t.run = o.run AND t.stage = o.stage AND t.item = o.item
		  AND t.generation = o.generation AND ` + notEnded + `
		  AND (o.status = 'completed' OR o.try = t.tries)
		RETURNING t.run, t.stage, t.item, t.generation, t.scope, CASE WHEN t.status = 'failed' THEN t.spec END`
	var c columns
	byKey := make(map[taskKey]*stage.Outcome, len(outcomes))
	for i := range outcomes {
		o := &outcomes[i]
		if r := b.runs[o.Run]; r == nil || !r.running {
			continue
		}
		if err := c.add(o); err != nil {
			return nil, err
		}
		byKey[taskKey{o.Run, o.Stage, o.Item, o.Generation}] = o
	}
	if len(c.run) == 0 {
		return nil, nil
	}
	rows, err := b.tx.Query(ctx, q, c.args())
	if err != nil {
		return nil, err
	}
	var done []applied
	var k taskKey
	var scope string
	var spec *string
	_, err = pgx.ForEachRow(rows, []any{&k.run, &k.stage, &k.item, &k.generation, &scope, &spec}, func() error {
		a := applied{Outcome: *byKey[k], scope: scope}
		if spec != nil {
			a.spec = json.RawMessage(*spec)
		}
		done = append(done, a)
		return nil
	})
	if err != nil {
		return nil, err
	}
	// The update returns rows in any order; what follows is planned in one.
	slices.SortFunc(done, func(x, y applied) int {
		return cmp.Or(cmp.Compare(x.Run, y.Run), cmp.Compare(x.Stage, y.Stage), cmp.Compare(x.Item, y.Item))
	})
	return done, nil
}

// spent reports whether an outcome uses up one of the task's attempts.
func spent(o *stage.Outcome) int {
	switch o.Status {
	case stage.StatusFailed:
		return 1
	case stage.StatusRetry:
		if o.ErrorClass != fault.ClassInfra {
			return 1
		}
	case stage.StatusCompleted, stage.StatusWaiting, stage.StatusWorking:
	}
	return 0
}

// columns are outcomes turned into the arrays that a statement takes.
type columns struct {
	run, after                                []int64
	generation, try, spent                    []int
	stage, item, status, skip, class, message []string
	fingerprint, external, output, artifacts  []string
	metrics, worker                           []string
	startedAt, endedAt                        []*time.Time
}

func (c *columns) add(o *stage.Outcome) error {
	artifacts, err := text(o.Artifacts, len(o.Artifacts))
	if err != nil {
		return err
	}
	metrics, err := text(o.Metrics, len(o.Metrics))
	if err != nil {
		return err
	}
	c.run, c.stage, c.item = append(c.run, o.Run), append(c.stage, o.Stage), append(c.item, o.Item)
	c.generation, c.try = append(c.generation, o.Generation), append(c.try, o.Try)
	c.status, c.spent = append(c.status, string(o.Status)), append(c.spent, spent(o))
	c.after = append(c.after, o.After.Microseconds())
	c.skip = append(c.skip, clean(o.Skip))
	c.class, c.message = append(c.class, string(o.ErrorClass)), append(c.message, clean(o.ErrorMessage))
	c.fingerprint, c.external = append(c.fingerprint, clean(o.Fingerprint)), append(c.external, clean(o.ExternalJobID))
	c.output = append(c.output, string(cleanJSON(o.Output)))
	c.artifacts, c.metrics = append(c.artifacts, artifacts), append(c.metrics, metrics)
	c.worker = append(c.worker, clean(o.Worker))
	c.startedAt, c.endedAt = append(c.startedAt, instant(o.StartedAt)), append(c.endedAt, instant(o.EndedAt))
	return nil
}

func (c *columns) args() pgx.NamedArgs {
	return pgx.NamedArgs{
		"run": c.run, "stage": c.stage, "item": c.item, "generation": c.generation, "try": c.try, "status": c.status,
		"spent": c.spent, "after": c.after, "skip": c.skip, "error_class": c.class, "error_message": c.message,
		"fingerprint": c.fingerprint, "external_job_id": c.external, "output": c.output, "artifacts": c.artifacts,
		"metrics": c.metrics, "worker": c.worker, "started_at": c.startedAt, "ended_at": c.endedAt,
	}
}

// parents lists the items whose children the applied outcomes may concern:
// those that spawn, and those that were spawned and are counted together.
func (b *batch) parents(done []applied) []parent {
	seen := map[parent]bool{}
	var list []parent
	add := func(p parent) {
		if !seen[p] {
			seen[p] = true
			list = append(list, p)
		}
	}
	for i := range done {
		a := &done[i]
		p := b.runs[a.Run].pipe
		if a.Status != stage.StatusCompleted && a.Status != stage.StatusFailed {
			continue
		}
		if spawnTarget(p, a.Stage) != "" && (a.scope == "" || !p.SpawnsItself(a.Stage)) {
			add(parent{a.Run, a.Stage, a.Item})
		}
		if a.scope != "" && p.Counted(a.Stage) {
			add(parent{a.Run, p.Spawner(a.Stage), a.scope})
		}
	}
	return list
}

// count raises the counters by what was applied, and plans the items that go
// on at once.
func (b *batch) count(done []applied) {
	for i := range done {
		a := &done[i]
		r := b.runs[a.Run]
		if a.Status != stage.StatusWorking {
			b.out.Finished[a.Stage]++
		}
		raise := func(c *counter) {
			c.changed = true
			switch a.Status {
			case stage.StatusCompleted:
				c.Completed++
				if a.Skip != "" {
					c.Skipped++
				}
			case stage.StatusFailed:
				c.Failed++
			case stage.StatusRetry, stage.StatusWaiting, stage.StatusWorking:
			}
		}
		raise(r.counter("", a.Stage))
		// A parent's counters are only read when one of its children has ended.
		ended := a.Status == stage.StatusCompleted || a.Status == stage.StatusFailed
		if ended && a.scope != "" && r.pipe.Counted(a.Stage) {
			raise(r.counter(a.scope, a.Stage))
		}
		if a.Status == stage.StatusCompleted {
			b.out.Completed[a.Stage]++
		}
		if a.Status == stage.StatusFailed {
			r.failure = failure{a.Stage, string(a.ErrorClass), a.ErrorMessage}
			b.out.Failed = append(b.out.Failed, a.Outcome)
		}
		if a.Status == stage.StatusCompleted && a.Skip != "" && r.pipe.Subject == stageItem(r.pipe, a.Stage) {
			r.note = a.Skip
		}
	}
}

func stageItem(p *pipeline.Pipeline, name string) string {
	s, _ := p.Stage(name)
	return s.Item
}

// travels reports whether a completed item goes on by each edges.
func travels(p *pipeline.Pipeline, a *applied) bool {
	return a.Status == stage.StatusCompleted && a.Skip == "" && (a.scope != "" || !p.SpawnsItself(a.Stage))
}

// join plans what follows from single items: the next stage of those that go
// on, and the parents whose children have all gone through.
func (b *batch) join(ctx context.Context, done []applied) error {
	var next []newTask
	own := map[parent]*applied{} // the parents' own outcomes in this batch
	for i := range done {
		a := &done[i]
		own[parent{a.Run, a.Stage, a.Item}] = a
		p := b.runs[a.Run].pipe
		if !travels(p, a) {
			continue
		}
		for _, e := range p.Out(a.Stage) {
			if e.Kind == pipeline.Each {
				next = append(next, newTask{run: a.Run, stage: e.To, item: a.Item, scope: a.scope, spec: a.Output})
			}
		}
	}
	if _, err := b.plan(ctx, next, false); err != nil {
		return err
	}
	var joins []newTask
	var ask []parent
	for _, k := range b.parents(done) {
		self := own[k]
		if self != nil && self.Status != stage.StatusCompleted && self.Status != stage.StatusFailed {
			self = nil
		}
		r := b.runs[k.run]
		chain := chain(r.pipe, k.spawner)
		c := r.counters[scopeKey{k.item, chain[0]}]
		if self != nil && c != nil {
			c.Sealed, c.changed = true, true
		}
		r.closeScope(k.item, chain)
		edge, through, ok := r.pipe.JoinAfter(k.spawner)
		if !ok || c != nil && !pipeline.ChainDone(through, r.scope(k.item, through)) {
			continue // nothing joins them, or some are still on their way
		}
		if self == nil {
			ask = append(ask, k)
		} else if travels(r.pipe, self) {
			joins = append(joins, newTask{run: k.run, stage: edge.To, item: k.item, scope: self.scope, spec: self.Output})
		}
	}
	earlier, err := b.ended(ctx, ask)
	if err != nil {
		return err
	}
	_, err = b.plan(ctx, append(joins, earlier...), false)
	return err
}

// ended returns what follows when the children of parents that have completed
// before this batch are joined.
func (b *batch) ended(ctx context.Context, parents []parent) ([]newTask, error) {
	const q = `
		SELECT t.run, t.stage, t.item, t.scope, t.output FROM tasks t
		JOIN unnest(@runs::bigint[], @stages::text[], @items::text[]) AS p(run, stage, item) USING (run, stage, item)
		WHERE t.status = 'completed' AND t.skip IS NULL`
	if len(parents) == 0 {
		return nil, nil
	}
	var runs []int64
	var stages, items []string
	for _, p := range parents {
		runs, stages, items = append(runs, p.run), append(stages, p.spawner), append(items, p.item)
	}
	rows, err := b.tx.Query(ctx, q, pgx.NamedArgs{"runs": runs, "stages": stages, "items": items})
	if err != nil {
		return nil, err
	}
	tasks, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (t newTask, err error) {
		var spawner string
		var output []byte
		if err := row.Scan(&t.run, &spawner, &t.item, &t.scope, &output); err != nil {
			return t, err
		}
		edge, _, _ := b.runs[t.run].pipe.JoinAfter(spawner)
		t.stage, t.spec = edge.To, output
		return t, nil
	})
	slices.SortFunc(tasks, func(x, y newTask) int {
		return cmp.Or(cmp.Compare(x.run, y.run), cmp.Compare(x.stage, y.stage), cmp.Compare(x.item, y.item))
	})
	return tasks, err
}

// scope returns the counts of one parent's children by stage.
func (r *runState) scope(item string, through []string) map[string]*pipeline.Count {
	counts := make(map[string]*pipeline.Count, len(through))
	for _, name := range through {
		if c := r.counters[scopeKey{item, name}]; c != nil {
			counts[name] = &c.Count
		}
	}
	return counts
}

// chain lists the stages at which the children spawned by a stage are counted
// for each parent, in the order in which they pass them.
func chain(p *pipeline.Pipeline, spawner string) []string {
	var stages []string
	for at := spawnTarget(p, spawner); at != ""; {
		stages = append(stages, at)
		following := ""
		for _, e := range p.Out(at) {
			if e.Kind == pipeline.Each && p.Counted(e.To) {
				following = e.To
			}
		}
		at = following
	}
	return stages
}

// closeScope seals and closes the counters of one parent's children in the
// order in which these pass the stages.
func (r *runState) closeScope(item string, chain []string) {
	sealed := false
	for i, at := range chain {
		c := r.counters[scopeKey{item, at}]
		if c == nil {
			return
		}
		if i > 0 && sealed && !c.Sealed {
			c.Sealed, c.changed = true, true
		}
		if c.Sealed && c.Full() && !c.Closed {
			c.Closed, c.changed = true, true
		}
		sealed = c.Closed
	}
}

// settle closes what can be closed in each run, plans what follows, and ends
// the runs that have nothing left.
func (b *batch) settle(ctx context.Context) error {
	for _, id := range slices.Sorted(maps.Keys(b.runs)) {
		r := b.runs[id]
		if !r.running {
			continue
		}
		for again := true; again; {
			var err error
			if again, err = b.settleRun(ctx, r); err != nil {
				return err
			}
		}
	}
	return nil
}

// settleRun settles a run once. It asks to be called again when it has planned
// tasks: those may have been there already, and have ended.
func (b *batch) settleRun(ctx context.Context, r *runState) (again bool, err error) {
	counts := map[string]*pipeline.Count{}
	before := map[string]pipeline.Count{}
	for k, c := range r.counters {
		if k.scope == "" {
			counts[k.stage], before[k.stage] = &c.Count, c.Count
		}
	}
	s := r.pipe.Settle(counts)
	for name, c := range counts {
		// Totals are raised below, where the task gets its number.
		was := before[name]
		c.Total = was.Total
		if was.Sealed != c.Sealed || was.Closed != c.Closed {
			r.counter("", name).changed = true
		}
		if c.Closed && !was.Closed {
			closing := Closing{RunStage: RunStage{r.run, name}}
			if at := r.counters[scopeKey{"", name}].openedAt; !at.IsZero() && c.Total > 0 {
				closing.Took = max(0, time.Since(at))
			}
			b.out.Closed = append(b.out.Closed, closing)
		}
	}
	if len(s.Plan) > 0 {
		switch err := b.planWhole(ctx, r, s.Plan); {
		case errors.Is(err, ErrNotFound): // somebody has removed the subject
			s.Doomed = &pipeline.Verdict{Stage: s.Plan[0].From, Message: err.Error()}
		case err != nil:
			return false, err
		}
	}
	if s.Note != "" {
		r.note = s.Note
	}
	if s.Doomed != nil {
		r.doomed = true
		r.failure = failure{s.Doomed.Stage, string(fault.ClassPermanent), s.Doomed.Message + r.lastMessage()}
	}
	if s.Ended {
		r.ended = "completed"
		if why := r.pipe.Failed(counts); why != "" || r.doomed {
			r.ended = "failed"
		}
		b.out.Ended = append(b.out.Ended, Ending{r.run, r.ended})
	}
	return len(s.Plan) > 0, nil
}

// planWhole plans tasks that are about the subject itself.
func (b *batch) planWhole(ctx context.Context, r *runState, list []pipeline.Planned) error {
	spec, err := subjectSpec(ctx, b.tx, r.pipe, r.subject)
	if err != nil {
		return err
	}
	var tasks []newTask
	for _, t := range list {
		tasks = append(tasks, newTask{run: r.run, stage: t.Stage, item: t.Item, spec: spec})
	}
	_, err = b.plan(ctx, tasks, false)
	return err
}

// lastMessage appends the latest error of the batch to a verdict, since a
// verdict without a cause helps nobody.
func (r *runState) lastMessage() string {
	if r.failure.message == "" {
		return ""
	}
	return "; the last: " + r.failure.message
}

// write stores tasks, counters, the audit and the runs, after the rows of the
// domain, in one round trip.
func (b *batch) write(ctx context.Context, done []applied) error {
	b.writeTasks(&b.last)
	b.writeCounters(&b.last)
	if err := b.writeAttempts(&b.last, done); err != nil {
		return err
	}
	b.writeRuns(&b.last)
	return b.tx.SendBatch(ctx, &b.last).Close()
}

func (b *batch) writeTasks(q *pgx.Batch) {
	const insert = `
		INSERT INTO tasks (run, stage, item, scope, seq, generation, spec)
		SELECT run, stage, item, scope, seq, generation, coalesce(nullif(spec, '')::jsonb, '{}')
		FROM unnest(@run::bigint[], @stage::text[], @item::text[], @scope::text[], @seq::bigint[], @generation::int[], @spec::text[])
			AS n(run, stage, item, scope, seq, generation, spec)
		ON CONFLICT (run, stage, item) DO NOTHING`
	if len(b.news) == 0 {
		return
	}
	var c struct {
		run, seq                 []int64
		generation               []int
		stage, item, scope, spec []string
	}
	seen := map[RunStage]bool{}
	for _, t := range b.news {
		c.run, c.stage, c.item, c.scope = append(c.run, t.run), append(c.stage, t.stage), append(c.item, t.item), append(c.scope, t.scope)
		c.seq, c.generation, c.spec = append(c.seq, t.seq), append(c.generation, t.generation), append(c.spec, string(cleanJSON(t.spec)))
		if rs := (RunStage{t.run, t.stage}); !seen[rs] {
			seen[rs] = true
			b.out.Planned = append(b.out.Planned, rs)
		}
	}
	want := int64(len(b.news))
	q.Queue(insert, pgx.NamedArgs{
		"run": c.run, "stage": c.stage, "item": c.item, "scope": c.scope, "seq": c.seq, "generation": c.generation, "spec": c.spec,
	}).Exec(func(ct pgconn.CommandTag) error {
		if ct.RowsAffected() != want {
			return errPlannedTwice
		}
		return nil
	})
}

func (b *batch) writeCounters(q *pgx.Batch) {
	const upsert = `
		INSERT INTO run_stages AS s (run, scope, stage, position, generation, total, completed, failed, cancelled, skipped, last_seq, sealed, closed_at)
		SELECT run, scope, stage, position, generation, total, completed, failed, cancelled, skipped, last_seq, sealed, CASE WHEN closed THEN now() END
		FROM unnest(@run::bigint[], @scope::text[], @stage::text[], @position::int[], @generation::int[], @total::bigint[], @completed::bigint[],
			@failed::bigint[], @cancelled::bigint[], @skipped::bigint[], @last_seq::bigint[], @sealed::boolean[], @closed::boolean[])
			AS n(run, scope, stage, position, generation, total, completed, failed, cancelled, skipped, last_seq, sealed, closed)
		ON CONFLICT (run, scope, stage) DO UPDATE SET
			total = excluded.total, completed = excluded.completed, failed = excluded.failed, cancelled = excluded.cancelled,
			skipped = excluded.skipped, last_seq = excluded.last_seq, sealed = excluded.sealed,
			opened_at = CASE WHEN s.total = 0 AND excluded.total > 0 THEN now() ELSE s.opened_at END,
			closed_at = coalesce(s.closed_at, excluded.closed_at), updated_at = now()`
	var c struct {
		run, total, completed, failed, cancelled, skipped, lastSeq []int64
		position, generation                                       []int
		scope, stage                                               []string
		sealed, closed                                             []bool
	}
	for _, id := range slices.Sorted(maps.Keys(b.runs)) {
		r := b.runs[id]
		for _, k := range slices.SortedFunc(maps.Keys(r.counters), func(x, y scopeKey) int {
			return cmp.Or(cmp.Compare(x.scope, y.scope), cmp.Compare(x.stage, y.stage))
		}) {
			n := r.counters[k]
			if !n.changed {
				continue
			}
			c.run, c.scope, c.stage, c.position = append(c.run, id), append(c.scope, k.scope), append(c.stage, k.stage), append(c.position, n.position)
			c.generation, c.total, c.completed = append(c.generation, n.generation), append(c.total, n.Total), append(c.completed, n.Completed)
			c.failed, c.cancelled, c.skipped = append(c.failed, n.Failed), append(c.cancelled, n.Cancelled), append(c.skipped, n.Skipped)
			c.lastSeq, c.sealed, c.closed = append(c.lastSeq, n.lastSeq), append(c.sealed, n.Sealed), append(c.closed, n.Closed)
		}
	}
	if len(c.run) == 0 {
		return
	}
	q.Queue(upsert, pgx.NamedArgs{
		"run": c.run, "scope": c.scope, "stage": c.stage, "position": c.position, "generation": c.generation, "total": c.total,
		"completed": c.completed, "failed": c.failed, "cancelled": c.cancelled, "skipped": c.skipped, "last_seq": c.lastSeq,
		"sealed": c.sealed, "closed": c.closed,
	})
}

func (b *batch) writeAttempts(q *pgx.Batch, done []applied) error {
	const insert = `
		INSERT INTO attempts (run, stage, item, generation, try, status, error_class, error_message, fingerprint, worker, started_at, ended_at)
		SELECT run, stage, item, generation, try, status, nullif(error_class, ''), nullif(error_message, ''), nullif(fingerprint, ''), nullif(worker, ''), started_at, ended_at
		FROM unnest(@run::bigint[], @stage::text[], @item::text[], @generation::bigint[], @try::bigint[], @status::text[], @error_class::text[],
			@error_message::text[], @fingerprint::text[], @worker::text[], @started_at::timestamptz[], @ended_at::timestamptz[])
			AS n(run, stage, item, generation, try, status, error_class, error_message, fingerprint, worker, started_at, ended_at)
		ON CONFLICT DO NOTHING`
	var c columns
	for i := range done {
		if done[i].Status == stage.StatusWorking {
			continue
		}
		if err := c.add(&done[i].Outcome); err != nil {
			return err
		}
	}
	if len(c.run) > 0 {
		q.Queue(insert, c.args())
	}
	return nil
}

func (b *batch) writeRuns(q *pgx.Batch) {
	const update = `
		UPDATE runs r SET
			status        = coalesce(nullif(n.status, ''), r.status),
			doomed        = n.doomed,
			note          = n.note,
			error_stage   = CASE WHEN n.error_stage <> '' THEN n.error_stage ELSE r.error_stage END,
			error_class   = CASE WHEN n.error_stage <> '' THEN n.error_class ELSE r.error_class END,
			error_message = CASE WHEN n.error_stage <> '' THEN n.error_message ELSE r.error_message END,
			error_at      = CASE WHEN n.error_stage <> '' THEN now() ELSE r.error_at END,
			updated_at    = now(),
			ended_at      = CASE WHEN n.status <> '' THEN now() END
		FROM unnest(@run::bigint[], @status::text[], @doomed::boolean[], @note::text[], @error_stage::text[], @error_class::text[], @error_message::text[])
			AS n(run, status, doomed, note, error_stage, error_class, error_message)
		WHERE r.run = n.run`
	var c struct {
		run                                          []int64
		doomed                                       []bool
		status, note, errStage, errClass, errMessage []string
	}
	for _, id := range slices.Sorted(maps.Keys(b.runs)) {
		r := b.runs[id]
		if !r.running {
			continue
		}
		c.run, c.status, c.doomed, c.note = append(c.run, id), append(c.status, r.ended), append(c.doomed, r.doomed), append(c.note, r.note)
		c.errStage, c.errClass, c.errMessage = append(c.errStage, r.failure.stage), append(c.errClass, r.failure.class), append(c.errMessage, clip(clean(r.failure.message), 500))
	}
	if len(c.run) == 0 {
		return
	}
	q.Queue(update, pgx.NamedArgs{
		"run": c.run, "status": c.status, "doomed": c.doomed, "note": c.note,
		"error_stage": c.errStage, "error_class": c.errClass, "error_message": c.errMessage,
	})
	for _, e := range b.out.Ended {
		id := e.Run
		if b.runs[id].pipe.Name == civicPipeline {
			q.Queue(freezeSummary, pgx.NamedArgs{"run": id, "subdomain": b.runs[id].subject})
		}
	}
}

// clean makes a string storable: Postgres takes valid UTF-8 without NUL.
func clean(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

// cleanJSON replaces NUL characters inside JSON strings, which jsonb refuses.
func cleanJSON(raw json.RawMessage) json.RawMessage {
	if !bytes.Contains(raw, []byte(`\u0000`)) {
		return raw
	}
	var v any
	if json.Unmarshal(raw, &v) != nil {
		return raw
	}
	out, err := json.Marshal(cleanValue(v))
	if err != nil {
		return raw
	}
	return out
}

func cleanValue(v any) any {
	switch v := v.(type) {
	case string:
		return clean(v)
	case []any:
		for i := range v {
			v[i] = cleanValue(v[i])
		}
		return v
	case map[string]any:
		m := make(map[string]any, len(v))
		for k, x := range v {
			m[clean(k)] = cleanValue(x)
		}
		return m
	}
	return v
}

// clip shortens a string to at most n bytes without cutting a character.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n-len("…")], "") + "…"
}

// text is v as JSON, or "" when it has no elements.
func text(v any, n int) (string, error) {
	if n == 0 {
		return "", nil
	}
	raw, err := json.Marshal(v)
	return string(cleanJSON(raw)), err
}

func instant(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
