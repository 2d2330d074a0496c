package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/reeve-pipeline/reeve/pkg/civic"
	"github.com/reeve-pipeline/reeve/pkg/sample"
)

// What the API's answers are read as.
type (
	runRow struct {
		Run          int
		Status, Note string
		ErrorMessage string `json:"error_message"`
		Documents    sums
		Problems     []struct {
			Item, Status, Class, Message string
			Unchanged                    bool
		}
		Stages []struct {
			Stage                    string
			Total, Completed, Failed int
		}
	}
	sums struct {
		Found, Done, Partial, Failed, Duplicates, Unchanged, Pending int
		Pages                                                        map[string]int
	}
	documentRow struct {
		Kind, Meeting, Date, Source, Status string
		Pages                               int
		Native                              int    `json:"pages_native"`
		Image                               int    `json:"pages_image"`
		Blank                               int    `json:"pages_blank"`
		DocumentID                          string `json:"document_id"`
		DuplicateOf                         string `json:"duplicate_of"`
		Error                               *struct{ Class, Message string }
	}
	hit struct {
		Meeting, Date, Kind string
		Page                int
	}
	hits struct {
		Total int
		Hits  []hit
	}
)

// total returns how many tasks a stage of the run had.
func (r runRow) total(stage string) int {
	for _, s := range r.Stages {
		if s.Stage == stage {
			return s.Total
		}
	}
	return -1
}

// post asks the API the way curl does.
func (i *instance) post(t *testing.T, method string, request, into any) {
	t.Helper()
	body, err := json.Marshal(request)
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, i.api+"/reeve.v1.ReeveService/"+method, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode == http.StatusOK {
		err = json.Unmarshal(answer, into)
	}
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: %d %v %s", method, body, resp.StatusCode, err, answer)
	}
}

// pages returns where a phrase is found in a site.
func (i *instance) pages(t *testing.T, site, phrase string) hits {
	t.Helper()
	var h hits
	i.post(t, "Search", map[string]any{"subdomain": site, "query": `"` + phrase + `"`}, &h)
	return h
}

// through takes a site through the pipeline.
func through(t *testing.T, data, site string, code int) runRow {
	t.Helper()
	var r runRow
	ask(t, data, code, &r, "run", "start", "civic", site, "--wait")
	if d := r.Documents; d.Found != d.Done+d.Partial+d.Failed+d.Duplicates+d.Unchanged || d.Pending != 0 {
		t.Errorf("run %d of %s does not add up: %+v", r.Run, site, d)
	}
	return r
}

// published returns the manifest and the database of a site, as they lie in the store.
func published(t *testing.T, data, site string) (manifest, database []byte) {
	t.Helper()
	bucket := filepath.Join(data, "s3", "buckets", "reeve")
	manifest, err := os.ReadFile(filepath.Join(bucket, filepath.FromSlash(civic.SiteKey(site, "manifest.json"))))
	if err != nil {
		t.Fatal(err)
	}
	var m civic.Manifest
	if err := json.Unmarshal(manifest, &m); err != nil {
		t.Fatal(err)
	}
	if database, err = os.ReadFile(filepath.Join(bucket, filepath.FromSlash(m.Database.Key))); err != nil {
		t.Fatal(err)
	}
	return manifest, database
}

