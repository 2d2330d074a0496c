package pdf

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"time"
	"unicode"

	"github.com/klippa-app/go-pdfium"
	"github.com/klippa-app/go-pdfium/enums"
	pdfium_errors "github.com/klippa-app/go-pdfium/errors"
	"github.com/klippa-app/go-pdfium/references"
	"github.com/klippa-app/go-pdfium/requests"
	"github.com/klippa-app/go-pdfium/webassembly"
	"github.com/tetratelabs/wazero"
)

// childEnv marks a process as a child.
const childEnv = "REEVE_PDF_CHILD"

// ChildMain turns a process that a [Pool] started into its child, which it
// stays until it exits. In every other process it does nothing. Call it first
// thing in main.
func ChildMain() {
	if isChild() {
		os.Exit(serve(os.Stdin, os.Stdout, func(string, int) {})) //nolint:forbidigo // this is the child's main
	}
}

func isChild() bool { return os.Getenv(childEnv) != "" } //nolint:forbidigo // not a setting

// serve reads documents as ordered until the orders end, which is when the
// parent is gone. It returns the exit code. Tests use atPage, which is called
// before each page, to misbehave.
func serve(in io.Reader, out io.Writer, atPage func(path string, number int)) int {
	// A signal to the process group is for the parent, which may have us finish.
	signal.Ignore(os.Interrupt, syscall.SIGTERM)
	orders := bufio.NewReader(in)
	var setup order
	if err := readFrame(orders, &setup); err != nil || setup.Limits == nil {
		fmt.Fprintln(os.Stderr, "no limits given:", err)
		return 2
	}
	c := *setup.Limits
	if err := limitMemory(c.Memory); err != nil {
		fmt.Fprintln(os.Stderr, "limit memory:", err)
		return 2
	}
	engine, err := start(c)
	if err != nil {
		fmt.Fprintln(os.Stderr, "start pdfium:", err)
		return 2
	}
	if err := writeFrame(out, report{Event: ready}); err != nil {
		return 1
	}

	// Reading ahead notices the end of the parent also in the middle of a document.
	next := make(chan order)
	go func() {
		for {
			var o order
			if err := readFrame(orders, &o); err != nil {
				os.Exit(0) //nolint:forbidigo // the child's main may be held up in pdfium
			}
			next <- o
		}
	}()
	for o := range next {
		r := reader{Config: c, order: o, engine: engine, atPage: atPage, out: out}
		if err := r.read(); err != nil {
			return 1
		}
	}
	return 0
}

// limitMemory bounds this process. pdfium has a limit of its own, in the
// sandbox; this one is for whatever goes wrong around it: growing the sandbox
// copies it, and compiling it takes about 400 MB.
func limitMemory(sandbox int64) error {
	debug.SetMemoryLimit(2*sandbox + 128<<20)
	return setDataLimit(shadow * (3*sandbox + 768<<20))
}

// start compiles pdfium. A cache that cannot be used is emptied and filled anew.
func start(c Config) (pdfium.Pool, error) {
	if c.CacheDir == "" {
		return compile(c, wazero.NewCompilationCache())
	}
	dir := filepath.Join(c.CacheDir, "pdfium")
	var errs []error
	for range 2 {
		cache, err := wazero.NewCompilationCacheWithDir(dir)
		if err != nil {
			return nil, err
		}
		engine, err := compile(c, cache)
		if err == nil {
			return engine, nil
		}
		errs = append(errs, err, os.RemoveAll(dir))
	}
	return nil, errors.Join(errs...)
}

func compile(c Config, cache wazero.CompilationCache) (pdfium.Pool, error) {
	const wasmPage = 64 << 10
	return webassembly.Init(webassembly.Config{
		MaxTotal: 1,
		FSConfig: wazero.NewFSConfig(), // mounts nothing
		Stdout:   os.Stderr,            // our standard output carries reports
		Stderr:   os.Stderr,
		RuntimeConfig: wazero.NewRuntimeConfig().
			WithCompilationCache(cache).
			WithMemoryLimitPages(uint32(c.Memory / wasmPage)),
	})
}

// A reader reads one document and reports its pages.
type reader struct {
	Config
	order
	engine pdfium.Pool
	atPage func(string, int)
	out    io.Writer

	file     *os.File
	instance pdfium.Pdfium // a sandbox of its own
	document references.FPDF_DOCUMENT
	pages    int
	age      int // pages read in this sandbox
}

// renewal is the number of pages after which the sandbox is thrown away: the
// binding keeps a handle of every object it was asked about.
const renewal = 200

// renewalDrawn is the same for drawing: a sandbox never gives back the memory
// that its largest page took.
const renewalDrawn = 16

