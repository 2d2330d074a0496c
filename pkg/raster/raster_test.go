package raster_test

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"image"
	"image/color"
	"image/jpeg"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/reeve-pipeline/reeve/pkg/fault"
	"github.com/reeve-pipeline/reeve/pkg/raster"
)

func checksum(b []byte) uint32 { return crc32.ChecksumIEEE(b) }

// decode also checks what is true of every decoded file.
func decode(t *testing.T, b []byte) (*image.Gray, raster.Info) {
	t.Helper()
	m, info, err := raster.Decode(b, raster.Defaults())
	if err != nil {
		t.Fatal(err)
	}
	if m.Stride != info.Width || m.Rect != image.Rect(0, 0, info.Width, info.Height) || len(m.Pix) != info.Width*info.Height {
		t.Fatalf("bounds %v, stride %d, %d bytes; the file says %d x %d", m.Rect, m.Stride, len(m.Pix), info.Width, info.Height)
	}
	if info.Memory < int64(len(m.Pix)) {
		t.Errorf("estimated at %d bytes, and has %d", info.Memory, len(m.Pix))
	}
	if said, err := raster.Inspect(b, raster.Defaults()); err != nil || said != info {
		t.Errorf("inspected %+v, %v; decoded %+v", said, err, info)
	}
	return m, info
}

// blocks returns the grey of each block of 8 x 8, or fails where one is not even.
func blocks(t *testing.T, m *image.Gray) []byte {
	t.Helper()
	var all []byte
	for y := 0; y < m.Rect.Dy(); y += 8 {
		for x := 0; x < m.Rect.Dx(); x += 8 {
			v := m.GrayAt(x, y).Y
			for n := range 64 {
				if got := m.GrayAt(x+n%8, y+n/8).Y; got != v {
					t.Fatalf("the block at %d, %d has %d and %d", x, y, v, got)
				}
			}
			all = append(all, v)
		}
	}
	return all
}

func TestDecode_jpeg(t *testing.T) {
	t.Parallel()
	const ycbcr, ycck, none = 1, 2, 0
	black, white, red := []byte{0, 0, 0}, []byte{255, 255, 255}, []byte{255, 0, 0}
	// In Adobe's files 255 is no ink; but Y is of the light that the ink takes away.
	paper, key, cyan := []byte{255, 255, 255, 255}, []byte{255, 255, 255, 0}, []byte{0, 255, 255, 255}
	for _, tt := range []struct {
		name       string
		components int
		adobe      int
		colours    [][]byte
		want       []byte
	}{
		{"grey", 1, -1, [][]byte{{0}, {77}, {255}, {128}}, []byte{0, 77, 255, 128}},
		{"YCbCr: grey is Y", 3, -1, [][]byte{{0, 128, 128}, {200, 90, 240}, {255, 128, 128}, {64, 128, 128}}, []byte{0, 200, 255, 64}},
		{"YCbCr by Adobe", 3, ycbcr, [][]byte{{0, 128, 128}, {200, 90, 240}, {255, 128, 128}, {64, 128, 128}}, []byte{0, 200, 255, 64}},
		{"RGB by Adobe", 3, none, [][]byte{black, white, red, {0, 255, 0}}, []byte{0, 255, 76, 150}},
		{"CMYK by Adobe, inverted", 4, none, [][]byte{paper, key, cyan, {255, 255, 255, 100}}, []byte{255, 0, 179, 100}},
		{"YCCK by Adobe", 4, ycck, [][]byte{{255, 128, 128, 255}, {255, 128, 128, 0}, {100, 128, 128, 255}, {0, 128, 128, 255}}, []byte{0, 0, 155, 255}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for _, progressive := range []bool{false, true} {
				m, info := decode(t, flat(2, 2, tt.components, tt.adobe, progressive, slices.Concat(tt.colours...)))
				if got := blocks(t, m); !near(got, tt.want, 1) {
					t.Errorf("progressive %v: %d, want %d", progressive, got, tt.want)
				}
				if info.Format != raster.JPEG || info.Bilevel || info.Orientation != 1 || info.DPIX != 0 {
					t.Errorf("%+v", info)
				}
			}
		})
	}
}

