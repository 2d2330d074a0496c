package sample

import (
	"bytes"
	"compress/zlib"
	"crypto/md5" //nolint:gosec // the PDF standard's own key derivation
	"crypto/rc4" //nolint:gosec // the PDF standard's own cipher
	"encoding/binary"
	"fmt"
	"image"
	"image/jpeg"
	"slices"
	"strings"

	"golang.org/x/text/encoding/charmap"
)

// A sheet is one page to be written. Sizes are in points.
type sheet struct {
	width, height float64
	// lines are set in Helvetica from the top margin down.
	lines []string
	// scan, when set, fills the page.
	scan *image.Gray
	// bitonal stores the scan as 1 bit a pixel, deflated; otherwise it is a JPEG.
	bitonal bool
}

// letter is an empty page of US letter size.
func letter(lines ...string) sheet {
	return sheet{width: 612, height: 792, lines: lines}
}

const (
	margin   = 72
	fontSize = 10.5
	leading  = 13.5
)

// content draws the page.
func (s sheet) content() []byte {
	var b bytes.Buffer
	if s.scan != nil {
		fmt.Fprintf(&b, "q %g 0 0 %g 0 0 cm /Scan Do Q\n", s.width, s.height)
	}
	if len(s.lines) > 0 {
		fmt.Fprintf(&b, "BT /F1 %g Tf %g TL %d %g Td\n", fontSize, leading, margin, s.height-margin)
		for _, line := range s.lines {
			fmt.Fprintf(&b, "%s Tj T*\n", literal(winAnsi(line)))
		}
		b.WriteString("ET\n")
	}
	return b.Bytes()
}

// encode writes a PDF. The page tree and the catalog come last, so that a file
// cut short has no pages. A password, when given, is needed to open it.
func encode(sheets []sheet, password string) []byte {
	w := &writer{}
	w.buf.WriteString("%PDF-1.5\n%\xe2\xe3\xcf\xd3\n")
	id := name(sheets)
	if password != "" {
		w.cipher = newCipher(password, id)
	}
	font := w.object("<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>")
	tree := 2 + w.count(sheets)
	var kids strings.Builder
	for _, s := range sheets {
		resources := fmt.Sprintf("/Font<</F1 %d 0 R>>", font)
		if s.scan != nil {
			resources += fmt.Sprintf("/XObject<</Scan %d 0 R>>", w.scan(s))
		}
		content := w.stream("/Filter/FlateDecode", deflate(s.content()))
		page := w.object(fmt.Sprintf("<</Type/Page/Parent %d 0 R/MediaBox[0 0 %g %g]/Resources<<%s>>/Contents %d 0 R>>",
			tree, s.width, s.height, resources, content))
		fmt.Fprintf(&kids, "%d 0 R ", page)
	}
	w.object(fmt.Sprintf("<</Type/Pages/Count %d/Kids[%s]>>", len(sheets), kids.String()))
	catalog := w.object(fmt.Sprintf("<</Type/Catalog/Pages %d 0 R>>", tree))
	return w.close(catalog, id)
}

// name derives a file identifier from what is on the pages.
func name(sheets []sheet) []byte {
	h := md5.New() //nolint:gosec // a name, not a secret
	for _, s := range sheets {
		_, _ = h.Write(s.content())
		if s.scan != nil {
			_, _ = h.Write(s.scan.Pix)
		}
	}
	return h.Sum(nil)
}

// A writer lays out the objects of a PDF, numbered from 1.
type writer struct {
	buf     bytes.Buffer
	offsets []int
	cipher  *cipher
}

// count is how many objects the sheets take before the page tree, besides the font.
func (w *writer) count(sheets []sheet) int {
	n := 0
	for _, s := range sheets {
		n += 2
		if s.scan != nil {
			n++
		}
	}
	return n
}

func (w *writer) object(body string) int {
	w.offsets = append(w.offsets, w.buf.Len())
	fmt.Fprintf(&w.buf, "%d 0 obj\n%s\nendobj\n", len(w.offsets), body)
	return len(w.offsets)
}

func (w *writer) stream(dict string, body []byte) int {
	if w.cipher != nil {
		body = w.cipher.seal(len(w.offsets)+1, body)
	}
	return w.object(fmt.Sprintf("<<%s/Length %d>>\nstream\n%s\nendstream", dict, len(body), body))
}

func (w *writer) scan(s sheet) int {
	size := s.scan.Bounds().Size()
	dict := fmt.Sprintf("/Type/XObject/Subtype/Image/Width %d/Height %d/ColorSpace/DeviceGray", size.X, size.Y)
	if s.bitonal {
		return w.stream(dict+"/BitsPerComponent 1/Filter/FlateDecode", deflate(bits(s.scan)))
	}
	var b bytes.Buffer
	if err := jpeg.Encode(&b, s.scan, &jpeg.Options{Quality: 55}); err != nil {
		panic(err) // a buffer takes everything
	}
	return w.stream(dict+"/BitsPerComponent 8/Filter/DCTDecode", b.Bytes())
}