// read reports the pages of a document. An error means that the parent is gone.
func (r *reader) read() error {
	defer r.close()
	err := r.open()
	if err != nil {
		return r.fail(err)
	}
	if err := writeFrame(r.out, report{Event: opened, Pages: r.pages}); err != nil {
		return err
	}
	for i := r.First; i <= r.count(r.pages); i++ {
		n := r.number(i)
		r.atPage(r.Path, n)
		found, err := r.page(n)
		if err != nil {
			return r.fail(err)
		}
		if err := writeFrame(r.out, found); err != nil {
			return err
		}
		if found.Picture == nil {
			continue
		}
		if _, err := r.out.Write(found.Picture.pix); err != nil {
			return err
		}
	}
	return writeFrame(r.out, report{Event: ended})
}

// fail reports that the document cannot be opened.
func (r *reader) fail(err error) error {
	known, ok := errors.AsType[*Error](err)
	switch {
	case ok:
	case r.starved():
		known = errorf(ErrMemory, "needs more than %d MiB of memory to be opened", r.Memory>>20)
	default:
		known = errorf(ErrCrashed, "crashed the reader when it was opened: %s", oneLine(err))
	}
	r.abandon()
	return writeFrame(r.out, report{Event: failed, Error: known})
}

// open opens the document in a fresh sandbox.
func (r *reader) open() error {
	r.close()
	file, err := os.Open(r.Path)
	if err != nil {
		return errorf(errUnreached, "%v", err)
	}
	r.file = file
	stat, err := file.Stat()
	if err != nil {
		return errorf(errUnreached, "%v", err)
	}
	r.instance, err = r.engine.GetInstance(time.Minute)
	if err != nil {
		return errorf(errUnreached, "%v", err)
	}
	doc, err := r.instance.OpenDocument(&requests.OpenDocument{FileReader: file, FileReaderSize: stat.Size()})
	switch {
	case errors.Is(err, pdfium_errors.ErrPassword):
		return errorf(ErrEncrypted, "needs a password to be opened")
	case errors.Is(err, pdfium_errors.ErrSecurity):
		return errorf(ErrEncrypted, "is encrypted in a way that cannot be opened")
	case errors.Is(err, pdfium_errors.ErrFormat), errors.Is(err, pdfium_errors.ErrFile),
		errors.Is(err, pdfium_errors.ErrUnknown), errors.Is(err, pdfium_errors.ErrSuccess):
		return errorf(ErrCorrupt, "is damaged or cut short: no pages can be found in its %d bytes", stat.Size())
	case err != nil:
		return err
	}
	r.document = doc.Document
	count, err := r.instance.FPDF_GetPageCount(&requests.FPDF_GetPageCount{Document: r.document})
	if err != nil {
		return err
	}
	r.pages = count.PageCount
	switch {
	case r.pages < 1:
		return errorf(ErrCorrupt, "is damaged: it has no pages")
	case r.pages > r.MaxPages:
		return errorf(ErrTooManyPages, "has %d pages, at most %d are read", r.pages, r.MaxPages)
	}
	return nil
}

func (r *reader) close() {
	if r.instance != nil {
		_ = r.instance.Close() // the sandbox goes away whatever pdfium says
		r.instance = nil
	}
	if r.file != nil {
		_ = r.file.Close()
		r.file = nil
	}
	r.age = 0
}

// abandon is close for a sandbox that tripped, which is not asked to tidy up.
func (r *reader) abandon() {
	if r.instance != nil {
		_ = r.instance.Kill()
		r.instance = nil
	}
	r.close()
}

// page reads or draws one page, in a fresh sandbox where the last one is worn
// out or lost. A page that trips a sandbox is tried again in a fresh one, for
// what the pages before it left behind may be to blame.
func (r *reader) page(n int) (report, error) {
	if n < 1 || n > r.pages {
		return r.lost(n, errorf(ErrNoPage, "there is no page %d, the document has %d", n, r.pages)), nil
	}
	worn := renewal
	if r.Render != nil {
		worn = renewalDrawn
	}
	for {
		if r.age == worn || r.instance == nil {
			if err := r.open(); err != nil {
				return report{}, err
			}
		}
		r.age++
		found, err := r.take(n)
		if err == nil {
			return found, nil
		}
		if known, ok := errors.AsType[*Error](err); ok {
			return r.lost(n, known), nil
		}
		first, starved := r.age == 1, r.starved()
		r.abandon()
		switch {
		case !first:
		case starved:
			return r.lost(n, errorf(ErrMemory, "page %d needs more than %d MiB of memory", n, r.Memory>>20)), nil
		default:
			return r.lost(n, errorf(ErrCrashed, "page %d crashed the reader: %s", n, oneLine(err))), nil
		}
	}
}

// starved reports whether the sandbox tripped for want of memory. It does not
// say; but buffers grow by doubling, so what could not grow beyond the limit
// has filled at least a third of it, a hundred times what a page needs.
func (r *reader) starved() bool {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) > r.Memory/3
}