func near(got, want []byte, by int) bool {
	for n := range min(len(got), len(want)) {
		if d := int(got[n]) - int(want[n]); d < -by || d > by {
			return false
		}
	}
	return len(got) == len(want)
}

// A page as the standard library's encoder makes it comes back as it was, up
// to what JPEG does to it.
func TestDecode_jpegOfAPage(t *testing.T) {
	t.Parallel()
	page := image.NewGray(image.Rect(0, 0, 203, 101)) // no multiple of a block
	for n := range page.Pix {
		page.Pix[n] = uint8(100 + 60*(n/203/10%2) + n%203/5)
	}
	var b bytes.Buffer
	if err := jpeg.Encode(&b, page, &jpeg.Options{Quality: 95}); err != nil {
		t.Fatal(err)
	}
	if m, _ := decode(t, b.Bytes()); !near(m.Pix, page.Pix, 16) {
		t.Error("the page is not what it was")
	}
}

func TestDecode_png(t *testing.T) {
	t.Parallel()
	dot := image.Rect(0, 0, 1, 1)
	for _, tt := range []struct {
		name string
		m    image.Image
		want uint8
	}{
		{"grey", one(image.NewGray(dot), color.Gray{Y: 77}), 77},
		{"16 bits of grey", one(image.NewGray16(dot), color.Gray16{Y: 0x4dff}), 0x4d},
		{"red", one(image.NewRGBA(dot), color.RGBA{255, 0, 0, 255}), 76},
		{"green", one(image.NewRGBA(dot), color.RGBA{0, 255, 0, 255}), 150},
		{"blue", one(image.NewRGBA(dot), color.RGBA{0, 0, 255, 255}), 29},
		{"black that is not there", one(image.NewNRGBA(dot), color.NRGBA{0, 0, 0, 0}), 255},
		{"black, three fifths", one(image.NewNRGBA(dot), color.NRGBA{0, 0, 0, 153}), 102},
		{"grey, three fifths, 16 bits", one(image.NewNRGBA64(dot), color.NRGBA64{0x8080, 0x8080, 0x8080, 0x9999}), 179},
		{"a palette", one(image.NewPaletted(dot, color.Palette{color.White, color.RGBA{255, 0, 0, 255}}), color.RGBA{255, 0, 0, 255}), 76},
		{"a palette with a gap", one(image.NewPaletted(dot, color.Palette{color.Black, color.Transparent}), color.Transparent), 255},
	} {
		m, info := decode(t, pngOf(t, tt.m))
		if m.Pix[0] != tt.want || info.Format != raster.PNG {
			t.Errorf("%s: %d, want %d (%+v)", tt.name, m.Pix[0], tt.want, info)
		}
	}
}

