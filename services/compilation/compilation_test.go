package compilation_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	_ "modernc.org/sqlite"

	"github.com/reeve-pipeline/reeve/pkg/artifact"
	"github.com/reeve-pipeline/reeve/pkg/civic"
	"github.com/reeve-pipeline/reeve/pkg/fault"
	"github.com/reeve-pipeline/reeve/pkg/s3test"
	"github.com/reeve-pipeline/reeve/pkg/stage"
	"github.com/reeve-pipeline/reeve/pkg/stagetest"
	"github.com/reeve-pipeline/reeve/pkg/table"
	"github.com/reeve-pipeline/reeve/services/compilation"
)

// town is a site of a test, with a store of its own.
type town struct {
	t        testing.TB
	store    *artifact.Store
	docs     map[string]civic.Document
	deployed string
	settings string
}

func newTown(t testing.TB) *town {
	t.Helper()
	return &town{t: t, store: s3test.Open(t), docs: map[string]civic.Document{}}
}

// add gives the town a document with these pages, or replaces the one it has.
func (w *town) add(d civic.Document, pages ...string) {
	w.t.Helper()
	rows := make([]table.Page, len(pages))
	for i, text := range pages {
		rows[i] = table.Page{Page: int32(i + 1), Text: text, Source: civic.SourceNative}
		if text == "" {
			rows[i].Source = civic.SourceImage
		}
	}
	w.addRows(d, rows)
}

func (w *town) addRows(d civic.Document, rows []table.Page) {
	w.t.Helper()
	var buf bytes.Buffer
	if err := table.WritePages(&buf, rows, nil); err != nil {
		w.t.Fatal(err)
	}
	a, err := w.store.Put(w.t.Context(), "texts/"+d.ID+".parquet", &buf, -1, "")
	if err != nil {
		w.t.Fatal(err)
	}
	if d.Ordinal == 0 {
		d.Ordinal = 1
	}
	d.Text, d.Status = &civic.Object{Key: a.Key, Size: a.Size, SHA256: a.SHA256}, "done"
	w.docs[d.ID] = d
}

func (w *town) task() *stage.Task {
	w.t.Helper()
	spec, err := json.Marshal(civic.Site{Subdomain: "t.ca", DeployedVersion: w.deployed})
	if err != nil {
		w.t.Fatal(err)
	}
	return &stage.Task{
		Run: 1, Pipeline: "civic", Subject: "t.ca", Stage: compilation.Name, Item: "text", Generation: 1, Try: 1, Attempt: 1, MaxAttempts: 3,
		Spec: spec, Settings: json.RawMessage(w.settings),
		Inputs: func(context.Context) iter.Seq2[stage.Input, error] {
			return func(yield func(stage.Input, error) bool) {
				for _, d := range w.docs { // in any order
					row, err := json.Marshal(d)
					if !yield(stage.Input{Item: d.ID, Status: d.Status, Output: row}, err) {
						return
					}
				}
			}
		},
	}
}

func (w *town) handle() (stage.Result, error) {
	w.t.Helper()
	return compilation.New(w.store, w.t.TempDir()).Handle(w.t.Context(), w.task())
}

// compile compiles, as it must, and returns what came of it.
func (w *town) compile() (civic.Compiled, stage.Result) {
	w.t.Helper()
	res, err := w.handle()
	if err != nil {
		w.t.Fatal(err)
	}
	if res.Skip != "" {
		w.t.Fatalf("skipped as %q", res.Skip)
	}
	return res.Output.(civic.Compiled), res
}

func (w *town) manifest() civic.Manifest {
	w.t.Helper()
	m, err := readManifest(w.t.Context(), w.store)
	if err != nil {
		w.t.Fatal(err)
	}
	return m
}

func readManifest(ctx context.Context, store *artifact.Store) (m civic.Manifest, err error) {
	data, err := store.ReadAll(ctx, "sites/t.ca/manifest.json", "", 1<<20)
	if err == nil {
		err = json.Unmarshal(data, &m)
	}
	return m, err
}

