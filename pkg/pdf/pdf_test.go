package pdf

import (
	"bytes"
	"compress/zlib"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/reeve-pipeline/reeve/pkg/civic"
	"github.com/reeve-pipeline/reeve/pkg/fault"
	"github.com/reeve-pipeline/reeve/pkg/sample"
)

// cache is shared by all tests and kept, for compiling takes long with the
// race detector. Empty: there is no place for it.
var cache string

// TestMain is also the main of the children, which misbehave where the name of
// the file asks for it: "hang@2.pdf" hangs at page 2.
func TestMain(m *testing.M) {
	if isChild() {
		os.Exit(serve(os.Stdin, os.Stdout, misbehave))
	}
	if err := warm(); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// warm fills the cache, or every test would compile at the same time.
func warm() error {
	home, err := os.UserCacheDir()
	if err != nil {
		return nil //nolint:nilerr // slower, nothing else
	}
	cache = filepath.Join(home, "reeve")
	c := Defaults()
	c.CacheDir = cache
	pool, err := Open(context.Background(), c)
	if err == nil {
		pool.Close()
	}
	return err
}

func misbehave(path string, number int) {
	at := func(what string) bool {
		return strings.Contains(filepath.Base(path), fmt.Sprintf("%s@%d.", what, number))
	}
	switch {
	case at("hang"):
		select {}
	case at("crash"):
		fmt.Fprintln(os.Stderr, "told to crash")
		os.Exit(3)
	case at("falter"): // crashes the first time only
		if os.Remove(path+".first") == nil {
			os.Exit(3)
		}
	case at("eat"):
		for hoard := []byte{1}; ; {
			hoard = append(hoard, hoard...)
		}
	}
}

func open(t *testing.T, change func(*Config)) *Pool {
	t.Helper()
	c := Defaults()
	c.CacheDir = cache
	if change != nil {
		change(&c)
	}
	p, err := Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// collect reads a document whole.
func collect(t *testing.T, p *Pool, path string) ([]Page, error) {
	t.Helper()
	var pages []Page
	info, err := p.Read(t.Context(), path, func(page Page) error {
		pages = append(pages, page)
		return nil
	})
	if err == nil && info.Pages != len(pages) {
		t.Errorf("%s: %d pages said, %d handed over", path, info.Pages, len(pages))
	}
	return pages, err
}

// brief tells how each page came out.
func brief(pages []Page) string {
	var all []string
	for n, p := range pages {
		if p.Number != n+1 {
			return fmt.Sprintf("page %d where %d belongs", p.Number, n+1)
		}
		kind, _ := errors.AsType[Kind](p.Err)
		switch {
		case p.Err != nil:
			all = append(all, string(kind))
		case p.Text != "":
			all = append(all, "text")
		case p.Images > 0:
			all = append(all, "image")
		default:
			all = append(all, "blank")
		}
	}
	return strings.Join(all, ", ")
}

func TestPool_Read_sample(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	town, err := sample.Write(dir)
	if err != nil {
		t.Fatal(err)
	}
	pool := open(t, nil)
	for _, f := range town.Files {
		t.Run(f.Path, func(t *testing.T) {
			t.Parallel()
			pages, err := collect(t, pool, filepath.Join(dir, f.Path))
			if f.Status == "failed" && !strings.Contains(f.Path, "2024-03-14") { // that one fails by its only page
				if fault.Of(err) != f.Class || !strings.Contains(fmt.Sprint(err), f.Reason) {
					t.Errorf("%s fault %q, want %s with %q", fault.Of(err), err, f.Class, f.Reason)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var got civic.PageCounts
			var text strings.Builder
			for _, p := range pages {
				got.Total++
				switch {
				case p.Err != nil:
					if !errors.Is(p.Err, ErrPageTooLarge) || !strings.Contains(p.Err.Error(), f.Reason) {
						t.Errorf("page error %v, want %q", p.Err, f.Reason)
					}
					got = civic.PageCounts{}
				case p.Text != "":
					got.Native++
				case p.Images > 0:
					got.Image++
				default:
					got.Blank++
				}
				if p.Err == nil && (p.Width != 612 || p.Height != 792) {
					t.Errorf("page %d is %g x %g points", p.Number, p.Width, p.Height)
				}
				text.WriteString(p.Text)
			}
			if diff := cmp.Diff(f.Pages, got); diff != "" {
				t.Errorf("pages (-want +got):\n%s", diff)
			}
			for _, phrase := range f.Phrases {
				if !strings.Contains(text.String(), phrase) {
					t.Errorf("%q is missing in:\n%s", phrase, &text)
				}
			}
		})
	}
}

// Whatever happens to a child, its document ends with an answer and the next
// one is read.
func TestPool_Read_misbehaviour(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string // of the file, and so what the child does
		pages int
		want  string
		kind  error // of the document
		says  string
	}{
		{"fine.pdf", 3, "text, text, text", nil, ""},
		{"hang@2.pdf", 3, "text, took too long, text", nil, "page 2 took longer than 2s"},
		{"hang@3.pdf", 3, "text, text, took too long", nil, "page 3 took longer than 2s"},
		{"crash@1.pdf", 3, "crashed the reader, text, text", nil, "page 1 crashed the reader: exit status 3: told to crash"},
		{"falter@2.pdf", 3, "text, text, text", nil, ""},
		{"eat@2.pdf", 3, "text, out of memory, text", nil, "page 2 used up the memory of the reader"},
		{"crash@2.crash@3.crash@5.crash@6.pdf", 7, "", ErrCrashed, "given up"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if shadow > 1 && tt.name == "eat@2.pdf" {
				return // there would have to be 9 GB to eat
			}
			pool := open(t, func(c *Config) {
				c.Memory = 128 << 20
				if strings.Contains(tt.name, "hang") {
					c.PageTimeout = 2 * time.Second
				}
			})
			path := filepath.Join(t.TempDir(), tt.name)
			write(t, path, document(tt.pages, ""))
			write(t, path+".first", nil)
			pages, err := collect(t, pool, path)
			if tt.kind != nil {
				if !errors.Is(err, tt.kind) || fault.Of(err) != fault.ClassPermanent || !strings.Contains(err.Error(), tt.says) {
					t.Errorf("error %v, want permanent %v with %q", err, tt.kind, tt.says)
				}
			} else if err != nil {
				t.Fatal(err)
			} else if got := brief(pages); got != tt.want {
				t.Errorf("pages %s, want %s", got, tt.want)
			}
			for _, p := range pages {
				if p.Err != nil && !strings.Contains(p.Err.Error()+tt.says, tt.says) {
					t.Errorf("page error %q, want %q", p.Err, tt.says)
				}
			}
			if pages, err := collect(t, pool, renamed(t, path)); err != nil || len(pages) != tt.pages {
				t.Errorf("the next document: %d pages, error %v", len(pages), err)
			}
		})
	}
}

// Documents made to exhaust the decoder cost themselves at most.
func TestPool_Read_bombs(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		body   []byte
		memory int64
		want   Kind
	}{
		{"a form that draws itself ten billion times", document(1, "/F0 Do", forms(10, 11)...), 128 << 20, ErrMemory},
		{"the same with all the memory it wants", document(1, "/F0 Do", forms(10, 11)...), 4 << 30, ErrTimeout},
		{"more pages than anybody has", document(6000, ""), 128 << 20, ErrTooManyPages},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			pool := open(t, func(c *Config) {
				c.Memory = tt.memory
				if tt.want == ErrTimeout {
					c.PageTimeout = time.Second
				}
			})
			path := filepath.Join(t.TempDir(), "bomb.pdf")
			write(t, path, tt.body)
			pages, err := collect(t, pool, path)
			if err == nil && len(pages) == 1 {
				err = pages[0].Err
			}
			if !errors.Is(err, tt.want) {
				t.Errorf("got %v (%s), want %v", err, brief(pages), tt.want)
			}
			write(t, path, document(1, ""))
			if pages, err := collect(t, pool, path); err != nil || brief(pages) != "text" {
				t.Errorf("the next document: %s, error %v", brief(pages), err)
			}
		})
	}
}

