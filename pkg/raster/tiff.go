package raster

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// The tags that are looked at (TIFF 6.0).
const (
	tagSubfile     = 254
	tagWidth       = 256
	tagHeight      = 257
	tagBits        = 258
	tagCompression = 259
	tagPhotometric = 262
	tagOrientation = 274
	tagSamples     = 277
	tagRowsPer     = 278
	tagResX        = 282
	tagResY        = 283
	tagPlanar      = 284
	tagG3Options   = 292
	tagResUnit     = 296
	tagTileWidth   = 322
	tagTileHeight  = 323
)

// Bounds of a TIFF's structure.
const (
	maxDirectories = 10_000
	maxBlocks      = 100_000 // strips or tiles
)

// A tiffFile is a TIFF with its byte order read.
type tiffFile struct {
	b     []byte
	order binary.ByteOrder
	first uint32 // where the first directory is
}

// A directory describes one image of a TIFF.
type directory struct {
	tiffFile
	entries map[uint16][]byte // of 12 bytes
	next    uint32            // where the next one is; 0: this was the last
}

func openTIFF(b []byte) (tiffFile, error) {
	t := tiffFile{b: b}
	if len(b) < 8 {
		return t, errors.New("is cut short")
	}
	switch string(b[:2]) {
	case "II":
		t.order = binary.LittleEndian
	case "MM":
		t.order = binary.BigEndian
	default:
		return t, errors.New("is damaged: it names no byte order")
	}
	t.first = t.order.Uint32(b[4:])
	return t, nil
}

func (t tiffFile) directory(at uint32) (directory, error) {
	d := directory{tiffFile: t, entries: map[uint16][]byte{}}
	from := int64(at)
	if from+2 > int64(len(t.b)) {
		return d, errors.New("is cut short: its directory of pages is missing")
	}
	n := int64(t.order.Uint16(t.b[from:]))
	end := from + 2 + 12*n
	if end > int64(len(t.b)) {
		return d, errors.New("is cut short: its directory of pages is missing")
	}
	for e := from + 2; e < end; e += 12 {
		d.entries[t.order.Uint16(t.b[e:])] = t.b[e : e+12]
	}
	if end+4 <= int64(len(t.b)) {
		d.next = t.order.Uint32(t.b[end:])
	}
	return d, nil
}

// value is the first number of a tag, or the default where it has none.
func (d directory) value(tag uint16, missing uint32) uint32 {
	const bytes, short, long = 1, 3, 4
	e, ok := d.entries[tag]
	if !ok || d.order.Uint32(e[4:]) == 0 {
		return missing
	}
	size, count := map[uint16]int{bytes: 1, short: 2, long: 4}[d.order.Uint16(e[2:])], int64(d.order.Uint32(e[4:]))
	if size == 0 {
		return missing
	}
	raw := e[8:12]
	if count*int64(size) > 4 {
		at := int64(d.order.Uint32(raw))
		if at+4 > int64(len(d.b)) {
			return missing
		}
		raw = d.b[at:]
	}
	switch size {
	case 1:
		return uint32(raw[0])
	case 2:
		return uint32(d.order.Uint16(raw))
	default:
		return d.order.Uint32(raw)
	}
}

// resolution is in pixels per inch, 0 where it is not said.
func (d directory) resolution() (x, y float64) {
	const inch, centimetre = 2, 3
	scale := 0.0
	switch d.value(tagResUnit, inch) {
	case inch:
		scale = 1
	case centimetre:
		scale = 2.54
	}
	return scale * d.rational(tagResX), scale * d.rational(tagResY)
}

func (d directory) rational(tag uint16) float64 {
	const rational = 5
	e, ok := d.entries[tag]
	if !ok || d.order.Uint16(e[2:]) != rational {
		return 0
	}
	at := int64(d.order.Uint32(e[8:]))
	if at+8 > int64(len(d.b)) {
		return 0
	}
	over, under := d.order.Uint32(d.b[at:]), d.order.Uint32(d.b[at+4:])
	if under == 0 {
		return 0
	}
	return float64(over) / float64(under)
}

