package wylie

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/text/unicode/norm"
)

// FromUnicode converts text in Tibetan script to EWTS. What is not Tibetan is
// put in brackets, and signs that EWTS has no letters for become escapes.
func FromUnicode(text string) string {
	w := latinWriter{}
	runes := []rune(text)
	for at := 0; at < len(runes); {
		end := at + 1
		for end < len(runes) && class(runes[end]) == class(runes[at]) {
			end++
		}
		piece := string(runes[at:end])
		switch class(runes[at]) {
		case inSyllable:
			w.syllable(norm.NFC.String(piece))
		case inMark:
			for _, c := range runes[at:end] {
				w.put(markNames[string(c)])
			}
		case inLine:
			w.out.WriteString(piece)
			w.last = ""
		case inEscape:
			w.escape(piece)
		case foreign:
			// A space between words belongs to them.
			for end+1 < len(runes) && runes[end] == ' ' && class(runes[end+1]) == foreign {
				end++
				for end < len(runes) && class(runes[end]) == foreign {
					end++
				}
			}
			w.put("[" + string(runes[at:end]) + "]")
		}
		at = end
	}
	return w.out.String()
}

// Classes of characters in Unicode text.
const (
	inSyllable = iota
	inMark
	inLine
	inEscape
	foreign
)

func class(c rune) int {
	_, mark := markNames[string(c)]
	switch {
	case mark:
		return inMark
	case c == '\n', c == '\r', c == '\t':
		return inLine
	case c == '[', c == ']', c == '\\':
		return inEscape
	case c >= 0x0f40 && c <= 0x0f6c, c >= 0x0f71 && c <= 0x0f84, c >= 0x0f90 && c <= 0x0fbc,
		c == 0x0f35, c == 0x0f37, c == 0x0f39, c == 0x0f85:
		return inSyllable
	case c >= 0x0f00 && c <= 0x0fff:
		return inEscape
	}
	return foreign
}

type latinWriter struct {
	out  strings.Builder
	last string
}

// put writes a piece, and empty brackets before it where it would be read as
// one with the last.
func (w *latinWriter) put(piece string) {
	if _, one := marks[w.last+piece[:1]]; one && w.last != "" {
		w.out.WriteString("[]")
	}
	w.out.WriteString(piece)
	w.last = piece
}

func (w *latinWriter) escape(text string) {
	w.last = ""
	for _, c := range text {
		if c > 0xffff {
			fmt.Fprintf(&w.out, `\U%08x`, c)
		} else {
			fmt.Fprintf(&w.out, `\u%04x`, c)
		}
	}
}

// syllable writes letters and their signs: as Tibetan would be spelled, or else
// every stack with a vowel of its own, or else as escapes; the first that reads
// back as what it was.
func (w *latinWriter) syllable(text string) {
	w.last = ""
	if all, ok := parse(text); ok {
		for _, latin := range []string{spelled(all), spread(all)} {
			back, problems := ToUnicode(latin)
			if latin != "" && back == text && len(problems) == 0 {
				w.out.WriteString(latin)
				return
			}
		}
	}
	w.escape(text)
}

// A stack is what stands in one place of the line.
type stack struct {
	letters []string // in Latin
	vowels  string   // in Latin, empty for none
	signs   string   // in Latin
}

// plain reports whether nothing but one letter is there.
func (s stack) plain() bool { return len(s.letters) == 1 && s.vowels == "" && s.signs == "" }

// name writes the consonants.
func (s stack) name() string {
	if len(s.letters) == 1 && s.letters[0] == "a" {
		return ""
	}
	if native(s.letters) {
		return strings.Join(s.letters, "")
	}
	return strings.Join(s.letters, "+")
}

// whole writes a stack with its vowel.
func (s stack) whole() string { return s.name() + cmp.Or(s.vowels, "a") + s.signs }

