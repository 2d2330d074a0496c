package ledger_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/reeve-pipeline/reeve/pkg/civic"
	"github.com/reeve-pipeline/reeve/pkg/fault"
	"github.com/reeve-pipeline/reeve/pkg/ledger"
	"github.com/reeve-pipeline/reeve/pkg/stage"
)

// Totals of 0, 1, 2 and many are the same code, and so are all, some and none failing.
func TestCivicRun(t *testing.T) {
	t.Parallel()
	first := func(n int) (list []int) {
		for i := range n {
			list = append(list, i)
		}
		return list
	}
	for _, tt := range []struct {
		name              string
		documents, fails  int
		status, note, why string
	}{
		{"no document", 0, 0, "completed", "no_documents", ""},
		{"one", 1, 0, "completed", "", ""},
		{"two", 2, 0, "completed", "", ""},
		{"many", 1500, 0, "completed", "", ""},
		{"one of one fails", 1, 1, "failed", "no_documents", "0 of 1 documents came through"},
		{"12 of 12 fail", 12, 12, "failed", "", "0 of 12 documents came through"},
		{"6 of 12 fail", 12, 6, "completed", "", "is broken"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.addSite("town")
			w.town(tt.documents, first(tt.fails)...)
			run := w.start(ledger.NewRun{Pipeline: "civic", Subject: "town"})
			w.finish()
			got, err := w.Run(t.Context(), run.Run)
			if err != nil {
				t.Fatal(err)
			}
			if got.Status != tt.status || tt.note != "" && tt.status == "completed" && got.Note != tt.note {
				t.Errorf("run is %s (%s), want %s (%s); error %s", got.Status, got.Note, tt.status, tt.note, got.ErrorMessage)
			}
			if !strings.Contains(got.ErrorMessage, tt.why) {
				t.Errorf("error %q does not say %q", got.ErrorMessage, tt.why)
			}
			sum, err := w.DocumentSummary(t.Context(), run.Run)
			if err != nil {
				t.Fatal(err)
			}
			want := ledger.DocumentSummary{
				Found: int64(tt.documents), Done: int64(tt.documents - tt.fails), Failed: int64(tt.fails),
				Pages: map[string]int64{"native": int64(2 * (tt.documents - tt.fails)), "ocr": 0, "image": 0, "blank": 0, "failed": 0, "duplicate": 0},
			}
			if diff := cmp.Diff(want, sum); diff != "" {
				t.Errorf("summary (-want +got):\n%s", diff)
			}
			deployed := one[int64](w, "SELECT count(*) FROM tasks WHERE stage = 'deploy'")
			if want := tt.status == "completed" && tt.documents > 0; (deployed == 1) != want {
				t.Errorf("%d deploys", deployed)
			}
			if n := one[int](w, "SELECT fetch_total + fetch_completed * 10 FROM sites"); n != tt.documents*11 {
				t.Errorf("sites counts fetch as %d, want %d", n, tt.documents*11)
			}
			if n := one[int](w, "SELECT ocr_total - ocr_completed - ocr_failed FROM sites"); n != 0 {
				t.Errorf("ocr does not add up by %d", n)
			}
			stage := one[string](w, "SELECT current_stage FROM sites")
			if want := map[string]string{"completed": "completed", "failed": "ocr"}[tt.status]; stage != want {
				t.Errorf("current_stage %s, want %s", stage, want)
			}
		})
	}
}

