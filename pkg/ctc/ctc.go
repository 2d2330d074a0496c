// Package ctc reads text off the output of a recogniser that was trained with
// connectionist temporal classification (Graves et al., 2006): for each frame
// across a line of text, a score for each character and one for the blank,
// which is no character. A run of frames of one class is one character; a
// blank between two runs makes them two.
//
// What is decoded depends on the line's own scores and nothing else, in
// float64 and in a fixed order, ties going to the lower class: a line's text
// is the same in any batch, in any order and on any worker.
package ctc

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// Kind says what a model's scores are.
type Kind string

// The kinds of scores.
const (
	Logits           Kind = "logits"            // any numbers; a softmax makes them probabilities
	Probabilities    Kind = "probabilities"     // 0 to 1, adding up to 1 in each frame
	LogProbabilities Kind = "log_probabilities" // natural logarithms of those
)

// Layout is the order of a tensor's axes: N lines, T frames, V classes. It is
// declared, for a shape does not tell T from V.
type Layout string

// The layouts of recognisers.
const (
	NTV Layout = "NTV" // PP-OCR
	NVT Layout = "NVT" // Easter2
	TNV Layout = "TNV" // CRNN
)

// Scores are the scores of one line. Build them with [Line].
type Scores struct {
	data            []float32
	kind            Kind
	frames, classes int
	offset          int // of frame 0, class 0
	frame, class    int // steps in data from one to the next
}

// Line is line n of a tensor of the given shape. It reads data, and does not
// copy it.
func Line(data []float32, shape []int64, layout Layout, kind Kind, n int) (Scores, error) {
	if len(shape) != 3 {
		return Scores{}, fmt.Errorf("scores have %d axes, layout %s has 3", len(shape), layout)
	}
	if kind != Logits && kind != Probabilities && kind != LogProbabilities {
		return Scores{}, fmt.Errorf("scores of kind %q; there are %s, %s and %s", kind, Logits, Probabilities, LogProbabilities)
	}
	var size, step [3]int // of N, T, V
	if layout != NTV && layout != NVT && layout != TNV {
		return Scores{}, fmt.Errorf("layout %q; there are %s, %s and %s", layout, NTV, NVT, TNV)
	}
	all := 1
	for a := 2; a >= 0; a-- {
		axis := slices.Index([]byte("NTV"), layout[a])
		if shape[a] < 0 || shape[a] > math.MaxInt32 {
			return Scores{}, fmt.Errorf("scores have the shape %v", shape)
		}
		size[axis], step[axis] = int(shape[a]), all
		all *= int(shape[a])
	}
	switch {
	case all != len(data):
		return Scores{}, fmt.Errorf("%d scores do not have the shape %v", len(data), shape)
	case n < 0 || n >= size[0]:
		return Scores{}, fmt.Errorf("line %d of %d", n, size[0])
	}
	return Scores{
		data: data, kind: kind, frames: size[1], classes: size[2],
		offset: n * step[0], frame: step[1], class: step[2],
	}, nil
}

// Frames is the number of frames.
func (s Scores) Frames() int { return s.frames }

// Classes is the number of classes, with the blank.
func (s Scores) Classes() int { return s.classes }

func (s Scores) at(t, v int) float64 { return float64(s.data[s.offset+t*s.frame+v*s.class]) }

// A Symbol is a character that was read.
type Symbol struct {
	// Class is its index among the model's classes.
	Class int
	// Confidence is the highest probability its class has in its frames.
	Confidence float64
	// First and Last are its frames. Frame t of T stands for the part from
	// t/T to (t+1)/T of the line's width.
	First, Last int
}

// Reading is what was read of a line.
type Reading struct {
	Symbols []Symbol
	// Mean and Min are of the symbols' confidences; where there are none, of
	// the blank's in all frames. 1 for a line without frames.
	Mean, Min float64
	// Beam: the greedy reading was not sure, and a beam search was made.
	Beam bool
}

