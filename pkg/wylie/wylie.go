// Package wylie converts between Tibetan script in Unicode and its spelling in
// Latin letters by the Extended Wylie scheme (EWTS, Tibetan and Himalayan
// Library).
//
// The grammar of the Latin side:
//
//	text     = { syllable | mark | "[" anything "]" | "\u" 4 hex | "\U" 8 hex | line end }
//	syllable = { { consonant [ "+" | "." ] } [ vowel { "+" vowel } ] { sign } }
//
// Consonants before a vowel stack as far as Tibetan spelling knows the stack
// (rgya, bsgrubs: s over g over r, before it a b); those after the last vowel
// of a syllable stand one by one. A "." keeps two apart (g.yag, gyag), a "+"
// stacks what spelling does not know (pad+me); letters joined by "+" are a
// stack of their own. A space is a tsheg, "_" a space. Brackets hold what is
// not Tibetan.
//
// Unicode text is compared and given in normal form C. [FromUnicode] loses
// nothing: what it writes, [ToUnicode] reads back, to the character. The way
// from Latin and back keeps the text, but not every choice of spelling: རྒྱ can
// be written rgya and r+g+ya, and དགས is dgas or dags, which no script tells
// apart.
//
// Not known: the digits with a half (U+0F2A to U+0F33) and other signs without
// a letter in EWTS, which are written as escapes; and whether a syllable is one
// that Tibetan has. Spelling is not checked beyond what it takes to read it.
package wylie

import "fmt"

// A Problem is a piece of Latin text that does not follow the scheme. Nothing
// is dropped for it: the piece is in the output as well as it can be.
type Problem struct {
	// Offset is where it begins, in bytes.
	Offset int
	// Text is the piece.
	Text string
	// Reason says what is wrong with it.
	Reason string
}

// String names the piece, the place and what is wrong.
func (p Problem) String() string { return fmt.Sprintf("%q at byte %d %s", p.Text, p.Offset, p.Reason) }
