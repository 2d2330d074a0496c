//go:build cgo

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/jpeg"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/image/font"
	"golang.org/x/image/font/gofont/goregular"
	"golang.org/x/image/font/opentype"
	"golang.org/x/image/math/fixed"

	"github.com/reeve-pipeline/reeve/pkg/artifact"
	"github.com/reeve-pipeline/reeve/pkg/civic"
	"github.com/reeve-pipeline/reeve/pkg/model"
	"github.com/reeve-pipeline/reeve/pkg/onnx"
	"github.com/reeve-pipeline/reeve/pkg/pages"
	"github.com/reeve-pipeline/reeve/pkg/raster"
	"github.com/reeve-pipeline/reeve/pkg/s3test"
	"github.com/reeve-pipeline/reeve/pkg/stage"
	"github.com/reeve-pipeline/reeve/pkg/table"
	"github.com/reeve-pipeline/reeve/pkg/vision"
	"github.com/reeve-pipeline/reeve/services/linedetection"
	"github.com/reeve-pipeline/reeve/services/lineextraction"
	"github.com/reeve-pipeline/reeve/services/ocr"
)

// printed is text set at a place of a page.
type printed struct {
	x, y  int // px, of the first line's baseline
	lines []string
}

const (
	dpi     = 200
	leading = 44 // px; 11 pt type has 31
)

var (
	minutes = []printed{
		{150, 160, []string{
			"MINUTES OF THE REGULAR MEETING OF THE CITY COUNCIL",
			"The meeting was called to order at 7:00 p.m. by Mayor Hartwell. Present:",
			"Councilmembers Abara, DeWitt, McQuill and Tessier. Absent: none.",
		}},
		{150, 400, []string{ // a paragraph further down
			"Councilmember Tessier moved to award the contract for $86,150 to Larkspur",
			"Paving. Vice Mayor O'Donnell seconded the motion, which carried: Ayes 4,",
			"Noes 1. The meeting was adjourned at 9:14 p.m.",
		}},
	}
	columns = []printed{
		{150, 160, []string{"NOTICE OF A PUBLIC HEARING ON THE BUDGET"}},
		{150, 260, []string{"The Council will hear from all", "persons who wish to speak for", "or against the fees."}},
		{900, 274, []string{"Copies may be read in the office", "of the City Clerk on weekdays,", "and in the library."}},
	}
)

// want is the text that a page should have.
func want(page []printed) string {
	var parts []string
	for _, p := range page {
		parts = append(parts, strings.Join(p.lines, "\n"))
	}
	return strings.Join(parts, "\n\n")
}

// set prints a page.
func set(t testing.TB, height int, page []printed) *image.Gray {
	t.Helper()
	parsed, err := opentype.Parse(goregular.TTF)
	if err != nil {
		t.Fatal(err)
	}
	face, err := opentype.NewFace(parsed, &opentype.FaceOptions{Size: 11, DPI: dpi, Hinting: font.HintingFull})
	if err != nil {
		t.Fatal(err)
	}
	img := image.NewGray(image.Rect(0, 0, 1700, height))
	draw.Draw(img, img.Rect, image.NewUniform(color.Gray{Y: 250}), image.Point{}, draw.Src)
	pen := font.Drawer{Dst: img, Src: image.NewUniform(color.Gray{Y: 25}), Face: face}
	for _, p := range page {
		for i, line := range p.lines {
			pen.Dot = fixed.P(p.x, p.y+i*leading)
			pen.DrawString(line)
		}
	}
	return img
}

// scan turns a page and lays noise over it.
func scan(t *testing.T, page *image.Gray, deg float64) *image.Gray {
	t.Helper()
	img, err := vision.Rotate(page, deg, true, 250)
	if err != nil {
		t.Fatal(err)
	}
	noise := rand.New(rand.NewPCG(1, 2))
	for i, v := range img.Pix {
		img.Pix[i] = uint8(min(max(float64(v)+12*noise.NormFloat64(), 0), 255))
	}
	return img
}

// detector is an ONNX session as the engine of line_detection, which has the
// same shape as [session].
func detector(t testing.TB, name string) (model.Manifest, session) {
	t.Helper()
	m, err := model.Named(name)
	if err != nil {
		t.Fatal(err)
	}
	dir := model.Cache(os.Getenv)
	runtime, err := onnx.Open(onnx.Options{Library: filepath.Join(dir, model.Library)})
	if err != nil {
		t.Fatalf("%v\nfetch the library and the models with: scripts/models", err)
	}
	s, err := runtime.Load(onnx.Model(m.Contract()), dir)
	if err != nil {
		t.Fatalf("%v\nfetch the library and the models with: scripts/models", err)
	}
	t.Cleanup(func() { s.Close() })
	return m, session{s}
}