// Options say how to decode.
type Options struct {
	// Blank is the class that is no character.
	Blank int
	// Below: lines whose greedy reading has a mean confidence below it are read
	// again by beam search. 0: none are, and 1.1 means all.
	Below float64
	// Width is the number of beginnings that the search keeps at a time.
	Width int
	// MinProb: classes less probable than this in a frame are not tried there,
	// which keeps large charsets affordable. 0: all are.
	MinProb float64
}

// Defaults returns Options with the blank at 0 and a beam of 32 where the mean
// confidence is below 0.85.
func Defaults() Options { return Options{Below: 0.85, Width: 32, MinProb: 1e-4} }

// Decode reads a line: greedily, and by beam search where that is not sure.
// The beam's reading is taken where it is more probable than the greedy one;
// both are compared by their exact probability.
func Decode(s Scores, o Options) (Reading, error) {
	greedy, err := Greedy(s, o.Blank)
	if err != nil || greedy.Mean >= o.Below {
		return greedy, err
	}
	best, err := Beam(s, o.Blank, o.Width, o.MinProb)
	if err != nil {
		return Reading{}, err
	}
	was, err := LogProb(s, o.Blank, classes(greedy.Symbols))
	if err != nil {
		return Reading{}, err
	}
	is, err := LogProb(s, o.Blank, classes(best.Symbols))
	if err != nil {
		return Reading{}, err
	}
	if is <= was {
		best = greedy
	}
	best.Beam = true
	return best, nil
}

func classes(symbols []Symbol) []int {
	all := make([]int, len(symbols))
	for n, s := range symbols {
		all[n] = s.Class
	}
	return all
}

// Greedy reads the most probable class of each frame, merges runs and drops
// blanks. It takes T·V steps. The error says what is wrong with the scores.
func Greedy(s Scores, blank int) (Reading, error) {
	l, err := newLogs(s, blank)
	if err != nil {
		return Reading{}, err
	}
	return l.reading(l.best, blank), nil
}

// Logs are a line's log probabilities.
type logs struct {
	Scores
	norm []float64 // of each frame: what to take from a logit
	best []int     // the most probable class of each frame
}

// slack is how far the probabilities of a frame may miss 1: those of models in
// half precision do.
const slack = 0.05

// newLogs checks the scores in one pass.
func newLogs(s Scores, blank int) (*logs, error) {
	if s.classes < 1 || blank < 0 || blank >= s.classes {
		return nil, fmt.Errorf("blank %d of %d classes", blank, s.classes)
	}
	l := &logs{Scores: s, norm: make([]float64, s.frames), best: make([]int, s.frames)}
	for t := range s.frames {
		best, sum := 0, 0.0
		for v := range s.classes {
			x := s.at(t, v)
			if math.IsNaN(x) || math.IsInf(x, 1) {
				return nil, fmt.Errorf("the score of class %d in frame %d is %g", v, t, x)
			}
			if x > s.at(t, best) {
				best = v
			}
		}
		top := s.at(t, best)
		l.best[t] = best
		if math.IsInf(top, -1) {
			return nil, fmt.Errorf("frame %d admits no class", t)
		}
		for v := range s.classes {
			switch x := s.at(t, v); {
			case s.kind == Probabilities && x < 0:
				return nil, fmt.Errorf("class %d in frame %d has the probability %g; are these logits?", v, t, x)
			case s.kind == Probabilities:
				sum += x
			case x > top-40: // what is less does not show in a float64 sum
				sum += math.Exp(x - top)
			}
		}
		switch s.kind {
		case Logits:
			l.norm[t] = top + math.Log(sum)
		case LogProbabilities:
			sum *= math.Exp(top)
		case Probabilities:
		}
		if s.kind != Logits && math.Abs(sum-1) > slack {
			return nil, fmt.Errorf("the probabilities of frame %d add up to %.3g; are these logits?", t, sum)
		}
	}
	return l, nil
}

// log is the log probability of class v in frame t, at most 0.
func (l *logs) log(t, v int) float64 {
	x := l.at(t, v)
	if l.kind == Probabilities {
		x = math.Log(x)
	}
	return min(0, x-l.norm[t])
}

