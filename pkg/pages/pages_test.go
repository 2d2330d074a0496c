package pages_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/jpeg"
	"io/fs"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/reeve-pipeline/reeve/pkg/civic"
	"github.com/reeve-pipeline/reeve/pkg/fault"
	"github.com/reeve-pipeline/reeve/pkg/pages"
	"github.com/reeve-pipeline/reeve/pkg/raster"
)

// shelf is a store in memory. It notes what was asked for.
type shelf struct {
	mu     sync.Mutex
	files  map[string][]byte
	errs   map[string]error
	asked  []string
	notify func(key string)
}

func (s *shelf) ReadAll(ctx context.Context, key, _ string, _ int64) ([]byte, error) {
	s.mu.Lock()
	s.asked = append(s.asked, key)
	data, ok := s.files[key]
	err := s.errs[key]
	s.mu.Unlock()
	if s.notify != nil {
		s.notify(key)
	}
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		return nil, err
	case !ok:
		return nil, fmt.Errorf("get %s (s3 bucket b at somewhere): %w", key, fs.ErrNotExist)
	}
	return data, nil
}

// picture is a grey JPEG of that size and shade.
func picture(t *testing.T, w, h int, shade uint8) []byte {
	t.Helper()
	m := image.NewGray(image.Rect(0, 0, w, h))
	for i := range m.Pix {
		m.Pix[i] = shade
	}
	var buf bytes.Buffer
	if err := jpeg.Encode(&buf, m, nil); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func images(keys ...string) []civic.PageImage {
	var all []civic.PageImage
	for i, key := range keys {
		all = append(all, civic.PageImage{Page: i + 1, Name: key + ".jpg", Object: civic.Object{Key: key}})
	}
	return all
}

func TestEach(t *testing.T) {
	t.Parallel()
	good := picture(t, 60, 40, 200)
	bomb := bytes.Clone(good)
	at := bytes.Index(bomb, []byte{0xff, 0xc0}) // the frame's header: height and width follow
	copy(bomb[at+5:], []byte{0xea, 0x60, 0xea, 0x60})
	store := &shelf{files: map[string][]byte{
		"good": good, "cut": good[:len(good)/2], "empty": {}, "bomb": bomb, "words": []byte("not a picture"), "dark": picture(t, 30, 20, 10),
	}}
	keys := []string{"good", "cut", "empty", "bomb", "words", "missing", "dark"}
	says := []string{"", "cut.jpg: ", "empty.jpg: is empty", "60000 x 60000", "not a page image", "there is no object missing", ""}
	var got []pages.Page
	err := pages.NewReader(store, raster.Defaults(), 1<<20).Each(t.Context(), images(keys...), func(p pages.Page) error {
		got = append(got, p)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != len(keys) {
		t.Fatalf("%d of %d pages came", len(got), len(keys))
	}
	for i, p := range got {
		about := p.About("line_detection", civic.SourceImage)
		switch {
		case p.Page != i+1 || p.Key != keys[i]:
			t.Errorf("page %d is %d, %s", i+1, p.Page, p.Key)
		case says[i] == "" && (p.Err != nil || p.Gray == nil || !about.OK || int(about.Width) != p.Gray.Rect.Dx() || about.Source != civic.SourceImage):
			t.Errorf("%s: %+v, error %v", keys[i], about, p.Err)
		case says[i] == "":
		case fault.Of(p.Err) != fault.ClassPermanent || p.Gray != nil || !strings.Contains(fmt.Sprint(p.Err), says[i]):
			t.Errorf("%s: error %v, want a permanent one with %q", keys[i], p.Err, says[i])
		case about.OK || about.ErrorStage != "line_detection" || about.ErrorClass != "permanent" || about.ErrorMessage == "" || about.Source != civic.SourceFailed:
			t.Errorf("%s: %+v", keys[i], about)
		}
	}
	if shade := got[6].Gray.GrayAt(5, 5); shade != (color.Gray{Y: 10}) {
		t.Errorf("the last page's pixels are %v", shade)
	}
}

// A store that gives no answer is no fault of the page.
func TestEach_infra(t *testing.T) {
	t.Parallel()
	store := &shelf{
		files: map[string][]byte{"a": picture(t, 8, 8, 0), "c": picture(t, 8, 8, 0)},
		errs:  map[string]error{"b": fault.Infra(errors.New("no answer"))},
	}
	var came []int
	err := pages.NewReader(store, raster.Defaults(), 1<<20).Each(t.Context(), images("a", "b", "c"), func(p pages.Page) error {
		came = append(came, p.Page)
		return nil
	})
	if fault.Of(err) != fault.ClassInfra || slices.Contains(came, 2) {
		t.Errorf("error %v after pages %v", err, came)
	}
}

// The next page is read while one is worked on, and no further.
func TestEach_ahead(t *testing.T) {
	t.Parallel()
	fetched := make(chan string, 10)
	data := picture(t, 8, 8, 0)
	store := &shelf{
		files:  map[string][]byte{"a": data, "b": data, "c": data, "d": data},
		notify: func(key string) { fetched <- key },
	}
	err := pages.NewReader(store, raster.Defaults(), 1<<20).Each(t.Context(), images("a", "b", "c", "d"), func(p pages.Page) error {
		if p.Page == 1 {
			if first, next := <-fetched, <-fetched; first != "a" || next != "b" { // or it hangs
				t.Errorf("%s, then %s was fetched", first, next)
			}
			store.mu.Lock()
			defer store.mu.Unlock()
			if len(store.asked) != 2 {
				t.Errorf("%v were fetched while the first is worked on", store.asked)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// However many ranges are read at once, and whatever becomes of them, the pages
// there at one time fit the budget, and in the end all of it is free again.
func TestEach_memory(t *testing.T) {
	t.Parallel()
	const side, budget = 100, 15_000 // a page takes 10,000: there can be one
	data := picture(t, side, side, 50)
	store := &shelf{files: map[string][]byte{"p": data, "cut": data[:len(data)-300]}, errs: map[string]error{"down": fault.Infra(errors.New("down"))}}
	reader := pages.NewReader(store, raster.Defaults(), budget)
	enough := errors.New("enough")
	var there, most atomic.Int64
	work := func(p pages.Page) error {
		if p.Gray != nil {
			n := there.Add(int64(len(p.Gray.Pix)))
			for range 10 {
				runtime.Gosched() // let the others try
			}
			for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
			}
			there.Add(-int64(len(p.Gray.Pix)))
		}
		if p.Page == 5 {
			return enough
		}
		return nil
	}
	var all sync.WaitGroup
	for i := range 24 {
		all.Go(func() {
			keys := []string{"p", "cut", "p", "p"}
			switch i % 3 {
			case 1:
				keys = append(keys, "p", "p") // ends with enough
			case 2:
				keys = append(keys, "down", "p")
			}
			err := reader.Each(t.Context(), images(keys...), work)
			if want := []error{nil, enough}; i%3 < 2 && !errors.Is(err, want[i%3]) {
				t.Errorf("range %d: %v", i, err)
			}
			if i%3 == 2 && fault.Of(err) != fault.ClassInfra {
				t.Errorf("range %d: %v", i, err)
			}
		})
	}
	all.Wait()
	if most.Load() > budget {
		t.Errorf("%d bytes were there at once, of %d", most.Load(), budget)
	}
	// A page that needs the whole budget can still be read.
	large := &civic.PageImage{Page: 1, Name: "large.jpg", Object: civic.Object{Key: "large"}}
	store.files["large"] = picture(t, 400, 400, 1)
	if err := reader.Each(t.Context(), []civic.PageImage{*large}, func(p pages.Page) error { return p.Err }); err != nil {
		t.Error(err)
	}
}

func TestEach_stopped(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	store := &shelf{files: map[string][]byte{"a": picture(t, 8, 8, 0)}}
	err := pages.NewReader(store, raster.Defaults(), 1<<20).Each(ctx, images("a", "a", "a"), func(pages.Page) error {
		stop()
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}