// parse takes a syllable apart, which is in normal form. Not every order of
// signs can be spelled.
func parse(text string) ([]stack, bool) {
	var all []stack
	text = flagged.ReplaceAllString(text, "$1\u0f39$2")
	for text != "" {
		if name, size := match(text, consonantNames); size > 0 {
			all = append(all, stack{letters: []string{name}})
			text = text[size:]
			continue
		}
		if len(all) == 0 {
			return nil, false
		}
		last := &all[len(all)-1]
		if name, size := match(text, subjoinedNames); size > 0 && last.vowels == "" && last.signs == "" {
			last.letters = append(last.letters, name)
			text = text[size:]
		} else if name, size := match(text, vowelNames); size > 0 && last.signs == "" {
			if last.vowels != "" {
				last.vowels += "+"
			}
			last.vowels += name
			text = text[size:]
		} else if name, size := match(text, signNames); size > 0 {
			last.signs += name
			text = text[size:]
		} else {
			return nil, false
		}
	}
	return all, true
}

// flagged finds a letter that makes another one with a flag, which normal form
// puts behind the vowels.
var flagged = regexp.MustCompile(`([\x{f55}\x{f56}\x{fa5}\x{fa6}])([\x{f71}-\x{f7d}\x{f80}]+)\x{f39}`)

// match is the longest key of a table of Tibetan that a text begins with.
func match(text string, table map[string]string) (name string, size int) {
	for size := min(len(text), 12); size > 0; size-- {
		if name, ok := table[text[:size]]; ok {
			return name, size
		}
	}
	return "", 0
}

// spread writes every stack with a vowel of its own.
func spread(all []stack) string {
	var b strings.Builder
	for _, s := range all {
		b.WriteString(s.whole())
	}
	return b.String()
}

// spelled writes a syllable with its one vowel at the root, and each particle
// behind it (dga'i, pa'ang) with its own. It is empty where no root is found.
func spelled(all []stack) string {
	var b strings.Builder
	for len(all) > 0 {
		end := 1
		for end < len(all) && !particle(all[end:]) {
			end++
		}
		part, open := all[:end], end < len(all)
		all = all[end:]
		at := root(part, open)
		if at < 0 {
			return ""
		}
		if at == 1 {
			b.WriteString(part[0].name())
			if stacks(part[0], part[1]) {
				b.WriteString(".")
			}
		}
		b.WriteString(part[at].whole())
		for _, s := range part[at+1:] {
			b.WriteString(s.name())
		}
	}
	return b.String()
}

// stacks reports whether a prefix and a root would be read as one stack.
func stacks(prefix, root stack) bool {
	return native(root.letters) && native(slices.Concat(prefix.letters, root.letters))
}

// particle reports whether an a-chung begins one: with a vowel, or before the
// last letter of 'ang and 'am.
func particle(all []stack) bool {
	s := all[0]
	if len(s.letters) != 1 || s.letters[0] != "'" {
		return false
	}
	return s.vowels != "" || s.plain() && len(all) == 2 && all[1].plain() && (all[1].letters[0] == "ng" || all[1].letters[0] == "m")
}

// root finds the stack that has the vowel: 0, or 1 behind a prefix, or -1 where
// the letters behind it are no suffixes. Before a particle the root ends the
// syllable, for only an open one takes it.
func root(all []stack, open bool) int {
	prefixed := len(all) > 1 && all[0].plain() && known(prefixes, all[0].letters[0], strings.Join(all[1].letters, ""))
	if n := slices.IndexFunc(all, func(s stack) bool { return !s.plain() }); n >= 0 {
		if n > 1 || n == 1 && !prefixed || !closes(all[n+1:]) {
			return -1
		}
		return n
	}
	switch {
	case open && prefixed && len(all) == 2:
		return 1
	case !prefixed || len(all) < 2:
	case len(all) == 2:
		if !closes(all[1:]) {
			return 1
		}
	case closes(all[2:]):
		if len(all) > 3 || !closes(all[1:]) || !known(firstRoots, all[0].letters[0], all[1].letters[0]) {
			return 1
		}
	}
	if closes(all[1:]) {
		return 0
	}
	return -1
}

// closes reports whether letters are what may follow a vowel: none, a suffix,
// or a suffix and a second one.
func closes(all []stack) bool {
	for _, s := range all {
		if !s.plain() {
			return false
		}
	}
	switch len(all) {
	case 0:
		return true
	case 1:
		return known(suffixes, "", all[0].letters[0])
	case 2:
		return known(suffixes, all[1].letters[0], all[0].letters[0])
	}
	return false
}