// reading turns a class per frame into symbols.
func (l *logs) reading(path []int, blank int) Reading {
	r := Reading{Mean: 1, Min: 1}
	least, sum := 1.0, 0.0
	for t, v := range path {
		p := math.Exp(l.log(t, v))
		if v == blank {
			least, sum = min(least, p), sum+p
			continue
		}
		if t > 0 && path[t-1] == v {
			s := &r.Symbols[len(r.Symbols)-1]
			s.Last, s.Confidence = t, max(s.Confidence, p)
			continue
		}
		r.Symbols = append(r.Symbols, Symbol{Class: v, Confidence: p, First: t, Last: t})
	}
	if len(r.Symbols) > 0 {
		least, sum = 1, 0
		for _, s := range r.Symbols {
			least, sum = min(least, s.Confidence), sum+s.Confidence
		}
		r.Mean, r.Min = sum/float64(len(r.Symbols)), least
	} else if len(path) > 0 {
		r.Mean, r.Min = sum/float64(len(path)), least
	}
	return r
}

// LogProb is the natural logarithm of the probability that the line reads as
// the given classes: the sum over every way to lay them out in the frames, by
// the forward algorithm (Graves et al., 2006, section 4.1). -Inf where there is
// no way.
func LogProb(s Scores, blank int, text []int) (float64, error) {
	l, err := newLogs(s, blank)
	if err != nil {
		return 0, err
	}
	states, err := between(text, blank, s.classes)
	if err != nil {
		return 0, err
	}
	now, next := make([]float64, len(states)), make([]float64, len(states))
	for n := range now {
		now[n] = math.Inf(-1)
	}
	now[0] = 0 // before the first frame, from where state 1 can be had, too
	for t := range s.frames {
		for n, v := range states {
			p := now[n]
			if n > 0 {
				p = add(p, now[n-1])
			}
			if skips(states, n) {
				p = add(p, now[n-2])
			}
			next[n] = p + l.log(t, v)
		}
		now, next = next, now
	}
	p := now[len(now)-1]
	if len(now) > 1 {
		p = add(p, now[len(now)-2])
	}
	return p, nil
}

// between puts a blank before, after and between the classes of a text.
func between(text []int, blank, classes int) ([]int, error) {
	states := []int{blank}
	for _, v := range text {
		if v < 0 || v >= classes || v == blank {
			return nil, fmt.Errorf("class %d is no character", v)
		}
		states = append(states, v, blank)
	}
	return states, nil
}

// skips reports whether state n may follow the one before the blank before it:
// both are characters, and not the same.
func skips(states []int, n int) bool {
	return n%2 == 1 && n > 1 && states[n] != states[n-2]
}

// errShort: the text has more characters than the line has frames for them.
var errShort = errors.New("has more characters than frames")

// align lays a text out in the frames in the most probable way (Viterbi). It
// returns a class per frame.
func (l *logs) align(text []int, blank int) ([]int, error) {
	states, err := between(text, blank, l.classes)
	if err != nil {
		return nil, err
	}
	inf := math.Inf(-1)
	now, next := make([]float64, len(states)), make([]float64, len(states))
	for n := range now {
		now[n] = inf
	}
	now[0] = 0
	from := make([]uint8, l.frames*len(states)) // how many states back it came from
	for t := range l.frames {
		for n, v := range states {
			p, back := now[n], 0
			if n > 0 && now[n-1] > p {
				p, back = now[n-1], 1
			}
			if skips(states, n) && now[n-2] > p {
				p, back = now[n-2], 2
			}
			from[t*len(states)+n] = uint8(back)
			next[n] = p + l.log(t, v)
		}
		now, next = next, now
	}
	n := len(states) - 1
	if n > 0 && now[n-1] > now[n] {
		n--
	}
	if now[n] == inf {
		return nil, errShort
	}
	path := make([]int, l.frames)
	for t := l.frames - 1; t >= 0; t-- {
		path[t] = states[n]
		n -= int(from[t*len(states)+n])
	}
	return path, nil
}

// add is log(exp(a) + exp(b)).
func add(a, b float64) float64 {
	if a < b {
		a, b = b, a
	}
	if math.IsInf(b, -1) {
		return a
	}
	return a + math.Log1p(math.Exp(b-a))
}
