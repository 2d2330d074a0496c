package ocr

import (
	"cmp"
	"context"
	"fmt"
	"image"
	"math"
	"slices"
	"strings"

	"github.com/reeve-pipeline/reeve/pkg/ctc"
	"github.com/reeve-pipeline/reeve/pkg/fault"
	"github.com/reeve-pipeline/reeve/pkg/model"
	"github.com/reeve-pipeline/reeve/pkg/table"
	"github.com/reeve-pipeline/reeve/pkg/vision"
)

// Engine runs the model. It is used by one goroutine at a time.
type Engine interface {
	// Run takes the model's input, numbers in row-major order of that shape, and
	// returns the output in the same form.
	Run(ctx context.Context, shape []int64, data []float32) (outShape []int64, out []float32, err error)
}

// Sheet is a page with all that is known of how to read lines off it.
type Sheet struct {
	page    *image.Gray
	profile *vision.Profile
	model   *model.Manifest
	// correction flattens the page, and angle is the tilt that is left then; nil
	// for none.
	correction vision.Map
	angle      float64
	// upright is the corrected page, for models whose lines are cut along their
	// outlines; nil for the others.
	upright *image.Gray
}

// NewSheet prepares a page by what was found on it. Dust is wiped off a page of
// nothing but black and white, in place: there recognisers take it for dots. Dpi
// is the page's resolution; 0 is taken for 200.
func NewSheet(page *image.Gray, dpi int, d *table.Detection, m *model.Manifest, profile *vision.Profile) (*Sheet, error) {
	if bilevel(page) {
		vision.Despeckle(page, vision.Ink(127), vision.SpeckleArea(float64(cmp.Or(dpi, 200))), 255)
	}
	s := &Sheet{page: page, profile: profile, model: m, angle: d.Angle}
	if d.Dewarping {
		var source, target []vision.Point
		for _, p := range d.TPSPoints {
			source = append(source, vision.Point{X: p[1], Y: p[0]})
			target = append(target, vision.Point{X: p[3], Y: p[2]})
		}
		spline, err := vision.NewSpline(source, target, d.TPSAlpha)
		if err != nil {
			return nil, err
		}
		s.correction = spline
	}
	if m.Canvas.Fit != model.FitCanvas || !profile.Spread || (d.Angle == 0 && s.correction == nil) {
		s.upright = page
		return s, nil
	}
	turn, w, h := vision.Rotation(page.Rect.Dx(), page.Rect.Dy(), -d.Angle, profile.Grow)
	if s.correction == nil {
		s.correction = turn
	} else {
		s.correction = vision.Chain{s.correction, turn}
	}
	var err error
	s.upright, err = vision.Remap(page, s.correction, image.Rect(0, 0, w, h), profile.TurnFill)
	return s, err
}

func bilevel(page *image.Gray) bool {
	return !slices.ContainsFunc(page.Pix, func(v uint8) bool { return v != 0 && v != 255 })
}

// Line cuts a line out and brings it to the model's canvas. It looks at nothing
// but the line and its surroundings.
func (s *Sheet) Line(contour []table.Point) (*image.Gray, error) {
	outline := s.outline(contour)
	canvas := s.model.Canvas
	crop := s.profile.Crop
	crop.Height = canvas.Height
	switch {
	case canvas.Fit == model.FitHeight:
		line, err := vision.Cut(s.page, s.correction, Rect(outline, s.angle), crop)
		if err != nil {
			return nil, err
		}
		w := (line.Rect.Dx() + canvas.Multiple - 1) / canvas.Multiple * canvas.Multiple
		return s.place(line, w, canvas.Height, 0, 0), nil
	case canvas.Fit != model.FitCanvas:
		return nil, fault.Permanentf("model %s takes pictures by %q, which is not for lines", s.model.Name, canvas.Fit)
	case s.profile.Spread:
		whole := make([]image.Point, len(outline))
		for i, p := range outline {
			whole[i] = image.Pt(int(math.Round(p.X)), int(math.Round(p.Y)))
		}
		line, _, err := vision.CutSpread(s.upright, whole, s.profile.Around)
		if err != nil {
			return nil, err
		}
		return s.fit(line)
	default:
		line, err := vision.Cut(s.page, s.correction, Rect(outline, s.angle), crop)
		if err != nil {
			return nil, err
		}
		return s.fit(line)
	}
}

// outline is a contour on the corrected page.
func (s *Sheet) outline(contour []table.Point) []vision.Point {
	all := make([]vision.Point, len(contour))
	for i, p := range contour {
		all[i] = vision.Point{X: float64(p[0]), Y: float64(p[1])}
		if s.correction != nil {
			all[i] = s.correction.Forward(all[i])
		}
	}
	return all
}

// long is how many times wider than high an outline must be to tell its own tilt.
const long = 5

