package reduce_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/reeve-pipeline/reeve/pkg/artifact"
	"github.com/reeve-pipeline/reeve/pkg/civic"
	"github.com/reeve-pipeline/reeve/pkg/fault"
	"github.com/reeve-pipeline/reeve/pkg/s3test"
	"github.com/reeve-pipeline/reeve/pkg/stage"
	"github.com/reeve-pipeline/reeve/pkg/stagetest"
	"github.com/reeve-pipeline/reeve/pkg/table"
	"github.com/reeve-pipeline/reeve/services/reduce"
)

const sha = "0123456789abcdef0123456789abcdef"

// put keeps a page table under a key.
func put(t *testing.T, store *artifact.Store, key string, pages []table.Page) *civic.Object {
	t.Helper()
	var buf bytes.Buffer
	if err := table.WritePages(&buf, pages, nil); err != nil {
		t.Fatal(err)
	}
	a, err := store.Put(t.Context(), key, &buf, -1, "")
	if err != nil {
		t.Fatal(err)
	}
	return &civic.Object{Key: a.Key, Size: a.Size, SHA256: a.SHA256}
}

func part(t *testing.T, item, status string, text *civic.Object) stage.Input {
	t.Helper()
	out, err := json.Marshal(reduce.Part{Text: text})
	if err != nil {
		t.Fatal(err)
	}
	return stage.Input{Item: item, Status: status, Output: out}
}

func task(t *testing.T, spec any, parts ...stage.Input) *stage.Task {
	t.Helper()
	data, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	return &stage.Task{
		Run: 1, Pipeline: "civic", Subject: "t.ca", Stage: reduce.Name, Item: "d", Spec: data,
		Inputs: func(context.Context) iter.Seq2[stage.Input, error] {
			return func(yield func(stage.Input, error) bool) {
				for _, p := range parts {
					if !yield(p, nil) {
						return
					}
				}
			}
		},
	}
}

func TestHandle(t *testing.T) {
	t.Parallel()
	native := func(n int32, text string) table.Page {
		return table.Page{Page: n, Text: text, Source: civic.SourceNative, Quality: 0.9, Width: 612, Height: 792}
	}
	image := func(n int32) table.Page {
		return table.Page{Page: n, Source: civic.SourceImage, Width: 612, Height: 792}
	}
	ocr := func(n int32, text string) table.Page { return table.Page{Page: n, Text: text, Source: civic.SourceOCR} }
	blank := table.Page{Page: 3, Source: civic.SourceBlank}
	failed := table.Page{Page: 4, Source: civic.SourceFailed, Error: "page 4: broken"}
	for _, tt := range []struct {
		name   string
		native []table.Page
		parts  map[string][]table.Page // by item; nil: the part failed
		want   []table.Page
		counts civic.PageCounts
	}{
		{"no pages", nil, nil, nil, civic.PageCounts{}},
		{"native text", []table.Page{native(1, "Peña"), native(2, "b")}, nil, []table.Page{native(1, "Peña"), native(2, "b")}, civic.PageCounts{Total: 2, Native: 2}},
		{"nothing but images", []table.Page{image(1), image(2)}, nil, []table.Page{image(1), image(2)}, civic.PageCounts{Total: 2, Image: 2}},
		{
			"every kind",
			[]table.Page{image(2), native(1, "a"), blank, failed},
			nil,
			[]table.Page{native(1, "a"), image(2), blank, failed},
			civic.PageCounts{Total: 4, Native: 1, Image: 1, Blank: 1, Failed: 1},
		},
		{
			"recognised pages take the place of images",
			[]table.Page{native(1, "a"), image(2), image(3), image(10)},
			map[string][]table.Page{"d~2-3": {ocr(2, "two"), {Page: 3, Source: civic.SourceBlank}}, "d~10": {ocr(10, "ten")}},
			[]table.Page{native(1, "a"), ocr(2, "two"), {Page: 3, Source: civic.SourceBlank}, ocr(10, "ten")},
			civic.PageCounts{Total: 4, Native: 1, OCR: 2, Blank: 1},
		},
		{
			"pages of a failed part stay images",
			[]table.Page{image(1), image(2)},
			map[string][]table.Page{"d~1": {ocr(1, "one")}, "d~2": nil},
			[]table.Page{ocr(1, "one"), image(2)},
			civic.PageCounts{Total: 2, OCR: 1, Image: 1},
		},
		{"a source nobody knows is a failed page", []table.Page{{Page: 1, Source: "guessed"}}, nil, []table.Page{{Page: 1, Source: "guessed"}}, civic.PageCounts{Total: 1, Failed: 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			store := s3test.Open(t)
			doc := civic.Document{ID: "d", Kind: civic.Minutes, Meeting: "CityCouncil", Date: "2024-01-15", Ordinal: 1, Source: "d.pdf", SHA256: sha, PageTable: put(t, store, "in/pages", tt.native)}
			var parts []stage.Input
			for item, pages := range tt.parts {
				if pages == nil {
					parts = append(parts, part(t, item, "failed", nil))
					continue
				}
				parts = append(parts, part(t, item, "completed", put(t, store, "in/"+item, pages)))
			}
			var results []stage.Result
			for range 2 { // delivered twice
				res, err := reduce.New(store).Handle(t.Context(), task(t, doc, parts...))
				if err != nil {
					t.Fatal(err)
				}
				results = append(results, res)
			}
			if diff := cmp.Diff(results[0], results[1]); diff != "" {
				t.Errorf("the second time (-first +second):\n%s", diff)
			}
			out := results[0].Output.(civic.Document)
			if want := civic.DocumentKey("t.ca", "d", sha, "text.parquet"); out.Text == nil || out.Text.Key != want {
				t.Fatalf("text is at %+v, not %s", out.Text, want)
			}
			data, err := store.ReadAll(t.Context(), out.Text.Key, out.Text.SHA256, 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			got, meta, err := table.ReadPages(bytes.NewReader(data), int64(len(data)))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("pages (-want +got):\n%s", diff)
			}
			if meta["document_id"] != "d" || meta["sha256"] != sha {
				t.Errorf("footer %v", meta)
			}
			if diff := cmp.Diff(&tt.counts, out.Pages); diff != "" {
				t.Errorf("counts (-want +got):\n%s", diff)
			}
			characters := 0
			for _, p := range tt.want {
				characters += len([]rune(p.Text))
			}
			if m := results[0].Metrics; m["pages"] != float64(tt.counts.Total) || m["characters"] != float64(characters) {
				t.Errorf("metrics %v", m)
			}
			out.Pages, out.Text = nil, nil
			if diff := cmp.Diff(doc, out); diff != "" {
				t.Errorf("the rest of the document (-in +out):\n%s", diff)
			}
		})
	}
}

