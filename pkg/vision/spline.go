package vision

import (
	"image"
	"math"

	"github.com/reeve-pipeline/reeve/pkg/fault"
)

// MaxControls is the most control points of a [Spline]: fitting it costs their
// cube, and every place mapped their number of logarithms.
const MaxControls = 256

// Spline is a thin-plate spline: the smoothest map that takes control points of
// the page as it came to their places on the dewarped page. (F. L. Bookstein,
// 1989.) The two lists of points and alpha are all there is to store; the
// weights follow from them. A nil Spline is the identity.
//
// Inverse is the spline itself, fitted from target to source, for that is the
// way in which pixels are sampled: exact at the control points when alpha is 0,
// and within 0.1 px when it is BDRC's 0.5. Forward undoes it: a second spline,
// fitted the other way, gives a place that is right to a few px away from the
// control points, and Newton's method corrects it until Inverse leads back to
// within 1/1000 px. Where the map folds such a place need not exist, and the
// nearest one found is given.
type Spline struct {
	Source []Point // px on the page as it came
	Target []Point // px on the dewarped page
	Alpha  float64 // smoothing in px²; 0 interpolates

	inverse, forward warp
}

// NewSpline fits a spline. The error says which points cannot be: fewer than
// three, on one line, two at one place, or no numbers.
func NewSpline(source, target []Point, alpha float64) (*Spline, error) {
	switch {
	case len(source) != len(target):
		return nil, fault.Permanentf("a spline from %d points to %d: the lists must be equally long", len(source), len(target))
	case len(source) < 3 || len(source) > MaxControls:
		return nil, fault.Permanentf("a spline of %d control points: use 3 to %d", len(source), MaxControls)
	case !finite(alpha) || alpha < 0:
		return nil, fault.Permanentf("a spline with alpha %v: use 0 or more", alpha)
	}
	s := &Spline{Source: source, Target: target, Alpha: alpha}
	var err error
	if s.inverse, err = fit(target, source, alpha); err != nil {
		return nil, err
	}
	if s.forward, err = fit(source, target, alpha); err != nil {
		return nil, err
	}
	return s, nil
}

// Inverse maps a place on the dewarped page to the page as it came.
func (s *Spline) Inverse(p Point) Point {
	if s == nil {
		return p
	}
	return s.inverse.at(p)
}

// Forward maps a place on the page as it came to the dewarped page.
func (s *Spline) Forward(p Point) Point {
	if s == nil {
		return p
	}
	q := s.forward.at(p)
	x, y := s.miss(p, q)
	for range 20 {
		if math.Hypot(x, y) < 1e-4 {
			break
		}
		// Newton's step, halved until it leads nearer.
		ax, ay := s.miss(p, Point{q.X + 0.25, q.Y})
		bx, by := s.miss(p, Point{q.X, q.Y + 0.25})
		ax, ay, bx, by = (x-ax)*4, (y-ay)*4, (x-bx)*4, (y-by)*4
		det := ax*by - bx*ay
		dx, dy := (by*x-bx*y)/det, (ax*y-ay*x)/det
		for {
			next := Point{q.X + dx, q.Y + dy}
			nx, ny := s.miss(p, next)
			if math.Hypot(nx, ny) < math.Hypot(x, y) {
				q, x, y = next, nx, ny
				break
			}
			if dx, dy = dx/2, dy/2; !finite(dx, dy) || math.Hypot(dx, dy) < 1e-6 {
				return q
			}
		}
	}
	return q
}

// miss is how far Inverse of q is from p.
func (s *Spline) miss(p, q Point) (x, y float64) {
	r := s.inverse.at(q)
	return p.X - r.X, p.Y - r.Y
}

// warp is a fitted spline in one direction. Its numbers are in units of scale
// around middle, which keeps the equations well-conditioned; the smoothing has
// been scaled along, for r²·ln r differs by an affine part only.
type warp struct {
	knots  []Point
	wx, wy []float64 // weights, then the affine part: 1, x, y
	middle Point
	scale  float64
}

func (w *warp) at(p Point) Point {
	x, y := (p.X-w.middle.X)/w.scale, (p.Y-w.middle.Y)/w.scale
	n := len(w.knots)
	ox := w.wx[n] + w.wx[n+1]*x + w.wx[n+2]*y
	oy := w.wy[n] + w.wy[n+1]*x + w.wy[n+2]*y
	for i, k := range w.knots {
		g := kernel(x-k.X, y-k.Y)
		ox += w.wx[i] * g
		oy += w.wy[i] * g
	}
	return Point{ox*w.scale + w.middle.X, oy*w.scale + w.middle.Y}
}

// kernel is r²·ln r.
func kernel(dx, dy float64) float64 {
	r2 := dx*dx + dy*dy
	if r2 == 0 {
		return 0
	}
	return r2 * math.Log(r2) / 2
}

