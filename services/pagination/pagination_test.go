package pagination_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/reeve-pipeline/reeve/pkg/artifact"
	"github.com/reeve-pipeline/reeve/pkg/civic"
	"github.com/reeve-pipeline/reeve/pkg/fault"
	"github.com/reeve-pipeline/reeve/pkg/pdf"
	"github.com/reeve-pipeline/reeve/pkg/s3test"
	"github.com/reeve-pipeline/reeve/pkg/sample"
	"github.com/reeve-pipeline/reeve/pkg/stage"
	"github.com/reeve-pipeline/reeve/pkg/table"
	"github.com/reeve-pipeline/reeve/services/pagination"
)

// readers are shared by all tests of this binary.
var readers *pdf.Pool

func TestMain(m *testing.M) {
	pdf.ChildMain()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	c := pdf.Defaults()
	c.Memory = 128 << 20
	if home, err := os.UserCacheDir(); err == nil { // compiling takes long with the race detector
		c.CacheDir = filepath.Join(home, "reeve")
	}
	var err error
	if readers, err = pdf.Open(context.Background(), c); err != nil {
		panic(err)
	}
	defer readers.Close()
	return m.Run()
}

// task stores a file as fetch does and returns the task that follows.
func task(t *testing.T, store *artifact.Store, source string, body []byte, settings string) *stage.Task {
	t.Helper()
	sum := sha256.Sum256(body)
	digest := hex.EncodeToString(sum[:])
	name := sha256.Sum256([]byte(source))
	doc := civic.Document{
		ID: "doc-" + hex.EncodeToString(name[:6]), Kind: civic.Minutes, Meeting: "CityCouncil", Date: "2024-01-09", Ordinal: 1,
		Source: source, SHA256: digest, Size: int64(len(body)),
	}
	doc.Key = civic.DocumentKey("wrenfield", doc.ID, digest, "source.pdf")
	if _, err := store.Put(t.Context(), doc.Key, strings.NewReader(string(body)), doc.Size, "application/pdf"); err != nil {
		t.Fatal(err)
	}
	spec, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	return &stage.Task{
		Run: 1, Pipeline: "civic", Subject: "wrenfield", Stage: pagination.Name, Item: doc.ID, Generation: 1, Try: 1, Attempt: 1, MaxAttempts: 3,
		Spec: spec, Settings: json.RawMessage(settings),
	}
}

