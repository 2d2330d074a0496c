package ctc_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/reeve-pipeline/reeve/pkg/ctc"
)

// scores are a line's, given frame by frame.
func scores(t testing.TB, kind ctc.Kind, frames ...[]float32) ctc.Scores {
	t.Helper()
	classes := 2
	if len(frames) > 0 {
		classes = len(frames[0])
	}
	s, err := ctc.Line(slices.Concat(frames...), []int64{1, int64(len(frames)), int64(classes)}, ctc.NTV, kind, 0)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// peaks are frames each of which is sure of a class: a digit of path, or - for
// the blank, class 0.
func peaks(path string, classes int, sure float32) [][]float32 {
	var all [][]float32
	for _, c := range strings.ReplaceAll(path, "-", "0") {
		frame := make([]float32, classes)
		for v := range frame {
			frame[v] = (1 - sure) / float32(classes-1)
		}
		frame[c-'0'] = sure
		all = append(all, frame)
	}
	return all
}

func text(r ctc.Reading) string {
	var b strings.Builder
	for _, s := range r.Symbols {
		fmt.Fprint(&b, s.Class)
	}
	return b.String()
}

func TestGreedy(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"":          "",
		"----":      "",
		"1":         "1",
		"1111":      "1",
		"1-1":       "11",
		"11--11":    "11",
		"123":       "123",
		"--12-2-2-": "1222",
		"1221":      "121",
	} {
		s := scores(t, ctc.Probabilities, peaks(path, 4, 0.97)...)
		greedy, err := ctc.Greedy(s, 0)
		if err != nil || text(greedy) != want {
			t.Errorf("%q reads %q, %v; want %q", path, text(greedy), err, want)
		}
		for _, width := range []int{1, 8} {
			beam, err := ctc.Beam(s, 0, width, 0)
			if err != nil {
				t.Fatal(err)
			}
			beam.Beam = false
			if diff := cmp.Diff(greedy, beam, cmpopts.EquateApprox(0, 1e-12)); diff != "" {
				t.Errorf("%q by a beam of %d (-greedy +beam):\n%s", path, width, diff)
			}
		}
	}
}

// Worked by hand: two frames, a blank of 0.6 and an a of 0.4 in each. The best
// single path is two blanks, 0.36. But a- and -a and aa all read "a":
// 0.24 + 0.24 + 0.16 = 0.64.
func TestBeam_isNotGreedy(t *testing.T) {
	t.Parallel()
	s := scores(t, ctc.Probabilities, []float32{0.6, 0.4}, []float32{0.6, 0.4})
	greedy, err := ctc.Greedy(s, 0)
	if err != nil || text(greedy) != "" || !near(greedy.Mean, 0.6) || !near(greedy.Min, 0.6) {
		t.Errorf("greedy %+v, %v", greedy, err)
	}
	beam, err := ctc.Beam(s, 0, 4, 0)
	if err != nil || text(beam) != "1" || !beam.Beam {
		t.Errorf("beam %+v, %v", beam, err)
	}
	for want, text := range map[float64][]int{0.64: {1}, 0.36: {}, 0: {1, 1}} {
		p, err := ctc.LogProb(s, 0, text)
		if err != nil || !near(math.Exp(p), want) {
			t.Errorf("%v has the probability %g, %v; want %g", text, math.Exp(p), err, want)
		}
	}
	for below, want := range map[float64]string{0.5: "", 0.7: "1"} {
		r, err := ctc.Decode(s, ctc.Options{Below: below, Width: 4})
		if err != nil || text(r) != want || r.Beam != (below == 0.7) {
			t.Errorf("below %g: %+v, %v", below, r, err)
		}
	}
}

