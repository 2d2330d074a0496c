// Package pages brings the pictures of a range of pages, decoded and in order,
// to whoever works on them. While one page is worked on the next is fetched and
// decoded, and what lies decoded at one time is bounded in bytes, over all
// ranges that are read at once.
package pages

import (
	"context"
	"errors"
	"fmt"
	"image"
	"io/fs"
	"math"

	"golang.org/x/sync/semaphore"

	"github.com/reeve-pipeline/reeve/pkg/civic"
	"github.com/reeve-pipeline/reeve/pkg/fault"
	"github.com/reeve-pipeline/reeve/pkg/raster"
	"github.com/reeve-pipeline/reeve/pkg/table"
)

// Store keeps the pictures.
type Store interface {
	ReadAll(ctx context.Context, key, sha256 string, limit int64) ([]byte, error)
}

// Reader reads pages. It is safe for concurrent use.
type Reader struct {
	store  Store
	limits raster.Limits
	memory *semaphore.Weighted
	budget int64
}

// NewReader returns a reader whose pages take at most memory bytes, by the
// decoder's estimate; a page that alone takes more is read when no other is
// there. On top come the files being decoded, one for each range read at once.
func NewReader(store Store, limits raster.Limits, memory int64) *Reader {
	return &Reader{store: store, limits: limits, memory: semaphore.NewWeighted(memory), budget: memory}
}

// Page is a page that was asked for.
type Page struct {
	civic.PageImage
	// Gray is the picture, or nil when Err says why there is none.
	Gray *image.Gray
	// Err is about this page alone and permanent; the others go on.
	Err error

	held int64 // of the reader's memory, in bytes
}

// Each calls work for each page, in order and one at a time, while it fetches
// the next. A page whose picture is missing, damaged or too large comes with its
// error. Each ends with the first error of work, or of a store that gives no
// answer: what the pages are not to blame for.
func (r *Reader) Each(ctx context.Context, images []civic.PageImage, work func(Page) error) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	ahead := make(chan Page) // no buffer: the one in the reader's hand is the one ahead
	go func() {
		defer close(ahead)
		for _, img := range images {
			p, err := r.read(ctx, img)
			if err != nil {
				stop(err)
				return
			}
			select {
			case ahead <- p:
			case <-ctx.Done():
				r.memory.Release(p.held)
				return
			}
		}
	}()
	for p := range ahead {
		err := context.Cause(ctx)
		if err == nil {
			err = work(p)
		}
		r.memory.Release(p.held)
		if err != nil {
			stop(err)
			for late := range ahead {
				r.memory.Release(late.held)
			}
			return err
		}
	}
	return context.Cause(ctx)
}

// read fetches and decodes one page and takes of the memory what it needs.
func (r *Reader) read(ctx context.Context, img civic.PageImage) (Page, error) {
	p := Page{PageImage: img}
	data, err := r.store.ReadAll(ctx, img.Key, img.SHA256, r.limits.MaxBytes)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		p.Err = fault.Permanentf("%s: there is no object %s", img.Name, img.Key)
		return p, nil
	case fault.Of(err) == fault.ClassPermanent:
		p.Err = fmt.Errorf("%s: %w", img.Name, err)
		return p, nil
	case err != nil:
		return p, fmt.Errorf("%s: %w", img.Name, err)
	}
	info, err := raster.Inspect(data, r.limits)
	if err != nil {
		p.Err = fault.Permanent(fmt.Errorf("%s: %w", img.Name, err))
		return p, nil
	}
	need := min(info.Memory+int64(len(data)), r.budget)
	if err := r.memory.Acquire(ctx, need); err != nil {
		return p, err
	}
	p.Gray, info, err = raster.Decode(data, r.limits)
	if err != nil {
		r.memory.Release(need)
		p.Err = fault.Permanent(fmt.Errorf("%s: %w", img.Name, err))
		return p, nil
	}
	p.Width, p.Height = info.Width, info.Height
	if p.DPI == 0 {
		p.DPI = int(math.Round(info.DPIY))
	}
	p.held = min(int64(len(p.Gray.Pix)), need)
	r.memory.Release(need - p.held)
	return p, nil
}

// About is what the tables of lines say of the page: that it is ok, or that it
// came to nothing at the stage of that name.
func (p *Page) About(stage, source string) table.About {
	if p.Err != nil {
		return Failed(p.PageImage, stage, p.Err)
	}
	return table.About{Page: int32(p.Page), Image: p.Name, Width: int32(p.Width), Height: int32(p.Height), OK: true, Source: source}
}

// Failed is what the tables of lines say of a page that came to nothing.
func Failed(img civic.PageImage, stage string, err error) table.About {
	return table.About{
		Page: int32(img.Page), Image: img.Name, Width: int32(img.Width), Height: int32(img.Height), Source: civic.SourceFailed,
		ErrorStage: stage, ErrorClass: string(fault.Of(err)), ErrorMessage: fault.Message(err),
	}
}
