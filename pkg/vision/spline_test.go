package vision_test

import (
	"encoding/json"
	"image"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/reeve-pipeline/reeve/pkg/vision"
)

// bent draws n bands that sag by amp·h·sin(πx/w), a page's spine to its edges.
func bent(w, h, n, thick int, amp float64) *image.Gray {
	sag := make([]float64, w)
	for x := range sag {
		sag[x] = amp * float64(h) * math.Sin(math.Pi*float64(x)/float64(w))
	}
	return paint(w, h, func(x, y float64) bool {
		v := y - sag[int(x)]
		pitch := float64(h) / float64(n+3)
		i := math.Floor(v / pitch)
		return i >= 1 && i <= float64(n) && v-i*pitch < float64(thick) && x > 20 && x < float64(w-20)
	})
}

// wave is how far the middle of a line wanders from its straight course, in px.
func wave(contour []image.Point) float64 {
	b := vision.Bounds(contour)
	lo, hi := math.Inf(1), math.Inf(-1)
	for x := b.Min.X + 30; x < b.Max.X-30; x += 40 {
		top, bottom := math.Inf(1), math.Inf(-1)
		for i, p := range contour {
			q := contour[(i+1)%len(contour)]
			if min(p.X, q.X) > x || max(p.X, q.X) < x {
				continue
			}
			y := float64(p.Y)
			if p.X != q.X {
				y += float64(q.Y-p.Y) * float64(x-p.X) / float64(q.X-p.X)
			}
			top, bottom = min(top, y), max(bottom, y)
		}
		lo, hi = min(lo, (top+bottom)/2), max(hi, (top+bottom)/2)
	}
	return hi - lo
}

// The bends of real volumes (median, 97.5 % and 99 % of the bent pages) come
// out flat, for all lines of the page, and its corners stay.
func TestFlatten_bentBands(t *testing.T) {
	t.Parallel()
	const w, h = 1200, 840
	for _, p := range []vision.Profile{vision.Reeve(), vision.BDRCProd()} {
		for _, amp := range []float64{0.022, 0.04, 0.053} {
			page := bent(w, h, 6, 12, amp)
			lines := vision.Contours(page, vision.Ink(128))
			got, err := vision.Flatten(lines, w, h, p.Bend)
			if err != nil || got.Spline == nil || got.Lines != 6 || got.Bent != 6 {
				t.Fatalf("%s, %v: %+v, %v", p.Name, amp, got, err)
			}
			flat, err := vision.Remap(page, got.Spline, image.Rect(0, 0, w, h), 255)
			if err != nil {
				t.Fatal(err)
			}
			after := vision.Contours(flat, vision.Ink(128))
			if len(after) != len(lines) {
				t.Fatalf("%s, %v: %d lines became %d", p.Name, amp, len(lines), len(after))
			}
			best := math.Inf(1)
			for i := range lines {
				before, left := wave(lines[i]), wave(after[i])
				best = min(best, left/before)
				if left > before || p.Name == "reeve" && left > 0.2*before {
					t.Errorf("%s, %v: line %d waved by %.1f px, now by %.1f", p.Name, amp, i, before, left)
				}
			}
			if best > 0.2 {
				t.Errorf("%s, %v: the best line keeps %.0f %% of its wave", p.Name, amp, best*100)
			}
			for _, corner := range []vision.Point{{0, 0}, {w - 1, 0}, {0, h - 1}, {w - 1, h - 1}} {
				near(t, "corner", distance(got.Spline.Forward(corner), corner), 0, 1)
			}
		}
	}
}

// Straight, tilted and short lines do not bend a page, and a flat page is the
// identity; a line just thinner than its bend does.
func TestFlatten_onlyWhatIsBent(t *testing.T) {
	t.Parallel()
	const w, h = 1000, 700
	bend := vision.Reeve().Bend
	flat := func(name string, page *image.Gray, want bool) {
		t.Helper()
		got, err := vision.Flatten(vision.Contours(page, vision.Ink(128)), w, h, bend)
		if err != nil {
			t.Fatal(err)
		}
		if (got.Spline == nil) != want {
			t.Errorf("%s: %+v", name, got)
		}
		p := vision.Point{X: 123.4, Y: 56.7}
		if want && (got.Spline.Forward(p) != p || got.Spline.Inverse(p) != p) {
			t.Errorf("%s: a flat page is not the identity", name)
		}
	}
	flat("straight", bars(w, h, stack(50, 50, 900, 12, 60, 8), 0), true)
	flat("tilted", bars(w, h, stack(150, 150, 700, 12, 60, 6), 4), true)
	flat("short", bars(w, h, stack(50, 50, 190, 3, 60, 8), 12), true)
	flat("empty", paint(w, h, func(_, _ float64) bool { return false }), true)
	flat("bent by less than it is thick", bent(w, h, 4, 40, 0.04), true)
	flat("bent by more than it is thick", bent(w, h, 4, 12, 0.04), false)

	// BDRC takes the tilt for a bend.
	bend.Level = false
	flat("tilted, not levelled", bars(w, h, stack(150, 150, 700, 12, 60, 6), 4), false)
}

