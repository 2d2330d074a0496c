package ledger_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/reeve-pipeline/reeve/pkg/civic"
	"github.com/reeve-pipeline/reeve/pkg/fault"
	"github.com/reeve-pipeline/reeve/pkg/ledger"
	"github.com/reeve-pipeline/reeve/pkg/stage"
)

// volumes sets up the stages of the volumes pipeline: each volume has so many
// page ranges, and a task fails when fails says so.
func (w *world) volumes(ranges map[string]int, fails func(d ledger.Dispatchable) bool) []stage.Item {
	pass := func(d ledger.Dispatchable) []stage.Outcome {
		if fails(d) {
			return []stage.Outcome{outcome(d, stage.StatusFailed, nil)}
		}
		return []stage.Outcome{outcome(d, stage.StatusCompleted, map[string]string{"via": d.Stage})}
	}
	for _, s := range []string{"line_detection", "line_extraction", "ocr", "reduce"} {
		w.work[s] = pass
	}
	w.work["pagination"] = func(d ledger.Dispatchable) []stage.Outcome {
		o := outcome(d, stage.StatusCompleted, map[string]string{"volume": d.Item})
		for i := range ranges[d.Item] {
			o.Items = append(o.Items, stage.SpawnedItem{Item: fmt.Sprintf("%s/%d", d.Item, i)})
		}
		o.Spawned = ranges[d.Item]
		return []stage.Outcome{o}
	}
	var items []stage.Item
	for name := range ranges {
		items = append(items, stage.Item{Item: name})
	}
	return items
}

func (w *world) ended(run int64, want string) {
	w.t.Helper()
	got, err := w.Run(w.t.Context(), run)
	if err != nil {
		w.t.Fatal(err)
	}
	if got.Status != want {
		w.t.Errorf("run %d is %s, want %s: %s; %+v", run, got.Status, want, got.ErrorMessage, got.Stages)
	}
}

