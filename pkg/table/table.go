// Package table holds the Parquet tables, one file each: the columns with
// their units, a writer and a reader. The same rows always make the same bytes.
//
// A table carries a digest of itself in its footer, so that a reader knows a
// damaged file before it believes any of its lengths. Other programs read the
// tables as what they are, plain Parquet.
package table

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"
	"github.com/apache/arrow/go/v17/parquet"
	"github.com/apache/arrow/go/v17/parquet/compress"
	"github.com/apache/arrow/go/v17/parquet/file"
	"github.com/apache/arrow/go/v17/parquet/pqarrow"

	"github.com/reeve-pipeline/reeve/pkg/fault"
)

const (
	// digestKey is the footer's entry with the file's SHA-256 in hex, taken
	// while the entry itself held zeros.
	digestKey = "reeve.sha256"
	// maxSize bounds the tables that are read, in bytes.
	maxSize = 1 << 30
	// maxRows bounds the rows of a table.
	maxRows = 10_000_000
	// groupRows is how many rows go into one row group.
	groupRows = 4096
)

var zeros = bytes.Repeat([]byte{'0'}, hex.EncodedLen(sha256.Size))

// write writes records of one schema as one table, with entries of the
// caller's in its footer.
func write(w io.Writer, schema *arrow.Schema, meta map[string]string, records func(*pqarrow.FileWriter) error) error {
	if _, taken := meta[digestKey]; taken {
		return fmt.Errorf("write table: the entry %s is the table's own", digestKey)
	}
	props := parquet.NewWriterProperties(
		// Only the text is worth it: the others are few bytes each.
		parquet.WithCompressionFor("text", compress.Codecs.Zstd),
		parquet.WithDictionaryFor("text", false),
		parquet.WithMaxRowGroupLength(groupRows),
		parquet.WithStats(false),
	)
	var buf bytes.Buffer
	fw, err := pqarrow.NewFileWriter(schema, &buf, props, pqarrow.DefaultWriterProps())
	if err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	for _, key := range slices.Sorted(maps.Keys(meta)) {
		if err := fw.AppendKeyValueMetadata(key, meta[key]); err != nil {
			return fmt.Errorf("write table: %w", err)
		}
	}
	if err := fw.AppendKeyValueMetadata(digestKey, string(zeros)); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	if err := records(fw); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	if err := fw.Close(); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	data := buf.Bytes()
	at, err := digestAt(data)
	if err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	hex.Encode(at, digest(data))
	_, err = w.Write(data)
	return err
}

// read checks a table and passes its records on, with the entries of its
// footer. Every error is permanent, for the same bytes never read better.
func read(r io.ReaderAt, size int64, schema *arrow.Schema, each func(arrow.Record) error) (meta map[string]string, err error) {
	defer func() {
		// The Parquet library panics over some of what it cannot read.
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
		}
		if err != nil {
			err = fault.Permanent(fmt.Errorf("read table: %w", err))
		}
	}()
	if size < 0 || size > maxSize {
		return nil, fmt.Errorf("it has %d bytes; at most %d are read", size, maxSize)
	}
	data := make([]byte, size)
	if _, err := io.ReadFull(io.NewSectionReader(r, 0, size), data); err != nil {
		return nil, err
	}
	at, err := digestAt(data)
	if err != nil {
		return nil, err
	}
	want := bytes.Clone(at)
	copy(at, zeros)
	if got := hex.AppendEncode(nil, digest(data)); !bytes.Equal(got, want) {
		return nil, fmt.Errorf("it is damaged: its bytes have the sha256 %s, not %q", got, want)
	}

	pf, err := file.NewParquetReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	defer pf.Close()
	if pf.NumRows() > maxRows {
		return nil, fmt.Errorf("it has %d rows; at most %d are read", pf.NumRows(), maxRows)
	}
	fr, err := pqarrow.NewFileReader(pf, pqarrow.ArrowReadProperties{BatchSize: groupRows}, memory.DefaultAllocator)
	if err != nil {
		return nil, err
	}
	have, err := fr.Schema()
	if err != nil {
		return nil, err
	}
	if diff := compare(schema, have); diff != "" {
		return nil, fmt.Errorf("it is another kind of table: %s", diff)
	}
	rr, err := fr.GetRecordReader(context.Background(), nil, nil)
	if err != nil {
		return nil, err
	}
	defer rr.Release()
	for rr.Next() {
		if err := each(rr.Record()); err != nil {
			return nil, err
		}
	}
	if err := rr.Err(); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	meta = map[string]string{}
	for _, e := range pf.MetaData().KeyValueMetadata() {
		if e.Key != digestKey && e.Value != nil {
			meta[e.Key] = *e.Value
		}
	}
	return meta, nil
}

// compare says how a table's columns differ from those of a schema.
func compare(want, have *arrow.Schema) string {
	for i, f := range want.Fields() {
		if i >= have.NumFields() {
			return "there is no column " + f.Name
		}
		if g := have.Field(i); g.Name != f.Name || !arrow.TypeEqual(g.Type, f.Type) || g.Nullable != f.Nullable {
			return fmt.Sprintf("column %d is %s, not %s", i, describe(g), describe(f))
		}
	}
	return ""
}

// describe prints a column as "name type" or "name type null".
func describe(f arrow.Field) string {
	s := f.Name + " " + f.Type.String()
	if f.Nullable {
		s += " null"
	}
	return s
}

// digestAt returns the part of a table's bytes that holds its digest. In the
// footer's encoding the entry is its key, a byte for "second field, text", one
// for the length, and the text.
func digestAt(data []byte) ([]byte, error) {
	head := append([]byte(digestKey), 0x18, byte(len(zeros)))
	i := bytes.LastIndex(data, head)
	if i < 0 || len(data)-i < len(head)+len(zeros) {
		return nil, fmt.Errorf("it is damaged or not a table of Reeve: no %s in its footer", digestKey)
	}
	return data[i+len(head):][:len(zeros)], nil
}

func digest(data []byte) []byte {
	sum := sha256.Sum256(data)
	return sum[:]
}

// column is a column of a record whose values are of one type.
type column[T any] interface {
	arrow.Array
	Value(row int) T
}

// cell returns a row's value, and the zero value for null.
func cell[T any](col column[T], row int) T {
	if col.IsNull(row) {
		var zero T
		return zero
	}
	return col.Value(row)
}

// columnOf returns a column of a record as its concrete type.
func columnOf[T arrow.Array](rec arrow.Record, i int) T { return rec.Column(i).(T) }

// optional appends a value, or null for the zero value.
func optional[T comparable](b interface {
	array.Builder
	Append(T)
}, v T,
) {
	var zero T
	if v == zero {
		b.AppendNull()
		return
	}
	b.Append(v)
}