func TestHandle_wrong(t *testing.T) {
	t.Parallel()
	store := s3test.Open(t)
	pages := put(t, store, "in/pages", []table.Page{{Page: 1, Source: civic.SourceImage}})
	twice := put(t, store, "in/twice", []table.Page{{Page: 1}, {Page: 1}})
	beyond := put(t, store, "in/beyond", []table.Page{{Page: 7, Source: civic.SourceOCR}})
	if _, err := store.Put(t.Context(), "in/damaged", strings.NewReader("PAR1 and no more"), -1, ""); err != nil {
		t.Fatal(err)
	}
	doc := func(table *civic.Object) civic.Document {
		return civic.Document{ID: "d", SHA256: sha, PageTable: table}
	}
	broken := task(t, doc(pages))
	broken.Inputs = func(context.Context) iter.Seq2[stage.Input, error] {
		return func(yield func(stage.Input, error) bool) { yield(stage.Input{}, fault.Infra(errors.New("no answer"))) }
	}
	for _, tt := range []struct {
		name  string
		task  *stage.Task
		class fault.Class
		says  string
	}{
		{"no spec", &stage.Task{}, fault.ClassPermanent, "spec"},
		{"no page table", task(t, doc(nil)), fault.ClassPermanent, "page table"},
		{"a missing page table", task(t, doc(&civic.Object{Key: "in/nowhere"})), fault.ClassTransient, "in/nowhere"},
		{"another page table", task(t, doc(&civic.Object{Key: pages.Key, SHA256: "abc"})), fault.ClassPermanent, "in/pages"},
		{"a damaged page table", task(t, doc(&civic.Object{Key: "in/damaged"})), fault.ClassPermanent, "in/damaged"},
		{"a page twice", task(t, doc(twice)), fault.ClassPermanent, "page 1"},
		{"a part with a page of no document", task(t, doc(pages), part(t, "d~7", "completed", beyond)), fault.ClassPermanent, "page 7"},
		{"inputs that break off", broken, fault.ClassInfra, "no answer"},
	} {
		_, err := reduce.New(store).Handle(t.Context(), tt.task)
		if fault.Of(err) != tt.class || !strings.Contains(fmt.Sprint(err), tt.says) {
			t.Errorf("%s: error %v of class %q, want %q and class %q", tt.name, err, fault.Of(err), tt.says, tt.class)
		}
	}
	if _, err := store.Stat(t.Context(), civic.DocumentKey("t.ca", "d", sha, "text.parquet")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("and yet something was written: %v", err)
	}
}

func TestHandle_contract(t *testing.T) {
	t.Parallel()
	handler := func(t *testing.T) (stage.Handler, stagetest.Store) {
		store := s3test.Open(t)
		put(t, store, "in/pages", []table.Page{{Page: 1, Source: civic.SourceImage}, {Page: 2, Source: civic.SourceNative, Text: "b"}})
		put(t, store, "in/part", []table.Page{{Page: 1, Source: civic.SourceOCR, Text: "a"}})
		return reduce.New(store), store
	}
	_, store := handler(t)
	object := func(key string) *civic.Object {
		a, err := store.(*artifact.Store).Stat(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		return &civic.Object{Key: a.Key, Size: a.Size, SHA256: a.SHA256}
	}
	stagetest.Check(t, handler, stagetest.Fixture{
		Name: "mixed", Prefix: civic.DocumentKey("t.ca", "d", sha, ""),
		Task:   *task(t, civic.Document{ID: "d", Kind: civic.Minutes, SHA256: sha, PageTable: object("in/pages")}),
		Inputs: []stage.Input{part(t, "d~1", "completed", object("in/part"))},
	}, stagetest.Fixture{
		Name: "no page table", Task: *task(t, civic.Document{ID: "d"}), Fails: fault.ClassPermanent,
	})
}