// Worked by hand: - 1 1 - 2, the second 1 the surer.
func TestGreedy_positions(t *testing.T) {
	t.Parallel()
	s := scores(t, ctc.Probabilities,
		[]float32{0.9, 0.1, 0}, []float32{0.3, 0.5, 0.2}, []float32{0.1, 0.8, 0.1}, []float32{0.7, 0, 0.3}, []float32{0, 0.4, 0.6})
	want := ctc.Reading{
		Symbols: []ctc.Symbol{{Class: 1, Confidence: 0.8, First: 1, Last: 2}, {Class: 2, Confidence: 0.6, First: 4, Last: 4}},
		Mean:    0.7, Min: 0.6,
	}
	got, err := ctc.Greedy(s, 0)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateApprox(0, 1e-6)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func near(a, b float64) bool { return math.Abs(a-b) < 1e-6 }

// random are the probabilities of a line that is sure of nothing.
func random(r *rand.Rand, frames, classes int) [][]float32 {
	all := make([][]float32, frames)
	for t := range all {
		all[t] = make([]float32, classes)
		sum := float32(0)
		for v := range all[t] {
			all[t][v] = float32(math.Exp(2 * r.NormFloat64()))
			sum += all[t][v]
		}
		for v := range all[t] {
			all[t][v] /= sum
		}
	}
	return all
}

// Lines so small that every path can be walked: the texts' probabilities are
// sums over paths and add up to 1; a beam that holds every beginning finds the
// best text; a narrow one finds none that is better.
func TestBeam_bruteForce(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		frames, classes := 1+r.IntN(5), 2+r.IntN(3)
		blank := r.IntN(classes)
		rows := random(r, frames, classes)
		s := scores(t, ctc.Probabilities, rows...)

		sums, texts := map[string]float64{}, map[string][]int{}
		for n := range int(math.Pow(float64(classes), float64(frames))) {
			p, last, read := 1.0, blank, []int{}
			for f, rest := 0, n; f < frames; f, rest = f+1, rest/classes {
				v := rest % classes
				p *= float64(rows[f][v])
				if v != blank && v != last {
					read = append(read, v)
				}
				last = v
			}
			sums[fmt.Sprint(read)] += p
			texts[fmt.Sprint(read)] = read
		}
		best, total := "", 0.0
		for name, sum := range sums {
			p, err := ctc.LogProb(s, blank, texts[name])
			if err != nil || !near(math.Exp(p), sum) {
				t.Fatalf("%s has the probability %g, %v; by all its paths %g", name, math.Exp(p), err, sum)
			}
			if best == "" || sum > sums[best] {
				best = name
			}
			total += math.Exp(p)
		}
		if total > 1+1e-5 || total < 1-1e-5 {
			t.Fatalf("all texts together have the probability %g", total)
		}
		of := func(width int) float64 {
			got, err := ctc.Beam(s, blank, width, 0)
			if err != nil {
				t.Fatal(err)
			}
			read := []int{}
			for n, symbol := range got.Symbols {
				read = append(read, symbol.Class)
				if symbol.First > symbol.Last || symbol.Last >= frames || n > 0 && symbol.First <= got.Symbols[n-1].Last {
					t.Fatalf("symbols at %+v", got.Symbols)
				}
				if symbol.Confidence > 1 || symbol.Confidence < got.Min || got.Mean < got.Min {
					t.Fatalf("confidences %+v", got)
				}
			}
			return sums[fmt.Sprint(read)]
		}
		if wide := of(10_000); !near(wide, sums[best]) {
			t.Errorf("a wide beam finds a text of %g, the best is %s of %g", wide, best, sums[best])
		}
		if narrow := of(1); narrow > sums[best]+1e-6 {
			t.Errorf("a narrow beam finds %g, the best has %g", narrow, sums[best])
		}
	}
}

// Decode is never worse than the greedy reading.
func TestDecode_isNoWorse(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 4))
	better := 0
	for range 200 {
		s := scores(t, ctc.Probabilities, random(r, 20, 6)...)
		greedy, err := ctc.Greedy(s, 0)
		if err != nil {
			t.Fatal(err)
		}
		got, err := ctc.Decode(s, ctc.Options{Below: 1.1, Width: 2, MinProb: 0.05})
		if err != nil {
			t.Fatal(err)
		}
		was, is := probability(t, s, greedy), probability(t, s, got)
		if is < was {
			t.Errorf("%q of %g became %q of %g", text(greedy), was, text(got), is)
		}
		if is > was {
			better++
		}
	}
	if better < 20 {
		t.Errorf("only %d of 200 became better", better)
	}
}

