package vision

import (
	"image"
	"slices"

	"github.com/reeve-pipeline/reeve/pkg/fault"
)

// Profile is all numbers between a page and its lines, under a name. The way a
// page is thresholded, padded and cut is a part of what a model was trained on,
// so the numbers of one profile belong together; a caller may still change any
// field of its own copy.
type Profile struct {
	Name string

	// Detection.
	Frame    Frame    // how large the page is shown to the model
	Binarize Binarize // what is done to it first
	// MaskLevel is the probability above which the model's pixels are line.
	MaskLevel float64
	// BoxScore is the least mean probability of a line's box; 0 for any.
	BoxScore float64
	// Unclip grows a line's box, see [Rect.Unclip]; 0 leaves it.
	Unclip float64

	// Geometry.
	Keep Keep
	Tilt TiltRule
	// Grow keeps the corners of a page that is turned, on a larger page.
	Grow bool
	// TurnFill is the grey level of what a turned page does not cover.
	TurnFill uint8
	Bend     BendRule
	Layout   Layout

	// Line images.
	Spread     bool // cut with Around, else with Crop
	Crop       LineCrop
	Around     SpreadRule
	PadSquares bool   // a square of the line's height in PadFill on both ends first
	PadFill    uint8  // of the recogniser's canvas
	PadLeft    bool   // the line begins at the canvas's left, else it is centred
	LineFilter Filter // how a line is resized to the canvas
}

// Binarize is the threshold before a model; Block 0 is none, and leaves grey.
type Binarize struct {
	Block, C int  // of [AdaptiveGaussian]
	PerTile  bool // each tile for itself, with seams, else the whole frame
	Linear   bool // [Linear] first
}

// Keep says which contours are lines. A contour's area is its polygon's.
type Keep struct {
	TiltArea float64 // least share of the page's area to be asked for its tilt
	Area     float64 // least share of the page's area to be a line
	Pixels   float64 // least area to be a line, px²
	Width    float64 // least width, as a share of the page's
	Height   int     // least height, px
}

// ForTilt are the contours that tell the tilt of a page of w by h px.
func (k Keep) ForTilt(contours [][]image.Point, w, h int) [][]image.Point {
	least := k.TiltArea * float64(w) * float64(h)
	return slices.DeleteFunc(slices.Clone(contours), func(c []image.Point) bool {
		return PolygonArea(Points(c)) <= least
	})
}

// Lines are the contours that are lines of a page of w by h px.
func (k Keep) Lines(contours [][]image.Point, w, h int) [][]image.Point {
	least := max(k.Area*float64(w)*float64(h), k.Pixels)
	return slices.DeleteFunc(slices.Clone(contours), func(c []image.Point) bool {
		b := Bounds(c)
		return PolygonArea(Points(c)) <= least || float64(b.Dx()) < k.Width*float64(w) || b.Dy() < k.Height
	})
}

// Frame is how large a page is shown to a detection model.
type Frame struct {
	Rule FrameRule
	// Side is the longer side for FrameSide, in px; both sides become multiples of 32.
	Side int
	// MaxWidth, MaxHeight and Tile are of BDRC's rules, in px. The frame is cut
	// into tiles of Tile by Tile px, white beyond the page.
	MaxWidth, MaxHeight, Tile int
}

// FrameRule is how the frame's size follows from the page's.
type FrameRule string

const (
	// FrameSide scales the longer side to a given one, never up.
	FrameSide FrameRule = "side"
	// FrameApp clamps the longer side of a page, and scales low pages up to one
	// tile's height.
	FrameApp FrameRule = "app"
	// FrameProd never scales up, snaps a page that is a little higher than a row
	// of tiles down to it, and shows a page more than 2.5 times as wide as high
	// in one row; never in more than two.
	FrameProd FrameRule = "prod"
)

// Size is the size of the frame of a page of w by h px.
func (f Frame) Size(w, h int) (fw, fh int) {
	if w < 1 || h < 1 {
		return 0, 0
	}
	scaled := func(s float64) (int, int) {
		return max(1, int(float64(w)*s+1e-9)), max(1, int(float64(h)*s+1e-9))
	}
	fit := func(side, length int) float64 { return float64(side) / float64(length) }
	switch f.Rule {
	case FrameApp:
		switch {
		case w > h && w > f.MaxWidth:
			return scaled(fit(f.MaxWidth, w))
		case h > w && h > f.MaxHeight:
			return scaled(fit(f.MaxHeight, h))
		case h < f.Tile:
			return scaled(fit(f.Tile, h))
		}
		return w, h
	case FrameProd:
		tile := float64(f.Tile)
		s := min(fit(f.MaxWidth, w), fit(f.MaxHeight, h), 1)
		if 2*w > 5*h {
			s = min(fit(f.Tile, h), fit(f.MaxWidth, w))
		} else {
			const little = 78 // px over a row of tiles
			high := float64(h) * s
			if high > 0.75*tile && high < tile {
				high = tile
			}
			if over := high - tile*float64(int(high/tile)); high > tile && over > 0 && over <= little {
				high -= over
			}
			s = min(high, 2*tile) / float64(h)
		}
		return scaled(min(s, 1))
	default:
		s := min(fit(f.Side, max(w, h)), 1)
		fw, fh = scaled(s)
		return max(32, (fw+16)/32*32), max(32, (fh+16)/32*32)
	}
}

