package pdf

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
)

// An order is what the parent writes to a child's standard input: first the
// limits, then one document after the other.
type order struct {
	Limits *Config `json:",omitempty"`
	// Path is absolute.
	Path string `json:",omitempty"`
	// Pages are the numbers of those wanted; none: all.
	Pages []int `json:",omitempty"`
	// First is the one among them to begin with, counted from 1.
	First int `json:",omitempty"`
	// Render asks for pictures of the pages and says what they may be.
	Render *canvas `json:",omitempty"`
}

// A canvas is what pages are drawn on.
type canvas struct {
	DPI       float64
	MaxPixels int
}

// number is the number of the i-th page wanted, counted from 1.
func (o order) number(i int) int {
	if len(o.Pages) == 0 {
		return i
	}
	return o.Pages[i-1]
}

// count is how many pages are wanted of a document of so many.
func (o order) count(pages int) int {
	if len(o.Pages) == 0 {
		return pages
	}
	return len(o.Pages)
}

// lost is what is reported of a page that cannot be had.
func (o order) lost(number int, err *Error) report {
	if o.Render != nil {
		return report{Event: drawn, Picture: &picture{Number: number, Err: err}}
	}
	return report{Event: page, Page: &pageReport{Page: Page{Number: number}, Err: err}}
}

// A report is what a child writes to its standard output: that it is ready,
// and then for each document that it is open, its pages, and the end; or
// failed, at any time before the end.
type report struct {
	Event   event
	Pages   int         `json:",omitempty"` // opened
	Page    *pageReport `json:",omitempty"` // page
	Picture *picture    `json:",omitempty"` // drawn; its pixels follow
	Error   *Error      `json:",omitempty"` // failed
}

// number is the page that a report is about, or 0.
func (r report) number() int {
	switch {
	case r.Event == page && r.Page != nil:
		return r.Page.Number
	case r.Event == drawn && r.Picture != nil:
		return r.Picture.Number
	}
	return 0
}

// A picture is a page that was drawn. Where there is no error, Width x Height
// bytes follow its frame, one for each pixel.
type picture struct {
	Number        int
	Width, Height int     `json:",omitempty"`
	DPI           float64 `json:",omitempty"`
	Err           *Error  `json:",omitempty"`

	pix []byte
}

type event string

const (
	ready  event = "ready"
	opened event = "opened"
	page   event = "page"
	drawn  event = "drawn"
	ended  event = "ended"
	failed event = "failed"
)

// A pageReport is a [Page] with an error that can travel.
type pageReport struct {
	Page
	Err *Error `json:",omitempty"`
}

func (p *pageReport) page() Page {
	if p.Err != nil {
		p.Page.Err = p.Err
	}
	return p.Page
}

// maxFrame bounds a frame, in bytes: the longest text with every byte escaped.
const maxFrame = 6*MaxText + 1<<16

// writeFrame writes v as JSON behind its length.
func writeFrame(w io.Writer, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	frame := append(binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(body)), uint32(len(body))), body...)
	_, err = w.Write(frame)
	return err
}

// readFrame reads one frame into v. The error is io.EOF only between frames.
// It takes no more memory than bytes have arrived.
func readFrame(r io.Reader, v any) error {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	n := int64(binary.BigEndian.Uint32(head[:]))
	if n > maxFrame {
		return fmt.Errorf("frame of %d bytes, at most %d are taken", n, maxFrame)
	}
	var body bytes.Buffer
	if _, err := io.CopyN(&body, r, n); err != nil {
		return fmt.Errorf("frame cut short after %d of %d bytes: %w", body.Len(), n, io.ErrUnexpectedEOF)
	}
	return json.Unmarshal(body.Bytes(), v)
}
