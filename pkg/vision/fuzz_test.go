package vision_test

import (
	"encoding/binary"
	"image"
	"math"
	"testing"

	"github.com/reeve-pipeline/reeve/pkg/vision"
)

// Whatever the polygon, nothing panics, hangs or takes much memory.
func FuzzPolygon(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{1, 2, 3, 4, 5, 6, 7, 8})
	f.Add([]byte("\x00\x00\xc0\x7f\x00\x00\x80\x7f\x00\x00\x80\xff\x00\x00\x00\x00\xff\xff\x7f\x7f\xff\xff\x7f\xff"))
	f.Add(binary.LittleEndian.AppendUint64(nil, 1<<63-1))
	f.Fuzz(func(t *testing.T, data []byte) {
		var ps []vision.Point
		var is []image.Point
		for ; len(data) >= 8; data = data[8:] {
			x, y := binary.LittleEndian.Uint32(data), binary.LittleEndian.Uint32(data[4:])
			ps = append(ps, vision.Point{X: float64(math.Float32frombits(x)), Y: float64(math.Float32frombits(y))})
			is = append(is, image.Pt(int(int32(x)), int(int32(y))))
		}
		page := image.NewGray(image.Rect(0, 0, 13, 7))
		for _, p := range [][]vision.Point{ps, vision.Points(is)} {
			r := vision.MinAreaRect(p)
			vision.UnclipPolygon(p, 1.6)
			vision.PolygonArea(p)
			vision.Perimeter(p)
			vision.Fill(page, p, 1)
			vision.MeanIn(page, p)
			vision.PageTilt([]vision.Rect{r, r.Unclip(2)}, vision.Reeve().Tilt)
			if crop, err := vision.Cut(page, nil, r, vision.LineCrop{Height: 8, MaxWidth: 64}); err == nil && crop.Bounds().Dx() > 64 {
				t.Errorf("a crop of %v", crop.Bounds())
			}
			if len(p) > 3 {
				half := len(p) / 2
				s, err := vision.NewSpline(p[:half], p[half:2*half], 0.5)
				if err == nil {
					s.Forward(p[0])
					s.Inverse(p[0])
				}
			}
		}
		if crop, _, err := vision.CutSpread(page, is, vision.SpreadRule{K: 2.5, Tolerance: 4}); err == nil && len(crop.Pix) > 13*7 {
			t.Errorf("a crop of %v", crop.Bounds())
		}
		var boxes []image.Rectangle
		for i := range is {
			boxes = append(boxes, image.Rectangle{is[i], is[(i+1)%len(is)]})
		}
		vision.Lines(boxes, vision.Reeve().Layout)
		if _, err := vision.Flatten([][]image.Point{is}, 13, 7, vision.BDRCProd().Bend); err != nil && len(is) == 0 {
			t.Error(err)
		}
	})
}

// Whatever the image, also of one pixel or none.
func FuzzImage(f *testing.F) {
	f.Add([]byte{}, uint8(0))
	f.Add([]byte{0}, uint8(1))
	f.Add([]byte{255, 0, 255, 0, 0, 0, 0, 255, 255}, uint8(3))
	f.Fuzz(func(t *testing.T, pix []byte, width uint8) {
		w := int(width)
		h := 0
		if w > 0 {
			h = min(len(pix)/w, 200)
		}
		img := &image.Gray{Pix: pix[:w*h], Stride: w, Rect: image.Rect(0, 0, w, h)}
		level := vision.Otsu(img)
		for _, set := range []vision.Values{vision.Mask(), vision.Ink(level), {Lo: 200, Hi: 100}} {
			comps, contours := vision.Components(img, set), vision.Contours(img, set)
			if len(comps) != len(contours) {
				t.Fatalf("%d components, %d contours", len(comps), len(contours))
			}
			vision.LineDirection(comps, w, h)
		}
		for _, filter := range []vision.Filter{vision.Area, vision.Bilinear, vision.Nearest, ""} {
			if got, err := vision.Resize(img, 3, 17, filter); (err == nil) != (w*h > 0) {
				t.Fatalf("%v, %v", got, err)
			}
		}
		_, _ = vision.Rotate(img, float64(level), true, 7)
		_, _ = vision.Sauvola(img, 5, 0.3)
		_, _ = vision.AdaptiveMean(img, 255, 3)
		_, _ = vision.AdaptiveGaussian(img, 31, 3)
		vision.Turn(img, int(width))
		vision.Threshold(img, level)
		vision.Despeckle(&image.Gray{Pix: append([]byte(nil), img.Pix...), Stride: w, Rect: img.Rect}, vision.Ink(level), 3, 255)
	})
}