// Rect is the rectangle around a line: tilted as the line is where it is long
// enough to tell, else as the page is, in degrees.
func Rect(outline []vision.Point, angle float64) vision.Rect {
	own := vision.MinAreaRect(outline)
	if own.W >= long*own.H || len(outline) == 0 {
		return own
	}
	sin, cos := math.Sincos(angle * math.Pi / 180)
	lo, hi := vision.Point{X: math.Inf(1), Y: math.Inf(1)}, vision.Point{X: math.Inf(-1), Y: math.Inf(-1)}
	for _, p := range outline {
		u, v := p.X*cos+p.Y*sin, p.Y*cos-p.X*sin
		lo, hi = vision.Point{X: min(lo.X, u), Y: min(lo.Y, v)}, vision.Point{X: max(hi.X, u), Y: max(hi.Y, v)}
	}
	u, v := (lo.X+hi.X)/2, (lo.Y+hi.Y)/2
	return vision.Rect{Center: vision.Point{X: u*cos - v*sin, Y: u*sin + v*cos}, W: hi.X - lo.X, H: hi.Y - lo.Y, Angle: angle}
}

// fit brings a line to a canvas of one size, as the profile says.
func (s *Sheet) fit(line *image.Gray) (*image.Gray, error) {
	w, h := s.model.Canvas.Width, s.model.Canvas.Height
	if s.profile.PadSquares {
		side := line.Rect.Dy()
		padded := filled(line.Rect.Dx()+2*side, side, 255)
		paste(padded, line, side, 0)
		line = padded
	}
	scale := min(float64(w)/float64(line.Rect.Dx()), float64(h)/float64(line.Rect.Dy()))
	small, err := vision.Resize(line, max(1, min(w, int(float64(line.Rect.Dx())*scale))), max(1, min(h, int(float64(line.Rect.Dy())*scale))), s.profile.LineFilter)
	if err != nil {
		return nil, err
	}
	x := 0
	if !s.profile.PadLeft {
		x = (w - small.Rect.Dx()) / 2
	}
	canvas := s.place(small, w, h, x, (h-small.Rect.Dy())/2)
	if b := s.profile.Binarize; b.Block > 0 {
		return vision.AdaptiveGaussian(canvas, b.Block, b.C)
	}
	return canvas, nil
}

// place puts a picture onto a canvas of the profile's shade.
func (s *Sheet) place(line *image.Gray, w, h, x, y int) *image.Gray {
	if line.Rect.Dx() == w && line.Rect.Dy() == h {
		return line
	}
	canvas := filled(w, h, s.profile.PadFill)
	paste(canvas, line, x, y)
	return canvas
}

func filled(w, h int, shade uint8) *image.Gray {
	img := image.NewGray(image.Rect(0, 0, w, h))
	for i := range img.Pix {
		img.Pix[i] = shade
	}
	return img
}

func paste(canvas, img *image.Gray, x, y int) {
	for row := range img.Rect.Dy() {
		copy(canvas.Pix[canvas.PixOffset(x, y+row):], img.Pix[row*img.Stride:][:img.Rect.Dx()])
	}
}

// Reader reads the pictures of lines.
type Reader struct {
	model  *model.Manifest
	labels []string
	decode ctc.Options
}

// NewReader returns a reader for a model's output. Lines of less confidence
// than below are read again by a beam search of that width.
func NewReader(m *model.Manifest, below float64, width int) *Reader {
	o := ctc.Defaults()
	o.Blank, o.Below, o.Width = m.Blank, below, width
	return &Reader{m, m.Labels(), o}
}

// Read returns the text of a line as the model spells it, and how sure it is, 0
// to 1. It sees one line at a time, so that a line's text does not depend on
// others. (Batches would also cost more: on a CPU they lose.)
func (r *Reader) Read(ctx context.Context, engine Engine, line *image.Gray) (string, float64, error) {
	shape, data, err := r.model.Tensor(line)
	if err != nil {
		return "", 0, err
	}
	shape, data, err = engine.Run(ctx, shape, data)
	if err != nil {
		return "", 0, err
	}
	kind := ctc.Probabilities
	if r.model.Output.Values == model.Logit {
		kind = ctc.Logits
	}
	scores, err := ctc.Line(data, shape, ctc.Layout(r.model.Output.Layout), kind, 0)
	if err == nil && scores.Classes() != len(r.labels) {
		err = fmt.Errorf("it has %d classes, its charset %d", scores.Classes(), len(r.labels))
	}
	var reading ctc.Reading
	if err == nil {
		reading, err = ctc.Decode(scores, r.decode)
	}
	if err != nil {
		return "", 0, fault.Permanent(fmt.Errorf("output of model %s: %w", r.model.Name, err))
	}
	var b strings.Builder
	for _, s := range reading.Symbols {
		b.WriteString(r.labels[s.Class])
	}
	return strings.TrimSpace(b.String()), reading.Mean, nil
}