// rows reads the page table of a result back.
func rows(t *testing.T, store *artifact.Store, doc civic.Document) []table.Page {
	t.Helper()
	body, err := store.ReadAll(t.Context(), doc.PageTable.Key, doc.PageTable.SHA256, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	pages, meta, err := table.ReadPages(strings.NewReader(string(body)), int64(len(body)))
	if err != nil {
		t.Fatal(err)
	}
	if meta["document_id"] != doc.ID || meta["sha256"] != doc.SHA256 {
		t.Errorf("the table's footer names %q, %q", meta["document_id"], meta["sha256"])
	}
	return pages
}

// Every paper of the sample town, all at once and with two readers: the broken
// ones fail with a reason that names them, and none of the others notices.
func TestPaginator_Handle_sample(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	town, err := sample.Write(dir)
	if err != nil {
		t.Fatal(err)
	}
	store, temp := s3test.Open(t), t.TempDir()
	h := pagination.New(store, readers, temp)
	t.Cleanup(func() { // after the subtests
		if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
			t.Errorf("%d files left in the temporary folder, error %v", len(left), err)
		}
	})
	for _, f := range town.Files {
		t.Run(f.Path, func(t *testing.T) {
			t.Parallel()
			body, err := os.ReadFile(filepath.Join(dir, f.Path))
			if err != nil {
				t.Fatal(err)
			}
			result, err := h.Handle(t.Context(), task(t, store, f.Path, body, `{"ocr_mode":"skip"}`))
			if f.Status == "failed" {
				if fault.Of(err) != f.Class {
					t.Errorf("fault %s (%v), want %s", fault.Of(err), err, f.Class)
				}
				for _, words := range []string{f.Path, f.Reason} {
					if !strings.Contains(fmt.Sprint(err), words) {
						t.Errorf("error %q, want %q in it", err, words)
					}
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			doc := result.Output.(civic.Document)
			if diff := cmp.Diff(&f.Pages, doc.Pages); diff != "" {
				t.Errorf("pages (-want +got):\n%s", diff)
			}
			var text strings.Builder
			for n, p := range rows(t, store, doc) {
				text.WriteString(p.Text)
				if int(p.Page) != n+1 || p.Error != "" || (p.Text != "") != (p.Source == civic.SourceNative) {
					t.Errorf("row %d: %+v", n+1, p)
				}
				if p.Source == civic.SourceNative && p.Quality < 0.9 {
					t.Errorf("page %d has quality %.2f:\n%s", p.Page, p.Quality, p.Text)
				}
			}
			for _, phrase := range f.Phrases {
				if !strings.Contains(text.String(), phrase) {
					t.Errorf("%q is missing", phrase)
				}
			}
		})
	}
}

// pages is a reader of made-up pages.
type pages []pdf.Page

func (p pages) Read(_ context.Context, _ string, each func(pdf.Page) error) (pdf.Info, error) {
	for _, page := range p {
		if err := each(page); err != nil {
			return pdf.Info{}, err
		}
	}
	return pdf.Info{Pages: len(p)}, nil
}

// Render draws a page a shade of grey each, page 40 not at all.
func (p pages) Render(_ context.Context, _ string, o pdf.RenderOptions, each func(pdf.Rendered) error) (pdf.Info, error) {
	for _, n := range o.Pages {
		page := pdf.Rendered{Number: n, DPI: 200, Image: image.NewGray(image.Rect(0, 0, 20, 30))}
		page.Image.Pix[0] = byte(n)
		if n == 40 {
			page.Image, page.Err = nil, bad(pdf.ErrPageTooLarge, "page 40 is too large")
		}
		if err := each(page); err != nil {
			return pdf.Info{}, err
		}
	}
	return pdf.Info{Pages: len(p)}, nil
}

// Pages without text are drawn and handed on in ranges of a fixed grid; those
// that have text, or nothing, are not.
func TestPaginator_Handle_auto(t *testing.T) {
	t.Parallel()
	store := s3test.Open(t)
	var doc pages
	for n := 1; n <= 70; n++ {
		page := pdf.Page{Number: n, Images: 1}
		if n%2 == 0 && n != 40 {
			page = pdf.Page{Number: n, Text: "Ayes: 5"}
		}
		doc = append(doc, page)
	}
	given := task(t, store, "CityCouncil/2024-01-09.pdf", []byte("%PDF-"), `{"ocr_mode":"auto"}`)
	var spawned []stage.Item
	given.Spawn = func(_ context.Context, items ...stage.Item) error {
		spawned = append(spawned, items...)
		return nil
	}
	result, err := pagination.New(store, doc, t.TempDir()).Handle(t.Context(), given)
	if err != nil {
		t.Fatal(err)
	}
	out := result.Output.(civic.Document)
	var got []string
	for _, item := range spawned {
		part := item.Spec.(civic.Pages)
		if err := part.Validate(); err != nil {
			t.Errorf("%s: %v", item.Item, err)
		}
		got = append(got, fmt.Sprintf("%s %d-%d: %d", strings.TrimPrefix(item.Item, out.ID+"/"), part.First, part.Last, len(part.Images)))
		for _, img := range part.Images {
			body, err := store.ReadAll(t.Context(), img.Key, img.SHA256, 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			pic, err := png.Decode(bytes.NewReader(body))
			if err != nil || pic.(*image.Gray).Pix[0] != byte(img.Page) || img.Width != 20 || img.Height != 30 || img.DPI != 200 {
				t.Errorf("picture of page %d: %+v, %v", img.Page, img, err)
			}
		}
	}
	if diff := cmp.Diff([]string{"00001-00032 1-32: 16", "00033-00064 33-64: 16", "00065-00096 65-96: 3"}, got); diff != "" {
		t.Errorf("ranges (-want +got):\n%s", diff)
	}
	if row := rows(t, store, out)[39]; row.Source != civic.SourceImage || row.Error != "page 40 is too large" {
		t.Errorf("the page that could not be drawn is %+v", row)
	}
}

func bad(kind pdf.Kind, detail string) *pdf.Error { return &pdf.Error{Kind: kind, Detail: detail} }

func TestPaginator_Handle_failedPages(t *testing.T) {
	t.Parallel()
	store := s3test.Open(t)
	given := task(t, store, "CityCouncil/2024-01-09.pdf", []byte("%PDF-"), "")
	slow := bad(pdf.ErrTimeout, "page 2 took longer than 20s")

	result, err := pagination.New(store, pages{{Number: 1, Text: "Ayes: 5"}, {Number: 2, Err: slow}}, "").Handle(t.Context(), given)
	if err != nil {
		t.Fatal(err)
	}
	doc := result.Output.(civic.Document)
	if want := (civic.PageCounts{Total: 2, Native: 1, Failed: 1}); *doc.Pages != want {
		t.Errorf("pages %+v, want %+v", *doc.Pages, want)
	}
	if row := rows(t, store, doc)[1]; row.Source != civic.SourceFailed || row.Error != slow.Detail {
		t.Errorf("row %+v, want it failed with %q", row, slow.Detail)
	}

	_, err = pagination.New(store, pages{{Number: 1, Err: bad(pdf.ErrCorrupt, "page 1 is damaged")}, {Number: 2, Err: slow}}, "").Handle(t.Context(), given)
	if fault.Of(err) != fault.ClassPermanent || !strings.Contains(fmt.Sprint(err), "CityCouncil/2024-01-09.pdf: page 1 is damaged") {
		t.Errorf("error %v, want a permanent one that names the file and its first page", err)
	}

	long := pages{}
	for n := range 100 {
		long = append(long, pdf.Page{Number: n + 1, Text: strings.Repeat("word ", 800_000)})
	}
	_, err = pagination.New(store, long, "").Handle(t.Context(), given)
	if fault.Of(err) != fault.ClassPermanent || !strings.Contains(fmt.Sprint(err), "more than 256 MiB of text by page") {
		t.Errorf("error %v, want a permanent one about too much text", err)
	}
}

func TestPaginator_Handle_refusals(t *testing.T) {
	t.Parallel()
	store := s3test.Open(t)
	h := pagination.New(store, pages{{Number: 1, Text: "Ayes: 5"}}, "")
	given := func(change func(*stage.Task)) *stage.Task {
		task := task(t, store, "CityCouncil/2024-01-09.pdf", []byte("%PDF-"), `{"ocr_mode":"skip"}`)
		change(task)
		return task
	}
	spec := func(s string) func(*stage.Task) {
		return func(t *stage.Task) { t.Spec = json.RawMessage(s) }
	}
	for _, tt := range []struct {
		name   string
		change func(*stage.Task)
		class  fault.Class
		says   string
	}{
		{"another mode", func(t *stage.Task) { t.Settings = json.RawMessage(`{"ocr_mode":"redo"}`) }, fault.ClassPermanent, `ocr_mode "redo" is not offered, only "skip" and "auto"`},
		{"a mode that is no word", func(t *stage.Task) { t.Settings = json.RawMessage(`{"ocr_mode":1}`) }, fault.ClassPermanent, "settings of run 1"},
		{"no document", spec(""), fault.ClassPermanent, "no spec"},
		{"garbage", spec("]"), fault.ClassPermanent, "spec of task"},
		{"nothing fetched", spec(`{"document_id":"x"}`), fault.ClassPermanent, "without the id, key or digest"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := h.Handle(t.Context(), given(tt.change))
			if fault.Of(err) != tt.class || !strings.Contains(fmt.Sprint(err), tt.says) {
				t.Errorf("%s fault %v, want %s with %q", fault.Of(err), err, tt.class, tt.says)
			}
		})
	}
	t.Run("an object that is not the one fetched", func(t *testing.T) {
		t.Parallel()
		task := given(func(t *stage.Task) {
			t.Spec = json.RawMessage(strings.Replace(string(t.Spec), `"sha256":"`, `"sha256":"00`, 1))
		})
		if _, err := h.Handle(t.Context(), task); err == nil || !strings.Contains(err.Error(), "CityCouncil/2024-01-09.pdf") {
			t.Errorf("error %v, want one that names the document", err)
		}
	})
	t.Run("an interruption", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		task := given(func(*stage.Task) {})
		cancel()
		if _, err := h.Handle(ctx, task); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v, want context canceled", err)
		}
	})
}

