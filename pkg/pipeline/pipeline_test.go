package pipeline_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/reeve-pipeline/reeve/pkg/pipeline"
)

func TestPipelines_AreValid(t *testing.T) {
	t.Parallel()
	for _, p := range pipeline.Pipelines() {
		if err := p.Validate(); err != nil {
			t.Error(err)
		}
		for name, on := range p.Settings {
			if off, ok := on.(bool); ok && !off {
				if err := p.For(map[string]any{name: true}).Validate(); err != nil {
					t.Errorf("with %s: %v", name, err)
				}
			}
		}
		if err := p.For(nil).Validate(); err != nil {
			t.Errorf("without settings: %v", err)
		}
	}
}

func TestFor_LeavesOutWhatIsOff(t *testing.T) {
	t.Parallel()
	civic, _ := pipeline.Named("civic")
	if _, ok := civic.For(map[string]any{"entities": false}).Stage("extraction"); ok {
		t.Error("extraction is there although entities are off")
	}
	if _, ok := civic.For(map[string]any{"entities": true}).Stage("extraction"); !ok {
		t.Error("extraction is missing although entities are on")
	}
}

func TestValidate_NamesEverythingWrong(t *testing.T) {
	t.Parallel()
	s := pipeline.Stage{Name: "a", Timeout: time.Second, MaxAttempts: 1, Concurrency: 1, MaxInFlight: 1, Silence: time.Second, Backoff: 1, BackoffMax: 1}
	b := s
	b.Name = "B!"
	lazy := s
	lazy.Name, lazy.Timeout = "lazy", 0
	err := (&pipeline.Pipeline{Name: "x y", Root: "none", Stages: []pipeline.Stage{s, s, b, lazy}, Edges: []pipeline.Edge{
		{Kind: pipeline.Each, From: "a", To: "a"},
		{Kind: pipeline.All, From: "a", To: "lazy"},
		{Kind: pipeline.Join, From: "lazy", To: "a"},
		{Kind: pipeline.Each, From: "a", To: "nowhere", MaxFailedPct: 101},
	}}).Validate()
	for _, want := range []string{
		"a name is lower-case", `stage "B!"`, "version", "stands twice", "timeout", `root "none"`, "only spawn may lead back",
		"name their item", "nothing spawns", "both ends", "0..100", "can be reached from itself",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q:\n%v", want, err)
		}
	}
}

func TestJoinAfter(t *testing.T) {
	t.Parallel()
	civic, _ := pipeline.Named("civic")
	join, through, ok := civic.JoinAfter("pagination")
	if !ok || join.To != "reduce" {
		t.Errorf("pagination's children are joined at %q, %t", join.To, ok)
	}
	if diff := cmp.Diff([]string{"line_detection", "line_extraction", "ocr"}, through); diff != "" {
		t.Errorf("stages before the join (-want +got):\n%s", diff)
	}
	if _, _, ok := civic.JoinAfter("fetch"); ok {
		t.Error("something joins the documents of a listing")
	}
	if diff := cmp.Diff([]string{"compilation", "deploy"}, civic.For(nil).After("reduce")); diff != "" {
		t.Errorf("stages after reduce (-want +got):\n%s", diff)
	}
}

func TestSettle_Verdicts(t *testing.T) {
	t.Parallel()
	p, _ := pipeline.Named("civic")
	p = p.For(nil)
	for _, tt := range []struct {
		name                            string
		listed, unchanged, broken, lost int64
		plan                            int
		note, doomed                    string
	}{
		{name: "nothing listed", note: "no_documents"},
		{name: "all came through", listed: 5, plan: 1},
		{name: "one of two came through", listed: 2, broken: 1, plan: 1},
		{name: "all failed", listed: 12, broken: 12, doomed: "0 of 12 documents came through, at least 1 must"},
		{name: "all unchanged", listed: 7, unchanged: 7, plan: 1},
		{name: "all unchanged but one, which failed", listed: 7, unchanged: 6, broken: 1, plan: 1},
		{name: "no download came through", listed: 3, lost: 3, doomed: "0 of 3 documents"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			fetched := tt.listed - tt.lost
			paged := fetched - tt.unchanged
			counts := map[string]*pipeline.Count{
				"fetch":      {Total: tt.listed + 1, Completed: fetched + 1, Failed: tt.lost, Skipped: tt.unchanged},
				"pagination": {Total: paged, Completed: paged - tt.broken, Failed: tt.broken},
				"reduce":     {Total: paged - tt.broken, Completed: paged - tt.broken},
			}
			s := p.Settle(counts)
			if len(s.Plan) != tt.plan || s.Note != tt.note {
				t.Errorf("planned %v, note %q", s.Plan, s.Note)
			}
			if (s.Doomed != nil) != (tt.doomed != "") || s.Doomed != nil && !strings.Contains(s.Doomed.Message, tt.doomed) {
				t.Errorf("verdict %+v, want %q", s.Doomed, tt.doomed)
			}
			if s.Ended != (tt.plan == 0) {
				t.Errorf("ended %t with %d tasks planned", s.Ended, tt.plan)
			}
			if again := p.Settle(counts); len(again.Plan) != 0 {
				t.Errorf("settling twice plans %v again", again.Plan)
			}
		})
	}
}

// Whatever the counts, a stage closes only when it is full and what feeds it
// is closed, and what is closed stays so.
func TestSettle_Property(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		p := rapid.SampledFrom(pipeline.Pipelines()).Draw(r, "pipeline").For(nil)
		counts := map[string]*pipeline.Count{}
		for _, s := range p.Stages {
			done := rapid.Int64Range(0, 3).Draw(r, "done")
			counts[s.Name] = &pipeline.Count{Total: done + rapid.Int64Range(0, 1).Draw(r, "open"), Completed: done}
		}
		p.Settle(counts)
		for _, s := range p.Stages {
			c := counts[s.Name]
			if c.Closed && (!c.Sealed || !c.Full()) {
				r.Fatalf("%s is closed: %+v", s.Name, c)
			}
			for _, e := range p.In(s.Name) {
				if c.Sealed && e.From != s.Name && !counts[e.From].Closed {
					r.Fatalf("%s is sealed although %s is open", s.Name, e.From)
				}
			}
		}
	})
}

// The table of services names every folder that runs, and no other.
func TestREADME_NamesEveryService(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../../services/README.md")
	if err != nil {
		t.Fatal(err)
	}
	folders, err := os.ReadDir("../../services")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range folders {
		if f.IsDir() && !strings.Contains(string(readme), "| `"+f.Name()+"` |") {
			t.Errorf("services/README.md does not name %s", f.Name())
		}
	}
}

// The tests that services/README.md points to are there.
func TestREADME_NamesTestsThatExist(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../../services/README.md")
	if err != nil {
		t.Fatal(err)
	}
	var tests strings.Builder
	for _, folder := range []string{"..", "../../services"} {
		err := filepath.WalkDir(folder, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, "_test.go") {
				return err
			}
			source, err := os.ReadFile(path)
			tests.Write(source)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	names := regexp.MustCompile("`(Test[A-Za-z_]+)`").FindAllStringSubmatch(string(readme), -1)
	if len(names) == 0 {
		t.Error("services/README.md names no test")
	}
	for _, n := range names {
		if !strings.Contains(tests.String(), "func "+n[1]+"(") {
			t.Errorf("services/README.md names %s, which does not exist", n[1])
		}
	}
}
