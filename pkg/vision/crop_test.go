package vision_test

import (
	"bytes"
	"image"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/reeve-pipeline/reeve/pkg/vision"
)

func box(r image.Rectangle) []image.Point {
	return []image.Point{r.Min, {r.Max.X - 1, r.Min.Y}, {r.Max.X - 1, r.Max.Y - 1}, {r.Min.X, r.Max.Y - 1}}
}

// The crop's height is that of the first k that keeps it within the tolerance.
func TestCutSpread_heights(t *testing.T) {
	t.Parallel()
	page := paint(400, 400, func(_, _ float64) bool { return false })
	for _, h := range []int{9, 14, 20, 31} {
		for _, rule := range []vision.SpreadRule{{K: 1.7, Tolerance: 3}, {K: 2.5, Tolerance: 4}, {K: 2.5, Tolerance: 3}, {K: 1, Tolerance: 9}} {
			k := rule.K
			var want int
			for step := 0; ; step++ {
				want = h + int(float64(int(float64(h)*k))*k) - 1
				if float64(want) <= rule.Tolerance*float64(h) || step == 10 {
					break
				}
				k -= 0.1
			}
			crop, at, err := vision.CutSpread(page, box(image.Rect(100, 200, 300, 200+h)), rule)
			if err != nil {
				t.Fatal(err)
			}
			if crop.Bounds().Dy() != want || at.Dy() != want || at.Dx() != 200+int(float64(h)*k)-1 {
				t.Errorf("h %d, %+v: %v, want %d px high", h, rule, at, want)
			}
		}
	}
}

// An even kernel reaches one further to the right and down, an odd one as far
// everywhere; what is outside is fill, and the crop stops at the page.
func TestCutSpread_anchor(t *testing.T) {
	t.Parallel()
	page := gray(7, 7, bytes.Repeat([]byte{9}, 49)...)
	for _, tt := range []struct {
		k    float64
		want image.Rectangle
	}{
		{2, image.Rect(3, 2, 5, 6)}, // 2 wide, 4 high
		{3, image.Rect(2, 0, 5, 7)}, // 3 wide, 9 high
	} {
		crop, at, err := vision.CutSpread(page, []image.Point{{3, 3}}, vision.SpreadRule{K: tt.k, Tolerance: 99, Fill: 1})
		if err != nil || at != tt.want || bytes.IndexByte(crop.Pix, 1) >= 0 {
			t.Errorf("k %v: %v %v, %v", tt.k, at, crop.Pix, err)
		}
	}
	_, at, err := vision.CutSpread(page, []image.Point{{1, 1}, {5, 5}}, vision.SpreadRule{K: 0.5, Tolerance: 9, Fill: 1})
	if err != nil || at != image.Rect(1, 1, 7, 6) {
		t.Errorf("%v %v", at, err)
	}
	if _, _, err := vision.CutSpread(page, []image.Point{{100, 100}}, vision.SpreadRule{K: 1, Tolerance: 3}); err == nil {
		t.Error("a contour outside the page is cut")
	}
	if _, _, err := vision.CutSpread(page, nil, vision.SpreadRule{K: 1, Tolerance: 3}); err == nil {
		t.Error("no contour is cut")
	}
}

// A black bar inside the line and the black wedge of a turned page keep their
// width, and the neighbours' pixels do not come in.
func TestCutSpread_keepsBars(t *testing.T) {
	t.Parallel()
	const x0 = 150
	page := paint(400, 200, func(x, y float64) bool { return x >= x0 && x < x0+30 || y < 20 })
	crop, at, err := vision.CutSpread(page, box(image.Rect(50, 90, 350, 110)), vision.SpreadRule{K: 1.7, Tolerance: 3, Fill: 255})
	if err != nil {
		t.Fatal(err)
	}
	black := 0
	for x := range at.Dx() {
		if crop.Pix[crop.Bounds().Dy()/2*crop.Stride+x] == 0 {
			black++
			if x+at.Min.X < x0 || x+at.Min.X >= x0+30 {
				t.Fatalf("ink at %d", x+at.Min.X)
			}
		}
	}
	if black != 30 {
		t.Errorf("the bar is %d px wide", black)
	}
}

// The crop of a line is the same whether or not others were cut before.
func TestCut_doesNotDependOnOthers(t *testing.T) {
	t.Parallel()
	page := bars(600, 400, stack(50, 50, 500, 20, 40, 8), 2)
	contours := vision.Contours(page, vision.Ink(128))
	m, _, _ := vision.Rotation(600, 400, -2, true)
	cut := func(c []image.Point) []byte {
		around, _, err := vision.CutSpread(page, c, vision.SpreadRule{K: 2.5, Tolerance: 3})
		if err != nil {
			t.Fatal(err)
		}
		var moved []vision.Point
		for _, p := range vision.Points(c) {
			moved = append(moved, m.Forward(p))
		}
		line, err := vision.Cut(page, m, vision.MinAreaRect(moved), vision.Reeve().Crop)
		if err != nil {
			t.Fatal(err)
		}
		return append(around.Pix, line.Pix...)
	}
	alone := cut(contours[5])
	for _, c := range contours {
		cut(c)
	}
	if !bytes.Equal(cut(contours[5]), alone) {
		t.Error("the crop changed")
	}
}