func TestDecode_tiff(t *testing.T) {
	t.Parallel()
	const whiteIsZero, blackIsZero, rgb = 0, 1, 2
	const none, g3, g4, lzwCode, deflate, packBits = 1, 3, 4, 5, 8, 32773
	page := ink(40)
	strips := func(rows int, pack func(*image.Gray) []byte) (all [][]byte) {
		for y := 0; y < 40; y += rows {
			part := image.NewGray(image.Rect(0, 0, 16, min(rows, 40-y)))
			copy(part.Pix, page.Pix[y*16:])
			all = append(all, pack(part))
		}
		return all
	}
	raw := func(white byte) func(*image.Gray) []byte {
		return func(m *image.Gray) []byte { return oneBit(m, white) }
	}
	grey := func(pack func([]byte) []byte) func(*image.Gray) []byte {
		return func(m *image.Gray) []byte { return pack(m.Pix) }
	}
	asIs := func(b []byte) []byte { return b }
	for _, tt := range []struct {
		name                       string
		bits, compression, meaning uint32
		rows                       int
		pack                       func(*image.Gray) []byte
	}{
		{"bilevel, white is 0", 1, none, whiteIsZero, 40, raw(0)},
		{"bilevel, black is 0, strips", 1, none, blackIsZero, 8, raw(1)},
		{"bilevel, PackBits", 1, packBits, whiteIsZero, 40, func(m *image.Gray) []byte { return packed(oneBit(m, 0)) }},
		{"G3, white is 0", 1, g3, whiteIsZero, 40, group3},
		{"G3, black is 0, strips", 1, g3, blackIsZero, 16, group3},
		{"G4, white is 0", 1, g4, whiteIsZero, 40, group4},
		{"G4, black is 0", 1, g4, blackIsZero, 40, group4},
		{"G4, strips, the last one shorter", 1, g4, whiteIsZero, 9, group4},
		{"G4, a row a strip", 1, g4, blackIsZero, 1, group4},
		{"grey", 8, none, blackIsZero, 40, grey(asIs)},
		{"grey, LZW", 8, lzwCode, blackIsZero, 40, grey(lzw)},
		{"grey, LZW, strips", 8, lzwCode, blackIsZero, 7, grey(lzw)},
		{"grey, Deflate", 8, deflate, blackIsZero, 40, grey(deflated)},
		{"grey, Deflate, its old number", 8, 32946, blackIsZero, 11, grey(deflated)},
		{"grey, PackBits", 8, packBits, blackIsZero, 40, grey(packed)},
		{"grey, white is 0", 8, none, whiteIsZero, 40, grey(func(b []byte) []byte {
			b = slices.Clone(b)
			for n := range b {
				b[n] = 255 - b[n]
			}
			return b
		})},
		{"RGB", 8, deflate, rgb, 40, grey(func(b []byte) (out []byte) {
			for _, v := range b {
				out = append(out, v, v, v)
			}
			return deflated(out)
		})},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tags := []tag{
				short(256, 16), short(257, 40), short(258, tt.bits), short(259, tt.compression), short(262, tt.meaning),
				short(278, uint32(tt.rows)),
				{282, 5, []uint32{6000, 10}},
				{283, 5, []uint32{300, 1}},
				short(296, 2),
			}
			if tt.meaning == rgb {
				tags[2] = short(258, 8, 8, 8)
				tags = append(tags, short(277, 3))
			}
			for _, order := range []binary.AppendByteOrder{binary.LittleEndian, binary.BigEndian} {
				m, info := decode(t, tiffOf(order, 273, 279, strips(tt.rows, tt.pack), tags))
				if diff := cmp.Diff(page.Pix, m.Pix); diff != "" {
					t.Fatalf("%v (-want +got):\n%s", order, diff)
				}
				if info.Format != raster.TIFF || info.Bilevel != (tt.bits == 1) || info.DPIX != 600 || info.DPIY != 300 {
					t.Errorf("%v: %+v", order, info)
				}
			}
		})
	}
	t.Run("tiles", func(t *testing.T) {
		t.Parallel()
		var tiles [][]byte
		for y := 0; y < 48; y += 16 {
			tile := bytes.Repeat([]byte{9}, 256) // what is past the edge is not to be seen
			copy(tile, page.Pix[y*16:min(640, (y+16)*16)])
			tiles = append(tiles, deflated(tile))
		}
		m, _ := decode(t, tiffOf(binary.LittleEndian, 324, 325, tiles, []tag{
			short(256, 16), short(257, 40), short(258, 8), short(259, deflate), short(262, blackIsZero), short(322, 16), short(323, 16),
		}))
		if diff := cmp.Diff(page.Pix, m.Pix); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
	t.Run("a thumbnail is no page", func(t *testing.T) {
		t.Parallel()
		tags := []tag{short(256, 16), short(257, 40), short(258, 8), short(259, none), short(262, blackIsZero)}
		m, _ := decode(t, tiffOf(binary.LittleEndian, 273, 279, [][]byte{page.Pix}, tags, append(tags, short(254, 1))))
		if !bytes.Equal(m.Pix, page.Pix) {
			t.Error("the page is not what it was")
		}
	})
}

// The corners of a page stored in each of the eight ways come out where they belong.
func TestDecode_orientation(t *testing.T) {
	t.Parallel()
	// As shown: 1 2 over 3 4 over 5 6.
	for orientation, stored := range map[uint32]struct {
		width uint32
		pix   string
	}{
		1: {2, "123456"}, 2: {2, "214365"}, 3: {2, "654321"}, 4: {2, "563412"},
		5: {3, "135246"}, 6: {3, "246135"}, 7: {3, "642531"}, 8: {3, "531642"},
		9: {2, "123456"}, 0: {2, "123456"},
	} {
		height := 6 / stored.width
		m, info := decode(t, tiffOf(binary.BigEndian, 273, 279, [][]byte{[]byte(stored.pix)}, []tag{
			short(256, stored.width), short(257, height), short(258, 8), short(259, 1), short(262, 1), short(274, orientation),
			{282, 5, []uint32{100 * stored.width, 1}},
			{283, 5, []uint32{100 * height, 1}},
		}))
		if string(m.Pix) != "123456" || info.Width != 2 || info.DPIX != 200 || info.DPIY != 300 {
			t.Errorf("TIFF, orientation %d: %s, %+v", orientation, m.Pix, info)
		}

		var samples []byte
		for _, c := range stored.pix {
			samples = append(samples, byte(c-'0')*40)
		}
		exif := tiffOf(binary.LittleEndian, 273, 279, [][]byte{{0}}, []tag{short(274, orientation)})
		m, info = decode(t, flat(int(stored.width), int(height), 1, -1, false, samples, append([]byte("\xe1Exif\x00\x00"), exif...)))
		if got := blocks(t, m); !bytes.Equal(got, []byte{40, 80, 120, 160, 200, 240}) || info.Width != 16 {
			t.Errorf("JPEG, orientation %d: %d, %+v", orientation, got, info)
		}
	}
}

func TestInspect_resolution(t *testing.T) {
	t.Parallel()
	jfif := func(unit, x, y byte) []byte { return []byte{0xe0, 'J', 'F', 'I', 'F', 0, 1, 2, unit, 0, x, 0, y, 0, 0} }
	exif := tiffOf(binary.BigEndian, 273, 279, [][]byte{{0}}, []tag{{282, 5, []uint32{3000, 10}}, {283, 5, []uint32{150, 1}}, short(296, 2)})
	grey := []byte{1, 2, 3, 4}
	white := pngOf(t, image.NewGray(image.Rect(0, 0, 1, 1)))
	metre := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, 11811), 5906)
	for _, tt := range []struct {
		name string
		b    []byte
		x, y float64
	}{
		{"JFIF, inches", flat(2, 2, 1, -1, false, grey, jfif(1, 200, 100)), 200, 100},
		{"JFIF, centimetres", flat(2, 2, 1, -1, false, grey, jfif(2, 100, 50)), 254, 127},
		{"JFIF, only a ratio", flat(2, 2, 1, -1, false, grey, jfif(0, 1, 1)), 0, 0},
		{"EXIF", flat(2, 2, 1, -1, false, grey, append([]byte("\xe1Exif\x00\x00"), exif...)), 300, 150},
		{"EXIF that is rubbish", flat(2, 2, 1, -1, false, grey, []byte("\xe1Exif\x00\x00II*\x00\xff\xff\xff\xff")), 0, 0},
		{"PNG, metres", chunk(t, white, "pHYs", append(metre, 1)), 300, 150.01},
		{"PNG, only a ratio", chunk(t, white, "pHYs", append(metre, 0)), 0, 0},
	} {
		if _, info := decode(t, tt.b); info.DPIX != tt.x || info.DPIY != tt.y {
			t.Errorf("%s: %g, %g; want %g, %g", tt.name, info.DPIX, info.DPIY, tt.x, tt.y)
		}
	}
}

