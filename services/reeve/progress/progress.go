// Package progress turns what a run reports of itself into what a person or a
// program sees of it: bars, lines, JSON. It is pure, but for the clock that its
// caller reads. It promises no more than it knows: while totals may still grow
// it says so, and it gives a time left only for work whose total is final.
package progress

import (
	"fmt"
	"slices"
	"strings"
	"time"

	reevev1 "github.com/reeve-pipeline/reeve/proto/reeve/v1"
)

// View is how a run stands at a moment.
type View struct {
	Type    string  `json:"type"` // "progress"
	Run     int64   `json:"run"`
	Subject string  `json:"subject"`
	Status  string  `json:"status"`
	Elapsed float64 `json:"elapsed_seconds"`
	// Listing: the first stage may still find more, so every total may grow.
	Listing bool  `json:"listing"`
	Stages  []Row `json:"stages"`
	// Documents is nil for a pipeline without documents.
	Documents *Row `json:"documents,omitempty"`
}

// Row counts one stage, or all documents.
type Row struct {
	Name   string `json:"name"`
	Total  int64  `json:"total"`
	Ended  int64  `json:"ended"` // of these, whatever the outcome
	Failed int64  `json:"failed"`
	// Final: the total can no longer grow.
	Final bool `json:"final"`
	// Rate is of the last half minute, per second.
	Rate float64 `json:"per_second"`
	// Left is the time left at this rate; nil when that cannot be told.
	Left *float64 `json:"seconds_left"`
}

// window is how far back a rate looks.
const window = 30 * time.Second

// Meter remembers enough of a run's past to tell rates. The zero value is ready.
type Meter struct {
	past  map[string][]sample
	moved map[string]sample // the last that differs from the one before
}

type sample struct {
	at    time.Time
	ended int64
}

// Add takes in how the run stands now.
func (m *Meter) Add(now time.Time, run *reevev1.Run) View {
	v := View{Type: "progress", Run: run.GetRun(), Subject: run.GetSubject(), Status: run.GetStatus(), Elapsed: Elapsed(now, run).Seconds()}
	for i, s := range run.GetStages() {
		if i == 0 {
			v.Listing = !s.GetSealed()
		}
		if s.GetTotal() == 0 {
			continue
		}
		v.Stages = append(v.Stages, m.row(now, Row{
			Name: s.GetStage(), Total: s.GetTotal(), Failed: s.GetFailed(),
			Ended: s.GetCompleted() + s.GetFailed() + s.GetCancelled(), Final: s.GetSealed(),
		}))
	}
	if d := run.GetDocuments(); d != nil {
		r := m.row(now, Row{Name: "documents", Total: d.GetFound(), Failed: d.GetFailed(), Ended: d.GetFound() - d.GetPending(), Final: !v.Listing})
		v.Documents = &r
	}
	return v
}

// row adds rate and time left.
func (m *Meter) row(now time.Time, r Row) Row {
	if m.past == nil {
		m.past, m.moved = map[string][]sample{}, map[string]sample{}
	}
	if last, ok := m.moved[r.Name]; !ok || last.ended != r.Ended {
		m.moved[r.Name] = sample{now, r.Ended}
	}
	past := m.past[r.Name]
	past = append(past, sample{now, r.Ended})
	for len(past) > 2 && now.Sub(past[1].at) >= window {
		past = past[1:]
	}
	m.past[r.Name] = past
	// A retry or a new generation takes counts back: begin anew.
	if past[0].ended > r.Ended {
		past = past[len(past)-1:]
		m.past[r.Name] = past
	}
	took := now.Sub(past[0].at).Seconds()
	if took > 0 {
		r.Rate = float64(r.Ended-past[0].ended) / took
	}
	if r.Final && r.Ended < r.Total && r.Rate > 0 && took >= 2 {
		// An estimate that a standstill has outlived was wrong.
		if left := float64(r.Total-r.Ended) / r.Rate; now.Sub(m.moved[r.Name].at).Seconds() <= left {
			r.Left = &left
		}
	}
	return r
}

// Elapsed is how long a run has taken until now, or took until its end.
func Elapsed(now time.Time, run *reevev1.Run) time.Duration {
	if run.GetStartedAt() == nil {
		return 0
	}
	if run.GetEndedAt() != nil {
		now = run.GetEndedAt().AsTime()
	}
	return max(0, now.Sub(run.GetStartedAt().AsTime()))
}

