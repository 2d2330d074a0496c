package raster

import (
	"encoding/binary"
	"errors"
	"math"
)

// inspectPNG reads the chunks up to the first with pixels.
func inspectPNG(b []byte) (header, error) {
	h := header{Info: Info{Orientation: 1}}
	for at := 8; ; {
		if at+12 > len(b) {
			return h, errors.New("is cut short")
		}
		size, name := int(binary.BigEndian.Uint32(b[at:])), string(b[at+4:at+8])
		if size > len(b)-at-12 {
			if name == "IDAT" && h.Width > 0 {
				return h, nil // the decoder will find out
			}
			return h, errors.New("is cut short")
		}
		body := b[at+8 : at+8+size]
		switch {
		case h.Width == 0 && (name != "IHDR" || size != 13):
			return h, errors.New("is damaged: it does not begin with a header")
		case name == "IHDR":
			if h.Width != 0 {
				return h, errors.New("is damaged: it has two headers")
			}
			w, v := binary.BigEndian.Uint32(body), binary.BigEndian.Uint32(body[4:])
			h.Width, h.Height = int(min(w, math.MaxInt32)), int(min(v, math.MaxInt32))
			if h.Width == 0 {
				return h, errors.New("is 0 pixels wide")
			}
			depth, kind := body[8], body[9]
			h.Bilevel = depth == 1 && kind == 0
			h.stored = pngBytes(depth, kind)
			if body[12] != 0 { // interlaced: the passes are put together from copies
				h.stored *= 1.5
			}
		case name == "pHYs" && size == 9 && body[8] == 1: // pixels per metre
			h.DPIX = inches(binary.BigEndian.Uint32(body))
			h.DPIY = inches(binary.BigEndian.Uint32(body[4:]))
		case name == "tRNS" && h.stored < 4: // grey or a palette becomes colour with alpha
			h.stored = 4
		case name == "IDAT", name == "IEND":
			return h, nil
		}
		at += 12 + size
	}
}

// pngBytes is how many bytes the standard library keeps for a pixel of a depth
// and a colour type, without transparency.
func pngBytes(depth, kind byte) float64 {
	const grey, palette = 0, 3
	each := 4.0
	if kind == grey || kind == palette {
		each = 1
	}
	if depth == 16 {
		each *= 2
	}
	return each
}

// inches turns pixels per metre into pixels per inch, to a hundredth: a metre
// has no whole number of the usual ones.
func inches(perMetre uint32) float64 {
	return math.Round(float64(perMetre)*2.54) / 100
}
