package ctc

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Charset says which text each of a model's classes stands for.
type Charset struct {
	text  []string // by class; the blank's is empty
	blank int
}

// NewCharset returns the charset of a model whose classes are the given texts
// in their order, a space behind them where space is set, and the blank put in
// at its own index; -1 puts it last.
func NewCharset(texts []string, blank int, space bool) (Charset, error) {
	all := slices.Clone(texts)
	if space {
		all = append(all, " ")
	}
	if n := slices.Index(all, ""); n >= 0 {
		return Charset{}, fmt.Errorf("charset: entry %d is empty; only the blank stands for nothing, and it is not listed", n)
	}
	if len(all) == 0 {
		return Charset{}, errors.New("charset: is empty")
	}
	if blank == -1 {
		blank = len(all)
	}
	if blank < 0 || blank > len(all) {
		return Charset{}, fmt.Errorf("charset: blank at %d of %d classes", blank, len(all)+1)
	}
	return Charset{slices.Insert(all, blank, ""), blank}, nil
}

// Blank is the class that is no character.
func (c Charset) Blank() int { return c.blank }

// Classes is how many classes a model of this charset has.
func (c Charset) Classes() int { return len(c.text) }

// Check returns an error where a model has another number of classes: it was
// made for another charset, and its text would be rubbish.
func (c Charset) Check(classes int) error {
	if classes != len(c.text) {
		return fmt.Errorf("the model has %d classes, but its charset %d with the blank: they do not belong together", classes, len(c.text))
	}
	return nil
}

// Text is the text that symbols stand for. Classes that there are not stand
// for nothing; [Charset.Check] keeps them out.
func (c Charset) Text(symbols []Symbol) string {
	var b strings.Builder
	for _, s := range symbols {
		if s.Class >= 0 && s.Class < len(c.text) {
			b.WriteString(c.text[s.Class])
		}
	}
	return b.String()
}