// open opens the published database as a reader does: by the manifest.
func (w *town) open() *sql.DB {
	w.t.Helper()
	m := w.manifest()
	path := filepath.Join(w.t.TempDir(), "meetings.db")
	if err := w.store.GetFile(w.t.Context(), m.Database.Key, path, m.Database.SHA256); err != nil {
		w.t.Fatal(err)
	}
	db, err := sql.Open("sqlite", path)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = db.Close() })
	return db
}

// query returns a query's rows as text, columns separated by |.
func query(t testing.TB, db *sql.DB, q string, args ...any) []string {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), q, args...)
	if err != nil {
		t.Fatalf("%s: %v", q, err)
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		t.Fatal(err)
	}
	got := []string{}
	for rows.Next() {
		cells := make([]sql.NullString, len(columns))
		into := make([]any, len(columns))
		for i := range cells {
			into[i] = &cells[i]
		}
		if err := rows.Scan(into...); err != nil {
			t.Fatal(err)
		}
		line := make([]string, len(cells))
		for i, c := range cells {
			line[i] = c.String
		}
		got = append(got, strings.Join(line, "|"))
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return got
}

// rows returns everything in both tables, in no order of the database's own.
func (w *town) rows() []string {
	w.t.Helper()
	db := w.open()
	all := query(w.t, db, `SELECT 'minutes', * FROM minutes UNION ALL SELECT 'agendas', * FROM agendas`)
	slices.Sort(all)
	// The full-text indexes hold just these rows.
	for _, table := range []string{"minutes", "agendas"} {
		if _, err := db.ExecContext(w.t.Context(), `INSERT INTO `+table+`_fts (`+table+`_fts, rank) VALUES ('integrity-check', 1)`); err != nil {
			w.t.Errorf("full-text index of %s: %v", table, err)
		}
	}
	return all
}

func minutes(id, date string) civic.Document {
	return civic.Document{ID: id, Kind: civic.Minutes, Meeting: "CityCouncil", Date: date}
}

func agenda(id, date string) civic.Document {
	return civic.Document{ID: id, Kind: civic.Agenda, Meeting: "CityCouncil", Date: date}
}

const empty = `{"persons": [], "orgs": [], "locations": []}|{"votes": []}`

