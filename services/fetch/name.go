package fetch

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"golang.org/x/text/unicode/norm"

	"github.com/reeve-pipeline/reeve/pkg/civic"
)

// unknown is the meeting of a document that nothing tells the meeting of.
const unknown = "Unknown"

// clues is what is known of a document before it is read: texts about it, those
// that say most first.
type clues struct {
	// texts are the link's text, its column's heading, its file's name.
	texts []string
	// around are the texts beside it, which may speak of its neighbours too.
	around []string
	// heads are the headings above it, the innermost first.
	heads []string
	// folders are the folders it lies in, the innermost first.
	folders []string
	// tree: the folders are the site's own order, not a web server's.
	tree bool
}

// describe fills in the kind, meeting and date of a document. What the clues
// do not tell is minutes, Unknown and no date: a document is never left out
// for its name.
func (c calendar) describe(d *civic.Document, k clues) {
	d.Date = c.dateOf(k)
	d.Kind = kindOf(k)
	d.Meeting = c.meetingOf(k)
}

// dateOf takes the first full date there is; else a day and month with the
// year of a heading or folder; else a date spread over folders.
func (c calendar) dateOf(k clues) string {
	all := slices.Concat(k.texts, k.around, k.heads, k.folders)
	for _, s := range all {
		if date, _, ok := c.date(s); ok {
			return date
		}
	}
	for _, s := range slices.Concat(k.heads, k.folders) {
		y, ok := c.year(s)
		if !ok {
			continue
		}
		for _, s := range all {
			if date, _, ok := c.dateIn(y, s); ok {
				return date
			}
		}
	}
	for i := len(k.folders) - 1; i >= 2; i-- { // 2024/01/15
		if date, _, ok := c.date(k.folders[i] + "/" + k.folders[i-1] + "/" + k.folders[i-2]); ok {
			return date
		}
	}
	return ""
}

var (
	agendaWord  = regexp.MustCompile(`(?i)agenda|\borden del d[ií]a\b`)
	minutesWord = regexp.MustCompile(`(?i)minutes?|\bmins?\b|\bactas?\b`)
	// kindFolder matches a folder that holds one kind of document, as against
	// that of an Agenda Review Committee.
	kindFolder = regexp.MustCompile(`(?i)^[_\W]*(?:(?:\d{4}|approved|draft|final|meeting)s?[_\W]+)*(agendas?|minutes)(?:[_\W]+(?:\d{4}|archive|packets?|pdfs?))*[_\W]*$|[a-z ](agendas|minutes)$`)
)

// kindOf is Agenda where the nearest clue that names a kind says so.
func kindOf(k clues) string {
	if slices.Contains(k.folders, "_agendas") {
		return civic.Agenda
	}
	for _, s := range k.texts {
		if kind := kindIn(s); kind != "" {
			return kind
		}
	}
	for _, s := range k.folders {
		if m := kindFolder.FindString(s); m != "" {
			return kindIn(m)
		}
	}
	for _, s := range k.heads {
		if kind := kindIn(s); kind != "" {
			return kind
		}
	}
	return civic.Minutes
}

// kindIn is the one kind that a text names; empty when it names both or none.
func kindIn(s string) string {
	switch agenda, minutes := agendaWord.MatchString(s), minutesWord.MatchString(s); {
	case agenda == minutes:
		return ""
	case agenda:
		return civic.Agenda
	}
	return civic.Minutes
}