// However often and in whatever order outcomes arrive, each task counts once,
// each stage closes once, and the run ends.
func TestRecord_AnyOrderAnyNumber(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	site := 0
	rapid.Check(t, func(r *rapid.T) {
		site++
		name := fmt.Sprintf("town%d", site)
		w.addSite(name)
		n := rapid.IntRange(0, 12).Draw(r, "documents")
		var failing []int
		for i := range n {
			if rapid.Bool().Draw(r, "fails") {
				failing = append(failing, i)
			}
		}
		w.town(n, failing...)
		run := w.start(ledger.NewRun{Pipeline: "civic", Subject: name})
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(r, "seed"), 0))
		var past []stage.Outcome
		for range 20 {
			tasks := w.handOut()
			if len(tasks) == 0 {
				break
			}
			var fresh []stage.Outcome
			for _, d := range tasks {
				fresh = append(fresh, w.work[d.Stage](d)...)
			}
			// The parts of a listing keep their order, as on the stream;
			// everything else is repeated and mixed.
			past = append(past, fresh...)
			batch := slices.Clone(fresh)
			for range rng.IntN(10) {
				batch = append(batch, past[rng.IntN(len(past))])
			}
			for _, d := range tasks {
				if rng.IntN(3) == 0 { // given back for an infrastructure fault first
					o := outcome(d, stage.StatusRetry, nil)
					o.ErrorClass = fault.ClassInfra
					o.Try = d.Try - 1 // of a try long over: it must not count
					batch = append(batch, o)
				}
			}
			if tasks[0].Stage != "fetch" || tasks[0].Parent != "" {
				rng.Shuffle(len(batch), func(i, j int) { batch[i], batch[j] = batch[j], batch[i] })
			}
			for len(batch) > 0 {
				k := 1 + rng.IntN(len(batch))
				w.record(batch[:k]...)
				batch = batch[k:]
			}
		}
		got, err := w.Run(t.Context(), run.Run)
		if err != nil {
			r.Fatal(err)
		}
		want := "completed"
		if n > 0 && len(failing) == n {
			want = "failed"
		}
		if got.Status != want {
			r.Fatalf("run ended as %s, want %s: %+v", got.Status, want, got.Stages)
		}
		twice := one[int64](w, "SELECT count(*) FROM tasks WHERE run = $1 AND stage = 'compilation'", run.Run)
		if once := n > 0 && want == "completed"; (twice == 1) != once || twice > 1 {
			r.Fatalf("%d compilations", twice)
		}
	})
}

// Page ranges are joined per volume, whatever fails on the way.
func TestVolumes_SpawnAndJoin(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ranges := map[string]int{"v1": 3, "v2": 0, "v3": 1, "v4": 2}
	pass := func(d ledger.Dispatchable) []stage.Outcome {
		status := stage.StatusCompleted
		if d.Item == "v1/2" && d.Stage == "line_extraction" || d.Parent == "v3" && d.Stage == "line_detection" {
			status = stage.StatusFailed
		}
		return []stage.Outcome{outcome(d, status, map[string]string{"via": d.Stage})}
	}
	for _, s := range []string{"line_detection", "line_extraction", "ocr", "reduce"} {
		w.work[s] = pass
	}
	w.work["pagination"] = func(d ledger.Dispatchable) []stage.Outcome {
		if d.Item == "v4" { // spawns, then fails
			part := outcome(d, stage.StatusWorking, nil)
			part.Items = []stage.SpawnedItem{{Item: "v4/0"}, {Item: "v4/1"}}
			return []stage.Outcome{part, outcome(d, stage.StatusFailed, nil)}
		}
		o := outcome(d, stage.StatusCompleted, map[string]string{"volume": d.Item})
		for i := range ranges[d.Item] {
			o.Items = append(o.Items, stage.SpawnedItem{Item: fmt.Sprintf("%s/%d", d.Item, i)})
		}
		o.Spawned = ranges[d.Item]
		return []stage.Outcome{o}
	}
	run := w.start(ledger.NewRun{Pipeline: "volumes", Subject: "job", Items: []stage.Item{{Item: "v1"}, {Item: "v2"}, {Item: "v3"}, {Item: "v4"}}})
	w.finish()
	got, err := w.Run(t.Context(), run.Run)
	if err != nil {
		t.Fatal(err)
	}
	if got.Status != "completed" {
		t.Errorf("run is %s: %s", got.Status, got.ErrorMessage)
	}
	rows, err := w.conn.Query(t.Context(), "SELECT item FROM tasks WHERE stage = 'reduce' AND status = 'completed' ORDER BY item")
	if err != nil {
		t.Fatal(err)
	}
	reduced, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"v1", "v2", "v3"}, reduced); diff != "" {
		t.Errorf("reduced volumes (-want +got):\n%s", diff)
	}
	page, next, err := w.Inputs(t.Context(), run.Run, "reduce", "v1", "", 100)
	if err != nil {
		t.Fatal(err)
	}
	var states []string
	for _, in := range page {
		states = append(states, in.Item+" "+in.Status)
	}
	if diff := cmp.Diff([]string{"v1/0 completed", "v1/1 completed", "v1/2 failed"}, states); diff != "" || next != "" {
		t.Errorf("inputs of v1, next %q (-want +got):\n%s", next, diff)
	}
	open := one[int64](w, "SELECT count(*) FROM run_stages WHERE scope <> '' AND (NOT sealed OR closed_at IS NULL)")
	if open != 0 {
		t.Errorf("%d scopes are still open", open)
	}
}