func TestPool_Read_timeout(t *testing.T) {
	t.Parallel()
	pool := open(t, func(c *Config) { c.Timeout = time.Second })
	path := filepath.Join(t.TempDir(), "hang@2.pdf")
	write(t, path, document(3, ""))
	_, err := collect(t, pool, path)
	if !errors.Is(err, ErrTimeout) || fault.Of(err) != fault.ClassPermanent || !strings.Contains(err.Error(), "page 2 of 3") {
		t.Errorf("error %v, want a permanent one that names page 2 of 3", err)
	}
}

// An interrupted reading says so, and is nobody's fault.
func TestPool_Read_cancelled(t *testing.T) {
	t.Parallel()
	pool := open(t, nil)
	path := filepath.Join(t.TempDir(), "hang@2.pdf")
	write(t, path, document(3, ""))
	ctx, cancel := context.WithCancel(t.Context())
	_, err := pool.Read(ctx, path, func(Page) error { cancel(); return nil })
	if !errors.Is(err, context.Canceled) || fault.Of(err) == fault.ClassPermanent {
		t.Errorf("error %v, want context canceled", err)
	}
}

func TestPool_Read_refused(t *testing.T) {
	t.Parallel()
	pool := open(t, nil)
	path := filepath.Join(t.TempDir(), "fine.pdf")
	write(t, path, document(3, ""))
	refusal := errors.New("no more")
	if _, err := pool.Read(t.Context(), path, func(Page) error { return refusal }); !errors.Is(err, refusal) {
		t.Errorf("error %v, want the callback's own", err)
	}
	if _, err := pool.Read(t.Context(), path+"x", nil); !errors.Is(err, os.ErrNotExist) || fault.Of(err) == fault.ClassPermanent {
		t.Errorf("a missing file: %v", err)
	}
}

