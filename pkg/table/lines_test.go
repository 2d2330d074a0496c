package table_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"testing"

	"github.com/apache/arrow/go/v17/parquet/file"
	"github.com/apache/arrow/go/v17/parquet/schema"
	"github.com/google/go-cmp/cmp"

	"github.com/reeve-pipeline/reeve/pkg/civic"
	"github.com/reeve-pipeline/reeve/pkg/fault"
	"github.com/reeve-pipeline/reeve/pkg/table"
)

// lineTable is one of the three tables of lines, whatever its rows.
type lineTable struct {
	name string
	// rows makes so many rows; write and read are the table's own.
	rows  func(n int) any
	write func(w io.Writer, rows any, meta map[string]string) error
	read  func(r io.ReaderAt, size int64) (any, map[string]string, error)
}

func tableOf[T any](name string, row func(i int) T,
	write func(io.Writer, []T, map[string]string) error,
	read func(io.ReaderAt, int64) ([]T, map[string]string, error),
) lineTable {
	return lineTable{
		name: name,
		rows: func(n int) any {
			var rows []T
			for i := range n {
				rows = append(rows, row(i))
			}
			return rows
		},
		write: func(w io.Writer, rows any, meta map[string]string) error { return write(w, rows.([]T), meta) },
		read: func(r io.ReaderAt, size int64) (any, map[string]string, error) {
			rows, meta, err := read(r, size)
			return rows, meta, err
		},
	}
}

// about is what is said of the i-th page: every fourth could not be read.
func about(i int) table.About {
	a := table.About{Page: int32(i + 1), Image: fmt.Sprintf("I%04d.jpg", i+1), Width: 1700, Height: 2200, OK: true, Confidence: 0.875, Source: civic.SourceOCR}
	if i%4 == 3 {
		a = table.About{
			Page: a.Page, Image: a.Image, Source: civic.SourceFailed,
			ErrorStage: "line_detection", ErrorClass: "permanent", ErrorMessage: a.Image + ": the file ends early",
		}
	}
	return a
}

// outline has i%5 points, some of them beyond what 16 bits hold.
func outline(i int) []table.Point {
	var c []table.Point
	for j := range i % 5 {
		c = append(c, table.Point{int32(-j), int32(40_000 + i)})
	}
	return c
}

func lineTables() []lineTable {
	return []lineTable{
		tableOf("line_detection", func(i int) table.Detection {
			d := table.Detection{About: about(i), Angle: -1.25 * float64(i%3), AngleFlag: []string{"", "skew_uncertain"}[i%2], Dewarping: i%2 == 1, TPSRatio: float64(i%2) / 4}
			for j := range i % 4 {
				d.TPSPoints, d.TPSAlpha = append(d.TPSPoints, [4]float64{float64(j), 0.25, -3, float64(i)}), 0.5
			}
			for j := range i % 3 {
				d.Contours = append(d.Contours, outline(i+j))
				d.Scores = append(d.Scores, float32(j)/2)
			}
			return d
		}, table.WriteDetections, table.ReadDetections),
		tableOf("line_images", func(i int) table.LineImage {
			l := table.LineImage{About: about(i), Index: int32(i), GUID: fmt.Sprintf("guid-%d", i), X: 1, Y: 2, W: 30, H: 4, CenterX: 16, CenterY: 4, Contour: outline(i)}
			if i%2 == 0 {
				l.Path = fmt.Sprintf("lines/I%04d.jpg_0.png", i)
			}
			return l
		}, table.WriteLineImages, table.ReadLineImages),
		tableOf("ocr_results", func(i int) table.Recognition {
			return table.Recognition{About: about(i), Index: int32(i), GUID: fmt.Sprintf("guid-%d", i), Text: []string{"", "Ayes: 5", "བོད་ཡིག"}[i%3], Encoding: "unicode"}
		}, table.WriteRecognitions, table.ReadRecognitions),
	}
}

func TestLineTables(t *testing.T) {
	t.Parallel()
	for _, tt := range lineTables() {
		for _, n := range []int{0, 1, 12, 4100} { // 4100: two row groups
			t.Run(fmt.Sprintf("%s/%d", tt.name, n), func(t *testing.T) {
				t.Parallel()
				rows, meta := tt.rows(n), map[string]string{"model": "m", "model_sha256": "ab"}
				encode := func() []byte {
					var buf bytes.Buffer
					if err := tt.write(&buf, rows, meta); err != nil {
						t.Fatal(err)
					}
					return buf.Bytes()
				}
				data := encode()
				got, footer, err := tt.read(bytes.NewReader(data), int64(len(data)))
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(rows, got); diff != "" {
					t.Errorf("rows (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff(meta, footer); diff != "" {
					t.Errorf("footer (-want +got):\n%s", diff)
				}
				if !bytes.Equal(data, encode()) {
					t.Error("the same rows made other bytes")
				}
			})
		}
	}
}

// The schemas as other programs see them. The names are the contract; a change
// of them changes these files.
func TestLineTables_schema(t *testing.T) {
	t.Parallel()
	for _, tt := range lineTables() {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var buf, got bytes.Buffer
			if err := tt.write(&buf, tt.rows(4), nil); err != nil {
				t.Fatal(err)
			}
			r, err := file.NewParquetReader(bytes.NewReader(buf.Bytes()))
			if err != nil {
				t.Fatal(err)
			}
			schema.PrintSchema(r.MetaData().Schema.Root(), &got, 2)
			fmt.Fprintf(&got, "\n")
			golden := "testdata/" + tt.name + ".golden.txt"
			if *update {
				if err := os.WriteFile(golden, got.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got.String()); diff != "" {
				t.Errorf("schema (-want +got); run with -update if it is meant:\n%s", diff)
			}
		})
	}
}

// A table is not taken for another, and damage is seen.
func TestLineTables_refusals(t *testing.T) {
	t.Parallel()
	tables := lineTables()
	for i, tt := range tables {
		var buf bytes.Buffer
		if err := tt.write(&buf, tt.rows(8), nil); err != nil {
			t.Fatal(err)
		}
		other := tables[(i+1)%len(tables)]
		if _, _, err := other.read(bytes.NewReader(buf.Bytes()), int64(buf.Len())); fault.Of(err) != fault.ClassPermanent {
			t.Errorf("%s was read as %s: %v", tt.name, other.name, err)
		}
		for at := 0; at < buf.Len(); at += 7 {
			bad := bytes.Clone(buf.Bytes())
			bad[at] ^= 0x10
			if _, _, err := tt.read(bytes.NewReader(bad), int64(len(bad))); fault.Of(err) != fault.ClassPermanent {
				t.Fatalf("%s: byte %d changed, error %v", tt.name, at, err)
			}
		}
	}
}