// A listing whose parts got lost must not pass for complete.
func TestRecord_LostSpawn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.addSite("town")
	w.town(1000)
	w.start(ledger.NewRun{Pipeline: "civic", Subject: "town"})
	listing := w.handOut()
	all := w.work["fetch"](listing[0])
	w.record(all[0], all[2], all[len(all)-1]) // the second part is missing
	if status := one[string](w, "SELECT status FROM tasks WHERE item = 'town'"); status != "retry" {
		t.Fatalf("the listing is %s although 400 documents are missing", status)
	}
	if n := one[int](w, "SELECT attempts FROM tasks WHERE item = 'town'"); n != 0 {
		t.Errorf("the loss cost %d attempts", n)
	}
	if _, err := w.conn.Exec(t.Context(), "UPDATE tasks SET not_before = now() WHERE item = 'town'"); err != nil {
		t.Fatal(err)
	}
	w.finish()
	if s := one[string](w, "SELECT status || fetch_completed FROM sites"); s != "deployed1000" {
		t.Errorf("the site ends as %s", s)
	}
}

// Retries wait, cost an attempt unless the infrastructure is to blame, and are
// numbered so that a late outcome of an earlier try does not count twice.
func TestRecord_Retry(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.addSite("town")
	w.town(1)
	run := w.start(ledger.NewRun{Pipeline: "civic", Subject: "town"})
	first := w.handOut()[0]
	again := outcome(first, stage.StatusRetry, nil)
	again.ErrorClass, again.After = fault.ClassTransient, time.Hour
	for range 3 {
		w.record(again)
	}
	if n := one[int](w, "SELECT attempts FROM tasks"); n != 1 {
		t.Errorf("three reports of one failure cost %d attempts", n)
	}
	if n := len(w.handOut()); n != 0 {
		t.Errorf("%d tasks are handed out before their time", n)
	}
	if _, err := w.conn.Exec(t.Context(), "UPDATE tasks SET not_before = now()"); err != nil {
		t.Fatal(err)
	}
	second := w.handOut()
	if len(second) != 1 || second[0].Try != 2 || second[0].Attempt != 2 {
		t.Fatalf("second hand-out: %+v", second)
	}
	infra := outcome(second[0], stage.StatusRetry, nil)
	infra.ErrorClass = fault.ClassInfra
	w.record(infra)
	third := w.handOut()
	if len(third) != 1 || third[0].Try != 3 || third[0].Attempt != 2 {
		t.Fatalf("third hand-out: %+v", third)
	}
	// The first worker, long given up, comes back with the work done.
	w.record(w.work["fetch"](first)...)
	if status := one[string](w, "SELECT status FROM tasks WHERE item = 'town'"); status != "completed" {
		t.Errorf("work that is done counts as %s", status)
	}
	w.record(outcome(third[0], stage.StatusFailed, nil))
	w.finish()
	if got, _ := w.Run(t.Context(), run.Run); got.Status != "completed" {
		t.Errorf("run is %s", got.Status)
	}
	if n := one[int64](w, "SELECT count(*) FROM attempts WHERE item = 'town'"); n != 3 {
		t.Errorf("the audit has %d attempts of the listing, want 3", n)
	}
}

