package vision_test

import (
	"bytes"
	"fmt"
	"image"
	"math"
	"testing"

	"github.com/reeve-pipeline/reeve/pkg/vision"
)

// A page of bands is found tilted by what it is tilted by, with the right sign,
// in one, two and three columns, clean and dirty; corrected, it is straight.
func TestPageTilt_bandsOfKnownTilt(t *testing.T) {
	t.Parallel()
	const w, h = 850, 1100
	columns := [][]image.Rectangle{
		stack(100, 140, 650, 22, 110, 8),
		append(stack(80, 140, 320, 16, 50, 16), stack(450, 140, 320, 16, 50, 16)...),
		append(append(stack(70, 140, 220, 12, 40, 20), stack(320, 140, 220, 12, 40, 20)...), stack(570, 140, 220, 12, 40, 20)...),
	}
	for i, deg := range []float64{-10, -6, -4.5, -3, -1, -0.5, 0.5, 1, 3, 4.5, 6, 10} {
		boxes := columns[i%3]
		t.Run(fmt.Sprint(deg), func(t *testing.T) {
			t.Parallel()
			page := bars(w, h, boxes, deg)
			if i%2 == 0 {
				soil(page, 14, 300, uint64(i))
			}
			got := vision.PageTilt(rects(read(t, page)), rule())
			near(t, "tilt", got.Angle, deg, 0.2)
			if got.Flag != "" || got.Confidence < 0.8 || got.Lines < len(boxes)*3/4 {
				t.Errorf("%+v of %d lines", got, len(boxes))
			}
			turned, err := vision.Rotate(page, -got.Angle, true, 255)
			if err != nil {
				t.Fatal(err)
			}
			rest := vision.PageTilt(rects(read(t, turned)), rule())
			near(t, "what is left", rest.Measured, 0, 0.15)
		})
	}
}

// A straight page, and one within the dead band, is not touched.
func TestPageTilt_straightPageIsUntouched(t *testing.T) {
	t.Parallel()
	for _, deg := range []float64{-0.2, 0, 0.2} {
		page := bars(800, 600, stack(60, 60, 680, 24, 60, 8), deg)
		got := vision.PageTilt(rects(read(t, page)), rule())
		if got.Angle != 0 || got.Flag != "" || got.Lines != 8 {
			t.Errorf("%v°: %+v", deg, got)
		}
		same, err := vision.Rotate(page, -got.Angle, true, 0)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(same.Pix, page.Pix) {
			t.Errorf("%v°: the pixels changed", deg)
		}
	}
}

// One crooked line among straight ones does not turn the page, which is what
// BDRC's rules do that leave straight lines out.
func TestPageTilt_straightLinesCount(t *testing.T) {
	t.Parallel()
	lines := []vision.Rect{{W: 700, H: 20, Angle: 3}}
	for range 9 {
		lines = append(lines, vision.Rect{W: 700, H: 20})
	}
	if got := vision.PageTilt(lines, rule()); got.Angle != 0 || got.Flag != "" {
		t.Errorf("reeve: %+v", got)
	}
	for _, p := range []vision.Profile{vision.BDRCApp(), vision.BDRCProd()} {
		near(t, p.Name, vision.PageTilt(lines, p.Tilt).Angle, 3, 1e-9)
	}
}

// BDRC's rules as they are: the larger side's mean, and a mean by area without
// the outliers.
func TestPageTilt_estimatorsOfBDRC(t *testing.T) {
	t.Parallel()
	lines := []vision.Rect{
		{W: 100, H: 10, Angle: -1},
		{W: 100, H: 10, Angle: -2},
		{W: 200, H: 10, Angle: -1.2},
		{W: 100, H: 10, Angle: 4},
	}
	near(t, "majority", vision.PageTilt(lines, vision.BDRCApp().Tilt).Angle, (-1-2-1.2)/3, 1e-9)
	// The median is −1.1, the deviations 0.1, 0.1, 0.9 and 5.1, their median
	// 0.5: 4° is left out, and −1.2° has twice the area.
	near(t, "trimmed", vision.PageTilt(lines, vision.BDRCProd().Tilt).Angle, (-1-2-1.2*2)/4, 1e-9)
}

// Too much tilt is corrected or flagged, never 0 without a word.
func TestPageTilt_neverSilentlyZero(t *testing.T) {
	t.Parallel()
	for _, p := range []vision.Profile{vision.Reeve(), vision.BDRCApp(), vision.BDRCProd()} {
		for _, deg := range []float64{-30, -20, -10, -6, 6, 10, 20, 30} {
			var lines []vision.Rect
			for i := range 12 {
				lines = append(lines, vision.Rect{W: 600, H: 20, Angle: deg + 0.02*float64(i%3-1)})
			}
			got := vision.PageTilt(lines, p.Tilt)
			switch {
			case math.Abs(deg) <= p.Tilt.Max:
				near(t, p.Name, got.Angle, deg, 0.1)
			case got.Flag != vision.OutOfRange || got.Angle != 0:
				t.Errorf("%s, %v°: %+v", p.Name, deg, got)
			default:
				near(t, p.Name+" measured", got.Measured, deg, 0.1)
			}
		}
	}
}

// Without lines, or with lines that do not agree, the page is flagged.
func TestPageTilt_flags(t *testing.T) {
	t.Parallel()
	if got := vision.PageTilt(nil, rule()); got.Flag != vision.NoLines || got.Confidence != 0 {
		t.Errorf("no lines: %+v", got)
	}
	dots := []vision.Rect{{W: 5, H: 5, Angle: 44}, {W: math.NaN(), H: 1}, {}}
	if got := vision.PageTilt(dots, rule()); got.Flag != vision.NoLines {
		t.Errorf("dots: %+v", got)
	}
	var fan []vision.Rect
	for deg := -14; deg <= 14; deg++ {
		fan = append(fan, vision.Rect{W: 400, H: 10, Angle: float64(deg)})
	}
	if got := vision.PageTilt(fan, rule()); got.Flag != vision.Uncertain || got.Angle != 0 {
		t.Errorf("a fan: %+v", got)
	}
}

// Letters of an upright page have their neighbours beside them, of a sideways
// one above; what stands on its head looks upright.
func TestLineDirection(t *testing.T) {
	t.Parallel()
	var letters []image.Rectangle
	for y := 60; y < 540; y += 40 {
		for x := 60; x < 740; x += 14 {
			if (x/14+y)%6 != 0 { // words
				letters = append(letters, image.Rect(x, y, x+4+x%6, y+16))
			}
		}
	}
	for _, boxes := range [][]image.Rectangle{letters, stack(60, 60, 680, 20, 40, 12)} {
		for _, deg := range []float64{-8, 0, 8} {
			page := bars(800, 600, boxes, deg)
			for turns := range 4 {
				turned := vision.Turn(page, turns)
				b := turned.Bounds()
				got := vision.LineDirection(vision.Components(turned, vision.Ink(128)), b.Dx(), b.Dy())
				if got.Sideways != (turns%2 == 1) || got.Confidence < 0.6 || got.Components < 10 {
					t.Errorf("%d quarter turns at %v°: %+v", turns, deg, got)
				}
			}
		}
	}
	if got := vision.LineDirection(nil, 100, 100); got != (vision.Orientation{}) {
		t.Errorf("nothing: %+v", got)
	}
}
