package vision_test

import (
	"bytes"
	"image"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/reeve-pipeline/reeve/pkg/vision"
)

// Contours of a shape with a hole, a diagonal, and a dot, by hand.
func TestContours_golden(t *testing.T) {
	t.Parallel()
	m := mask(
		"####...#",
		"#..#....",
		"####....",
		"....#...",
		".....##.",
		"#.......",
	)
	want := [][]image.Point{
		{{0, 0}, {3, 0}, {3, 2}, {5, 4}, {6, 4}, {5, 4}, {3, 2}, {0, 2}},
		{{7, 0}},
		{{0, 5}},
	}
	if diff := cmp.Diff(want, vision.Contours(m, vision.Mask())); diff != "" {
		t.Error(diff)
	}
	comps := vision.Components(m, vision.Mask())
	if len(comps) != 3 || comps[0].Area != 13 || comps[0].Box != image.Rect(0, 0, 7, 5) {
		t.Errorf("%+v", comps)
	}
	near(t, "center", comps[1].Center.X, 7, 0)
}

// A polygon with its border, by hand; and cut off at the edge.
func TestFill_golden(t *testing.T) {
	t.Parallel()
	m := image.NewGray(image.Rect(0, 0, 7, 7))
	vision.Fill(m, []vision.Point{{3, 0}, {6, 3}, {3, 6}, {0, 3}}, 1)
	want := []string{"...#...", "..###..", ".#####.", "#######", ".#####.", "..###..", "...#..."}
	if diff := cmp.Diff(want, drawn(m)); diff != "" {
		t.Error(diff)
	}
	m = image.NewGray(image.Rect(0, 0, 4, 3))
	vision.Fill(m, []vision.Point{{-1e18, 1}, {2, 1}, {2, 1e18}, {-1e18, 1e18}}, 1)
	if diff := cmp.Diff([]string{"....", "###.", "###."}, drawn(m)); diff != "" {
		t.Error(diff)
	}
	near(t, "mean", vision.MeanIn(mask("####", "####", "...."), []vision.Point{{0, 0}, {3, 0}, {3, 2}, {0, 2}}), 170, 0)
}

func randomMask(t *rapid.T) *image.Gray {
	w, h := rapid.IntRange(1, 40).Draw(t, "w"), rapid.IntRange(1, 20).Draw(t, "h")
	// A part of a larger image: the stride is not the width.
	whole := image.NewGray(image.Rect(0, 0, w+5, h+2))
	for i, b := range rapid.SliceOfN(rapid.IntRange(0, 3), len(whole.Pix), len(whole.Pix)).Draw(t, "pixels") {
		if b == 0 {
			whole.Pix[i] = uint8(1 + i%255)
		}
	}
	return whole.SubImage(image.Rect(3, 1, 3+w, 1+h)).(*image.Gray)
}

// What the contours enclose is the mask and its holes, nothing more; the
// components cover it, agree with a flood fill, and nothing else is touched.
func TestContours_property(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := randomMask(t)
		w, h := m.Bounds().Dx(), m.Bounds().Dy()
		set := func(x, y int) bool { return x >= 0 && y >= 0 && x < w && y < h && m.Pix[y*m.Stride+x] != 0 }
		// The outside, by flooding through the sides of pixels.
		outside := map[image.Point]bool{}
		for queue := []image.Point{{-1, -1}}; len(queue) > 0; queue = queue[1:] {
			p := queue[0]
			if p.X < -1 || p.Y < -1 || p.X > w || p.Y > h || outside[p] || set(p.X, p.Y) {
				continue
			}
			outside[p] = true
			queue = append(queue, p.Add(image.Pt(1, 0)), p.Add(image.Pt(-1, 0)), p.Add(image.Pt(0, 1)), p.Add(image.Pt(0, -1)))
		}
		comps, contours := vision.Components(m, vision.Mask()), vision.Contours(m, vision.Mask())
		if len(comps) != len(contours) {
			t.Fatalf("%d components, %d contours", len(comps), len(contours))
		}
		filled := image.NewGray(image.Rect(0, 0, w, h))
		area := 0
		for i, c := range contours {
			vision.Fill(filled, vision.Points(c), 1)
			if got := vision.Bounds(c); got != comps[i].Box {
				t.Fatalf("contour in %v, component in %v", got, comps[i].Box)
			}
			area += comps[i].Area
		}
		total := 0
		for y := range h {
			for x := range w {
				if got, want := filled.Pix[y*w+x] != 0, !outside[image.Pt(x, y)]; got != want {
					t.Fatalf("pixel %d,%d is enclosed: %v, want %v", x, y, got, want)
				}
				if set(x, y) {
					total++
				}
			}
		}
		if area != total {
			t.Fatalf("components of %d px in a mask of %d", area, total)
		}
	})
}

