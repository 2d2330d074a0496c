package compilation

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"unicode/utf16"
)

// idLen is the length of a page's id, in hex digits.
const idLen = 12

// pageID identifies a page by its content: the first hex digits of the SHA-256
// of a JSON object with sorted keys, written the way Python's json.dumps
// writes it. Sites link to pages by it, so it is for ever.
func pageID(kind, meeting, date string, page int, text string) string {
	b := append([]byte(nil), `{"date": `...)
	b = appendJSON(b, date)
	b = append(b, `, "kind": `...)
	b = appendJSON(b, kind)
	b = append(b, `, "meeting": `...)
	b = appendJSON(b, meeting)
	b = append(b, `, "page": `...)
	b = strconv.AppendInt(b, int64(page), 10)
	b = append(b, `, "text": `...)
	b = appendJSON(b, text)
	b = append(b, '}')
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])[:idLen]
}

// longID is the id of a page whose short id another page has: the short one
// and eight digits more, of the page's path, which no other page has.
func longID(short, image string) string {
	sum := sha256.Sum256([]byte(image))
	return short + hex.EncodeToString(sum[:4])
}

// appendJSON appends a string as Python's JSON encoder does: everything but
// printable ASCII escaped, beyond the basic plane as a surrogate pair.
func appendJSON(b []byte, s string) []byte {
	b = append(b, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r == '\n':
			b = append(b, `\n`...)
		case r == '\r':
			b = append(b, `\r`...)
		case r == '\t':
			b = append(b, `\t`...)
		case r == '\f':
			b = append(b, `\f`...)
		case r == '\b':
			b = append(b, `\b`...)
		case ' ' <= r && r <= '~':
			b = append(b, byte(r))
		case r > 0xFFFF:
			high, low := utf16.EncodeRune(r)
			b = appendEscape(appendEscape(b, high), low)
		default:
			b = appendEscape(b, r)
		}
	}
	return append(b, '"')
}

func appendEscape(b []byte, r rune) []byte {
	const digits = "0123456789abcdef"
	return append(b, '\\', 'u', digits[r>>12&15], digits[r>>8&15], digits[r>>4&15], digits[r&15])
}
