package table

import (
	"io"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"
	"github.com/apache/arrow/go/v17/parquet/pqarrow"
)

// ContentType is the media type of a table.
const ContentType = "application/vnd.apache.parquet"

// Point is a position in a page's original image: x to the right and y down,
// px from its top left corner. It may lie outside of the image.
type Point = [2]int32

// About is what a row says of its page, and of how the work on it went. The
// columns are the same in the tables of detections, lines and results.
//
//	column         type     unit   null means
//	page           int32    from 1 never null
//	image_name     utf8            never null
//	page_width     int32    px     not known: the image could not be opened
//	page_height    int32    px     not known: the image could not be opened
//	ok             bool            never null
//	error_stage    utf8            nothing went wrong
//	error_class    utf8            nothing went wrong
//	error_message  utf8            nothing went wrong
//	confidence     float32  0..1   not measured
//	source         utf8            never null; image, ocr, blank or failed
type About struct {
	Page          int32
	Image         string
	Width, Height int32
	// OK: the page was worked on, or the line read. ErrorMessage may then still
	// say what to beware of; else all three say what went wrong.
	OK                                   bool
	ErrorStage, ErrorClass, ErrorMessage string
	// Confidence is the detector's or the recogniser's, by the table.
	Confidence float32
	Source     string
}

// Detection is where the lines of one page are: a row of line_detection. Its
// confidence is the mean of its lines'.
//
//	column              type                      unit     null means
//	rotated_image_path  utf8                               always: the angle is kept instead
//	rot_mask            binary                             always: the contours are kept instead
//	page_angle          float64                   degrees  never null
//	page_angle_flag     utf8                               the angle is what the page shows
//	dewarping_applied   bool                               never null
//	tps_ratio           float64                            not measured
//	tps_points          list<list<float64>>       px       never null
//	tps_alpha           float64                   px²      exact: 0
//	filtered_contours   list<list<list<int32>>>   px       never null
//	contour_scores      list<float32>             0..1     never null
type Detection struct {
	About
	// Angle is how far the page is tilted, clockwise positive; 0 where AngleFlag,
	// one of package vision's, says why it is not to be corrected.
	Angle     float64
	AngleFlag string
	// Dewarping: the lines are to be read off a page flattened by the spline
	// that TPSPoints and TPSAlpha make.
	Dewarping bool
	// TPSRatio is the share of lines that are bent.
	TPSRatio float64
	// TPSPoints are the spline's control points: y and x on the page as it is,
	// y and x on the flattened page.
	TPSPoints [][4]float64
	TPSAlpha  float64
	// Contours are the outlines of the lines, in no order that means anything.
	Contours [][]Point
	// Scores are the detector's confidences, one for each contour.
	Scores []float32
}

// LineImage is one line in its place: a row of line_images. Lines are in
// reading order, line_index from 0 within a page. The confidence is the
// detector's.
//
//	column           type                unit    null means
//	line_index       int32               from 0  never null
//	line_image_path  utf8                        not kept: the contour says it all
//	line_guid        utf8                        never null
//	bbox_x, bbox_y   int32               px      never null
//	bbox_w, bbox_h   int32               px      never null
//	center_x         int32               px      never null
//	center_y         int32               px      never null
//	contour          list<list<int32>>   px      never null
type LineImage struct {
	About
	Index      int32
	Path       string
	GUID       string
	X, Y, W, H int32
	// CenterX and CenterY are the middle of the bounding box.
	CenterX, CenterY int32
	Contour          []Point
}

// Recognition is the text of one line: a row of ocr_results.
//
//	column      type   null means
//	line_index  int32  never null
//	line_guid   utf8   never null
//	text        utf8   never null; empty when nothing was recognised
//	encoding    utf8   never null; unicode or wylie
type Recognition struct {
	About
	Index    int32
	GUID     string
	Text     string
	Encoding string
}

// aboutFields are the columns that the three tables end with.
func aboutFields() []arrow.Field {
	return []arrow.Field{
		{Name: "page", Type: arrow.PrimitiveTypes.Int32},
		{Name: "page_width", Type: arrow.PrimitiveTypes.Int32, Nullable: true},
		{Name: "page_height", Type: arrow.PrimitiveTypes.Int32, Nullable: true},
		{Name: "ok", Type: arrow.FixedWidthTypes.Boolean},
		{Name: "error_stage", Type: arrow.BinaryTypes.String, Nullable: true},
		{Name: "error_class", Type: arrow.BinaryTypes.String, Nullable: true},
		{Name: "error_message", Type: arrow.BinaryTypes.String, Nullable: true},
		{Name: "confidence", Type: arrow.PrimitiveTypes.Float32, Nullable: true},
		{Name: "source", Type: arrow.BinaryTypes.String},
	}
}