func TestStartRun_OneAtATime(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if _, err := w.StartRun(t.Context(), ledger.NewRun{Pipeline: "civic", Subject: "nowhere"}); !errors.Is(err, ledger.ErrNotFound) {
		t.Errorf("a run of an unknown site: %v", err)
	}
	w.addSite("town")
	w.town(3)
	if _, err := w.StartRun(t.Context(), ledger.NewRun{Pipeline: "civic", Subject: "town", Settings: map[string]any{"orc_mode": "skip"}}); err == nil || !strings.Contains(err.Error(), "orc_mode") {
		t.Errorf("a misspelt setting: %v", err)
	}
	a := w.start(ledger.NewRun{Pipeline: "civic", Subject: "town"})
	w.step()
	if _, err := w.StartRun(t.Context(), ledger.NewRun{Pipeline: "civic", Subject: "town"}); !errors.Is(err, ledger.ErrConflict) {
		t.Errorf("a second run: %v", err)
	}
	if err := w.RemoveSite(t.Context(), "town"); !errors.Is(err, ledger.ErrConflict) {
		t.Errorf("removing a site under way: %v", err)
	}
	left := w.handOut()
	b := w.start(ledger.NewRun{Pipeline: "civic", Subject: "town", Supersede: true})
	var late []stage.Outcome
	for _, d := range left {
		late = append(late, w.work[d.Stage](d)...)
	}
	if r := w.record(late...); r.Applied != 0 {
		t.Errorf("%d leftovers of the superseded run count", r.Applied)
	}
	w.finish()
	runs, err := w.Runs(t.Context(), "town", "", "", 0)
	if err != nil {
		t.Fatal(err)
	}
	if len(runs) != 2 || runs[0].Run != b.Run || runs[0].Status != "completed" || runs[1].Run != a.Run || runs[1].Status != "superseded" {
		t.Errorf("runs: %+v", runs)
	}
	if err := w.CancelRun(t.Context(), b.Run); !errors.Is(err, ledger.ErrConflict) {
		t.Errorf("cancelling an ended run: %v", err)
	}
}

func TestCancelRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.addSite("town")
	w.town(20)
	run := w.start(ledger.NewRun{Pipeline: "civic", Subject: "town"})
	w.step()
	w.handOut()
	if err := w.CancelRun(t.Context(), run.Run); err != nil {
		t.Fatal(err)
	}
	w.balanced()
	if n := w.step(); n != 0 {
		t.Errorf("%d tasks of a cancelled run are handed out", n)
	}
	if n := one[int64](w, "SELECT sum(total - completed - failed - cancelled)::bigint FROM run_stages"); n != 0 {
		t.Errorf("%d tasks have not ended", n)
	}
	// What was cancelled can be taken up again.
	if err := w.RetryRun(t.Context(), run.Run); err != nil {
		t.Fatal(err)
	}
	w.finish()
	if got, _ := w.Run(t.Context(), run.Run); got.Status != "completed" {
		t.Errorf("the run taken up again is %s: %s", got.Status, got.ErrorMessage)
	}
}

func TestRetryRun_OnlyWhatFailed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.addSite("town")
	w.town(10, 3, 4)
	run := w.start(ledger.NewRun{Pipeline: "civic", Subject: "town"})
	w.finish()
	w.town(10)
	if err := w.RetryRun(t.Context(), run.Run); err != nil {
		t.Fatal(err)
	}
	var again []string
	for {
		tasks := w.handOut()
		if len(tasks) == 0 {
			break
		}
		for _, d := range tasks {
			again = append(again, d.Stage+"/"+d.Item)
			w.record(w.work[d.Stage](d)...)
		}
	}
	slices.Sort(again)
	want := []string{"compilation/text", "deploy/text", "pagination/doc-00003", "pagination/doc-00004", "reduce/doc-00003", "reduce/doc-00004"}
	if diff := cmp.Diff(want, again); diff != "" {
		t.Errorf("tasks of the retry (-want +got):\n%s", diff)
	}
	sum, err := w.DocumentSummary(t.Context(), run.Run)
	if err != nil || sum.Done != 10 {
		t.Errorf("summary after the retry: %+v, %v", sum, err)
	}
	if err := w.RetryRun(t.Context(), run.Run); !errors.Is(err, ledger.ErrConflict) {
		t.Errorf("a retry of nothing: %v", err)
	}
}

