package vision

import (
	"cmp"
	"image"
	"slices"
)

// Merge is the rule by which fragments become one line.
type Merge string

const (
	// MergeNone leaves every fragment a line.
	MergeNone Merge = "none"
	// MergeOverlap joins neighbours that share at least half of the lower one's
	// height and are not further apart than Layout.Gap.
	MergeOverlap Merge = "overlap"
	// MergeFirst is bdrc-prod's: from the top down, whatever is within half the
	// median height of the group's first, however far apart.
	MergeFirst Merge = "first"
	// MergeMean is bdrc-app's: the same by the group's mean, from the bottom up.
	MergeMean Merge = "mean"
)

// Layout says how lines stand on a page. The distances are in medians of the
// boxes' heights.
type Layout struct {
	// Columns looks for columns; without, a page is read from the top down.
	Columns bool
	// Gutter is the least width of the white between two columns.
	Gutter float64
	// Side is the least width of a column: numbers before paragraphs are none.
	Side float64
	// Break is the height of white at which columns end and begin anew.
	Break float64
	Merge Merge
	// Gap is the widest white within a line, for MergeOverlap.
	Gap float64
}

// Columns are looked for among maxCut boxes and maxDepth times in each other at
// most; what has more is noise.
const (
	maxCut   = 4096
	maxDepth = 64
)

// Lines puts boxes into reading order: each element of the result is a line,
// the indexes of its fragments from left to right; every box is in exactly one.
// The same boxes give the same lines, in whatever order they are given. Right to
// left is not known. Boxes must be upright: correct the page's tilt first.
//
// It is the recursive XY-cut (G. Nagy, S. Seth, 1984), with this rule. The boxes
// are cut into bands where a row of the page is white, a box counting for its
// middle 60 %. From the top, as many bands as possible are taken together through
// which one gutter runs: at least Gutter wide, with at least Side on either side,
// boxes on both sides in at least half of the bands of the shorter side, and no
// white of Break or more between bands. The left of the widest gutter is then
// read before its right, each by the same rule. A band without such a gutter is
// read line by line.
func Lines(boxes []image.Rectangle, l Layout) [][]int {
	if len(boxes) == 0 {
		return nil
	}
	o := order{boxes: make([]image.Rectangle, len(boxes)), l: l}
	ids := make([]int, len(boxes))
	heights := make([]int, len(boxes))
	for i, b := range boxes {
		o.boxes[i] = b.Canon()
		ids[i], heights[i] = i, o.boxes[i].Dy()
	}
	slices.Sort(heights)
	o.unit = max(1, float64(heights[len(heights)/2]))
	// From here on the order of the input is forgotten.
	slices.SortFunc(ids, func(i, j int) int { return cmp.Or(compare(o.boxes[i], o.boxes[j]), cmp.Compare(i, j)) })
	if l.Columns && len(ids) <= maxCut {
		o.cut(ids, maxDepth)
	} else {
		o.rows(ids)
	}
	return o.lines
}

func compare(a, b image.Rectangle) int {
	return cmp.Or(cmp.Compare(a.Min.Y, b.Min.Y), cmp.Compare(a.Min.X, b.Min.X),
		cmp.Compare(a.Max.Y, b.Max.Y), cmp.Compare(a.Max.X, b.Max.X))
}

type order struct {
	boxes []image.Rectangle
	l     Layout
	unit  float64 // median height, px
	lines [][]int
}

// band is boxes that no white row parts.
type band struct {
	ids         []int
	top, bottom int
}

// cut reads boxes, sorted from the top, by the XY-cut.
func (o *order) cut(ids []int, depth int) {
	if depth == 0 {
		o.rows(ids)
		return
	}
	bands := o.bands(ids)
	for i := 0; i < len(bands); {
		left, right, n := o.columns(bands[i:])
		if n == 0 {
			o.rows(bands[i].ids)
			i++
			continue
		}
		o.cut(left, depth-1)
		o.cut(right, depth-1)
		i += n
	}
}