var (
	boardWord = regexp.MustCompile(`(?i)council|board|commission|committee|authority|agency|district|trustees|supervisors|panel|task ?force|assembly|selectm[ae]n|alderm[ae]n|planning|zoning|senate|cabinet|consejo|comisi[oó]n|comit[eé]|junta|ayuntamiento`)
	// noise are the words that say what a document is rather than whose.
	noise        = regexp.MustCompile(`(?i)\b(?:agendas?|minutes?|mins?|actas?|pdfs?|packets?|downloads?|view|open|click|here|read|more|files?|viewfile|getfile|documents?|docs?|uploads?|attachments?|archived?|archives|approved|unapproved|draft|final|signed|amended|revised|corrected|copy|scan|scanned|image|video|audio|html|links?|index|public|notice|posted|regular|special|concurrent|adjourned|joint|emergency|meetings?|summary|action|\d+(?:\.\d+)? ?[km]i?b|am|pm|(?:mon|tues|wednes|thurs|fri|satur|sun)day|january|february|march|april|june|july|august|september|october|november|december|wp|content|sites|default|assets|static|media|storage|center|home|welcome|\d{1,2}:\d{2}|\w*\d{3,}\w*)\b`)
	meetingOfThe = regexp.MustCompile(`(?i)\b(?:(?:regular|special|concurrent|adjourned|joint|emergency)[ ,]+(?:and )?)*meetings? of the\b`)
	segments     = regexp.MustCompile(`(?i)[,;:|–—•]| [-/] |\b(?:held|dated)\b`)
	edges        = regexp.MustCompile(`^(?:(?i:and|of|the|to|by|on|for|in|at|de|del|la)\b|[^\p{L}])+|(?:\b(?i:and|of|the|to|by|on|for|in|at|de|del|la)|[^\p{L}\p{N})])+$`)
	brackets     = regexp.MustCompile(`\([^\p{L}]*\)|\[[^\p{L}]*\]`)
	yearly       = regexp.MustCompile(`(?:^|[^\p{L}\p{N}])\d{4}(?:[^\p{L}\p{N}]|$)`)
	slugged      = regexp.MustCompile(`[-_+]+`)
	initial      = regexp.MustCompile(`(?:^| )\p{Ll}`)
	camel        = regexp.MustCompile(`(\p{Ll})(\p{Lu})`)
)

// meetingOf is the board whose meeting a document is of: the first clue that
// names a board, else the folder it lies in, else what a heading or text has
// left when dates and the words for documents are gone.
func (c calendar) meetingOf(k clues) string {
	inFolder := func(board bool) string {
		for _, s := range k.folders {
			if kindFolder.MatchString(s) || board && !boardWord.MatchString(s) || !board && c.board(s) == "" {
				continue
			}
			if strings.IndexFunc(s, unicode.IsUpper) < 0 || yearly.MatchString(s) { // planning-board, City Council 2024
				s = cmp.Or(c.board(s), s)
			}
			return simplify(s)
		}
		return ""
	}
	inText := func(board bool, texts ...string) string {
		for _, s := range texts {
			if s = c.board(s); s != "" && (boardWord.MatchString(s) || !board) {
				return simplify(s)
			}
		}
		return ""
	}
	ways := []func() string{
		func() string { return inText(true, slices.Concat(k.texts, k.around, k.heads)...) },
		func() string { return inFolder(true) },
		func() string { return inFolder(false) },
		func() string { return inText(false, slices.Concat(k.heads, k.around, k.texts)...) },
	}
	if k.tree {
		ways[0], ways[1] = ways[1], ways[0]
	}
	for _, way := range ways {
		if board := way(); board != "" {
			return board
		}
	}
	return unknown
}

// board is the part of a text that names a board, or else the first that is
// left without dates and the words for documents; empty when none is a name.
func (c calendar) board(s string) string {
	for {
		_, at, ok := c.date(s)
		if !ok {
			_, at, ok = c.dateIn(2000, s)
		}
		if !ok {
			break
		}
		s = s[:at.from] + "|" + s[at.to:]
	}
	if !strings.ContainsFunc(s, unicode.IsSpace) {
		s = slugged.ReplaceAllString(s, " ")
	}
	s = camel.ReplaceAllString(strings.ReplaceAll(s, "_", " "), "$1\x00$2") // words while some are taken out
	s = noise.ReplaceAllString(meetingOfThe.ReplaceAllString(s, " "), " ")
	s = brackets.ReplaceAllString(strings.ReplaceAll(s, "\x00", ""), " ")
	first := ""
	for _, part := range segments.Split(s, -1) {
		part = edges.ReplaceAllString(clean(part), "")
		letters := 0
		for _, r := range part {
			if unicode.IsLetter(r) {
				letters++
			}
		}
		if letters < 3 || len(part) > 80 {
			continue
		}
		if strings.IndexFunc(part, unicode.IsUpper) < 0 {
			part = initial.ReplaceAllStringFunc(part, strings.ToUpper)
		}
		if boardWord.MatchString(part) {
			return part
		}
		first = cmp.Or(first, part)
	}
	return first
}