func TestRerunRun_FromStage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.addSite("town")
	w.town(4, 1)
	run := w.start(ledger.NewRun{Pipeline: "civic", Subject: "town"})
	w.finish()
	for range 2 { // works twice in a row
		old := one[int64](w, "SELECT count(*) FROM attempts WHERE stage = 'fetch'")
		if err := w.RerunRun(t.Context(), run.Run, "reduce"); err != nil {
			t.Fatal(err)
		}
		stale := stage.Outcome{Run: run.Run, Stage: "reduce", Item: "doc-00000", Generation: 1, Try: 1, Status: stage.StatusFailed, ErrorMessage: "late"}
		if r := w.record(stale); r.Applied != 0 {
			t.Error("an outcome of the generation before counts")
		}
		w.finish()
		got, err := w.Run(t.Context(), run.Run)
		if err != nil {
			t.Fatal(err)
		}
		if got.Status != "completed" {
			t.Errorf("rerun ends as %s: %s", got.Status, got.ErrorMessage)
		}
		if now := one[int64](w, "SELECT count(*) FROM attempts WHERE stage = 'fetch'"); now != old {
			t.Errorf("the fetch stage ran again: %d attempts, then %d", old, now)
		}
	}
	if n := one[int64](w, "SELECT count(*) FROM attempts WHERE stage = 'reduce'"); n != 9 {
		t.Errorf("%d attempts at reduce, want 3 in each of 3 generations", n)
	}
	if err := w.RerunRun(t.Context(), run.Run, "no_such_stage"); !errors.Is(err, ledger.ErrNotFound) {
		t.Errorf("rerun from an unknown stage: %v", err)
	}
}

// The same bytes under two names are processed once, and both are kept.
func TestDuplicates(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.addSite("town")
	w.town(4)
	plain := w.work["fetch"]
	content := map[string]string{"doc-00001": "same", "doc-00003": "same"}
	w.work["fetch"] = func(d ledger.Dispatchable) []stage.Outcome {
		out := plain(d)
		if d.Parent != "" && content[d.Item] != "" {
			var c civic.Document
			_ = json.Unmarshal(out[0].Output, &c)
			c.SHA256 = fmt.Sprintf("%064x", content[d.Item])
			out[0].Output, _ = json.Marshal(c)
		}
		return out
	}
	run := w.start(ledger.NewRun{Pipeline: "civic", Subject: "town"})
	w.finish()
	sum, err := w.DocumentSummary(t.Context(), run.Run)
	if err != nil {
		t.Fatal(err)
	}
	if sum.Found != 4 || sum.Done != 3 || sum.Duplicates != 1 || sum.Pages["duplicate"] != 2 {
		t.Errorf("summary: %+v", sum)
	}
	docs, err := w.Documents(t.Context(), ledger.DocumentFilter{Subdomain: "town", Status: "duplicate"})
	if err != nil || len(docs) != 1 || docs[0].DuplicateOf != "doc-00001" || docs[0].Text == nil {
		t.Fatalf("duplicates: %+v, %v", docs, err)
	}
	// The original is posted again with other content: the other keeps its text.
	content["doc-00001"] = "other"
	run = w.start(ledger.NewRun{Pipeline: "civic", Subject: "town"})
	w.finish()
	docs, err = w.Documents(t.Context(), ledger.DocumentFilter{Subdomain: "town", Status: "done"})
	if err != nil || len(docs) != 4 {
		t.Fatalf("after the re-post: %d done, %v", len(docs), err)
	}
	if docs[1].Version != 2 || docs[3].Text == nil || docs[3].DuplicateOf != "" {
		t.Errorf("after the re-post: %+v and %+v", docs[1], docs[3])
	}
	if n := one[int64](w, "SELECT count(*) FROM document_versions WHERE document_id = 'doc-00001'"); n != 2 {
		t.Errorf("%d versions are kept", n)
	}
	_ = run
}

// Bytes that Postgres cannot store are replaced, not fatal.
func TestRecord_UnstorableText(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.addSite("town")
	w.town(2)
	w.start(ledger.NewRun{Pipeline: "civic", Subject: "town"})
	w.step()
	w.step()
	for _, d := range w.handOut() {
		o := outcome(d, stage.StatusFailed, map[string]string{"text": "a\x00b", `back\slash`: `\u0000`})
		o.ErrorMessage = "page \x00\xff broken " + strings.Repeat("é", 400)
		w.record(o)
	}
	if n := one[int](w, "SELECT max(length(error_message)) FROM tasks"); n == 0 || n > 500 {
		t.Errorf("the message has %d characters", n)
	}
}