// Every file that is refused says what it is and what the limit was, for good,
// and costs nothing.
func TestDecode_refused(t *testing.T) {
	t.Parallel()
	good := flat(8, 8, 1, -1, false, bytes.Repeat([]byte{9, 99, 199, 250}, 16))
	tall := bytes.Clone(good)
	frame := bytes.Index(tall, []byte{0xff, 0xc0})
	copy(tall[frame+5:], []byte{0xea, 0x60, 0xea, 0x60}) // 60,000 x 60,000
	wide := bytes.Clone(good)
	copy(wide[frame+5:], []byte{0x3a, 0x98, 0x3a, 0x98}) // 15,000 x 15,000
	deep := flat(2, 2, 4, 2, true, make([]byte, 16))
	copy(deep[bytes.Index(deep, []byte{0xff, 0xc2})+5:], []byte{0x27, 0x0f, 0x27, 0x0f}) // 9,999 x 9,999
	scans := bytes.Index(good, []byte{0xff, 0xda})
	passes := slices.Concat(good[:scans], bytes.Repeat(good[scans:len(good)-2], 201), []byte{0xff, 0xd9})

	drawing := pngOf(t, ink(40))
	bomb := bytes.Clone(drawing)
	copy(bomb[16:], []byte{0, 1, 0, 0, 0, 1, 0, 0})
	copy(bomb[29:], binary.BigEndian.AppendUint32(nil, checksum(bomb[12:29])))

	tags := func(more ...tag) []tag {
		all := []tag{short(256, 16), short(257, 40), short(258, 8), short(259, 1), short(262, 1)}
		for _, m := range more {
			all = slices.DeleteFunc(all, func(t tag) bool { return t.id == m.id })
		}
		return append(all, more...)
	}
	tiff := func(pages ...[]tag) []byte {
		return tiffOf(binary.LittleEndian, 273, 279, [][]byte{ink(40).Pix}, pages...)
	}
	for _, tt := range []struct {
		name string
		b    []byte
		says string
	}{
		{"nothing", nil, "is empty (0 bytes)"},
		{"a PDF", []byte("%PDF-1.7\n"), "is not a page image but looks like application/pdf; page images are JPEG, PNG or TIFF"},
		{"a web page", []byte("<html><body>not found"), "looks like text/html"},
		{"a GIF", []byte("GIF89a\x01\x00\x01\x00"), "looks like image/gif"},
		{"a WebP", []byte("RIFF\x00\x00\x00\x00WEBPVP8 "), "looks like image/webp"},
		{"a JPEG 2000", []byte("\x00\x00\x00\x0cjP  \r\n\x87\n"), "is a JPEG 2000, which is not read"},
		{"a HEIC", []byte("\x00\x00\x00\x18ftypheic"), "perhaps HEIC or AVIF"},
		{"a BigTIFF", []byte("II+\x00\x08\x00\x00\x00"), "is a BigTIFF"},
		{"random", []byte{1, 2, 3}, "is not a page image"},
		{"JPEG: only its beginning", good[:3], "JPEG: is cut short"},
		{"JPEG: headers alone", good[:scans], "is cut short"},
		{"JPEG: half of it", good[:len(good)-20], "JPEG of 64 x 64 pixels: is cut short or damaged"},
		{"JPEG: half of it, closed", append(bytes.Clone(good[:len(good)-20]), 0xff, 0xd9), "JPEG of 64 x 64 pixels: is cut short or damaged"},
		{"JPEG: nothing in it", []byte{0xff, 0xd8, 0xff, 0xd9}, "ends without an image"},
		{"JPEG: 60,000 px", tall, "JPEG: is 60000 x 60000 pixels, sides up to 59999 are read"},
		{"JPEG: too many pixels", wide, "JPEG: is 15000 x 15000 pixels (225 million), at most 100 million are read"},
		{"JPEG: progressive and huge", deep, "would take 2383 MiB to decode, at most 1024 MiB are given"},
		{"JPEG: more passes than sense", passes, "has more than 200 scans"},
		{"JPEG: arithmetic", replaced(good, "\xff\xc0", "\xff\xc9"), "is of a kind that is not read"},
		{"PNG: a bomb", bomb, "PNG: is 65536 x 65536 pixels, sides up to 59999 are read"},
		{"PNG: cut short", drawing[:len(drawing)-20], "PNG of 16 x 40 pixels: is cut short"},
		{"PNG: only its beginning", drawing[:20], "PNG: is cut short"},
		{"PNG: damaged", replaced(drawing, "IDAT", "IDAt"), "PNG of 16 x 40 pixels: is cut short or damaged"},
		{"TIFF: three pages", tiff(tags(), tags(), tags()), "TIFF: has 3 pages, and a page image must have one; split it"},
		{"TIFF: a bomb", tiff(tags(tag{256, 4, []uint32{1 << 31}})), "TIFF: is 2147483647 x 40 pixels"},
		{"TIFF: nothing in it", tiff(tags(short(256, 0))), "there is nothing in it"},
		{"TIFF: cut short", tiff(tags())[:660], "TIFF: is cut short: its directory of pages is missing"},
		{"TIFF: pixels cut short", tiff(tags(short(257, 41), short(259, 8))), "TIFF of 16 x 41 pixels: is cut short or damaged"},
		{"TIFF: JPEG inside", tiff(tags(short(259, 7))), "is compressed by JPEG (compression 7), which is not read within TIFF; save it with LZW"},
		{"TIFF: 2-D G3", tiff(tags(short(258, 1), short(259, 3), tag{292, 4, []uint32{1}})), "two-dimensional CCITT G3"},
		{"TIFF: CMYK", tiff(tags(short(262, 5))), "has colours of kind 5"},
		{"TIFF: four bits", tiff(tags(short(258, 4))), "has 4 bits a sample; 1, 8 and 16 are read"},
		{"TIFF: planes", tiff(tags(short(277, 3), short(284, 2), short(262, 2))), "in a plane of its own"},
		{"TIFF: a million tiles", tiff(tags(short(256, 8000), short(257, 8000), short(322, 8), short(323, 8))), "is cut up into 1000000 pieces, at most 100000"},
		{"TIFF: pages in a circle", circle(tiff(tags(short(254, 1)))), "do not end"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m, info, err := raster.Decode(tt.b, raster.Defaults())
			if err == nil {
				t.Fatalf("decoded as %+v", info)
			}
			if m != nil || info != (raster.Info{}) || fault.Of(err) != fault.ClassPermanent || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%s error %q, want a permanent one with %q", fault.Of(err), err, tt.says)
			}
		})
	}
}

