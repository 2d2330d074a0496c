package vision

import (
	"image"
	"slices"
)

// Contours are the outer borders of the components of a mask, in the order of
// [Components]: closed polygons through the centres of border pixels, clockwise
// from the component's first pixel, with the points on straight ways left out.
// Every pixel of the component is on or inside its polygon; a hole has no
// contour of its own, for a hole is not a line. Exact: border following after
// S. Suzuki, K. Abe, 1985.
func Contours(img *image.Gray, set Values) [][]image.Point {
	comps := Components(img, set)
	contours := make([][]image.Point, len(comps))
	for i, c := range comps {
		contours[i] = trace(img, set, c.First)
	}
	return contours
}

// trace follows the border clockwise. The pixels left of and above the start
// are not set.
func trace(img *image.Gray, set Values, start image.Point) []image.Point {
	w, h := size(img)
	dx := [8]int{1, 1, 0, -1, -1, -1, 0, 1} // clockwise from the right
	dy := [8]int{0, 1, 1, 1, 0, -1, -1, -1}
	next := func(p image.Point, d int) (image.Point, int, bool) {
		for range 8 {
			q := image.Pt(p.X+dx[d], p.Y+dy[d])
			if q.X >= 0 && q.Y >= 0 && q.X < w && q.Y < h && set.has(img.Pix[q.Y*img.Stride+q.X]) {
				return q, d, true
			}
			d = (d + 1) & 7
		}
		return p, 0, false
	}
	contour := []image.Point{start}
	p, first, ok := next(start, 0)
	if !ok {
		return contour
	}
	for d := first; ; {
		// The pixel before the one just found is not set; look from there.
		q, turn, _ := next(p, (d+6)&7)
		if p == start && turn == first {
			return contour
		}
		if turn != d || p == start {
			contour = append(contour, p)
		}
		p, d = q, turn
	}
}

// Bounds is the box around a contour; Max is one past the last pixel.
func Bounds(contour []image.Point) image.Rectangle {
	if len(contour) == 0 {
		return image.Rectangle{}
	}
	b := image.Rectangle{contour[0], contour[0]}
	for _, p := range contour[1:] {
		b.Min = image.Pt(min(b.Min.X, p.X), min(b.Min.Y, p.Y))
		b.Max = image.Pt(max(b.Max.X, p.X), max(b.Max.Y, p.Y))
	}
	b.Max = b.Max.Add(image.Pt(1, 1))
	return b
}

// Fill paints a polygon with its border into a mask, in place, as OpenCV's
// fillPoly does: inside by the even-odd rule at the centres of pixels, and the
// pixels that the border goes through. What lies outside the mask is cut off.
func Fill(mask *image.Gray, polygon []Point, value uint8) {
	w, h := size(mask)
	crossings := make([][]float64, h)
	span := func(y int, from, to float64) {
		if to < 0 || from > float64(w-1) {
			return
		}
		out := mask.Pix[y*mask.Stride:]
		for x := int(max(from, 0)); x <= int(min(to, float64(w-1))); x++ {
			out[x] = value
		}
	}
	for i, p := range polygon {
		q := polygon[(i+1)%len(polygon)]
		if !finite(p.X, p.Y, q.X, q.Y) {
			continue
		}
		if p.Y > q.Y {
			p, q = q, p
		}
		along := func(y float64) float64 { // x of the edge at y
			if q.Y-p.Y < 1e-12 {
				return p.X
			}
			return p.X + (q.X-p.X)*((min(max(y, p.Y), q.Y)-p.Y)/(q.Y-p.Y))
		}
		for y := int(min(max(p.Y+0.5, 0), float64(h))); y < h && float64(y) <= q.Y+0.5; y++ {
			from, to := along(float64(y)-0.5), along(float64(y)+0.5)
			if q.Y-p.Y < 1 { // within one row: all of it
				from, to = p.X, q.X
			}
			if from > to {
				from, to = to, from
			}
			span(y, roundDown(from), max(roundUp(to), roundDown(from)))
			if float64(y) >= p.Y && float64(y) < q.Y {
				crossings[y] = append(crossings[y], along(float64(y)))
			}
		}
	}
	for y, xs := range crossings {
		slices.Sort(xs)
		for ; len(xs) > 1; xs = xs[2:] {
			from := float64(int(max(xs[0], -1)))
			if from < xs[0] {
				from++
			}
			span(y, from, xs[1])
		}
	}
}

// MeanIn is the mean level of the pixels that [Fill] would paint: the score of a
// box, when the image is a model's probabilities. It is 0 off the image.
func MeanIn(img *image.Gray, polygon []Point) float64 {
	w, h := size(img)
	lo, hi := Point{far, far}, Point{-far, -far}
	for _, p := range polygon {
		lo, hi = Point{min(lo.X, p.X), min(lo.Y, p.Y)}, Point{max(hi.X, p.X), max(hi.Y, p.Y)}
	}
	box := image.Rect(floor(lo.X), floor(lo.Y), floor(hi.X)+2, floor(hi.Y)+2).Intersect(image.Rect(0, 0, w, h))
	if box.Empty() || lo.X > hi.X {
		return 0
	}
	inside := image.NewGray(image.Rect(0, 0, box.Dx(), box.Dy()))
	local := make([]Point, len(polygon))
	for i, p := range polygon {
		local[i] = Point{p.X - float64(box.Min.X), p.Y - float64(box.Min.Y)}
	}
	Fill(inside, local, 1)
	sum, n := 0, 0
	for y := range box.Dy() {
		in := row(img, box.Min.Y+y, w)[box.Min.X:box.Max.X]
		for x, set := range row(inside, y, box.Dx()) {
			sum += int(set) * int(in[x])
			n += int(set)
		}
	}
	return float64(sum) / float64(max(n, 1))
}

// A place half-way between two pixels belongs to the one inside the span.
func roundDown(x float64) float64 { return float64(floor(x + 0.5)) }
func roundUp(x float64) float64   { return float64(-floor(-(x - 0.5))) }

func floor(x float64) int {
	x = min(max(x, -far), far)
	i := int(x)
	if float64(i) > x {
		i--
	}
	return i
}
