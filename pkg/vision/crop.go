package vision

import (
	"image"
	"math"

	"github.com/reeve-pipeline/reeve/pkg/fault"
)

// LineCrop says how a line is cut out of a page for a recogniser.
type LineCrop struct {
	Height   int     // of the crop, px
	MaxWidth int     // of the crop, px; a longer line is squeezed into it
	Pad      float64 // more of the page left and right, in heights of the line
	Fill     uint8   // what lies outside the page
}

// Cut samples a line out of the page as it came, upright and Height px high:
// line is its rectangle on the corrected page, and m the correction, or nil for
// none. Nothing but the line's own surroundings is looked at, so the crop of a line
// does not depend on other lines. Bilinear, and the mean of up to 8 by 8
// samples a pixel where the line is higher than the crop. Error: one grey level,
// and the place error of [Remap].
func Cut(page *image.Gray, m Map, line Rect, c LineCrop) (*image.Gray, error) {
	switch w, _ := size(page); {
	case w == 0:
		return nil, fault.Permanentf("a line of an empty page")
	case c.Height < 1 || c.MaxWidth < 1 || c.Height > MaxPixels/64/c.MaxWidth:
		return nil, fault.Permanentf("crops of up to %d by %d px: use sizes of 1 to %d px in all", c.MaxWidth, c.Height, MaxPixels/64)
	case !finite(line.Center.X, line.Center.Y, line.W, line.H, line.Angle, c.Pad) || line.W <= 0 || line.H <= 0:
		return nil, fault.Permanentf("a line of %.1f by %.1f px at %.1f %.1f: it has no area", line.W, line.H, line.Center.X, line.Center.Y)
	}
	long := line.W + 2*max(0, c.Pad)*line.H
	width := int(min(max(math.Round(long*float64(c.Height)/line.H), 1), float64(c.MaxWidth)))
	n := int(min(max(math.Ceil(line.H/float64(c.Height)/1.5), 1), 8))
	dst, err := blank(width*n, c.Height*n, c.Fill)
	if err != nil {
		return nil, err
	}
	u, v := line.axes()
	sx, sy := long/float64(width*n), line.H/float64(c.Height*n)
	sample(dst, page, c.Fill, func(x, y int) Point {
		a, b := (float64(x)+0.5)*sx-long/2, (float64(y)+0.5)*sy-line.H/2
		p := Point{line.Center.X + a*u.X + b*v.X, line.Center.Y + a*u.Y + b*v.Y}
		if m == nil {
			return p
		}
		return m.Inverse(p)
	})
	if n == 1 {
		return dst, nil
	}
	return Resize(dst, width, c.Height, Area)
}

// SpreadRule says how far around its contour a line is cut out.
type SpreadRule struct {
	K         float64 // how far, in heights; BDRC's k_factor
	Tolerance float64 // the highest crop, in heights; BDRC's bbox_tolerance
	Fill      uint8   // what is outside the spread contour; BDRC has black
}

// CutSpread cuts out what is within a line's contour, spread by a rectangle of
// int(h·k) by int(int(h·k)·k) px for a contour h px high; the rest of the box is
// fill. It also gives that box on the page. The k is the first of K, K − 0.1, … for
// which the box is at most Tolerance·h high, or the tenth below K. It is BDRC's
// extract_lines with each line for itself: k begins anew for each, and no rows or
// columns are taken out of the middle. A rectangle of even size reaches one px
// further to the right and down, as in OpenCV. Exact.
func CutSpread(page *image.Gray, contour []image.Point, rule SpreadRule) (*image.Gray, image.Rectangle, error) {
	w, h := size(page)
	inside := image.Rect(0, 0, w, h)
	b := Bounds(contour)
	tall := b.Dy()
	if b.Intersect(inside).Empty() {
		return nil, image.Rectangle{}, fault.Permanentf("a line at %v is outside the page of %d by %d px", b, w, h)
	}
	if tall > 2*h || b.Dx() > 2*w {
		return nil, image.Rectangle{}, fault.Permanentf("a line of %d by %d px on a page of %d by %d px", b.Dx(), tall, w, h)
	}
	var kx, ky int
	var box image.Rectangle
	k := rule.K
	for range 11 {
		kx = max(1, int(min(float64(tall)*k, float64(2*w))))
		ky = max(1, int(min(float64(kx)*k, float64(2*h))))
		box = image.Rect(b.Min.X-(kx-1-kx/2), b.Min.Y-(ky-1-ky/2), b.Max.X+kx/2, b.Max.Y+ky/2).Intersect(inside)
		if float64(box.Dy()) <= rule.Tolerance*float64(tall) || k-0.1 <= 0.1 {
			break
		}
		k -= 0.1
	}
	// The contour, in a frame that holds all of it.
	frame := b.Union(box)
	mask := image.NewGray(image.Rect(0, 0, frame.Dx(), frame.Dy()))
	polygon := make([]Point, len(contour))
	for i, p := range contour {
		polygon[i] = Point{float64(p.X - frame.Min.X), float64(p.Y - frame.Min.Y)}
	}
	Fill(mask, polygon, 1)
	mask = spread(mask, kx, ky)
	dst := image.NewGray(image.Rect(0, 0, box.Dx(), box.Dy()))
	for y := range box.Dy() {
		set := row(mask, y+box.Min.Y-frame.Min.Y, frame.Dx())[box.Min.X-frame.Min.X:]
		in := row(page, box.Min.Y+y, w)[box.Min.X:]
		for x := range row(dst, y, box.Dx()) {
			v := rule.Fill
			if set[x] != 0 {
				v = in[x]
			}
			dst.Pix[y*dst.Stride+x] = v
		}
	}
	return dst, box, nil
}

// spread dilates a mask by a rectangle of kx by ky px with its anchor in the
// middle, as OpenCV does: each set pixel reaches size/2 right and down, and
// size − 1 − size/2 left and up. Exact, in one pass a direction.
func spread(mask *image.Gray, kx, ky int) *image.Gray {
	w, h := size(mask)
	wide := fresh(mask)
	for y := range h {
		in, out := row(mask, y, w), row(wide, y, w)
		until := 0 // set up to here
		for x, v := range in {
			if v == 0 {
				continue
			}
			for i := max(until, x-(kx-1-kx/2), 0); i <= min(x+kx/2, w-1); i++ {
				out[i] = 1
			}
			until = x + kx/2 + 1
		}
	}
	dst := fresh(mask)
	counts := make([]int32, w) // set rows under the window
	up, down := ky-1-ky/2, ky/2
	for y := -up; y < h; y++ {
		// Pixel y is set by rows y−down … y+up.
		if y+up < h {
			for x, v := range row(wide, y+up, w) {
				counts[x] += int32(v)
			}
		}
		if y < 0 {
			continue
		}
		if y-down-1 >= 0 {
			for x, v := range row(wide, y-down-1, w) {
				counts[x] -= int32(v)
			}
		}
		out := row(dst, y, w)
		for x, n := range counts {
			if n > 0 {
				out[x] = 1
			}
		}
	}
	return dst
}