// The real models read drawn pages, through the three stages and an object
// store, with as few errors as promised and in the right order.
func TestModels(t *testing.T) {
	t.Parallel()
	store := s3test.Open(t)
	images := pages.NewReader(store, raster.Defaults(), 64<<20)
	detection, d := detector(t, model.DefaultLineDetection)
	recognition, r := detector(t, model.DefaultOCR)
	stages := []stage.Handler{
		linedetection.New(store, images, detection, d),
		lineextraction.New(store, images),
		ocr.New(store, images, ocr.NewReader(&recognition, 0, 1), r),
	}
	for i, tt := range []struct {
		name  string
		page  []printed
		skew  float64 // degrees; 0: clean
		worst float64 // share of characters that may be wrong
	}{
		{"clean", minutes, 0, 0.01},
		{"2° clockwise, noise", minutes, 2, 0.03},
		{"2° the other way, noise", minutes, -2, 0.03},
		{"columns, askew", columns, 1.5, 0.03},
	} {
		img := set(t, 700, tt.page)
		if tt.skew != 0 {
			img = scan(t, img, tt.skew)
		}
		pagesText, found := work(t, store, stages, i, img)
		got := pagesText[0]
		if got.Source != civic.SourceOCR || got.Width < 600 || got.Width > 640 {
			t.Errorf("%s: source %q, %v points wide, error %q", tt.name, got.Source, got.Width, got.Error)
		}
		if cer := errorRate(want(tt.page), got.Text); cer > tt.worst {
			t.Errorf("%s: %.1f %% of the characters are wrong, %.1f %% may be:\n%s", tt.name, 100*cer, 100*tt.worst, got.Text)
		} else {
			t.Logf("%s: %.2f %% wrong, angle %.2f°", tt.name, 100*cer, found.Angle)
		}
		if math.Abs(found.Angle-tt.skew) > 0.3 {
			t.Errorf("%s: the page's angle is %.2f°, not %.2f°", tt.name, found.Angle, tt.skew)
		}
	}
}

// BenchmarkModels takes a full page through each stage, one session and thread.
func BenchmarkModels(b *testing.B) {
	store := s3test.Open(b)
	images := pages.NewReader(store, raster.Defaults(), 64<<20)
	detection, d := detector(b, model.DefaultLineDetection)
	recognition, r := detector(b, model.DefaultOCR)
	stages := []stage.Handler{
		linedetection.New(store, images, detection, d),
		lineextraction.New(store, images),
		ocr.New(store, images, ocr.NewReader(&recognition, 0, 1), r),
	}
	full := printed{x: 150, y: 160}
	for i := range 43 {
		full.lines = append(full.lines, minutes[i%2].lines[1+i/2%2])
	}
	img := set(b, 2200, []printed{full})
	took := map[string]time.Duration{}
	for i, h := range stages {
		stages[i] = timed{h, took}
	}
	for b.Loop() {
		text, _ := work(b, store, stages, 0, img)
		if cer := errorRate(want([]printed{full}), text[0].Text); cer > 0.01 {
			b.Fatalf("%.1f %% wrong", 100*cer)
		}
	}
	for name, all := range took {
		b.ReportMetric(float64(all.Milliseconds())/float64(b.N), name+"-ms/page")
	}
}

// timed notes how long a handler takes.
type timed struct {
	stage.Handler
	took map[string]time.Duration
}

func (h timed) Handle(ctx context.Context, task *stage.Task) (stage.Result, error) {
	began := time.Now()
	defer func() { h.took[strings.TrimPrefix(fmt.Sprintf("%T", h.Handler), "*")] += time.Since(began) }()
	return h.Handler.Handle(ctx, task)
}

// work takes one page through the stages.
func work(t testing.TB, store *artifact.Store, stages []stage.Handler, n int, img *image.Gray) ([]table.Page, table.Detection) {
	t.Helper()
	var buf bytes.Buffer
	if err := jpeg.Encode(&buf, img, &jpeg.Options{Quality: 75}); err != nil {
		t.Fatal(err)
	}
	kept, err := store.Put(t.Context(), fmt.Sprintf("in/%d.jpg", n), &buf, -1, "image/jpeg")
	if err != nil {
		t.Fatal(err)
	}
	var spec any = civic.Pages{
		Prefix: fmt.Sprintf("out/%d", n), Document: "d", First: 1, Last: 1,
		Images: []civic.PageImage{{Page: 1, Name: "1.jpg", DPI: dpi, Object: civic.Object{Key: kept.Key, Size: kept.Size, SHA256: kept.SHA256}}},
	}
	for _, h := range stages {
		body, err := json.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		result, err := h.Handle(t.Context(), &stage.Task{Run: 1, Subject: "t", Item: "d", Spec: body})
		if err != nil {
			t.Fatal(err)
		}
		spec = result.Output
	}
	out := spec.(civic.Pages)
	read := func(o *civic.Object) *bytes.Reader {
		data, err := store.ReadAll(t.Context(), o.Key, o.SHA256, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		return bytes.NewReader(data)
	}
	text := read(out.Text)
	rows, _, err := table.ReadPages(text, text.Size())
	if err != nil {
		t.Fatal(err)
	}
	detections := read(out.Detection)
	found, _, err := table.ReadDetections(detections, detections.Size())
	if err != nil {
		t.Fatal(err)
	}
	return rows, found[0]
}

// errorRate is the edit distance between two texts by the length of the first.
func errorRate(want, got string) float64 {
	a, b := []rune(want), []rune(got)
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i, r := range a {
		diagonal := row[0]
		row[0] = i + 1
		for j, s := range b {
			cost := diagonal
			if r != s {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return float64(row[len(b)]) / float64(len(a))
}
