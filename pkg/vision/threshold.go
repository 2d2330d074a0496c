package vision

import (
	"image"
	"math"

	"github.com/reeve-pipeline/reeve/pkg/fault"
)

// Otsu is the grey level that parts a page's levels best in two: ink is what is
// at most this level. (N. Otsu, 1979: the largest variance between the classes.)
// A page of one level has 0, so that only a black page is ink. Exact.
func Otsu(src *image.Gray) uint8 {
	w, h := size(src)
	var counts [4][256]uint32 // four, so that a run of one level does not wait for itself
	for y := range h {
		in := row(src, y, w)
		for ; len(in) >= 4; in = in[4:] {
			counts[0][in[0]]++
			counts[1][in[1]]++
			counts[2][in[2]]++
			counts[3][in[3]]++
		}
		for _, v := range in {
			counts[0][v]++
		}
	}
	var levels [256]float64
	sum := 0.0
	for v := range levels {
		levels[v] = float64(counts[0][v]) + float64(counts[1][v]) + float64(counts[2][v]) + float64(counts[3][v])
		sum += float64(v) * levels[v]
	}
	total := float64(w) * float64(h)
	var best, below, weight float64
	level := uint8(0)
	for v, n := range levels[:255] {
		weight += n
		below += float64(v) * n
		if weight == 0 || weight == total {
			continue
		}
		d := below/weight - (sum-below)/(total-weight)
		if apart := weight * (total - weight) * d * d; apart > best {
			best, level = apart, uint8(v)
		}
	}
	return level
}

// Threshold makes what is at most level black and the rest white.
func Threshold(src *image.Gray, level uint8) *image.Gray {
	var lut [256]uint8
	for v := int(level) + 1; v < 256; v++ {
		lut[v] = 255
	}
	return apply(src, &lut)
}

// Linear undoes the gamma of sRGB (IEC 61966-2-1): levels become proportional
// to light. bdrc-prod does it before its threshold. Error: half a level.
func Linear(src *image.Gray) *image.Gray {
	var lut [256]uint8
	for v := range lut {
		x := float64(v) / 255
		if x <= 0.04045 {
			x /= 12.92
		} else {
			x = math.Pow((x+0.055)/1.055, 2.4)
		}
		lut[v] = uint8(x*255 + 0.5)
	}
	return apply(src, &lut)
}

func apply(src *image.Gray, lut *[256]uint8) *image.Gray {
	w, h := size(src)
	dst := fresh(src)
	for y := range h {
		out := row(dst, y, w)
		for x, v := range row(src, y, w) {
			out[x] = lut[v]
		}
	}
	return dst
}

// Sauvola makes black what is at most m·(1 + k·(s/128 − 1)), where m and s are
// the mean and the deviation of the window px by window px around a pixel, cut
// off at the page's edges. (J. Sauvola, M. Pietikäinen, 2000; their k is 0.5, 0.2
// to 0.34 keeps thin strokes.) The sums are those of an integral image, exact,
// but kept for one row at a time. The window is odd.
func Sauvola(src *image.Gray, window int, k float64) (*image.Gray, error) {
	if err := checkWindow(window); err != nil {
		return nil, err
	}
	return windows(src, window, func(in, out []uint8, sums, squares, counts []uint32) {
		f := k * k / (128 * 128)
		for x, v := range in {
			n := 1 / float64(counts[x])
			m := float64(sums[x]) * n
			// v > m(1−k) + m·k·s/128, without the root.
			d := float64(v) - m*(1-k)
			if d > 0 && d*d > f*m*m*(float64(squares[x])*n-m*m) {
				out[x] = 255
			}
		}
	}), nil
}

// AdaptiveMean makes white what is more than the mean of the window px by window
// px around it less c, cut off at the page's edges, and the rest black. (D. Bradley,
// G. Roth, 2007, with a difference for their ratio.) Exact. The window is odd.
func AdaptiveMean(src *image.Gray, window, c int) (*image.Gray, error) {
	if err := checkWindow(window); err != nil {
		return nil, err
	}
	return windows(src, window, func(in, out []uint8, sums, _, counts []uint32) {
		for x, v := range in {
			if (int(v)+c)*int(counts[x]) > int(sums[x]) {
				out[x] = 255
			}
		}
	}), nil
}

func checkWindow(window int) error {
	if window < 1 || window > 255 || window%2 == 0 {
		return fault.Permanentf("a threshold window of %d px: use an odd number from 3 to 255", window)
	}
	return nil
}

