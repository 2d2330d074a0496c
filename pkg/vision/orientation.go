package vision

import (
	"image"
	"math"
	"slices"
)

// Orientation says which way the lines of a page run.
type Orientation struct {
	// Sideways: the lines run up or down. Whether by 90° or 270°, and whether an
	// upright page stands on its head, cannot be told from shapes: try both and
	// keep what the recogniser is surer of.
	Sideways bool
	// Confidence is how much one direction outweighs the other, from 0 to 1.
	Confidence float64
	// Components is how many took part. With less than 20, believe nothing.
	Components int
}

// LineDirection finds the way of a page's lines from the components of its ink,
// as of [Components]. A letter's nearest neighbour is most often in its line, for
// letters stand closer than lines (L. O'Gorman's docstrum, 1993); a component
// more than five letters long, a word run together or a line of a mask, points
// along its line itself. Specks and pictures, more than a fifth of the page wide
// and high, are left out. A tilt of up to 10° does not matter. The error is not known
// in general: the confidence says how clear the case is.
func LineDirection(comps []Component, w, h int) Orientation {
	var boxes []image.Rectangle
	short := make([]int, 0, len(comps))
	for _, c := range comps {
		if c.Area >= 12 && min(c.Box.Dx(), c.Box.Dy()) <= max(w, h)/5 {
			boxes = append(boxes, c.Box)
			short = append(short, min(c.Box.Dx(), c.Box.Dy()))
		}
	}
	if len(boxes) == 0 {
		return Orientation{}
	}
	slices.Sort(short)
	unit := short[len(short)/2]
	var along, across float64
	vote := func(dx, dy float64) {
		switch dx, dy = math.Abs(dx), math.Abs(dy); {
		case dx > 1.5*dy:
			along++
		case dy > 1.5*dx:
			across++
		}
	}
	// Neighbours are looked for in buckets of the page.
	side := max(6*unit, 8)
	buckets := map[image.Point][]int{}
	for i, b := range boxes {
		at := center(b).Div(side)
		buckets[at] = append(buckets[at], i)
	}
	for i, b := range boxes {
		if long := max(b.Dx(), b.Dy()); long >= 5*unit && long >= 3*min(b.Dx(), b.Dy()) {
			vote(float64(b.Dx()), float64(b.Dy()))
			continue
		}
		c := center(b)
		nearest, least := image.Point{}, math.MaxInt
		for by := -1; by <= 1; by++ {
			for bx := -1; bx <= 1; bx++ {
				for _, j := range buckets[c.Div(side).Add(image.Pt(bx, by))] {
					d := center(boxes[j]).Sub(c)
					if far := d.X*d.X + d.Y*d.Y; j != i && far < least {
						nearest, least = d, far
					}
				}
			}
		}
		vote(float64(nearest.X), float64(nearest.Y))
	}
	o := Orientation{Sideways: across > along, Components: int(along + across)}
	if o.Components > 0 {
		o.Confidence = math.Abs(along-across) / (along + across)
	}
	return o
}

func center(b image.Rectangle) image.Point { return b.Min.Add(b.Max).Div(2) }