// Despeckling takes what is small, and only that, from the image itself.
func TestDespeckle(t *testing.T) {
	t.Parallel()
	m := mask("##..#...", "##...#..", "........", "#######.")
	if n := vision.Despeckle(m, vision.Mask(), 4, 0); n != 1 {
		t.Errorf("%d specks", n)
	}
	if diff := cmp.Diff([]string{"##......", "##......", "........", "#######."}, drawn(m)); diff != "" {
		t.Error(diff)
	}
	for dpi, want := range map[float64]int{72: 2, 200: 10, 300: 23, 400: 40} {
		if got := vision.SpeckleArea(dpi); got != want {
			t.Errorf("%v dpi: %d px, want %d", dpi, got, want)
		}
	}
}

func gray(w, h int, pix ...uint8) *image.Gray {
	return &image.Gray{Pix: pix, Stride: w, Rect: image.Rect(0, 0, w, h)}
}

func TestResize_golden(t *testing.T) {
	t.Parallel()
	src := gray(4, 2, 0, 100, 200, 40, 20, 80, 0, 0)
	for _, tt := range []struct {
		filter vision.Filter
		w, h   int
		want   []uint8
	}{
		{vision.Area, 2, 1, []uint8{50, 60}},
		{vision.Area, 1, 2, []uint8{85, 25}},
		{vision.Area, 3, 2, []uint8{25, 150, 80, 35, 40, 0}}, // 1⅓ px wide each
		{vision.Bilinear, 8, 2, []uint8{0, 25, 75, 125, 175, 160, 80, 40, 20, 35, 65, 60, 20, 0, 0, 0}},
		{vision.Nearest, 2, 2, []uint8{0, 200, 20, 0}},
		{vision.Area, 4, 2, src.Pix},
	} {
		got, err := vision.Resize(src, tt.w, tt.h, tt.filter)
		if err != nil {
			t.Fatal(err)
		}
		for i := range tt.want {
			near(t, string(tt.filter), float64(got.Pix[i]), float64(tt.want[i]), 1)
		}
	}
}

// The mean of a page stays when it is made smaller, and a place maps to where
// its pixel went.
func TestResize_property(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w, h := rapid.IntRange(1, 60).Draw(t, "w"), rapid.IntRange(1, 60).Draw(t, "h")
		w2, h2 := rapid.IntRange(1, w).Draw(t, "w2"), rapid.IntRange(1, h).Draw(t, "h2")
		src := gray(w, h, rapid.SliceOfN(rapid.Byte(), w*h, w*h).Draw(t, "pix")...)
		dst, err := vision.Resize(src, w2, h2, vision.Area)
		if err != nil {
			t.Fatal(err)
		}
		mean := func(pix []uint8) float64 {
			sum := 0.0
			for _, v := range pix {
				sum += float64(v) / float64(len(pix))
			}
			return sum
		}
		if a, b := mean(src.Pix), mean(dst.Pix); math.Abs(a-b) > 1.5 {
			t.Fatalf("the mean went from %v to %v", a, b)
		}
		corner := vision.Scale(w, h, w2, h2).Forward(vision.Point{X: float64(w) - 0.5, Y: float64(h) - 0.5})
		if distance(corner, vision.Point{X: float64(w2) - 0.5, Y: float64(h2) - 0.5}) > 1e-9 {
			t.Fatalf("the corner went to %v", corner)
		}
	})
}