// replaced is b with the first old replaced.
func replaced(b []byte, old, with string) []byte {
	return bytes.Replace(b, []byte(old), []byte(with), 1)
}

// circle has the only directory of a TIFF come after itself.
func circle(b []byte) []byte { return append(b[:len(b)-4], b[4:8]...) }

func TestLimits(t *testing.T) {
	t.Parallel()
	file := flat(4, 2, 1, -1, false, make([]byte, 8))
	exact := raster.Limits{MaxBytes: int64(len(file)), MaxPixels: 32 * 16, MaxSide: 32, MaxMemory: 2 * 32 * 16}
	if _, _, err := raster.Decode(file, exact); err != nil {
		t.Error("at the limits:", err)
	}
	for name, l := range map[string]raster.Limits{
		"at most":       {MaxBytes: exact.MaxBytes - 1, MaxPixels: exact.MaxPixels, MaxSide: 32, MaxMemory: exact.MaxMemory},
		"at most 0 mil": {MaxBytes: exact.MaxBytes, MaxPixels: exact.MaxPixels - 1, MaxSide: 32, MaxMemory: exact.MaxMemory},
		"sides up to":   {MaxBytes: exact.MaxBytes, MaxPixels: exact.MaxPixels, MaxSide: 31, MaxMemory: exact.MaxMemory},
		"to decode":     {MaxBytes: exact.MaxBytes, MaxPixels: exact.MaxPixels, MaxSide: 32, MaxMemory: exact.MaxMemory - 1},
	} {
		if _, err := raster.Inspect(file, l); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("error %v, want one with %q", err, name)
		}
	}
}