func inspectTIFF(b []byte) (header, error) {
	t, err := openTIFF(b)
	if err != nil {
		return header{}, err
	}
	d, err := t.directory(t.first)
	if err != nil {
		return header{}, err
	}
	pages, err := t.pages()
	if err != nil {
		return header{}, err
	}
	if pages > 1 {
		return header{}, fmt.Errorf("has %d pages, and a page image must have one; split it into a file a page (tiffsplit does), or make a PDF of it", pages)
	}
	w, v := d.value(tagWidth, 0), d.value(tagHeight, 0)
	h := header{Info: Info{
		Width: int(min(w, math.MaxInt32)), Height: int(min(v, math.MaxInt32)),
		Orientation: int(d.value(tagOrientation, 1)),
	}}
	h.DPIX, h.DPIY = d.resolution()
	bits, samples := d.value(tagBits, 1), d.value(tagSamples, 1)
	h.Bilevel = bits == 1 && samples == 1
	switch {
	case samples > 1:
		h.stored = 4
	default:
		h.stored = 1
	}
	if bits == 16 {
		h.stored *= 2
	}
	if tw, th := d.value(tagTileWidth, 0), d.value(tagTileHeight, 0); tw == 0 && d.value(tagRowsPer, math.MaxUint32) >= v || tw > w/2 && th > v/2 {
		h.stored += float64(bits*samples) / 8 // unpacked in one piece
	}
	return h, d.readable(w, v)
}

// pages counts the directories that are not smaller copies of another page.
func (t tiffFile) pages() (int, error) {
	const reduced = 1
	pages, seen := 0, map[uint32]bool{}
	for at := t.first; at != 0; {
		if seen[at] || len(seen) == maxDirectories {
			return 0, errors.New("is damaged: its directories of pages do not end")
		}
		seen[at] = true
		d, err := t.directory(at)
		if err != nil {
			if pages > 0 {
				break // rubbish behind the last page
			}
			return 0, err
		}
		if d.value(tagSubfile, 0)&reduced == 0 {
			pages++
		}
		at = d.next
	}
	return pages, nil
}

// readable says what is asked for that the decoder does not do, or does wrong.
func (d directory) readable(w, h uint32) error {
	const (
		none, g3, g4, lzw, deflate, oldDeflate, packBits = 1, 3, 4, 5, 8, 32946, 32773
		chunky                                           = 1
		whiteIsZero, blackIsZero, rgb, palette           = 0, 1, 2, 3
		remedy                                           = "; save it with LZW, Deflate or CCITT G4"
	)
	switch c := d.value(tagCompression, none); c {
	case none, g4, lzw, deflate, oldDeflate, packBits:
	case g3:
		if d.value(tagG3Options, 0)&1 != 0 {
			return errors.New("is compressed by two-dimensional CCITT G3, which is not read" + remedy)
		}
	case 2:
		return errors.New("is compressed by CCITT run lengths (compression 2), which is not read" + remedy)
	case 6, 7:
		return fmt.Errorf("is compressed by JPEG (compression %d), which is not read within TIFF%s", c, remedy)
	default:
		return fmt.Errorf("has compression %d, which is not read%s", c, remedy)
	}
	if p := d.value(tagPhotometric, blackIsZero); p > palette {
		return fmt.Errorf("has colours of kind %d (5 is CMYK, 6 YCbCr, 8 Lab), which is not read; save it as grey or RGB", p)
	}
	if bits := d.value(tagBits, 1); bits != 1 && bits != 8 && bits != 16 {
		return fmt.Errorf("has %d bits a sample; 1, 8 and 16 are read", bits)
	}
	if d.value(tagSamples, 1) > 1 && d.value(tagPlanar, chunky) != chunky {
		return errors.New("keeps each colour in a plane of its own, which is not read; save it with the colours together")
	}
	across, down := uint32(1), uint32(1)
	if tw, th := d.value(tagTileWidth, 0), d.value(tagTileHeight, 0); tw > 0 && th > 0 {
		across, down = (w-1)/tw+1, (h-1)/th+1
	} else if rows := d.value(tagRowsPer, 0); rows > 0 && h > 0 {
		down = (h-1)/rows + 1
	}
	if n := uint64(across) * uint64(down); n > maxBlocks {
		return fmt.Errorf("is cut up into %d pieces, at most %d are read", n, maxBlocks)
	}
	return nil
}