// Tiles is how many columns and rows of tiles a frame takes; 1 and 1 without tiles.
func (f Frame) Tiles(fw, fh int) (cols, rows int) {
	if f.Tile == 0 {
		return 1, 1
	}
	return (fw + f.Tile - 1) / f.Tile, (fh + f.Tile - 1) / f.Tile
}

// Reeve is the profile of Reeve's own models and pages. What it does otherwise
// than BDRC, with the field that switches it back:
//
//   - The page is shown to the model whole and grey, at most 960 px long (Frame,
//     Binarize), and a mask is parted at 0.3 with boxes scored and grown as PP-OCR
//     does (MaskLevel, BoxScore, Unclip).
//   - The tilt is a median that counts straight lines, and corrects 6° and 10°
//     pages; more than 15° is flagged. BDRC drops straight lines and whatever is
//     more than 5° (Tilt).
//   - A turned page keeps its corners and is filled white; BDRC cuts them off and
//     fills black (Grow, TurnFill).
//   - A page is bent when its lines are after their slope is taken out, and is
//     flattened by up to five lines; BDRC takes slope for bend, and one line (Bend).
//   - Columns are read one after the other, and only fragments beside each other
//     are joined; BDRC reads across columns (Layout).
//   - Lines are cut as rectangles 48 px high with a margin; BDRC spreads their
//     contours and blackens the rest (Spread, Crop, Around).
//   - A recogniser's canvas is white, and the line begins at its left; so it is
//     in bdrc-prod, while bdrc-app centres it on black (PadFill, PadLeft).
//
// Some of BDRC's ways are defects that no profile brings back: a page turned
// clockwise that stays crooked, a tilt beyond the limit that is 0 without a word
// (it is 0 with a flag), a k factor carried from one line to the next, rows and
// columns squeezed out of crops, lines lost when two have one centre, an order
// that hangs on the way contours are scanned, holes in the mask taken for lines,
// a pivot half a px off the page's centre, and a sort threshold from the mask
// (half the median height in both).
func Reeve() Profile {
	return Profile{
		Name:      "reeve",
		Frame:     Frame{Rule: FrameSide, Side: 960},
		MaskLevel: 0.3,
		BoxScore:  0.5,
		Unclip:    1.6,
		Keep:      Keep{Pixels: 10, Height: 3},
		Tilt:      TiltRule{Estimator: Median, Min: 0.3, Max: 15, Elongation: 3},
		Grow:      true,
		TurnFill:  255,
		Bend:      BendRule{Share: 0.25, Lines: 5, Level: true},
		Layout:    Layout{Columns: true, Gutter: 1, Side: 6, Break: 3, Merge: MergeOverlap, Gap: 3},
		Crop:      LineCrop{Height: 48, MaxWidth: 4096, Pad: 0.25, Fill: 255},
		Around:    SpreadRule{K: 1.7, Tolerance: 3, Fill: 255},
		PadFill:   255,
		PadLeft:   true, LineFilter: Area,
	}
}

// BDRCApp is the profile of BDRC's desktop application, with what its dialogue
// sets. Its k factor begins at 1.7 when it is used as a library, and the batch
// command has a tolerance of 4.
func BDRCApp() Profile {
	return Profile{
		Name:      "bdrc-app",
		Frame:     Frame{Rule: FrameApp, MaxWidth: 4096, MaxHeight: 2048, Tile: 512},
		Binarize:  Binarize{Block: 51, C: 13, PerTile: true},
		MaskLevel: 0.9,
		Keep:      Keep{TiltArea: 0.001, Pixels: 10, Width: 0.01, Height: 11},
		Tilt:      TiltRule{Estimator: Majority, Max: 5},
		Bend:      BendRule{Share: 0.25, Lines: 1, Alpha: 0.5},
		Layout:    Layout{Merge: MergeMean},
		Spread:    true,
		Crop:      LineCrop{Height: 48, MaxWidth: 4096},
		Around:    SpreadRule{K: 2.5, Tolerance: 3},
		// The prepended squares are white, the canvas around is black.
		PadSquares: true, LineFilter: Bilinear,
	}
}

// BDRCProd is the profile of BDRC's production jobs, ldv1 and ocrv1.
func BDRCProd() Profile {
	return Profile{
		Name:      "bdrc-prod",
		Frame:     Frame{Rule: FrameProd, MaxWidth: 4096, MaxHeight: 2048, Tile: 512},
		Binarize:  Binarize{Block: 31, C: 15, Linear: true},
		MaskLevel: 0.85,
		Keep:      Keep{TiltArea: 0.001, Area: 0.001, Width: 0.01, Height: 10},
		Tilt:      TiltRule{Estimator: Trimmed, Min: 0.3, Max: 5},
		Bend:      BendRule{Lines: 1, Alpha: 0.5},
		Layout:    Layout{Merge: MergeFirst},
		Spread:    true,
		Crop:      LineCrop{Height: 48, MaxWidth: 4096, Fill: 255},
		Around:    SpreadRule{K: 1.7, Tolerance: 3},
		PadFill:   255, PadSquares: true, PadLeft: true, LineFilter: Area,
	}
}

// ProfileNamed is the profile of a name.
func ProfileNamed(name string) (Profile, error) {
	for _, p := range []Profile{Reeve(), BDRCApp(), BDRCProd()} {
		if p.Name == name {
			return p, nil
		}
	}
	return Profile{}, fault.Permanentf("profile %q: use reeve, bdrc-app or bdrc-prod", name)
}
