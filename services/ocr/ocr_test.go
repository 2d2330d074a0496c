package ocr_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"image/jpeg"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/reeve-pipeline/reeve/pkg/artifact"
	"github.com/reeve-pipeline/reeve/pkg/civic"
	"github.com/reeve-pipeline/reeve/pkg/fault"
	"github.com/reeve-pipeline/reeve/pkg/model"
	"github.com/reeve-pipeline/reeve/pkg/pages"
	"github.com/reeve-pipeline/reeve/pkg/raster"
	"github.com/reeve-pipeline/reeve/pkg/s3test"
	"github.com/reeve-pipeline/reeve/pkg/stage"
	"github.com/reeve-pipeline/reeve/pkg/stagetest"
	"github.com/reeve-pipeline/reeve/pkg/table"
	"github.com/reeve-pipeline/reeve/services/ocr"
)

const prefix = "sites/t.ca/documents/d/0123"

// sheet is a page of a test: what is on it, and what the stages before made of it.
type sheet struct {
	texts []string // a line each
	// picture replaces the page's picture; nil: what was drawn.
	picture []byte
	missing bool
	failed  string // why line_detection could not read it
	// speck adds a line without any extent after the others.
	speck bool
}

// bench is a store with pages in it, and the task of reading them.
type bench struct {
	store *artifact.Store
	spec  civic.Pages
}

func newBench(t *testing.T, sheets ...sheet) *bench {
	t.Helper()
	b := &bench{s3test.Open(t), civic.Pages{Prefix: prefix, Document: "d", First: 1, Last: max(1, len(sheets))}}
	var found []table.Detection
	var lines []table.LineImage
	for i, s := range sheets {
		about := table.About{Page: int32(i + 1), Image: fmt.Sprintf("%d.jpg", i+1), Width: 500, Height: 400, OK: s.failed == "", Source: civic.SourceImage}
		if s.failed != "" {
			about.Width, about.Height, about.Source, about.ErrorStage, about.ErrorClass, about.ErrorMessage = 0, 0, civic.SourceFailed, "line_detection", "permanent", s.failed
		}
		found = append(found, table.Detection{About: about})
		img := paper(500, 400)
		var contours [][]table.Point
		for j, text := range s.texts {
			contours = append(contours, write(img, 40, 20+90*j, text))
		}
		if s.speck {
			contours = append(contours, []table.Point{{5, 5}})
		}
		for j, c := range contours {
			lines = append(lines, table.LineImage{About: about, Index: int32(j), GUID: fmt.Sprintf("guid-%d-%d", i+1, j), Contour: c})
		}
		page := civic.PageImage{Page: i + 1, Name: about.Image, DPI: 100, Object: civic.Object{Key: "in/" + about.Image}}
		b.spec.Images = append(b.spec.Images, page)
		if s.missing {
			continue
		}
		if s.picture == nil {
			var buf bytes.Buffer
			if err := jpeg.Encode(&buf, img, nil); err != nil {
				t.Fatal(err)
			}
			s.picture = buf.Bytes()
		}
		b.put(t, page.Key, s.picture)
	}
	var detection, images bytes.Buffer
	if err := errors.Join(table.WriteDetections(&detection, found, nil), table.WriteLineImages(&images, lines, nil)); err != nil {
		t.Fatal(err)
	}
	b.spec.Detection = b.put(t, "in/detection", detection.Bytes())
	b.spec.Lines = b.put(t, "in/lines", images.Bytes())
	return b
}

func (b *bench) put(t *testing.T, key string, data []byte) *civic.Object {
	t.Helper()
	kept, err := b.store.Put(t.Context(), key, bytes.NewReader(data), -1, "")
	if err != nil {
		t.Fatal(err)
	}
	return &civic.Object{Key: kept.Key, Size: kept.Size, SHA256: kept.SHA256}
}

func (b *bench) task(t *testing.T, settings string) *stage.Task {
	t.Helper()
	spec, err := json.Marshal(b.spec)
	if err != nil {
		t.Fatal(err)
	}
	return &stage.Task{Run: 1, Pipeline: "civic", Subject: "t.ca", Stage: ocr.Name, Item: "d~1", Spec: spec, Settings: json.RawMessage(settings)}
}

func (b *bench) handler(m *model.Manifest, engines ...ocr.Engine) *ocr.Recogniser {
	return ocr.New(b.store, pages.NewReader(b.store, raster.Defaults(), 16<<20), ocr.NewReader(m, 0, 1), engines...)
}

