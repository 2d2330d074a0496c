// Package reduce joins what was found on the pages of a document, native text
// and recognised text, into the one table of its text.
package reduce

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/reeve-pipeline/reeve/pkg/civic"
	"github.com/reeve-pipeline/reeve/pkg/fault"
	"github.com/reeve-pipeline/reeve/pkg/stage"
	"github.com/reeve-pipeline/reeve/pkg/table"
)

// Name is the stage's one name.
const Name = "reduce"

// maxTable is the largest page table read, in bytes.
const maxTable = 512 << 20

// Objects keeps the tables.
type Objects interface {
	ReadAll(ctx context.Context, key, sha256 string, limit int64) ([]byte, error)
	Put(ctx context.Context, key string, r io.Reader, size int64, contentType string) (stage.Artifact, error)
}

// Reducer is the stage's handler.
type Reducer struct{ objects Objects }

// New returns a handler that reads and writes tables in a store.
func New(objects Objects) *Reducer { return &Reducer{objects} }

// Part is what a joined task hands on: the table of pages that it read, each
// of which takes the place of the page of that number.
type Part struct {
	Text *civic.Object `json:"text"`
}

// Handle writes the document's text.parquet and hands the document on with it.
// A document without any text is no failure: its counts say so. Pages of parts
// that failed stay what pagination found them to be.
func (r *Reducer) Handle(ctx context.Context, task *stage.Task) (stage.Result, error) {
	doc, err := stage.Spec[civic.Document](task)
	if err != nil {
		return stage.Result{}, err
	}
	if doc.ID == "" || doc.SHA256 == "" || doc.PageTable == nil {
		return stage.Result{}, fault.Permanentf("document %q comes without the id, digest or page table that pagination gives it", task.Item)
	}
	pages, err := r.read(ctx, *doc.PageTable)
	if err != nil {
		return stage.Result{}, err
	}
	at := make(map[int32]int, len(pages))
	for i, p := range pages {
		if _, twice := at[p.Page]; twice || p.Page < 1 {
			return stage.Result{}, fault.Permanentf("page table %s: page %d is listed twice or below 1", doc.PageTable.Key, p.Page)
		}
		at[p.Page] = i
	}
	failed := 0
	for input, err := range task.Inputs(ctx) {
		if err != nil {
			return stage.Result{}, fmt.Errorf("parts of %s: %w", task.Item, err)
		}
		var part Part
		if err := json.Unmarshal(input.Output, &part); input.Status != "completed" || err != nil || part.Text == nil {
			failed++
			continue
		}
		rows, err := r.read(ctx, *part.Text)
		if err != nil {
			return stage.Result{}, err
		}
		for _, p := range rows {
			i, ok := at[p.Page]
			if !ok {
				return stage.Result{}, fault.Permanentf("part %s has page %d, which document %s has not", input.Item, p.Page, doc.ID)
			}
			pages[i] = p
		}
	}
	slices.SortFunc(pages, func(a, b table.Page) int { return int(a.Page - b.Page) })

	counts, characters := count(pages)
	var buf bytes.Buffer
	if err := table.WritePages(&buf, pages, map[string]string{"document_id": doc.ID, "sha256": doc.SHA256, "pages": strconv.Itoa(counts.Total)}); err != nil {
		return stage.Result{}, fault.Permanent(err)
	}
	text, err := r.objects.Put(ctx, civic.DocumentKey(task.Subject, doc.ID, doc.SHA256, "text.parquet"), &buf, int64(buf.Len()), "application/vnd.apache.parquet")
	if err != nil {
		return stage.Result{}, err
	}
	doc.Pages = &counts
	doc.Text = &civic.Object{Key: text.Key, Size: text.Size, SHA256: text.SHA256}
	return stage.Result{
		Output:    doc,
		Artifacts: []stage.Artifact{text},
		Metrics: map[string]float64{
			"pages": float64(counts.Total), "pages_native": float64(counts.Native), "pages_ocr": float64(counts.OCR),
			"pages_image": float64(counts.Image), "pages_blank": float64(counts.Blank), "pages_failed": float64(counts.Failed),
			"characters": float64(characters), "parts_failed": float64(failed),
		},
	}, nil
}

// read returns the rows of a page table in the store.
func (r *Reducer) read(ctx context.Context, o civic.Object) ([]table.Page, error) {
	data, err := r.objects.ReadAll(ctx, o.Key, o.SHA256, maxTable)
	if err != nil {
		return nil, err
	}
	rows, _, err := table.ReadPages(bytes.NewReader(data), int64(len(data))) //nolint:contextcheck // from memory: nothing to wait for
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.Key, err)
	}
	return rows, nil
}

// count counts pages by source, and the characters of their text. A source
// that is not known counts as failed, so that the sum holds.
func count(pages []table.Page) (c civic.PageCounts, characters int) {
	c.Total = len(pages)
	for _, p := range pages {
		characters += utf8.RuneCountInString(p.Text)
		switch p.Source {
		case civic.SourceNative:
			c.Native++
		case civic.SourceOCR:
			c.OCR++
		case civic.SourceImage:
			c.Image++
		case civic.SourceBlank:
			c.Blank++
		default:
			c.Failed++
		}
	}
	return c, characters
}
