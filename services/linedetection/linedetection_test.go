package linedetection_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/jpeg"
	"math"
	"slices"
	"strings"
	"sync/atomic"
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
	"github.com/reeve-pipeline/reeve/pkg/vision"
	"github.com/reeve-pipeline/reeve/services/linedetection"
)

// dark is an engine that takes for lines what is dark: its output is the
// darkness of the input's first channel, 0 to 1, or that as a logit.
type dark struct {
	model *model.Manifest
	runs  *atomic.Int64 // counted, when not nil
	saw   func(values []float32)
	err   error
}

func (d dark) Run(ctx context.Context, shape []int64, data []float32) ([]int64, []float32, error) {
	if err := errors.Join(ctx.Err(), d.err); err != nil {
		return nil, nil, err
	}
	if d.runs != nil {
		d.runs.Add(shape[0])
	}
	if d.saw != nil {
		d.saw(data)
	}
	n, channels, plane := int(shape[0]), int(shape[1]), int(shape[2]*shape[3])
	norm := d.model.Normalisation
	out := make([]float32, n*plane)
	for i := range n {
		for j := range plane {
			p := 1 - (float64(data[i*channels*plane+j])*norm.Std[0]+norm.Mean[0])*norm.Scale/255
			if d.model.Output.Values == model.Logit {
				p = 20 * (p - 0.5)
			}
			out[i*plane+j] = float32(p)
		}
	}
	return []int64{shape[0], 1, shape[2], shape[3]}, out, nil
}

// ppocr is the default model, without or with its growing of what it found.
func ppocr(t *testing.T, unclip float64) *model.Manifest {
	t.Helper()
	m, err := model.Named(model.DefaultLineDetection)
	if err != nil {
		t.Fatal(err)
	}
	m.Regions = &model.Regions{Threshold: 0.3, Score: 0.5, Unclip: unclip}
	return &m
}

// bdrc is a model of BDRC's family.
func bdrc() *model.Manifest {
	return &model.Manifest{
		Name: "tiles", Task: model.LineDetection, SHA256: "0",
		Input: model.Input{Name: "x", Layout: "NCHW"}, Output: model.Output{Name: "y", Layout: "NCHW", Values: model.Logit},
		Canvas:        model.Canvas{Fit: model.FitTiles, Side: 512},
		Normalisation: model.Normalisation{Channels: "RGB", Scale: 255, Mean: []float64{0, 0, 0}, Std: []float64{1, 1, 1}},
		Regions:       &model.Regions{Threshold: 0.85},
	}
}

// paper is a white page with black bands.
func paper(w, h int, bands ...image.Rectangle) *image.Gray {
	img := image.NewGray(image.Rect(0, 0, w, h))
	for i := range img.Pix {
		img.Pix[i] = 255
	}
	for _, b := range bands {
		for y := b.Min.Y; y < b.Max.Y; y++ {
			for x := b.Min.X; x < b.Max.X; x++ {
				img.Pix[img.PixOffset(x, y)] = 0
			}
		}
	}
	return img
}

// ruled is n bands, 24 px high and 72 px apart.
func ruled(n, w int) []image.Rectangle {
	var bands []image.Rectangle
	for i := range n {
		bands = append(bands, image.Rect(100, 200+72*i, w-100, 224+72*i))
	}
	return bands
}