// A tilted, bent or large line comes out upright, as high as asked, with its
// ends where they belong.
func TestCut_upright(t *testing.T) {
	t.Parallel()
	// A line of 400 by 40 px with a white middle third.
	line := vision.Rect{Center: vision.Point{X: 300, Y: 200}, W: 400, H: 40, Angle: 20}
	page := paint(600, 400, func(x, y float64) bool {
		a := 20 * math.Pi / 180
		u := math.Cos(a)*(x-300) + math.Sin(a)*(y-200)
		v := -math.Sin(a)*(x-300) + math.Cos(a)*(y-200)
		return math.Abs(u) < 200 && math.Abs(v) < 20 && math.Abs(v) > 20.0/3
	})
	rotation, _, _ := vision.Rotation(600, 400, -20, true)
	upright := line
	upright.Center, upright.Angle = rotation.Forward(line.Center), 0
	for _, tt := range []struct {
		name   string
		m      vision.Map
		line   vision.Rect
		height int
	}{
		{"as it lies", nil, line, 48}, {"on the turned page", rotation, upright, 48}, {"made much smaller", nil, line, 9},
	} {
		got, err := vision.Cut(page, tt.m, tt.line, vision.LineCrop{Height: tt.height, MaxWidth: 4096, Pad: 0.5, Fill: 255})
		if err != nil {
			t.Fatal(err)
		}
		s := float64(tt.height) / 40
		w, h := got.Bounds().Dx(), got.Bounds().Dy()
		if h != tt.height || w != int(math.Round(440*s)) {
			t.Errorf("%s: %d by %d px", tt.name, w, h)
		}
		at := func(x, y float64) uint8 { return got.Pix[int(y*s)*got.Stride+int((x+20)*s)] }
		for x := 10.0; x < 390; x += 20 {
			if at(x, 5) > 60 || at(x, 20) < 200 || at(x, 35) > 60 {
				t.Errorf("%s: %d %d %d at %v", tt.name, at(x, 5), at(x, 20), at(x, 35), x)
			}
		}
		if at(-10, 5) < 200 || at(410, 35) < 200 {
			t.Errorf("%s: no margin", tt.name)
		}
	}
}

func TestCut_bounds(t *testing.T) {
	t.Parallel()
	page := paint(50, 50, func(x, y float64) bool { return true })
	c := vision.LineCrop{Height: 48, MaxWidth: 2000, Pad: 0.5, Fill: 255}
	long := vision.Rect{Center: vision.Point{X: 25, Y: 25}, W: 1e12, H: 1}
	if got, err := vision.Cut(page, nil, long, c); err != nil || got.Bounds() != image.Rect(0, 0, 2000, 48) {
		t.Errorf("%v, %v", got.Bounds(), err)
	}
	for name, bad := range map[string]vision.Rect{
		"no area": {W: 10}, "negative": {W: -1, H: 4}, "not a number": {W: math.NaN(), H: 3},
		"infinite": {W: 1, H: math.Inf(1)},
	} {
		if _, err := vision.Cut(page, nil, bad, c); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := vision.Cut(nil, nil, long, c); err == nil {
		t.Error("no page: no error")
	}
	if _, err := vision.Cut(page, nil, long, vision.LineCrop{Height: 1 << 20, MaxWidth: 1 << 20}); err == nil {
		t.Error("a crop of a terapixel: no error")
	}
}

// What is sampled between the places where the map is asked is where the map
// says, to the levels of the page, on the strongest bend of real volumes.
func TestRemap_isTheMap(t *testing.T) {
	t.Parallel()
	const w, h = 500, 640
	page := image.NewGray(image.Rect(0, 0, w, h))
	for i := range page.Pix { // a slope: the level says where the pixel is from
		page.Pix[i] = uint8(i / w * 255 / (h - 1))
	}
	var source, target []vision.Point
	for _, y := range []float64{0, h / 2, h - 1} {
		for _, x := range []float64{0, w / 4, w / 2, w * 3 / 4, w - 1} {
			target = append(target, vision.Point{X: x, Y: y})
			source = append(source, vision.Point{X: x, Y: y + 0.05*h*math.Sin(math.Pi*x/w)})
		}
	}
	s, err := vision.NewSpline(source, target, 0)
	if err != nil {
		t.Fatal(err)
	}
	part := image.Rect(37, 51, 450, 500)
	got, err := vision.Remap(page, s, part, 0)
	if err != nil {
		t.Fatal(err)
	}
	for y := range part.Dy() {
		for x := range part.Dx() {
			from := s.Inverse(vision.Point{X: float64(part.Min.X + x), Y: float64(part.Min.Y + y)})
			if d := float64(got.Pix[y*got.Stride+x]) - from.Y*255/(h-1); math.Abs(d) > 1.6 {
				t.Fatalf("pixel %d,%d is from %v: its level is off by %.1f", x, y, from, d)
			}
		}
	}
}

// A place, mapped to the rotated page and back, is itself.
func TestRotation_thereAndBack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w, h := rapid.IntRange(1, 20000).Draw(t, "w"), rapid.IntRange(1, 20000).Draw(t, "h")
		m, w2, h2 := vision.Rotation(w, h, rapid.Float64Range(-360, 360).Draw(t, "deg"), rapid.Bool().Draw(t, "grow"))
		p := vision.Point{X: rapid.Float64Range(0, float64(w)).Draw(t, "x"), Y: rapid.Float64Range(0, float64(h)).Draw(t, "y")}
		if d := distance(m.Inverse(m.Forward(p)), p); d > 1e-6 || w2 < 1 || h2 < 1 {
			t.Fatalf("off by %v px on %d by %d", d, w2, h2)
		}
	})
}
