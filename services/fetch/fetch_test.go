package fetch

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/reeve-pipeline/reeve/pkg/artifact"
	"github.com/reeve-pipeline/reeve/pkg/civic"
	"github.com/reeve-pipeline/reeve/pkg/egress"
	"github.com/reeve-pipeline/reeve/pkg/fault"
	"github.com/reeve-pipeline/reeve/pkg/s3test"
	"github.com/reeve-pipeline/reeve/pkg/stage"
)

// config is a configuration for tests: any folder, this machine, no waiting.
func config() Config {
	c := Defaults()
	c.Folders = []string{"/"}
	c.Allow = []string{"127.0.0.0/8"}
	c.Robots = false
	c.Interval = 0
	return c
}

func fetcher(t *testing.T, store Store, c Config) *Fetcher {
	t.Helper()
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	f, err := New(store, c)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func object(t *testing.T, v any) json.RawMessage {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// listed is what a listing has handed on.
type listed struct {
	specs   []Spec
	batches []int
	result  stage.Result
}

func (l listed) bySource() map[string]Spec {
	m := map[string]Spec{}
	for _, s := range l.specs {
		m[s.Source] = s
	}
	return m
}

// list lists a site that has these documents already.
func list(t *testing.T, f *Fetcher, site civic.Site, known ...civic.Document) (listed, error) {
	t.Helper()
	var l listed
	if site.Subdomain == "" {
		site.Subdomain = "town"
	}
	task := &stage.Task{
		Run: 1, Subject: site.Subdomain, Stage: Name, Item: site.Subdomain, Spec: object(t, site),
		Spawn: func(_ context.Context, items ...stage.Item) error {
			l.batches = append(l.batches, len(items))
			for _, i := range items {
				var s Spec
				if err := json.Unmarshal(object(t, i.Spec), &s); err != nil {
					return err
				}
				if s.ID != i.Item {
					return fmt.Errorf("item %s has a spec of %s", i.Item, s.ID)
				}
				l.specs = append(l.specs, s)
			}
			return nil
		},
		Inputs: func(context.Context) iter.Seq2[stage.Input, error] {
			return func(yield func(stage.Input, error) bool) {
				for _, d := range known {
					if !yield(stage.Input{Item: d.ID, Status: d.Status, Output: object(t, d)}, nil) {
						return
					}
				}
			}
		},
	}
	var err error
	l.result, err = f.Handle(t.Context(), task)
	return l, err
}

// get downloads one document.
func get(t *testing.T, f *Fetcher, spec Spec, settings string) (stage.Result, civic.Document, error) {
	t.Helper()
	if spec.ID == "" {
		spec.ID = "doc-1"
	}
	result, err := f.Handle(t.Context(), &stage.Task{
		Run: 1, Subject: "town", Stage: Name, Item: spec.ID, Parent: "town", Spec: object(t, spec), Settings: json.RawMessage(settings),
	})
	var d civic.Document
	if result.Output != nil {
		if err := json.Unmarshal(object(t, result.Output), &d); err != nil {
			t.Fatal(err)
		}
	}
	return result, d, err
}

func must[T any](v T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func wantFault(t *testing.T, err error, class fault.Class, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	if got := fault.Of(err); got != class {
		t.Errorf("class %s, want %s: %v", got, class, err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not say %q", err, w)
		}
	}
}

func write(t *testing.T, dir, path, text string) string {
	t.Helper()
	p := filepath.Join(dir, path)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return p
}

func sum(s string) string {
	h := sha256.Sum256([]byte(s))
	return hex.EncodeToString(h[:])
}

func pdf(text string) string { return "%PDF-1.4\n" + text }

// settled makes of a downloaded document what the ledger says of it later.
func settled(d civic.Document) civic.Document {
	d.Status, d.Version = "done", max(d.Version, 1)
	d.Text = &civic.Object{Key: "k"}
	return d
}

func TestList_folder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, p := range []string{
		"CityCouncil/2024-01-15.pdf", "CityCouncil/2024-01-15 (2).PDF", "CityCouncil/2023-12-19.pdf", "_agendas/CityCouncil/2024-01-15.pdf",
		"CityofAlameda-ACTransitInteragencyLiaisonCommittee(ILC)/2018-01-03.pdf", "scan.pdf", "Planning Board/notes.txt", ".hidden/2024-01-01.pdf", "._x.pdf",
	} {
		write(t, dir, p, pdf(p))
	}
	f := fetcher(t, nil, config())
	l := must(list(t, f, civic.Site{Source: "file://" + dir}))(t)
	got := map[string]civic.Document{}
	for _, s := range l.specs {
		if s.Folder != dir || s.Previous != nil {
			t.Errorf("spec of %s: folder %q, previous %v", s.Source, s.Folder, s.Previous)
		}
		d := s.Document
		if !idForm.MatchString(d.ID) {
			t.Errorf("ID %q", d.ID)
		}
		d.ID, d.Title, d.Source = "", "", ""
		got[s.Source] = d
	}
	want := map[string]civic.Document{
		"CityCouncil/2024-01-15 (2).PDF":                                         {Kind: "minutes", Meeting: "CityCouncil", Date: "2024-01-15", Ordinal: 1},
		"CityCouncil/2024-01-15.pdf":                                             {Kind: "minutes", Meeting: "CityCouncil", Date: "2024-01-15", Ordinal: 2},
		"CityCouncil/2023-12-19.pdf":                                             {Kind: "minutes", Meeting: "CityCouncil", Date: "2023-12-19", Ordinal: 1},
		"_agendas/CityCouncil/2024-01-15.pdf":                                    {Kind: "agenda", Meeting: "CityCouncil", Date: "2024-01-15", Ordinal: 1},
		"CityofAlameda-ACTransitInteragencyLiaisonCommittee(ILC)/2018-01-03.pdf": {Kind: "minutes", Meeting: "CityofAlameda-ACTransitInteragencyLiaisonCommittee(ILC)", Date: "2018-01-03", Ordinal: 1},
		"scan.pdf": {Kind: "minutes", Meeting: unknown, Ordinal: 1},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	wantMetrics := map[string]float64{
		"documents_found": 6, "documents_new": 6, "documents_missing": 0, "documents_undated": 1, "files_other": 1, "files_hidden": 2,
	}
	if diff := cmp.Diff(wantMetrics, l.result.Metrics); diff != "" {
		t.Error(diff)
	}
}

// What a document was called and numbered by stays, whatever comes or goes.
func TestList_again(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, "CityCouncil/2024-01-15 b.pdf", "b")
	f := fetcher(t, nil, config())
	first := must(list(t, f, civic.Site{Source: dir}))(t).specs[0]

	write(t, dir, "CityCouncil/2024-01-15 a.pdf", "a") // before it by name
	write(t, dir, "CityCouncil/2024-01-15 c.pdf", "c")
	gone := civic.Document{ID: "gone", Kind: "minutes", Meeting: "CityCouncil", Date: "2024-01-15", Ordinal: 2, Source: "gone.pdf", Status: "done"}
	known := first.Document
	known.SHA256, known.Size, known.Key, known.ETag, known.LastModified = "ab", 7, "key", `"e"`, "yesterday"
	l := must(list(t, f, civic.Site{Source: dir}, settled(known), gone))(t)
	got := l.bySource()
	b := got["CityCouncil/2024-01-15 b.pdf"]
	if b.ID != first.ID || b.Ordinal != 1 {
		t.Errorf("%s with ordinal %d became %s with %d", first.ID, first.Ordinal, b.ID, b.Ordinal)
	}
	wantPrevious := &Previous{Key: "key", SHA256: "ab", Size: 7, ETag: `"e"`, LastModified: "yesterday", Version: 1, Settled: true}
	if diff := cmp.Diff(wantPrevious, b.Previous); diff != "" {
		t.Error(diff)
	}
	if b.Key != "" || b.SHA256 != "" || b.Status != "" {
		t.Errorf("the listed document carries what only the download knows: %+v", b.Document)
	}
	if a, c := got["CityCouncil/2024-01-15 a.pdf"], got["CityCouncil/2024-01-15 c.pdf"]; a.Ordinal != 3 || c.Ordinal != 4 {
		t.Errorf("new ordinals %d and %d, want 3 and 4", a.Ordinal, c.Ordinal)
	}
	if l.result.Metrics["documents_missing"] != 1 || l.result.Metrics["documents_new"] != 2 {
		t.Errorf("metrics %v", l.result.Metrics)
	}
}

func TestPrevious_settled(t *testing.T) {
	t.Parallel()
	text := &civic.Object{}
	for _, tt := range []struct {
		d    civic.Document
		want bool
	}{
		{civic.Document{Status: "done", SHA256: "x"}, true},
		{civic.Document{Status: "partial", SHA256: "x"}, true},
		{civic.Document{Status: "duplicate", SHA256: "x"}, true},
		{civic.Document{Status: "done"}, false},
		{civic.Document{Status: "pending", SHA256: "x"}, false},
		{civic.Document{Status: "failed", ErrorClass: "permanent", SHA256: "x"}, true},
		{civic.Document{Status: "failed", ErrorClass: "transient", SHA256: "x"}, false},
		{civic.Document{Status: "failed", ErrorClass: "permanent"}, false},
		{civic.Document{Status: "failed", ErrorClass: "permanent", SHA256: "x", Text: text}, false},
	} {
		if got := previous(tt.d).Settled; got != tt.want {
			t.Errorf("%+v: settled %t", tt.d, got)
		}
	}
}

// A year without a window: a December document is found in January, and only
// the site's start year leaves documents out.
func TestList_startYear(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, p := range []string{"Board/2023-12-28.pdf", "Board/2022-12-31.pdf", "Board/2024-01-02.pdf", "Board/undated.pdf"} {
		write(t, dir, p, p)
	}
	l := must(list(t, fetcher(t, nil, config()), civic.Site{Source: dir, StartYear: 2023}))(t)
	if got := l.bySource(); len(got) != 3 || got["Board/2023-12-28.pdf"].ID == "" || got["Board/undated.pdf"].ID == "" {
		t.Errorf("listed %v", got)
	}
	if l.result.Metrics["documents_before_start_year"] != 1 {
		t.Errorf("metrics %v", l.result.Metrics)
	}
}

func TestList_bounds(t *testing.T) {
	t.Parallel()
	outside, dir := t.TempDir(), t.TempDir()
	write(t, outside, "secret.pdf", pdf("secret"))
	write(t, dir, "docs/real.pdf", pdf("real"))
	for name, to := range map[string]string{"docs/out.pdf": outside + "/secret.pdf", "docs/in.pdf": "real.pdf", "docs/up.pdf": "../../secret.pdf", "docs/dir": outside} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	c := config()
	c.Folders = []string{dir}
	store := s3test.Open(t)
	f := fetcher(t, store, c)

	_, err := list(t, f, civic.Site{Source: outside})
	wantFault(t, err, fault.ClassPermanent, outside, "fetch.folders")
	_, err = list(t, f, civic.Site{Source: dir + "/docs/dir"})
	wantFault(t, err, fault.ClassPermanent, "fetch.folders")
	_, err = list(t, f, civic.Site{Source: dir + "/missing"})
	wantFault(t, err, fault.ClassPermanent, "missing")
	_, err = list(t, f, civic.Site{Source: dir + "/docs/real.pdf"})
	wantFault(t, err, fault.ClassPermanent, "real.pdf")
	_, err = list(t, fetcher(t, nil, Defaults()), civic.Site{Source: dir})
	wantFault(t, err, fault.ClassPermanent, "fetch.folders")

	got := must(list(t, f, civic.Site{Source: dir + "/docs"}))(t).bySource()
	if len(got) != 4 {
		t.Fatalf("listed %v", got)
	}
	for source, ok := range map[string]bool{"real.pdf": true, "in.pdf": true, "out.pdf": false, "up.pdf": false} {
		_, _, err := get(t, f, got[source], "")
		if ok && err != nil {
			t.Errorf("%s: %v", source, err)
		} else if !ok {
			wantFault(t, err, fault.ClassPermanent, source, "link")
		}
	}
	for _, source := range []string{"../../../etc/passwd", "/etc/passwd", "missing.pdf", "."} {
		_, _, err := get(t, f, Spec{Document: civic.Document{Source: source}, Folder: dir + "/docs"}, "")
		if err == nil {
			t.Errorf("%s was read", source)
		}
	}
}

func TestList_sources(t *testing.T) {
	t.Parallel()
	f := fetcher(t, nil, config())
	for _, source := range []string{"", "relative/path", "ftp://x/y", "http://", "file://other/x", "://", "javascript:alert(1)"} {
		_, err := list(t, f, civic.Site{Source: source})
		wantFault(t, err, fault.ClassPermanent, "source")
	}
	empty := must(list(t, f, civic.Site{Source: t.TempDir()}))(t)
	if len(empty.specs) != 0 || empty.result.Metrics["documents_found"] != 0 {
		t.Errorf("an empty folder listed %v", empty.specs)
	}
}

func TestList_nameThatIsNoText(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, "Comit\xe9/2024-01-15.pdf", pdf("x"))
	store := s3test.Open(t)
	f := fetcher(t, store, config())
	specs := must(list(t, f, civic.Site{Source: dir}))(t).specs
	if len(specs) != 1 || specs[0].Source != "Comit%E9/2024-01-15.pdf" {
		t.Fatalf("%+v", specs)
	}
	if _, d, err := get(t, f, specs[0], ""); err != nil || d.SHA256 != sum(pdf("x")) {
		t.Fatalf("%+v, %v", d, err)
	}
}

// Twenty thousand files are listed in seconds, and handed on while the folder
// is still being read.
func TestList_manyFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for i := range 20_000 {
		board := fmt.Sprintf("Board%02d", i%20)
		if i < 20 {
			if err := os.Mkdir(filepath.Join(dir, board), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		day := time.Date(1990, 1, 1, 0, 0, 0, 0, time.UTC).AddDate(0, 0, i/20).Format(time.DateOnly)
		if err := os.WriteFile(filepath.Join(dir, board, day+".pdf"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	start := time.Now()
	l := must(list(t, fetcher(t, nil, config()), civic.Site{Source: dir}))(t)
	if took := time.Since(start); took > time.Minute {
		t.Errorf("took %v", took)
	} else {
		t.Logf("20,000 files in %v", took)
	}
	if len(l.specs) != 20_000 || slices.Max(l.batches) > chunk || len(l.bySource()) != 20_000 {
		t.Errorf("listed %d in %d batches", len(l.specs), len(l.batches))
	}
	ids := map[string]bool{}
	for _, s := range l.specs {
		ids[s.ID] = true
	}
	if len(ids) != 20_000 {
		t.Errorf("%d different IDs", len(ids))
	}
}

func TestCopy(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := write(t, dir, "Board/2024-01-15.pdf", pdf("one"))
	store := s3test.Open(t)
	f := fetcher(t, store, config())
	find := func(known ...civic.Document) Spec {
		return must(list(t, f, civic.Site{Source: dir}, known...))(t).specs[0]
	}

	spec := find()
	result, d, err := get(t, f, spec, "")
	if err != nil || result.Skip != "" {
		t.Fatalf("%+v, %v", result, err)
	}
	if want := civic.DocumentKey("town", spec.ID, sum(pdf("one")), "source.pdf"); d.Key != want || d.SHA256 != sum(pdf("one")) || d.Size != int64(len(pdf("one"))) || d.Version != 1 {
		t.Fatalf("%+v", d)
	}
	stored := must(store.ReadAll(t.Context(), d.Key, d.SHA256, 1<<20))(t)
	if string(stored) != pdf("one") {
		t.Fatalf("stored %q", stored)
	}
	again, d2, err := get(t, f, spec, "") // delivered twice
	if err != nil || !cmp.Equal(d, d2) || !cmp.Equal(result.Artifacts, again.Artifacts) {
		t.Fatalf("a second time: %+v, %v", d2, err)
	}

	known := settled(d)
	if r, d, err := get(t, f, find(known), ""); err != nil || r.Skip != "unchanged" || r.Metrics["bytes_read"] != 0 || d.SHA256 != known.SHA256 {
		t.Errorf("same size and time: %+v, %v", r, err)
	}
	if r, _, err := get(t, f, find(known), `{"force":true}`); err != nil || r.Skip != "" {
		t.Errorf("force: %+v, %v", r, err)
	}
	later := time.Now().Add(time.Hour)
	if err := os.Chtimes(path, later, later); err != nil {
		t.Fatal(err)
	}
	if r, d, err := get(t, f, find(known), ""); err != nil || r.Skip != "unchanged" || r.Metrics["bytes_read"] == 0 || d.LastModified == known.LastModified {
		t.Errorf("touched: %+v, %v", r, err)
	}
	write(t, dir, "Board/2024-01-15.pdf", pdf("two"))
	if r, d, err := get(t, f, find(known), ""); err != nil || r.Skip != "" || d.ID != known.ID || d.Key == known.Key || d.Version != 2 {
		t.Errorf("posted again: %+v, %+v, %v", r, d, err)
	}
	for text, word := range map[string]string{"": "0 bytes", "<!DOCTYPE html><html>": `begins with "<!DOCTYPE html>`, "PK\x03\x04": `\x03`} {
		write(t, dir, "Board/2024-01-15.pdf", text)
		_, _, err := get(t, f, find(), "")
		wantFault(t, err, fault.ClassPermanent, "Board/2024-01-15.pdf", word)
	}
	small := config()
	small.MaxSize = 10
	write(t, dir, "Board/2024-01-15.pdf", pdf("much more"))
	_, _, err = get(t, fetcher(t, store, small), find(), "")
	wantFault(t, err, fault.ClassPermanent, "larger than 10 bytes", "fetch.max_size")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	_, _, err = get(t, f, spec, "")
	wantFault(t, err, fault.ClassPermanent, "2024-01-15.pdf")
}

// serve is a web server of this test's own.
func serve(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return srv.URL
}

func doc(url string) Spec { return Spec{Document: civic.Document{ID: "doc-1", Source: url}} }

func TestDownload(t *testing.T) {
	t.Parallel()
	var body atomic.Value
	var asked atomic.Value
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		asked.Store(r.Header.Clone())
		text := body.Load().(string)
		tag := `"` + sum(text)[:8] + `"`
		w.Header().Set("ETag", tag)
		w.Header().Set("Last-Modified", "Mon, 15 Jan 2024 10:00:00 GMT")
		if r.Header.Get("If-None-Match") == tag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		_, _ = io.WriteString(w, text)
	})
	store := s3test.Open(t)
	f := fetcher(t, store, config())
	body.Store("\xef\xbb\xbf" + pdf("one")) // something may stand before %PDF-
	r, d, err := get(t, f, doc(url+"/a.pdf"), "")
	if err != nil || r.Skip != "" || d.ETag == "" || d.LastModified == "" || d.SHA256 != sum(body.Load().(string)) || len(r.Artifacts) != 1 {
		t.Fatalf("%+v, %v", r, err)
	}
	if !strings.Contains(asked.Load().(http.Header).Get("User-Agent"), "+https://") {
		t.Errorf("asked with %v", asked.Load())
	}
	next := doc(url + "/a.pdf")
	next.Previous = previous(settled(d))
	if r, d2, err := get(t, f, next, ""); err != nil || r.Skip != "unchanged" || d2.SHA256 != d.SHA256 || d2.ETag != d.ETag || d2.Key != d.Key {
		t.Errorf("304: %+v, %+v, %v", r, d2, err)
	}
	if r, _, err := get(t, f, next, `{"force":true}`); err != nil || r.Skip != "" || asked.Load().(http.Header).Get("If-None-Match") != "" {
		t.Errorf("force: %+v, %v", r, err)
	}
	noTag := next
	noTag.Previous = &Previous{SHA256: d.SHA256, Key: d.Key, Settled: true, Version: 1}
	if r, _, err := get(t, f, noTag, ""); err != nil || r.Skip != "unchanged" {
		t.Errorf("same bytes: %+v, %v", r, err)
	}
	failed := next
	failed.Previous = previous(civic.Document{SHA256: d.SHA256, ETag: d.ETag, Status: "failed", ErrorClass: "transient"})
	if r, _, err := get(t, f, failed, ""); err != nil || r.Skip != "" || asked.Load().(http.Header).Get("If-None-Match") != "" {
		t.Errorf("after a passing failure: %+v, %v", r, err)
	}
	body.Store(pdf("two"))
	if r, d2, err := get(t, f, next, ""); err != nil || r.Skip != "" || d2.Version != 2 || d2.Key == d.Key {
		t.Errorf("posted again: %+v, %+v, %v", r, d2, err)
	}
	if old, err := store.ReadAll(t.Context(), d.Key, d.SHA256, 1<<20); err != nil || !bytes.Contains(old, []byte("one")) {
		t.Errorf("the earlier version is gone: %q, %v", old, err)
	}
}

func TestDownload_badAnswers(t *testing.T) {
	t.Parallel()
	stop := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	status := func(code int, header ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			for i := 0; i+1 < len(header); i += 2 {
				w.Header().Set(header[i], header[i+1])
			}
			w.WriteHeader(code)
		}
	}
	for _, tt := range []struct {
		name    string
		handler http.HandlerFunc
		class   fault.Class
		words   []string
		after   time.Duration
	}{
		{"missing", status(404), fault.ClassPermanent, []string{"404"}, 0},
		{"gone", status(410), fault.ClassPermanent, []string{"410"}, 0},
		{"forbidden", status(403), fault.ClassPermanent, []string{"403"}, 0},
		{"unavailable", status(503), fault.ClassTransient, []string{"503"}, 0},
		{"broken", status(500), fault.ClassTransient, []string{"500"}, 0},
		{"too many, seconds", status(429, "Retry-After", "120"), fault.ClassRateLimited, []string{"429"}, 2 * time.Minute},
		{"unavailable until a date", status(503, "Retry-After", "Mon, 15 Jan 2024 10:05:00 GMT", "Date", "Mon, 15 Jan 2024 10:00:00 GMT"), fault.ClassRateLimited, []string{"503"}, 5 * time.Minute},
		{"not modified unasked", status(304), fault.ClassPermanent, []string{"304"}, 0},
		{"empty", status(200), fault.ClassPermanent, []string{"0 bytes"}, 0},
		{"a web page", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "<!DOCTYPE html><p>Down for repairs")
		}, fault.ClassPermanent, []string{`<!DOCTYPE html>`}, 0},
		{"a PDF too late", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, strings.Repeat(" ", 2000)+"%PDF-")
		}, fault.ClassPermanent, []string{"no PDF"}, 0},
		{"cut off", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			_, _ = io.WriteString(w, pdf("half"))
		}, fault.ClassTransient, []string{"cut off after"}, 0},
		{"too large by its header", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", strconv.Itoa(1<<21))
			_, _ = io.WriteString(w, pdf(""))
		}, fault.ClassPermanent, []string{"larger than"}, 0},
		{"too large without saying", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, pdf(""))
			for range 1 << 11 {
				if _, err := w.Write(make([]byte, 1<<10)); err != nil {
					return
				}
			}
		}, fault.ClassPermanent, []string{"larger than"}, 0},
		{"stalls before it answers", stop, fault.ClassTransient, []string{"stalled"}, 0},
		{"stalls half-way", func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, pdf("half"))
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}, fault.ClassTransient, []string{"stalled", "cut off after"}, 0},
		{"for ever", func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				_, _ = io.WriteString(w, pdf(""))
				w.(http.Flusher).Flush()
				select {
				case <-time.After(5 * time.Millisecond):
				case <-r.Context().Done():
				}
			}
		}, fault.ClassTransient, []string{"took too long"}, 0},
		{"redirects to a private address", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://169.254.169.254/latest/meta-data/", http.StatusFound)
		}, fault.ClassPermanent, []string{"169.254.169.254"}, 0},
		{"redirects to a file", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "file:///etc/passwd", http.StatusFound)
		}, fault.ClassPermanent, []string{"scheme"}, 0},
		{"redirects for ever", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.Path, http.StatusFound) }, fault.ClassPermanent, []string{"redirects"}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := config()
			c.MaxSize, c.Stall, c.Timeout, c.PerHost = 1<<20, 300*time.Millisecond, 2*time.Second, 1
			_, _, err := get(t, fetcher(t, nil, c), doc(serve(t, tt.handler)+"/x.pdf"), "")
			wantFault(t, err, tt.class, append(tt.words, "/")...)
			if got := fault.After(err); got != tt.after && tt.after != 0 {
				t.Errorf("after %v, want %v", got, tt.after)
			}
		})
	}
}

