package fault_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/reeve-pipeline/reeve/pkg/fault"
)

func TestMessage(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, in, want string }{
		{"plain", "not a PDF", "not a PDF"},
		{"lines are joined", "first\nsecond\r\n\n third ", "first; second; third"},
		{"control characters go", "a\x00b\x1b[31mred\tand\u200btabs", "ab[31mred andtabs"},
		{"broken UTF-8 is mended", "caf\xe9", "caf\uFFFD"},
		{"user and password of a URL", `Get "https://me:pa55@example.org/a?b=c": refused`, `Get "https://example.org/a?b=c": refused`},
		{"token of a URL", "get https://example.org/x?page=2&access_token=abc123&z=1, tried twice", "get https://example.org/x?page=2&access_token=***&z=1, tried twice"},
		{"signed object URL", "put http://s3:9000/b/k?X-Amz-Credential=AK%2F1&X-Amz-Signature=9f9f: 403", "put http://s3:9000/b/k?X-Amz-Credential=***&X-Amz-Signature=***: 403"},
		{"a URL that cannot be parsed", "get http://a:b%zz@host/: invalid", "get http://*** invalid"},
		{"connection string", "host=db user=reeve password=hunter2 dbname=x", "host=db user=reeve password=*** dbname=x"},
		{"database URL", "postgres://reeve:hunter2@db:5432/reeve: refused", "postgres://db:5432/reeve: refused"},
		{"authorization header", "sent Authorization: Bearer abcdefgh.ijkl", "sent Authorization: Bearer ***"},
		{"a word that only looks like a secret", "unexpected token: ]", "unexpected token: ]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := fault.Message(errors.New(tt.in)); got != tt.want {
				t.Errorf("\n got %q\nwant %q", got, tt.want)
			}
		})
	}
	if fault.Message(nil) != "" {
		t.Error("no error has no message")
	}
}

func FuzzMessage(f *testing.F) {
	f.Add("https://a:b@c/?token=d\x00\xff")
	f.Add(strings.Repeat("é", 400))
	f.Add("://" + strings.Repeat("ü\n", 300))
	f.Fuzz(func(t *testing.T, text string) {
		got := fault.Message(errors.New(text))
		switch {
		case len(got) > 500:
			t.Errorf("%d bytes", len(got))
		case !utf8.ValidString(got):
			t.Errorf("%q is not UTF-8", got)
		case strings.ContainsAny(got, "\x00\r\n"):
			t.Errorf("%q is not one line", got)
		}
		if fingerprint := fault.Fingerprint("ocr", errors.New(text)); len(fingerprint) > 60 {
			t.Errorf("fingerprint %q is long", fingerprint)
		}
	})
}

func TestFingerprint(t *testing.T) {
	t.Parallel()
	same := [][]error{
		{
			errors.New("document 4711: no page tree"),
			errors.New("document 4712: no page tree"),
		},
		{
			errors.New(`download https://a.example/minutes/1.pdf: 404 Not Found`),
			errors.New(`download https://b.example/agenda?id=9: 404 Not Found`),
		},
		{
			errors.New(`open "minutes of May.pdf": encrypted`),
			errors.New(`open "agenda.pdf": encrypted`),
		},
		{
			errors.New("keep sites/springfield/documents/ab12/source.pdf: digest deadbeefcafe0123 differs"),
			errors.New("keep sites/shelbyville/documents/zz/source.pdf: digest 0123deadbeefcafe differs"),
		},
		{
			fmt.Errorf("minutes.pdf: %w", fault.Permanent(errors.New("encrypted"))),
			fmt.Errorf("agenda.pdf: %w", fault.Permanent(errors.New("encrypted"))),
		},
	}
	seen := map[string]int{}
	for i, kind := range same {
		first := fault.Fingerprint("pagination", kind[0])
		for _, err := range kind[1:] {
			if got := fault.Fingerprint("pagination", err); got != first {
				t.Errorf("%q and %q: %s and %s", kind[0], err, first, got)
			}
		}
		if j, ok := seen[first]; ok {
			t.Errorf("%q and %q are of one kind: %s", kind[0], same[j][0], first)
		}
		seen[first] = i
	}
	err := errors.New("document 4711: no page tree")
	if got, want := fault.Fingerprint("pagination", err), "pagination.document-no-page-tree."; !strings.HasPrefix(got, want) {
		t.Errorf("%s does not read like %s…", got, want)
	}
	if fault.Fingerprint("pagination", err) == fault.Fingerprint("pagination", fault.Permanent(err)) {
		t.Error("another class is another kind")
	}
	if fault.Fingerprint("ocr", err) == fault.Fingerprint("reduce", err) {
		t.Error("another stage is another kind")
	}
}