// about returns a schema of image_name, the columns given, and those of [About].
func about(fields ...arrow.Field) *arrow.Schema {
	all := append([]arrow.Field{{Name: "image_name", Type: arrow.BinaryTypes.String}}, fields...)
	return arrow.NewSchema(append(all, aboutFields()...), nil)
}

func detections() *arrow.Schema {
	return about(
		arrow.Field{Name: "rotated_image_path", Type: arrow.BinaryTypes.String, Nullable: true},
		arrow.Field{Name: "rot_mask", Type: arrow.BinaryTypes.Binary, Nullable: true},
		arrow.Field{Name: "page_angle", Type: arrow.PrimitiveTypes.Float64},
		arrow.Field{Name: "page_angle_flag", Type: arrow.BinaryTypes.String, Nullable: true},
		arrow.Field{Name: "dewarping_applied", Type: arrow.FixedWidthTypes.Boolean},
		arrow.Field{Name: "tps_ratio", Type: arrow.PrimitiveTypes.Float64, Nullable: true},
		arrow.Field{Name: "tps_points", Type: arrow.ListOf(arrow.ListOf(arrow.PrimitiveTypes.Float64))},
		arrow.Field{Name: "tps_alpha", Type: arrow.PrimitiveTypes.Float64, Nullable: true},
		arrow.Field{Name: "filtered_contours", Type: arrow.ListOf(arrow.ListOf(arrow.ListOf(arrow.PrimitiveTypes.Int32)))},
		arrow.Field{Name: "contour_scores", Type: arrow.ListOf(arrow.PrimitiveTypes.Float32)},
	)
}

func lineImages() *arrow.Schema {
	return about(
		arrow.Field{Name: "line_index", Type: arrow.PrimitiveTypes.Int32},
		arrow.Field{Name: "line_image_path", Type: arrow.BinaryTypes.String, Nullable: true},
		arrow.Field{Name: "line_guid", Type: arrow.BinaryTypes.String},
		arrow.Field{Name: "bbox_x", Type: arrow.PrimitiveTypes.Int32},
		arrow.Field{Name: "bbox_y", Type: arrow.PrimitiveTypes.Int32},
		arrow.Field{Name: "bbox_w", Type: arrow.PrimitiveTypes.Int32},
		arrow.Field{Name: "bbox_h", Type: arrow.PrimitiveTypes.Int32},
		arrow.Field{Name: "center_x", Type: arrow.PrimitiveTypes.Int32},
		arrow.Field{Name: "center_y", Type: arrow.PrimitiveTypes.Int32},
		arrow.Field{Name: "contour", Type: arrow.ListOf(arrow.ListOf(arrow.PrimitiveTypes.Int32))},
	)
}

func recognitions() *arrow.Schema {
	return about(
		arrow.Field{Name: "line_index", Type: arrow.PrimitiveTypes.Int32},
		arrow.Field{Name: "line_guid", Type: arrow.BinaryTypes.String},
		arrow.Field{Name: "text", Type: arrow.BinaryTypes.String},
		arrow.Field{Name: "encoding", Type: arrow.BinaryTypes.String},
	)
}

// WriteDetections writes the table line_detection, as [WritePages] does.
func WriteDetections(w io.Writer, rows []Detection, meta map[string]string) error {
	return writeRows(w, detections(), meta, rows, func(r Detection) *About { return &r.About }, func(b *array.RecordBuilder, r Detection) {
		b.Field(1).AppendNull()
		b.Field(2).AppendNull()
		b.Field(3).(*array.Float64Builder).Append(r.Angle)
		optional(b.Field(4).(*array.StringBuilder), r.AngleFlag)
		b.Field(5).(*array.BooleanBuilder).Append(r.Dewarping)
		optional(b.Field(6).(*array.Float64Builder), r.TPSRatio)
		points := b.Field(7).(*array.ListBuilder)
		points.Append(true)
		for _, p := range r.TPSPoints {
			point := points.ValueBuilder().(*array.ListBuilder)
			point.Append(true)
			point.ValueBuilder().(*array.Float64Builder).AppendValues(p[:], nil)
		}
		optional(b.Field(8).(*array.Float64Builder), r.TPSAlpha)
		contours := b.Field(9).(*array.ListBuilder)
		contours.Append(true)
		for _, c := range r.Contours {
			appendContour(contours.ValueBuilder().(*array.ListBuilder), c)
		}
		scores := b.Field(10).(*array.ListBuilder)
		scores.Append(true)
		scores.ValueBuilder().(*array.Float32Builder).AppendValues(r.Scores, nil)
	})
}

