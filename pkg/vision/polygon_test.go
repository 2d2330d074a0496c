package vision_test

import (
	"image"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/reeve-pipeline/reeve/pkg/vision"
)

// One convention for all angles: a rectangle at 30° is at 30°, and one that
// stands on end is too, with its sides swapped.
func TestMinAreaRect_oneConvention(t *testing.T) {
	t.Parallel()
	for deg := -44; deg <= 44; deg++ {
		for _, side := range [][2]float64{{400, 30}, {30, 400}, {100, 99}} {
			in := vision.Rect{Center: vision.Point{X: 500, Y: 300}, W: side[0], H: side[1], Angle: float64(deg)}
			corners := in.Corners()
			got := vision.MinAreaRect(corners[:])
			near(t, "angle", got.Angle, in.Angle, 1e-6)
			near(t, "w", got.W, in.W, 1e-6)
			near(t, "h", got.H, in.H, 1e-6)
			near(t, "center", distance(got.Center, in.Center), 0, 1e-6)
		}
	}
	// Clockwise is positive: the right end of this line is lower.
	if got := vision.MinAreaRect([]vision.Point{{0, 0}, {100, 10}}); got.Angle < 5 {
		t.Errorf("a line down to the right is at %v°", got.Angle)
	}
	if got := vision.MinAreaRect([]vision.Point{{0, 0}, {10, 10}}); got.Angle != 45 {
		t.Errorf("the diagonal is at %v°, not 45", got.Angle)
	}
}

// Of two rectangles as small, the less tilted one, in every rounding.
func TestMinAreaRect_tie(t *testing.T) {
	t.Parallel()
	var octagon []vision.Point
	for i := range 8 {
		sin, cos := math.Sincos(math.Pi * (float64(i) + 0.5) / 4)
		octagon = append(octagon, vision.Point{X: 100 + 50*cos, Y: 80 + 50*sin})
	}
	near(t, "angle", vision.MinAreaRect(octagon).Angle, 0, 1e-9)
}

func TestMinAreaRect_degenerate(t *testing.T) {
	t.Parallel()
	if got := vision.MinAreaRect(nil); got != (vision.Rect{}) {
		t.Errorf("nothing: %+v", got)
	}
	dot := vision.Point{X: 3, Y: 4}
	if got := vision.MinAreaRect([]vision.Point{dot, dot, {X: math.NaN()}}); got != (vision.Rect{Center: dot}) {
		t.Errorf("one place: %+v", got)
	}
}

func points(t *rapid.T) []vision.Point {
	coordinate := rapid.Custom(func(t *rapid.T) float64 {
		if rapid.Bool().Draw(t, "whole") {
			return float64(rapid.IntRange(-20, 20).Draw(t, "i")) // coincidences, straight rows
		}
		return math.Round(rapid.Float64Range(-5000, 5000).Draw(t, "f")*16) / 16 // exact products
	})
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) vision.Point {
		return vision.Point{X: coordinate.Draw(t, "x"), Y: coordinate.Draw(t, "y")}
	}), 1, 40).Draw(t, "points")
}

func turn(o, a, b vision.Point) float64 { return (a.X-o.X)*(b.Y-o.Y) - (a.Y-o.Y)*(b.X-o.X) }

func inHull(hull []vision.Point, p vision.Point, within float64) bool {
	if len(hull) < 3 {
		return true
	}
	for i, a := range hull {
		b := hull[(i+1)%len(hull)]
		if turn(a, b, p) < -within*distance(a, b) {
			return false
		}
	}
	return true
}

// The hull is convex and holds all points; the rectangle holds them too and is
// no larger than the upright one.
func TestHull_property(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		ps := points(t)
		hull := vision.Hull(ps)
		for i, a := range hull {
			b, c := hull[(i+1)%len(hull)], hull[(i+2)%len(hull)]
			if len(hull) > 2 && turn(a, b, c) <= 0 {
				t.Fatalf("not convex at %v: %v", b, hull)
			}
		}
		r := vision.MinAreaRect(ps)
		if r.Angle <= -45 || r.Angle > 45 {
			t.Fatalf("angle %v", r.Angle)
		}
		sin, cos := math.Sincos(r.Angle * math.Pi / 180)
		lo, hi := ps[0], ps[0]
		for _, p := range ps {
			if !inHull(hull, p, 1e-6) {
				t.Fatalf("%v is outside the hull %v", p, hull)
			}
			x, y := p.X-r.Center.X, p.Y-r.Center.Y
			if math.Abs(x*cos+y*sin) > r.W/2+1e-6 || math.Abs(y*cos-x*sin) > r.H/2+1e-6 {
				t.Fatalf("%v is outside %+v", p, r)
			}
			lo = vision.Point{X: min(lo.X, p.X), Y: min(lo.Y, p.Y)}
			hi = vision.Point{X: max(hi.X, p.X), Y: max(hi.Y, p.Y)}
		}
		if box := (hi.X - lo.X) * (hi.Y - lo.Y); r.W*r.H > box+1e-3 {
			t.Fatalf("%+v is larger than the upright box, %v", r, box)
		}
		if area := vision.PolygonArea(hull); area > r.W*r.H+1e-3 {
			t.Fatalf("%+v is smaller than the hull, %v", r, area)
		}
		grown := vision.UnclipPolygon(ps, 1.6)
		for _, p := range hull {
			if !inHull(grown, p, 1e-6) {
				t.Fatalf("%v is outside the grown hull", p)
			}
		}
	})
}

// The way out of DB's shrinking, by hand: 100 by 20 px at ratio 1.6 grow by
// 2000·1.6/240 px on each side.
func TestUnclip(t *testing.T) {
	t.Parallel()
	const d = 2000 * 1.6 / 240
	r := vision.Rect{Center: vision.Point{X: 7, Y: 8}, W: 100, H: 20, Angle: 12}.Unclip(1.6)
	near(t, "w", r.W, 100+2*d, 1e-9)
	near(t, "h", r.H, 20+2*d, 1e-9)
	grown := vision.MinAreaRect(vision.UnclipPolygon([]vision.Point{{0, 0}, {100, 0}, {100, 20}, {0, 20}}, 1.6))
	near(t, "polygon w", grown.W, 100+2*d, 0.04*d)
	near(t, "polygon h", grown.H, 20+2*d, 0.04*d)
	if got := vision.UnclipPolygon([]vision.Point{{1, 1}}, 1.6); len(got) != 1 {
		t.Errorf("one point grew to %v", got)
	}
	near(t, "area", vision.PolygonArea([]vision.Point{{0, 0}, {100, 0}, {100, 20}, {0, 20}}), 2000, 0)
	near(t, "perimeter", vision.Perimeter([]vision.Point{{0, 0}, {100, 0}, {100, 20}, {0, 20}}), 240, 0)
}

func mask(rows ...string) *image.Gray {
	img := image.NewGray(image.Rect(0, 0, len(rows[0]), len(rows)))
	for y, r := range rows {
		for x, c := range r {
			if c == '#' {
				img.Pix[y*img.Stride+x] = 255
			}
		}
	}
	return img
}

func drawn(img *image.Gray) []string {
	b := img.Bounds()
	rows := make([]string, b.Dy())
	for y := range rows {
		for x := range b.Dx() {
			if img.Pix[y*img.Stride+x] != 0 {
				rows[y] += "#"
			} else {
				rows[y] += "."
			}
		}
	}
	return rows
}