// The contract: tables, columns, full-text indexes, ids, paths, and the way
// the database is read.
func TestHandle_contract(t *testing.T) {
	t.Parallel()
	w := newTown(t)
	w.add(minutes("m", "2024-01-15"), "The meeting was called to order at 7:00 PM.", "")
	w.add(agenda("a", "2024-01-15"), "form\fFeed\r\nCRLF")
	w.add(civic.Document{ID: "undated", Kind: civic.Minutes, Meeting: "Parks"}, "Trees.")
	out, res := w.compile()

	db := w.open()
	if diff := cmp.Diff([]string{
		"table|agendas|agendas|CREATE TABLE [agendas] (\n   [id] TEXT PRIMARY KEY,\n   [meeting] TEXT,\n   [date] TEXT,\n   [page] INTEGER,\n   [text] TEXT,\n   [page_image] TEXT,\n   [entities_json] TEXT,\n   [votes_json] TEXT\n)",
		"table|agendas_fts|agendas_fts|CREATE VIRTUAL TABLE [agendas_fts] USING FTS5 ([text], content=[agendas])",
		"index|idx_agendas_meeting_date|agendas|CREATE INDEX [idx_agendas_meeting_date] ON [agendas] ([meeting], [date])",
		"index|idx_minutes_meeting_date|minutes|CREATE INDEX [idx_minutes_meeting_date] ON [minutes] ([meeting], [date])",
		"table|minutes|minutes|CREATE TABLE [minutes] (\n   [id] TEXT PRIMARY KEY,\n   [meeting] TEXT,\n   [date] TEXT,\n   [page] INTEGER,\n   [text] TEXT,\n   [page_image] TEXT,\n   [entities_json] TEXT,\n   [votes_json] TEXT\n)",
		"table|minutes_fts|minutes_fts|CREATE VIRTUAL TABLE [minutes_fts] USING FTS5 ([text], content=[minutes])",
	}, query(t, db, `SELECT type, name, tbl_name, sql FROM sqlite_schema
		WHERE name NOT LIKE 'sqlite_%' AND name NOT LIKE '%\_fts\__%' ESCAPE '\' ORDER BY name`)); diff != "" {
		t.Errorf("schema (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{
		"agendas|bf6b5802aa76|CityCouncil|2024-01-15|1|form\fFeed\r\nCRLF|/_agendas/CityCouncil/2024-01-15/1.png|" + empty,
		"minutes|69214928a4bf|CityCouncil|2024-01-15|1|The meeting was called to order at 7:00 PM.|/CityCouncil/2024-01-15/1.png|" + empty,
		"minutes|d9c5d7891265|CityCouncil|2024-01-15|2||/CityCouncil/2024-01-15/2.png|" + empty,
	}, query(t, db, `SELECT 'agendas', * FROM agendas UNION ALL SELECT 'minutes', * FROM minutes WHERE meeting = 'CityCouncil'`)); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"Parks||1|/Parks/undated/1.png"}, query(t, db, `SELECT meeting, date, page, page_image FROM minutes WHERE meeting = 'Parks'`)); diff != "" {
		t.Errorf("a document without a date (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"1|The meeting was [called] to [order] at 7:00 PM."}, query(t, db,
		`SELECT m.page, highlight(minutes_fts, 0, '[', ']') FROM minutes_fts JOIN minutes m ON m.rowid = minutes_fts.rowid WHERE minutes_fts MATCH 'order called'`)); diff != "" {
		t.Errorf("search (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"CityCouncil|2024-01-15|2", "Parks||1"}, query(t, db, `SELECT meeting, date, count(*) FROM minutes GROUP BY meeting, date`)); diff != "" {
		t.Errorf("groups (-want +got):\n%s", diff)
	}
	if plan := query(t, db, `EXPLAIN QUERY PLAN SELECT meeting, date, count(*) FROM minutes GROUP BY meeting, date`); !strings.Contains(plan[0], "COVERING INDEX") {
		t.Errorf("grouping reads the whole table: %s", plan)
	}

	m := w.manifest()
	if m.Minutes != 3 || m.Agendas != 1 || len(m.Documents) != 3 || len(m.Warnings) > 0 || out.Minutes != 3 || out.Agendas != 1 || out.Documents != 3 {
		t.Errorf("manifest %+v, output %+v", m, out)
	}
	if m.Version != out.Version || m.Database != out.Database {
		t.Errorf("manifest %+v and output %+v differ", m, out)
	}
	for _, a := range res.Artifacts {
		if there, err := w.store.Stat(t.Context(), a.Key); err != nil || there.SHA256 != a.SHA256 || there.Size != a.Size {
			t.Errorf("artifact %+v: %+v, %v", a, there, err)
		}
	}
	if plain, err := w.store.Stat(t.Context(), "sites/t.ca/meetings.db"); err != nil || plain.SHA256 != m.Database.SHA256 {
		t.Errorf("the site's own key: %+v, %v", plain, err)
	}
}

// Pages come in the order of their numbers, not of their digits.
func TestHandle_twelvePages(t *testing.T) {
	t.Parallel()
	w := newTown(t)
	var rows []table.Page
	var want []string
	for n := 12; n >= 1; n-- {
		rows = append(rows, table.Page{Page: int32(n), Text: fmt.Sprint("page ", n), Source: civic.SourceNative})
		want = append(want, fmt.Sprintf("%d|page %d|/CityCouncil/2024-01-15/%d.png", n, n, n))
	}
	slices.Reverse(want)
	w.addRows(minutes("m", "2024-01-15"), rows)
	w.compile()
	if diff := cmp.Diff(want, query(t, w.open(), `SELECT page, text, page_image FROM minutes ORDER BY rowid`)); diff != "" {
		t.Error(diff)
	}
}