// WriteLineImages writes the table line_images, as [WritePages] does.
func WriteLineImages(w io.Writer, rows []LineImage, meta map[string]string) error {
	return writeRows(w, lineImages(), meta, rows, func(r LineImage) *About { return &r.About }, func(b *array.RecordBuilder, r LineImage) {
		b.Field(1).(*array.Int32Builder).Append(r.Index)
		optional(b.Field(2).(*array.StringBuilder), r.Path)
		b.Field(3).(*array.StringBuilder).Append(r.GUID)
		for i, v := range [...]int32{r.X, r.Y, r.W, r.H, r.CenterX, r.CenterY} {
			b.Field(4 + i).(*array.Int32Builder).Append(v)
		}
		appendContour(b.Field(10).(*array.ListBuilder), r.Contour)
	})
}

// WriteRecognitions writes the table ocr_results, as [WritePages] does.
func WriteRecognitions(w io.Writer, rows []Recognition, meta map[string]string) error {
	return writeRows(w, recognitions(), meta, rows, func(r Recognition) *About { return &r.About }, func(b *array.RecordBuilder, r Recognition) {
		b.Field(1).(*array.Int32Builder).Append(r.Index)
		b.Field(2).(*array.StringBuilder).Append(r.GUID)
		b.Field(3).(*array.StringBuilder).Append(r.Text)
		b.Field(4).(*array.StringBuilder).Append(r.Encoding)
	})
}

// ReadDetections reads a table line_detection, as [ReadPages] does.
func ReadDetections(r io.ReaderAt, size int64) ([]Detection, map[string]string, error) {
	return readRows(r, size, detections(), func(rec arrow.Record) func(int, About) Detection {
		var (
			angle     = columnOf[*array.Float64](rec, 3)
			flag      = columnOf[*array.String](rec, 4)
			dewarping = columnOf[*array.Boolean](rec, 5)
			ratio     = columnOf[*array.Float64](rec, 6)
			points    = columnOf[*array.List](rec, 7)
			alpha     = columnOf[*array.Float64](rec, 8)
			contours  = columnOf[*array.List](rec, 9)
			scores    = columnOf[*array.List](rec, 10)
		)
		return func(i int, about About) Detection {
			d := Detection{
				About: about, Angle: angle.Value(i), AngleFlag: cell(flag, i),
				Dewarping: dewarping.Value(i), TPSRatio: cell(ratio, i), TPSAlpha: cell(alpha, i),
			}
			for j := range span(points, i) {
				var p [4]float64
				coordinates[*array.Float64](p[:], points.ListValues().(*array.List), j)
				d.TPSPoints = append(d.TPSPoints, p)
			}
			for j := range span(contours, i) {
				d.Contours = append(d.Contours, contourAt(contours.ListValues().(*array.List), j))
			}
			for j := range span(scores, i) {
				d.Scores = append(d.Scores, scores.ListValues().(*array.Float32).Value(j))
			}
			return d
		}
	})
}

// ReadLineImages reads a table line_images, as [ReadPages] does.
func ReadLineImages(r io.ReaderAt, size int64) ([]LineImage, map[string]string, error) {
	return readRows(r, size, lineImages(), func(rec arrow.Record) func(int, About) LineImage {
		var (
			path    = columnOf[*array.String](rec, 2)
			guid    = columnOf[*array.String](rec, 3)
			contour = columnOf[*array.List](rec, 10)
		)
		number := func(column, i int) int32 { return columnOf[*array.Int32](rec, column).Value(i) }
		return func(i int, about About) LineImage {
			return LineImage{
				About: about, Index: number(1, i), Path: cell(path, i), GUID: guid.Value(i),
				X: number(4, i), Y: number(5, i), W: number(6, i), H: number(7, i),
				CenterX: number(8, i), CenterY: number(9, i), Contour: contourAt(contour, i),
			}
		}
	})
}

// ReadRecognitions reads a table ocr_results, as [ReadPages] does.
func ReadRecognitions(r io.ReaderAt, size int64) ([]Recognition, map[string]string, error) {
	return readRows(r, size, recognitions(), func(rec arrow.Record) func(int, About) Recognition {
		var (
			index    = columnOf[*array.Int32](rec, 1)
			guid     = columnOf[*array.String](rec, 2)
			text     = columnOf[*array.String](rec, 3)
			encoding = columnOf[*array.String](rec, 4)
		)
		return func(i int, about About) Recognition {
			return Recognition{About: about, Index: index.Value(i), GUID: guid.Value(i), Text: text.Value(i), Encoding: encoding.Value(i)}
		}
	})
}