// fit solves [[K+αI, P], [Pᵀ, 0]]·[w; c] = [to; 0].
func fit(from, to []Point, alpha float64) (warp, error) {
	var lo, hi Point
	for i, p := range from {
		if !finite(p.X, p.Y, to[i].X, to[i].Y) {
			return warp{}, fault.Permanentf("control point %d of the spline is not a number", i)
		}
		if i == 0 {
			lo, hi = p, p
		}
		lo, hi = Point{min(lo.X, p.X), min(lo.Y, p.Y)}, Point{max(hi.X, p.X), max(hi.Y, p.Y)}
	}
	n := len(from)
	w := warp{
		knots:  make([]Point, n),
		middle: Point{lo.X/2 + hi.X/2, lo.Y/2 + hi.Y/2},
		scale:  max(hi.X-lo.X, hi.Y-lo.Y),
	}
	if w.scale == 0 || !finite(w.scale) {
		return warp{}, fault.Permanentf("the %d control points of the spline are at one place", n)
	}
	m := make([][]float64, n+3) // the matrix, and the two right sides
	for i := range m {
		m[i] = make([]float64, n+5)
	}
	for i, p := range from {
		w.knots[i] = Point{(p.X - w.middle.X) / w.scale, (p.Y - w.middle.Y) / w.scale}
		for j, q := range w.knots[:i] {
			if math.Hypot(w.knots[i].X-q.X, w.knots[i].Y-q.Y) < 1e-9 {
				return warp{}, fault.Permanentf("control points %d and %d of the spline are at one place, %.1f %.1f", j, i, p.X, p.Y)
			}
			g := kernel(w.knots[i].X-q.X, w.knots[i].Y-q.Y)
			m[i][j], m[j][i] = g, g
		}
		m[i][i] = alpha / (w.scale * w.scale)
		m[i][n], m[i][n+1], m[i][n+2] = 1, w.knots[i].X, w.knots[i].Y
		m[n][i], m[n+1][i], m[n+2][i] = 1, w.knots[i].X, w.knots[i].Y
		m[i][n+3], m[i][n+4] = (to[i].X-w.middle.X)/w.scale, (to[i].Y-w.middle.Y)/w.scale
	}
	if !solve(m) {
		return warp{}, fault.Permanentf("the %d control points of the spline are on one line", n)
	}
	w.wx, w.wy = make([]float64, n+3), make([]float64, n+3)
	for i := range m {
		w.wx[i], w.wy[i] = m[i][n+3], m[i][n+4]
	}
	return w, nil
}

// solve is Gauss–Jordan elimination with row pivots. The last two columns
// become the solutions.
func solve(m [][]float64) bool {
	for c := range m {
		pivot := c
		for r := c + 1; r < len(m); r++ {
			if math.Abs(m[r][c]) > math.Abs(m[pivot][c]) {
				pivot = r
			}
		}
		if !(math.Abs(m[pivot][c]) > 1e-10) {
			return false
		}
		m[c], m[pivot] = m[pivot], m[c]
		for j := len(m[c]) - 1; j >= c; j-- {
			m[c][j] /= m[c][c]
		}
		for r := range m {
			f := m[r][c]
			if r == c || f == 0 {
				continue
			}
			for j := c; j < len(m[r]); j++ {
				m[r][j] -= f * m[c][j]
			}
		}
	}
	return true
}

// BendRule says when and how a page is dewarped.
type BendRule struct {
	// Share is the share of the page's lines that must be bent, from 0: at least
	// one, to 1.
	Share float64
	// Lines is by how many lines the spline is fitted: BDRC has 1, the one nearest
	// to the mean bend.
	Lines int
	// Level takes the straight part of a line's slope out before its bend is
	// measured, so that a page that is still tilted is not taken for a bent one.
	Level bool
	Alpha float64 // of the spline, px²
}

// Bend is what a page's lines say about its flatness.
type Bend struct {
	// Spline flattens the page; nil, the identity, when it is flat.
	Spline *Spline
	Lines  int // lines measured
	Bent   int // lines whose middle wanders by more than they are thick
	// Folded: the spline would fold the page, and is left out.
	Folded bool
}

