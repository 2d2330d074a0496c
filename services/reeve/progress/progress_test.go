package progress_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	reevev1 "github.com/reeve-pipeline/reeve/proto/reeve/v1"
	"github.com/reeve-pipeline/reeve/services/reeve/progress"
)

var began = time.Date(2024, 5, 7, 12, 0, 0, 0, time.UTC)

// at is a run with so many of its documents ended.
func at(found, pending, failed int64, listed bool) *reevev1.Run {
	return &reevev1.Run{
		Run: 3, Subject: "alameda", Status: "running", StartedAt: timestamppb.New(began),
		Stages: []*reevev1.StageProgress{
			{Stage: "fetch", Total: found + 1, Completed: found + 1, Sealed: listed},
			{Stage: "pagination", Total: found, Completed: found - pending - failed, Failed: failed},
			{Stage: "reduce"},
		},
		Documents: &reevev1.DocumentSummary{Found: found, Pending: pending, Failed: failed, Done: found - pending - failed},
	}
}

func TestLine(t *testing.T) {
	t.Parallel()
	ended := at(18, 0, 1, true)
	ended.Status, ended.EndedAt = "completed", timestamppb.New(began.Add(190*time.Second))
	for _, tt := range []struct {
		name string
		runs []*reevev1.Run // one a second
		want string
	}{
		{
			"while listing, totals may grow and nothing is said of the time left",
			[]*reevev1.Run{at(4, 4, 0, false), at(6, 4, 0, false), at(9, 3, 0, false), at(10, 2, 0, false)},
			"run 3 alameda running 3.0 s  fetch 11/11+  pagination 8/10+  documents 8/10+ 2.7/s  still listing, totals may grow",
		},
		{
			"no time left is given before there is a rate",
			[]*reevev1.Run{at(18, 18, 0, true), at(18, 18, 0, true), at(18, 18, 0, true), at(18, 18, 0, true)},
			"run 3 alameda running 3.0 s  fetch 19/19  pagination 0/18+  documents 0/18",
		},
		{
			"when all are found, the time left follows from the rate",
			[]*reevev1.Run{at(18, 18, 0, true), at(18, 16, 0, true), at(18, 14, 0, true), at(18, 12, 1, true)},
			"run 3 alameda running 3.0 s  fetch 19/19  pagination 6/18+ (1 failed)  documents 6/18 (1 failed) 2.0/s  about 6.0 s left for documents",
		},
		{
			"a standstill that outlives the time left takes it back",
			[]*reevev1.Run{at(4, 4, 0, true), at(4, 1, 0, true), at(4, 1, 0, true), at(4, 1, 0, true), at(4, 1, 0, true)},
			"run 3 alameda running 4.0 s  fetch 5/5  pagination 3/4+  documents 3/4 0.8/s",
		},
		{
			"an ended run says how long it took",
			[]*reevev1.Run{ended},
			"run 3 alameda completed 3 min 10 s  fetch 19/19  pagination 18/18+ (1 failed)  documents 18/18 (1 failed)",
		},
		{
			"a pipeline without documents has the time left of its slowest stage",
			[]*reevev1.Run{leads(0, 0), leads(5, 2), leads(10, 4)},
			"run 4 batch running 2.0 s  scrape 10/20 5.0/s  intel 4/20 2.0/s  about 8.0 s left",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var m progress.Meter
			var v progress.View
			for i, r := range tt.runs {
				v = m.Add(began.Add(time.Duration(i)*time.Second), r)
			}
			if diff := cmp.Diff(tt.want, progress.Line(v)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func leads(scrape, intel int64) *reevev1.Run {
	return &reevev1.Run{
		Run: 4, Subject: "batch", Status: "running", StartedAt: timestamppb.New(began),
		Stages: []*reevev1.StageProgress{
			{Stage: "scrape", Total: 20, Completed: scrape, Sealed: true},
			{Stage: "intel", Total: 20, Completed: intel, Sealed: true},
		},
	}
}

func TestMeterForgetsOldRatesAndCountsThatWentBack(t *testing.T) {
	t.Parallel()
	var m progress.Meter
	for s := range 60 {
		m.Add(began.Add(time.Duration(s)*time.Second), at(1000, 1000-int64(s), 0, true))
	}
	slow := m.Add(began.Add(100*time.Second), at(1000, 1000-59, 0, true))
	if r := slow.Documents.Rate; r > 0.5 {
		t.Errorf("rate after a standstill of 40 s: %v", r)
	}
	again := m.Add(began.Add(101*time.Second), at(1000, 1000, 0, true))
	if again.Documents.Rate != 0 || again.Documents.Left != nil {
		t.Errorf("after a restart of the stage: %+v", again.Documents)
	}
}

func TestBarsFitTheTerminal(t *testing.T) {
	t.Parallel()
	var m progress.Meter
	m.Add(began, at(18, 18, 0, true))
	v := m.Add(began.Add(4*time.Second), at(18, 9, 0, true))
	want := []string{
		"fetch            ━━━━━━━━━━━━━━━━━━━━━━━━ 19/19",
		"pagination       ━━━━━━━━━━━━──────────── 9/18+          2.2/s",
		"documents        ━━━━━━━━━━━━──────────── 9/18           2.2/s",
		"run 3 of alameda: running, 4.0 s, about 4.0 s left for documents",
	}
	if diff := cmp.Diff(want, progress.Bars(v, 100, progress.Plain)); diff != "" {
		t.Error(diff)
	}
	for _, line := range progress.Bars(v, 30, progress.Plain) {
		if n := len([]rune(line)); n > 30 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}

func TestDuration(t *testing.T) {
	t.Parallel()
	for seconds, want := range map[float64]string{
		0: "0.0 s", 9.94: "9.9 s", 9.96: "10 s", 59.4: "59 s", 59.6: "1 min 00 s", 125: "2 min 05 s", 3599.6: "1 h 00 min", 7620: "2 h 07 min",
	} {
		if got := progress.Duration(seconds); got != want {
			t.Errorf("%v: got %q, want %q", seconds, got, want)
		}
	}
}

func TestDisplay(t *testing.T) {
	t.Parallel()
	show := func(mode string) string {
		var out bytes.Buffer
		d := progress.Display{W: &out, Mode: mode, Width: 80, Paint: progress.Plain, Every: 5 * time.Second}
		for s := range 8 {
			d.Show(began.Add(time.Duration(s)*time.Second), at(18, 18-int64(s), 0, true))
		}
		d.Say("a remark")
		return out.String()
	}
	if n := strings.Count(show("plain"), "\n"); n != 3 {
		t.Errorf("plain: %d lines, want one at once, one after 5 s, and the remark", n)
	}
	if got := show("quiet"); got != "" {
		t.Errorf("quiet says %q", got)
	}
	if got := show("tty"); strings.Count(got, "\x1b[4A\x1b[J") != 8 {
		t.Errorf("tty does not draw over what it drew: %q", got)
	}
	for line := range strings.Lines(show("json")) {
		var v map[string]any
		if err := json.Unmarshal([]byte(line), &v); err != nil || (v["type"] != "progress" && v["type"] != "message") {
			t.Errorf("json: %v in %s", err, line)
		}
	}
}