// The invented town goes through the whole of Reeve, and everything becomes of
// it that it was made for; then again, unchanged; then with one more document.
func TestTown(t *testing.T) {
	t.Parallel()
	data, docs := filepath.Join(t.TempDir(), "data"), t.TempDir()
	town, err := sample.Write(docs)
	if err != nil {
		t.Fatal(err)
	}
	reeve := up(t, data)
	var site struct{ Subdomain string }
	ask(t, data, 0, &site, "site", "add", "wrenfield", "--source", docs, "--name", "Wrenfield")

	run := through(t, data, "wrenfield", 1) // some are made to fail
	if n := len(town.Files); run.Status != "completed" || run.total("fetch") != n+1 || run.total("deploy") != 1 || run.Documents.Found != n {
		t.Errorf("the run: %+v", run)
	}
	var list struct{ Documents []documentRow }
	reeve.post(t, "ListDocuments", map[string]any{"subdomain": "wrenfield"}, &list)
	documents := map[string]documentRow{}
	ids := map[string]string{}
	for _, d := range list.Documents {
		documents[d.Source], ids[d.DocumentID] = d, d.Source
	}
	for _, f := range town.Files {
		d := documents[f.Path]
		status := f.Status
		for _, other := range town.Files {
			if f.DuplicateOf == other.Path || other.DuplicateOf == f.Path {
				// Which of two alike is the duplicate is decided by which came first.
				if status = "done"; d.DuplicateOf != "" {
					status = "duplicate"
				}
				if pair := []string{d.Status, documents[other.Path].Status}; !slices.Contains(pair, "done") || !slices.Contains(pair, "duplicate") {
					t.Errorf("%s and %s, which are alike, ended as %v", f.Path, other.Path, pair)
				}
				if d.DuplicateOf != "" && ids[d.DuplicateOf] != other.Path {
					t.Errorf("%s is called a duplicate of %q", f.Path, ids[d.DuplicateOf])
				}
			}
		}
		got := documentRow{Kind: d.Kind, Meeting: d.Meeting, Date: d.Date, Source: d.Source, Status: d.Status, Pages: d.Pages, Native: d.Native, Image: d.Image, Blank: d.Blank}
		want := documentRow{Kind: f.Kind, Meeting: f.Meeting, Date: f.Date, Source: f.Path, Status: status, Pages: f.Pages.Total, Native: f.Pages.Native, Image: f.Pages.Image, Blank: f.Pages.Blank}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", f.Path, diff)
		}
		switch {
		case f.Status != "failed" && d.Error != nil:
			t.Errorf("%s: %+v", f.Path, d.Error)
		case f.Status == "failed" && (d.Error == nil || d.Error.Class != string(f.Class) || !strings.Contains(d.Error.Message, f.Path) || !strings.Contains(strings.ToLower(d.Error.Message), strings.ToLower(f.Reason))):
			t.Errorf("%s failed with %+v, want class %s, the path, and %q", f.Path, d.Error, f.Class, f.Reason)
		}
		for _, phrase := range f.Phrases {
			if h := reeve.pages(t, "wrenfield", phrase); !slices.ContainsFunc(h.Hits, func(at hit) bool {
				return at.Meeting == f.Meeting && at.Date == f.Date && at.Kind == f.Kind && at.Page >= 1 && at.Page <= f.Pages.Total
			}) {
				t.Errorf("%q of %s is not found: %+v", phrase, f.Path, h)
			}
		}
	}
	of := town.Pages()
	for source, want := range map[string]int{"native": of.Native, "image": of.Image, "blank": of.Blank, "ocr": 0, "failed": 0} {
		if got := run.Documents.Pages[source]; got != want {
			t.Errorf("%d pages are %s, want %d", got, source, want)
		}
	}

	manifest, _ := published(t, data, "wrenfield")
	again := through(t, data, "wrenfield", 1)
	d := again.Documents
	if again.Note != "unchanged" || d.Done+d.Partial+d.Duplicates != 0 || again.total("pagination") != 0 || again.total("deploy") != 0 {
		t.Errorf("a second time: %+v", again)
	}
	for _, p := range again.Problems {
		// What could not be fetched is tried again; the rest is known to be as it was.
		if old := documents[p.Item].Pages > 0 || d.Failed == 0; old && !p.Unchanged {
			t.Errorf("a second time, %s is no news: %+v", p.Item, p)
		}
	}
	if same, _ := published(t, data, "wrenfield"); !bytes.Equal(manifest, same) {
		t.Errorf("a second time, the manifest changed:\n%s\n%s", manifest, same)
	}

	extra, err := sample.WriteN(t.TempDir(), 1)
	if err != nil {
		t.Fatal(err)
	}
	copyFile(t, extra.Site.Source, extra.Files[0].Path, docs, "WaterDistrict/2024-05-01.pdf")
	more := through(t, data, "wrenfield", 1)
	if d := more.Documents; d.Found != len(town.Files)+1 || d.Done != 1 || d.Partial+d.Duplicates != 0 || more.total("pagination") != 1 || more.total("reduce") != 1 || more.total("deploy") != 1 {
		t.Errorf("with one more: %+v", more)
	}
	if h := reeve.pages(t, "wrenfield", extra.Files[0].Phrases[0]); h.Total != 1 || h.Hits[0].Meeting != "WaterDistrict" {
		t.Errorf("the one more is found at %+v", h)
	}
	if h := reeve.pages(t, "wrenfield", "stormwater easement"); h.Total == 0 {
		t.Error("with one more, what was there before is gone")
	}
}

