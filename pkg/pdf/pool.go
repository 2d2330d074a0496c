package pdf

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/reeve-pipeline/reeve/pkg/fault"
)

// Pool reads documents, each in a child process of its own for as long as it
// takes. It may be used from several goroutines.
type Pool struct {
	config Config
	hands  chan struct{} // one token per document at work

	mu     sync.Mutex
	idle   []*child
	closed bool
}

// startTimeout bounds the start of a child; compiling takes 3 s on an idle machine.
const startTimeout = 2 * time.Minute

// maxLost is how many pages of a document may take their child with them
// before the document is given up.
const maxLost = 3

// Open starts the first child, which proves that the settings work and fills
// the cache for the others; these start when they are needed.
func Open(ctx context.Context, c Config) (*Pool, error) {
	if isChild() {
		return nil, errors.New("open pdf reader: this process is itself a reader; its main must call pdf.ChildMain first thing")
	}
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("open pdf reader: %w", err)
	}
	if c.CacheDir != "" {
		if err := os.MkdirAll(c.CacheDir, 0o700); err != nil {
			return nil, fmt.Errorf("open pdf reader: %w", err)
		}
	}
	p := &Pool{config: c, hands: make(chan struct{}, c.Children)}
	first, err := startChild(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("open pdf reader: %w", err)
	}
	p.idle = append(p.idle, first)
	return p, nil
}

// Close ends the children that are idle now, and each of the others as it
// ends its document.
func (p *Pool) Close() {
	p.mu.Lock()
	idle := p.idle
	p.idle, p.closed = nil, true
	p.mu.Unlock()
	for _, c := range idle {
		c.end()
	}
}

// Read hands the pages of the document at path to each, in order, as they are
// read. A page that cannot be read is handed over with its Err set: one bad page
// costs one page, as long as no more than three take a child with them.
//
// An error that wraps an [*Error] is about the document and permanent. That
// includes the time limits and crashes: a page that crashes a child is tried
// once more in a fresh one, for the child may have been killed from outside,
// and no machine is slow enough to make a good page take [Config.PageTimeout].
// Any other error is about the reading: of the file, of ctx, or what each
// returned.
func (p *Pool) Read(ctx context.Context, path string, each func(Page) error) (Info, error) {
	return p.run(ctx, order{Path: path}, func(r report) error { return each(r.Page.page()) })
}

// run has a child work off an order.
func (p *Pool) run(ctx context.Context, o order, each func(report) error) (Info, error) {
	path, err := filepath.Abs(o.Path)
	if err != nil {
		return Info{}, err
	}
	if err := sniff(path); err != nil {
		return Info{}, err
	}
	select {
	case p.hands <- struct{}{}:
		defer func() { <-p.hands }()
	case <-ctx.Done():
		return Info{}, context.Cause(ctx)
	}
	o.Path = path
	s := session{Pool: p, order: o, each: each, next: 1, left: p.config.Timeout}
	defer s.release()
	err = s.read(ctx)
	known, ok := errors.AsType[*Error](err)
	switch {
	case !ok:
	case known.Kind == errUnreached:
		err = errors.New(known.Detail)
	default:
		err = fault.Permanent(known)
	}
	return s.info, err
}

// sniff looks at how a file begins. pdfium takes a header anywhere in the
// first kilobyte, and so do we.
func sniff(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	head := make([]byte, 1024)
	n, err := io.ReadFull(f, head)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	head = head[:n]
	switch {
	case n == 0:
		return fault.Permanent(errorf(ErrNotPDF, "is empty (0 bytes)"))
	case !strings.Contains(string(head), "%PDF-"):
		kind, _, _ := strings.Cut(http.DetectContentType(head), ";")
		return fault.Permanent(errorf(ErrNotPDF, "is not a PDF but looks like %s", kind))
	}
	return nil
}

// A session is the reading of one document.
type session struct {
	*Pool
	order
	each  func(report) error
	child *child
	info  Info
	next  int           // the page to be read next, among those wanted
	left  time.Duration // of the time that children have for the document
}

// read goes on until the pages are read, past the pages that take a child with them.
func (s *session) read(ctx context.Context) error {
	lost, retried := 0, 0
	for {
		err := s.attempt(ctx)
		gone, ok := errors.AsType[*childError](err)
		if !ok {
			return err
		}
		crashed := gone.err.Kind == ErrCrashed
		switch {
		case crashed && retried != s.next:
			retried = s.next
		case s.info.Pages == 0:
			return gone.err
		case lost == maxLost:
			return errorf(gone.err.Kind, "%s; given up, as %d pages before it had ended badly too", gone.err.Detail, lost)
		default:
			lost++
			if err := s.each(s.lost(s.number(s.next), gone.err)); err != nil {
				return err
			}
			s.next++
			if s.next > s.count(s.info.Pages) {
				return nil
			}
		}
	}
}

// A childError says why a child had to be given up.
type childError struct{ err *Error }

func (l *childError) Error() string { return l.err.Detail }

