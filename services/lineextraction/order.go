package lineextraction

import (
	"fmt"
	"image"
	"math"

	"github.com/google/uuid"

	"github.com/reeve-pipeline/reeve/pkg/table"
	"github.com/reeve-pipeline/reeve/pkg/vision"
)

// Order makes the lines of a page out of what was found on it: fragments that
// belong together become one, and the lines stand in reading order. Their
// boxes and contours are in px of the original image. The guid of a line follows
// from where it stands, so that it is the same whenever the page is worked on.
func Order(d *table.Detection, layout vision.Layout, prefix string) []table.LineImage {
	upright, _, _ := vision.Rotation(int(d.Width), int(d.Height), -d.Angle, false)
	boxes := make([]image.Rectangle, len(d.Contours))
	for i, contour := range d.Contours {
		boxes[i] = box(contour, upright.Forward)
	}
	var lines []table.LineImage
	for _, fragments := range vision.Lines(boxes, layout) {
		l := table.LineImage{About: d.About, Index: int32(len(lines))}
		l.GUID = uuid.NewSHA1(uuid.NameSpaceURL, fmt.Appendf(nil, "%s/%d/%d", prefix, d.Page, l.Index)).String()
		l.Contour, l.Confidence = join(d, fragments)
		b := box(l.Contour, func(p vision.Point) vision.Point { return p })
		l.X, l.Y, l.W, l.H = int32(b.Min.X), int32(b.Min.Y), int32(b.Dx()), int32(b.Dy())
		l.CenterX, l.CenterY = l.X+l.W/2, l.Y+l.H/2
		lines = append(lines, l)
	}
	return lines
}

// join returns the outline around fragments and the mean of their scores,
// weighted by their widths. One fragment keeps its contour.
func join(d *table.Detection, fragments []int) ([]table.Point, float32) {
	if len(fragments) == 1 {
		return d.Contours[fragments[0]], d.Scores[fragments[0]]
	}
	var all []vision.Point
	var sum, width float64
	for _, i := range fragments {
		points := places(d.Contours[i])
		all = append(all, points...)
		w := vision.MinAreaRect(points).W
		sum += w * float64(d.Scores[i])
		width += w
	}
	hull := vision.Hull(all)
	contour := make([]table.Point, len(hull))
	for i, p := range hull {
		contour[i] = table.Point{int32(p.X), int32(p.Y)}
	}
	return contour, float32(sum / max(width, 1))
}

// box is the upright box of whole pixels around a contour that was moved.
func box(contour []table.Point, move func(vision.Point) vision.Point) image.Rectangle {
	lo, hi := vision.Point{X: math.Inf(1), Y: math.Inf(1)}, vision.Point{X: math.Inf(-1), Y: math.Inf(-1)}
	for _, p := range places(contour) {
		p = move(p)
		lo = vision.Point{X: min(lo.X, p.X), Y: min(lo.Y, p.Y)}
		hi = vision.Point{X: max(hi.X, p.X), Y: max(hi.Y, p.Y)}
	}
	if len(contour) == 0 {
		return image.Rectangle{}
	}
	round := func(v float64) int { return int(math.Round(v)) }
	return image.Rect(round(lo.X), round(lo.Y), round(hi.X)+1, round(hi.Y)+1)
}

func places(contour []table.Point) []vision.Point {
	all := make([]vision.Point, len(contour))
	for i, p := range contour {
		all[i] = vision.Point{X: float64(p[0]), Y: float64(p[1])}
	}
	return all
}