// Places and pixels turn alike; forward and inverse are the identity; nothing
// of a grown page is cut off.
func TestRotation_property(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w, h := rapid.IntRange(20, 120).Draw(t, "w"), rapid.IntRange(20, 120).Draw(t, "h")
		deg := rapid.Float64Range(-180, 180).Draw(t, "deg")
		m, w2, h2 := vision.Rotation(w, h, deg, true)
		x, y := rapid.IntRange(3, w-4).Draw(t, "x"), rapid.IntRange(3, h-4).Draw(t, "y")
		p := vision.Point{X: float64(x), Y: float64(y)}
		q := m.Forward(p)
		if d := distance(m.Inverse(q), p); d > 1e-9*float64(w+h) {
			t.Fatalf("there and back: off by %v px", d)
		}
		if q.X < -0.5 || q.Y < -0.5 || q.X > float64(w2)-0.5 || q.Y > float64(h2)-0.5 {
			t.Fatalf("%v is outside the grown page of %d by %d", q, w2, h2)
		}
		page := paint(w, h, func(px, py float64) bool { return math.Abs(px-p.X) <= 2 && math.Abs(py-p.Y) <= 2 })
		turned, err := vision.Rotate(page, deg, true, 255)
		if err != nil {
			t.Fatal(err)
		}
		var sx, sy, n float64
		for i, v := range turned.Pix {
			ink := 255 - float64(v)
			sx += ink * float64(i%turned.Stride)
			sy += ink * float64(i/turned.Stride)
			n += ink
		}
		if d := distance(vision.Point{X: sx / n, Y: sy / n}, q); d > 0.1 {
			t.Fatalf("the square is %v px from where its place is", d)
		}
	})
}

// Clockwise is positive, and what is turned by quarters comes back exactly.
func TestTurn(t *testing.T) {
	t.Parallel()
	r, w, h := vision.Rotation(101, 101, 90, false)
	near(t, "top goes right", distance(r.Forward(vision.Point{X: 50, Y: 0}), vision.Point{X: 100, Y: 50}), 0, 1e-9)
	if w != 101 || h != 101 {
		t.Errorf("%d by %d", w, h)
	}
	src := image.NewGray(image.Rect(0, 0, 75, 41))
	for i := range src.Pix {
		src.Pix[i] = uint8(i * 7)
	}
	part := src.SubImage(image.Rect(2, 3, 70, 40)).(*image.Gray)
	for n := -1; n <= 4; n++ {
		turned := vision.Turn(part, n)
		m, w, h := vision.QuarterTurns(68, 37, n)
		if turned.Bounds() != image.Rect(0, 0, w, h) {
			t.Fatalf("%d turns: %v", n, turned.Bounds())
		}
		for y := range 37 {
			for x := range 68 {
				q := m.Forward(vision.Point{X: float64(x), Y: float64(y)})
				if turned.GrayAt(int(q.X), int(q.Y)) != part.GrayAt(x+2, y+3) {
					t.Fatalf("%d turns: pixel %d,%d is not at %v", n, x, y, q)
				}
			}
		}
		if back := vision.Turn(turned, -n); back.GrayAt(11, 12) != part.GrayAt(13, 15) {
			t.Errorf("%d turns do not come back", n)
		}
	}
}

