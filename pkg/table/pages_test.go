package table_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/parquet/file"
	"github.com/apache/arrow/go/v17/parquet/schema"
	"github.com/google/go-cmp/cmp"

	"github.com/reeve-pipeline/reeve/pkg/civic"
	"github.com/reeve-pipeline/reeve/pkg/fault"
	"github.com/reeve-pipeline/reeve/pkg/table"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func sample() []table.Page {
	return []table.Page{
		{Page: 1, Text: "The meeting was called to order.", Source: civic.SourceNative, Quality: 0.93, Width: 612, Height: 792},
		{Page: 2, Source: civic.SourceImage, Width: 612, Height: 792},
		{Page: 3, Source: civic.SourceFailed, Error: "page 3: no such object"},
		{Page: 12, Text: "Peña – 😀", Source: civic.SourceOCR, Width: 1},
	}
}

func encode(t testing.TB, rows []table.Page, meta map[string]string) []byte {
	t.Helper()
	var buf bytes.Buffer
	if err := table.WritePages(&buf, rows, meta); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func TestPages(t *testing.T) {
	t.Parallel()
	var many []table.Page
	for i := range 9000 {
		many = append(many, table.Page{Page: int32(i + 1), Text: strings.Repeat("word ", i%50), Source: civic.SourceNative, Quality: 1})
	}
	for _, tt := range []struct {
		name string
		rows []table.Page
		meta map[string]string
	}{
		{"no pages", nil, map[string]string{}},
		{"every kind of page", sample(), map[string]string{"document": "a", "z": "", "b": "ü"}},
		{"several row groups", many, map[string]string{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			data := encode(t, tt.rows, tt.meta)
			rows, meta, err := table.ReadPages(bytes.NewReader(data), int64(len(data)))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.rows, rows); diff != "" {
				t.Errorf("rows (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.meta, meta); diff != "" {
				t.Errorf("footer (-want +got):\n%s", diff)
			}
			if !bytes.Equal(data, encode(t, tt.rows, tt.meta)) {
				t.Error("the same rows made other bytes")
			}
		})
	}
}

// The schema as other programs see it. A change of it changes this file.
func TestPages_schema(t *testing.T) {
	t.Parallel()
	data := encode(t, sample(), nil)
	r, err := file.NewParquetReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	schema.PrintSchema(r.MetaData().Schema.Root(), &got, 2)
	fmt.Fprintf(&got, "\n")
	const golden = "testdata/pages.golden.txt"
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
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
}

// Whatever byte is wrong, the file is refused.
func TestReadPages_damaged(t *testing.T) {
	t.Parallel()
	good := encode(t, sample(), map[string]string{"document": "a"})
	refused := func(what string, data []byte) {
		t.Helper()
		if _, _, err := table.ReadPages(bytes.NewReader(data), int64(len(data))); fault.Of(err) != fault.ClassPermanent {
			t.Errorf("%s: error %v is of class %q", what, err, fault.Of(err))
		}
	}
	for i := range good {
		bad := bytes.Clone(good)
		bad[i] ^= 0x20
		refused(fmt.Sprintf("byte %d of %d changed", i, len(good)), bad)
	}
	for n := range good {
		refused(fmt.Sprintf("cut to %d of %d bytes", n, len(good)), good[:n])
	}
	refused("something appended", append(bytes.Clone(good), 0))
}

func TestWritePages_ownEntry(t *testing.T) {
	t.Parallel()
	if err := table.WritePages(&bytes.Buffer{}, nil, map[string]string{"reeve.sha256": "x"}); err == nil {
		t.Error("the table's own entry was taken from the caller")
	}
}

func FuzzReadPages(f *testing.F) {
	f.Add(encode(f, sample(), nil))
	f.Add([]byte("PAR1"))
	f.Fuzz(func(t *testing.T, data []byte) {
		rows, meta, err := table.ReadPages(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			return
		}
		again, _, err := table.ReadPages(bytes.NewReader(encode(t, rows, meta)), int64(len(encode(t, rows, meta))))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(rows, again); diff != "" {
			t.Error(diff)
		}
	})
}