func TestRow(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		page pdf.Page
		want string
	}{
		{"text", pdf.Page{Text: "Ayes: 5", Texts: 1}, civic.SourceNative},
		{"text over a scan", pdf.Page{Text: "Ayes: 5", Texts: 1, Images: 1}, civic.SourceNative},
		{"garbage is text, too", pdf.Page{Text: "(cid:12)", Texts: 1}, civic.SourceNative},
		{"a scan", pdf.Page{Images: 1}, civic.SourceImage},
		{"a full stop over a scan", pdf.Page{Text: ".", Texts: 1, Images: 1}, civic.SourceImage},
		{"a drawing", pdf.Page{Paths: 12}, civic.SourceImage},
		{"a form or a stamp", pdf.Page{Others: 1}, civic.SourceImage},
		{"glyphs without characters", pdf.Page{Texts: 4, Unmapped: 80}, civic.SourceImage},
		{"nothing", pdf.Page{}, civic.SourceBlank},
		{"a space", pdf.Page{Texts: 1}, civic.SourceBlank},
		{"asterisks alone", pdf.Page{Text: "* * *", Texts: 1}, civic.SourceNative},
		{"unreadable", pdf.Page{Err: bad(pdf.ErrCorrupt, "page 1 is damaged")}, civic.SourceFailed},
	} {
		got := pagination.Row(tt.page)
		if got.Source != tt.want || (got.Text != "") != (tt.want == civic.SourceNative) || (got.Quality > 0) != (got.Text != "") {
			t.Errorf("%s: %+v, want %s", tt.name, got, tt.want)
		}
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	c := pagination.Defaults()
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
	c.Hands, c.MaxPages = -1, 0
	err := c.Validate()
	for _, says := range []string{"pagination.hands", "max pages"} {
		if !strings.Contains(fmt.Sprint(err), says) {
			t.Errorf("error %v, want %q in it", err, says)
		}
	}
}