// A level's side of the mean of its window, by hand and by the definition.
func TestThresholds_byDefinition(t *testing.T) {
	t.Parallel()
	const w, h = 23, 17
	src := image.NewGray(image.Rect(0, 0, w, h))
	for i := range src.Pix {
		src.Pix[i] = uint8((i*i*31 + i*7) % 251)
	}
	// weight is of the pixel dx, dy away; outside, the edge counts or does not.
	want := func(r int, replicate bool, weight func(d int) float64, white func(v, mean, dev float64) bool) []uint8 {
		out := make([]uint8, w*h)
		for y := range h {
			for x := range w {
				var sum, squares, n float64
				for dy := -r; dy <= r; dy++ {
					for dx := -r; dx <= r; dx++ {
						px, py := min(max(x+dx, 0), w-1), min(max(y+dy, 0), h-1)
						if !replicate && (px != x+dx || py != y+dy) {
							continue
						}
						v, k := float64(src.Pix[py*w+px]), weight(dx)*weight(dy)
						sum, squares, n = sum+v*k, squares+v*v*k, n+k
					}
				}
				mean := sum / n
				if white(float64(src.Pix[y*w+x]), mean, math.Sqrt(max(0, squares/n-mean*mean))) {
					out[y*w+x] = 255
				}
			}
		}
		return out
	}
	flat := func(int) float64 { return 1 }
	sauvola, err := vision.Sauvola(src, 7, 0.3)
	if err != nil {
		t.Fatal(err)
	}
	same(t, "sauvola", sauvola.Pix, want(3, false, flat, func(v, m, s float64) bool { return v > m*(1+0.3*(s/128-1)) }), 0)
	mean, err := vision.AdaptiveMean(src, 9, 10)
	if err != nil {
		t.Fatal(err)
	}
	same(t, "mean", mean.Pix, want(4, false, flat, func(v, m, _ float64) bool { return v > m-10 }), 0)
	for _, block := range []int{3, 11, 31, 51} {
		gaussian, err := vision.AdaptiveGaussian(src, block, 13)
		if err != nil {
			t.Fatal(err)
		}
		sigma := 0.3*(float64(block-1)*0.5-1) + 0.8
		bell := func(d int) float64 { return math.Exp(-float64(d*d) / (2 * sigma * sigma)) }
		// A mean within 1/500 of a half may round the other way.
		same(t, "gaussian", gaussian.Pix, want(block/2, true, bell, func(v, m, _ float64) bool { return v > math.Round(m)-13 }), 2)
	}
	for _, window := range []int{0, -3, 4, 257} {
		if _, err := vision.Sauvola(src, window, 0.3); err == nil {
			t.Errorf("a window of %d px is taken", window)
		}
	}
}

func same(t *testing.T, name string, got, want []uint8, differ int) {
	t.Helper()
	if bytes.Count(want, []byte{0}) < 20 || bytes.Count(want, []byte{255}) < 20 {
		t.Errorf("%s: the example is all of one colour", name)
	}
	n := 0
	for i := range want {
		if got[i] != want[i] {
			n++
		}
	}
	if n > differ {
		t.Errorf("%s: %d of %d px differ", name, n, len(want))
	}
}

func TestOtsu(t *testing.T) {
	t.Parallel()
	page := bars(300, 200, stack(20, 20, 260, 10, 30, 5), 0)
	soil(page, 20, 0, 1) // ink at 40, paper at 210
	if level := vision.Otsu(page); level < 100 || level > 150 {
		t.Errorf("level %d", level)
	}
	if level := vision.Otsu(gray(2, 2, 9, 9, 9, 9)); level != 0 {
		t.Errorf("a page of one level is parted at %d", level)
	}
	if got := vision.Threshold(gray(3, 1, 99, 100, 101), 100); !bytes.Equal(got.Pix, []uint8{0, 0, 255}) {
		t.Error(got.Pix)
	}
	if got := vision.Linear(gray(4, 1, 0, 10, 128, 255)); !bytes.Equal(got.Pix, []uint8{0, 1, 55, 255}) {
		t.Error(got.Pix)
	}
}
