package sample

import (
	"image"
	"image/color"
	"image/draw"

	"golang.org/x/image/font"
	"golang.org/x/image/font/gofont/goregular"
	"golang.org/x/image/font/opentype"
	"golang.org/x/image/math/fixed"
)

const (
	scanDPI  = 150
	scanSkew = 0.006 // pixels down per pixel to the right
)

// scanned is a page as a copier sees it: the lines set in ink on slightly
// grey paper, a little askew, with dust.
func scanned(lines ...string) (sheet, error) {
	parsed, err := opentype.Parse(goregular.TTF)
	if err != nil {
		return sheet{}, err
	}
	face, err := opentype.NewFace(parsed, &opentype.FaceOptions{Size: fontSize, DPI: scanDPI, Hinting: font.HintingFull})
	if err != nil {
		return sheet{}, err
	}
	s := letter()
	px := func(points float64) int { return int(points * scanDPI / 72) }
	s.scan = image.NewGray(image.Rect(0, 0, px(s.width), px(s.height)))
	draw.Draw(s.scan, s.scan.Bounds(), image.NewUniform(color.Gray{Y: 246}), image.Point{}, draw.Src)

	pen := font.Drawer{Dst: s.scan, Src: image.NewUniform(color.Gray{Y: 30}), Face: face}
	for n, line := range lines {
		top := px(margin + leading*float64(n+1))
		pen.Dot.X = fixed.I(px(margin))
		for _, r := range line {
			pen.Dot.Y = fixed.I(top + int(scanSkew*float64(pen.Dot.X.Round())))
			pen.DrawString(string(r))
		}
	}
	dust := uint32(len(lines)) + 1
	for range 400 {
		dust = dust*1664525 + 1013904223
		s.scan.Pix[int(dust>>8)%len(s.scan.Pix)] = byte(dust >> 24)
	}
	return s, nil
}
