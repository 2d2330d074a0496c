package vision_test

import (
	"image"
	"testing"

	"github.com/reeve-pipeline/reeve/pkg/vision"
)

// letter is a Letter page at 300 dpi: 43 lines of letters, tilted and dirty.
func letter() *image.Gray {
	const w, h = 2550, 3300
	page := image.NewGray(image.Rect(0, 0, w, h))
	for i := range page.Pix {
		page.Pix[i] = 255
	}
	for y := 200; y < 3100; y += 67 {
		for x := 250; x < 2300; x += 24 {
			if (x/24+y)%7 == 0 {
				continue
			}
			for dy := range 36 {
				for dx := range 16 {
					if dx < 5 || dx >= 11 || dy < 5 || dy > 30 { // a ring
						page.Pix[(y+dy)*w+x+dx] = 0
					}
				}
			}
		}
	}
	soil(page, 8, 500, 1)
	page, err := vision.Rotate(page, 1.3, false, 210)
	if err != nil {
		panic(err)
	}
	return page
}

func BenchmarkPage(b *testing.B) {
	page := letter()
	level := vision.Otsu(page)
	mask := bars(2550, 3300, stack(250, 200, 2000, 40, 67, 43), 1.3)
	contours := vision.Contours(mask, vision.Ink(128))
	lines := rects(contours)
	spline, err := vision.Flatten(vision.Contours(bent(2550, 3300, 6, 40, 0.05), vision.Ink(128)), 2550, 3300, vision.Reeve().Bend)
	if err != nil || spline.Spline == nil {
		b.Fatal(spline, err)
	}
	all := image.Rect(0, 0, 2550, 3300)
	for _, bm := range []struct {
		name string
		f    func() error
	}{
		{"resize 0.4 area", func() error { _, err := vision.Resize(page, 1020, 1320, vision.Area); return err }},
		{"resize 0.4 bilinear", func() error { _, err := vision.Resize(page, 1020, 1320, vision.Bilinear); return err }},
		{"rotate 2.3", func() error { _, err := vision.Rotate(page, 2.3, false, 255); return err }},
		{"turn 90", func() error { vision.Turn(page, 1); return nil }},
		{"dewarp page", func() error { _, err := vision.Remap(page, spline.Spline, all, 255); return err }},
		{"otsu and threshold", func() error { vision.Threshold(page, vision.Otsu(page)); return nil }},
		{"sauvola 25", func() error { _, err := vision.Sauvola(page, 25, 0.3); return err }},
		{"adaptive mean 25", func() error { _, err := vision.AdaptiveMean(page, 25, 10); return err }},
		{"adaptive gaussian 31", func() error { _, err := vision.AdaptiveGaussian(page, 31, 15); return err }},
		{"components of ink", func() error { vision.Components(page, vision.Ink(level)); return nil }},
		{"contours of ink", func() error { vision.Contours(page, vision.Ink(level)); return nil }},
		{"contours of lines", func() error { vision.Contours(mask, vision.Ink(level)); return nil }},
		{"rects and tilt of 43 lines", func() error { vision.PageTilt(rects(contours), rule()); return nil }},
		{"cut 43 lines", func() error {
			for _, l := range lines {
				if _, err := vision.Cut(page, nil, l, vision.Reeve().Crop); err != nil {
					return err
				}
			}
			return nil
		}},
		{"cut 43 lines, bent", func() error {
			for _, l := range lines {
				if _, err := vision.Cut(page, spline.Spline, l, vision.Reeve().Crop); err != nil {
					return err
				}
			}
			return nil
		}},
		{"spread 43 lines", func() error {
			for _, c := range contours {
				if _, _, err := vision.CutSpread(page, c, vision.BDRCProd().Around); err != nil {
					return err
				}
			}
			return nil
		}},
	} {
		b.Run(bm.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := bm.f(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
