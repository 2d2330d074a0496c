package pdf

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/reeve-pipeline/reeve/pkg/fault"
	"github.com/reeve-pipeline/reeve/pkg/sample"
)

// drawing is what a page of [document] has drawn on it besides its line: black
// in the lower left corner, 100 x 50 points, and half grey above it, in red
// and green that are as light.
const drawing = "0 g 0 0 100 50 re f 1 0 0 rg 0 50 100 50 re f 0 0.5 0 rg 0 100 100 50 re f"

// render draws pages of a document.
func render(t *testing.T, p *Pool, path string, o RenderOptions) ([]Rendered, error) {
	t.Helper()
	var all []Rendered
	_, err := p.Render(t.Context(), path, o, func(r Rendered) error {
		all = append(all, r)
		if r.Err == nil && (r.Image.Stride != r.Image.Rect.Dx() || len(r.Image.Pix) != r.Image.Stride*r.Image.Rect.Dy()) {
			t.Errorf("page %d has %d bytes for %v", r.Number, len(r.Image.Pix), r.Image.Rect)
		}
		return nil
	})
	return all, err
}

// sizes tells how each page came out.
func sizes(all []Rendered) string {
	var words []string
	for _, r := range all {
		kind, _ := errors.AsType[Kind](r.Err)
		word := string(kind)
		if r.Err == nil {
			word = fmt.Sprintf("%d x %d at %g", r.Image.Rect.Dx(), r.Image.Rect.Dy(), r.DPI)
		}
		words = append(words, fmt.Sprintf("%d: %s", r.Number, word))
	}
	return strings.Join(words, ", ")
}

func TestPool_Render(t *testing.T) {
	t.Parallel()
	pool := open(t, nil)
	dir := t.TempDir()
	for name, body := range map[string][]byte{
		"upright.pdf": document(3, drawing),
		"turned.pdf":  []byte(strings.Replace(string(document(1, drawing)), "/MediaBox", "/Rotate 90/MediaBox", 1)),
		"plan.pdf":    []byte(strings.Replace(string(document(1, drawing)), "612 792", "3600 7200", 1)),
	} {
		write(t, filepath.Join(dir, name), body)
	}
	for _, tt := range []struct {
		name string
		o    RenderOptions
		want string
	}{
		{"upright.pdf", RenderOptions{}, "1: 1700 x 2200 at 200, 2: 1700 x 2200 at 200, 3: 1700 x 2200 at 200"},
		{"upright.pdf", RenderOptions{DPI: 72, Pages: []int{3, 1}}, "3: 612 x 792 at 72, 1: 612 x 792 at 72"},
		{"upright.pdf", RenderOptions{DPI: 72, Pages: []int{0, 2, 9}}, "0: no such page, 2: 612 x 792 at 72, 9: no such page"},
		{"turned.pdf", RenderOptions{DPI: 100}, "1: 1100 x 850 at 100"},
		{"plan.pdf", RenderOptions{}, "1: 4450 x 8900 at 89"},
		{"plan.pdf", RenderOptions{MaxPixels: 1_000_000}, "1: page too large"},
		{"upright.pdf", RenderOptions{DPI: 72, Pages: []int{1}, MaxPixels: 612 * 792}, "1: 612 x 792 at 72"},
		{"upright.pdf", RenderOptions{DPI: 72, Pages: []int{1}, MaxPixels: 612*792 - 1}, "1: 604 x 781 at 71"},
	} {
		all, err := render(t, pool, filepath.Join(dir, tt.name), tt.o)
		if err != nil || sizes(all) != tt.want {
			t.Errorf("%s, %+v: %s, %v; want %s", tt.name, tt.o, sizes(all), err, tt.want)
		}
	}

	all, err := render(t, pool, filepath.Join(dir, "upright.pdf"), RenderOptions{DPI: 144, Pages: []int{1}})
	if err != nil {
		t.Fatal(err)
	}
	m := all[0].Image
	for _, tt := range []struct {
		name string
		x, y int // points from the lower left
		want int
	}{{"paper", 300, 300, 255}, {"black", 50, 25, 0}, {"red", 50, 75, 76}, {"green", 50, 125, 75}, {"beside", 110, 25, 255}} {
		got := int(m.GrayAt(2*tt.x, 2*(792-tt.y)).Y)
		if got < tt.want-2 || got > tt.want+2 {
			t.Errorf("%s is %d, want %d", tt.name, got, tt.want)
		}
	}
	ink := 0
	for y := 2 * (792 - 712); y < 2*(792-698); y++ { // the line of text
		for x := 2 * 72; x < 2*160; x++ {
			if m.GrayAt(x, y).Y < 128 {
				ink++
			}
		}
	}
	if ink < 200 || ink > 3000 {
		t.Errorf("the line of text has %d dark pixels", ink)
	}
}

