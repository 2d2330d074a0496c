package sample_test

import (
	"bytes"
	"crypto/sha256"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/reeve-pipeline/reeve/pkg/sample"
)

// digests reads a folder back.
func digests(t *testing.T, dir string) map[string][32]byte {
	t.Helper()
	all := map[string][32]byte{}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		body, err := os.ReadFile(path)
		rel, _ := filepath.Rel(dir, path)
		all[filepath.ToSlash(rel)] = sha256.Sum256(body)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestWrite(t *testing.T) {
	t.Parallel()
	first, second := t.TempDir(), t.TempDir()
	town, err := sample.Write(first)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sample.Write(second); err != nil {
		t.Fatal(err)
	}
	written := digests(t, first)
	if diff := cmp.Diff(written, digests(t, second)); diff != "" {
		t.Errorf("the same town twice differs:\n%s", diff)
	}
	if len(written) != len(town.Files) {
		t.Errorf("%d files described, %d written", len(town.Files), len(written))
	}
	seen := map[[32]byte]string{}
	for _, f := range town.Files {
		sum, ok := written[f.Path]
		if !ok {
			t.Errorf("%s is described but not written", f.Path)
		}
		if before, twice := seen[sum]; twice != (f.Status == "duplicate") || twice && before != f.DuplicateOf {
			t.Errorf("%s is %s of %q, but has the bytes of %q", f.Path, f.Status, f.DuplicateOf, before)
		}
		seen[sum] = f.Path
		if (f.Status == "failed") != (f.Class != "") {
			t.Errorf("%s is %s with class %q", f.Path, f.Status, f.Class)
		}
		if p := f.Pages; p.Total != p.Native+p.Image+p.Blank {
			t.Errorf("%s: pages do not add up: %+v", f.Path, p)
		}
		if got, ok := town.File(f.Path); !ok || got.Path != f.Path {
			t.Errorf("File(%q) finds %q", f.Path, got.Path)
		}
	}
	if got := town.Count("done") + town.Count("partial") + town.Count("failed") + town.Count("duplicate"); got != len(town.Files) {
		t.Errorf("%d files have a known status, want %d", got, len(town.Files))
	}
	if town.Site.Source != first {
		t.Errorf("source %q, want %q", town.Site.Source, first)
	}
}

func TestWriteN(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	town, err := sample.WriteN(dir, 37)
	if err != nil {
		t.Fatal(err)
	}
	different := map[[32]byte]bool{}
	for _, sum := range digests(t, dir) {
		different[sum] = true
	}
	if len(town.Files) != 37 || len(different) != 37 {
		t.Errorf("%d files described, %d different ones written, want 37", len(town.Files), len(different))
	}
	body, err := os.ReadFile(filepath.Join(dir, town.Files[36].Path))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.HasPrefix(body, []byte("%PDF-")) || len(body) > 2000 || !strings.Contains(town.Files[36].Phrases[0], "000036") {
		t.Errorf("%d bytes, phrases %q", len(body), town.Files[36].Phrases)
	}
}