func detect(t *testing.T, m *model.Manifest, profile vision.Profile, page *image.Gray) []linedetection.Line {
	t.Helper()
	lines, err := linedetection.Detect(t.Context(), dark{model: m}, m, &profile, page)
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

// bounds is the box around an outline, in whole px.
func bounds(l linedetection.Line) image.Rectangle {
	lo, hi := l.Outline[0], l.Outline[0]
	for _, p := range l.Outline {
		lo, hi = vision.Point{X: min(lo.X, p.X), Y: min(lo.Y, p.Y)}, vision.Point{X: max(hi.X, p.X), Y: max(hi.Y, p.Y)}
	}
	return image.Rect(int(math.Round(lo.X)), int(math.Round(lo.Y)), int(math.Round(hi.X)), int(math.Round(hi.Y)))
}

func near(a, b image.Rectangle, within int) bool {
	off := func(a, b int) bool { return max(a-b, b-a) <= within }
	return off(a.Min.X, b.Min.X) && off(a.Min.Y, b.Min.Y) && off(a.Max.X, b.Max.X) && off(a.Max.Y, b.Max.Y)
}

// Lines come back in px of the page, whatever size the model saw it in.
func TestDetect(t *testing.T) {
	t.Parallel()
	tall := ruled(8, 1700)
	for _, tt := range []struct {
		name    string
		model   *model.Manifest
		profile vision.Profile
		w, h    int
		bands   []image.Rectangle
		grown   float64 // by this times area by perimeter
		within  int     // px
	}{
		{"page, as found", ppocr(t, 0), vision.Reeve(), 1700, 2200, tall, 0, 3},
		{"page, grown", ppocr(t, 1.6), vision.Reeve(), 1700, 2200, tall, 1.6, 4},
		{"small page, not enlarged", ppocr(t, 0), vision.Reeve(), 640, 480, ruled(3, 640), 0, 1},
		{"two columns", ppocr(t, 0), vision.Reeve(), 960, 960, []image.Rectangle{image.Rect(50, 100, 400, 120), image.Rect(500, 100, 900, 120)}, 0, 1},
		{"blank", ppocr(t, 1.6), vision.Reeve(), 1700, 2200, nil, 0, 0},
		{"specks are none", ppocr(t, 1.6), vision.Reeve(), 960, 960, []image.Rectangle{image.Rect(300, 300, 302, 302)}, 0, -1},
		{"tiles", bdrc(), vision.BDRCProd(), 1000, 600, ruled(5, 1000), 0, 2},
		{"tiles of a long leaf", bdrc(), vision.BDRCProd(), 2000, 600, ruled(3, 2000), 0, 3},
		{"tiles, each made black and white", bdrc(), vision.BDRCApp(), 1000, 600, ruled(5, 1000), 0, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			lines := detect(t, tt.model, tt.profile, paper(tt.w, tt.h, tt.bands...))
			if tt.within < 0 {
				tt.bands = nil
			}
			if len(lines) != len(tt.bands) {
				t.Fatalf("%d lines, want %d", len(lines), len(tt.bands))
			}
			for i, l := range lines {
				b := tt.bands[i]
				w, h := float64(b.Dx()), float64(b.Dy())
				d := int(math.Round(tt.grown * w * h / (2 * (w + h))))
				if want := b.Inset(-d); !near(bounds(l), want, tt.within) {
					t.Errorf("line %d is at %v, want %v", i, bounds(l), want)
				}
				if l.Score < 0.8 || l.Score > 1 {
					t.Errorf("line %d has the score %.2f", i, l.Score)
				}
			}
		})
	}
}

// A page shifted under the tiles gives the same lines, shifted; no tile is
// wasted; and a page that is not black and white is made so.
func TestDetect_tiles(t *testing.T) {
	t.Parallel()
	m, profile := bdrc(), vision.BDRCProd()
	first := detect(t, m, profile, paper(1000, 500, ruled(4, 700)...))
	var shifted []image.Rectangle
	for _, b := range ruled(4, 700) {
		shifted = append(shifted, b.Add(image.Pt(100, 37)))
	}
	second := detect(t, m, profile, paper(1000, 500, shifted...))
	for i := range first {
		if len(second) != len(first) || !near(bounds(first[i]).Add(image.Pt(100, 37)), bounds(second[i]), 1) {
			t.Fatalf("line %d of the shifted page is elsewhere: %d lines", i, len(second))
		}
	}
	for _, tt := range []struct{ w, h, tiles int }{
		{1024, 512, 2}, {1025, 512, 3}, {600, 580, 2}, {1500, 520, 3}, {8000, 200, 8}, {300, 200, 1},
	} {
		var runs atomic.Int64
		if _, err := linedetection.Detect(t.Context(), dark{model: m, runs: &runs}, m, &profile, paper(tt.w, tt.h)); err != nil {
			t.Fatal(err)
		}
		if int(runs.Load()) != tt.tiles {
			t.Errorf("a page of %d x %d px took %d tiles, want %d", tt.w, tt.h, runs.Load(), tt.tiles)
		}
	}
	grey := paper(700, 400, image.Rect(100, 100, 600, 112))
	for i := range grey.Pix {
		grey.Pix[i] = min(grey.Pix[i], 240)
	}
	values := map[float32]bool{}
	engine := dark{model: m, saw: func(all []float32) {
		for _, v := range all {
			values[v] = true
		}
	}}
	if _, err := linedetection.Detect(t.Context(), engine, m, &profile, grey); err != nil {
		t.Fatal(err)
	}
	if len(values) != 2 || !values[0] || !values[1] {
		t.Errorf("the model saw %d shades", len(values))
	}
}

