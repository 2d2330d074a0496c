package vision_test

import (
	"image"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/reeve-pipeline/reeve/pkg/vision"
)

// paint draws ink where the function says so, and leaves white.
func paint(w, h int, ink func(x, y float64) bool) *image.Gray {
	img := image.NewGray(image.Rect(0, 0, w, h))
	for y := range h {
		for x := range w {
			if !ink(float64(x), float64(y)) {
				img.Pix[y*img.Stride+x] = 255
			}
		}
	}
	return img
}

// bars draws filled boxes on a page that is tilted clockwise by deg about its
// middle. The formula is written out, not taken from the package.
func bars(w, h int, boxes []image.Rectangle, deg float64) *image.Gray {
	a := deg * math.Pi / 180
	cx, cy := float64(w-1)/2, float64(h-1)/2
	ink := make([]bool, w*h)
	for _, b := range boxes {
		for y := b.Min.Y; y < b.Max.Y; y++ {
			for x := b.Min.X; x < b.Max.X; x++ {
				ink[y*w+x] = true
			}
		}
	}
	sin, cos := math.Sincos(a)
	return paint(w, h, func(x, y float64) bool {
		u := int(math.Floor(cos*(x-cx) + sin*(y-cy) + cx))
		v := int(math.Floor(-sin*(x-cx) + cos*(y-cy) + cy))
		return u >= 0 && v >= 0 && u < w && v < h && ink[v*w+u]
	})
}

// stack is n boxes of w by h px below each other.
func stack(x, y, w, h, pitch, n int) []image.Rectangle {
	var boxes []image.Rectangle
	for i := range n {
		boxes = append(boxes, image.Rect(x, y+i*pitch, x+w, y+i*pitch+h))
	}
	return boxes
}

// soil adds Gaussian noise and dark specks of up to 2 by 2 px.
func soil(img *image.Gray, sigma float64, specks int, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	b := img.Bounds()
	for range specks {
		x, y := r.IntN(b.Dx()-2), r.IntN(b.Dy()-2)
		for dy := range 1 + r.IntN(2) {
			for dx := range 1 + r.IntN(2) {
				img.Pix[(y+dy)*img.Stride+x+dx] = 0
			}
		}
	}
	for i, v := range img.Pix {
		// Paper and ink are not at the ends of the scale.
		img.Pix[i] = uint8(min(max(40+float64(v)*170/255+r.NormFloat64()*sigma, 0), 255))
	}
}

// read finds the contours of what is dark on a page.
func read(t *testing.T, page *image.Gray) [][]image.Point {
	t.Helper()
	level := vision.Otsu(page)
	vision.Despeckle(page, vision.Ink(level), 30, 255)
	return vision.Contours(page, vision.Ink(level))
}

func rects(contours [][]image.Point) []vision.Rect {
	var rs []vision.Rect
	for _, c := range contours {
		r := vision.MinAreaRect(vision.Points(c))
		r.W++
		r.H++
		rs = append(rs, r)
	}
	return rs
}

func near(t *testing.T, what string, got, want, within float64) {
	t.Helper()
	if !(math.Abs(got-want) <= within) {
		t.Errorf("%s: got %.4f, want %.4f ± %.4f", what, got, want, within)
	}
}

func distance(p, q vision.Point) float64 { return math.Hypot(p.X-q.X, p.Y-q.Y) }

func rule() vision.TiltRule { return vision.Reeve().Tilt }
