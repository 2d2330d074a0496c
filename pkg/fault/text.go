package fault

import (
	"crypto/sha256"
	"encoding/hex"
	"net/url"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxMessage is the longest message kept, in bytes.
const maxMessage = 500

var (
	urlForm = regexp.MustCompile(`[A-Za-z][A-Za-z0-9+.-]*://[^\s"'<>` + "`" + `]+`)
	// secretName matches the names of query parameters and settings whose
	// values must not be seen.
	secretName  = regexp.MustCompile(`(?i)(token|secret|passw|pwd|api_?key|access_?key|signature|credential|^sig$|^key$|^auth|^code$)`)
	secretPair  = regexp.MustCompile(`(?i)\b([\w.-]*(?:(?:token|access_?key|signature)[\w.-]*\s*=|(?:secret|passw|pwd|api_?key)[\w.-]*\s*[=:])\s*)("[^"]*"|'[^']*'|[^\s&,;"']*[^\s&,;:"'])`)
	bearerToken = regexp.MustCompile(`(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}`)
)

// Message is the error in one line of at most 500 bytes of valid UTF-8, fit
// for a database and a screen: no control characters, and without the secrets
// of URLs, settings and headers that it quotes. Message(nil) is empty.
func Message(err error) string {
	if err == nil {
		return ""
	}
	return shorten(hide(oneLine(err.Error())))
}

// oneLine joins lines by semicolons and drops what cannot be printed.
func oneLine(text string) string {
	text = strings.ToValidUTF8(text, string(utf8.RuneError))
	var lines []string
	for line := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == '\n' || r == '\r' }) {
		line = strings.Map(func(r rune) rune {
			switch {
			case unicode.IsSpace(r):
				return ' '
			case !unicode.IsPrint(r):
				return -1
			default:
				return r
			}
		}, line)
		if line = strings.Join(strings.Fields(line), " "); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "; ")
}

// hide masks secrets.
func hide(text string) string {
	text = urlForm.ReplaceAllStringFunc(text, hideInURL)
	text = bearerToken.ReplaceAllString(text, "$1 ***")
	return secretPair.ReplaceAllString(text, "$1***")
}

func hideInURL(raw string) string {
	trimmed := strings.TrimRight(raw, ".,:;)]}")
	tail := raw[len(trimmed):]
	u, err := url.Parse(trimmed)
	if err != nil {
		// Not to be taken apart: keep no more than what stands before any secret.
		scheme, _, _ := strings.Cut(raw, "://")
		return scheme + "://***"
	}
	u.User = nil
	pairs := strings.Split(u.RawQuery, "&")
	for i, pair := range pairs {
		if name, _, ok := strings.Cut(pair, "="); ok && secretName.MatchString(name) {
			pairs[i] = name + "=***"
		}
	}
	u.RawQuery = strings.Join(pairs, "&")
	return u.String() + tail
}

// shorten cuts at a character's boundary.
func shorten(text string) string {
	if len(text) <= maxMessage {
		return text
	}
	const ellipsis = "…"
	cut := maxMessage - len(ellipsis)
	for !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + ellipsis
}

var (
	quoted  = regexp.MustCompile("\"[^\"]*\"|'[^']*'|`[^`]*`|“[^”]*”")
	hexName = regexp.MustCompile(`^[0-9a-fA-F]{8,}$`)
)

// Fingerprint is the same for errors of one kind at one stage, whatever the
// item: numbers, names of files and hosts, URLs, keys and everything quoted are
// left out. It reads "pagination.no-page-tree.1f6e02c4": the stage, the first
// words of the message, and a hash of its class and all that is left.
func Fingerprint(stage string, err error) string {
	if err == nil {
		return ""
	}
	text := urlForm.ReplaceAllString(oneLine(err.Error()), " ")
	text = quoted.ReplaceAllString(text, " ")
	var words []string
	for word := range strings.FieldsSeq(text) {
		word = strings.Trim(word, ".,:;!?()[]{}<>")
		if word == "" || isName(word) {
			continue
		}
		words = append(words, strings.ToLower(word))
	}
	sum := sha256.Sum256([]byte(string(Of(err)) + "\n" + strings.Join(words, " ")))
	return stage + "." + slug(words) + "." + hex.EncodeToString(sum[:4])
}

// isName reports whether a word is likely to name one thing of many.
func isName(word string) bool {
	return strings.ContainsAny(word, `0123456789/\@.=`) || hexName.MatchString(word)
}

// slug makes a short name of the first words.
func slug(words []string) string {
	const most = 40
	var b strings.Builder
	for _, word := range words {
		word = strings.Map(func(r rune) rune {
			if r >= 'a' && r <= 'z' || r == '-' || r == '_' {
				return r
			}
			return -1
		}, word)
		if word == "" {
			continue
		}
		if b.Len()+1+len(word) > most {
			break
		}
		if b.Len() > 0 {
			b.WriteByte('-')
		}
		b.WriteString(word)
	}
	if b.Len() == 0 {
		return "error"
	}
	return b.String()
}
