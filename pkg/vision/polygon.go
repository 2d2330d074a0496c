package vision

import (
	"cmp"
	"math"
	"slices"
)

// Hull is the convex hull of points: its corners only, clockwise as seen on the
// page, from the leftmost. (A. M. Andrew's monotone chain, 1979.) Points that are
// no numbers are left out; one place has a hull of one point, a straight row of
// two.
func Hull(points []Point) []Point {
	ps := make([]Point, 0, len(points))
	for _, p := range points {
		if finite(p.X, p.Y) {
			ps = append(ps, p)
		}
	}
	slices.SortFunc(ps, func(a, b Point) int {
		return cmp.Or(cmp.Compare(a.X, b.X), cmp.Compare(a.Y, b.Y))
	})
	ps = slices.Compact(ps)
	if len(ps) < 3 {
		return ps
	}
	hull := make([]Point, 0, 16)
	chain := func(p Point, least int) {
		for len(hull) >= least && cross(hull[len(hull)-2], hull[len(hull)-1], p) <= 0 {
			hull = hull[:len(hull)-1]
		}
		hull = append(hull, p)
	}
	for _, p := range ps {
		chain(p, 2)
	}
	upper := len(hull) + 1
	for i := len(ps) - 2; i >= 0; i-- {
		chain(ps[i], upper)
	}
	return hull[:len(hull)-1]
}

// cross is positive when o, a, b turn clockwise on the page.
func cross(o, a, b Point) float64 {
	return (a.X-o.X)*(b.Y-o.Y) - (a.Y-o.Y)*(b.X-o.X)
}

// PolygonArea is the area of a closed polygon in px², whichever way it goes. A
// contour goes through the centres of pixels: its area is less than their count.
func PolygonArea(polygon []Point) float64 {
	sum := 0.0
	for i, p := range polygon {
		sum += cross(polygon[0], p, polygon[(i+1)%len(polygon)])
	}
	return math.Abs(sum) / 2
}

// Perimeter is the length of a closed polygon in px.
func Perimeter(polygon []Point) float64 {
	sum := 0.0
	for i, p := range polygon {
		q := polygon[(i+1)%len(polygon)]
		sum += math.Hypot(q.X-p.X, q.Y-p.Y)
	}
	return sum
}

// Rect is a tilted rectangle. W is the side that is within 45° of horizontal and
// H the other, whichever is longer, so that a tilted line of text and a tilted
// letter I have the same angle and a square has no special case. Angle is the
// tilt of W in degrees, −45 < Angle ≤ 45, positive when it slopes down to the
// right.
type Rect struct {
	Center Point   // px
	W, H   float64 // px
	Angle  float64 // degrees
}

// axes are the unit vectors along W and H.
func (r Rect) axes() (u, v Point) {
	sin, cos := math.Sincos(r.Angle * math.Pi / 180)
	return Point{cos, sin}, Point{-sin, cos}
}

// Corners are the rectangle's corners clockwise from the top left.
func (r Rect) Corners() [4]Point {
	u, v := r.axes()
	at := func(a, b float64) Point {
		return Point{r.Center.X + a*r.W/2*u.X + b*r.H/2*v.X, r.Center.Y + a*r.W/2*u.Y + b*r.H/2*v.Y}
	}
	return [4]Point{at(-1, -1), at(1, -1), at(1, 1), at(-1, 1)}
}

// Unclip grows the rectangle on all sides by area·ratio/perimeter px: what DB
// detection shrank its training boxes by (M. Liao et al., 2020). The ratio is 1.5
// there, 1.6 in PP-OCR. Exact.
func (r Rect) Unclip(ratio float64) Rect {
	d := offset(r.W*r.H, 2*(r.W+r.H), ratio)
	r.W, r.H = max(0, r.W+2*d), max(0, r.H+2*d)
	return r
}

func offset(area, perimeter, ratio float64) float64 {
	if perimeter == 0 || !finite(area, perimeter, ratio) {
		return 0
	}
	return area * ratio / perimeter
}

// MinAreaRect is the smallest rectangle around points. One of its sides lies on
// a side of their hull (H. Freeman, R. Shapira, 1975); of equal ones the least
// tilted is taken. No points have an empty one, one place one without sides. It
// goes through the points: for a contour add 1 px to both sides to have whole
// pixels. Error: rounding of float64.
func MinAreaRect(points []Point) Rect {
	hull := Hull(points)
	switch len(hull) {
	case 0:
		return Rect{}
	case 1:
		return Rect{Center: hull[0]}
	}
	best, least := Rect{}, math.Inf(1)
	for i, p := range hull {
		q := hull[(i+1)%len(hull)]
		r := Rect{Angle: fold(math.Atan2(q.Y-p.Y, q.X-p.X) * 180 / math.Pi)}
		u, v := r.axes()
		minU, maxU, minV, maxV := math.Inf(1), math.Inf(-1), math.Inf(1), math.Inf(-1)
		for _, o := range hull {
			x, y := o.X-p.X, o.Y-p.Y // near the points: no digits are lost
			a, b := x*u.X+y*u.Y, x*v.X+y*v.Y
			minU, maxU, minV, maxV = min(minU, a), max(maxU, a), min(minV, b), max(maxV, b)
		}
		r.W, r.H = maxU-minU, maxV-minV
		a, b := (minU+maxU)/2, (minV+maxV)/2
		r.Center = Point{p.X + a*u.X + b*v.X, p.Y + a*u.Y + b*v.Y}
		area := r.W * r.H
		if math.IsInf(least, 1) || area < least*(1-1e-9) ||
			area <= least*(1+1e-9) && math.Abs(r.Angle) < math.Abs(best.Angle) {
			best, least = r, min(area, least)
		}
	}
	return best
}

// fold takes an angle by quarter turns to −45 < a ≤ 45.
func fold(deg float64) float64 {
	return deg - 90*math.Ceil((deg-45)/90)
}

// UnclipPolygon grows the hull of a polygon on all sides by area·ratio/perimeter
// px, with round corners of 16 steps. Error: at most 2 % of that distance, outward.
func UnclipPolygon(polygon []Point, ratio float64) []Point {
	const steps = 16
	hull := Hull(polygon)
	d := offset(PolygonArea(hull), Perimeter(hull), ratio)
	if d <= 0 {
		return hull
	}
	d /= math.Cos(math.Pi / steps)
	grown := make([]Point, 0, steps*len(hull))
	for _, p := range hull {
		for i := range steps {
			sin, cos := math.Sincos(2 * math.Pi * float64(i) / steps)
			grown = append(grown, Point{p.X + d*cos, p.Y + d*sin})
		}
	}
	return Hull(grown)
}