func TestRead(t *testing.T) {
	t.Parallel()
	l := raster.Limits{MaxBytes: 4}
	if b, err := raster.Read(strings.NewReader("four"), l); err != nil || string(b) != "four" {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := raster.Read(strings.NewReader("fives"), l); fault.Of(err) != fault.ClassPermanent || !strings.Contains(err.Error(), "4 bytes") {
		t.Errorf("error %v, want a permanent one that names 4 bytes", err)
	}
}

func FuzzDecode(f *testing.F) {
	page := ink(40)
	tags := []tag{short(256, 16), short(257, 40), short(258, 1), short(259, 4), short(262, 0)}
	f.Add(flat(2, 2, 1, -1, false, []byte{1, 2, 3, 4}))
	f.Add(flat(2, 2, 4, 2, true, make([]byte, 16)))
	f.Add(flat(1, 1, 3, 0, false, []byte{1, 2, 3}, []byte("\xe1Exif\x00\x00MM\x00*\x00\x00\x00\x08\x00\x00")))
	f.Add(pngOf(f, page))
	f.Add(pngOf(f, image.NewNRGBA64(image.Rect(0, 0, 3, 3))))
	f.Add(tiffOf(binary.LittleEndian, 273, 279, [][]byte{group4(page)}, tags))
	f.Add(tiffOf(binary.BigEndian, 324, 325, [][]byte{deflated(page.Pix)}, append(tags, short(322, 16), short(323, 48))))
	f.Add(tiffOf(binary.BigEndian, 273, 279, [][]byte{page.Pix}, tags, tags))
	l := raster.Limits{MaxBytes: 1 << 20, MaxPixels: 1 << 20, MaxSide: 1 << 12, MaxMemory: 8 << 20}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, info, err := raster.Decode(b, l)
		if err != nil {
			if fault.Of(err) != fault.ClassPermanent {
				t.Errorf("%q is not permanent", err)
			}
			return
		}
		if m.Stride != info.Width || len(m.Pix) != info.Width*info.Height || info.Memory > l.MaxMemory {
			t.Errorf("%d bytes of pixels, %+v", len(m.Pix), info)
		}
	})
}

