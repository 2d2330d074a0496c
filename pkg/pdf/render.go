package pdf

import (
	"context"
	"fmt"
	"image"
	"io"
	"math"

	"github.com/klippa-app/go-pdfium/enums"
	"github.com/klippa-app/go-pdfium/requests"
)

// RenderOptions say how pages are drawn. Their zero value draws all pages as
// [RenderDefaults] has it.
type RenderOptions struct {
	// DPI is the resolution, in pixels per inch (72 points).
	DPI float64
	// Pages are the numbers of the pages to be drawn, in the order in which
	// they are wanted; none: all.
	Pages []int
	// MaxPixels is the most that a picture may have. A page that has more at
	// DPI is drawn as large as it may be: a plan's title can still be read
	// where its letters cannot. Below [MinDPI] it is refused with
	// [ErrPageTooLarge].
	MaxPixels int
}

// MinDPI is the least resolution that pages are drawn at; nothing smaller than
// a headline can be read in it.
const MinDPI = 36

// maxDPI is more than anybody can want; it keeps sizes within bounds.
const maxDPI = 2400

// RenderDefaults returns options that suit the recognition of text: 200 dpi,
// at which a letter or A4 page has 4 million pixels, and at most 40 million.
func RenderDefaults() RenderOptions {
	return RenderOptions{DPI: 200, MaxPixels: 40_000_000}
}

// Rendered is a page that was drawn.
type Rendered struct {
	// Number counts from 1.
	Number int
	// Image is the page as it is shown, annotations included, fields of forms
	// not: 0 is black and the paper white; Stride is the width. The receiver
	// may keep it.
	Image *image.Gray
	// DPI is the resolution it was drawn at, below the one asked for where the
	// page is so large.
	DPI float64
	// Err says why the page could not be drawn; then there is no Image. It is
	// an [*Error].
	Err error
}

// Render draws pages of the document at path and hands them to each, in the
// order asked for, as they are drawn. One page is in hand at a time, while the
// child draws the next. Errors are those of [Pool.Read].
func (p *Pool) Render(ctx context.Context, path string, o RenderOptions, each func(Rendered) error) (Info, error) {
	standard := RenderDefaults()
	if o.DPI == 0 {
		o.DPI = standard.DPI
	}
	if o.MaxPixels == 0 {
		o.MaxPixels = standard.MaxPixels
	}
	if !(o.DPI >= MinDPI && o.DPI <= maxDPI) || o.MaxPixels < 1 {
		return Info{}, fmt.Errorf("render: %g dpi of at most %d pixels; there are %d to %d dpi", o.DPI, o.MaxPixels, MinDPI, maxDPI)
	}
	wanted := order{Path: path, Pages: o.Pages, Render: &canvas{DPI: o.DPI, MaxPixels: o.MaxPixels}}
	return p.run(ctx, wanted, func(r report) error { return each(r.Picture.rendered()) })
}

func (p *picture) rendered() Rendered {
	r := Rendered{Number: p.Number, DPI: p.DPI}
	if p.Err != nil {
		r.Err = p.Err
		return r
	}
	r.Image = &image.Gray{Pix: p.pix, Stride: p.Width, Rect: image.Rect(0, 0, p.Width, p.Height)}
	return r
}

// receive reads the pixels behind a picture's frame.
func (p *picture) receive(from io.Reader, c *canvas) error {
	if c == nil || p.Width < 1 || p.Height < 1 || p.Width > c.MaxPixels/p.Height {
		return fmt.Errorf("a picture of %d x %d pixels that nobody asked for", p.Width, p.Height)
	}
	p.pix = make([]byte, p.Width*p.Height)
	_, err := io.ReadFull(from, p.pix)
	return err
}

// fit is the size in pixels of a page in points, and the resolution at which
// it keeps within the limit.
func (c canvas) fit(width, height float64) (w, h int, dpi float64) {
	size := func(points float64) int { return max(1, int(math.Round(points*dpi/72))) }
	dpi = c.DPI
	w, h = size(width), size(height)
	if float64(w)*float64(h) > float64(c.MaxPixels) {
		dpi = math.Floor(72 * math.Sqrt(float64(c.MaxPixels)/(width*height)))
		w, h = size(width), size(height)
	}
	return w, h, dpi
}

// draw draws a page on white.
func (r *reader) draw(at requests.Page, p Page) (*picture, error) {
	w, h, dpi := r.Render.fit(p.Width, p.Height)
	if dpi < MinDPI || w > r.Render.MaxPixels/h {
		return nil, errorf(ErrPageTooLarge, "page %d is %.0f x %.0f points, which even at %d dpi is more than the %d pixels that are drawn",
			p.Number, p.Width, p.Height, MinDPI, r.Render.MaxPixels)
	}
	i := r.instance
	made, err := i.FPDFBitmap_CreateEx(&requests.FPDFBitmap_CreateEx{
		Width: w, Height: h, Format: enums.FPDF_BITMAP_FORMAT_GRAY, Pointer: uint64(0),
	})
	if err != nil {
		return nil, err
	}
	const white = 0xffffffff
	_, err = i.FPDFBitmap_FillRect(&requests.FPDFBitmap_FillRect{Bitmap: made.Bitmap, Width: w, Height: h, Color: white})
	if err != nil {
		return nil, err
	}
	_, err = i.FPDF_RenderPageBitmap(&requests.FPDF_RenderPageBitmap{
		Bitmap: made.Bitmap, Page: at, SizeX: w, SizeY: h,
		Flags: enums.FPDF_RENDER_FLAG_ANNOT | enums.FPDF_RENDER_FLAG_GRAYSCALE,
	})
	if err != nil {
		return nil, err
	}
	buffer, err := i.FPDFBitmap_GetBuffer(&requests.FPDFBitmap_GetBuffer{Bitmap: made.Bitmap})
	if err != nil {
		return nil, err
	}
	stride := len(buffer.Buffer) / h
	if stride < w {
		return nil, fmt.Errorf("no memory for a picture of %d x %d pixels", w, h)
	}
	pic := &picture{Number: p.Number, Width: w, Height: h, DPI: dpi, pix: make([]byte, 0, w*h)}
	for y := range h { // out of the sandbox's memory
		pic.pix = append(pic.pix, buffer.Buffer[y*stride:][:w]...)
	}
	_, err = i.FPDFBitmap_Destroy(&requests.FPDFBitmap_Destroy{Bitmap: made.Bitmap})
	return pic, err
}
