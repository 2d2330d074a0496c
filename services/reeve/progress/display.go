package progress

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	reevev1 "github.com/reeve-pipeline/reeve/proto/reeve/v1"
)

// Modes lists the ways to show progress; auto is the first.
var Modes = []string{"auto", "tty", "plain", "json", "quiet"}

// Display shows a run's progress on a stream, which is never the one that
// results go to.
type Display struct {
	W     io.Writer
	Mode  string // one of Modes, not auto
	Width int    // columns of the terminal, for tty
	Paint Paint
	// Every is the least time between two plain lines.
	Every time.Duration

	meter Meter
	drawn int // lines that the next drawing goes over
	last  time.Time
	said  string
}

// Show shows how a run stands.
func (d *Display) Show(now time.Time, run *reevev1.Run) {
	v := d.meter.Add(now, run)
	ended := run.GetStatus() != "running"
	switch d.Mode {
	case "tty":
		d.erase()
		lines := Bars(v, d.Width, d.Paint)
		fmt.Fprintln(d.W, strings.Join(lines, "\n"))
		d.drawn = len(lines)
	case "plain":
		line := Line(v)
		if line != d.said && (ended || now.Sub(d.last) >= d.Every) {
			fmt.Fprintln(d.W, line)
			d.last, d.said = now, line
		}
	case "json":
		_ = json.NewEncoder(d.W).Encode(v) // a reader that has gone misses it
	}
	if ended {
		d.drawn = 0
	}
}

// Say prints a remark without spoiling what is drawn.
func (d *Display) Say(text string) {
	switch d.Mode {
	case "tty":
		d.erase()
		fmt.Fprintln(d.W, text)
	case "plain":
		fmt.Fprintln(d.W, text)
	case "json":
		_ = json.NewEncoder(d.W).Encode(map[string]string{"type": "message", "message": text})
	}
}

// erase goes back over what was drawn.
func (d *Display) erase() {
	if d.drawn > 0 {
		fmt.Fprintf(d.W, "\x1b[%dA\x1b[J", d.drawn)
		d.drawn = 0
	}
}