// writeRows writes rows whose columns are image_name, those that fill appends
// to, and those of [About].
func writeRows[T any](w io.Writer, schema *arrow.Schema, meta map[string]string, rows []T, of func(T) *About, fill func(*array.RecordBuilder, T)) error {
	return write(w, schema, meta, func(fw *pqarrow.FileWriter) error {
		b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
		defer b.Release()
		for len(rows) > 0 {
			group := rows[:min(groupRows, len(rows))]
			rows = rows[len(group):]
			for _, row := range group {
				a := of(row)
				b.Field(0).(*array.StringBuilder).Append(a.Image)
				fill(b, row)
				at := schema.NumFields() - len(aboutFields())
				b.Field(at).(*array.Int32Builder).Append(a.Page)
				optional(b.Field(at+1).(*array.Int32Builder), a.Width)
				optional(b.Field(at+2).(*array.Int32Builder), a.Height)
				b.Field(at + 3).(*array.BooleanBuilder).Append(a.OK)
				optional(b.Field(at+4).(*array.StringBuilder), a.ErrorStage)
				optional(b.Field(at+5).(*array.StringBuilder), a.ErrorClass)
				optional(b.Field(at+6).(*array.StringBuilder), a.ErrorMessage)
				optional(b.Field(at+7).(*array.Float32Builder), a.Confidence)
				b.Field(at + 8).(*array.StringBuilder).Append(a.Source)
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

// readRows reads what writeRows has written. Columns returns what makes a row
// of a record's row and what the record says of its page.
func readRows[T any](r io.ReaderAt, size int64, schema *arrow.Schema, columns func(arrow.Record) func(i int, about About) T) ([]T, map[string]string, error) {
	var rows []T
	meta, err := read(r, size, schema, func(rec arrow.Record) error {
		at := schema.NumFields() - len(aboutFields())
		var (
			image      = columnOf[*array.String](rec, 0)
			page       = columnOf[*array.Int32](rec, at)
			width      = columnOf[*array.Int32](rec, at+1)
			height     = columnOf[*array.Int32](rec, at+2)
			ok         = columnOf[*array.Boolean](rec, at+3)
			errStage   = columnOf[*array.String](rec, at+4)
			errClass   = columnOf[*array.String](rec, at+5)
			errMessage = columnOf[*array.String](rec, at+6)
			confidence = columnOf[*array.Float32](rec, at+7)
			source     = columnOf[*array.String](rec, at+8)
		)
		row := columns(rec)
		for i := range int(rec.NumRows()) {
			rows = append(rows, row(i, About{
				Page: page.Value(i), Image: image.Value(i), Width: cell(width, i), Height: cell(height, i),
				OK: ok.Value(i), ErrorStage: cell(errStage, i), ErrorClass: cell(errClass, i), ErrorMessage: cell(errMessage, i),
				Confidence: cell(confidence, i), Source: source.Value(i),
			}))
		}
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	return rows, meta, nil
}

// appendContour appends a contour as a list of [x, y].
func appendContour(b *array.ListBuilder, contour []Point) {
	b.Append(true)
	point := b.ValueBuilder().(*array.ListBuilder)
	for _, p := range contour {
		point.Append(true)
		point.ValueBuilder().(*array.Int32Builder).AppendValues(p[:], nil)
	}
}

// contourAt returns a list of [x, y] as a contour.
func contourAt(lists *array.List, i int) []Point {
	var contour []Point
	for j := range span(lists, i) {
		var p Point
		coordinates[*array.Int32](p[:], lists.ListValues().(*array.List), j)
		contour = append(contour, p)
	}
	return contour
}

// coordinates fills p from a list. One that is longer or shorter was not
// written here, and leaves zeros.
func coordinates[A column[T], T any](p []T, lists *array.List, i int) {
	at, end := lists.ValueOffsets(i)
	if end-at != int64(len(p)) {
		return
	}
	for k := range p {
		p[k] = lists.ListValues().(A).Value(int(at) + k)
	}
}

// span yields the positions of a list's elements among all elements.
func span(lists *array.List, i int) func(yield func(int) bool) {
	return func(yield func(int) bool) {
		at, end := lists.ValueOffsets(i)
		for j := int(at); j < int(end); j++ {
			if !yield(j) {
				return
			}
		}
	}
}
