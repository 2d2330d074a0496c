package raster

import (
	"image"
	"image/color"
)

// luma is BT.601's 0.299 R + 0.587 G + 0.114 B in fixed point, rounded; the
// weights add up to 1, so grey stays what it is.
func luma(r, g, b uint8) uint8 {
	return uint8((4899*uint32(r) + 9617*uint32(g) + 1868*uint32(b) + 1<<13) >> 14)
}

// onWhite lays a grey of the given opacity over white.
func onWhite(y, alpha uint8) uint8 {
	return uint8((uint32(y)*uint32(alpha) + 255*(255-uint32(alpha)) + 127) / 255)
}

// grey turns what the decoders return into compact grey pixels. Sixteen bits
// become the higher eight.
func grey(m image.Image) *image.Gray {
	b := m.Bounds()
	g := image.NewGray(image.Rect(0, 0, b.Dx(), b.Dy()))
	row := func(y int) []uint8 { return g.Pix[y*g.Stride:][:g.Stride] }
	each := func(pix []uint8, stride, size int, pixel func(p []uint8) uint8) {
		for y := range b.Dy() {
			from, to := pix[y*stride:][:b.Dx()*size], row(y)
			for x := range to {
				to[x] = pixel(from[x*size:][:size])
			}
		}
	}
	switch m := m.(type) {
	case *image.Gray:
		if m.Stride == b.Dx() {
			return m
		}
		for y := range b.Dy() {
			copy(row(y), m.Pix[y*m.Stride:])
		}
	case *image.YCbCr:
		for y := range b.Dy() {
			copy(row(y), m.Y[y*m.YStride:])
		}
	case *image.Paletted:
		var shade [256]uint8
		for n, c := range m.Palette {
			p := color.NRGBAModel.Convert(c).(color.NRGBA)
			shade[n] = onWhite(luma(p.R, p.G, p.B), p.A)
		}
		each(m.Pix, m.Stride, 1, func(p []uint8) uint8 { return shade[p[0]] })
	case *image.Gray16:
		each(m.Pix, m.Stride, 2, func(p []uint8) uint8 { return p[0] })
	case *image.NRGBA:
		each(m.Pix, m.Stride, 4, func(p []uint8) uint8 { return onWhite(luma(p[0], p[1], p[2]), p[3]) })
	case *image.NRGBA64:
		each(m.Pix, m.Stride, 8, func(p []uint8) uint8 { return onWhite(luma(p[0], p[2], p[4]), p[6]) })
	case *image.RGBA: // the colours are already weighted with the opacity
		each(m.Pix, m.Stride, 4, func(p []uint8) uint8 { return add(luma(p[0], p[1], p[2]), 255-p[3]) })
	case *image.RGBA64:
		each(m.Pix, m.Stride, 8, func(p []uint8) uint8 { return add(luma(p[0], p[2], p[4]), 255-p[6]) })
	case *image.CMYK:
		each(m.Pix, m.Stride, 4, func(p []uint8) uint8 {
			paper := 255 - uint32(p[3])
			ink := func(c uint8) uint8 { return uint8(((255-uint32(c))*paper + 127) / 255) }
			return luma(ink(p[0]), ink(p[1]), ink(p[2]))
		})
	default:
		for y := range b.Dy() {
			to := row(y)
			for x := range to {
				p := color.NRGBAModel.Convert(m.At(b.Min.X+x, b.Min.Y+y)).(color.NRGBA)
				to[x] = onWhite(luma(p.R, p.G, p.B), p.A)
			}
		}
	}
	return g
}

// add adds without running over, as it may where a file breaks its own rules.
func add(a, b uint8) uint8 { return uint8(min(255, uint32(a)+uint32(b))) }

// turn brings an image stored with the given orientation (EXIF 2.3, tag 274)
// upright.
func turn(g *image.Gray, orientation int) *image.Gray {
	w, h := g.Rect.Dx(), g.Rect.Dy()
	// The stored pixel of 0, 0 as shown, and the steps to take in store for a
	// step to the right and a step down.
	var first, right, down int
	switch orientation {
	case 2: // mirrored
		first, right, down = w-1, -1, w
	case 3: // half a turn
		first, right, down = w*h-1, -1, -w
	case 4: // upside down, mirrored
		first, right, down = w*(h-1), 1, -w
	case 5: // rows are columns
		first, right, down = 0, w, 1
	case 6: // to be turned clockwise
		first, right, down = w*(h-1), -w, 1
	case 7: // rows are columns, from the far corner
		first, right, down = w*h-1, -w, -1
	case 8: // to be turned anticlockwise
		first, right, down = w-1, w, -1
	default:
		return g
	}
	if orientation >= 5 {
		w, h = h, w
	}
	t := image.NewGray(image.Rect(0, 0, w, h))
	for y := range h {
		at := first + y*down
		for x := range w {
			t.Pix[y*w+x] = g.Pix[at]
			at += right
		}
	}
	return t
}
