package ocr_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"math"
	"strings"
	"testing"

	"github.com/reeve-pipeline/reeve/pkg/fault"
	"github.com/reeve-pipeline/reeve/pkg/model"
	"github.com/reeve-pipeline/reeve/pkg/table"
	"github.com/reeve-pipeline/reeve/pkg/vision"
	"github.com/reeve-pipeline/reeve/services/ocr"
)

// The script of these tests has bars for letters: a letter is as many times
// wider than it is high as its place in the alphabet says.
const (
	tall = 24 // px
	gap  = 20 // px between bars, and around a line
)

// write writes a text and returns its outline.
func write(img draw.Image, x, y int, text string) []table.Point {
	at := x + gap
	for _, letter := range text {
		w := tall * int(letter-'A'+1)
		draw.Draw(img, image.Rect(at, y+gap, at+w, y+gap+tall), image.NewUniform(color.Gray{Y: 10}), image.Point{}, draw.Src)
		at += w + gap
	}
	right, bottom := int32(at), int32(y+2*gap+tall)
	return []table.Point{{int32(x), int32(y)}, {right, int32(y)}, {right, bottom}, {int32(x), bottom}}
}

func paper(w, h int) *image.Gray {
	img := image.NewGray(image.Rect(0, 0, w, h))
	draw.Draw(img, img.Rect, image.White, image.Point{}, draw.Src)
	return img
}

// bars is an engine that reads that script, for a model of any layout.
type bars struct {
	model *model.Manifest
	err   error
	// classes, when above 0, is how many it says it has.
	classes int
}

func (b bars) Run(ctx context.Context, shape []int64, data []float32) ([]int64, []float32, error) {
	if err := errors.Join(ctx.Err(), b.err); err != nil {
		return nil, nil, err
	}
	axis := func(letter byte) (size, stride int) {
		i := b.model.Input.Layout.Axis(letter)
		stride = 1
		for _, n := range shape[i+1:] {
			stride *= int(n)
		}
		return int(shape[i]), stride
	}
	h, down := axis('H')
	w, right := axis('W')
	norm := b.model.Normalisation
	isDark := func(x, y int) bool {
		return (float64(data[x*right+y*down])*norm.Std[0]+norm.Mean[0])*norm.Scale < 128
	}
	dark := func(x int) (n int) { // the longest dark run of a column
		for y, run := 0, 0; y < h; y++ {
			run++
			if !isDark(x, y) {
				run = 0
			}
			n = max(n, run)
		}
		return n
	}
	steps, classes := w/8, b.model.Classes()
	if b.classes > 0 {
		classes = b.classes
	}
	read := make([]int, steps) // the class in each frame
	for t := range read {
		read[t] = b.model.Blank
	}
	for x := 0; x < w; {
		begin := x
		for x < w && dark(x) > h/16 {
			x++
		}
		if x-begin > h/16 {
			height := dark((begin + x) / 2)
			n := int(math.Round(float64(x-begin) / float64(height)))
			label := string(rune('A' + min(max(n, 1), 26) - 1))
			for class, l := range b.model.Labels() {
				if l == label {
					read[min((begin+x)/2/8, steps-1)] = class
				}
			}
		}
		x++
	}
	extent := map[byte]int{'N': 1, 'T': steps, 'V': classes}
	var outShape []int64
	stride := map[byte]int{}
	total := 1
	layout := b.model.Output.Layout
	for i := range 3 {
		outShape = append(outShape, int64(extent[layout[i]]))
	}
	for i := 2; i >= 0; i-- {
		stride[layout[i]] = total
		total *= extent[layout[i]]
	}
	out := make([]float32, total)
	for t, class := range read {
		for v := range classes {
			p := float32(0.1 / float64(max(classes-1, 1)))
			if v == class {
				p = 0.9
			}
			if b.model.Output.Values == model.Logit {
				p = 10 * p
			}
			out[t*stride['T']+v*stride['V']] = p
		}
	}
	return outShape, out, nil
}

func english(t *testing.T) *model.Manifest {
	t.Helper()
	m, err := model.Named(model.DefaultOCR)
	if err != nil {
		t.Fatal(err)
	}
	return &m
}