// windows makes an image by calling do for each row with the sum of the pixels
// in each pixel's window, the sum of their squares, and their count. Both sums
// fit in 32 bits for windows up to 255 px; what they are differences of may wrap.
func windows(src *image.Gray, window int, do func(in, out []uint8, sums, squares, counts []uint32)) *image.Gray {
	w, h := size(src)
	dst := fresh(src)
	r := window / 2
	type pair struct{ sum, squares uint32 }
	columns, left := make([]pair, w), make([]pair, w+1) // left of a column, exclusive
	sums, squares, counts := make([]uint32, w), make([]uint32, w), make([]uint32, w)
	for y := -r; y < h; y++ {
		if y+r < h {
			for x, v := range row(src, y+r, w) {
				columns[x].sum += uint32(v)
				columns[x].squares += uint32(v) * uint32(v)
			}
		}
		if y < 0 {
			continue
		}
		if y-r-1 >= 0 {
			for x, v := range row(src, y-r-1, w) {
				columns[x].sum -= uint32(v)
				columns[x].squares -= uint32(v) * uint32(v)
			}
		}
		var run pair
		for x, c := range columns {
			run.sum += c.sum
			run.squares += c.squares
			left[x+1] = run
		}
		rows := min(y+r, h-1) - max(y-r, 0) + 1
		for x := range sums {
			from, to := max(x-r, 0), min(x+r+1, w)
			sums[x] = left[to].sum - left[from].sum
			squares[x] = left[to].squares - left[from].squares
			counts[x] = uint32(rows * (to - from))
		}
		do(row(src, y, w), row(dst, y, w), sums, squares, counts)
	}
	return dst
}

// AdaptiveGaussian makes white what is more than its weighted surroundings less
// c, and the rest black: OpenCV's adaptiveThreshold with GAUSSIAN_C, on which
// BDRC's models were trained. The kernel is block px wide, its σ is
// 0.3·((block−1)/2 − 1) + 0.8 px, the page's edge is replicated and the mean is
// rounded to a level. Error: the mean is exact to 1/200 level before rounding.
// The block is odd.
func AdaptiveGaussian(src *image.Gray, block, c int) (*image.Gray, error) {
	if err := checkWindow(block); err != nil {
		return nil, err
	}
	w, h := size(src)
	dst := fresh(src)
	if w == 0 {
		return dst, nil
	}
	half := gaussian(block)
	r := block / 2
	// Rows are blurred along x once, into a ring, in 1/256; the sums down it make
	// the mean.
	ring := make([][]uint32, block)
	for i := range ring {
		ring[i] = make([]uint32, w)
	}
	padded := make([]uint32, w+2*r)
	acc := make([]uint32, w)
	// fold adds up taps, two pairs a pass.
	fold := func(tap func(i int) []uint32) {
		mid := tap(0)
		for x := range acc {
			acc[x] = mid[x] * half[0]
		}
		for i := 1; i <= r; i += 2 {
			a, b, k := tap(-i)[:len(acc)], tap(i)[:len(acc)], half[i]
			if i == r {
				for x := range acc {
					acc[x] += (a[x] + b[x]) * k
				}
				break
			}
			c, d, l := tap(-i - 1)[:len(acc)], tap(i + 1)[:len(acc)], half[i+1]
			for x := range acc {
				acc[x] += (a[x]+b[x])*k + (c[x]+d[x])*l
			}
		}
	}
	blur := func(y int) {
		in := row(src, min(max(y, 0), h-1), w)
		for i := range r {
			padded[i], padded[r+w+i] = uint32(in[0]), uint32(in[w-1])
		}
		for x, v := range in {
			padded[r+x] = uint32(v)
		}
		fold(func(i int) []uint32 { return padded[r+i:] })
		out := ring[(y+r)%block]
		for x, a := range acc {
			out[x] = (a + 1<<7) >> 8
		}
	}
	for y := -r; y < r; y++ {
		blur(y)
	}
	for y := range h {
		blur(y + r)
		fold(func(i int) []uint32 { return ring[(y+r+i)%block] })
		in, out := row(src, y, w), row(dst, y, w)
		for x, a := range acc {
			if mean := int((uint64(a) + 1<<23) >> 24); int(in[x])+c > mean {
				out[x] = 255
			}
		}
	}
	return dst, nil
}

// gaussian is the middle and one half of OpenCV's kernel, in 1/65536; the whole
// sums to 1.
func gaussian(block int) []uint32 {
	r := block / 2
	sigma := 0.3*(float64(block-1)*0.5-1) + 0.8
	weights := make([]float64, r+1)
	sum := 0.0
	for i := range weights {
		weights[i] = math.Exp(-float64(i*i) / (2 * sigma * sigma))
		sum += weights[i]
		if i > 0 {
			sum += weights[i]
		}
	}
	half := make([]uint32, r+1)
	rest := uint32(1 << 16)
	for i := r; i > 0; i-- {
		half[i] = uint32(math.Round(weights[i] / sum * (1 << 16)))
		rest -= 2 * half[i]
	}
	half[0] = rest
	return half
}