// A second document of one kind, meeting and date stands beside the first, and
// a duplicate stands where it was found, with the text of its original.
func TestHandle_besideEachOther(t *testing.T) {
	t.Parallel()
	w := newTown(t)
	w.add(minutes("first", "2024-01-15"), "one", "")
	second := minutes("second", "2024-01-15")
	second.Ordinal = 2
	w.add(second, "two", "")
	copied := minutes("copy", "2024-02-01")
	copied.DuplicateOf, copied.Status, copied.Ordinal = "first", "duplicate", 1
	w.docs["copy"] = copied
	clash := minutes("zz", "2024-02-01") // claims the same place as the copy
	w.add(clash, "three")
	_, res := w.compile()
	want := []string{
		"2024-01-15|1|one|/CityCouncil/2024-01-15/1.png", "2024-01-15|2||/CityCouncil/2024-01-15/2.png",
		"2024-01-15|1|two|/CityCouncil/2024-01-15-2/1.png", "2024-01-15|2||/CityCouncil/2024-01-15-2/2.png",
		"2024-02-01|1|one|/CityCouncil/2024-02-01/1.png", "2024-02-01|2||/CityCouncil/2024-02-01/2.png",
		"2024-02-01|1|three|/CityCouncil/2024-02-01-2/1.png",
	}
	if diff := cmp.Diff(want, query(t, w.open(), `SELECT date, page, text, page_image FROM minutes ORDER BY rowid`)); diff != "" {
		t.Error(diff)
	}
	// The empty second pages of the first two have the same content, and so the same short id.
	ids := query(t, w.open(), `SELECT id FROM minutes WHERE date = '2024-01-15' AND page = 2 ORDER BY length(id)`)
	if len(ids) != 2 || len(ids[0]) != 12 || len(ids[1]) != 20 || !strings.HasPrefix(ids[1], ids[0]) || res.Metrics["id_collisions"] != 1 {
		t.Errorf("ids %v, %v collisions", ids, res.Metrics["id_collisions"])
	}
}

