// Package vision is the geometry and the image work of OCR: what lies between
// a decoded page and the models, and between the models and the text. It is
// pure: no files, no cgo, no clock, no state; equal input gives equal output.
//
// Pages are 8-bit grey, 0 is black. A mask is a page of two values: 0, and
// anything else for what is set. Coordinates are px, x to the right and y down,
// counted from the image's first pixel whatever its Rect.Min; a whole number is
// the centre of a pixel. Angles are degrees, clockwise positive, so that text
// that slopes down to the right has a positive tilt. Images handed in are not
// changed unless the function says so, and what is handed back is new.
//
// Errors are permanent in the sense of package fault: the same page and the
// same numbers always bring them.
package vision

import (
	"image"
	"math"
	"slices"

	"github.com/reeve-pipeline/reeve/pkg/fault"
)

// MaxPixels is the largest image that is made here, in px: 16384 by 16384.
const MaxPixels = 1 << 28

// Point is a place on a page, in px.
type Point struct{ X, Y float64 }

// Points are the points of a contour as places.
func Points(contour []image.Point) []Point {
	ps := make([]Point, len(contour))
	for i, p := range contour {
		ps[i] = Point{float64(p.X), float64(p.Y)}
	}
	return ps
}

// Map is a correction of a page, point by point, without its pixels.
type Map interface {
	// Forward maps a place on the page as it came to the corrected page.
	Forward(Point) Point
	// Inverse maps a place on the corrected page to the page as it came.
	Inverse(Point) Point
}

// Chain is corrections one after the other, the first first.
type Chain []Map

// Forward maps through the chain from its beginning.
func (c Chain) Forward(p Point) Point {
	for _, m := range c {
		p = m.Forward(p)
	}
	return p
}

// Inverse maps back through the chain from its end.
func (c Chain) Inverse(p Point) Point {
	for _, m := range slices.Backward(c) {
		p = m.Inverse(p)
	}
	return p
}

// Affine maps x to XX·x + XY·y + X0 and y to YX·x + YY·y + Y0. It is exact in
// both directions but for the rounding of float64.
type Affine struct{ XX, XY, X0, YX, YY, Y0 float64 }

// Forward maps a place on the page as it came.
func (a Affine) Forward(p Point) Point {
	return Point{a.XX*p.X + a.XY*p.Y + a.X0, a.YX*p.X + a.YY*p.Y + a.Y0}
}

// Inverse maps a place on the corrected page. It is not a number where the
// map has no inverse.
func (a Affine) Inverse(p Point) Point {
	det := a.XX*a.YY - a.XY*a.YX
	x, y := p.X-a.X0, p.Y-a.Y0
	return Point{(a.YY*x - a.XY*y) / det, (a.XX*y - a.YX*x) / det}
}

// Scale is the map of a page of w by h px resized to w2 by h2: pixel edges stay
// pixel edges, as in [Resize].
func Scale(w, h, w2, h2 int) Affine {
	sx, sy := float64(w2)/float64(w), float64(h2)/float64(h)
	return Affine{XX: sx, X0: sx/2 - 0.5, YY: sy, Y0: sy/2 - 0.5}
}

// Rotation is the map that turns a page of w by h px clockwise by deg about its
// centre, and the size of the turned page. The correction of a tilt is the
// rotation by its negative. The size is the same, which cuts corners off, or
// with grow as large as is needed to hold the whole page.
func Rotation(w, h int, deg float64, grow bool) (m Affine, w2, h2 int) {
	sin, cos := math.Sincos(deg * math.Pi / 180)
	w2, h2 = w, h
	if grow {
		c, s := math.Abs(cos), math.Abs(sin)
		w2 = int(math.Ceil(float64(w)*c + float64(h)*s - 1e-9))
		h2 = int(math.Ceil(float64(w)*s + float64(h)*c - 1e-9))
	}
	cx, cy := float64(w-1)/2, float64(h-1)/2
	return Affine{
		XX: cos, XY: -sin, X0: float64(w2-1)/2 - cos*cx + sin*cy,
		YX: sin, YY: cos, Y0: float64(h2-1)/2 - sin*cx - cos*cy,
	}, w2, h2
}

// QuarterTurns is the map of a page of w by h px turned clockwise n times by
// 90°, and the size of the turned page. It is exact.
func QuarterTurns(w, h, n int) (m Affine, w2, h2 int) {
	x, y := float64(w-1), float64(h-1)
	switch n & 3 {
	case 1:
		return Affine{XY: -1, X0: y, YX: 1}, h, w
	case 2:
		return Affine{XX: -1, X0: x, YY: -1, Y0: y}, w, h
	case 3:
		return Affine{XY: 1, YX: -1, Y0: x}, h, w
	default:
		return Affine{XX: 1, YY: 1}, w, h
	}
}

// size is an image's size in px; 0 by 0 for none.
func size(img *image.Gray) (w, h int) {
	if img == nil || img.Rect.Empty() {
		return 0, 0
	}
	return img.Rect.Dx(), img.Rect.Dy()
}

// blank makes an image of one value.
func blank(w, h int, value uint8) (*image.Gray, error) {
	if err := checkSize(w, h); err != nil {
		return nil, err
	}
	img := image.NewGray(image.Rect(0, 0, w, h))
	if value != 0 {
		for i := range img.Pix {
			img.Pix[i] = value
		}
	}
	return img, nil
}

func checkSize(w, h int) error {
	switch {
	case w < 1 || h < 1:
		return fault.Permanentf("an image of %d by %d px is empty", w, h)
	case w > MaxPixels/h:
		return fault.Permanentf("an image of %d by %d px is larger than %d px: use a lower resolution", w, h, MaxPixels)
	}
	return nil
}

// fresh makes an image as large as another.
func fresh(like *image.Gray) *image.Gray {
	w, h := size(like)
	return image.NewGray(image.Rect(0, 0, w, h))
}

// row is row y of an image, w px long.
func row(img *image.Gray, y, w int) []uint8 {
	return img.Pix[y*img.Stride:][:w:w]
}

func finite(v ...float64) bool {
	for _, f := range v {
		if math.IsNaN(f) || math.IsInf(f, 0) {
			return false
		}
	}
	return true
}