func (o *order) bands(ids []int) []band {
	type core struct{ id, top, bottom int }
	cores := make([]core, len(ids))
	for i, id := range ids {
		b := o.boxes[id]
		cut := b.Dy() / 5
		cores[i] = core{id, b.Min.Y + cut, max(b.Max.Y-cut, b.Min.Y+cut+1)}
	}
	slices.SortStableFunc(cores, func(a, b core) int { return cmp.Compare(a.top, b.top) })
	var bands []band
	for _, c := range cores {
		if n := len(bands); n > 0 && c.top < bands[n-1].bottom {
			bands[n-1].ids = append(bands[n-1].ids, c.id)
			bands[n-1].bottom = max(bands[n-1].bottom, c.bottom)
		} else {
			bands = append(bands, band{[]int{c.id}, c.top, c.bottom})
		}
	}
	return bands
}

// interval is columns of pixels from ≤ x < to.
type interval struct{ from, to int }

// columns are the boxes left and right of a gutter through the first n bands; n
// is 0 when there is none.
func (o *order) columns(bands []band) (left, right []int, n int) {
	lo, hi := o.boxes[bands[0].ids[0]].Min.X, 0
	for _, b := range bands {
		for _, id := range b.ids {
			lo, hi = min(lo, o.boxes[id].Min.X), max(hi, o.boxes[id].Max.X)
		}
	}
	var used, best []interval
	for j, b := range bands {
		if j > 0 && float64(b.top-bands[j-1].bottom) >= o.l.Break*o.unit {
			break
		}
		for _, id := range b.ids {
			used = cover(used, interval{o.boxes[id].Min.X, o.boxes[id].Max.X})
		}
		first, last := used[0], used[len(used)-1]
		open := o.wide(first.from-lo) || o.wide(hi-last.to)
		for k := 1; k < len(used); k++ {
			if o.wide(used[k].from - used[k-1].to) {
				open = true
				best, n = append(best[:0], used...), j+1
				break
			}
		}
		if !open {
			break
		}
	}
	if n == 0 {
		return nil, nil, 0
	}
	at, widest := 0, 0
	for k := 1; k < len(best); k++ {
		gap := best[k].from - best[k-1].to
		if o.wide(gap) && gap > widest && o.column(bands[:n], best, best[k].from) {
			at, widest = best[k].from, gap
		}
	}
	if widest == 0 {
		return nil, nil, 0
	}
	for _, b := range bands[:n] {
		for _, id := range b.ids {
			if o.boxes[id].Min.X < at {
				left = append(left, id)
			} else {
				right = append(right, id)
			}
		}
	}
	return left, right, n
}

func (o *order) wide(px int) bool { return float64(px) >= o.l.Gutter*o.unit && px > 0 }

// column says whether the gutter left of x parts two columns.
func (o *order) column(bands []band, used []interval, x int) bool {
	end := used[0].to
	for _, u := range used {
		if u.from < x {
			end = u.to
		}
	}
	side := o.l.Side * o.unit
	if float64(end-used[0].from) < side || float64(used[len(used)-1].to-x) < side {
		return false
	}
	var lefts, rights, both int
	for _, b := range bands {
		l := slices.ContainsFunc(b.ids, func(id int) bool { return o.boxes[id].Min.X < x })
		r := slices.ContainsFunc(b.ids, func(id int) bool { return o.boxes[id].Min.X >= x })
		if l {
			lefts++
		}
		if r {
			rights++
		}
		if l && r {
			both++
		}
	}
	return 2*both >= min(lefts, rights)
}

// cover adds an interval to sorted ones that do not touch.
func cover(used []interval, v interval) []interval {
	i := 0
	for i < len(used) && used[i].to < v.from {
		i++
	}
	j := i
	for j < len(used) && used[j].from <= v.to {
		v.from, v.to = min(v.from, used[j].from), max(v.to, used[j].to)
		j++
	}
	return slices.Replace(used, i, j, v)
}

