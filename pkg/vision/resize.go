package vision

import (
	"image"
	"math"
)

// Filter is how [Resize] makes one pixel out of others.
type Filter string

const (
	// Area is the mean of the source area under a pixel, the right filter for
	// making smaller; where a side grows it is Bilinear along that side.
	// Error: half a grey level.
	Area Filter = "area"
	// Bilinear mixes the four nearest pixels, as OpenCV's INTER_LINEAR does; made
	// much smaller, fine lines break. Error: one grey level.
	Bilinear Filter = "bilinear"
	// Nearest takes the nearest pixel, and keeps two values two.
	Nearest Filter = "nearest"
)

// Resize scales a page to w by h px. The map of places is [Scale].
func Resize(src *image.Gray, w, h int, filter Filter) (*image.Gray, error) {
	sw, sh := size(src)
	if err := checkSize(sw, sh); err != nil {
		return nil, err
	}
	dst, err := blank(w, h, 0)
	if err != nil {
		return nil, err
	}
	switch {
	case w == sw && h == sh:
		for y := range h {
			copy(row(dst, y, w), row(src, y, w))
		}
	case filter == Nearest:
		nearest(dst, src)
	case filter == Area && w <= sw && h <= sh:
		area(dst, src)
	case filter == Area && (w < sw || h < sh): // one side shrinks, one grows
		mid, err := Resize(src, min(w, sw), min(h, sh), Area)
		if err != nil {
			return nil, err
		}
		bilinear(dst, mid)
	default:
		bilinear(dst, src)
	}
	return dst, nil
}

func nearest(dst, src *image.Gray) {
	sw, sh := size(src)
	w, h := size(dst)
	from := make([]int, w)
	for x := range from {
		from[x] = x * sw / w
	}
	for y := range h {
		in, out := row(src, y*sh/h, sw), row(dst, y, w)
		for x, f := range from {
			out[x] = in[f]
		}
	}
}

// area takes the mean under each pixel. Along a row it is the difference of the
// running sum at the pixel's two edges, in 1/256; sums may wrap, differences
// do not.
func area(dst, src *image.Gray) {
	sw, sh := size(src)
	w, h := size(dst)
	at := make([]int32, w+1) // edges: whole px
	part := make([]uint32, w+1)
	for x := range at {
		e := float64(x) * float64(sw) / float64(w)
		at[x] = int32(e)
		part[x] = uint32((e-math.Floor(e))*256 + 0.5)
	}
	sums := make([]uint32, sw+2) // sums[i] is the sum of the first i px
	acc := make([]float32, w)
	scale := float64(sh) / float64(h)
	norm := float32(1 / (256 * float64(sw) / float64(w) * scale))
	for y := range h {
		top, bottom := float64(y)*scale, float64(y+1)*scale
		clear(acc)
		for y0 := int(top); y0 < sh && float64(y0) < bottom-1e-9; y0++ {
			weight := float32(min(bottom, float64(y0+1))-max(top, float64(y0))) * norm
			s := uint32(0)
			for i, v := range row(src, y0, sw) {
				s += uint32(v)
				sums[i+1] = s
			}
			sums[sw+1] = s
			last := uint32(0)
			for x := range acc {
				i := at[x+1]
				a := sums[i]
				edge := a<<8 + (sums[i+1]-a)*part[x+1]
				acc[x] += weight * float32(edge-last)
				last = edge
			}
		}
		out := row(dst, y, w)
		for x, v := range acc {
			out[x] = uint8(min(v+0.5, 255))
		}
	}
}

func bilinear(dst, src *image.Gray) {
	sw, sh := size(src)
	w, h := size(dst)
	left, mix := taps(sw, w)
	tops, mixY := taps(sh, h)
	for y := range h {
		up, down := row(src, int(tops[y]), sw), row(src, min(int(tops[y])+1, sh-1), sw)
		wy, out := mixY[y], row(dst, y, w)
		for x := range out {
			l := int(left[x])
			r := min(l+1, sw-1)
			wx := mix[x]
			a := uint32(up[l])*(256-wx) + uint32(up[r])*wx
			b := uint32(down[l])*(256-wx) + uint32(down[r])*wx
			out[x] = uint8((a*(256-wy) + b*wy + 1<<15) >> 16)
		}
	}
}

// taps are, for each of n pixels out of m, the pixel to its left and the
// weight of the next in 1/256.
func taps(m, n int) (left []int32, weight []uint32) {
	left, weight = make([]int32, n), make([]uint32, n)
	for i := range left {
		p := (float64(i)+0.5)*float64(m)/float64(n) - 0.5
		p = min(max(p, 0), float64(m-1))
		left[i] = int32(p)
		weight[i] = uint32((p-math.Floor(p))*256 + 0.5)
	}
	return left, weight
}

// Turn turns a page clockwise n times by 90°, exactly. The map of places is
// [QuarterTurns].
func Turn(src *image.Gray, n int) *image.Gray {
	w, h := size(src)
	m, w2, h2 := QuarterTurns(w, h, n)
	dst := image.NewGray(image.Rect(0, 0, w2, h2))
	// Tiles, so that both images stay in the cache.
	const tile = 32
	for ty := 0; ty < h2; ty += tile {
		for tx := 0; tx < w2; tx += tile {
			for y := ty; y < min(ty+tile, h2); y++ {
				from := m.Inverse(Point{float64(tx), float64(y)})
				step := int(m.XX) + int(m.XY)*src.Stride // the inverse is the transpose
				at := int(from.Y)*src.Stride + int(from.X)
				out := row(dst, y, w2)[tx:min(tx+tile, w2)]
				for x := range out {
					out[x] = src.Pix[at]
					at += step
				}
			}
		}
	}
	return dst
}
