package bus_test

import (
	"strings"
	"testing"

	"github.com/reeve-pipeline/reeve/pkg/bus"
)

func TestTaskRef_Subject(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, item, token string }{
		{"a name that is a token stays", "2024-05-02_CityCouncil", "2024-05-02_CityCouncil"},
		{"dots and spaces are escaped", "a.b c", "a=2Eb=20c"},
		{"so are wildcards", "*>", "=2A=3E"},
		{"so is the escape itself", "=2E", "=3D2E"},
		{"and the mark of a digest", "~", "=7E"},
		{"no name at all has a token", "", "="},
		{"other alphabets are escaped byte by byte", "ä", "=C3=A4"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ref := bus.TaskRef{Stage: "fetch", Priority: 1, Pipeline: "civic", Run: 12, Item: tt.item}
			subject := ref.Subject()
			if want := "reeve.task.fetch.1.civic.12." + tt.token; subject != want {
				t.Errorf("got %s, want %s", subject, want)
			}
			got, whole, err := bus.ParseTaskSubject(subject)
			if err != nil || !whole || got != ref {
				t.Errorf("parsed back: got %+v, %t, %v; want %+v", got, whole, err, ref)
			}
		})
	}
}

func TestEscapeItem_longNamesStayBoundedAndApart(t *testing.T) {
	t.Parallel()
	a, b := bus.EscapeItem(strings.Repeat("é", 500)+"a"), bus.EscapeItem(strings.Repeat("é", 500)+"b")
	if a == b {
		t.Error("two names have one token")
	}
	if len(a) > 200 {
		t.Errorf("token of %d bytes, want at most 200", len(a))
	}
	if item, whole, err := bus.UnescapeItem(a); item != "" || whole || err != nil {
		t.Errorf("got %q, %t, %v; want nothing and no error", item, whole, err)
	}
}

func TestParseTaskSubject_rejects(t *testing.T) {
	t.Parallel()
	for _, subject := range []string{
		"", "reeve.done.0.fetch", "reeve.task.fetch.1.civic.12", "reeve.task.fetch.x.civic.12.a",
		"reeve.task.fetch.1.civic.x.a", "reeve.task.fetch.1.civic.12.=2", "reeve.task.fetch.1.civic.12.=ZZ",
		"reeve.task.fetch.1.civic.12.=61", "reeve.task.fetch.1.civic.12.a=", "reeve.task.fetch.1.civic.12.~00",
	} {
		if ref, _, err := bus.ParseTaskSubject(subject); err == nil {
			t.Errorf("%q: got %+v, want an error", subject, ref)
		}
	}
}

func FuzzEscapeItem(f *testing.F) {
	for _, seed := range []string{"", "a", ".", "*", ">", " ", "=", "==", "=2E", "~", "é", "\x00", "\xff", strings.Repeat("x", 200), strings.Repeat("x", 201), strings.Repeat(".", 100)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, item string) {
		token := bus.EscapeItem(item)
		if token == "" || len(token) > 200 || strings.ContainsAny(token, ".*> \t\r\n\x00") {
			t.Fatalf("%q: %q is no token", item, token)
		}
		back, whole, err := bus.UnescapeItem(token)
		if err != nil {
			t.Fatal(err)
		}
		if whole && back != item {
			t.Fatalf("%q became %q", item, back)
		}
		if !whole && len(item) < 60 {
			t.Fatalf("%q was cut", item)
		}
	})
}

func FuzzUnescapeItem(f *testing.F) {
	for _, seed := range []string{"=", "a", "=2E", "=2e", "=", "a~00112233445566778899aabbccddeeff"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, token string) {
		item, whole, err := bus.UnescapeItem(token)
		if err == nil && whole && bus.EscapeItem(item) != token {
			t.Fatalf("%q and %q are both tokens of %q", token, bus.EscapeItem(item), item)
		}
	})
}
