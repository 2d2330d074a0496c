package reeve

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/reeve-pipeline/reeve/services/gateway"
	"github.com/reeve-pipeline/reeve/services/reeve/progress"
)

// writeJSON prints one indented object.
func writeJSON(w io.Writer, v any) error {
	if m, ok := v.(proto.Message); ok {
		v = gateway.Plain(m)
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// table prints rows: aligned under a heading on a terminal, without the columns
// that say nothing in any row, and as bare lines of tab-separated values
// elsewhere. Control characters cannot get through.
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
	line := func(row []string) {
		var said []string
		for i, cell := range clean(row) {
			if slices.ContainsFunc(rows, func(r []string) bool { return r[i] != "-" }) {
				said = append(said, cell)
			}
		}
		fmt.Fprintln(w, strings.Join(said, "\t"))
	}
	line(strings.Split(strings.ToUpper(strings.Join(head, "\t")), "\t"))
	for _, row := range rows {
		line(row)
	}
	_ = w.Flush() // as Fprintln: a reader that has gone misses it
}

// more says that a list was cut off, for nobody can see what is not there.
func (c *command) more(rows int, limit int32) {
	if rows > 0 && rows == int(limit) {
		c.sayf("the first %d; --limit shows more", rows)
	}
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
