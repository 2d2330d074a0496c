// Package pagination turns a document into its pages: each page's own text
// where it has any, and what the others are. It never guesses: a page whose
// text is a picture is recorded as a picture.
package pagination

import (
	"context"
	"errors"
	"fmt"
	"image/png"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/reeve-pipeline/reeve/pkg/civic"
	"github.com/reeve-pipeline/reeve/pkg/fault"
	"github.com/reeve-pipeline/reeve/pkg/pdf"
	"github.com/reeve-pipeline/reeve/pkg/stage"
	"github.com/reeve-pipeline/reeve/pkg/table"
)

// Name is the stage's one name.
const Name = "pagination"

// Store keeps documents and tables. Put may overwrite.
type Store interface {
	GetFile(ctx context.Context, key, path, sha256 string) error
	PutFile(ctx context.Context, key, path, contentType string) (stage.Artifact, error)
}

// Reader reads and draws PDFs, as [pdf.Pool] does.
type Reader interface {
	Read(ctx context.Context, path string, each func(pdf.Page) error) (pdf.Info, error)
	Render(ctx context.Context, path string, o pdf.RenderOptions, each func(pdf.Rendered) error) (pdf.Info, error)
}

// Paginator is the stage's handler.
type Paginator struct {
	store  Store
	reader Reader
	temp   string
}

// New returns a handler that keeps the documents at work in a folder of its
// own under temp; empty: the system's.
func New(store Store, reader Reader, temp string) *Paginator {
	return &Paginator{store, reader, temp}
}

const (
	// modeSkip keeps text layers, whatever they are worth, and leaves the pages
	// without one as they are.
	modeSkip = "skip"
	// modeAuto keeps them too, and has the pages without one recognised.
	modeAuto = "auto"
)

// maxText bounds the text of a document, in bytes; a page of minutes has 2,000.
const maxText = 256 << 20

// Handle writes the document's pages.parquet and hands the document on with
// it. A page that cannot be read costs that page, and a document of which no
// page can be read fails for the first page's reason.
func (p *Paginator) Handle(ctx context.Context, task *stage.Task) (stage.Result, error) {
	doc, err := stage.Spec[civic.Document](task)
	if err != nil {
		return stage.Result{}, err
	}
	if doc.ID == "" || doc.Key == "" || doc.SHA256 == "" {
		return stage.Result{}, fault.Permanentf("document %q comes without the id, key or digest that fetch gives it", task.Item)
	}
	settings, err := stage.Settings[struct {
		OCRMode string `json:"ocr_mode"`
	}](task)
	if err != nil {
		return stage.Result{}, err
	}
	if mode := settings.OCRMode; mode != modeSkip && mode != modeAuto && mode != "" {
		return stage.Result{}, fault.Permanentf("ocr_mode %q is not offered, only %q and %q", mode, modeSkip, modeAuto)
	}
	dir, err := os.MkdirTemp(p.temp, "reeve-pagination-")
	if err != nil {
		return stage.Result{}, err
	}
	defer os.RemoveAll(dir)
	source := filepath.Join(dir, "source.pdf")
	if err := p.store.GetFile(ctx, doc.Key, source, doc.SHA256); err != nil {
		return stage.Result{}, fmt.Errorf("%s: %w", doc.Source, err)
	}
	pages, err := p.read(ctx, source)
	if err != nil {
		return stage.Result{}, fmt.Errorf("%s: %w", doc.Source, err)
	}
	if settings.OCRMode == modeAuto {
		if err := p.draw(ctx, task, doc, source, pages); err != nil {
			return stage.Result{}, fmt.Errorf("%s: %w", doc.Source, err)
		}
	}
	return p.keep(ctx, task.Subject, doc, pages, filepath.Join(dir, "pages.parquet"))
}

// draw keeps a picture of each page that has no text, and spawns them for
// recognition in ranges of a fixed grid, so that the same pages are always the
// same items. A page that cannot be drawn stays an image, with the reason.
func (p *Paginator) draw(ctx context.Context, task *stage.Task, doc civic.Document, source string, rows []table.Page) error {
	at := map[int]int{} // row by page number
	var numbers []int
	for i, row := range rows {
		if row.Source == civic.SourceImage {
			at[int(row.Page)] = i
			numbers = append(numbers, int(row.Page))
		}
	}
	if len(numbers) == 0 {
		return nil
	}
	slices.Sort(numbers)
	var part civic.Pages
	spawn := func() error {
		if len(part.Images) == 0 {
			return nil
		}
		return task.Spawn(ctx, stage.Item{Item: fmt.Sprintf("%s/%05d-%05d", doc.ID, part.First, part.Last), Spec: part})
	}
	_, err := p.reader.Render(ctx, source, pdf.RenderOptions{Pages: numbers}, func(page pdf.Rendered) error {
		if page.Image == nil {
			rows[at[page.Number]].Error = page.Err.Error()
			return nil
		}
		if page.Number > part.Last {
			if err := spawn(); err != nil {
				return err
			}
			first := (page.Number-1)/civic.MaxPages*civic.MaxPages + 1
			part = civic.Pages{
				Prefix: civic.DocumentKey(task.Subject, doc.ID, doc.SHA256, ""), Document: doc.ID, First: first, Last: first + civic.MaxPages - 1,
			}
		}
		img, err := p.picture(ctx, part.Prefix, filepath.Dir(source), page)
		if err != nil {
			return err
		}
		part.Images = append(part.Images, img)
		return nil
	})
	if err != nil {
		return err
	}
	return spawn()
}