// read reads the tables of a result.
func (b *bench) read(t *testing.T, result stage.Result) ([]table.Recognition, []table.Page, map[string]string) {
	t.Helper()
	open := func(o *civic.Object) *bytes.Reader {
		data, err := b.store.ReadAll(t.Context(), o.Key, o.SHA256, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		return bytes.NewReader(data)
	}
	out := result.Output.(civic.Pages)
	r := open(out.Results)
	rows, meta, err := table.ReadRecognitions(r, r.Size())
	if err != nil {
		t.Fatal(err)
	}
	r = open(out.Text)
	texts, _, err := table.ReadPages(r, r.Size())
	if err != nil {
		t.Fatal(err)
	}
	return rows, texts, meta
}

// Each page has its row of text and each line its result, whatever became of
// them, in the pages' order.
func TestHandle(t *testing.T) {
	t.Parallel()
	b := newBench(
		t,
		sheet{texts: []string{"ABC", "CAB"}},
		sheet{}, // nothing on it
		sheet{failed: "3.jpg: JPEG is cut short"},
		sheet{texts: []string{"A", "B"}, missing: true},
		sheet{texts: []string{"AD"}, speck: true},
		sheet{texts: []string{"A"}, picture: []byte("no picture")},
		sheet{speck: true},
		sheet{texts: []string{""}}, // a line with nothing in it
		sheet{texts: []string{"DA"}},
	)
	m := english(t)
	result, err := b.handler(m, bars{model: m}).Handle(t.Context(), b.task(t, ""))
	if err != nil {
		t.Fatal(err)
	}
	rows, texts, meta := b.read(t, result)
	if meta["model"] != m.Name || meta["model_sha256"] != m.SHA256 || meta["encoding"] != "unicode" || len(meta["config_sha256"]) != 64 {
		t.Errorf("footer %v", meta)
	}
	var got []string
	for _, r := range rows {
		got = append(got, fmt.Sprintf("%s %s %q %v %s", r.Image, r.GUID, r.Text, r.OK, r.Source))
		switch {
		case r.Encoding != "unicode" || int(r.Page) < 1 || !strings.HasSuffix(r.GUID, fmt.Sprintf("-%d", r.Index)):
			t.Errorf("row %+v", r)
		case !r.OK && (r.ErrorStage != ocr.Name || r.ErrorClass != "permanent" || !strings.Contains(r.ErrorMessage, r.Image)):
			t.Errorf("%s: %q %q %q", r.GUID, r.ErrorStage, r.ErrorClass, r.ErrorMessage)
		case r.OK && (r.Confidence < 0.5 || r.Width != 500):
			t.Errorf("%s: confidence %v, width %d", r.GUID, r.Confidence, r.Width)
		}
	}
	if diff := cmp.Diff([]string{
		`1.jpg guid-1-0 "ABC" true ocr`, `1.jpg guid-1-1 "CAB" true ocr`,
		`4.jpg guid-4-0 "" false failed`, `4.jpg guid-4-1 "" false failed`,
		`5.jpg guid-5-0 "AD" true ocr`, `5.jpg guid-5-1 "" false failed`,
		`6.jpg guid-6-0 "" false failed`, `7.jpg guid-7-0 "" false failed`,
		`8.jpg guid-8-0 "" true ocr`, `9.jpg guid-9-0 "DA" true ocr`,
	}, got); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
	got = nil
	for _, p := range texts {
		got = append(got, fmt.Sprintf("%d %q %s %v %v", p.Page, p.Text, p.Source, p.Error != "", p.Width))
	}
	if diff := cmp.Diff([]string{
		`1 "ABC\nCAB" ocr false 360`, `2 "" blank false 360`, `3 "" failed true 0`, `4 "" failed true 0`, `5 "AD" ocr true 360`,
		`6 "" failed true 0`, `7 "" failed true 360`, `8 "" blank false 360`, `9 "DA" ocr false 360`,
	}, got); diff != "" {
		t.Errorf("pages (-want +got):\n%s", diff)
	}
	if texts[2].Error != "3.jpg: JPEG is cut short" || texts[4].Error != "1 of 2 lines could not be read" {
		t.Errorf("errors %q, %q", texts[2].Error, texts[4].Error)
	}
	if diff := cmp.Diff(map[string]float64{
		"pages": 9, "pages_ocr": 3, "pages_blank": 2, "pages_failed": 4, "lines": 10, "lines_failed": 5, "characters": 11,
	}, result.Metrics); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
}

// The text of a line is the same alone, among others, and however many work.
func TestHandle_alone(t *testing.T) {
	t.Parallel()
	m := english(t)
	texts := []string{"ABC", "DAD", "FED", "BAB"}
	rows := map[string][]table.Recognition{} // by text
	for _, order := range [][]string{texts, {texts[2]}, {texts[3], texts[1], texts[0], texts[2]}} {
		b := newBench(t, sheet{texts: order})
		result, err := b.handler(m, bars{model: m}, bars{model: m}).Handle(t.Context(), b.task(t, ""))
		if err != nil {
			t.Fatal(err)
		}
		got, _, _ := b.read(t, result)
		for i, r := range got {
			r.Index, r.GUID = 0, ""
			rows[order[i]] = append(rows[order[i]], r)
		}
	}
	for text, all := range rows {
		for _, r := range all {
			if r.Text != text {
				t.Errorf("%q was read as %q", text, r.Text)
			}
			if diff := cmp.Diff(all[0], r); diff != "" {
				t.Errorf("%q (-first +other):\n%s", text, diff)
			}
		}
	}
}

func TestHandle_encoding(t *testing.T) {
	t.Parallel()
	// A model whose first letters spell ka, kha and something that is no Wylie.
	wylie := *english(t)
	wylie.Encoding = model.Wylie
	wylie.Charset = slices.Clone(wylie.Charset)
	for letter, label := range map[string]string{"A": "ka", "B": "kha", "C": "Q"} {
		wylie.Charset[slices.Index(wylie.Charset, letter)] = label
	}
	for _, tt := range []struct{ settings, text, want, remark string }{
		{`{"encoding": "wylie"}`, "AB", "kakha", ""},
		{`{"encoding": "unicode"}`, "A", "ཀ", ""},
		{`{}`, "A", "ཀ", ""},
		{`{}`, "CC", "QQ", "no Wylie"},
	} {
		b := newBench(t, sheet{texts: []string{tt.text}})
		result, err := b.handler(&wylie, bars{model: english(t)}).Handle(t.Context(), b.task(t, tt.settings))
		if err != nil {
			t.Fatal(err)
		}
		rows, texts, _ := b.read(t, result)
		if r := rows[0]; !r.OK || r.Text != tt.want || !strings.Contains(r.ErrorMessage, tt.remark) || (r.ErrorMessage == "") != (tt.remark == "") {
			t.Errorf("%s: %q, remark %q, want %q", tt.settings, r.Text, r.ErrorMessage, tt.want)
		}
		if want := strings.Contains(tt.settings, "wylie"); (rows[0].Encoding == "wylie") != want || texts[0].Text != rows[0].Text {
			t.Errorf("%s: encoding %q, text %q", tt.settings, rows[0].Encoding, texts[0].Text)
		}
	}
}

func TestHandle_wrong(t *testing.T) {
	t.Parallel()
	m := english(t)
	b := newBench(t, sheet{texts: []string{"A"}})
	other := newBench(t, sheet{texts: []string{"A"}})
	other.store, other.spec.Images = b.store, append(slices.Clone(b.spec.Images), civic.PageImage{Page: 2, Name: "2.jpg", Object: civic.Object{Key: "in/2.jpg"}})
	other.spec.Last = 2
	bare := &bench{b.store, b.spec}
	bare.spec.Lines = nil
	gone := &bench{b.store, b.spec}
	gone.spec.Lines = &civic.Object{Key: "in/nowhere"}
	swapped := &bench{b.store, b.spec}
	swapped.spec.Lines = b.spec.Detection
	for _, tt := range []struct {
		name   string
		engine bars
		task   *stage.Task
		class  fault.Class
		says   string
	}{
		{"no lines", bars{}, bare.task(t, ""), fault.ClassPermanent, "line_extraction"},
		{"a missing table", bars{}, gone.task(t, ""), fault.ClassTransient, "in/nowhere"},
		{"another table", bars{}, swapped.task(t, ""), fault.ClassPermanent, "in/detection"},
		{"a page that was not looked at", bars{}, other.task(t, ""), fault.ClassPermanent, "page 2 is missing"},
		{"an unknown encoding", bars{}, b.task(t, `{"encoding": "ascii"}`), fault.ClassPermanent, "ascii"},
		{"an engine out of order", bars{err: fault.Infra(errors.New("device lost"))}, b.task(t, ""), fault.ClassInfra, "1.jpg: line 0: device lost"},
	} {
		tt.engine.model = m
		_, err := b.handler(m, tt.engine).Handle(t.Context(), tt.task)
		if fault.Of(err) != tt.class || !strings.Contains(fmt.Sprint(err), tt.says) {
			t.Errorf("%s: error %v of class %q, want %q and class %q", tt.name, err, fault.Of(err), tt.says, tt.class)
		}
	}
	// Without a free engine a task waits, no longer than it may.
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if _, err := b.handler(m).Handle(ctx, b.task(t, "")); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

func TestHandle_contract(t *testing.T) {
	t.Parallel()
	m := english(t)
	sheets := []sheet{{texts: []string{"ABC", "CAB"}}, {}, {texts: []string{"A"}, picture: []byte{}}}
	stagetest.Check(t, func(t *testing.T) (stage.Handler, stagetest.Store) {
		b := newBench(t, sheets...)
		return b.handler(m, bars{model: m}, bars{model: m}), b.store
	}, stagetest.Fixture{
		Name: "three pages", Task: *newBench(t, sheets...).task(t, ""), Prefix: prefix + "/ocr_",
	}, stagetest.Fixture{
		Name: "nothing to do", Task: *(&bench{spec: civic.Pages{Prefix: prefix, Document: "d", First: 1, Last: 1}}).task(t, ""), Fails: fault.ClassPermanent,
	})
}
