package vision

import (
	"encoding/binary"
	"image"
	"math"
)

// Rotate turns a page clockwise by deg about its centre, by bilinear sampling;
// what comes from outside the page is fill. The size stays unless grow. The map
// of places is [Rotation]; 0° leaves every pixel as it is. Error: one grey level
// of the bilinear mean, and 1/1000 px of its place.
func Rotate(src *image.Gray, deg float64, grow bool, fill uint8) (*image.Gray, error) {
	w, h := size(src)
	if err := checkSize(w, h); err != nil {
		return nil, err
	}
	m, w2, h2 := Rotation(w, h, deg, grow)
	return Remap(src, m, image.Rect(0, 0, w2, h2), fill)
}

// Remap samples the part r of the corrected page from the page as it came,
// bilinearly; what comes from outside the page is fill. The map is asked every
// 16 px and interpolated between: exact for an affine map, and within
// 16²/8·|curvature| px for a [Spline], which is 0.01 px for the strongest bends
// of real volumes (5 % of the page's height over its width).
func Remap(src *image.Gray, m Map, r image.Rectangle, fill uint8) (*image.Gray, error) {
	dst, err := blank(r.Dx(), r.Dy(), fill)
	if err != nil {
		return nil, err
	}
	sample(dst, src, fill, func(x, y int) Point {
		return m.Inverse(Point{float64(r.Min.X + x), float64(r.Min.Y + y)})
	})
	return dst, nil
}

// cell is the distance of the places where [sample] asks for the map, in px.
const cell = 16

// far keeps places in the range of the fixed-point numbers of sample, px.
const far = 1 << 30

// sample fills dst, which is already filled with fill, from the places that
// `at` names for its pixels. The places are held in 1/65536 px.
func sample(dst, src *image.Gray, fill uint8, at func(x, y int) Point) {
	w, h := size(dst)
	sw, sh := size(src)
	if sw == 0 {
		return
	}
	n := (w+cell-1)/cell + 1
	nodes := func(y int) []Point {
		ps := make([]Point, n)
		for i := range ps {
			p := at(i*cell, y)
			if !finite(p.X, p.Y) {
				p = Point{-far, -far}
			}
			ps[i] = Point{min(max(p.X, -far), far), min(max(p.Y, -far), far)}
		}
		return ps
	}
	lower := nodes(0)
	for y0 := 0; y0 < h; y0 += cell {
		upper := lower
		lower = nodes(y0 + cell)
		for y := y0; y < min(y0+cell, h); y++ {
			t := float64(y-y0) / cell
			out := row(dst, y, w)
			p := between(upper[0], lower[0], t)
			for i := 1; i < n; i++ {
				q := between(upper[i], lower[i], t)
				x0 := (i - 1) * cell
				segment(out[x0:min(x0+cell, w)], src, sw, sh, fill, p, q)
				p = q
			}
		}
	}
}

func between(p, q Point, t float64) Point {
	return Point{p.X + (q.X-p.X)*t, p.Y + (q.Y-p.Y)*t}
}

// segment samples up to cell pixels on the way from p to q.
func segment(out []uint8, src *image.Gray, sw, sh int, fill uint8, p, q Point) {
	const one = 1 << 16
	x, y := int(math.Round(p.X*one)), int(math.Round(p.Y*one))
	dx, dy := int(math.Round((q.X-p.X)*(one/cell))), int(math.Round((q.Y-p.Y)*(one/cell)))
	ex, ey := x+dx*(len(out)-1), y+dy*(len(out)-1)
	if min(x, ex) >= 0 && min(y, ey) >= 0 && max(x, ex) < (sw-1)*one && max(y, ey) < (sh-1)*one {
		pix, stride := src.Pix, src.Stride
		for i := range out {
			o := (y>>16)*stride + x>>16
			up := uint32(binary.LittleEndian.Uint16(pix[o:]))
			down := uint32(binary.LittleEndian.Uint16(pix[o+stride:]))
			wx, wy := uint32(x>>8)&255, uint32(y>>8)&255
			// Both rows in one number.
			both := up | down<<16
			mixed := (both&0xff00ff)*(256-wx) + (both>>8&0xff00ff)*wx
			out[i] = uint8(((mixed&0xffff)*(256-wy) + (mixed>>16)*wy + 1<<15) >> 16)
			x, y = x+dx, y+dy
		}
		return
	}
	if max(x, ex) <= -one || max(y, ey) <= -one || min(x, ex) >= sw*one || min(y, ey) >= sh*one {
		return
	}
	get := func(x, y int) uint32 {
		if x < 0 || y < 0 || x >= sw || y >= sh {
			return uint32(fill)
		}
		return uint32(src.Pix[y*src.Stride+x])
	}
	for i := range out {
		ix, iy, wx, wy := x>>16, y>>16, uint32(x>>8)&255, uint32(y>>8)&255
		a := get(ix, iy)*(256-wx) + get(ix+1, iy)*wx
		b := get(ix, iy+1)*(256-wx) + get(ix+1, iy+1)*wx
		out[i] = uint8((a*(256-wy) + b*wy + 1<<15) >> 16)
		x, y = x+dx, y+dy
	}
}