func TestDownload_unreachable(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(nil)
	url := srv.URL
	srv.Close()
	f := fetcher(t, nil, config())
	_, _, err := get(t, f, doc(url+"/x.pdf"), "")
	wantFault(t, err, fault.ClassTransient, url)
	if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("%v", err)
	}
	_, err = list(t, f, civic.Site{Source: url})
	wantFault(t, err, fault.ClassTransient, url)

	secure := httptest.NewTLSServer(nil) // by a certificate that nobody knows
	defer secure.Close()
	_, _, err = get(t, f, doc(secure.URL+"/x.pdf"), "")
	wantFault(t, err, fault.ClassPermanent, "certificate")

	c := config()
	c.Allow = nil
	_, _, err = get(t, fetcher(t, nil, c), doc(secure.URL+"/x.pdf"), "")
	wantFault(t, err, fault.ClassPermanent, "127.0.0.1")
	if !errors.Is(err, egress.ErrRefused) {
		t.Errorf("%v", err)
	}
}

// An interrupted download returns soon and leaves nothing behind.
func TestDownload_interrupted(t *testing.T) {
	t.Parallel()
	begun := make(chan struct{})
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, pdf("half"))
		w.(http.Flusher).Flush()
		close(begun)
		<-r.Context().Done()
	})
	c := config()
	c.Temp = t.TempDir()
	f := fetcher(t, nil, c)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-begun; cancel() }()
	_, err := f.Handle(ctx, &stage.Task{Subject: "town", Item: "doc-1", Parent: "town", Spec: object(t, doc(url))})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if left, _ := os.ReadDir(c.Temp); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestHandle_garbage(t *testing.T) {
	t.Parallel()
	f := fetcher(t, nil, config())
	for _, task := range []*stage.Task{
		{},
		{Parent: "town"},
		{Spec: json.RawMessage("[]")},
		{Parent: "town", Spec: json.RawMessage(`{"source":7}`)},
		{Parent: "town", Item: "a", Spec: json.RawMessage(`{"document_id":"b","source":"http://x"}`)},
		{Parent: "town", Item: "a", Spec: json.RawMessage(`{"document_id":"a"}`)},
		{Parent: "town", Item: "a", Spec: json.RawMessage(`{"document_id":"a","source":"http://\u007f"}`)},
		{Parent: "town", Item: "a", Spec: json.RawMessage(`{}`), Settings: json.RawMessage(`[]`)},
	} {
		_, err := f.Handle(t.Context(), task)
		wantFault(t, err, fault.ClassPermanent)
	}
}