func probability(t *testing.T, s ctc.Scores, r ctc.Reading) float64 {
	t.Helper()
	var read []int
	for _, symbol := range r.Symbols {
		read = append(read, symbol.Class)
	}
	p, err := ctc.LogProb(s, 0, read)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// A line reads the same wherever it stands, in any batch and any layout,
// also where T is V; and whatever form its probabilities have.
func TestLine_layouts(t *testing.T) {
	t.Parallel()
	const lines, frames, classes = 5, 7, 7
	r := rand.New(rand.NewPCG(5, 6))
	rows := make([][][]float32, lines)
	for n := range rows {
		rows[n] = random(r, frames, classes)
	}
	o := ctc.Options{Blank: 2, Below: 0.6, Width: 8}
	beams := 0
	for n := range lines {
		want, err := ctc.Decode(scores(t, ctc.Probabilities, rows[n]...), o)
		if err != nil {
			t.Fatal(err)
		}
		if want.Beam {
			beams++
		}
		for layout, at := range map[ctc.Layout]func(n, t, v int) int{
			ctc.NTV: func(n, t, v int) int { return (n*frames+t)*classes + v },
			ctc.NVT: func(n, t, v int) int { return (n*classes+v)*frames + t },
			ctc.TNV: func(n, t, v int) int { return (t*lines+n)*classes + v },
		} {
			for _, order := range [][]int{{0, 1, 2, 3, 4}, {4, 2, 0, 3, 1}} {
				data := make([]float32, lines*frames*classes)
				for place, line := range order {
					for f := range frames {
						for v := range classes {
							data[at(place, f, v)] = rows[line][f][v]
						}
					}
				}
				shape := map[ctc.Layout][]int64{ctc.NTV: {lines, frames, classes}, ctc.NVT: {lines, classes, frames}, ctc.TNV: {frames, lines, classes}}[layout]
				s, err := ctc.Line(data, shape, layout, ctc.Probabilities, slices.Index(order, n))
				if err != nil {
					t.Fatal(err)
				}
				got, err := ctc.Decode(s, o)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(want, got); diff != "" { // to the last bit
					t.Errorf("line %d, %s, %v (-alone +here):\n%s", n, layout, order, diff)
				}
			}
		}
		logs, logits := make([][]float32, frames), make([][]float32, frames)
		for f, row := range rows[n] {
			for _, p := range row {
				logs[f] = append(logs[f], float32(math.Log(float64(p))))
				logits[f] = append(logits[f], float32(math.Log(float64(p)))+900*float32(f-3))
			}
		}
		for kind, form := range map[ctc.Kind][][]float32{ctc.LogProbabilities: logs, ctc.Logits: logits} {
			got, err := ctc.Decode(scores(t, kind, form...), o)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got, cmpopts.EquateApprox(0, 1e-3)); diff != "" {
				t.Errorf("line %d as %s (-probabilities +these):\n%s", n, kind, diff)
			}
		}
	}
	if beams == 0 || beams == lines {
		t.Errorf("%d of %d lines were searched; the test wants both kinds", beams, lines)
	}
}

// Ties go to the lower class, and zeros and huge numbers do no harm.
func TestDecode_extremes(t *testing.T) {
	t.Parallel()
	inf := float32(math.Inf(-1))
	for _, tt := range []struct {
		name   string
		s      ctc.Scores
		greedy string
		beam   string
	}{
		{"all the same", scores(t, ctc.Logits, []float32{0, 0, 0}, []float32{0, 0, 0}), "", "1"},
		{"nothing but one class", scores(t, ctc.Probabilities, []float32{0, 0, 1}, []float32{0, 1, 0}), "21", "21"},
		{"logits beyond exp", scores(t, ctc.Logits, []float32{-3e38, 3e38, 0}, []float32{3e38, 0, 0}), "1", "1"},
		{"classes ruled out", scores(t, ctc.Logits, []float32{inf, 0, inf}, []float32{inf, 0, inf}), "1", "1"},
		{"no frames", scores(t, ctc.Logits), "", ""},
	} {
		greedy, err := ctc.Greedy(tt.s, 0)
		if err != nil || text(greedy) != tt.greedy {
			t.Errorf("%s: greedy %q, %v; want %q", tt.name, text(greedy), err, tt.greedy)
		}
		beam, err := ctc.Beam(tt.s, 0, 8, 0)
		if err != nil || text(beam) != tt.beam {
			t.Errorf("%s: beam %q, %v; want %q", tt.name, text(beam), err, tt.beam)
		}
		for _, r := range []ctc.Reading{greedy, beam} {
			if !(r.Mean >= 0 && r.Mean <= 1 && r.Min >= 0 && r.Min <= r.Mean) {
				t.Errorf("%s: mean %g, min %g", tt.name, r.Mean, r.Min)
			}
		}
	}
}