// Line is the view in one line, for logs and terminals without cursor control.
func Line(v View) string {
	var b strings.Builder
	fmt.Fprintf(&b, "run %d %s %s %s", v.Run, v.Subject, v.Status, Duration(v.Elapsed))
	for _, s := range v.Stages {
		fmt.Fprintf(&b, "  %s %s", s.Name, count(s))
		if v.Documents == nil {
			b.WriteString(speed(s))
		}
	}
	if v.Documents != nil {
		fmt.Fprintf(&b, "  documents %s%s", count(*v.Documents), speed(*v.Documents))
	}
	fmt.Fprintf(&b, "  %s", outlook(v))
	return strings.TrimRight(b.String(), " ")
}

// Bars is the view as one line a stage and a line for the whole, each at most
// width columns wide.
func Bars(v View, width int, paint Paint) []string {
	const bar = 24
	var lines []string
	rows := v.Stages
	if v.Documents != nil {
		rows = append(slices.Clip(rows), *v.Documents)
	}
	for _, r := range rows {
		full := 0
		if r.Total > 0 {
			full = int(bar * r.Ended / r.Total)
		}
		line := fmt.Sprintf("%-16s %s%s %-14s%s", r.Name, strings.Repeat("━", full), strings.Repeat("─", bar-full), count(r), speed(r))
		line = strings.TrimRight(clip(line, width), " ")
		switch {
		case r.Failed > 0:
			line = paint(Yellow, line)
		case r.Final && r.Ended == r.Total:
			line = paint(Green, line)
		}
		lines = append(lines, line)
	}
	last := fmt.Sprintf("run %d of %s: %s, %s", v.Run, v.Subject, v.Status, Duration(v.Elapsed))
	if o := outlook(v); o != "" {
		last += ", " + o
	}
	return append(lines, clip(last, width))
}

// count is "12/18", with a plus while the total may grow, and the failures.
func count(r Row) string {
	s := fmt.Sprintf("%d/%d", r.Ended, r.Total)
	if !r.Final {
		s += "+"
	}
	if r.Failed > 0 {
		s += fmt.Sprintf(" (%d failed)", r.Failed)
	}
	return s
}

// outlook says what is known of the time left.
func outlook(v View) string {
	switch {
	case v.Status != "running":
		return ""
	case v.Listing:
		return "still listing, totals may grow"
	}
	if d := v.Documents; d != nil {
		if d.Left != nil {
			return "about " + Duration(*d.Left) + " left for documents"
		}
		return ""
	}
	var most float64
	for _, s := range v.Stages {
		switch {
		case !s.Final:
			return ""
		case s.Left == nil && s.Ended < s.Total:
			return ""
		case s.Left != nil:
			most = max(most, *s.Left)
		}
	}
	if most == 0 {
		return ""
	}
	return "about " + Duration(most) + " left"
}

// speed is the rate of what goes on: things per second, or per minute when that
// reads better.
func speed(r Row) string {
	switch {
	case r.Rate <= 0 || r.Ended == r.Total:
		return ""
	case r.Rate < 0.5:
		return fmt.Sprintf(" %.1f/min", r.Rate*60)
	}
	return fmt.Sprintf(" %.1f/s", r.Rate)
}

// Duration is a time span for people: 0.4 s, 12 s, 3 min 05 s, 2 h 07 min.
func Duration(seconds float64) string {
	s := int64(seconds + 0.5)
	switch {
	case seconds < 9.95:
		return fmt.Sprintf("%.1f s", seconds)
	case s < 60:
		return fmt.Sprintf("%d s", s)
	case s < 3600:
		return fmt.Sprintf("%d min %02d s", s/60, s%60)
	}
	return fmt.Sprintf("%d h %02d min", s/3600, s%3600/60)
}

// clip shortens a line to a number of columns, counting a rune as one.
func clip(line string, width int) string {
	if runes := []rune(line); width > 0 && len(runes) > width {
		return string(runes[:max(0, width-1)]) + "…"
	}
	return line
}

// Colour is a colour of the terminal's palette, by its ANSI number.
type Colour int

// The colours in use.
const (
	Red    Colour = 31
	Green  Colour = 32
	Yellow Colour = 33
)

// Paint colours a text, or does not.
type Paint func(c Colour, text string) string

// Plain leaves texts as they are.
func Plain(_ Colour, text string) string { return text }

// ANSI colours texts for a terminal.
func ANSI(c Colour, text string) string { return fmt.Sprintf("\x1b[%dm%s\x1b[0m", int(c), text) }