// picture keeps a drawn page as a PNG file, without loss and fast to write.
func (p *Paginator) picture(ctx context.Context, prefix, dir string, page pdf.Rendered) (civic.PageImage, error) {
	name := fmt.Sprintf("%05d.png", page.Number)
	path := filepath.Join(dir, name)
	file, err := os.Create(path)
	if err != nil {
		return civic.PageImage{}, err
	}
	defer os.Remove(path)
	err = (&png.Encoder{CompressionLevel: png.BestSpeed}).Encode(file, page.Image)
	if err := errors.Join(err, file.Close()); err != nil {
		return civic.PageImage{}, fmt.Errorf("picture of page %d: %w", page.Number, err)
	}
	kept, err := p.store.PutFile(ctx, prefix+"/pages/"+name, path, "image/png")
	if err != nil {
		return civic.PageImage{}, err
	}
	size := page.Image.Bounds()
	return civic.PageImage{
		Page: page.Number, Name: name, Object: civic.Object{Key: kept.Key, Size: kept.Size, SHA256: kept.SHA256},
		Width: size.Dx(), Height: size.Dy(), DPI: int(page.DPI + .5),
	}, nil
}

// read reads the pages of a file.
func (p *Paginator) read(ctx context.Context, path string) ([]table.Page, error) {
	var rows []table.Page
	var first error // of the pages that failed
	failed, text := 0, 0
	_, err := p.reader.Read(ctx, path, func(page pdf.Page) error {
		row := Row(page)
		if page.Err != nil {
			failed++
			if first == nil {
				first = page.Err
			}
		}
		if text += len(row.Text); text > maxText {
			return fault.Permanentf("has more than %d MiB of text by page %d", maxText>>20, page.Number)
		}
		rows = append(rows, row)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if first != nil && failed == len(rows) {
		return nil, fault.Permanent(first)
	}
	return rows, nil
}

// keep writes the table and completes the document with it.
func (p *Paginator) keep(ctx context.Context, subdomain string, doc civic.Document, rows []table.Page, path string) (stage.Result, error) {
	file, err := os.Create(path)
	if err != nil {
		return stage.Result{}, err
	}
	err = table.WritePages(file, rows, map[string]string{"document_id": doc.ID, "source": doc.Source, "sha256": doc.SHA256})
	if err := errors.Join(err, file.Close()); err != nil {
		return stage.Result{}, fmt.Errorf("%s: table of pages: %w", doc.Source, err)
	}
	kept, err := p.store.PutFile(ctx, civic.DocumentKey(subdomain, doc.ID, doc.SHA256, "pages.parquet"), path, "application/vnd.apache.parquet")
	if err != nil {
		return stage.Result{}, fmt.Errorf("%s: %w", doc.Source, err)
	}
	counts := count(rows)
	doc.Pages = &counts
	doc.PageTable = &civic.Object{Key: kept.Key, Size: kept.Size, SHA256: kept.SHA256}
	return stage.Result{
		Output:    doc,
		Artifacts: []stage.Artifact{kept},
		Metrics: map[string]float64{
			"pages": float64(counts.Total), "pages_native": float64(counts.Native), "pages_image": float64(counts.Image),
			"pages_blank": float64(counts.Blank), "pages_failed": float64(counts.Failed),
		},
	}, nil
}

// Row decides what a page is. Text of any quality is kept, with its quality.
func Row(p pdf.Page) table.Page {
	row := table.Page{Page: int32(p.Number), Width: float32(p.Width), Height: float32(p.Height)}
	drawn := p.Images+p.Paths+p.Others > 0 || p.Unmapped > 0
	switch {
	case p.Err != nil:
		row.Source, row.Error = civic.SourceFailed, p.Err.Error()
	case legible(p.Text), p.Text != "" && !drawn:
		row.Source, row.Text, row.Quality = civic.SourceNative, p.Text, float32(Quality(p))
	case drawn:
		row.Source = civic.SourceImage
	default:
		row.Source = civic.SourceBlank
	}
	return row
}

// legible reports whether there is a letter or a digit in a text. A full stop
// over a scan is no text.
func legible(text string) bool {
	return strings.ContainsFunc(text, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) })
}

func count(rows []table.Page) civic.PageCounts {
	c := civic.PageCounts{Total: len(rows)}
	for _, r := range rows {
		switch r.Source {
		case civic.SourceNative:
			c.Native++
		case civic.SourceImage:
			c.Image++
		case civic.SourceBlank:
			c.Blank++
		default:
			c.Failed++
		}
	}
	return c
}