// maxMeeting bounds a meeting's name in bytes: it becomes a file's name.
const maxMeeting = 120

// simplify runs a board's name together as clerk does, so that both give one
// board one name: no spaces and asterisks, And for & and /, and without
// "(Special)(Concurrent) Meeting of the".
func simplify(name string) string {
	name = norm.NFC.String(name)
	name = strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) || !unicode.IsPrint(r) || r == '*' || r == '\\' || r == unicode.ReplacementChar {
			return -1
		}
		return r
	}, name)
	name = strings.NewReplacer("&", "And", "/", "And").Replace(name)
	for _, drop := range []string{"SpecialConcurrentMeetingofthe", "ConcurrentMeetingofthe", "Meetingofthe"} {
		name = strings.ReplaceAll(name, drop, "")
	}
	for len(name) > maxMeeting {
		r := []rune(name)
		name = string(r[:len(r)-1])
	}
	if strings.Trim(name, ".") == "" {
		return unknown
	}
	return name
}

// maxID bounds a document's ID in bytes.
const maxID = 100

// identify makes a document's ID: its kind, meeting and date for people, and
// a digest of its source that makes it one of its kind. More digits of the
// digest are taken where the first eight are taken already.
func identify(d civic.Document, taken func(id string) bool) string {
	sum := sha256.Sum256([]byte(d.Source))
	digest := hex.EncodeToString(sum[:])
	name := cmp.Or(slug(d.Kind+"-"+d.Meeting+"-"+d.Date), "document")
	for digits := 8; ; digits *= 2 {
		head := strings.TrimRight(name[:min(len(name), maxID-1-digits)], "-")
		if id := head + "-" + digest[:digits]; digits == len(digest) || !taken(id) {
			return id
		}
	}
}

// slug keeps the letters a to z and the digits of a text, in lower case and
// with hyphens for all else. Accents go, small to capital is a new word.
func slug(s string) string {
	s = camel.ReplaceAllString(s, "$1-$2")
	var b strings.Builder
	hyphen := false
	for _, r := range norm.NFKD.String(strings.ToLower(s)) {
		switch {
		case r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
			if hyphen && b.Len() > 0 {
				b.WriteByte('-')
			}
			b.WriteRune(r)
			hyphen = false
		case !unicode.Is(unicode.Mn, r):
			hyphen = true
		}
	}
	return b.String()
}

// filed splits a slash-separated path into the file's name without its ending
// and the folders it lies in, the innermost first.
func filed(p string) (stem string, folders []string) {
	dir, file := path.Split(path.Clean("/" + p))
	for f := range strings.SplitSeq(strings.Trim(dir, "/"), "/") {
		if f != "" {
			folders = append([]string{f}, folders...)
		}
	}
	return strings.TrimSuffix(file, path.Ext(file)), folders
}

// place splits the path of a URL as filed does. Where the last element of the
// path names no file, a file named in the query takes its place.
func place(u *url.URL) (stem string, folders []string) {
	stem, folders = filed(u.Path)
	query := u.Query()
	for _, key := range slices.Sorted(maps.Keys(query)) {
		for _, v := range query[key] {
			if isPDF(v) {
				stem, _ = filed(v)
			}
		}
	}
	return stem, folders
}

func isPDF(name string) bool { return strings.EqualFold(path.Ext(name), ".pdf") }
