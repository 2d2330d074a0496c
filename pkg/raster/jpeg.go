package raster

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

// maxScans bounds the passes over a progressive JPEG. Each may cost a few
// bytes and still takes a walk over the whole image; encoders make about ten.
const maxScans = 200

// inspectJPEG walks the segments to the frame header, and counts the scans
// behind it (ITU-T T.81, annex B).
func inspectJPEG(b []byte) (header, error) {
	h := header{Info: Info{Orientation: 1}}
	scans := 0
	for at := 2; ; {
		marker, body, next, err := segment(b, at)
		if err != nil {
			if h.Width > 0 {
				return h, nil // what is missing, the decoder misses too
			}
			return h, err
		}
		at = next
		switch {
		case marker >= 0xc0 && marker <= 0xcf && marker != 0xc4 && marker != 0xc8 && marker != 0xcc:
			if h.Width > 0 {
				return h, errors.New("is damaged: it has two frame headers")
			}
			if err := h.frame(marker, body); err != nil {
				return h, err
			}
		case marker == 0xe0 && bytes.HasPrefix(body, []byte("JFIF\x00")) && len(body) >= 12:
			h.density(body[7], binary.BigEndian.Uint16(body[8:]), binary.BigEndian.Uint16(body[10:]))
		case marker == 0xe1 && bytes.HasPrefix(body, []byte("Exif\x00\x00")):
			h.exif(body[6:])
		case marker == 0xda:
			scans++
			if scans > maxScans {
				return h, fmt.Errorf("has more than %d scans, which no page needs", maxScans)
			}
			if h.Width == 0 {
				return h, errors.New("is damaged: pixels come before the frame header")
			}
		case marker == 0xd9:
			if h.Width == 0 {
				return h, errors.New("ends without an image in it")
			}
			return h, nil
		}
	}
}

// segment finds the next marker at or after the given place, past entropy-coded
// data, and the content of its segment.
func segment(b []byte, at int) (marker byte, body []byte, next int, err error) {
	for {
		n := bytes.IndexByte(b[min(at, len(b)):], 0xff)
		if n < 0 || at+n+1 >= len(b) {
			return 0, nil, 0, errors.New("is cut short")
		}
		at += n + 1
		marker = b[at]
		switch {
		case marker == 0xff: // filler
		case marker == 0, marker == 1, marker >= 0xd0 && marker <= 0xd8: // data, restarts
			at++
		case marker == 0xd9:
			return marker, nil, at + 1, nil
		default:
			if at+3 > len(b) {
				return 0, nil, 0, errors.New("is cut short")
			}
			next = at + 1 + int(binary.BigEndian.Uint16(b[at+1:]))
			if next < at+3 || next > len(b) {
				return 0, nil, 0, errors.New("is cut short or damaged: a segment is longer than the file")
			}
			return marker, b[at+3 : next], next, nil
		}
	}
}

// frame reads a frame header.
func (h *header) frame(marker byte, body []byte) error {
	if len(body) < 6 || len(body) < 6+3*int(body[5]) {
		return errors.New("is damaged: its frame header is too short")
	}
	if marker > 0xc2 {
		return fmt.Errorf("is of a kind that is not read (frame type %d: lossless, hierarchical or arithmetic coding); save it as a baseline or progressive JPEG", marker-0xc0)
	}
	if bits := body[0]; bits != 8 {
		return fmt.Errorf("has %d bits a sample, only 8 are read", bits)
	}
	h.Height, h.Width = int(binary.BigEndian.Uint16(body[1:])), int(binary.BigEndian.Uint16(body[3:]))
	if h.Height == 0 {
		return errors.New("does not say how high it is, which is not read; save it anew")
	}
	// Each component has a share of the samples by its sampling factors.
	components, most, all := int(body[5]), 1, 0
	for c := range components {
		factors := int(body[6+3*c+1]>>4) * int(body[6+3*c+1]&15)
		most, all = max(most, factors), all+factors
	}
	h.stored = float64(all) / float64(most)
	if components == 4 {
		h.stored += 4 // put together in an image of its own
	}
	if marker == 0xc2 {
		h.stored += 4 * float64(all) / float64(most) // coefficients
	}
	return nil
}

// density takes a resolution in its unit: 1 is pixels per inch, 2 per centimetre.
func (h *header) density(unit byte, x, y uint16) {
	scale := map[byte]float64{1: 1, 2: 2.54}[unit]
	h.DPIX, h.DPIY = scale*float64(x), scale*float64(y)
}

// exif takes orientation and resolution from an EXIF segment, which is a TIFF
// without pixels. Nobody is refused for what is wrong in there.
func (h *header) exif(b []byte) {
	t, err := openTIFF(b)
	if err != nil {
		return
	}
	d, err := t.directory(t.first)
	if err != nil {
		return
	}
	h.Orientation = int(d.value(tagOrientation, 1))
	if x, y := d.resolution(); h.DPIX == 0 {
		h.DPIX, h.DPIY = x, y
	}
}