// A child killed from outside, say for want of memory on the machine, is not
// the document's fault.
func TestPool_Read_killed(t *testing.T) {
	t.Parallel()
	pool := open(t, nil)
	path := filepath.Join(t.TempDir(), "fine.pdf")
	write(t, path, document(3, ""))
	pool.idle[0].kill()
	pages, err := collect(t, pool, path)
	if err != nil || brief(pages) != "text, text, text" {
		t.Errorf("%s, error %v", brief(pages), err)
	}
}

func TestPool_concurrent(t *testing.T) {
	t.Parallel()
	pool := open(t, func(c *Config) { c.Children, c.PageTimeout = 3, 3*time.Second })
	dir := t.TempDir()
	var all sync.WaitGroup
	for n := range 8 {
		path := filepath.Join(dir, fmt.Sprintf("%d.pdf", n))
		want := strings.TrimPrefix(strings.Repeat(", text", 20+n), ", ")
		if n == 3 {
			path = filepath.Join(dir, "crash@1.pdf")
			want = "crashed the reader" + strings.TrimPrefix(want, "text")
		}
		write(t, path, document(20+n, ""))
		all.Go(func() {
			if pages, err := collect(t, pool, path); err != nil || brief(pages) != want {
				t.Errorf("%s: %s, error %v", path, brief(pages), err)
			}
		})
	}
	all.Wait()
	if n := len(pool.idle); n < 1 || n > 3 {
		t.Errorf("%d children left, want 1 to 3", n)
	}
}

func TestOpen(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		c    Config
		says string
	}{
		{"nothing set", Config{}, "children must be at least 1"},
		{"too little memory", Config{Memory: 1 << 20}, "memory must lie between"},
		{"no place for the cache", func() Config { c := Defaults(); c.CacheDir = "/dev/null/x"; return c }(), "not a directory"},
	} {
		if _, err := Open(t.Context(), tt.c); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: error %v, want %q", tt.name, err, tt.says)
		}
	}
}

// A damaged cache costs time, nothing else.
func TestOpen_damagedCache(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if cache == "" {
		t.Fatal("there is no cache to damage; set HOME or XDG_CACHE_HOME to a folder that can be written")
	}
	if err := os.CopyFS(filepath.Join(dir, "pdfium"), os.DirFS(filepath.Join(cache, "pdfium"))); err != nil {
		t.Fatal(err)
	}
	found := 0
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			found++
			err = os.Truncate(path, 1000)
		}
		return err
	})
	if err != nil || found == 0 {
		t.Fatalf("%d files in the cache, error %v", found, err)
	}
	pool := open(t, func(c *Config) { c.CacheDir = dir })
	path := filepath.Join(t.TempDir(), "fine.pdf")
	write(t, path, document(1, ""))
	if pages, err := collect(t, pool, path); err != nil || brief(pages) != "text" {
		t.Errorf("%s, error %v", brief(pages), err)
	}
}