// Counters that were tampered with are found and repaired, and a run that
// waits for nothing goes on.
func TestRepair(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.addSite("town")
	w.town(5)
	run := w.start(ledger.NewRun{Pipeline: "civic", Subject: "town"})
	w.step()
	w.step()
	drifts, err := w.Drifts(t.Context())
	if err != nil || len(drifts) != 0 {
		t.Fatalf("a sound run drifts: %+v, %v", drifts, err)
	}
	if _, err := w.conn.Exec(t.Context(), "UPDATE run_stages SET completed = completed - 2, closed_at = NULL, sealed = false WHERE stage = 'fetch' AND scope = ''"); err != nil {
		t.Fatal(err)
	}
	drifts, err = w.Drifts(t.Context())
	if err != nil || len(drifts) != 1 {
		t.Fatalf("drifts: %+v, %v", drifts, err)
	}
	if err := w.Repair(t.Context(), run.Run); err != nil {
		t.Fatal(err)
	}
	w.balanced()
	w.finish()
	if got, _ := w.Run(t.Context(), run.Run); got.Status != "completed" {
		t.Errorf("the repaired run is %s", got.Status)
	}
}

// The monitoring queries of those who used the tables that the sites view
// replaces run as they are.
func TestSitesView_MonitoringQueries(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for i, fails := range [][]int{nil, {0}, {0, 1, 2}} {
		name := fmt.Sprintf("town%d", i)
		w.addSite(name)
		w.town(3, fails...)
		w.start(ledger.NewRun{Pipeline: "civic", Subject: name})
		w.finish()
	}
	w.addSite("fresh")
	w.start(ledger.NewRun{Pipeline: "civic", Subject: "fresh"})
	for name, q := range map[string]string{
		"stages":   `SELECT current_stage, COUNT(*) FROM sites WHERE current_stage IS NOT NULL GROUP BY current_stage`,
		"failures": `SELECT subdomain, ocr_total, ocr_completed, ocr_failed, ROUND(100.0 * ocr_failed / NULLIF(ocr_total, 0), 1) as failure_rate_pct FROM sites WHERE ocr_total > 0 AND ocr_failed > 0 ORDER BY failure_rate_pct DESC LIMIT 20`,
		"stuck":    `SELECT subdomain, current_stage, updated_at, EXTRACT(EPOCH FROM (NOW() - updated_at))/3600 as hours_stuck FROM sites WHERE current_stage != 'completed' AND updated_at < NOW() - INTERVAL '2 hours' ORDER BY hours_stuck DESC`,
		"health":   `SELECT current_stage, COUNT(*) as site_count, AVG(EXTRACT(EPOCH FROM (NOW() - updated_at))/3600) as avg_hours_in_stage FROM sites WHERE current_stage != 'completed' GROUP BY current_stage`,
		"errors":   `SELECT subdomain, current_stage, ocr_total, ocr_completed, ocr_failed, compilation_failed, last_error_stage, last_error_message FROM sites WHERE ocr_failed > 0 OR compilation_failed > 0 ORDER BY updated_at DESC LIMIT 50`,
		"per day":  `SELECT DATE(updated_at) as date, COUNT(*) as sites_completed FROM sites WHERE current_stage = 'completed' AND updated_at > NOW() - INTERVAL '7 days' GROUP BY DATE(updated_at) ORDER BY date DESC`,
		"rates":    `SELECT 'ocr' as stage, SUM(ocr_total) as total_jobs, SUM(ocr_completed) as succeeded, SUM(ocr_failed) as failed, ROUND(100.0 * SUM(ocr_completed) / NULLIF(SUM(ocr_total), 0), 1) as success_rate FROM sites WHERE ocr_total > 0 UNION ALL SELECT 'compilation', SUM(compilation_total), SUM(compilation_completed), SUM(compilation_failed), ROUND(100.0 * SUM(compilation_completed) / NULLIF(SUM(compilation_total), 0), 1) FROM sites WHERE compilation_total > 0`,
	} {
		if _, err := w.conn.Exec(t.Context(), q); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	rows, err := w.conn.Query(t.Context(), `SELECT concat_ws(' ', subdomain, current_stage, status, fetch_total, fetch_completed, ocr_total, ocr_completed, ocr_failed,
		compilation_total, compilation_completed, deploy_total, deploy_completed, coordinator_enqueued, started_at IS NOT NULL) FROM sites ORDER BY 1`)
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"fresh fetch fetching 0 0 0 0 0 0 0 0 0 f t",
		"town0 completed deployed 3 3 3 3 0 1 1 1 1 f t",
		"town1 completed deployed 3 3 3 2 1 1 1 1 1 f t",
		"town2 ocr needs_ocr 3 3 3 0 3 0 0 0 0 f t",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("sites (-want +got):\n%s", diff)
	}
}