// hosts is a RoundTripper that answers at once and remembers.
type hosts struct {
	mu     sync.Mutex
	at     []time.Time
	inHand int
	most   int
	answer func(*http.Request) *http.Response
}

func (h *hosts) RoundTrip(r *http.Request) (*http.Response, error) {
	h.mu.Lock()
	h.at = append(h.at, time.Now())
	h.inHand++
	h.most = max(h.most, h.inHand)
	h.mu.Unlock()
	select {
	case <-time.After(100 * time.Millisecond):
	case <-r.Context().Done():
	}
	h.mu.Lock()
	h.inHand--
	h.mu.Unlock()
	resp := h.answer(r)
	resp.Request = r
	return resp, nil
}

func answer(code int, body string, header http.Header) *http.Response {
	return &http.Response{StatusCode: code, Status: strconv.Itoa(code), Header: header, Body: io.NopCloser(strings.NewReader(body))}
}

func ask(ctx context.Context, c *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return errors.Join(err, resp.Body.Close())
}

func TestPolite_pace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &hosts{answer: func(*http.Request) *http.Response { return answer(200, "x", nil) }}
		c := config()
		c.PerHost, c.Interval = 2, 30*time.Millisecond
		client := polite(&http.Client{Transport: h}, c)
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				if err := ask(t.Context(), client, "http://town.example/x"); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if h.most > 2 {
			t.Errorf("%d requests at once", h.most)
		}
		for i := 1; i < len(h.at); i++ {
			if gap := h.at[i].Sub(h.at[i-1]); gap < 30*time.Millisecond {
				t.Errorf("requests %d and %d only %v apart", i-1, i, gap)
			}
		}
	})
}