// When all of a site's documents break, its run fails and what it published
// stays as it is; when half of them do, the other half goes on.
func TestBrokenTown(t *testing.T) {
	t.Parallel()
	data, docs := filepath.Join(t.TempDir(), "data"), t.TempDir()
	town, err := sample.WriteN(docs, 12)
	if err != nil {
		t.Fatal(err)
	}
	later, err := sample.WriteN(t.TempDir(), 24)
	if err != nil {
		t.Fatal(err)
	}
	reeve := up(t, data)
	var site struct{ Subdomain string }
	ask(t, data, 0, &site, "site", "add", "ruin", "--source", docs)
	if r := through(t, data, "ruin", 0); r.Status != "completed" || r.Documents.Done != 12 {
		t.Fatalf("before: %+v", r)
	}
	manifest, database := published(t, data, "ruin")

	for i, f := range town.Files {
		broken := fmt.Appendf(nil, "%%PDF-1.7 and then nothing, %d", i)
		if err := os.WriteFile(filepath.Join(docs, filepath.FromSlash(f.Path)), broken, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r := through(t, data, "ruin", 1)
	if r.Status != "failed" || r.Documents.Failed != 12 || len(r.Problems) != 12 || !strings.Contains(r.ErrorMessage, "0 of 12") || r.total("compilation")+r.total("deploy") != 0 {
		t.Errorf("12 of 12 broken: %+v", r)
	}
	same, sameDB := published(t, data, "ruin")
	if !bytes.Equal(manifest, same) || !bytes.Equal(database, sameDB) {
		t.Error("12 of 12 broken, and what was published has changed")
	}
	for _, f := range town.Files {
		if h := reeve.pages(t, "ruin", f.Phrases[0]); h.Total != 1 {
			t.Errorf("12 of 12 broken, and %q is found %d times", f.Phrases[0], h.Total)
		}
	}

	for i, f := range town.Files[:6] {
		copyFile(t, later.Site.Source, later.Files[12+i].Path, docs, f.Path)
	}
	r = through(t, data, "ruin", 1)
	if r.Status != "completed" || r.Documents.Done != 6 || r.Documents.Failed != 6 || len(r.Problems) != 6 || r.total("deploy") != 1 {
		t.Errorf("6 of 12 broken: %+v", r)
	}
	for i, f := range town.Files {
		phrase := f.Phrases[0] // of those still broken, what was there before
		if i < 6 {
			phrase = later.Files[12+i].Phrases[0]
		}
		if h := reeve.pages(t, "ruin", phrase); h.Total != 1 {
			t.Errorf("6 of 12 broken, and %q is found %d times", phrase, h.Total)
		}
	}
}

// copyFile copies a file from one folder to a path in another.
func copyFile(t *testing.T, from, path, to, as string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(from, filepath.FromSlash(path)))
	if err != nil {
		t.Fatal(err)
	}
	as = filepath.Join(to, filepath.FromSlash(as))
	if err := os.MkdirAll(filepath.Dir(as), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(as, b, 0o600); err != nil {
		t.Fatal(err)
	}
}
