package raster_test

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"image"
	"image/color"
	"image/png"
	"slices"
	"testing"
)

// Files are made here bit by bit, for no encoder at hand makes all the kinds
// that scanners do.

// bits collects codes, the highest bit first.
type bits struct {
	b []byte
	n int
}

func (w *bits) put(code uint32, size int) {
	for i := size - 1; i >= 0; i-- {
		if w.n%8 == 0 {
			w.b = append(w.b, 0)
		}
		w.b[w.n/8] |= byte(code>>i&1) << (7 - w.n%8)
		w.n++
	}
}

func (w *bits) code(s string) {
	for _, c := range s {
		w.put(uint32(c-'0'), 1)
	}
}

// flat is a JPEG of blocks of 8 x 8 pixels of one colour each: samples holds
// the components of each block in turn. adobe is the transform of an Adobe
// segment, or -1 for none.
func flat(across, down, components, adobe int, progressive bool, samples []byte, extra ...[]byte) []byte {
	b := []byte{0xff, 0xd8}
	segment := func(marker byte, body ...byte) {
		b = append(b, 0xff, marker)
		b = binary.BigEndian.AppendUint16(b, uint16(len(body)+2))
		b = append(b, body...)
	}
	for _, e := range extra {
		segment(e[0], e[1:]...)
	}
	if adobe >= 0 {
		segment(0xee, append([]byte("Adobe\x00\x64\x00\x00\x00\x00"), byte(adobe))...)
	}
	segment(0xdb, append([]byte{0}, bytes.Repeat([]byte{1}, 64)...)...)
	frame := []byte{8, byte(down * 8 >> 8), byte(down * 8), byte(across * 8 >> 8), byte(across * 8), byte(components)}
	scan := []byte{byte(components)}
	for c := range components {
		frame = append(frame, byte(c+1), 0x11, 0)
		scan = append(scan, byte(c+1), 0)
	}
	marker, last := byte(0xc0), byte(63)
	if progressive {
		marker, last = 0xc2, 0
	}
	segment(marker, frame...)
	// Twelve codes of four bits for the size of a step, one of one bit for the end of a block.
	segment(0xc4, append(append([]byte{0x00, 0, 0, 0, 12}, make([]byte, 12)...), 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)...)
	segment(0xc4, append(append([]byte{0x10, 1}, make([]byte, 15)...), 0)...)
	segment(0xda, append(scan, 0, last, 0)...)

	var w bits
	before := make([]int, components)
	for n, s := range samples {
		level := 8 * (int(s) - 128)
		step := level - before[n%components]
		before[n%components] = level
		size := 0
		for a := max(step, -step); a > 0; a >>= 1 {
			size++
		}
		if step < 0 {
			step += 1<<size - 1
		}
		w.put(uint32(size), 4)
		w.put(uint32(step), size)
		if !progressive {
			w.put(0, 1)
		}
	}
	for w.n%8 != 0 {
		w.put(1, 1)
	}
	b = append(b, bytes.ReplaceAll(w.b, []byte{0xff}, []byte{0xff, 0})...)
	return append(b, 0xff, 0xd9)
}

// A tag of a TIFF; of no more than two values, for simplicity.
type tag struct {
	id, kind uint16 // 3 is short, 4 long
	values   []uint32
}

func short(id uint16, v ...uint32) tag { return tag{id, 3, v} }

// tiffOf is a TIFF of one directory per list of tags, with pieces as its
// strips or tiles (named by offsets and counts).
func tiffOf(order binary.AppendByteOrder, offsets, counts uint16, pieces [][]byte, pages ...[]tag) []byte {
	b := []byte("II*\x00")
	if order.String() == binary.BigEndian.String() {
		b = []byte("MM\x00*")
	}
	b = order.AppendUint32(b, 0)
	at, sizes := tag{id: offsets, kind: 4}, tag{id: counts, kind: 4}
	for _, p := range pieces {
		at.values = append(at.values, uint32(len(b)))
		sizes.values = append(sizes.values, uint32(len(p)))
		b = append(b, p...)
	}
	link := 4
	put := func(at int, v uint32) { copy(b[at:], order.AppendUint32(nil, v)) }
	for _, tags := range pages {
		tags = append(slices.Clone(tags), at, sizes)
		slices.SortFunc(tags, func(a, b tag) int { return int(a.id) - int(b.id) })
		where := make([]int, len(tags))
		for n, t := range tags {
			size := 2
			if t.kind != 3 {
				size = 4
			}
			if len(t.values)*size <= 4 {
				continue
			}
			where[n] = len(b)
			for _, v := range t.values {
				if size == 2 {
					b = order.AppendUint16(b, uint16(v))
				} else {
					b = order.AppendUint32(b, v)
				}
			}
		}
		put(link, uint32(len(b)))
		b = order.AppendUint16(b, uint16(len(tags)))
		for n, t := range tags {
			b = order.AppendUint16(b, t.id)
			b = order.AppendUint16(b, t.kind)
			count := len(t.values)
			if t.kind == 5 {
				count /= 2
			}
			b = order.AppendUint32(b, uint32(count))
			switch {
			case where[n] > 0:
				b = order.AppendUint32(b, uint32(where[n]))
			case t.kind == 3:
				for _, v := range t.values {
					b = order.AppendUint16(b, uint16(v))
				}
				b = append(b, make([]byte, 4-2*len(t.values))...)
			default:
				b = order.AppendUint32(b, t.values[0])
			}
		}
		link = len(b)
		b = order.AppendUint32(b, 0)
	}
	return b
}