// Whatever the way to a set of documents, the version and the rows are the
// same as those of a database built of it at once.
func TestHandle_incremental(t *testing.T) {
	t.Parallel()
	w := newTown(t)
	second := minutes("b", "2024-01-15")
	second.Ordinal = 2
	moved := minutes("d", "2024-03-01")
	moved.Meeting = "ParksBoard"
	reposted := minutes("a", "2024-01-15")
	duplicate := minutes("e", "2024-06-01")
	duplicate.DuplicateOf, duplicate.Status = "a", "duplicate"

	steps := []struct {
		name             string
		do               func()
		changed, removed float64
	}{
		{"the first documents", func() {
			w.add(minutes("a", "2024-01-15"), "alpha", "", "omega")
			w.add(agenda("c", "2024-01-15"), "items", "")
		}, 2, 0},
		{"a second meeting on the day, with a page that looks the same", func() { w.add(second, "beta", "", "omega") }, 1, 0},
		{"one more", func() { w.add(minutes("d", "2024-02-01"), "delta") }, 1, 0},
		{"a re-posted one", func() { w.add(reposted, "alpha, corrected", "", "omega", "annex") }, 1, 0},
		{"one that was filed under the wrong board", func() { w.add(moved, "delta") }, 1, 0},
		{"a duplicate", func() { w.docs["e"] = duplicate }, 1, 0},
		{"the first of the two is taken down", func() { delete(w.docs, "a"); delete(w.docs, "e") }, 0, 2},
		{"it comes back", func() { w.add(reposted, "alpha, corrected", "", "omega", "annex") }, 1, 0},
		{"the agenda is gone", func() { delete(w.docs, "c") }, 0, 1},
		{"two change places", func() {
			a, b := w.docs["a"], w.docs["b"]
			a.Ordinal, b.Ordinal = 2, 1
			w.docs["a"], w.docs["b"] = a, b
		}, 2, 0},
	}
	for i, step := range steps {
		step.do()
		out, res := w.compile()
		if res.Metrics["documents_changed"] != step.changed || res.Metrics["documents_removed"] != step.removed || (res.Metrics["built_anew"] == 1) != (i == 0) {
			t.Errorf("%s: %v", step.name, res.Metrics)
		}
		if warnings := w.manifest().Warnings; len(warnings) > 0 {
			t.Errorf("%s: %v", step.name, warnings)
		}
		once := newTown(t)
		for _, d := range w.docs {
			if d.DuplicateOf != "" {
				once.docs[d.ID] = d
				continue
			}
			data, err := w.store.ReadAll(t.Context(), d.Text.Key, d.Text.SHA256, 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := once.store.Put(t.Context(), d.Text.Key, bytes.NewReader(data), -1, ""); err != nil {
				t.Fatal(err)
			}
			once.docs[d.ID] = d
		}
		want, _ := once.compile()
		if out.Version != want.Version {
			t.Errorf("%s: another version than when built at once", step.name)
		}
		if diff := cmp.Diff(once.rows(), w.rows()); diff != "" {
			t.Errorf("%s: rows (-at once +in steps):\n%s", step.name, diff)
		}
	}
	// Two databases back are kept, no more.
	var versions []string
	for a, err := range w.store.List(t.Context(), "sites/t.ca/versions/") {
		if err != nil {
			t.Fatal(err)
		}
		versions = append(versions, a.Key)
	}
	if len(versions) != 4 {
		t.Errorf("left of all the versions: %v", versions)
	}
}

// counting counts the bytes that go to the store.
type counting struct {
	compilation.Objects
	puts, gets int
}

func (c *counting) PutFile(ctx context.Context, key, path, contentType string) (stage.Artifact, error) {
	c.puts++
	return c.Objects.PutFile(ctx, key, path, contentType)
}

func (c *counting) Put(ctx context.Context, key string, r io.Reader, size int64, contentType string) (stage.Artifact, error) {
	c.puts++
	return c.Objects.Put(ctx, key, r, size, contentType)
}

func (c *counting) GetFile(ctx context.Context, key, path, sha256 string) error {
	c.gets++
	return c.Objects.GetFile(ctx, key, path, sha256)
}

func TestHandle_unchanged(t *testing.T) {
	t.Parallel()
	w := newTown(t)
	w.add(minutes("a", "2024-01-15"), "alpha")
	first, _ := w.compile()

	store := &counting{Objects: w.store}
	handle := func() stage.Result {
		t.Helper()
		res, err := compilation.New(store, t.TempDir()).Handle(t.Context(), w.task())
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	// Compiled, but its deploy never came through: handed on again.
	if diff := cmp.Diff(first, handle().Output); diff != "" {
		t.Errorf("not deployed yet (-first +second):\n%s", diff)
	}
	w.deployed = first.Version
	if res := handle(); res.Skip != "unchanged" || res.Output != nil {
		t.Errorf("deployed: %+v", res)
	}
	if store.puts != 0 || store.gets != 0 {
		t.Errorf("nothing changed, and yet %d puts, %d gets", store.puts, store.gets)
	}
	w.settings = `{"force": true}`
	if res := handle(); res.Skip != "" || res.Metrics["built_anew"] != 1 || res.Output.(civic.Compiled).Version != first.Version {
		t.Errorf("forced: %+v", res)
	}
}

// What was published is damaged or gone: it is built anew, and says so.
func TestHandle_formerUnusable(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(t *testing.T, w *town){
		"the database is gone": func(t *testing.T, w *town) {
			if err := w.store.Remove(t.Context(), w.manifest().Database.Key); err != nil {
				t.Fatal(err)
			}
		},
		"the database is another": func(t *testing.T, w *town) { overwrite(t, w, w.manifest().Database.Key, "not a database") },
		"the database is what it says but no database": func(t *testing.T, w *town) {
			m := w.manifest()
			a := overwrite(t, w, m.Database.Key, "not a database")
			m.Database = civic.Object{Key: a.Key, Size: a.Size, SHA256: a.SHA256}
			rewrite(t, w, m)
		},
		"the database has other pages than it says": func(t *testing.T, w *town) {
			m := w.manifest()
			m.Documents[0].Pages++
			m.Documents[0].TextSHA256 = "so that it counts as changed"
			rewrite(t, w, m)
		},
		"the manifest is gone": func(t *testing.T, w *town) {
			if err := w.store.Remove(t.Context(), "sites/t.ca/manifest.json"); err != nil {
				t.Fatal(err)
			}
		},
		"the manifest is no JSON":   func(t *testing.T, w *town) { overwrite(t, w, "sites/t.ca/manifest.json", "{") },
		"the manifest is older":     func(t *testing.T, w *town) { m := w.manifest(); m.Format = "meetings.db/0"; rewrite(t, w, m) },
		"the manifest is another's": func(t *testing.T, w *town) { m := w.manifest(); m.Subdomain = "u.ca"; rewrite(t, w, m) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTown(t)
			w.add(minutes("a", "2024-01-15"), "alpha", "beta")
			w.add(minutes("b", "2024-01-16"), "gamma")
			w.compile()
			spoil(t, w)
			w.add(minutes("c", "2024-01-17"), "delta")
			_, res := w.compile()
			if res.Metrics["built_anew"] != 1 {
				t.Errorf("metrics %v", res.Metrics)
			}
			if got := w.rows(); len(got) != 4 {
				t.Errorf("rows %v", got)
			}
		})
	}
}

func overwrite(t *testing.T, w *town, key, data string) stage.Artifact {
	t.Helper()
	a, err := w.store.Put(t.Context(), key, strings.NewReader(data), -1, "")
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func rewrite(t *testing.T, w *town, m civic.Manifest) {
	t.Helper()
	data, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	overwrite(t, w, "sites/t.ca/manifest.json", string(data))
}

// A stray document costs nobody else anything: it keeps the pages it had, or
// is left out, and is named.
func TestHandle_strayDocuments(t *testing.T) {
	t.Parallel()
	w := newTown(t)
	w.add(minutes("good", "2024-01-01"), "good")
	w.add(minutes("gone", "2024-01-02"), "gone, once good")
	w.add(minutes("bad", "2024-01-03"), "bad, once good")
	w.add(minutes("failed", "2024-01-04"), "failed, once good")
	first, _ := w.compile()

	w.add(minutes("gone", "2024-01-02"), "gone")
	if err := w.store.Remove(t.Context(), w.docs["gone"].Text.Key); err != nil {
		t.Fatal(err)
	}
	spoil := func(id string) {
		a := overwrite(t, w, w.docs[id].Text.Key, "this is no table")
		d := w.docs[id]
		d.Text = &civic.Object{Key: a.Key, Size: a.Size, SHA256: a.SHA256}
		w.docs[id] = d
	}
	spoil("bad")
	d := w.docs["failed"]
	d.Text, d.Status = nil, "failed"
	w.docs["failed"] = d

	// Kept as they were, there is nothing new at all.
	w.deployed = first.Version
	if res, err := w.handle(); err != nil || res.Skip != "unchanged" || res.Metrics["documents_kept"] != 3 {
		t.Errorf("all kept: %+v, %v", res, err)
	}

	w.add(minutes("new", "2024-01-05"), "new")
	w.add(minutes("newbad", "2024-01-06"), "x")
	spoil("newbad")
	w.docs["never"] = civic.Document{ID: "never", Kind: civic.Minutes, Meeting: "M", Status: "failed"}
	w.docs["odd"] = civic.Document{ID: "odd", Kind: "notes.txt", Meeting: "M", Status: "done"}
	_, res := w.compile()
	if res.Metrics["documents_kept"] != 3 || res.Metrics["documents_left_out"] != 3 || res.Metrics["documents"] != 5 {
		t.Errorf("metrics %v", res.Metrics)
	}
	if diff := cmp.Diff([]string{"good", "gone, once good", "bad, once good", "failed, once good", "new"}, query(t, w.open(), `SELECT text FROM minutes ORDER BY date`)); diff != "" {
		t.Error(diff)
	}
	warnings := strings.Join(w.manifest().Warnings, "\n")
	for _, id := range []string{"gone", "bad", "failed", "newbad", "odd"} {
		if !strings.Contains(warnings, "document "+id+" ") {
			t.Errorf("%s is not named in %s", id, warnings)
		}
	}

	// Without the database before, what cannot be read is left out.
	if err := w.store.Remove(t.Context(), w.manifest().Database.Key); err != nil {
		t.Fatal(err)
	}
	w.compile()
	if diff := cmp.Diff([]string{"good", "new"}, query(t, w.open(), `SELECT text FROM minutes ORDER BY date`)); diff != "" {
		t.Error(diff)
	}
}

func TestHandle_nothing(t *testing.T) {
	t.Parallel()
	w := newTown(t)
	if res, err := w.handle(); err != nil || res.Skip != "no_documents" {
		t.Errorf("no documents: %+v, %v", res, err)
	}
	w.docs["a"] = civic.Document{ID: "a", Kind: civic.Minutes, Meeting: "M", Status: "failed"}
	if _, err := w.handle(); fault.Of(err) != fault.ClassPermanent || !strings.Contains(err.Error(), "t.ca") {
		t.Errorf("no text: %v", err)
	}
	w.add(minutes("a", "2024-01-01"), "x")
	overwrite(t, w, w.docs["a"].Text.Key, "this is no table")
	if _, err := w.handle(); fault.Of(err) != fault.ClassPermanent || !strings.Contains(err.Error(), "document a ") {
		t.Errorf("no text that can be read: %v", err)
	}
	if _, err := w.store.Stat(t.Context(), "sites/t.ca/manifest.json"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("and yet something was published: %v", err)
	}
	w.add(minutes("a", "2024-01-01"))
	out, _ := w.compile() // a document of no pages at all
	if out.Documents != 1 || out.Minutes != 0 || len(w.rows()) != 0 {
		t.Errorf("%+v", out)
	}
}

func TestHandle_wrongTask(t *testing.T) {
	t.Parallel()
	w := newTown(t)
	for _, spec := range []string{"", "[]", "{}"} {
		task := w.task()
		task.Spec = json.RawMessage(spec)
		if _, err := compilation.New(w.store, "").Handle(t.Context(), task); fault.Of(err) != fault.ClassPermanent {
			t.Errorf("spec %q: %v", spec, err)
		}
	}
	broken := errors.New("no answer")
	task := w.task()
	task.Inputs = func(context.Context) iter.Seq2[stage.Input, error] {
		return func(yield func(stage.Input, error) bool) { yield(stage.Input{}, fault.Infra(broken)) }
	}
	if _, err := compilation.New(w.store, "").Handle(t.Context(), task); !errors.Is(err, broken) || fault.Of(err) != fault.ClassInfra {
		t.Errorf("inputs that break off: %v", err)
	}
}

// A reader looping over a hundred rebuilds never sees a missing, partial or
// unindexed database.
func TestHandle_atomicPublish(t *testing.T) {
	t.Parallel()
	w := newTown(t)
	w.add(minutes("a", "2024-01-15"), "version 0 shared")
	w.compile()
	done, seen := make(chan struct{}), make(chan map[string]bool)
	ctx, dir := t.Context(), t.TempDir()
	read := func() (string, error) {
		m, err := readManifest(ctx, w.store)
		if err != nil {
			return "", err
		}
		for i, key := range []string{m.Database.Key, "sites/t.ca/meetings.db"} {
			path, sum := filepath.Join(dir, "r.db"), m.Database.SHA256
			if i == 1 {
				sum = "" // by its plain key, it may be newer than the manifest
			}
			if err := w.store.GetFile(ctx, key, path, sum); err != nil {
				return "", err
			}
			db, err := sql.Open("sqlite", path)
			if err != nil {
				return "", err
			}
			var n int
			err = errors.Join(db.QueryRowContext(ctx, `SELECT count(*) FROM minutes_fts WHERE minutes_fts MATCH 'shared'`).Scan(&n), db.Close())
			if err != nil || n == 0 {
				return "", fmt.Errorf("%s: %d hits, %w", key, n, err)
			}
		}
		return m.Version, nil
	}
	go func() {
		versions := map[string]bool{}
		defer func() { seen <- versions }()
		for {
			select {
			case <-done:
				return
			default:
			}
			version, err := read()
			if err != nil {
				t.Error(err)
				return
			}
			versions[version] = true
		}
	}()
	for i := range 100 {
		w.add(minutes("a", "2024-01-15"), fmt.Sprintf("version %d shared", i+1))
		w.compile()
	}
	close(done)
	if versions := <-seen; len(versions) < 3 {
		t.Errorf("the reader saw only %d versions", len(versions))
	}
}

// failing fails every call of one method.
type failing struct {
	compilation.Objects
	method string
	err    error
}

func (f failing) Stat(ctx context.Context, key string) (stage.Artifact, error) {
	if f.method == "stat" {
		return stage.Artifact{}, f.err
	}
	return f.Objects.Stat(ctx, key)
}

func (f failing) ReadAll(ctx context.Context, key, sum string, limit int64) ([]byte, error) {
	if f.method == "manifest" && strings.HasSuffix(key, "manifest.json") || f.method == "text" && strings.HasPrefix(key, "texts/new") {
		return nil, f.err
	}
	return f.Objects.ReadAll(ctx, key, sum, limit)
}

func (f failing) GetFile(ctx context.Context, key, path, sum string) error {
	if f.method == "database" {
		return f.err
	}
	return f.Objects.GetFile(ctx, key, path, sum)
}

func (f failing) PutFile(ctx context.Context, key, path, contentType string) (stage.Artifact, error) {
	if f.method == "put database" {
		return stage.Artifact{}, f.err
	}
	return f.Objects.PutFile(ctx, key, path, contentType)
}

func (f failing) Copy(ctx context.Context, from, to string) (stage.Artifact, error) {
	if f.method == "copy" {
		return stage.Artifact{}, f.err
	}
	return f.Objects.Copy(ctx, from, to)
}

func (f failing) Put(ctx context.Context, key string, r io.Reader, size int64, contentType string) (stage.Artifact, error) {
	if f.method == "put manifest" {
		return stage.Artifact{}, f.err
	}
	return f.Objects.Put(ctx, key, r, size, contentType)
}

// A store that is out of reach is nobody's fault: nothing is published, and
// the same task comes through later.
func TestHandle_storeOutOfReach(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"manifest", "text", "database", "put database", "copy", "put manifest"} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			w := newTown(t)
			w.add(minutes("a", "2024-01-15"), "alpha")
			first, _ := w.compile()
			w.add(minutes("new", "2024-01-16"), "beta")
			down := fault.Infra(errors.New("out of reach"))
			_, err := compilation.New(failing{w.store, method, down}, t.TempDir()).Handle(t.Context(), w.task())
			if fault.Of(err) != fault.ClassInfra {
				t.Errorf("error %v", err)
			}
			if got := w.manifest().Version; got != first.Version {
				t.Error("and yet something was published")
			}
			w.compile()
			if got := len(w.rows()); got != 2 {
				t.Errorf("later: %d rows", got)
			}
		})
	}
}