// Flatten measures how the lines of a page of w by h px are bent, by their
// contours, and fits the spline that makes them level: five places of 40 px
// along each line, and the page's corners, which stay. Lines shorter than 200 px
// are not measured. The method is BDRC's; a line is bent when the middles of its
// places differ by more than its mean thickness. Error: half of the line's
// unevenness.
func Flatten(lines [][]image.Point, w, h int, rule BendRule) (Bend, error) {
	if err := checkSize(w, h); err != nil {
		return Bend{}, err
	}
	var bend Bend
	var all []spine
	for _, contour := range lines {
		if s, ok := spineOf(contour, rule.Level); ok {
			all = append(all, s)
			if s.bent {
				bend.Bent++
			}
		}
	}
	bend.Lines = len(all)
	if bend.Bent == 0 || float64(bend.Bent) <= rule.Share*float64(bend.Lines) {
		return bend, nil
	}
	source := []Point{{0, 0}, {float64(w - 1), 0}, {0, float64(h - 1)}, {float64(w - 1), float64(h - 1)}}
	target := append([]Point(nil), source...)
	for _, s := range chosen(all, h, rule.Lines) {
		source = append(source, s.at[:]...)
		target = append(target, s.to[:]...)
	}
	spline, err := NewSpline(source, target, rule.Alpha)
	if err != nil {
		return Bend{}, err
	}
	if bend.Folded = folds(spline, w, h); !bend.Folded {
		bend.Spline = spline
	}
	return bend, nil
}

// spine is the middle of a line at five places, and where it belongs.
type spine struct {
	at, to [5]Point
	wander float64 // highest to lowest, px
	bent   bool
}

const place = 40 // px along the line

func spineOf(contour []image.Point, level bool) (spine, bool) {
	b := Bounds(contour)
	x, w := b.Min.X, b.Dx()
	if w < 5*place {
		return spine{}, false
	}
	var s spine
	var thick, mean, meanX float64
	for i, x0 := range [5]int{x, x + w/4 - place, x + w/2, x + 3*w/4, x + w - place} {
		top, bottom := slab(contour, float64(x0), float64(x0+place-1))
		s.at[i] = Point{float64(x0) + place/2, (top + bottom) / 2}
		thick += (bottom - top + 1) / 5
		mean += s.at[i].Y / 5
		meanX += s.at[i].X / 5
	}
	slope := 0.0
	if level {
		var xy, xx float64
		for _, p := range s.at {
			xy += (p.X - meanX) * (p.Y - mean)
			xx += (p.X - meanX) * (p.X - meanX)
		}
		slope = xy / xx
	}
	lo, hi := math.Inf(1), math.Inf(-1)
	for i, p := range s.at {
		straight := mean + slope*(p.X-meanX)
		s.to[i] = Point{p.X, straight}
		lo, hi = min(lo, p.Y-straight), max(hi, p.Y-straight)
	}
	s.wander = hi - lo
	s.bent = s.wander > thick
	return s, true
}

// slab is the highest and the lowest place of a contour between two columns.
func slab(contour []image.Point, x0, x1 float64) (top, bottom float64) {
	top, bottom = math.Inf(1), math.Inf(-1)
	for i, a := range contour {
		b := contour[(i+1)%len(contour)]
		p, q := Point{float64(a.X), float64(a.Y)}, Point{float64(b.X), float64(b.Y)}
		if p.X > q.X {
			p, q = q, p
		}
		if q.X < x0 || p.X > x1 {
			continue
		}
		y0, y1 := p.Y, q.Y
		if q.X > p.X {
			f := (q.Y - p.Y) / (q.X - p.X)
			y0, y1 = p.Y+f*(max(x0, p.X)-p.X), p.Y+f*(min(x1, q.X)-p.X)
		}
		top, bottom = min(top, y0, y1), max(bottom, y0, y1)
	}
	return top, bottom
}

// chosen are the lines that the spline is fitted by: the one nearest to the mean
// wander, or with n > 1 the widest first, an n-th of the page apart.
func chosen(all []spine, h, n int) []spine {
	if n <= 1 {
		mean := 0.0
		for _, s := range all {
			mean += s.wander / float64(len(all))
		}
		best := all[0]
		for _, s := range all {
			if math.Abs(s.wander-mean) < math.Abs(best.wander-mean) {
				best = s
			}
		}
		return []spine{best}
	}
	width := func(s spine) float64 { return s.at[4].X - s.at[0].X }
	apart := float64(h) / float64(2*n)
	var picked []spine
	for len(picked) < min(n, (MaxControls-4)/5) {
		best := -1
		for i, s := range all {
			free := true
			for _, p := range picked {
				free = free && math.Abs(p.to[2].Y-s.to[2].Y) >= apart+(p.wander+s.wander)/2
			}
			if free && (best < 0 || width(s) > width(all[best])) {
				best = i
			}
		}
		if best < 0 {
			break
		}
		picked = append(picked, all[best])
	}
	return picked
}

// folds says whether going down the dewarped page ever goes up, or right ever
// left, on the page as it came.
func folds(s *Spline, w, h int) bool {
	const n = 24
	at := func(i, j int) Point {
		return s.Inverse(Point{float64(w-1) * float64(i) / n, float64(h-1) * float64(j) / n})
	}
	for i := range n {
		for j := range n {
			p := at(i, j)
			if at(i, j+1).Y <= p.Y || at(i+1, j).X <= p.X {
				return true
			}
		}
	}
	return false
}