func deflated(raw []byte) []byte {
	var b bytes.Buffer
	z := zlib.NewWriter(&b)
	_, _ = z.Write(raw)
	_ = z.Close()
	return b.Bytes()
}

// packed is PackBits: the first byte as a run of one, the others as they are.
func packed(raw []byte) []byte {
	b := []byte{0, raw[0]}
	for part := range slices.Chunk(raw[1:], 128) {
		b = append(append(b, byte(len(part)-1)), part...)
	}
	return b
}

// lzw starts anew before codes would grow beyond nine bits.
func lzw(raw []byte) []byte {
	var w bits
	for part := range slices.Chunk(raw, 200) {
		w.put(256, 9)
		for _, v := range part {
			w.put(uint32(v), 9)
		}
	}
	w.put(257, 9)
	return w.b
}

// The codes of runs up to 16 pixels (ITU-T T.4, table 2).
var runs = [2][]string{
	{
		"00110101", "000111", "0111", "1000", "1011", "1100", "1110", "1111", "10011", "10100", "00111", "01000",
		"001000", "000011", "110100", "110101", "101010",
	},
	{
		"0000110111", "010", "11", "10", "011", "0011", "0010", "00011", "000101", "000100", "0000100", "0000101",
		"0000111", "00000100", "00000111", "000011000", "0000010111",
	},
}

// changes lists where the colour changes in a row that white precedes, and
// its width.
func changes(row []uint8) []int {
	var at []int
	colour := uint8(255)
	for x, v := range row {
		if v != colour {
			at, colour = append(at, x), v
		}
	}
	return append(at, len(row), len(row), len(row))
}

// group3 is one-dimensional CCITT G3, group4 is CCITT G4, of images up to 16
// pixels wide.
func group3(m *image.Gray) []byte {
	var w bits
	for y := range m.Rect.Dy() {
		w.code("000000000001")
		at, colour := 0, 0
		for _, to := range changes(m.Pix[y*m.Stride:][:m.Stride]) {
			w.code(runs[colour][to-at])
			at, colour = to, 1-colour
			if at == m.Stride {
				break
			}
		}
	}
	return w.b
}

func group4(m *image.Gray) []byte {
	var w bits
	width := m.Stride
	above := changes(bytes.Repeat([]byte{255}, width))
	for y := range m.Rect.Dy() {
		row := changes(m.Pix[y*m.Stride:][:width])
		for a0, colour := -1, 0; a0 < width; {
			a1 := next(row, a0, colour)
			a2 := next(row, a1, 1-colour)
			b1 := next(above, a0, colour)
			b2 := next(above, b1, 1-colour)
			switch d := a1 - b1; {
			case b2 < a1: // pass
				w.code("0001")
				a0 = b2
			case d >= -3 && d <= 3:
				w.code([]string{"0000010", "000010", "010", "1", "011", "000011", "0000011"}[d+3])
				a0, colour = a1, 1-colour
			default:
				w.code("001")
				w.code(runs[colour][a1-max(a0, 0)])
				w.code(runs[1-colour][a2-a1])
				a0 = a2
			}
		}
		above = row
	}
	w.code("000000000001000000000001")
	return w.b
}

// next is the first change to the other colour than the given one, right of x.
func next(row []int, x, colour int) int {
	for n, at := range row {
		if at > x && (n%2 == colour || at == row[len(row)-1]) {
			return at
		}
	}
	return row[len(row)-1]
}

// ink is a picture 16 pixels wide in black and white that needs every code of
// G4: steps of each size, lines that begin and end.
func ink(height int) *image.Gray {
	m := image.NewGray(image.Rect(0, 0, 16, height))
	seed := uint32(7)
	black := uint32(0x0ff0)
	for y := range height {
		seed = seed*1664525 + 1013904223
		switch y % 4 {
		case 0:
			black = seed >> 16
		case 1:
			black <<= 1
		case 2:
			black ^= 1 << (seed >> 28)
		}
		for x := range 16 {
			m.Pix[y*16+x] = 255
			if black>>x&1 != 0 {
				m.Pix[y*16+x] = 0
			}
		}
	}
	return m
}

// oneBit packs a picture in black and white; white is the given bit.
func oneBit(m *image.Gray, white byte) []byte {
	var w bits
	for y := range m.Rect.Dy() {
		for x := range m.Rect.Dx() {
			w.put(uint32(m.Pix[y*m.Stride+x]&1^white^1), 1)
		}
		w.n = len(w.b) * 8
	}
	return w.b
}

func pngOf(t testing.TB, m image.Image) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := png.Encode(&b, m); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// chunk inserts a chunk behind a PNG's header.
func chunk(t testing.TB, file []byte, name string, body []byte) []byte {
	t.Helper()
	const header = 8 + 25
	c := binary.BigEndian.AppendUint32(nil, uint32(len(body)))
	c = append(append(c, name...), body...)
	c = binary.BigEndian.AppendUint32(c, checksum(c[4:]))
	return slices.Concat(file[:header], c, file[header:])
}

// one is a picture of one pixel.
func one(m interface {
	image.Image
	Set(x, y int, c color.Color)
}, c color.Color,
) image.Image {
	m.Set(0, 0, c)
	return m
}