func (w *writer) close(catalog int, id []byte) []byte {
	trailer := fmt.Sprintf("/Root %d 0 R/ID[<%x><%x>]", catalog, id, id)
	if w.cipher != nil {
		trailer += fmt.Sprintf("/Encrypt %d 0 R", w.object(w.cipher.dict()))
	}
	start := w.buf.Len()
	fmt.Fprintf(&w.buf, "xref\n0 %d\n0000000000 65535 f \n", len(w.offsets)+1)
	for _, at := range w.offsets {
		fmt.Fprintf(&w.buf, "%010d 00000 n \n", at)
	}
	fmt.Fprintf(&w.buf, "trailer\n<</Size %d%s>>\nstartxref\n%d\n%%%%EOF\n", len(w.offsets)+1, trailer, start)
	return w.buf.Bytes()
}

// winAnsi encodes text for the Helvetica of every reader.
func winAnsi(s string) string {
	encoded, err := charmap.Windows1252.NewEncoder().String(s)
	if err != nil {
		panic(fmt.Sprintf("the sample has a character that WinAnsi lacks: %q", s))
	}
	return encoded
}

func literal(s string) string {
	return "(" + strings.NewReplacer(`\`, `\\`, `(`, `\(`, `)`, `\)`).Replace(s) + ")"
}

func deflate(b []byte) []byte {
	var out bytes.Buffer
	z := zlib.NewWriter(&out)
	_, _ = z.Write(b) // a buffer takes everything
	_ = z.Close()
	return out.Bytes()
}

// bits packs an image into rows of 1 bit a pixel, white being 1.
func bits(g *image.Gray) []byte {
	size := g.Bounds().Size()
	row := (size.X + 7) / 8
	out := make([]byte, row*size.Y)
	for y := range size.Y {
		for x := range size.X {
			if g.Pix[y*g.Stride+x] >= 128 {
				out[y*row+x/8] |= 0x80 >> (x % 8)
			}
		}
	}
	return out
}

// A cipher is the PDF standard security handler, revision 3: RC4 with a key of
// 128 bits. It protects nothing today; scanners still write it.
type cipher struct {
	key, owner, user []byte
}

const permissions uint32 = 0xfffff0c0 // nothing is allowed

// padding completes short passwords, as the standard has it.
const padding = "\x28\xBF\x4E\x5E\x4E\x75\x8A\x41\x64\x00\x4E\x56\xFF\xFA\x01\x08\x2E\x2E\x00\xB6\xD0\x68\x3E\x80\x2F\x0C\xA9\xFE\x64\x53\x69\x7A"

func newCipher(password string, id []byte) *cipher {
	padded := []byte(password + padding)[:32]
	c := &cipher{}
	c.owner = rounds(hash51(padded), padded)
	seed := slices.Concat(padded, c.owner, binary.LittleEndian.AppendUint32(nil, permissions), id)
	c.key = hash51(seed)
	check := md5.Sum(append([]byte(padding), id...)) //nolint:gosec // as the standard has it
	c.user = slices.Concat(rounds(c.key, check[:]), make([]byte, 16))
	return c
}

// hash51 hashes 51 times.
func hash51(b []byte) []byte {
	sum := md5.Sum(b) //nolint:gosec // as the standard has it
	for range 50 {
		sum = md5.Sum(sum[:]) //nolint:gosec // as the standard has it
	}
	return sum[:]
}

// rounds encrypts twenty times, each time with another variation of the key.
func rounds(key, b []byte) []byte {
	out := bytes.Clone(b)
	for n := range byte(20) {
		vary := bytes.Clone(key)
		for i := range vary {
			vary[i] ^= n
		}
		crypt(vary, out)
	}
	return out
}

func crypt(key, b []byte) {
	r, err := rc4.NewCipher(key) //nolint:gosec // as the standard has it
	if err != nil {
		panic(err) // the key is always 16 bytes
	}
	r.XORKeyStream(b, b)
}

// seal encrypts the stream of an object.
func (c *cipher) seal(object int, body []byte) []byte {
	key := append(bytes.Clone(c.key), byte(object), byte(object>>8), byte(object>>16), 0, 0)
	sum := md5.Sum(key) //nolint:gosec // as the standard has it
	out := bytes.Clone(body)
	crypt(sum[:], out)
	return out
}

func (c *cipher) dict() string {
	p := permissions
	return fmt.Sprintf("<</Filter/Standard/V 2/R 3/Length 128/P %d/O<%x>/U<%x>>>", int32(p), c.owner, c.user)
}