// bench is a store with pictures in it.
type bench struct {
	store  *artifact.Store
	images []civic.PageImage
}

func newBench(t *testing.T) *bench { return &bench{store: s3test.Open(t)} }

// add stores a picture as the next page.
func (b *bench) add(t *testing.T, name string, data []byte) {
	t.Helper()
	img := civic.PageImage{Page: len(b.images) + 1, Name: name, DPI: 200, Object: civic.Object{Key: "in/" + name}}
	if data != nil {
		kept, err := b.store.Put(t.Context(), img.Key, bytes.NewReader(data), -1, "image/jpeg")
		if err != nil {
			t.Fatal(err)
		}
		img.Size, img.SHA256 = kept.Size, kept.SHA256
	}
	b.images = append(b.images, img)
}

// task is the task of all pages.
func (b *bench) task(t *testing.T, settings string) *stage.Task {
	t.Helper()
	spec, err := json.Marshal(civic.Pages{Prefix: "sites/t.ca/documents/d/0123", Document: "d", First: 1, Last: max(1, len(b.images)), Images: b.images})
	if err != nil {
		t.Fatal(err)
	}
	return &stage.Task{Run: 1, Pipeline: "civic", Subject: "t.ca", Stage: linedetection.Name, Item: "d~1", Spec: spec, Settings: json.RawMessage(settings)}
}

func (b *bench) handler(engines ...linedetection.Engine) *linedetection.Detector {
	return linedetection.New(b.store, pages.NewReader(b.store, raster.Defaults(), 64<<20), manifest, engines...)
}

