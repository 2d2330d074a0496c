package ctc

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// A prefix is a beginning of a text: another one and a class more. Prefixes
// live in one slice and name each other by their place in it; the first is empty.
type prefix struct {
	parent int
	class  int
	length int
	frame  int // the last one in which it had a way
	way    int // which one then
}

// A way is a prefix with the log probability of having read it up to some
// frame, by whether that frame was blank.
type way struct {
	prefix      int
	blank, char float64
	total       float64 // of both, once pruned
}

// search is a prefix beam search.
type search struct {
	prefixes []prefix
	children map[[2]int]int // by parent and class
	ways     []way
	frame    int
}

// Beam finds the text that is most probable summed over all the ways to lay it
// out in the frames, by prefix beam search (Graves, 2012, section 7.5.2; the
// form in logarithms is Hannun et al.'s, 2014, without a language model): of
// the beginnings of texts it keeps the width most probable ones after each
// frame, and in no frame tries classes less probable than minProb. Symbols get
// the frames of the text's most probable layout.
//
// With a width that holds every beginning and minProb 0 it finds the best text
// there is; with less it may miss it.
func Beam(s Scores, blank, width int, minProb float64) (Reading, error) {
	if width < 1 {
		return Reading{}, fmt.Errorf("beam of width %d", width)
	}
	l, err := newLogs(s, blank)
	if err != nil {
		return Reading{}, err
	}
	b := search{prefixes: []prefix{{parent: -1, class: blank}}, children: map[[2]int]int{}}
	b.ways = []way{{prefix: 0, blank: 0, char: math.Inf(-1)}}
	minLog := math.Inf(-1)
	if minProb > 0 {
		minLog = math.Log(minProb)
	}
	tried, row := make([]int, 0, s.classes), make([]float64, s.classes)
	for t := range s.frames {
		tried = tried[:0]
		for v := range s.classes {
			row[v] = l.log(t, v)
			if v != blank && !math.IsInf(row[v], -1) && (row[v] >= minLog || v == l.best[t]) {
				tried = append(tried, v)
			}
		}
		b.step(row, tried, blank)
		b.prune(width)
	}
	path, err := l.align(b.text(b.ways[0].prefix), blank)
	if err != nil {
		return Reading{}, err
	}
	r := l.reading(path, blank)
	r.Beam = true
	return r, nil
}

// step takes one frame more.
func (b *search) step(row []float64, tried []int, blank int) {
	before := b.ways
	b.ways = make([]way, 0, len(before)*(1+len(tried)))
	b.frame++
	for _, w := range before {
		total, class := w.total, b.prefixes[w.prefix].class
		same := b.way(w.prefix)
		same.blank = add(same.blank, total+row[blank])
		if w.prefix != 0 {
			same.char = add(same.char, w.char+row[class])
		}
		for _, v := range tried {
			p := total
			if v == class { // a second one only follows a blank
				p = w.blank
			}
			if math.IsInf(p, -1) {
				continue
			}
			longer := b.way(b.child(w.prefix, v))
			longer.char = add(longer.char, p+row[v])
		}
	}
}

// prune keeps the best ways, best first.
func (b *search) prune(width int) {
	for n, w := range b.ways {
		b.ways[n].total = add(w.blank, w.char)
	}
	slices.SortFunc(b.ways, func(x, y way) int {
		if order := cmp.Compare(y.total, x.total); order != 0 {
			return order
		}
		return slices.Compare(b.text(x.prefix), b.text(y.prefix))
	})
	b.ways = b.ways[:min(width, len(b.ways))]
}

// way is the way of a prefix in the frame at hand, valid until the next call.
func (b *search) way(p int) *way {
	of := &b.prefixes[p]
	if of.frame != b.frame {
		of.frame, of.way = b.frame, len(b.ways)
		b.ways = append(b.ways, way{prefix: p, blank: math.Inf(-1), char: math.Inf(-1)})
	}
	return &b.ways[of.way]
}

func (b *search) child(parent, class int) int {
	key := [2]int{parent, class}
	n, ok := b.children[key]
	if !ok {
		n = len(b.prefixes)
		b.prefixes = append(b.prefixes, prefix{parent: parent, class: class, length: b.prefixes[parent].length + 1})
		b.children[key] = n
	}
	return n
}

func (b *search) text(p int) []int {
	all := make([]int, b.prefixes[p].length)
	for n := len(all) - 1; n >= 0; n-- {
		all[n], p = b.prefixes[p].class, b.prefixes[p].parent
	}
	return all
}