// bdrc is a model of one of BDRC's families, for the letters A to F.
func bdrc(input, output model.Layout, width, height int) *model.Manifest {
	return &model.Manifest{
		Name: "family", Task: model.OCR, SHA256: "0",
		Input:         model.Input{Name: "x", Layout: input},
		Output:        model.Output{Name: "y", Layout: output, Values: model.Logit},
		Canvas:        model.Canvas{Fit: model.FitCanvas, Width: width, Height: height},
		Normalisation: model.Normalisation{Channels: "GREY", Scale: 127.5, Mean: []float64{1}, Std: []float64{1}},
		Charset:       model.Charset{"A", "B", "C", "D", "E", "F", "§"},
		Space:         model.Space{Symbol: "§"},
		Encoding:      model.Wylie,
	}
}

// read reads one line of a page.
func read(t *testing.T, m *model.Manifest, profile vision.Profile, page *image.Gray, d table.Detection, contour []table.Point) (string, *image.Gray) {
	t.Helper()
	sheet, err := ocr.NewSheet(page, 200, &d, m, &profile)
	if err != nil {
		t.Fatal(err)
	}
	line, err := sheet.Line(contour)
	if err != nil {
		t.Fatal(err)
	}
	text, confidence, err := ocr.NewReader(m, 0, 1).Read(t.Context(), bars{model: m}, line)
	if err != nil {
		t.Fatal(err)
	}
	if confidence <= 0.5 || confidence > 1 {
		t.Errorf("confidence %.3f", confidence)
	}
	return text, line
}

// turned is a page turned by an angle about its middle, and a contour with it.
func turned(t *testing.T, page *image.Gray, contour []table.Point, deg float64) (*image.Gray, []table.Point) {
	t.Helper()
	img, err := vision.Rotate(page, deg, false, 255)
	if err != nil {
		t.Fatal(err)
	}
	m, _, _ := vision.Rotation(page.Rect.Dx(), page.Rect.Dy(), deg, false)
	var moved []table.Point
	for _, p := range contour {
		q := m.Forward(vision.Point{X: float64(p[0]), Y: float64(p[1])})
		moved = append(moved, table.Point{int32(math.Round(q.X)), int32(math.Round(q.Y))})
	}
	return img, moved
}

// A line reads the same however the page lies, and whatever stands beside it.
func TestLine(t *testing.T) {
	t.Parallel()
	for _, deg := range []float64{0, 1, -4.5, 10} {
		alone, crowded := paper(700, 400), paper(700, 400)
		contour := write(alone, 100, 160, "ABACDB")
		write(crowded, 100, 160, "ABACDB")
		write(crowded, 100, 50, "CCC")
		write(crowded, 200, 270, "DAD")
		var first *image.Gray
		for _, page := range []*image.Gray{alone, crowded} {
			page, contour := turned(t, page, contour, deg)
			text, line := read(t, english(t), vision.Reeve(), page, table.Detection{Angle: deg}, contour)
			if text != "ABACDB" {
				t.Errorf("%v°: read %q", deg, text)
			}
			if line.Rect.Dy() != 48 || line.Rect.Dx()%8 != 0 {
				t.Errorf("%v°: the line's picture is %v", deg, line.Rect)
			}
			if first == nil {
				first = line
			} else if deg == 0 && !bytes.Equal(first.Pix, line.Pix) {
				t.Error("the picture of a line depends on the lines beside it")
			}
		}
	}
}

// The families of models: layouts of inputs and outputs, canvas and padding.
func TestLine_families(t *testing.T) {
	t.Parallel()
	square := bdrc("NHW", "NVT", 640, 80)
	for i := square.Classes(); i < 640/8; i++ {
		square.Charset = append(square.Charset, fmt.Sprint("x", i))
	}
	for _, tt := range []struct {
		name    string
		model   *model.Manifest
		profile vision.Profile
		text    string // empty: this script is not read on black
	}{
		{"Easter2, wide canvas", bdrc("NHW", "NVT", 1280, 80), vision.BDRCProd(), "ABACDB"},
		{"Easter2, as many classes as frames", square, vision.BDRCProd(), "AC"},
		{"CRNN", bdrc("NCWH", "TNV", 1280, 80), vision.BDRCProd(), "ABCDEF"},
		{"CRNN, the app's canvas", bdrc("NCWH", "TNV", 1280, 80), vision.BDRCApp(), ""},
		{"a canvas without spreading", bdrc("NHW", "NTV", 1280, 80), vision.Reeve(), "BAD"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			page := paper(800, 400)
			contour := write(page, 80, 160, cmp.Or(tt.text, "AC"))
			profile := tt.profile
			profile.Binarize = vision.Binarize{} // solid bars are no ink to it
			profile.Around.Fill = 255
			text, line := read(t, tt.model, profile, page, table.Detection{}, contour)
			if text != tt.text && tt.text != "" {
				t.Errorf("read %q, want %q", text, tt.text)
			}
			canvas := tt.model.Canvas
			if line.Rect.Dx() != canvas.Width || line.Rect.Dy() != canvas.Height {
				t.Fatalf("the picture is %v", line.Rect)
			}
			corner := line.GrayAt(canvas.Width-1, canvas.Height-1).Y
			if corner != tt.profile.PadFill {
				t.Errorf("the canvas is filled with %d, not %d", corner, tt.profile.PadFill)
			}
		})
	}
}