// x and y, or source and target, swapped would send the bend of a long low page
// elsewhere. Stored points make the same spline.
func TestSpline_axesAndDirection(t *testing.T) {
	t.Parallel()
	const w, h = 3000, 400
	corners := []vision.Point{{0, 0}, {w - 1, 0}, {0, h - 1}, {w - 1, h - 1}}
	sag := func(x float64) float64 { return 30 * (x / w) * (x / w) } // to the right only
	source, target := append([]vision.Point(nil), corners...), append([]vision.Point(nil), corners...)
	for _, x := range []float64{100, 800, 1500, 2200, 2900} {
		source = append(source, vision.Point{X: x, Y: 200 + sag(x)})
		target = append(target, vision.Point{X: x, Y: 200})
	}
	s, err := vision.NewSpline(source, target, 0.5)
	if err != nil {
		t.Fatal(err)
	}
	// What is seen at 200 on the right of the dewarped page was lower before.
	for _, x := range []float64{100, 1500, 2200, 2900} {
		got := s.Inverse(vision.Point{X: x, Y: 200})
		near(t, "x", got.X, x, 0.1)
		near(t, "y", got.Y, 200+sag(x), 0.1)
	}
	near(t, "y left", s.Inverse(vision.Point{X: 400, Y: 200}).Y, 200+sag(400), 1)

	stored, err := json.Marshal([][]vision.Point{s.Source, s.Target})
	if err != nil {
		t.Fatal(err)
	}
	var points [][]vision.Point
	if err := json.Unmarshal(stored, &points); err != nil {
		t.Fatal(err)
	}
	again, err := vision.NewSpline(points[0], points[1], 0.5)
	if err != nil {
		t.Fatal(err)
	}
	for x := 0.0; x < w; x += 97 {
		p := vision.Point{X: x, Y: x / 10}
		if s.Inverse(p) != again.Inverse(p) || s.Forward(p) != again.Forward(p) {
			t.Fatalf("%v maps elsewhere after storing", p)
		}
	}
}

func TestNewSpline_degenerate(t *testing.T) {
	t.Parallel()
	line := []vision.Point{{0, 0}, {10, 10}, {20, 20}, {30, 30}}
	square := []vision.Point{{0, 0}, {10, 0}, {0, 10}, {10, 10}}
	for name, in := range map[string]struct {
		source, target []vision.Point
		alpha          float64
	}{
		"two points":      {square[:2], square[:2], 0},
		"unequal lists":   {square, square[:3], 0},
		"on one line":     {line, square, 0},
		"to one line":     {square, line, 0},
		"twice one place": {append(square[:3:3], square[0]), square, 0.5},
		"one place":       {make([]vision.Point, 4), make([]vision.Point, 4), 0.5},
		"not a number":    {append(square[:3:3], vision.Point{X: math.NaN()}), square, 0},
		"infinite":        {append(square[:3:3], vision.Point{X: math.Inf(1)}), square, 0},
		"negative alpha":  {square, square, -1},
		"too many":        {make([]vision.Point, 300), make([]vision.Point, 300), 0},
	} {
		if s, err := vision.NewSpline(in.source, in.target, in.alpha); err == nil {
			t.Errorf("%s: no error, %+v", name, s)
		}
	}
}

// Without smoothing a spline goes through its control points both ways, and
// forward undoes inverse everywhere.
func TestSpline_property(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := rapid.Float64Range(200, 4000).Draw(t, "w")
		h := w * rapid.Float64Range(0.4, 2.5).Draw(t, "h/w")
		var source, target []vision.Point
		for i := range 4 {
			for j := range 4 {
				p := vision.Point{X: w * float64(i) / 3, Y: h * float64(j) / 3}
				target = append(target, p)
				p.X += min(w, h) / 40 * rapid.Float64Range(-1, 1).Draw(t, "dx")
				p.Y += min(w, h) / 40 * rapid.Float64Range(-1, 1).Draw(t, "dy")
				source = append(source, p)
			}
		}
		s, err := vision.NewSpline(source, target, 0)
		if err != nil {
			t.Fatal(err)
		}
		for i := range source {
			if d := distance(s.Inverse(target[i]), source[i]); d > 1e-6*(w+h) {
				t.Fatalf("control point %d: off by %v px", i, d)
			}
			if d := distance(s.Forward(source[i]), target[i]); d > 0.01 {
				t.Fatalf("control point %d: forward is off by %v px", i, d)
			}
		}
		p := vision.Point{X: w * rapid.Float64Range(0, 1).Draw(t, "x"), Y: h * rapid.Float64Range(0, 1).Draw(t, "y")}
		if d := distance(s.Inverse(s.Forward(p)), p); d > 0.01 {
			t.Fatalf("there and back from %v: off by %v px", p, d)
		}
	})
}

// The vertices of contours go through resizing, turning and flattening and come
// back, on a page that is not square.
func TestChain_roundTrip(t *testing.T) {
	t.Parallel()
	const w, h = 1000, 700
	page := bent(w, h, 6, 12, 0.04)
	lines := vision.Contours(page, vision.Ink(128))
	bend, err := vision.Flatten(lines, w, h, vision.Reeve().Bend)
	if err != nil || bend.Spline == nil {
		t.Fatal(bend, err)
	}
	turn, _, _ := vision.Rotation(w, h, -3.3, true)
	quarter, _, _ := vision.QuarterTurns(w, h, 3)
	for name, m := range map[string]vision.Map{
		"resized": vision.Scale(w, h, 417, 903),
		"rotated": turn,
		"turned":  quarter,
		"dewarp":  bend.Spline,
		"all":     vision.Chain{bend.Spline, turn, vision.Scale(w, h, 333, 222), quarter},
	} {
		worst := 0.0
		for _, line := range lines {
			for _, p := range vision.Points(line) {
				worst = max(worst, distance(m.Inverse(m.Forward(p)), p))
			}
		}
		near(t, name, worst, 0, 0.01)
	}
}
