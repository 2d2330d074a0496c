package linedetection

import (
	"context"
	"fmt"
	"image"
	"math"
	"slices"

	"github.com/reeve-pipeline/reeve/pkg/fault"
	"github.com/reeve-pipeline/reeve/pkg/model"
	"github.com/reeve-pipeline/reeve/pkg/vision"
)

// Engine runs the model. It is used by one goroutine at a time.
type Engine interface {
	// Run takes the model's input, numbers in row-major order of that shape, and
	// returns the output in the same form.
	Run(ctx context.Context, shape []int64, data []float32) (outShape []int64, out []float32, err error)
}

// Line is a line of text that was found.
type Line struct {
	// Outline is a closed polygon around it, clockwise, in px of the page.
	Outline []vision.Point
	// Score is the mean probability within, 0 to 1.
	Score float64
	// Shape is what the model found of it, in px of the page: a part of the
	// outline, but as bent as the line is.
	Shape []image.Point
}

// tilesAtOnce bounds the tiles that go through the network in one run.
const tilesAtOnce = 8

// Detect finds the lines of a page. They come in the order of their topmost
// pixels, which means nothing. The model's manifest says which family it is of,
// the profile what is done to a page for that family.
func Detect(ctx context.Context, engine Engine, m *model.Manifest, profile *vision.Profile, page *image.Gray) ([]Line, error) {
	var prob *image.Gray // of each pixel, in 1/255
	var err error
	switch m.Canvas.Fit {
	case model.FitLongSide:
		prob, err = whole(ctx, engine, m, page)
	case model.FitTiles:
		prob, err = tiled(ctx, engine, m, profile, page)
	default:
		err = fault.Permanentf("model %s takes pictures by %q, which is not for pages", m.Name, m.Canvas.Fit)
	}
	if err != nil {
		return nil, err
	}
	var lines []Line
	w, h := prob.Rect.Dx(), prob.Rect.Dy()
	back := vision.Scale(page.Rect.Dx(), page.Rect.Dy(), w, h)
	contours := vision.Contours(prob, vision.Values{Lo: uint8(m.Regions.Threshold*255) + 1, Hi: 255})
	for _, contour := range profile.Keep.Lines(contours, w, h) {
		outline := vision.Points(contour)
		if m.Regions.Unclip > 0 { // the middle of a line, which is a rectangle
			r := vision.MinAreaRect(outline)
			r.W, r.H = r.W+1, r.H+1 // whole pixels
			if min(r.W, r.H) < minSide {
				continue
			}
			corners := r.Unclip(m.Regions.Unclip).Corners()
			outline = corners[:]
		}
		line := Line{Score: mean(prob, contour)}
		if line.Score < m.Regions.Score {
			continue
		}
		for _, p := range outline {
			line.Outline = append(line.Outline, back.Inverse(p))
		}
		for _, p := range vision.Points(contour) {
			p = back.Inverse(p)
			line.Shape = append(line.Shape, image.Pt(int(math.Round(p.X)), int(math.Round(p.Y))))
		}
		lines = append(lines, line)
	}
	return lines, nil
}

// minSide is the least height of the middle of a line, in px of the model's
// output: less is noise. (PP-OCR's.)
const minSide = 3

// mean is the mean probability within a contour. (Not within the rectangle
// around it, which of a bent line is mostly paper.)
func mean(prob *image.Gray, contour []image.Point) float64 {
	box := vision.Bounds(contour)
	inside := image.NewGray(image.Rect(0, 0, box.Dx(), box.Dy()))
	polygon := vision.Points(contour)
	for i := range polygon {
		polygon[i].X -= float64(box.Min.X)
		polygon[i].Y -= float64(box.Min.Y)
	}
	vision.Fill(inside, polygon, 1)
	var sum, n int
	for y := range box.Dy() {
		from := prob.Pix[prob.PixOffset(box.Min.X, box.Min.Y+y):]
		for x, in := range inside.Pix[y*inside.Stride:][:box.Dx()] {
			sum += int(in) * int(from[x])
			n += int(in)
		}
	}
	return float64(sum) / float64(255*max(n, 1))
}

// whole runs the network once over the page, scaled to fit.
func whole(ctx context.Context, engine Engine, m *model.Manifest, page *image.Gray) (*image.Gray, error) {
	w, h := fitLongSide(page.Rect.Dx(), page.Rect.Dy(), m.Canvas.Side, m.Canvas.Multiple)
	small, err := vision.Resize(page, w, h, vision.Area)
	if err != nil {
		return nil, err
	}
	maps, err := run(ctx, engine, m, []*image.Gray{small})
	if err != nil {
		return nil, err
	}
	return maps[0], nil
}