// A repair after the compilation, which is not planned again, ends the run.
func TestRepair_AllIsDone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.addSite("town")
	w.town(3)
	run := w.start(ledger.NewRun{Pipeline: "civic", Subject: "town"})
	for one[int64](w, "SELECT count(*) FROM tasks WHERE stage = 'deploy'") == 0 {
		w.step()
	}
	if _, err := w.conn.Exec(t.Context(), "UPDATE run_stages SET completed = completed - 1, closed_at = NULL, sealed = false WHERE stage = 'reduce' AND scope = ''"); err != nil {
		t.Fatal(err)
	}
	for _, d := range w.handOut() {
		if _, err := w.Record(t.Context(), w.work[d.Stage](d)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Repair(t.Context(), run.Run); err != nil {
		t.Fatal(err)
	}
	w.balanced()
	w.ended(run.Run, "completed")
	if drifts, err := w.Drifts(t.Context()); err != nil || len(drifts) != 0 {
		t.Errorf("after the repair: %+v, %v", drifts, err)
	}
}

// What should have followed from single items, and did not, is planned by a repair.
func TestRepair_WhatShouldHaveFollowed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	items := w.volumes(map[string]int{"v1": 2, "v2": 0}, func(ledger.Dispatchable) bool { return false })
	run := w.start(ledger.NewRun{Pipeline: "volumes", Subject: "job", Items: items})
	w.step() // pagination
	w.step() // line_detection, and the reduce of v2
	w.handOut()
	for _, q := range []string{"DELETE FROM tasks WHERE item = 'v1/0' AND stage = 'line_extraction'", "DELETE FROM tasks WHERE item = 'v2' AND stage = 'reduce'"} {
		if _, err := w.conn.Exec(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Repair(t.Context(), run.Run); err != nil {
		t.Fatal(err)
	}
	w.balanced()
	w.record(w.work["line_extraction"](ledger.Dispatchable{Task: stage.Task{Run: run.Run, Stage: "line_extraction", Item: "v1/1", Generation: 1, Try: 1}})...)
	w.finish()
	w.ended(run.Run, "completed")
	if n := one[int64](w, "SELECT count(*) FROM tasks WHERE stage = 'reduce' AND status = 'completed'"); n != 2 {
		t.Errorf("%d of 2 volumes are reduced", n)
	}
}

// A run again from the middle of the way of the page ranges leaves out no
// volume: not those without any, nor those whose ranges do not get that far.
func TestRerunRun_FromTheMiddle(t *testing.T) {
	t.Parallel()
	for _, from := range []string{"line_detection", "line_extraction", "ocr"} {
		t.Run(from, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			items := w.volumes(map[string]int{"v1": 3, "v2": 0, "v3": 1, "v4": 2}, func(d ledger.Dispatchable) bool {
				return d.Parent == "v3" && d.Stage == "line_detection" || d.Item == "v4/1" && d.Stage == "line_extraction"
			})
			run := w.start(ledger.NewRun{Pipeline: "volumes", Subject: "job", Items: items})
			w.finish()
			if err := w.RerunRun(t.Context(), run.Run, from); err != nil {
				t.Fatal(err)
			}
			w.balanced()
			w.finish()
			w.ended(run.Run, "completed")
			if n := one[int64](w, "SELECT count(*) FROM tasks WHERE stage = 'reduce' AND status = 'completed'"); n != 4 {
				t.Errorf("%d of 4 volumes are reduced", n)
			}
			if n := one[int64](w, "SELECT count(*) FROM run_stages WHERE closed_at IS NULL"); n != 0 {
				t.Errorf("%d scopes are open", n)
			}
		})
	}
}

// Page ranges that failed are tried again one after the other: the first to
// pass the next stage does not close it before the second.
func TestRetryRun_OneAfterTheOther(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	broken := true
	items := w.volumes(map[string]int{"v1": 4}, func(d ledger.Dispatchable) bool {
		return broken && d.Stage == "line_detection" && (d.Item == "v1/2" || d.Item == "v1/3")
	})
	run := w.start(ledger.NewRun{Pipeline: "volumes", Subject: "job", Items: items})
	w.finish()
	broken = false
	if err := w.RetryRun(t.Context(), run.Run); err != nil {
		t.Fatal(err)
	}
	left := w.handOut()
	if len(left) != 2 {
		t.Fatalf("%d tasks are handed out again, want 2", len(left))
	}
	for _, d := range left {
		for tasks := []ledger.Dispatchable{d}; len(tasks) > 0; tasks = w.handOut() {
			for _, d := range tasks {
				w.record(w.work[d.Stage](d)...)
			}
		}
	}
	w.ended(run.Run, "completed")
	if n := one[int64](w, "SELECT completed FROM run_stages WHERE stage = 'ocr' AND scope = 'v1'"); n != 4 {
		t.Errorf("%d of 4 page ranges are through", n)
	}
}

// What a stage reports against the rules fails its own task, and keeps nobody
// else's outcome from being counted.
func TestRecord_AgainstTheRules(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		items []stage.SpawnedItem
		stage string //
		why   string
	}{
		"a stage that spawns nothing has children": {[]stage.SpawnedItem{{Item: "x"}}, "reduce", "spawns nothing"},
		"a child without a name":                   {[]stage.SpawnedItem{{Item: ""}}, "pagination", "no name"},
		"a child of another parent":                {[]stage.SpawnedItem{{Item: "v1/0"}}, "pagination", "v1/0 is in the run already"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.volumes(map[string]int{"v1": 1}, func(ledger.Dispatchable) bool { return false })
			run := w.start(ledger.NewRun{Pipeline: "volumes", Subject: "job", Items: []stage.Item{{Item: "v1"}, {Item: "v2"}, {Item: "v3"}}})
			wrong := func(d ledger.Dispatchable) bool { return d.Item == "v2" && d.Stage == tt.stage }
			for tasks := w.handOut(); len(tasks) > 0; tasks = w.handOut() {
				var outcomes []stage.Outcome
				for _, d := range tasks {
					o := w.work[d.Stage](d)
					if wrong(d) {
						o[0].Items, o[0].Spawned = tt.items, len(tt.items)
					}
					outcomes = append(outcomes, o...)
				}
				w.record(outcomes...)
			}
			w.ended(run.Run, "completed")
			failed, err := w.Tasks(t.Context(), ledger.TaskFilter{Run: run.Run, Status: "failed"})
			if err != nil || len(failed) != 1 || failed[0].Item != "v2" || !strings.Contains(failed[0].ErrorMessage, tt.why) {
				t.Errorf("failed: %+v, %v; want v2, because %q", failed, err, tt.why)
			}
		})
	}
}

