package vision

import (
	"encoding/binary"
	"image"
)

// Values are the grey levels that count as set, both ends included.
type Values struct{ Lo, Hi uint8 }

// Ink is the levels of a page's ink: at most level, as of [Otsu].
func Ink(level uint8) Values { return Values{0, level} }

// Mask is the levels of what is set in a mask: all but 0.
func Mask() Values { return Values{1, 255} }

func (v Values) has(level uint8) bool { return level-v.Lo <= v.Hi-v.Lo }

// Component is a set of pixels that hang together, also by their corners.
type Component struct {
	Box    image.Rectangle // Max is one past the last pixel
	Area   int             // px
	Center Point           // of mass
	// First is the leftmost pixel of the topmost row.
	First image.Point
}

// Components are the 8-connected components of the pixels with the given
// values, in the order of their first pixels, row by row. Exact: runs of
// pixels joined by union-find (L. He, Y. Chao, K. Suzuki, 2008).
func Components(img *image.Gray, set Values) []Component {
	_, comps := label(img, set)
	return comps
}

// Despeckle paints the components of the ink with fewer than below px in the
// page's own pixels with paper, in place, and says how many they were. What
// below should be for a resolution is [SpeckleArea].
func Despeckle(page *image.Gray, ink Values, below int, paper uint8) int {
	runs, comps := label(page, ink)
	removed := 0
	for _, c := range comps {
		if c.Area < below {
			removed++
		}
	}
	if removed == 0 {
		return 0
	}
	for _, r := range runs {
		if comps[r.comp].Area < below {
			for x := r.x0; x < r.x1; x++ {
				page.Pix[int(r.y)*page.Stride+int(x)] = paper
			}
		}
	}
	return removed
}

// SpeckleArea is the area in px below which a component is a speckle at a
// resolution: 10 px at 200 dpi, 0.16 mm², less than the full stop of 7 pt type.
// It is at least 2.
func SpeckleArea(dpi float64) int {
	return max(2, int(10*(dpi/200)*(dpi/200)+0.5))
}

// run is set pixels x0 ≤ x < x1 of row y.
type run struct{ y, x0, x1, comp int32 }

// label finds the runs, and the component of each.
func label(img *image.Gray, set Values) ([]run, []Component) {
	w, h := size(img)
	runs := make([]run, 0, 64+w*h/64) // a text page's, about
	parent := func(i int32) int32 {
		for runs[i].comp != i {
			runs[i].comp = runs[runs[i].comp].comp
			i = runs[i].comp
		}
		return i
	}
	above := 0 // the first run of the row above
	for y := range h {
		begin := len(runs)
		runs = appendRuns(runs, row(img, y, w), int32(y), set)
		a := above
		for i := begin; i < len(runs); i++ {
			for a < begin && runs[a].x1 < runs[i].x0 {
				a++
			}
			for b := a; b < begin && runs[b].x0 <= runs[i].x1; b++ {
				// The root is the earlier run, so that it is the component's first.
				p, q := parent(int32(b)), parent(int32(i))
				if p < q {
					runs[q].comp = p
				} else {
					runs[p].comp = q
				}
			}
		}
		above = begin
	}
	var comps []Component
	for i := range runs {
		r := &runs[i]
		if int(r.comp) == i {
			r.comp = int32(len(comps))
			comps = append(comps, Component{
				Box:   image.Rect(int(r.x0), int(r.y), int(r.x1), int(r.y)+1),
				First: image.Pt(int(r.x0), int(r.y)),
			})
		} else {
			r.comp = runs[r.comp].comp // an earlier run: already numbered
		}
		c := &comps[r.comp]
		n := int(r.x1 - r.x0)
		c.Area += n
		c.Center.X += float64(n) * float64(r.x0+r.x1-1) / 2
		c.Center.Y += float64(n) * float64(r.y)
		c.Box.Min.X, c.Box.Max.X = min(c.Box.Min.X, int(r.x0)), max(c.Box.Max.X, int(r.x1))
		c.Box.Max.Y = int(r.y) + 1
	}
	for i := range comps {
		c := &comps[i]
		c.Center.X /= float64(c.Area)
		c.Center.Y /= float64(c.Area)
	}
	return runs, comps
}

// appendRuns appends the runs of a row, each its own parent. It steps over
// eight pixels of one kind at once.
func appendRuns(runs []run, in []uint8, y int32, set Values) []run {
	w := len(in)
	unset, inside := strides(set)
	for x := 0; ; {
		for x < w && !set.has(in[x]) {
			x++
			if x&7 == 0 {
				x = unset(in, x)
			}
		}
		if x == w {
			return runs
		}
		begin := x
		for x < w && set.has(in[x]) {
			x++
			if x&7 == 0 {
				x = inside(in, x)
			}
		}
		runs = append(runs, run{y, int32(begin), int32(x), int32(len(runs))})
	}
}

// strides are functions that step from x over whole words without, and of only,
// set pixels. (The tests of all bytes of a word are S. E. Anderson's.)
func strides(set Values) (unset, inside func(in []uint8, x int) int) {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	less, more := ones*(uint64(set.Hi)+1), ones*(127-uint64(set.Hi))
	switch {
	case set == Mask():
		return func(in []uint8, x int) int {
				for x+8 <= len(in) && binary.LittleEndian.Uint64(in[x:]) == 0 {
					x += 8
				}
				return x
			}, func(in []uint8, x int) int {
				for ; x+8 <= len(in); x += 8 {
					if v := binary.LittleEndian.Uint64(in[x:]); (v-ones)&^v&tops != 0 {
						break
					}
				}
				return x
			}
	case set.Lo == 0 && set.Hi < 128:
		return func(in []uint8, x int) int {
				for ; x+8 <= len(in); x += 8 {
					if v := binary.LittleEndian.Uint64(in[x:]); (v-less)&^v&tops != 0 {
						break
					}
				}
				return x
			}, func(in []uint8, x int) int {
				for ; x+8 <= len(in); x += 8 {
					if v := binary.LittleEndian.Uint64(in[x:]); (v+more|v)&tops != 0 {
						break
					}
				}
				return x
			}
	default:
		stay := func(_ []uint8, x int) int { return x }
		return stay, stay
	}
}
