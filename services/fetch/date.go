package fetch

import (
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// calendar reads dates out of text. Of 01/02/2024 it takes the first number for
// the month, or for the day where dayFirst is set; where only one reading is a
// date it takes that one.
type calendar struct{ dayFirst bool }

// span is where in a text a date stands.
type span struct{ from, to int }

// date returns the first date in a text as YYYY-MM-DD, and where it stands.
// Dates that no calendar has are passed over.
func (c calendar) date(text string) (date string, at span, ok bool) {
	return c.find(fullDates, 0, text)
}

// dateIn is date for a text that names day and month but not the year.
func (c calendar) dateIn(year int, text string) (date string, at span, ok bool) {
	return c.find(dayMonths, year, text)
}

// year returns the first number in a text that can be a year.
func (c calendar) year(text string) (int, bool) {
	for _, at := range loneYear.FindAllStringIndex(text, -1) {
		if y, _ := strconv.Atoi(text[at[0]:at[1]]); !digitAt(text, at[0], at[1]) && y >= minYear && y <= maxYear {
			return y, true
		}
	}
	return 0, false
}

// find returns the date of any of these forms that stands first in the text.
func (c calendar) find(forms []form, year int, text string) (date string, at span, ok bool) {
	digits, letters := 0, 0
	for _, r := range text {
		switch {
		case r >= '0' && r <= '9':
			digits++
		case unicode.IsLetter(r):
			letters++
		}
	}
	for _, f := range forms {
		if digits < f.digits || letters < f.letters || ok && at.from == 0 {
			continue // for it cannot be there, or not before
		}
		for from := 0; from < len(text); {
			loc := f.re.FindStringSubmatchIndex(text[from:])
			if loc == nil {
				break
			}
			s := span{from + loc[0], from + loc[1]}
			if ok && s.from >= at.from {
				break
			}
			if y, m, d := f.read(c, groups(text[from:], loc)); !digitAt(text, s.from, s.to) && !wordAt(text, s.from) {
				if y == 0 {
					y = year
				}
				if iso, is := day(y, m, d); is {
					date, at, ok = iso, s, true
					break
				}
			}
			_, size := utf8.DecodeRuneInString(text[s.from:])
			from = s.from + size
		}
	}
	return date, at, ok
}

// form is one way to write a date; read returns zeros for what is none.
type form struct {
	digits, letters int // how many it has at least
	re              *regexp.Regexp
	read            func(c calendar, g []string) (y, m, d int)
}

// The parts of forms. Month names are English and Spanish.
const (
	month = `(?i:(jan(?:uary)?|feb(?:r|ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?|` +
		`enero|febrero|marzo|abril|mayo|junio|julio|agosto|sep?tiembre|octubre|noviembre|diciembre))`
	nth = `(\d{1,2})(?i:st|nd|rd|th)?`
	yr  = `(\d{4}|\d{2})`
	gap = `[ \x{A0}.,_-]{0,3}`
)

var fullDates = []form{
	{6, 0, regexp.MustCompile(`(\d{4})([-_./ ])(\d{1,2})([-_./ ])(\d{1,2})`), func(_ calendar, g []string) (int, int, int) {
		if g[2] != g[4] {
			return 0, 0, 0
		}
		return number(g[1]), number(g[3]), number(g[5])
	}},
	{4, 0, regexp.MustCompile(`(\d{1,2})([-_./ ])(\d{1,2})([-_./ ])` + yr), func(c calendar, g []string) (int, int, int) {
		if g[2] != g[4] || g[2] == " " && len(g[5]) == 2 {
			return 0, 0, 0
		}
		return c.order(g[1], g[3], g[5])
	}},
	{8, 0, regexp.MustCompile(`(\d{2})(\d{2})(\d{2})(\d{2})`), func(c calendar, g []string) (int, int, int) {
		if y, m, d := number(g[1]+g[2]), number(g[3]), number(g[4]); exists(y, m, d) {
			return y, m, d
		}
		return c.order(g[1], g[2], g[3]+g[4])
	}},
	{3, 3, regexp.MustCompile(month + gap + nth + `([ \x{A0}.,_'’/-]{0,3})` + yr), func(_ calendar, g []string) (int, int, int) {
		return withYear(g[4], g[3]), monthNamed(g[1]), number(g[2])
	}},
	{3, 3, regexp.MustCompile(nth + `(?: of)?` + gap + `(?:de )?` + month + `([ \x{A0}.,_'’/-]{0,3})(?:del? )?` + yr), func(_ calendar, g []string) (int, int, int) {
		return withYear(g[4], g[3]), monthNamed(g[2]), number(g[1])
	}},
	{5, 3, regexp.MustCompile(`(\d{4})[-_./ ]` + month + `[-_./ ]` + nth), func(_ calendar, g []string) (int, int, int) {
		return number(g[1]), monthNamed(g[2]), number(g[3])
	}},
}

var dayMonths = []form{
	{1, 3, regexp.MustCompile(month + gap + nth), func(_ calendar, g []string) (int, int, int) {
		return 0, monthNamed(g[1]), number(g[2])
	}},
	{1, 3, regexp.MustCompile(nth + `(?: of)?` + gap + `(?:de )?` + month), func(_ calendar, g []string) (int, int, int) {
		return 0, monthNamed(g[2]), number(g[1])
	}},
	{2, 0, regexp.MustCompile(`(\d{1,2})[-_/.](\d{1,2})`), func(c calendar, g []string) (int, int, int) {
		_, m, d := c.order(g[1], g[2], "2000")
		return 0, m, d
	}},
}

var loneYear = regexp.MustCompile(`\d{4}`)

// order reads two numbers and a year.
func (c calendar) order(a, b, year string) (y, m, d int) {
	if len(year) == 2 {
		year = century(year)
	}
	y, m, d = number(year), number(a), number(b)
	if c.dayFirst {
		m, d = d, m
	}
	if !exists(y, m, d) {
		m, d = d, m
	}
	return y, m, d
}

// withYear reads the year after a month's name. Two digits are one only right
// after a sign: in "January 15, 10 am" they are something else.
func withYear(year, gap string) int {
	if len(year) == 4 {
		return number(year)
	}
	if gap = strings.TrimLeft(gap, " ,"); gap == "" || strings.HasSuffix(gap, " ") {
		return -1
	}
	return number(century(year))
}

// century makes four digits of a year's last two: 70 to 99 are of the
// twentieth century.
func century(yy string) string {
	if yy >= "70" {
		return "19" + yy
	}
	return "20" + yy
}

func monthNamed(name string) int {
	const initials = "jan feb mar apr may jun jul aug sep oct nov dec ene feb mar abr may jun jul ago set oct nov dic"
	return strings.Index(initials, strings.ToLower(name[:3]))/4%12 + 1
}

// Years outside of these are taken for other numbers.
const minYear, maxYear = 1800, 2100

func exists(y, m, d int) bool {
	t := time.Date(y, time.Month(m), d, 0, 0, 0, 0, time.UTC)
	return y >= minYear && y <= maxYear && t.Year() == y && int(t.Month()) == m && t.Day() == d
}

// day makes YYYY-MM-DD of a date that exists.
func day(y, m, d int) (string, bool) {
	if !exists(y, m, d) {
		return "", false
	}
	return time.Date(y, time.Month(m), d, 0, 0, 0, 0, time.UTC).Format(time.DateOnly), true
}

func number(digits string) int {
	n, err := strconv.Atoi(digits)
	if err != nil {
		return -1
	}
	return n
}

// digitAt reports whether a digit stands right before or behind a part of a text.
func digitAt(text string, from, to int) bool {
	digit := func(i int) bool { return i >= 0 && i < len(text) && text[i] >= '0' && text[i] <= '9' }
	return digit(from-1) || digit(to)
}

// wordAt reports whether a word begins before and goes on at a place in a text.
// A capital after a small letter begins a new one, as in MinutesJanuary.
func wordAt(text string, at int) bool {
	before, _ := utf8.DecodeLastRuneInString(text[:at])
	here, _ := utf8.DecodeRuneInString(text[at:])
	return unicode.IsLetter(before) && unicode.IsLetter(here) && (!unicode.IsLower(before) || !unicode.IsUpper(here))
}

func groups(text string, loc []int) []string {
	g := make([]string, len(loc)/2)
	for i := range g {
		if loc[2*i] >= 0 {
			g[i] = text[loc[2*i]:loc[2*i+1]]
		}
	}
	return g
}
