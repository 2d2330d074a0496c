package table

import (
	"io"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"
	"github.com/apache/arrow/go/v17/parquet/pqarrow"
)

// Page is one page of a document: a row of the table of pages.
//
//	column   type     unit    null means
//	page     int32    from 1  never null
//	text     utf8             never null; empty when there is none
//	source   utf8             never null; native, ocr, image, blank or failed
//	quality  float32  0..1    not measured: no text layer
//	width    float32  points  not known: the page could not be opened
//	height   float32  points  not known: the page could not be opened
//	error    utf8             nothing went wrong
//
// In Go, the zero value stands for null. Text is valid UTF-8.
type Page struct {
	// Page is the page's number in its document, from 1.
	Page int32
	Text string
	// Source is where the text comes from, one of package civic's sources.
	Source string
	// Quality is how good the page's native text is.
	Quality float32
	// Width and Height are the page's size.
	Width, Height float32
	// Error is why the page could not be read, one line.
	Error string
}

// pages returns the schema of the table of pages.
func pages() *arrow.Schema {
	return arrow.NewSchema([]arrow.Field{
		{Name: "page", Type: arrow.PrimitiveTypes.Int32},
		{Name: "text", Type: arrow.BinaryTypes.String},
		{Name: "source", Type: arrow.BinaryTypes.String},
		{Name: "quality", Type: arrow.PrimitiveTypes.Float32, Nullable: true},
		{Name: "width", Type: arrow.PrimitiveTypes.Float32, Nullable: true},
		{Name: "height", Type: arrow.PrimitiveTypes.Float32, Nullable: true},
		{Name: "error", Type: arrow.BinaryTypes.String, Nullable: true},
	}, nil)
}

// WritePages writes pages as a Parquet table, in the order given. Meta goes
// into the file's footer.
func WritePages(w io.Writer, rows []Page, meta map[string]string) error {
	return write(w, pages(), meta, func(fw *pqarrow.FileWriter) error {
		b := array.NewRecordBuilder(memory.DefaultAllocator, pages())
		defer b.Release()
		for len(rows) > 0 {
			group := rows[:min(groupRows, len(rows))]
			rows = rows[len(group):]
			for _, p := range group {
				b.Field(0).(*array.Int32Builder).Append(p.Page)
				b.Field(1).(*array.StringBuilder).Append(p.Text)
				b.Field(2).(*array.StringBuilder).Append(p.Source)
				optional(b.Field(3).(*array.Float32Builder), p.Quality)
				optional(b.Field(4).(*array.Float32Builder), p.Width)
				optional(b.Field(5).(*array.Float32Builder), p.Height)
				optional(b.Field(6).(*array.StringBuilder), p.Error)
			}
			rec := b.NewRecord()
			err := fw.Write(rec)
			rec.Release()
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// ReadPages reads a table of pages and its footer's entries. A damaged file is
// a permanent error.
func ReadPages(r io.ReaderAt, size int64) ([]Page, map[string]string, error) {
	var rows []Page
	meta, err := read(r, size, pages(), func(rec arrow.Record) error {
		var (
			page    = columnOf[*array.Int32](rec, 0)
			text    = columnOf[*array.String](rec, 1)
			source  = columnOf[*array.String](rec, 2)
			quality = columnOf[*array.Float32](rec, 3)
			width   = columnOf[*array.Float32](rec, 4)
			height  = columnOf[*array.Float32](rec, 5)
			errs    = columnOf[*array.String](rec, 6)
		)
		for i := range int(rec.NumRows()) {
			rows = append(rows, Page{
				Page: page.Value(i), Text: text.Value(i), Source: source.Value(i),
				Quality: cell(quality, i), Width: cell(width, i), Height: cell(height, i),
				Error: cell(errs, i),
			})
		}
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	return rows, meta, nil
}
