package reeve

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/reeve-pipeline/reeve/services/reeve/progress"
)

// writeJSON prints one indented object.
func writeJSON(w io.Writer, v any) error {
	if m, ok := v.(proto.Message); ok {
		v = plain(m.ProtoReflect())
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// plain turns a message into what encoding/json prints the way a script wants
// it: the names of the definition, numbers as numbers, every field present.
func plain(m protoreflect.Message) any {
	switch v := m.Interface().(type) {
	case *timestamppb.Timestamp:
		return v.AsTime().Format(time.RFC3339Nano)
	case *structpb.Struct:
		return v.AsMap()
	}
	out := map[string]any{}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		name, value := string(f.Name()), m.Get(f)
		switch {
		case f.IsList():
			list := make([]any, value.List().Len())
			for j := range list {
				list[j] = scalar(f, value.List().Get(j))
			}
			out[name] = list
		case f.IsMap():
			all := map[string]any{}
			value.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				all[k.String()] = scalar(f.MapValue(), v)
				return true
			})
			out[name] = all
		case f.Message() != nil && !m.Has(f):
			out[name] = nil
		default:
			out[name] = scalar(f, value)
		}
	}
	return out
}

func scalar(f protoreflect.FieldDescriptor, v protoreflect.Value) any {
	switch {
	case f.Message() != nil:
		return plain(v.Message())
	case f.Enum() != nil:
		return string(f.Enum().Values().ByNumber(v.Enum()).Name())
	}
	return v.Interface()
}

// table prints rows: aligned under a heading on a terminal, as bare lines of
// tab-separated values elsewhere. Control characters cannot get through.
func (c *command) table(head []string, rows [][]string) {
	if c.Out.Columns == 0 {
		for _, row := range rows {
			fmt.Fprintln(c.Out, strings.Join(clean(row), "\t"))
		}
		return
	}
	if len(rows) == 0 {
		fmt.Fprintln(c.Out, "none")
		return
	}
	w := tabwriter.NewWriter(c.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, strings.ToUpper(strings.Join(head, "\t")))
	for _, row := range rows {
		fmt.Fprintln(w, strings.Join(clean(row), "\t"))
	}
	_ = w.Flush() // as Fprintln: a reader that has gone misses it
}

// clean makes cells of one line each out of what others wrote.
func clean(row []string) []string {
	out := make([]string, len(row))
	for i, cell := range row {
		out[i] = strings.Map(func(r rune) rune {
			if unicode.IsControl(r) {
				return ' '
			}
			return r
		}, cell)
	}
	return out
}

// ago is how long ago something was, for people; "-" when it never was.
func ago(now time.Time, t *timestamppb.Timestamp) string {
	if t == nil {
		return "-"
	}
	return progress.Duration(max(0, now.Sub(t.AsTime()).Seconds())) + " ago"
}

// dash stands for nothing in a table.
func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// digits is a number as text.
func digits[N int | int32 | int64](n N) string { return strconv.FormatInt(int64(n), 10) }

// plural is "1 page" or "2 pages".
func plural(n int64, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