// Every file that is cut short or has a byte changed ends with an answer.
func TestDecode_damaged(t *testing.T) {
	t.Parallel()
	start, seed := time.Now(), uint32(1)
	page := ink(40)
	for name, file := range map[string][]byte{
		"JPEG": flat(8, 8, 3, -1, false, bytes.Repeat([]byte{9, 99, 199, 250}, 48)),
		"PNG":  pngOf(t, page),
		"TIFF": tiffOf(binary.LittleEndian, 273, 279, [][]byte{group4(page)}, []tag{
			short(256, 16), short(257, 40), short(258, 1), short(259, 4), short(262, 0),
		}),
	} {
		for n := range len(file) - 5 { // a TIFF may end with the last directory's link
			if _, _, err := raster.Decode(file[:n], raster.Defaults()); err == nil && name != "TIFF" {
				t.Errorf("%s: %d of %d bytes are taken for the whole", name, n, len(file))
			}
		}
		for range 500 {
			b := bytes.Clone(file)
			seed = seed*1664525 + 1013904223
			b[int(seed>>8)%len(b)] = byte(seed)
			_, _, _ = raster.Decode(b, raster.Defaults())
		}
	}
	if took := time.Since(start); took > time.Minute {
		t.Errorf("took %s", took)
	}
}

func BenchmarkDecode(b *testing.B) {
	page := image.NewGray(image.Rect(0, 0, 2550, 3300))
	colour := image.NewRGBA(page.Rect)
	seed := uint32(1)
	for n := range page.Pix {
		x, y := n%2550, n/2550
		seed = seed*1664525 + 1013904223
		v := uint8(240 + seed>>28)
		if y/24%2 == 0 && (x*7+y*3+x*x/37)%19 < 6 {
			v = 30
		}
		page.Pix[n] = v
		copy(colour.Pix[4*n:], []byte{v, v - v/16, v - v/8, 255})
	}
	as := func(m image.Image) []byte {
		var buf bytes.Buffer
		if err := jpeg.Encode(&buf, m, &jpeg.Options{Quality: 85}); err != nil {
			b.Fatal(err)
		}
		return buf.Bytes()
	}
	tags := []tag{short(256, 2550), short(257, 3300), short(258, 8), short(259, 8), short(262, 1)}
	bilevel := []tag{short(256, 16), short(257, 500_000/16), short(258, 1), short(259, 4), short(262, 0)}
	for name, file := range map[string][]byte{
		"JPEG grey":           as(page),
		"JPEG colour":         as(colour),
		"PNG grey":            pngOf(b, page),
		"PNG colour":          pngOf(b, colour),
		"TIFF deflate":        tiffOf(binary.LittleEndian, 273, 279, [][]byte{deflated(page.Pix)}, tags),
		"TIFF G4, half a Mpx": tiffOf(binary.LittleEndian, 273, 279, [][]byte{group4(ink(500_000 / 16))}, bilevel),
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, _, err := raster.Decode(file, raster.Defaults()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