// take does with a page what was ordered. An error that is not an [*Error]
// comes from the sandbox.
func (r *reader) take(n int) (report, error) {
	i := r.instance
	loaded, err := i.FPDF_LoadPage(&requests.FPDF_LoadPage{Document: r.document, Index: n - 1})
	if errors.Is(err, pdfium_errors.ErrPage) {
		return report{}, errorf(ErrCorrupt, "page %d is damaged", n)
	}
	if err != nil {
		return report{}, err
	}
	size, err := i.FPDF_GetPageSizeByIndexF(&requests.FPDF_GetPageSizeByIndexF{Document: r.document, Index: n - 1})
	if err != nil {
		return report{}, err
	}
	p := Page{Number: n, Width: float64(size.Size.Width), Height: float64(size.Size.Height)}
	if side := max(p.Width, p.Height); !(side <= r.MaxSide) { // also when it is no number
		return report{}, errorf(ErrPageTooLarge, "page %d is %.0f x %.0f points, sides up to %.0f are read", n, p.Width, p.Height, r.MaxSide)
	}
	var found report
	at := requests.Page{ByReference: &loaded.Page}
	if r.Render != nil {
		found.Event = drawn
		found.Picture, err = r.draw(at, p)
	} else {
		found.Event = page
		found.Page, err = r.fill(at, p)
	}
	if err != nil {
		return report{}, err
	}
	_, err = i.FPDF_ClosePage(&requests.FPDF_ClosePage{Page: loaded.Page})
	return found, err
}

// fill reads a page.
func (r *reader) fill(at requests.Page, p Page) (*pageReport, error) {
	if err := r.objects(at, &p); err != nil {
		return nil, err
	}
	if err := r.text(at, &p); err != nil {
		return nil, err
	}
	return &pageReport{Page: p}, nil
}

func (r *reader) objects(at requests.Page, p *Page) error {
	objects, err := r.instance.FPDFPage_CountObjects(&requests.FPDFPage_CountObjects{Page: at})
	if err != nil {
		return err
	}
	for n := range min(objects.Count, MaxObjects) {
		object, err := r.instance.FPDFPage_GetObject(&requests.FPDFPage_GetObject{Page: at, Index: n})
		if err != nil {
			return err
		}
		kind, err := r.instance.FPDFPageObj_GetType(&requests.FPDFPageObj_GetType{PageObject: object.PageObject})
		if err != nil {
			return err
		}
		switch kind.Type {
		case enums.FPDF_PAGEOBJ_TEXT:
			p.Texts++
		case enums.FPDF_PAGEOBJ_IMAGE:
			p.Images++
		case enums.FPDF_PAGEOBJ_PATH:
			p.Paths++
		default:
			p.Others++
		}
	}
	annotations, err := r.instance.FPDFPage_GetAnnotCount(&requests.FPDFPage_GetAnnotCount{Page: at})
	if err != nil {
		return err
	}
	p.Others += annotations.Count
	return nil
}

func (r *reader) text(at requests.Page, p *Page) error {
	layer, err := r.instance.FPDFText_LoadPage(&requests.FPDFText_LoadPage{Page: at})
	if err != nil {
		return err
	}
	chars, err := r.instance.FPDFText_CountChars(&requests.FPDFText_CountChars{TextPage: layer.TextPage})
	if err != nil {
		return err
	}
	if chars.Count > MaxText/3 { // three bytes is the most a UTF-16 unit becomes
		return errorf(ErrPageTooLarge, "page %d has %d characters, at most %d are read", p.Number, chars.Count, MaxText/3)
	}
	if chars.Count > 0 {
		text, err := r.instance.FPDFText_GetText(&requests.FPDFText_GetText{TextPage: layer.TextPage, Count: chars.Count})
		if err != nil {
			return err
		}
		p.Text, p.Unmapped = clean(text.Text)
	}
	_, err = r.instance.FPDFText_ClosePage(&requests.FPDFText_ClosePage{TextPage: layer.TextPage})
	return err
}

// marks are line ends, and what pdfium writes for a hyphen and a line end
// between the halves of a word.
var marks = strings.NewReplacer("\r\n", "\n", "\ufffe\r\n", "-\n", "\ufffe", "-\n", "\u0002\r\n", "-\n", "\u0002", "-\n")

// clean brings pdfium's text into the form that [Page] promises and counts the
// glyphs that stand for no character.
func clean(raw string) (text string, unmapped int) {
	raw = strings.ToValidUTF8(raw, "\ufffd")
	raw = marks.Replace(raw)
	raw = strings.Map(func(c rune) rune {
		switch {
		case c == '\n', c == '\t':
			return c
		case c == '\r', c == '\v', c == '\f', c == '\u0085', c == '\u2028', c == '\u2029':
			return '\n'
		case c == '\u00ad':
			return '-'
		case c == '\ufeff':
			return -1
		case unicode.IsControl(c), c == '\ufffd', c == '\uffff':
			unmapped++
			return -1
		}
		return c
	}, raw)
	lines := strings.Split(raw, "\n")
	for n, line := range lines {
		lines[n] = strings.TrimRightFunc(line, unicode.IsSpace)
	}
	return strings.Trim(strings.Join(lines, "\n"), "\n"), unmapped
}

func oneLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line[:min(len(line), 200)]
}
