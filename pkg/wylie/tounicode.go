package wylie

import (
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// kind is what a token of a syllable is.
type kind int

const (
	consonant kind = iota
	vowel
	sign
	joiner // +
	parter // .
)

// A token is a piece of a syllable.
type token struct {
	kind   kind
	text   string
	offset int
}

// ToUnicode converts EWTS to Tibetan script.
func ToUnicode(latin string) (string, []Problem) {
	r := latinReader{in: latin}
	for r.at < len(r.in) {
		r.next()
	}
	return r.out.String(), r.problems
}

type latinReader struct {
	in       string
	at       int
	out      strings.Builder
	problems []Problem
}

func (r *latinReader) problem(from int, reason string) {
	r.problems = append(r.problems, Problem{from, r.in[from:r.at], reason})
}

// next takes the next piece.
func (r *latinReader) next() {
	if tokens := r.syllable(); len(tokens) > 0 {
		r.out.WriteString(norm.NFC.String(r.stacks(tokens)))
		return
	}
	from := r.at
	switch c := r.in[r.at]; c {
	case '[':
		r.brackets()
	case '\\':
		r.escape()
	case '\n', '\r', '\t':
		r.at++
		r.out.WriteByte(c)
	default:
		if text, ok := longest(r.in[r.at:], marks); ok {
			r.at += len(text)
			r.out.WriteString(marks[text])
			return
		}
		_, size := utf8.DecodeRuneInString(r.in[r.at:])
		r.at += size
		r.problem(from, "is not Wylie; put what is not Tibetan in brackets")
		r.out.WriteString(r.in[from:r.at])
	}
}

// brackets copies what is between brackets, which may hold more of them.
func (r *latinReader) brackets() {
	from, depth := r.at, 0
	for ; r.at < len(r.in); r.at++ {
		switch r.in[r.at] {
		case '[':
			depth++
		case ']':
			depth--
		}
		if depth == 0 {
			r.out.WriteString(r.in[from+1 : r.at])
			r.at++
			return
		}
	}
	r.problem(from, "is a bracket that does not close")
	r.out.WriteString(r.in[from+1:])
}

func (r *latinReader) escape() {
	from := r.at
	for prefix, digits := range map[string]int{`\u`: 4, `\U`: 8} {
		rest := r.in[from:]
		if !strings.HasPrefix(rest, prefix) || len(rest) < 2+digits {
			continue
		}
		n, err := strconv.ParseUint(rest[2:2+digits], 16, 32)
		if err != nil || !utf8.ValidRune(rune(n)) {
			continue
		}
		r.at += 2 + digits
		r.out.WriteRune(rune(n))
		return
	}
	r.at++
	r.problem(from, "is not an escape; those are \\u and four hexadecimal digits, or \\U and eight")
	r.out.WriteByte('\\')
}

// syllable takes the tokens up to the next that belongs to none.
func (r *latinReader) syllable() []token {
	var all []token
	for r.at < len(r.in) {
		t := token{offset: r.at}
		best := func(k kind, table map[string]string) {
			if text, ok := longest(r.in[r.at:], table); ok && len(text) > len(t.text) {
				t.kind, t.text = k, text
			}
		}
		best(consonant, consonants)
		best(vowel, vowels)
		best(sign, signs)
		switch c := r.in[r.at]; {
		case t.text != "":
		case c == '+' && len(all) > 0:
			t.kind, t.text = joiner, "+"
		case c == '.' && len(all) > 0:
			t.kind, t.text = parter, "."
		default:
			return all
		}
		all = append(all, t)
		r.at += len(t.text)
	}
	return all
}

// stacks writes a syllable's tokens.
func (r *latinReader) stacks(tokens []token) string {
	var b strings.Builder
	var run []cluster // consonants not written yet
	nuclei, letters, open := 0, 0, false
	for n, t := range tokens {
		var before, after kind = -1, -1
		if n > 0 {
			before = tokens[n-1].kind
		}
		if n < len(tokens)-1 {
			after = tokens[n+1].kind
		}
		switch t.kind {
		case consonant:
			letters++
			open = false
			switch {
			case before == joiner && len(run) > 0:
				run[len(run)-1].letters = append(run[len(run)-1].letters, t.text)
			default:
				run = append(run, cluster{letters: []string{t.text}, apart: before == parter})
			}
		case vowel:
			switch {
			case len(run) > 0:
				b.WriteString(stacked(run, true))
				run = nil
			case before == joiner && open:
			default:
				b.WriteString(carrier)
			}
			b.WriteString(vowels[t.text])
			nuclei, open = nuclei+1, true
		case sign:
			if t.text == flag && len(run) > 0 {
				last := &run[len(run)-1]
				last.letters = append(last.letters, flag)
				continue
			}
			b.WriteString(stacked(run, nuclei == 0))
			if len(run) == 0 && n == 0 {
				r.problems = append(r.problems, Problem{t.offset, t.text, "has no letter to stand at"})
			}
			if len(run) > 0 || t.text == "?" {
				nuclei++ // a killed vowel is one that is accounted for
			}
			run, open = nil, false
			b.WriteString(signs[t.text])
		case joiner, parter:
			if before == consonant && after == consonant || t.kind == joiner && before == vowel && after == vowel {
				continue
			}
			b.WriteString(stacked(run, nuclei == 0) + t.text)
			run, open = nil, false
			r.problems = append(r.problems, Problem{t.offset, t.text, "stands between no two letters"})
		}
	}
	b.WriteString(stacked(run, nuclei == 0))
	if nuclei == 0 && letters > 0 {
		text := r.in[tokens[0].offset:r.at]
		r.problems = append(r.problems, Problem{tokens[0].offset, text, "has no vowel"})
	}
	return b.String()
}

// flag is a sign that stands at a consonant and not at its syllable.
const flag = "^"

// carrier is the letter that stands where a syllable begins with a vowel.
const carrier = "\u0f68"

// A cluster is consonants joined by "+"; most are one.
type cluster struct {
	letters []string
	apart   bool // from the one before, by "."
}

// stacked writes consonants: where a vowel follows, the longest stack that
// spelling knows at their end as one, and the others by themselves.
func stacked(run []cluster, beforeVowel bool) string {
	var b strings.Builder
	first := len(run)
	if beforeVowel {
		first = split(run)
	}
	for n, c := range run {
		for m, l := range c.letters {
			table := consonants
			switch {
			case l == flag:
				table = signs
			case n > first || m > 0:
				table = subjoined
			}
			b.WriteString(table[l])
		}
	}
	return b.String()
}

// split is where in a run the stack begins that a vowel follows.
func split(run []cluster) int {
	const most = 3 // letters in a stack
	for first := max(0, len(run)-most); first < len(run); first++ {
		var letters []string
		alone := true
		for n, c := range run[first:] {
			letters = append(letters, c.letters...)
			alone = alone && len(c.letters) == 1 && (n == 0 || !c.apart)
		}
		if alone && native(letters) {
			return first
		}
	}
	return max(0, len(run)-1)
}

// native reports whether Tibetan spelling knows a stack.
func native(letters []string) bool {
	switch len(letters) {
	case 1:
		return true
	case 2:
		return known(superscripts, letters[0], letters[1]) || known(subscripts, letters[1], letters[0])
	case 3:
		return known(subscripts, letters[2], letters[0]+letters[1]) && native(letters[:2])
	}
	return false
}

func known(table map[string]string, key, word string) bool {
	return slices.Contains(strings.Fields(table[key]), word)
}

// longest is the longest key of a table that a text begins with.
func longest(text string, table map[string]string) (string, bool) {
	for size := min(len(text), 4); size > 0; size-- {
		if _, ok := table[text[:size]]; ok {
			return text[:size], true
		}
	}
	return "", false
}
