package ledger_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/reeve-pipeline/reeve/pkg/civic"
	"github.com/reeve-pipeline/reeve/pkg/fault"
	"github.com/reeve-pipeline/reeve/pkg/ledger"
	"github.com/reeve-pipeline/reeve/pkg/pgtest"
	"github.com/reeve-pipeline/reeve/pkg/stage"
)

// world is a ledger with stand-ins for the bus and the workers: tasks are
// handed out as the dispatcher would, and each stage's work is a function.
type world struct {
	*ledger.Ledger
	t    testing.TB
	conn *pgx.Conn
	work map[string]func(ledger.Dispatchable) []stage.Outcome
}

func newWorld(t testing.TB) *world {
	t.Helper()
	dsn := pgtest.New(t)
	l, err := ledger.Open(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	return &world{Ledger: l, t: t, conn: conn, work: map[string]func(ledger.Dispatchable) []stage.Outcome{}}
}

// outcome is a task's outcome in a status, with the output given.
func outcome(d ledger.Dispatchable, status stage.Status, output any) stage.Outcome {
	raw, err := json.Marshal(output)
	if err != nil {
		panic(err)
	}
	o := stage.Outcome{Run: d.Run, Stage: d.Stage, Item: d.Item, Generation: d.Generation, Try: d.Try, Status: status, Output: raw, Worker: "test/1"}
	if status == stage.StatusFailed || status == stage.StatusRetry {
		o.ErrorClass, o.ErrorMessage, o.Fingerprint = fault.ClassPermanent, d.Item+" is broken", "broken"
	}
	return o
}

// town sets up the stages of the civic pipeline as they behave on n documents
// of which those listed fail at pagination.
func (w *world) town(n int, failing ...int) {
	doc := func(i int) civic.Document {
		return civic.Document{ID: fmt.Sprintf("doc-%05d", i), Kind: civic.Minutes, Meeting: "Council", Date: "2024-01-15", Ordinal: 1, Source: fmt.Sprintf("%d.pdf", i)}
	}
	w.work["fetch"] = func(d ledger.Dispatchable) []stage.Outcome {
		if d.Parent != "" {
			var c civic.Document
			_ = json.Unmarshal(d.Spec, &c)
			c.SHA256, c.Size, c.Key = fmt.Sprintf("%064x", []byte(c.ID)), 10, "k/"+c.ID
			return []stage.Outcome{outcome(d, stage.StatusCompleted, c)}
		}
		var parts []stage.Outcome
		const chunk = 400
		for at := 0; at < n; at += chunk {
			part := outcome(d, stage.StatusWorking, nil)
			part.Output = nil
			for i := at; i < min(at+chunk, n); i++ {
				raw, _ := json.Marshal(doc(i))
				part.Items = append(part.Items, stage.SpawnedItem{Item: doc(i).ID, Spec: raw})
			}
			parts = append(parts, part)
		}
		last := outcome(d, stage.StatusCompleted, struct{}{})
		last.Spawned = n
		return append(parts, last)
	}
	fails := map[string]bool{}
	for _, i := range failing {
		fails[doc(i).ID] = true
	}
	w.work["pagination"] = func(d ledger.Dispatchable) []stage.Outcome {
		var c civic.Document
		_ = json.Unmarshal(d.Spec, &c)
		if fails[d.Item] {
			return []stage.Outcome{outcome(d, stage.StatusFailed, nil)}
		}
		c.Pages = &civic.PageCounts{Total: 2, Native: 2}
		return []stage.Outcome{outcome(d, stage.StatusCompleted, c)}
	}
	w.work["reduce"] = func(d ledger.Dispatchable) []stage.Outcome {
		var c civic.Document
		_ = json.Unmarshal(d.Spec, &c)
		c.Text = &civic.Object{Key: "t/" + c.ID, Size: 1, SHA256: c.SHA256}
		return []stage.Outcome{outcome(d, stage.StatusCompleted, c)}
	}
	w.work["compilation"] = func(d ledger.Dispatchable) []stage.Outcome {
		return []stage.Outcome{outcome(d, stage.StatusCompleted, civic.Compiled{Version: "v1", Minutes: 2 * n})}
	}
	w.work["deploy"] = func(d ledger.Dispatchable) []stage.Outcome {
		return []stage.Outcome{outcome(d, stage.StatusCompleted, civic.Deployed{Version: "v1"})}
	}
}

// handOut takes all tasks that can be handed out and marks them so.
func (w *world) handOut() []ledger.Dispatchable {
	w.t.Helper()
	backlogs, err := w.Backlogs(w.t.Context(), nil)
	if err != nil {
		w.t.Fatal(err)
	}
	var all []ledger.Dispatchable
	for i := range backlogs {
		tasks, err := w.Undispatched(w.t.Context(), backlogs[i], 100_000)
		if err != nil {
			w.t.Fatal(err)
		}
		all = append(all, tasks...)
		backlogs[i].Dispatched = backlogs[i].LastSeq
	}
	if err := w.MarkDispatched(w.t.Context(), backlogs); err != nil {
		w.t.Fatal(err)
	}
	due, err := w.Due(w.t.Context(), 100_000)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := w.MarkRedispatched(w.t.Context(), due); err != nil {
		w.t.Fatal(err)
	}
	return append(all, due...)
}

// step hands out what can be, works it off, and records all outcomes together.
// It returns how many tasks there were.
func (w *world) step() int {
	w.t.Helper()
	tasks := w.handOut()
	var outcomes []stage.Outcome
	for _, d := range tasks {
		outcomes = append(outcomes, w.work[d.Stage](d)...)
	}
	for len(outcomes) > 0 {
		n := min(len(outcomes), 2000)
		w.record(outcomes[:n]...)
		outcomes = outcomes[n:]
	}
	return len(tasks)
}

func (w *world) record(outcomes ...stage.Outcome) ledger.Recorded {
	w.t.Helper()
	r, err := w.Record(w.t.Context(), outcomes)
	if err != nil {
		w.t.Fatal(err)
	}
	w.balanced()
	return r
}

// finish works until nothing is left to hand out.
func (w *world) finish() {
	w.t.Helper()
	for range 100 {
		if w.step() == 0 {
			return
		}
	}
	w.t.Fatal("the run does not come to an end")
}

func (w *world) start(n ledger.NewRun) ledger.Run {
	w.t.Helper()
	r, err := w.StartRun(w.t.Context(), n)
	if err != nil {
		w.t.Fatal(err)
	}
	w.balanced()
	return r
}

func (w *world) addSite(subdomain string) {
	w.t.Helper()
	if _, err := w.AddSite(w.t.Context(), civic.Site{Subdomain: subdomain, Name: "Town", State: "CA", Source: "/docs"}); err != nil {
		w.t.Fatal(err)
	}
}

// balanced checks that every counter, of runs and of parents, equals the task
// rows that it counts.
func (w *world) balanced() {
	w.t.Helper()
	const q = `
		SELECT format('run %s %s/%s: total %s completed %s failed %s cancelled %s skipped %s, tasks %s %s %s %s %s',
			s.run, s.stage, s.scope, s.total, s.completed, s.failed, s.cancelled, s.skipped,
			n.total, n.completed, n.failed, n.cancelled, n.skipped)
		FROM run_stages s CROSS JOIN LATERAL (
			SELECT count(*) AS total, count(*) FILTER (WHERE status = 'completed') AS completed, count(*) FILTER (WHERE status = 'failed') AS failed,
				count(*) FILTER (WHERE status = 'cancelled') AS cancelled, count(*) FILTER (WHERE status = 'completed' AND skip IS NOT NULL) AS skipped
			FROM tasks t WHERE t.run = s.run AND t.stage = s.stage AND (s.scope = '' OR t.scope = s.scope)) n
		WHERE (s.total, s.completed, s.failed, s.skipped) <> (n.total, n.completed, n.failed, n.skipped)
		   OR s.cancelled <> n.cancelled AND s.scope = ''`
	rows, err := w.conn.Query(w.t.Context(), q)
	if err != nil {
		w.t.Fatal(err)
	}
	lies, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		w.t.Fatal(err)
	}
	for _, lie := range lies {
		w.t.Errorf("counter and tasks differ: %s", lie)
	}
}

// one scans a single value.
func one[T any](w *world, sql string, args ...any) T {
	w.t.Helper()
	rows, err := w.conn.Query(w.t.Context(), sql, args...)
	if err != nil {
		w.t.Fatal(err)
	}
	v, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[T])
	if err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
	return v
}
