package pagination

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/reeve-pipeline/reeve/pkg/pdf"
)

// Quality says how far the text layer of a page can be trusted to be what is
// printed on it: more than 0 and at most 1, and 0 without any text.
//
// It is the share of the text, by characters, that stands in plausible words
// and numbers, times how much of the page the text can be about:
//
//   - A word is plausible by what garbage is not: the rules for single strings
//     that Taghva and others gave for OCR'd archives ("Automatic Removal of
//     'Garbage Strings' in OCR Text", 2001), which ask for vowels, bar long runs
//     of consonants or of one letter, and bar digits, symbols and capitals in
//     the middle of words. No dictionary, so names, accents and other
//     languages pass; scripts other than Latin are only asked to be letters.
//   - Fonts that map glyphs to the wrong letters make words that may pass one by
//     one. Over a whole page they show in the share of vowels, which is 0.33 to
//     0.55 in languages written in Latin letters and far less when letters are
//     shifted.
//   - Glyphs without a character (Unmapped) are on the page but not in the text.
//   - A few words above a picture are a stamp or a header, not the page.
//
// The first 64 KiB, twenty full pages of print, speak for a longer text.
// Layers of modern OCR score 0.9 and above, born-digital text 0.95. Below 0.7
// it is worth looking at the picture instead.
func Quality(p pdf.Page) float64 {
	var good, all, tokens, single int
	text := p.Text[:min(len(p.Text), 64<<10)]
	for token := range strings.FieldsSeq(text) {
		n := utf8.RuneCountInString(token)
		tokens++
		if r, _ := utf8.DecodeRuneInString(token); n == 1 && unicode.In(r, unicode.Latin) {
			single++
		}
		switch judge(token) {
		case plausible:
			good += n
			all += n
		case garbage:
			all += n
		case neutral:
		}
	}
	if tokens == 0 {
		return 0
	}
	q := 1.0 // nothing but ornaments
	if all > 0 {
		q = float64(good) / float64(all)
	}
	q *= vowels(text)
	if p.Unmapped > 0 {
		q *= float64(all) / float64(all+p.Unmapped)
	}
	if share := float64(single) / float64(tokens); share > 0.3 { // l e t t e r s p a c e d
		q *= 1 - (share-0.3)/0.7
	}
	if p.Images > 0 {
		q *= min(1, float64(all)/enough)
	}
	return max(q, 0.01)
}

// enough is how many characters a page with a picture needs to pass for more
// than the picture's header: about five lines.
const enough = 300

type verdict int

const (
	neutral verdict = iota // says nothing either way
	plausible
	garbage
)

// judge looks at one token.
func judge(token string) verdict {
	if strings.Contains(token, "(cid:") || mojibake(token) {
		return garbage
	}
	core := strings.TrimFunc(token, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !unicode.IsMark(r) })
	var letters, digits, others int
	for _, r := range core {
		switch {
		case unicode.IsLetter(r), unicode.IsMark(r):
			letters++
		case unicode.IsDigit(r):
			digits++
		case unicode.In(r, unicode.Co, unicode.Cc), r == utf8.RuneError:
			return garbage
		default:
			others++
		}
	}
	trimmed := utf8.RuneCountInString(token) - letters - digits - others
	switch {
	case core == "":
		return ornament(token)
	case strings.Contains(core, "://"), strings.HasPrefix(core, "www."), strings.Contains(core, "@") && strings.Contains(core, "."):
		return plausible
	case trimmed > 6 && !repeated(token):
		return garbage
	case digits >= letters: // 24-001, $318,402.77, 7:00, 2nd, 6(a)
		return plausible
	case others > letters/2 && others > 1:
		return garbage
	}
	for part := range strings.FieldsFuncSeq(core, joins) {
		if !word(part) {
			return garbage
		}
	}
	return plausible
}

// joins are what may stand between the parts of a compound: Vice-Mayor's, and/or, p.m.
func joins(r rune) bool { return strings.ContainsRune("-'’‐‑–—/.,:&()_…", r) }

// ornament judges a token without letters or digits: bullets, leaders and
// dashes say nothing, a salad of symbols does.
func ornament(token string) verdict {
	if utf8.RuneCountInString(token) <= 2 || repeated(token) {
		return neutral
	}
	return garbage
}

// repeated reports whether most of a token is one character: ......... or ____7.
func repeated(token string) bool {
	counts, most := map[rune]int{}, 0
	for _, r := range token {
		counts[r]++
		most = max(most, counts[r])
	}
	return 2*most >= utf8.RuneCountInString(token)
}

// word reports whether letters and digits without a break can be a word.
func word(s string) bool {
	const (
		longest    = 40
		consonants = 6 // in a row; Knightsbridge has as many
		same       = 4 // in a row
	)
	var (
		runes               = []rune(s)
		latin, vowel, humps int
		run, alike          int
		changes             int // between letters and digits
		upper               = true
	)
	for i, r := range runes {
		if i > 0 && unicode.IsDigit(r) != unicode.IsDigit(runes[i-1]) {
			changes++
		}
		if i > 0 && unicode.IsUpper(r) && unicode.IsLower(runes[i-1]) {
			humps++
		}
		if i > 0 && unicode.ToLower(r) == unicode.ToLower(runes[i-1]) {
			alike++
		} else {
			alike = 1
		}
		if alike >= same && unicode.IsLetter(r) && !roman(s) {
			return false
		}
		upper = upper && !unicode.IsLower(r)
		switch {
		case !unicode.In(r, unicode.Latin):
			run = 0
		case isVowel(r):
			latin++
			vowel++
			run = 0
		default:
			latin++
			run++
		}
		if run > consonants {
			return false
		}
	}
	switch {
	case len(runes) > longest, changes > 1, humps > 1:
		return false
	case latin >= 4 && vowel == 0 && (!upper || latin > 6) && !roman(s): // NPDES passes
		return false
	}
	return true
}

func roman(s string) bool { return strings.Trim(strings.ToLower(s), "ivxlcdm") == "" }

// isVowel reports whether a Latin letter is a vowel, with or without marks.
func isVowel(r rune) bool {
	switch r = unicode.ToLower(r); {
	case strings.ContainsRune("aeiouy", r):
		return true
	case r < 0x80:
		return false
	}
	return strings.ContainsRune("àáâãäåāăąæèéêëēĕėęěìíîïĩīĭįıòóôõöøōŏőœơùúûüũūŭůűųưýÿŷ", r) ||
		0x1ea0 <= r && r <= 0x1ef9 // Vietnamese
}

// vowels is 1 for a natural share of vowels, and falls to 0.1 as it goes away.
func vowels(text string) float64 {
	const (
		sample  = 100 // letters, at least, to go by
		natural = 0.28
		shifted = 0.16 // English with every letter three places on
	)
	var latin, vowel int
	for _, r := range text {
		if unicode.In(r, unicode.Latin) {
			latin++
			if isVowel(r) {
				vowel++
			}
		}
	}
	if latin < sample {
		return 1
	}
	share := float64(vowel) / float64(latin)
	return min(1, max(0.1, (share-shifted)/(natural-shifted)))
}

// mojibake reports whether a token has UTF-8 that was read as Latin-1 or
// Windows-1252: CafÃ©, donâ€™t.
func mojibake(token string) bool {
	var before rune
	for _, r := range token {
		if strings.ContainsRune("ÃÂâÅ", before) && (0x80 <= r && r <= 0xbf || strings.ContainsRune("€™œ‚„…†‡ˆ‰‹‘’“”•–—˜›ž", r)) {
			return true
		}
		before = r
	}
	return false
}
