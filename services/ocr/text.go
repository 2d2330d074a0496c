package ocr

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/reeve-pipeline/reeve/pkg/vision"
)

// Placed is the text of a line and where it stands.
type Placed struct {
	Text string
	Rect vision.Rect
}

// Text joins the lines of a page, which are in reading order, into its text: a
// line each, and an empty one between paragraphs and columns. A paragraph ends
// where the next line is further down than half as much again as is usual on
// the page, and further than half a line's height. Angle is the page's tilt in
// degrees. Lines without text are left out.
func Text(lines []Placed, angle float64) string {
	lines = slices.DeleteFunc(slices.Clone(lines), func(l Placed) bool { return strings.TrimSpace(l.Text) == "" })
	sin, cos := math.Sincos(angle * math.Pi / 180)
	// pitch is how much further down a line stands than the one before it.
	pitch := func(i int) float64 {
		p, q := lines[i-1].Rect.Center, lines[i].Rect.Center
		return (q.Y-p.Y)*cos - (q.X-p.X)*sin
	}
	height := func(i int) float64 { return max(lines[i-1].Rect.H, lines[i].Rect.H) }
	var pitches []float64
	for i := 1; i < len(lines); i++ {
		if p := pitch(i); p > height(i)/2 {
			pitches = append(pitches, p)
		}
	}
	slices.SortFunc(pitches, cmp.Compare)
	usual := math.Inf(1)
	if n := len(pitches); n > 0 {
		usual = pitches[(n-1)/2]
	}
	var b strings.Builder
	for i, l := range lines {
		if i > 0 {
			b.WriteByte('\n')
			if p, h := pitch(i), height(i); p > 1.5*usual && p > 1.5*h || p < -h/2 {
				b.WriteByte('\n')
			}
		}
		b.WriteString(strings.TrimSpace(l.Text))
	}
	return b.String()
}