// A page that is an image comes out as that image.
func TestPool_Render_scan(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	town, err := sample.Write(dir)
	if err != nil {
		t.Fatal(err)
	}
	pool := open(t, nil)
	scans := 0
	for _, f := range town.Files {
		if f.Status == "failed" || f.Pages.Image == 0 {
			continue
		}
		path := filepath.Join(dir, f.Path)
		pages, err := collect(t, pool, path)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range pages {
			if p.Images == 0 || p.Text != "" {
				continue
			}
			all, err := render(t, pool, path, RenderOptions{DPI: 150, Pages: []int{p.Number}})
			if err != nil || sizes(all) != fmt.Sprintf("%d: 1275 x 1650 at 150", p.Number) {
				t.Fatalf("%s: %s, %v", f.Path, sizes(all), err)
			}
			paper, ink := 0, 0
			for _, v := range all[0].Image.Pix {
				if v > 230 {
					paper++
				}
				if v < 80 {
					ink++
				}
			}
			if paper < 1275*1650*9/10 || ink < 1000 {
				t.Errorf("%s, page %d: %d pixels of paper, %d of ink", f.Path, p.Number, paper, ink)
			}
			scans++
		}
	}
	if scans == 0 {
		t.Error("the sample has no scans")
	}
}

// What goes wrong with a page costs that page.
func TestPool_Render_misbehaviour(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		pages []int
		want  string
	}{
		{"hang@2.pdf", nil, "1: 612 x 792 at 72, 2: took too long, 3: 612 x 792 at 72"},
		{"crash@2.pdf", []int{3, 2, 1}, "3: 612 x 792 at 72, 2: crashed the reader, 1: 612 x 792 at 72"},
		{"falter@1.pdf", []int{1}, "1: 612 x 792 at 72"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			pool := open(t, func(c *Config) { c.PageTimeout = 2 * time.Second })
			path := filepath.Join(t.TempDir(), tt.name)
			write(t, path, document(3, drawing))
			write(t, path+".first", nil)
			all, err := render(t, pool, path, RenderOptions{DPI: 72, Pages: tt.pages})
			if err != nil || sizes(all) != tt.want {
				t.Errorf("%s, %v; want %s", sizes(all), err, tt.want)
			}
		})
	}
}

// The time that the receiver takes is not the document's.
func TestPool_Render_slowReceiver(t *testing.T) {
	t.Parallel()
	pool := open(t, func(c *Config) { c.Timeout, c.PageTimeout = 2*time.Second, 2*time.Second })
	path := filepath.Join(t.TempDir(), "fine.pdf")
	write(t, path, document(3, ""))
	pages := 0
	_, err := pool.Render(t.Context(), path, RenderOptions{DPI: 72}, func(r Rendered) error {
		pages++
		if pages == 1 {
			<-time.After(2500 * time.Millisecond)
		}
		return r.Err
	})
	if err != nil || pages != 3 {
		t.Errorf("%d pages, %v", pages, err)
	}
}

func TestPool_Render_refused(t *testing.T) {
	t.Parallel()
	pool := open(t, nil)
	path := filepath.Join(t.TempDir(), "fine.pdf")
	write(t, path, document(3, ""))
	for _, o := range []RenderOptions{{DPI: 20}, {DPI: -1}, {DPI: 1e9}, {MaxPixels: -5}} {
		if all, err := render(t, pool, path, o); err == nil || len(all) > 0 {
			t.Errorf("%+v: %d pages, %v", o, len(all), err)
		}
	}
	refusal := errors.New("no more")
	if _, err := pool.Render(t.Context(), path, RenderOptions{}, func(Rendered) error { return refusal }); !errors.Is(err, refusal) {
		t.Errorf("error %v, want the callback's own", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err := pool.Render(ctx, path, RenderOptions{}, func(Rendered) error { cancel(); return nil })
	if !errors.Is(err, context.Canceled) || fault.Of(err) == fault.ClassPermanent {
		t.Errorf("error %v, want context canceled", err)
	}
	empty := filepath.Join(t.TempDir(), "empty.pdf")
	write(t, empty, nil)
	if _, err := render(t, pool, empty, RenderOptions{}); fault.Of(err) != fault.ClassPermanent || !strings.Contains(err.Error(), "is empty") {
		t.Errorf("error %v of an empty file", err)
	}
}

// A picture's header is not believed beyond what was asked for.
func TestPicture_receive(t *testing.T) {
	t.Parallel()
	c := &canvas{DPI: 200, MaxPixels: 6}
	for _, tt := range []struct {
		w, h int
		ok   bool
	}{{2, 3, true}, {3, 3, false}, {0, 3, false}, {3, -1, false}, {1 << 40, 1 << 40, false}} {
		p := picture{Number: 1, Width: tt.w, Height: tt.h}
		if err := p.receive(strings.NewReader("123456"), c); (err == nil) != tt.ok {
			t.Errorf("%d x %d: %v", tt.w, tt.h, err)
		}
	}
	if err := (&picture{Width: 1, Height: 1}).receive(strings.NewReader("1"), nil); err == nil {
		t.Error("a picture was taken where text was asked for")
	}
	if err := (&picture{Width: 1, Height: 2}).receive(strings.NewReader("1"), c); err == nil {
		t.Error("a picture cut short was taken")
	}
}