func TestClean(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, raw, want string
		unmapped        int
	}{
		{"line ends and trailing blanks", "one \r\ntwo\r three\n\r\n", "one\ntwo\n three", 0},
		{"a broken word keeps its hyphen", "com\ufffeprehensive plan", "com-\nprehensive plan", 0},
		{"controls go and are counted", "a\x00b\x07c\ufffd", "abc", 3},
		{"tabs and accents stay", "Año\t1", "Año\t1", 0},
		{"invalid UTF-8", "caf\xe9", "caf", 1},
	} {
		if text, unmapped := clean(tt.raw); text != tt.want || unmapped != tt.unmapped {
			t.Errorf("%s: %q, %d unmapped; want %q, %d", tt.name, text, unmapped, tt.want, tt.unmapped)
		}
	}
}

func FuzzReadFrame(f *testing.F) {
	var frame bytes.Buffer
	_ = writeFrame(&frame, report{Event: page, Page: &pageReport{Page: Page{Number: 1, Text: "Ayes: 5"}, Err: errorf(ErrMemory, "x")}})
	f.Add(frame.Bytes())
	frame.Reset()
	_ = writeFrame(&frame, report{Event: drawn, Picture: &picture{Number: 1, Width: 2, Height: 3, DPI: 200}})
	f.Add(frame.Bytes())
	f.Add([]byte{})
	f.Add([]byte{0, 0, 0, 2, '{', '}'})
	f.Add([]byte{0, 0, 0, 9, '{', '}'})
	f.Add([]byte{255, 255, 255, 255, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		var r report
		if err := readFrame(bytes.NewReader(b), &r); err != nil {
			return
		}
		var again bytes.Buffer
		var same report
		if err := writeFrame(&again, r); err != nil {
			t.Fatal(err)
		}
		if err := readFrame(&again, &same); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(r, same, cmpopts.IgnoreUnexported(picture{})); diff != "" {
			t.Errorf("changed on the way (-sent +received):\n%s", diff)
		}
	})
}

func write(t *testing.T, path string, body []byte) {
	t.Helper()
	if err := os.WriteFile(path, body, 0o600); err != nil {
		t.Fatal(err)
	}
}

// renamed copies a file to a name that asks for nothing.
func renamed(t *testing.T, path string) string {
	t.Helper()
	body, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(t.TempDir(), "plain.pdf")
	write(t, to, body)
	return to
}

// document is a PDF of n pages, each with a line of text and the extra
// content; the extra objects are numbered from 10, the first being form /F0. It has no cross-reference
// table: pdfium looks for the objects itself.
func document(n int, extra string, objects ...string) []byte {
	var b bytes.Buffer
	b.WriteString("%PDF-1.4\n")
	kids := strings.Repeat("3 0 R ", n)
	fmt.Fprintf(&b, "1 0 obj <</Type/Catalog/Pages 2 0 R>> endobj\n2 0 obj <</Type/Pages/Count %d/Kids[%s]>> endobj\n", n, kids)
	b.WriteString("3 0 obj <</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Contents 5 0 R/Resources<</Font<</F1 4 0 R>>/XObject<</F0 10 0 R>>>>>> endobj\n")
	b.WriteString("4 0 obj <</Type/Font/Subtype/Type1/BaseFont/Helvetica>> endobj\n")
	b.WriteString("5 0 obj " + stream("", "BT /F1 12 Tf 72 700 Td (a line of text) Tj ET "+extra) + " endobj\n")
	for i, o := range objects {
		fmt.Fprintf(&b, "%d 0 obj %s endobj\n", 10+i, o)
	}
	b.WriteString("trailer <</Root 1 0 R>>\n%%EOF\n")
	return b.Bytes()
}

func stream(dict, content string) string {
	var b bytes.Buffer
	z := zlib.NewWriter(&b)
	_, _ = z.Write([]byte(content))
	_ = z.Close()
	return fmt.Sprintf("<<%s/Filter/FlateDecode/Length %d>> stream\n%s\nendstream", dict, b.Len(), b.String())
}

// forms are depth objects, each of which draws the next width times.
func forms(width, depth int) []string {
	var all []string
	for i := range depth {
		draw := "0 0 1 1 re f"
		if i < depth-1 {
			draw = strings.Repeat("/F Do ", width)
		}
		all = append(all, stream(fmt.Sprintf("/Type/XObject/Subtype/Form/BBox[0 0 9 9]/Resources<</XObject<</F %d 0 R>>>>", 11+i), draw))
	}
	return all
}