// fitLongSide is the size at which the longer side is at most side px, and both
// are multiples. A page only grows to the next multiple.
func fitLongSide(w, h, side, multiple int) (int, int) {
	scale := min(1, float64(side)/float64(max(w, h)))
	fit := func(v int) int {
		return max(1, int(math.Round(float64(v)*scale/float64(multiple)))) * multiple
	}
	return fit(w), fit(h)
}

// run lets the network look at pictures of one size and returns its
// probabilities, in 1/255, as pictures of the same size.
func run(ctx context.Context, engine Engine, m *model.Manifest, pictures []*image.Gray) ([]*image.Gray, error) {
	shape, data, err := m.Tensor(pictures...)
	if err != nil {
		return nil, err
	}
	shape, data, err = engine.Run(ctx, shape, data)
	if err != nil {
		return nil, err
	}
	size := pictures[0].Rect.Size()
	extent := func(letter byte) int {
		if i := m.Output.Layout.Axis(letter); i >= 0 && i < len(shape) {
			return int(shape[i])
		}
		return 1
	}
	if extent('N') != len(pictures) || extent('H') != size.Y || extent('W') != size.X || extent('C') != 1 || len(data) != len(pictures)*size.X*size.Y ||
		m.Output.Layout.Axis('H') > m.Output.Layout.Axis('W') || m.Output.Layout.Axis('N') > m.Output.Layout.Axis('H') {
		return nil, fault.Permanentf("model %s gives %v for %d pictures of %v, not a probability for each of their pixels, row by row", m.Name, shape, len(pictures), size)
	}
	maps := make([]*image.Gray, len(pictures))
	for i := range maps {
		maps[i] = image.NewGray(image.Rectangle{Max: size})
		for j, v := range data[i*size.X*size.Y:][:size.X*size.Y] {
			p := float64(v)
			if m.Output.Values == model.Logit {
				p = 1 / (1 + math.Exp(-p))
			}
			maps[i].Pix[j] = uint8(255*min(max(p, 0), 1) + 0.5)
		}
	}
	return maps, nil
}

// tiled runs the network over the squares that the page is cut into, without
// overlap and filled up with white, and puts what it gives together again. How
// large the page is shown and how it is made black and white is the profile's.
func tiled(ctx context.Context, engine Engine, m *model.Manifest, profile *vision.Profile, page *image.Gray) (*image.Gray, error) {
	frame, b := profile.Frame, profile.Binarize
	frame.Tile = m.Canvas.Side
	w, h := frame.Size(page.Rect.Dx(), page.Rect.Dy())
	scaled, err := vision.Resize(page, w, h, vision.Area)
	if err != nil {
		return nil, err
	}
	if b.Linear {
		scaled = vision.Linear(scaled)
	}
	binarize := b.Block > 0 && !bilevel(page)
	if binarize && !b.PerTile {
		if scaled, err = vision.AdaptiveGaussian(scaled, b.Block, b.C); err != nil {
			return nil, err
		}
	}
	prob := image.NewGray(scaled.Rect)
	columns, rows := frame.Tiles(w, h)
	for first := 0; first < columns*rows; first += tilesAtOnce {
		tiles := make([]*image.Gray, min(tilesAtOnce, columns*rows-first))
		for i := range tiles {
			tiles[i] = tile(scaled, corner(first+i, columns, frame.Tile), frame.Tile)
			if binarize && b.PerTile {
				if tiles[i], err = vision.AdaptiveGaussian(tiles[i], b.Block, b.C); err != nil {
					return nil, err
				}
			}
		}
		maps, err := run(ctx, engine, m, tiles)
		if err != nil {
			return nil, fmt.Errorf("tiles from %d of %d: %w", first+1, columns*rows, err)
		}
		for i, found := range maps {
			at := corner(first+i, columns, frame.Tile)
			for y := range min(frame.Tile, h-at.Y) {
				copy(prob.Pix[prob.PixOffset(at.X, at.Y+y):][:min(frame.Tile, w-at.X)], found.Pix[y*found.Stride:])
			}
		}
	}
	return prob, nil
}

// corner is where tile i begins, of so many in a row.
func corner(i, columns, side int) image.Point {
	return image.Pt(i%columns*side, i/columns*side)
}

// tile is the square of a page at a place; white where it goes beyond the page.
func tile(page *image.Gray, at image.Point, side int) *image.Gray {
	t := image.NewGray(image.Rect(0, 0, side, side))
	for i := range t.Pix {
		t.Pix[i] = 255
	}
	w, h := page.Rect.Dx(), page.Rect.Dy()
	for y := range min(side, h-at.Y) {
		copy(t.Pix[y*side:], page.Pix[page.PixOffset(at.X, at.Y+y):][:min(side, w-at.X)])
	}
	return t
}

// bilevel reports whether a page is black and white already.
func bilevel(page *image.Gray) bool {
	return !slices.ContainsFunc(page.Pix, func(v uint8) bool { return v != 0 && v != 255 })
}