// attempt reads with one child from the next page on.
func (s *session) attempt(ctx context.Context) error {
	if err := s.acquire(ctx); err != nil {
		return err
	}
	c := s.child
	stop := context.AfterFunc(ctx, c.kill)
	defer stop()
	began := time.Now()
	clock := time.AfterFunc(min(s.config.PageTimeout, s.left), c.kill)
	defer clock.Stop()
	gone := func() error {
		slow := !clock.Stop()
		s.left -= time.Since(began)
		return s.gone(ctx, slow)
	}

	o := s.order
	o.First = s.next
	if err := writeFrame(c.in, o); err != nil {
		return gone()
	}
	for {
		var r report
		err := readFrame(c.out, &r)
		if err == nil && r.Event == drawn && r.Picture != nil && r.Picture.Err == nil {
			err = r.Picture.receive(c.out, o.Render)
		}
		if err != nil {
			return gone()
		}
		inTime := clock.Stop()
		s.left -= time.Since(began)
		switch {
		case r.Event == opened:
			s.info.Pages = r.Pages
		case s.next <= s.count(s.info.Pages) && r.number() == s.number(s.next):
			if err := s.each(r); err != nil {
				s.abandon()
				return err
			}
			s.next++
		case r.Event == failed && r.Error != nil:
			return r.Error
		case r.Event == ended:
			return nil
		default: // it has lost its mind
			return gone()
		}
		began = time.Now()
		if inTime {
			clock.Reset(min(s.config.PageTimeout, s.left))
		}
	}
}

// gone gives up the child and says why.
func (s *session) gone(ctx context.Context, slow bool) error {
	state := s.abandon()
	at := "opening it"
	if s.info.Pages > 0 {
		at = fmt.Sprintf("page %d", s.number(min(s.next, s.count(s.info.Pages))))
	}
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case slow && s.left <= 0:
		return errorf(ErrTimeout, "took longer than %s, which ended at %s of %d", s.config.Timeout, at, s.info.Pages)
	case slow:
		return &childError{errorf(ErrTimeout, "%s took longer than %s", at, s.config.PageTimeout)}
	case strings.Contains(state, "out of memory"), strings.Contains(state, "cannot allocate memory"):
		return &childError{errorf(ErrMemory, "%s used up the memory of the reader", at)}
	default:
		return &childError{errorf(ErrCrashed, "%s crashed the reader: %s", at, state)}
	}
}

func (s *session) abandon() (state string) {
	state = s.child.abandon()
	s.child = nil
	return state
}

func (s *session) acquire(ctx context.Context) error {
	if s.child != nil {
		return nil
	}
	s.mu.Lock()
	if n := len(s.idle); n > 0 {
		s.child, s.idle = s.idle[n-1], s.idle[:n-1]
	}
	s.mu.Unlock()
	if s.child != nil {
		return nil
	}
	c, err := startChild(ctx, s.config)
	if err != nil {
		return fault.Infra(err)
	}
	s.child = c
	return nil
}

// release puts the child back, unless the pool has been closed meanwhile.
func (s *session) release() {
	c := s.child
	if c == nil {
		return
	}
	s.mu.Lock()
	keep := !s.closed
	if keep {
		s.idle = append(s.idle, c)
	}
	s.mu.Unlock()
	if !keep {
		c.end()
	}
}

// A child is a process that reads one document at a time.
type child struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    io.Reader
	stderr tail
}

func startChild(ctx context.Context, c Config) (*child, error) {
	binary, err := self()
	if err != nil {
		return nil, err
	}
	k := &child{cmd: exec.Command(binary)} //nolint:noctx // it outlives ctx, which is about the start
	k.cmd.Args = []string{"pdf-reader"}
	k.cmd.Env = []string{childEnv + "=1"} // and none of our secrets
	k.cmd.Stderr = &k.stderr
	k.cmd.SysProcAttr = apart()
	if k.in, err = k.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if k.out, err = k.cmd.StdoutPipe(); err != nil {
		return nil, err
	}
	if err := k.cmd.Start(); err != nil {
		return nil, err
	}
	limit, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	stop := context.AfterFunc(limit, k.kill)
	defer stop()

	var hello report
	err = writeFrame(k.in, order{Limits: &c})
	if err == nil {
		err = readFrame(k.out, &hello)
	}
	if err == nil && hello.Event == ready {
		return k, nil
	}
	state := k.abandon()
	if limit.Err() != nil {
		return nil, fmt.Errorf("start a pdf reader: %w", limit.Err())
	}
	return nil, fmt.Errorf("start a pdf reader: it ended with %s; does main call pdf.ChildMain first thing?", state)
}

func (c *child) kill() { _ = c.cmd.Process.Kill() }

// end lets the child end by itself: its orders have ended.
func (c *child) end() {
	_ = c.in.Close()
	_ = c.cmd.Wait()
}

// abandon kills the child if it still lives and says how it ended.
func (c *child) abandon() string {
	c.kill()
	_ = c.cmd.Wait()
	state := c.cmd.ProcessState.String()
	if said := c.stderr.line(); said != "" {
		state += ": " + said
	}
	return state
}

// A tail keeps the beginning of what a child says on standard error.
type tail struct {
	mu   sync.Mutex
	text []byte
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b[:min(len(b), 4096-len(t.text))]...)
	return len(b), nil
}

func (t *tail) line() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := strings.Split(string(t.text), "\n")
	i := slices.IndexFunc(lines, func(l string) bool { return strings.TrimSpace(l) != "" })
	if i < 0 {
		return ""
	}
	return strings.TrimSpace(lines[i])
}