// rows reads the table of a result.
func (b *bench) rows(t *testing.T, result stage.Result) ([]table.Detection, map[string]string) {
	t.Helper()
	o := result.Output.(civic.Pages).Detection
	data, err := b.store.ReadAll(t.Context(), o.Key, o.SHA256, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	rows, meta, err := table.ReadDetections(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	return rows, meta
}

// manifest is what the handlers under test are told of their model.
var manifest = func() model.Manifest {
	m, err := model.Named(model.DefaultLineDetection)
	if err != nil {
		panic(err)
	}
	return m
}()

func encoded(t *testing.T, img *image.Gray) []byte {
	t.Helper()
	var buf bytes.Buffer
	if err := jpeg.Encode(&buf, img, nil); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// bomb is a JPEG whose header promises 60,000 by 60,000 px.
func bomb(jpg []byte) []byte {
	b := bytes.Clone(jpg)
	at := bytes.Index(b, []byte{0xff, 0xc0})
	copy(b[at+5:], []byte{0xea, 0x60, 0xea, 0x60})
	return b
}

// Whatever the pages, each has its row, in order, and only those that cannot be
// read are not ok.
func TestHandle(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	good := encoded(t, paper(800, 600, ruled(4, 800)...))
	for _, page := range []struct {
		name string
		data []byte
	}{
		{"lines.jpg", good},
		{"blank.jpg", encoded(t, paper(400, 300))},
		{"cut.jpg", good[:len(good)/2]},
		{"bomb.jpg", bomb(good)},
		{"empty.jpg", []byte{}},
		{"missing.jpg", nil},
		{"more.jpg", encoded(t, paper(800, 600, ruled(2, 800)...))},
	} {
		b.add(t, page.name, page.data)
	}
	result, err := b.handler(dark{model: &manifest}).Handle(t.Context(), b.task(t, ""))
	if err != nil {
		t.Fatal(err)
	}
	out := result.Output.(civic.Pages)
	if want := "sites/t.ca/documents/d/0123/line_detection.parquet/part-00001-00007.parquet"; out.Detection.Key != want {
		t.Errorf("the table is at %s, not %s", out.Detection.Key, want)
	}
	rows, meta := b.rows(t, result)
	if meta["model"] != manifest.Name || meta["model_sha256"] != manifest.SHA256 || len(meta["config_sha256"]) != 64 || meta["profile"] != "reeve" {
		t.Errorf("footer %v", meta)
	}
	var got []string
	for i, r := range rows {
		got = append(got, fmt.Sprintf("%d %s %v %s %d", r.Page, r.Image, r.OK, r.Source, len(r.Contours)))
		if r.OK != (r.ErrorMessage == "") || !r.OK && (r.ErrorStage != linedetection.Name || r.ErrorClass != "permanent" || !strings.Contains(r.ErrorMessage, r.Image)) {
			t.Errorf("page %d: %q %q %q", r.Page, r.ErrorStage, r.ErrorClass, r.ErrorMessage)
		}
		if len(r.Contours) != len(r.Scores) || (r.Confidence > 0) != (len(r.Contours) > 0) || (r.Width > 0) != r.OK {
			t.Errorf("row %d: %+v", i, r)
		}
	}
	if diff := cmp.Diff([]string{
		"1 lines.jpg true image 4", "2 blank.jpg true blank 0", "3 cut.jpg false failed 0", "4 bomb.jpg false failed 0",
		"5 empty.jpg false failed 0", "6 missing.jpg false failed 0", "7 more.jpg true image 2",
	}, got); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]float64{"pages": 7, "pages_blank": 1, "pages_failed": 4, "lines": 6}, result.Metrics); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
	if !slices.Equal(rows[6].Contours[0][0][:], rows[0].Contours[0][0][:]) {
		t.Error("the same line is elsewhere on the last page")
	}
}

// The tilt of a page is found with its sign, and what is too much is flagged.
func TestHandle_angle(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	angles := []float64{-10, -0.5, 0, 0.2, 3, 20}
	flat := paper(800, 500, ruled(4, 800)...)
	for _, deg := range angles {
		turned, err := vision.Rotate(flat, deg, true, 255)
		if err != nil {
			t.Fatal(err)
		}
		b.add(t, fmt.Sprintf("%v.jpg", deg), encoded(t, turned))
	}
	result, err := b.handler(dark{model: &manifest}).Handle(t.Context(), b.task(t, ""))
	if err != nil {
		t.Fatal(err)
	}
	rows, _ := b.rows(t, result)
	for i, r := range rows {
		deg := angles[i]
		switch {
		case deg == 20:
			if r.AngleFlag != string(vision.OutOfRange) || r.Angle != 0 {
				t.Errorf("%v°: angle %.2f, flag %q", deg, r.Angle, r.AngleFlag)
			}
		case math.Abs(deg) <= 0.2:
			if r.Angle != 0 || r.AngleFlag != "" {
				t.Errorf("%v°: angle %.2f, flag %q, want exactly 0", deg, r.Angle, r.AngleFlag)
			}
		case math.Abs(r.Angle-deg) > 0.3 || r.AngleFlag != "":
			t.Errorf("%v°: angle %.2f, flag %q", deg, r.Angle, r.AngleFlag)
		}
	}
}

// A bent page is flattened where it is asked for, by parameters that can be
// stored.
func TestHandle_bent(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	page := paper(1200, 800)
	for i := range 6 {
		for x := 100; x < 1100; x++ {
			y := 150 + 90*i + int(60*math.Sin(math.Pi*float64(x)/1200))
			for dy := range 24 {
				page.Pix[page.PixOffset(x, y+dy)] = 0
			}
		}
	}
	b.add(t, "bent.jpg", encoded(t, page))
	h := b.handler(dark{model: &manifest})
	for _, tt := range []struct {
		settings string
		bent     bool
	}{{`{}`, false}, {`{"use_tps": true, "version": 2}`, true}} {
		result, err := h.Handle(t.Context(), b.task(t, tt.settings))
		if err != nil {
			t.Fatal(err)
		}
		rows, _ := b.rows(t, result)
		r := rows[0]
		if r.Dewarping != tt.bent || (len(r.TPSPoints) > 4) != tt.bent || (r.TPSRatio > 0.9) != tt.bent {
			t.Errorf("%s: dewarping %v by %d points, %.2f of the lines bent", tt.settings, r.Dewarping, len(r.TPSPoints), r.TPSRatio)
		}
		if key := result.Output.(civic.Pages).Detection.Key; strings.Contains(key, "/v2/") != tt.bent {
			t.Errorf("%s: the table is at %s", tt.settings, key)
		}
	}
}

func TestHandle_wrong(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.add(t, "a.jpg", encoded(t, paper(200, 200, image.Rect(20, 20, 180, 40))))
	down := &bench{store: b.store, images: b.images}
	twice := &bench{store: b.store, images: append(slices.Clone(b.images), b.images[0])}
	for _, tt := range []struct {
		name   string
		engine dark
		task   *stage.Task
		class  fault.Class
		says   string
	}{
		{"an engine out of order", dark{err: fault.Infra(errors.New("no memory left on the device"))}, b.task(t, ""), fault.ClassInfra, "a.jpg: no memory"},
		{"an engine that fails", dark{err: errors.New("exit")}, b.task(t, ""), fault.ClassTransient, "a.jpg: exit"},
		{"no pages", dark{}, (&bench{}).task(t, ""), fault.ClassPermanent, "0 images"},
		{"a page twice", dark{}, twice.task(t, ""), fault.ClassPermanent, "page 1 follows page 1"},
		{"an unknown profile", dark{}, down.task(t, `{"profile": "best"}`), fault.ClassPermanent, "best"},
		{"settings of another kind", dark{}, down.task(t, `{"use_tps": "maybe"}`), fault.ClassPermanent, "settings"},
	} {
		if tt.engine.model == nil {
			tt.engine.model = &manifest
		}
		_, err := b.handler(tt.engine).Handle(t.Context(), tt.task)
		if fault.Of(err) != tt.class || !strings.Contains(fmt.Sprint(err), tt.says) {
			t.Errorf("%s: error %v of class %q, want %q and class %q", tt.name, err, fault.Of(err), tt.says, tt.class)
		}
	}
	// A page that the model cannot take costs that page.
	result, err := b.handler(dark{model: &manifest, err: fault.Permanent(errors.New("too large"))}).Handle(t.Context(), b.task(t, ""))
	if err != nil {
		t.Fatal(err)
	}
	if rows, _ := b.rows(t, result); rows[0].OK || rows[0].ErrorMessage != "a.jpg: too large" {
		t.Errorf("row %+v", rows[0].About)
	}
}

func TestHandle_contract(t *testing.T) {
	t.Parallel()
	good := encoded(t, paper(400, 300, image.Rect(40, 100, 360, 120), image.Rect(40, 150, 360, 170)))
	handler := func(t *testing.T) (stage.Handler, stagetest.Store) {
		b := newBench(t)
		b.add(t, "1.jpg", good)
		b.add(t, "2.jpg", good[:200])
		return b.handler(dark{model: &manifest}, dark{model: &manifest}), b.store
	}
	b := newBench(t)
	b.add(t, "1.jpg", good)
	b.add(t, "2.jpg", good[:200])
	stagetest.Check(t, handler, stagetest.Fixture{
		Name: "two pages", Task: *b.task(t, ""), Prefix: "sites/t.ca/documents/d/0123/line_detection.parquet/",
	}, stagetest.Fixture{
		Name: "nothing to do", Task: *(&bench{}).task(t, ""), Fails: fault.ClassPermanent,
	})
}