// Nothing is left on the disk, and a task that is stopped stops.
func TestHandle_stopped(t *testing.T) {
	t.Parallel()
	w := newTown(t)
	w.add(minutes("a", "2024-01-15"), "alpha")
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	task := w.task()
	inputs := task.Inputs
	task.Inputs = func(c context.Context) iter.Seq2[stage.Input, error] { cancel(); return inputs(c) }
	if _, err := compilation.New(w.store, dir).Handle(ctx, task); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if _, err := compilation.New(w.store, dir).Handle(t.Context(), w.task()); err != nil {
		t.Error(err)
	}
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left on the disk: %v, %v", left, err)
	}
}

// Text that databases and JSON find hard comes through.
func TestHandle_oddText(t *testing.T) {
	t.Parallel()
	w := newTown(t)
	w.add(minutes("a", "2024-01-15"), "nul \x00 here", "latin-1 caf\xe9", "Peña 😀 'quoted' \"double\" %s ?")
	w.compile()
	want := []string{"nul \uFFFD here", "latin-1 caf\uFFFD", "Peña 😀 'quoted' \"double\" %s ?"}
	if diff := cmp.Diff(want, query(t, w.open(), `SELECT text FROM minutes ORDER BY page`)); diff != "" {
		t.Error(diff)
	}
}

func TestHandle_stageContract(t *testing.T) {
	t.Parallel()
	fill := func(t *testing.T) *town {
		w := newTown(t)
		w.add(minutes("a", "2024-01-15"), "alpha", "")
		w.add(minutes("b", "2024-01-16"), "beta")
		w.add(agenda("c", "2024-01-16"), "gamma")
		return w
	}
	w := fill(t)
	var inputs []stage.Input
	for in, err := range w.task().Inputs(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		inputs = append(inputs, in)
	}
	stagetest.Check(t, func(t *testing.T) (stage.Handler, stagetest.Store) {
		w := fill(t)
		return compilation.New(w.store, t.TempDir()), w.store
	}, stagetest.Fixture{Name: "three documents", Prefix: "sites/t.ca/", Task: *w.task(), Inputs: inputs},
		stagetest.Fixture{Name: "none", Task: *w.task()})
}
