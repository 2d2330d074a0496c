// Package pdf reads the text layer of PDFs, says what else is on each page, and
// draws pages.
//
// PDFs come from strangers and the decoder is large, so none of it runs in the
// caller's process: documents are read by children, each a second copy of the
// running binary that runs pdfium inside a WebAssembly sandbox with no file
// system and a ceiling on memory. A child that hangs, crashes or eats too much
// is killed and replaced; the page it was at is lost and nothing else is.
//
// Every main that opens a [Pool] must call [ChildMain] before anything else.
package pdf

import (
	"errors"
	"fmt"
	"time"
)

// Config bounds what reading a document may cost.
type Config struct {
	// CacheDir keeps pdfium's compiled code, about 20 MB, between starts. It is
	// created when missing; whoever can write to it can run code here. Empty:
	// every child compiles anew, which takes seconds.
	CacheDir string
	// Children is the number of documents read at once.
	Children int
	// Timeout bounds the time that children spend on a document, PageTimeout
	// that for opening it and for each page. What the caller does with a page
	// does not count.
	Timeout, PageTimeout time.Duration
	// Memory bounds what pdfium may take for one document, in bytes.
	Memory int64
	// MaxPages is the largest number of pages a document may have.
	MaxPages int
	// MaxSide is the longest side a page may have, in points (1/72 inch).
	MaxSide float64
}

// Defaults returns a Config that suits meeting papers: 5,000 pages, 20 s a
// page, sides up to 14,400 points (200 inches, the limit of most readers).
func Defaults() Config {
	return Config{
		Children:    2,
		Timeout:     5 * time.Minute,
		PageTimeout: 20 * time.Second,
		Memory:      512 << 20,
		MaxPages:    5000,
		MaxSide:     14400,
	}
}

// minMemory is a few times what pdfium starts with, in bytes.
const minMemory = 128 << 20

// Validate reports everything that is wrong with the settings, joined.
func (c Config) Validate() error {
	var errs []error
	if c.Children < 1 {
		errs = append(errs, fmt.Errorf("children must be at least 1, not %d", c.Children))
	}
	if c.Timeout <= 0 || c.PageTimeout <= 0 {
		errs = append(errs, fmt.Errorf("timeouts must be positive, not %s a document and %s a page", c.Timeout, c.PageTimeout))
	}
	if c.Memory < minMemory || c.Memory > 4<<30 {
		errs = append(errs, fmt.Errorf("memory must lie between 128 MiB and 4 GiB, not %d bytes", c.Memory))
	}
	if c.MaxPages < 1 {
		errs = append(errs, fmt.Errorf("max pages must be at least 1, not %d", c.MaxPages))
	}
	if c.MaxSide <= 0 {
		errs = append(errs, fmt.Errorf("max side must be positive, not %g", c.MaxSide))
	}
	return errors.Join(errs...)
}

// Info is what is known of a document as a whole.
type Info struct {
	Pages int
}

// Page is one page of a document.
type Page struct {
	// Number counts from 1.
	Number int
	// Text is the text layer in reading order: UTF-8, lines ended by "\n",
	// without control characters and trailing blanks, words hyphenated as they
	// are printed. At most [MaxText] bytes.
	Text string
	// Width and Height are in points, as the page is shown: turned if it is turned.
	Width, Height float64
	// Unmapped counts glyphs that the fonts give no character for; they are
	// drawn, but missing from Text.
	Unmapped int
	// Texts, Images, Paths and Others (forms, shadings, annotations) count what
	// is drawn on the page, up to about [MaxObjects] together. All 0: blank.
	Texts, Images, Paths, Others int
	// Err says why the page could not be read; then only Number is sure. It is
	// an [*Error].
	Err error
}

// Bounds of a [Page].
const (
	MaxText    = 4 << 20
	MaxObjects = 256
)

// Kind is what kept a document or a page from being read. Kinds are errors, to
// be asked for with [errors.Is].
type Kind string //nolint:errname // a kind of error, not an error by itself

// The kinds of [Error].
const (
	ErrNotPDF       Kind = "not a PDF"
	ErrCorrupt      Kind = "damaged"
	ErrEncrypted    Kind = "encrypted"
	ErrTooManyPages Kind = "too many pages"
	ErrPageTooLarge Kind = "page too large"
	ErrNoPage       Kind = "no such page"
	ErrTimeout      Kind = "took too long"
	ErrMemory       Kind = "out of memory"
	ErrCrashed      Kind = "crashed the reader"

	// errUnreached: no fault of the document. It does not leave the package.
	errUnreached Kind = "unreached"
)

// Error returns the kind in words.
func (k Kind) Error() string { return string(k) }

// Error is why a document or one of its pages cannot be read. The text names
// the page but not the file, which is often a temporary one: the caller knows
// what it is called.
type Error struct {
	Kind   Kind
	Detail string
}

// Error says what happened.
func (e *Error) Error() string { return e.Detail }

// Unwrap returns the kind.
func (e *Error) Unwrap() error { return e.Kind }

func errorf(kind Kind, format string, args ...any) *Error {
	return &Error{kind, fmt.Sprintf(format, args...)}
}