// Outcomes that Postgres can never take are told from a Postgres that is away:
// only then may they be set aside.
func TestUnstorable(t *testing.T) {
	t.Parallel()
	for name, output := range map[string]string{
		"half a character":  `{"x":"\ud800"}`,
		"too many":          `{"ordinal":99999999999}`,
		"too long to index": `{"sha256":"` + noise(9_000) + `"}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.addSite("town")
			w.town(1)
			w.start(ledger.NewRun{Pipeline: "civic", Subject: "town"})
			w.step()
			o := outcome(w.handOut()[0], stage.StatusCompleted, nil)
			o.Output = json.RawMessage(output)
			if _, err := w.Record(t.Context(), []stage.Outcome{o}); !ledger.Unstorable(err) {
				t.Errorf("it is unstorable, yet: %v", err)
			}
		})
	}
	w := newWorld(t)
	forged := stage.Outcome{Run: 1, Stage: "reduce", Item: "x", Generation: 1 << 40, Try: 1 << 40, Status: stage.StatusFailed}
	if r, err := w.Record(t.Context(), []stage.Outcome{forged}); err != nil || r.Applied != 0 {
		t.Errorf("an outcome of no run: %+v, %v", r, err)
	}
}

// noise is text that does not compress.
func noise(n int) string {
	rng := rand.New(rand.NewPCG(1, 2))
	var b strings.Builder
	for b.Len() < n {
		b.WriteString(strconv.FormatUint(rng.Uint64(), 36))
	}
	return b.String()
}

// A failure that comes late, of a try that was given up, does not take the
// place of what the present try says.
func TestRecord_LateFailure(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.addSite("town")
	w.town(1)
	w.start(ledger.NewRun{Pipeline: "civic", Subject: "town"})
	retry := func(d ledger.Dispatchable) stage.Outcome {
		o := outcome(d, stage.StatusRetry, nil)
		o.ErrorClass = fault.ClassTransient
		return o
	}
	first := w.handOut()[0]
	w.record(retry(first))
	second := w.handOut()[0]
	w.record(outcome(first, stage.StatusFailed, nil), retry(second))
	if n := one[int](w, "SELECT tries FROM tasks"); n != 3 {
		t.Errorf("the task is at try %d, want 3", n)
	}
}

// A run whose site has been removed is refused, and one that goes on ends: it
// does not keep the others from being counted.
func TestRun_SiteRemoved(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.addSite("gone")
	w.addSite("town")
	w.town(2, 1)
	old := w.start(ledger.NewRun{Pipeline: "civic", Subject: "gone"})
	w.finish()
	if err := w.RemoveSite(t.Context(), "gone"); err != nil {
		t.Fatal(err)
	}
	if err := w.RetryRun(t.Context(), old.Run); !errors.Is(err, ledger.ErrNotFound) {
		t.Errorf("a retry without a site: %v", err)
	}
	run := w.start(ledger.NewRun{Pipeline: "civic", Subject: "town"})
	for one[int64](w, "SELECT count(*) FROM tasks WHERE stage = 'reduce' AND run = $1", run.Run) == 0 {
		w.step()
	}
	if _, err := w.conn.Exec(t.Context(), "DELETE FROM site_registry"); err != nil {
		t.Fatal(err)
	}
	w.finish()
	w.ended(run.Run, "failed")
}

// Two that start a run of one subject at the same moment: the later is told
// that there is one, whichever way it comes.
func TestRun_StartedMeanwhile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.addSite("town")
	w.town(1, 0)
	run := w.start(ledger.NewRun{Pipeline: "civic", Subject: "town"})
	w.finish()
	tx, err := w.conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "INSERT INTO runs (pipeline, version, subject) VALUES ('civic', 1, 'town')"); err != nil {
		t.Fatal(err)
	}
	told := make(chan error, 1)
	go func() { told <- w.RetryRun(t.Context(), run.Run) }()
	for n := 0; n == 0; {
		if err := tx.QueryRow(t.Context(), "SELECT count(*) FROM pg_locks WHERE NOT granted").Scan(&n); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-told; !errors.Is(err, ledger.ErrConflict) {
		t.Errorf("the retry meanwhile: %v", err)
	}
}

func TestStartRun_Nameless(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, n := range []ledger.NewRun{
		{Pipeline: "volumes", Subject: ""},
		{Pipeline: "volumes", Subject: "job", Items: []stage.Item{{Item: ""}}},
		{Pipeline: "volumes", Subject: "job", Items: []stage.Item{{Item: strings.Repeat("x", 5000)}}},
	} {
		if _, err := w.StartRun(t.Context(), n); err == nil {
			t.Errorf("a run with a task that no message can name is started: %.80v", n)
		}
	}
}

// What a run has seen is summed up when it ends, in whatever way.
func TestCancelRun_KeepsItsSums(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.addSite("town")
	w.town(2)
	run := w.start(ledger.NewRun{Pipeline: "civic", Subject: "town"})
	for one[int64](w, "SELECT count(*) FROM tasks WHERE stage = 'compilation'") == 0 {
		w.step()
	}
	if err := w.CancelRun(t.Context(), run.Run); err != nil {
		t.Fatal(err)
	}
	before, err := w.DocumentSummary(t.Context(), run.Run)
	if err != nil || before.Done != 2 || before.Pages[civic.SourceNative] != 4 {
		t.Fatalf("sums of the cancelled run: %+v, %v", before, err)
	}
	if _, err := w.conn.Exec(t.Context(), "UPDATE documents SET pages_native = 40"); err != nil {
		t.Fatal(err)
	}
	after, err := w.DocumentSummary(t.Context(), run.Run)
	if diff := cmp.Diff(before, after); diff != "" || err != nil {
		t.Errorf("a later run changes them, %v (-before +after):\n%s", err, diff)
	}
}

// Retries are marked as handed out while their outcomes are counted: neither
// waits for the other.
func TestMarkRedispatched_WhileCounting(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var items []stage.Item
	for i := range 600 {
		items = append(items, stage.Item{Item: fmt.Sprintf("v%d", i)})
	}
	w.start(ledger.NewRun{Pipeline: "volumes", Subject: "job", Items: items})
	tasks := w.handOut()
	for range 10 {
		var again []stage.Outcome
		for _, d := range tasks {
			o := outcome(d, stage.StatusRetry, nil)
			o.ErrorClass = fault.ClassInfra
			again = append(again, o)
		}
		w.record(again...)
		var err error
		if tasks, err = w.Due(t.Context(), 1000); err != nil || len(tasks) != 600 {
			t.Fatalf("%d tasks are due, %v", len(tasks), err)
		}
		var signs []stage.Outcome
		for _, d := range tasks {
			signs = append(signs, outcome(d, stage.StatusWorking, nil))
		}
		marked := make(chan error, 1)
		go func() { marked <- w.MarkRedispatched(t.Context(), tasks) }()
		if _, err := w.Record(t.Context(), signs); err != nil {
			t.Fatal(err)
		}
		if err := <-marked; err != nil {
			t.Fatal(err)
		}
	}
	if n := one[int64](w, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"); n > 0 {
		t.Errorf("%d deadlocks", n)
	}
}

// The end of the whole stream is not held against its tasks, and those of a
// paused stage are let be.
func TestSilents(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(ledger.NewRun{Pipeline: "volumes", Subject: "job"})
	w.handOut()
	look := func(wiped time.Time) []ledger.Silent {
		t.Helper()
		list, err := w.Silents(t.Context(), ledger.Silent{}, wiped, 10)
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	if list := look(time.Time{}); len(list) != 0 {
		t.Errorf("silent at once: %+v", list)
	}
	recovered := func(wiped time.Time) int {
		t.Helper()
		list := look(wiped)
		if len(list) != 1 {
			t.Fatalf("silent: %+v", list)
		}
		if err := w.MarkRecovered(t.Context(), list); err != nil {
			t.Fatal(err)
		}
		return one[int](w, "SELECT recoveries FROM tasks")
	}
	if n := recovered(time.Now().Add(time.Minute)); n != 0 {
		t.Errorf("the end of the stream counts as %d losses", n)
	}
	if _, err := w.conn.Exec(t.Context(), "UPDATE tasks SET updated_at = now() - interval '1 hour'"); err != nil {
		t.Fatal(err)
	}
	if err := w.PauseStage(t.Context(), "pagination", true); err != nil {
		t.Fatal(err)
	}
	if list := look(time.Time{}); len(list) != 0 {
		t.Errorf("tasks of a paused stage are handed out again: %+v", list)
	}
	if err := w.PauseStage(t.Context(), "pagination", false); err != nil {
		t.Fatal(err)
	}
	if n := recovered(time.Time{}); n != 1 {
		t.Errorf("a lost message counts as %d losses", n)
	}
}

// What an external service has in hand is found when its deadline has passed.
func TestExpired(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(ledger.NewRun{Pipeline: "leads", Subject: "batch", Items: []stage.Item{{Item: "a"}, {Item: "b"}}})
	for _, d := range w.handOut() {
		o := outcome(d, stage.StatusWaiting, nil)
		if o.ExternalJobID = "job/" + d.Item; d.Item == "b" {
			o.After = time.Hour
		}
		w.record(o)
	}
	list, err := w.Expired(t.Context(), 10)
	if err != nil || len(list) != 1 || list[0].Item != "a" || list[0].Try != 1 {
		t.Errorf("past their deadline: %+v, %v", list, err)
	}
}

// A document that cannot be kept as it was listed fails, and can be failed.
func TestRecord_FailureThatDoesNotFit(t *testing.T) {
	t.Parallel()
	for name, spec := range map[string]string{"of another form": `{"ordinal":"first"}`, "too large": `{"ordinal":99999999999}`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.addSite("town")
			w.town(1)
			run := w.start(ledger.NewRun{Pipeline: "civic", Subject: "town"})
			part := outcome(w.handOut()[0], stage.StatusCompleted, nil)
			part.Items, part.Spawned = []stage.SpawnedItem{{Item: "doc", Spec: json.RawMessage(spec)}}, 1
			w.record(part)
			w.record(outcome(w.handOut()[0], stage.StatusFailed, nil))
			w.finish()
			w.ended(run.Run, "failed")
		})
	}
}

// To count a task takes reading a few rows, however many others there are, and
// also on a database without statistics, which until then has seen small runs.
func TestRecord_ReadsNoMoreThanItMust(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const documents = 600
	read := w.reads(func() {
		for i, n := range []int{3, 3, 3, 3, 3, 3, documents} {
			name := fmt.Sprintf("town%d", i)
			w.addSite(name)
			w.town(n)
			run, err := w.StartRun(t.Context(), ledger.NewRun{Pipeline: "civic", Subject: name})
			if err != nil {
				t.Fatal(err)
			}
			for tasks := w.handOut(); len(tasks) > 0; tasks = w.handOut() {
				for batch := range slices.Chunk(tasks, 50) {
					var outcomes []stage.Outcome
					for _, d := range batch {
						outcomes = append(outcomes, w.work[d.Stage](d)...)
					}
					if _, err := w.Record(t.Context(), outcomes); err != nil {
						t.Fatal(err)
					}
				}
			}
			for range 10 {
				if _, err := w.DocumentSummary(t.Context(), run.Run); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
	if read /= 3 * documents; read == 0 || read > 60 {
		t.Errorf("%d rows are read for each task", read)
	}
}

// To join one parent's children takes reading these, not all parents'.
func TestInputs_ReadsNoMoreThanItMust(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const volumes = 300
	ranges := map[string]int{}
	for i := range volumes {
		ranges[fmt.Sprintf("v%d", i)] = 2
	}
	items := w.volumes(ranges, func(ledger.Dispatchable) bool { return false })
	run := w.start(ledger.NewRun{Pipeline: "volumes", Subject: "job", Items: items})
	w.finish()
	read := w.reads(func() {
		for name := range ranges {
			page, _, err := w.Inputs(t.Context(), run.Run, "reduce", name, "", 100)
			if err != nil || len(page) != 2 {
				t.Fatalf("inputs of %s: %+v, %v", name, page, err)
			}
		}
	})
	if read /= volumes; read == 0 || read > 20 {
		t.Errorf("%d rows are read to join 2 page ranges", read)
	}
}

// reads counts the rows of tasks and documents that do reads, with a ledger of
// its own: sessions hand in what they have counted when they end.
func (w *world) reads(do func()) int64 {
	w.t.Helper()
	count := func() int64 {
		w.Close()
		_ = one[string](w, "SELECT pg_stat_force_next_flush()::text")
		for one[int64](w, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()") > 0 {
		}
		return one[int64](w, "SELECT sum(seq_tup_read + idx_tup_fetch)::bigint FROM pg_stat_user_tables WHERE relname IN ('tasks', 'documents')")
	}
	before := count()
	var err error
	if w.Ledger, err = ledger.Open(w.t.Context(), w.conn.Config().ConnString()); err != nil {
		w.t.Fatal(err)
	}
	do()
	return count() - before
}