// rows reads boxes, sorted from the top, line by line.
func (o *order) rows(ids []int) {
	switch o.l.Merge {
	case MergeFirst:
		o.walk(ids, false)
	case MergeMean:
		o.walk(ids, true)
	default:
		for _, r := range o.baselines(ids) {
			for i := range r {
				if i > 0 && o.l.Merge == MergeOverlap && o.near(r[i-1], r[i]) {
					last := len(o.lines) - 1
					o.lines[last] = append(o.lines[last], r[i])
				} else {
					o.lines = append(o.lines, []int{r[i]})
				}
			}
		}
	}
}

func (o *order) near(i, j int) bool {
	return float64(o.boxes[j].Min.X-o.boxes[i].Max.X) <= o.l.Gap*o.unit
}

// baselines are the boxes that stand beside each other, from the top, each row
// from the left. A box joins the row whose last box it shares most height with.
func (o *order) baselines(ids []int) [][]int {
	byX := slices.Clone(ids)
	slices.SortStableFunc(byX, func(i, j int) int { return cmp.Compare(o.boxes[i].Min.X, o.boxes[j].Min.X) })
	type baseline struct {
		ids    []int
		middle float64
	}
	var rows []baseline
	for _, id := range byX {
		b := o.boxes[id]
		best, most := -1, 0
		for i := range rows {
			last := o.boxes[rows[i].ids[len(rows[i].ids)-1]]
			shared := min(b.Max.Y, last.Max.Y) - max(b.Min.Y, last.Min.Y)
			above := min(b.Max.X, last.Max.X) - max(b.Min.X, last.Min.X)
			if 2*shared >= min(b.Dy(), last.Dy()) && 2*above <= min(b.Dx(), last.Dx()) && shared > most {
				best, most = i, shared
			}
		}
		if best < 0 {
			rows = append(rows, baseline{})
			best = len(rows) - 1
		}
		rows[best].ids = append(rows[best].ids, id)
	}
	for i, r := range rows {
		for _, id := range r.ids {
			rows[i].middle += middle(o.boxes[id]) / float64(len(r.ids))
		}
	}
	slices.SortStableFunc(rows, func(a, b baseline) int { return cmp.Compare(a.middle, b.middle) })
	out := make([][]int, len(rows))
	for i, r := range rows {
		out[i] = r.ids
	}
	return out
}

func middle(b image.Rectangle) float64 { return float64(b.Min.Y+b.Max.Y) / 2 }

// walk groups boxes by their middles, as BDRC does.
func (o *order) walk(ids []int, mean bool) {
	byY := slices.Clone(ids)
	slices.SortStableFunc(byY, func(i, j int) int { return cmp.Compare(middle(o.boxes[i]), middle(o.boxes[j])) })
	if mean {
		slices.Reverse(byY)
	}
	var lines [][]int
	var sum float64
	for i, id := range byY {
		y := middle(o.boxes[id])
		anchor := sum
		if n := len(lines); mean && n > 0 {
			anchor /= float64(len(lines[n-1]))
		}
		if i > 0 && max(y-anchor, anchor-y) <= o.unit/2 {
			lines[len(lines)-1] = append(lines[len(lines)-1], id)
			if mean {
				sum += y
			}
			continue
		}
		lines = append(lines, []int{id})
		sum = y
	}
	if mean {
		slices.Reverse(lines)
	}
	for _, l := range lines {
		slices.SortStableFunc(l, func(i, j int) int {
			return cmp.Or(cmp.Compare(o.boxes[i].Min.X, o.boxes[j].Min.X), compare(o.boxes[i], o.boxes[j]), cmp.Compare(i, j))
		})
	}
	o.lines = append(o.lines, lines...)
}