func TestPolite_pause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		wait := "20"
		h := &hosts{answer: func(*http.Request) *http.Response {
			if wait == "" {
				return answer(200, "x", http.Header{})
			}
			return answer(429, "", http.Header{"Retry-After": {wait}})
		}}
		client := polite(&http.Client{Transport: h}, config())
		if err := ask(t.Context(), client, "http://town.example/x"); err != nil {
			t.Fatal(err)
		}
		wait = ""
		start := time.Now()
		if err := ask(t.Context(), client, "http://town.example/x"); err != nil || time.Since(start) < 20*time.Second {
			t.Errorf("asked again after %v: %v", time.Since(start), err)
		}
		wait = "3600"
		if err := ask(t.Context(), client, "http://town.example/x"); err != nil {
			t.Fatal(err)
		}
		before := len(h.at)
		err := ask(t.Context(), client, "http://town.example/y")
		wantFault(t, err, fault.ClassRateLimited, "pause")
		if after := fault.After(err); after < 59*time.Minute || len(h.at) != before {
			t.Errorf("after %v, %d requests more", after, len(h.at)-before)
		}
		if err := ask(t.Context(), client, "http://other.example/y"); err != nil {
			t.Errorf("another host: %v", err)
		}
	})
}

func TestPolite_robots(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		code, asked := 200, 0
		text := "User-agent: *\nDisallow: /\n\nUser-agent: Other\nUser-agent: reeve\nDisallow: /private # ours\nAllow: /private/minutes\nDisallow: /*.cgi$\nCrawl-delay: 2\n"
		h := &hosts{answer: func(r *http.Request) *http.Response {
			if r.URL.Path == "/robots.txt" {
				asked++
				return answer(code, text, http.Header{})
			}
			return answer(200, "x", http.Header{})
		}}
		c := config()
		c.Robots = true
		client := polite(&http.Client{Transport: h}, c)
		for path, ok := range map[string]bool{"/": true, "/private": false, "/private/x": false, "/private/minutes/1": true, "/a.cgi": false, "/a.cgi?x": true} {
			err := ask(t.Context(), client, "http://town.example"+path)
			if ok && err != nil {
				t.Errorf("%s: %v", path, err)
			} else if !ok {
				wantFault(t, err, fault.ClassPermanent, "robots.txt", "fetch.robots")
			}
		}
		if asked != 1 {
			t.Errorf("robots.txt was asked for %d times", asked)
		}
		for i := 2; i < len(h.at); i++ { // the delay is known after the first
			if gap := h.at[i].Sub(h.at[i-1]); gap < 2*time.Second {
				t.Errorf("requests only %v apart", gap)
			}
		}
		code = 404
		if err := ask(t.Context(), client, "http://none.example/private"); err != nil {
			t.Errorf("no robots.txt: %v", err)
		}
		code = 503
		wantFault(t, ask(t.Context(), client, "http://ill.example/x"), fault.ClassTransient, "robots.txt")
	})
}

func TestConfig_Validate(t *testing.T) {
	t.Parallel()
	c := Defaults()
	if err := c.Validate(); err != nil {
		t.Errorf("defaults: %v", err)
	}
	c.Folders, c.Allow, c.UserAgent, c.PerHost = []string{"relative"}, []string{"http://x"}, "", 0
	err := c.Validate()
	for _, word := range []string{"fetch.folders", "fetch.allow", "fetch.user_agent", "per_host"} {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%v does not say %s", err, word)
		}
	}
}

var _ Store = (*artifact.Store)(nil)