// What a model of that family sees is black and white.
func TestLine_binarized(t *testing.T) {
	t.Parallel()
	page := paper(800, 400)
	for i := range page.Pix {
		page.Pix[i] = 230
	}
	contour := write(page, 80, 160, "AB")
	for _, profile := range []vision.Profile{vision.BDRCProd(), vision.BDRCApp()} {
		_, line := lineOf(t, bdrc("NHW", "NVT", 640, 64), profile, page, contour)
		for _, v := range line.Pix {
			if v != 0 && v != 255 {
				t.Fatalf("%s: there is grey, %d", profile.Name, v)
			}
		}
	}
}

func lineOf(t *testing.T, m *model.Manifest, profile vision.Profile, page *image.Gray, contour []table.Point) (*ocr.Sheet, *image.Gray) {
	t.Helper()
	sheet, err := ocr.NewSheet(page, 200, &table.Detection{}, m, &profile)
	if err != nil {
		t.Fatal(err)
	}
	line, err := sheet.Line(contour)
	if err != nil {
		t.Fatal(err)
	}
	return sheet, line
}

// Dust on a page of nothing but black and white is no ink.
func TestLine_dust(t *testing.T) {
	t.Parallel()
	clean, dusty := paper(600, 200), paper(600, 200)
	contour := write(clean, 20, 60, "ABC")
	write(dusty, 20, 60, "ABC")
	for x := 30; x < 300; x += 15 {
		for _, at := range []int{0, 1, dusty.Stride} { // 3 px
			dusty.Pix[72*dusty.Stride+x+at] = 0
		}
	}
	for i, v := range clean.Pix { // as bilevel files are decoded
		if clean.Pix[i] = 255; v < 128 {
			clean.Pix[i] = 0
		}
		if v = dusty.Pix[i]; v < 128 {
			dusty.Pix[i] = 0
		}
	}
	_, want := lineOf(t, english(t), vision.Reeve(), clean, contour)
	_, got := lineOf(t, english(t), vision.Reeve(), dusty, contour)
	if !bytes.Equal(want.Pix, got.Pix) {
		t.Error("the dust is still there")
	}
}

// A bent line is read along its bend.
func TestLine_bent(t *testing.T) {
	t.Parallel()
	flat := paper(700, 400)
	contour := write(flat, 100, 168, "ABACDB")
	// Down by up to 30 px in the middle of the page.
	var source, target []vision.Point
	d := table.Detection{Dewarping: true}
	for _, p := range []vision.Point{{X: 0, Y: 0}, {X: 699, Y: 0}, {X: 0, Y: 399}, {X: 699, Y: 399}, {X: 100, Y: 200}, {X: 350, Y: 200}, {X: 600, Y: 200}} {
		q := p
		if p.Y == 200 {
			q.Y += 30 * math.Sin(math.Pi*p.X/700)
		}
		source, target = append(source, q), append(target, p)
		d.TPSPoints = append(d.TPSPoints, [4]float64{q.Y, q.X, p.Y, p.X})
	}
	spline, err := vision.NewSpline(source, target, 0)
	if err != nil {
		t.Fatal(err)
	}
	bent, err := vision.Remap(flat, inverse{spline}, flat.Rect, 255)
	if err != nil {
		t.Fatal(err)
	}
	var moved []table.Point
	for _, p := range contour {
		q := spline.Inverse(vision.Point{X: float64(p[0]), Y: float64(p[1])})
		moved = append(moved, table.Point{int32(math.Round(q.X)), int32(math.Round(q.Y))})
	}
	if text, _ := read(t, english(t), vision.Reeve(), bent, d, moved); text != "ABACDB" {
		t.Errorf("read %q", text)
	}
}

// inverse is a map the other way round.
type inverse struct{ vision.Map }