func TestErrors(t *testing.T) {
	t.Parallel()
	nan := float32(math.NaN())
	for _, tt := range []struct {
		kind   ctc.Kind
		frames [][]float32
		blank  int
		says   string
	}{
		{ctc.Logits, [][]float32{{0, 1}}, 2, "blank 2 of 2 classes"},
		{ctc.Logits, [][]float32{{0, 1}}, -1, "blank -1"},
		{ctc.Logits, [][]float32{{0, 1}, {0, nan}}, 0, "the score of class 1 in frame 1 is NaN"},
		{ctc.Logits, [][]float32{{0, float32(math.Inf(1))}}, 0, "is +Inf"},
		{ctc.Logits, [][]float32{{float32(math.Inf(-1)), float32(math.Inf(-1))}}, 0, "frame 0 admits no class"},
		{ctc.Probabilities, [][]float32{{9, 4}}, 0, "add up to 13; are these logits?"},
		{ctc.Probabilities, [][]float32{{-1, 2}}, 0, "has the probability -1; are these logits?"},
		{ctc.LogProbabilities, [][]float32{{0, 0}}, 0, "add up to 2"},
	} {
		s := scores(t, tt.kind, tt.frames...)
		if _, err := ctc.Decode(s, ctc.Options{Blank: tt.blank, Below: 1.1, Width: 4}); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("error %v, want %q", err, tt.says)
		}
	}
	s := scores(t, ctc.Probabilities, []float32{0.5, 0.5})
	if _, err := ctc.Beam(s, 0, 0, 0); err == nil {
		t.Error("a beam of width 0 found something")
	}
	for _, text := range [][]int{{0}, {2}, {-1}} {
		if p, err := ctc.LogProb(s, 0, text); err == nil {
			t.Errorf("%v has the log probability %g", text, p)
		}
	}
	for _, tt := range []struct {
		shape  []int64
		layout ctc.Layout
		kind   ctc.Kind
		n      int
		says   string
	}{
		{[]int64{2, 3}, ctc.NTV, ctc.Logits, 0, "have 2 axes"},
		{[]int64{1, 2, 4}, ctc.NTV, ctc.Logits, 0, "6 scores do not have the shape [1 2 4]"},
		{[]int64{1, -2, -3}, ctc.NTV, ctc.Logits, 0, "have the shape [1 -2 -3]"},
		{[]int64{1, 2, 3}, "NCHW", ctc.Logits, 0, `layout "NCHW"`},
		{[]int64{1, 2, 3}, ctc.NTV, "scores", 0, `kind "scores"`},
		{[]int64{1, 2, 3}, ctc.NTV, ctc.Logits, 1, "line 1 of 1"},
	} {
		if _, err := ctc.Line(make([]float32, 6), tt.shape, tt.layout, tt.kind, tt.n); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("error %v, want %q", err, tt.says)
		}
	}
}

func TestCharset(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		blank int
		space bool
		want  []string
	}{
		{0, true, []string{"", "a", "བ", " "}},
		{0, false, []string{"", "a", "བ"}},
		{1, true, []string{"a", "", "བ", " "}},
		{3, true, []string{"a", "བ", " ", ""}},
		{-1, false, []string{"a", "བ", ""}},
	} {
		c, err := ctc.NewCharset([]string{"a", "བ"}, tt.blank, tt.space)
		if err != nil || c.Classes() != len(tt.want) || tt.want[c.Blank()] != "" {
			t.Fatalf("%+v, %v", c, err)
		}
		for v, want := range tt.want {
			if got := c.Text([]ctc.Symbol{{Class: v}}); got != want {
				t.Errorf("blank %d: class %d is %q, want %q", tt.blank, v, got, want)
			}
		}
		if err := c.Check(len(tt.want)); err != nil {
			t.Error(err)
		}
		if err := c.Check(6625); err == nil || !strings.Contains(err.Error(), "6625 classes") {
			t.Errorf("error %v, want one that names both numbers", err)
		}
		if got := c.Text([]ctc.Symbol{{Class: -1}, {Class: 99}}); got != "" {
			t.Errorf("classes that there are not are %q", got)
		}
	}
	for _, tt := range []struct {
		texts []string
		blank int
		says  string
	}{{nil, 0, "is empty"}, {[]string{"a", ""}, 0, "entry 1 is empty"}, {[]string{"a"}, 2, "blank at 2"}, {[]string{"a"}, -2, "blank at -2"}} {
		if _, err := ctc.NewCharset(tt.texts, tt.blank, false); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("error %v, want %q", err, tt.says)
		}
	}
}

// A line of 160 frames and 97 classes, as PP-OCR has for 1280 pixels, and one
// of 800 and 115, as Easter2 has; each frame with a few likely classes.
func BenchmarkDecode(b *testing.B) {
	for _, size := range [][2]int{{160, 97}, {800, 115}} {
		r := rand.New(rand.NewPCG(7, 8))
		rows := make([][]float32, size[0])
		for n := range rows {
			rows[n] = make([]float32, size[1])
			for v := range rows[n] {
				rows[n][v] = float32(2 * r.NormFloat64())
			}
			for range 3 {
				rows[n][r.IntN(size[1])] = float32(12 + 2*r.NormFloat64())
			}
		}
		s := scores(b, ctc.Logits, rows...)
		b.Run(fmt.Sprintf("%d frames, greedy", size[0]), func(b *testing.B) {
			for b.Loop() {
				_, _ = ctc.Greedy(s, 0)
			}
		})
		b.Run(fmt.Sprintf("%d frames, beam", size[0]), func(b *testing.B) {
			o := ctc.Defaults()
			for b.Loop() {
				_, _ = ctc.Beam(s, 0, o.Width, o.MinProb)
			}
		})
	}
}