func (m inverse) Forward(p vision.Point) vision.Point { return m.Map.Inverse(p) }
func (m inverse) Inverse(p vision.Point) vision.Point { return m.Map.Forward(p) }

func TestRead_wrong(t *testing.T) {
	t.Parallel()
	m := english(t)
	line := paper(64, 48)
	broken := errors.New("no memory")
	for _, tt := range []struct {
		name   string
		engine bars
		class  fault.Class
		says   string
	}{
		{"another charset", bars{model: m, classes: 5}, fault.ClassPermanent, "5 classes"},
		{"an engine that fails", bars{model: m, err: broken}, fault.ClassTransient, "no memory"},
	} {
		_, _, err := ocr.NewReader(m, 0, 1).Read(t.Context(), tt.engine, line)
		if fault.Of(err) != tt.class || !strings.Contains(fmt.Sprint(err), tt.says) {
			t.Errorf("%s: error %v of class %q", tt.name, err, fault.Of(err))
		}
	}
}

// A line too short to tell its own tilt has that of its page.
func TestRect(t *testing.T) {
	t.Parallel()
	for _, deg := range []float64{0, 3, -7} {
		for _, want := range []vision.Rect{
			{Center: vision.Point{X: 500, Y: 300}, W: 400, H: 30, Angle: deg},
			{Center: vision.Point{X: 500, Y: 300}, W: 25, H: 30, Angle: deg},
			{Center: vision.Point{X: 20, Y: 30}, W: 30, H: 30, Angle: deg},
		} {
			corners := want.Corners()
			got := ocr.Rect(corners[:], deg)
			if math.Abs(got.Center.X-want.Center.X)+math.Abs(got.Center.Y-want.Center.Y) > 1e-6 ||
				math.Abs(got.W-want.W) > 1e-6 || math.Abs(got.H-want.H) > 1e-6 || math.Abs(got.Angle-deg) > 1e-6 {
				t.Errorf("%v became %v", want, got)
			}
		}
	}
	short := vision.Rect{Center: vision.Point{X: 50, Y: 50}, W: 40, H: 30, Angle: 20}
	corners := short.Corners()
	if got := ocr.Rect(corners[:], 1); got.Angle != 1 || got.W < short.W || got.H < short.H {
		t.Errorf("a short line on a page at 1° became %v", got)
	}
}

func TestText(t *testing.T) {
	t.Parallel()
	// at is a line n leadings down the page, in a column.
	at := func(text string, x, n float64) ocr.Placed {
		return ocr.Placed{Text: text, Rect: vision.Rect{Center: vision.Point{X: x, Y: 40 * n}, W: 300, H: 28}}
	}
	for _, tt := range []struct {
		name  string
		lines []ocr.Placed
		want  string
	}{
		{"nothing", nil, ""},
		{"one line", []ocr.Placed{at(" a ", 0, 1)}, "a"},
		{"lines", []ocr.Placed{at("a", 0, 1), at("b", 0, 2), at("c", 0, 3)}, "a\nb\nc"},
		{"two lines far apart", []ocr.Placed{at("a", 0, 1), at("b", 0, 3)}, "a\nb"},
		{"paragraphs", []ocr.Placed{at("a", 0, 1), at("b", 0, 2), at("c", 0, 3.8), at("d", 0, 4.8)}, "a\nb\n\nc\nd"},
		{"double-spaced", []ocr.Placed{at("a", 0, 2), at("b", 0, 4), at("c", 0, 6)}, "a\nb\nc"},
		{"an empty line is left out", []ocr.Placed{at("a", 0, 1), at(" ", 0, 1.8), at("b", 0, 2)}, "a\nb"},
		{"beside each other", []ocr.Placed{at("a", 0, 1), at("b", 400, 1.1), at("c", 0, 2)}, "a\nb\nc"},
		{"columns", []ocr.Placed{at("a", 0, 1), at("b", 0, 2), at("c", 400, 1), at("d", 400, 2)}, "a\nb\n\nc\nd"},
	} {
		for _, deg := range []float64{0, 3, -10} {
			turn, _, _ := vision.Rotation(1000, 1000, deg, false)
			lines := append([]ocr.Placed{}, tt.lines...)
			for i := range lines {
				lines[i].Rect.Center, lines[i].Rect.Angle = turn.Forward(lines[i].Rect.Center), deg
			}
			if got := ocr.Text(lines, deg); got != tt.want {
				t.Errorf("%s at %v°: %q, want %q", tt.name, deg, got, tt.want)
			}
		}
	}
}
