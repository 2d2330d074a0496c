package artifact_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"github.com/reeve-pipeline/reeve/pkg/artifact"
	"github.com/reeve-pipeline/reeve/pkg/fault"
	"github.com/reeve-pipeline/reeve/pkg/s3test"
	"github.com/reeve-pipeline/reeve/pkg/stage"
)

func sum(data []byte) string {
	s := sha256.Sum256(data)
	return hex.EncodeToString(s[:])
}

func random(t testing.TB, n int) []byte {
	t.Helper()
	data := make([]byte, n)
	if _, err := rand.Read(data); err != nil {
		t.Fatal(err)
	}
	return data
}

// onlyReader hides what else a reader can do.
type onlyReader struct{ io.Reader }

// seeker hides that a reader can be read at an offset.
type seeker struct{ io.ReadSeeker }

func TestStore_roundTrip(t *testing.T) {
	t.Parallel()
	store := s3test.Open(t)
	for _, size := range []int{0, 1, 1<<20 - 1, 1 << 20, 1<<20 + 1, 70 << 20} {
		data := random(t, size)
		for name, r := range map[string]io.Reader{
			"bytes":  bytes.NewReader(data),
			"stream": onlyReader{bytes.NewReader(data)},
			"seeker": seeker{bytes.NewReader(data)},
		} {
			key := fmt.Sprintf("a/%d/%s.bin", size, name)
			a, err := store.Put(t.Context(), key, r, int64(size), "application/octet-stream")
			if err != nil {
				t.Fatalf("%s: %v", key, err)
			}
			if a.Key != key || a.Size != int64(size) || a.SHA256 != sum(data) || a.ETag == "" {
				t.Errorf("%s: put says %+v", key, a)
			}
			there, err := store.Stat(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(a, there); diff != "" {
				t.Errorf("%s: stat (-put +stat):\n%s", key, diff)
			}
			got, err := store.ReadAll(t.Context(), key, a.SHA256, int64(size))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, data) {
				t.Errorf("%s: other bytes came back", key)
			}
			path := filepath.Join(t.TempDir(), "f")
			if err := store.GetFile(t.Context(), key, path, a.SHA256); err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, data) {
				t.Errorf("%s: other bytes came to the file, error %v", key, err)
			}
		}
	}
}

func TestStore_Put(t *testing.T) {
	t.Parallel()
	store := s3test.Open(t)
	put := func(key, data string) stage.Artifact {
		t.Helper()
		a, err := store.Put(t.Context(), key, strings.NewReader(data), -1, "text/plain")
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	if a, b := put("k", "one"), put("k", "one"); a != b {
		t.Errorf("the same again: %+v, then %+v", a, b)
	}
	put("k", "two")
	if got, err := store.ReadAll(t.Context(), "k", "", 10); err != nil || string(got) != "two" {
		t.Errorf("replaced: %q, %v", got, err)
	}
	skipped := strings.NewReader("head,tail")
	if _, err := skipped.Seek(5, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	if a, err := store.Put(t.Context(), "k", skipped, 4, ""); err != nil || a.SHA256 != sum([]byte("tail")) {
		t.Errorf("from the middle of a reader: %+v, %v", a, err)
	}

	broken := errors.New("the source broke")
	for name, r := range map[string]io.Reader{
		"a reader that fails":        iotest.ErrReader(broken),
		"a large reader that fails":  io.MultiReader(bytes.NewReader(make([]byte, 2<<20)), iotest.ErrReader(broken)),
		"fewer bytes than announced": strings.NewReader("abc"),
		"more bytes than announced":  strings.NewReader("abcdefghi"),
	} {
		_, err := store.Put(t.Context(), "never", r, 5, "")
		if err == nil || strings.Contains(name, "fails") && !errors.Is(err, broken) {
			t.Errorf("%s: error %v", name, err)
		}
	}
	if _, err := store.Stat(t.Context(), "never"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after failed puts the object is there: %v", err)
	}
	for _, key := range []string{"", "/a", "a/", "a//b", "../a", "a/../b", ".", strings.Repeat("k", 1025)} {
		if _, err := store.Put(t.Context(), key, strings.NewReader(""), 0, ""); fault.Of(err) != fault.ClassPermanent {
			t.Errorf("key %.20q: error %v", key, err)
		}
	}
}

func TestStore_PutFile(t *testing.T) {
	t.Parallel()
	store := s3test.Open(t)
	path := filepath.Join(t.TempDir(), "f")
	if _, err := store.PutFile(t.Context(), "f", path, ""); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if a, err := store.PutFile(t.Context(), "f", path, ""); err != nil || a.Size != 1 {
		t.Errorf("%+v, %v", a, err)
	}
}

func TestStore_Copy(t *testing.T) {
	t.Parallel()
	store := s3test.Open(t)
	for _, size := range []int{0, 10, 20 << 20} {
		data := random(t, size)
		from, err := store.Put(t.Context(), "from", bytes.NewReader(data), -1, "text/plain")
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			to, err := store.Copy(t.Context(), "from", "a/to")
			if err != nil {
				t.Fatal(err)
			}
			there, err := store.Stat(t.Context(), "a/to")
			if err != nil || to != there || to.SHA256 != from.SHA256 {
				t.Errorf("copied %+v to %+v, and there is %+v, %v", from, to, there, err)
			}
		}
		if got, err := store.ReadAll(t.Context(), "a/to", from.SHA256, int64(size)); err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d bytes: other bytes were copied, %v", size, err)
		}
	}
	if _, err := store.Copy(t.Context(), "no/such", "x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("from nowhere: %v", err)
	}
}

func TestStore_absent(t *testing.T) {
	t.Parallel()
	store := s3test.Open(t)
	_, get := store.Get(t.Context(), "no/such")
	_, all := store.ReadAll(t.Context(), "no/such", "", 1)
	_, stat := store.Stat(t.Context(), "no/such")
	path := filepath.Join(t.TempDir(), "f")
	file := store.GetFile(t.Context(), "no/such", path, "")
	for name, err := range map[string]error{"get": get, "read": all, "stat": stat, "file": file} {
		if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "no/such") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := store.Remove(t.Context(), "no/such"); err != nil {
		t.Errorf("remove: %v", err)
	}
}

func TestStore_digest(t *testing.T) {
	t.Parallel()
	store := s3test.Open(t)
	if _, err := store.Put(t.Context(), "k", strings.NewReader("abc"), 3, ""); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	_, all := store.ReadAll(t.Context(), "k", sum(nil), 3)
	file := store.GetFile(t.Context(), "k", filepath.Join(dir, "f"), sum(nil))
	for _, err := range []error{all, file} {
		if !errors.Is(err, artifact.ErrDigest) || fault.Of(err) != fault.ClassPermanent ||
			!strings.Contains(err.Error(), sum(nil)) || !strings.Contains(err.Error(), sum([]byte("abc"))) {
			t.Errorf("another digest: %v", err)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if _, err := store.ReadAll(t.Context(), "k", "", 2); fault.Of(err) != fault.ClassPermanent {
		t.Errorf("too large: %v", err)
	}
}

func TestStore_List(t *testing.T) {
	t.Parallel()
	store := s3test.Open(t)
	for _, key := range []string{"a/2", "a/1", "a/b/3", "b/4"} {
		if _, err := store.Put(t.Context(), key, strings.NewReader(key), -1, ""); err != nil {
			t.Fatal(err)
		}
	}
	if err := store.Remove(t.Context(), "a/2"); err != nil {
		t.Fatal(err)
	}
	var got []string
	for a, err := range store.List(t.Context(), "a/") {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprint(a.Key, " ", a.Size))
	}
	slices.Sort(got)
	if diff := cmp.Diff([]string{"a/1 3", "a/b/3 5"}, got); diff != "" {
		t.Error(diff)
	}
	for _, err := range store.List(t.Context(), "") {
		if err != nil {
			t.Error(err)
		}
		break // a reader may stop early
	}
}

// A reader sees one version or another, whole.
func TestStore_atomicReplace(t *testing.T) {
	t.Parallel()
	store := s3test.Open(t)
	versions := map[string]bool{}
	var bodies [][]byte
	for range 3 {
		data := random(t, 3<<20)
		bodies, versions[sum(data)] = append(bodies, data), true
	}
	put := func(data []byte) {
		if _, err := store.Put(t.Context(), "k", bytes.NewReader(data), -1, ""); err != nil {
			t.Error(err)
		}
	}
	put(bodies[0])
	var wg sync.WaitGroup
	for _, data := range bodies {
		wg.Go(func() {
			for range 10 {
				put(data)
			}
		})
		wg.Go(func() {
			for range 20 {
				got, err := store.ReadAll(t.Context(), "k", "", 4<<20)
				if err != nil || !versions[sum(got)] {
					t.Errorf("%d bytes of no version, error %v", len(got), err)
				}
			}
		})
	}
	wg.Wait()
}

func TestOpen(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	unused := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	with := func(change func(*artifact.Config)) artifact.Config {
		c := s3test.New(t)
		change(&c)
		return c
	}
	for _, tt := range []struct {
		name   string
		config artifact.Config
		says   string // empty: it opens
	}{
		{"as given", with(func(*artifact.Config) {}), ""},
		{"a URL", with(func(c *artifact.Config) { c.Endpoint = "http://" + c.Endpoint + "/" }), ""},
		{"nobody listens", with(func(c *artifact.Config) { c.Endpoint = unused }), unused},
		{"wrong secret", with(func(c *artifact.Config) { c.SecretKey = "wrong" }), "access denied"},
		{"wrong key", with(func(c *artifact.Config) { c.AccessKey = "wrong" }), "access denied"},
		{"half a credential", with(func(c *artifact.Config) { c.SecretKey = "" }), "s3.secret_key"},
		{"no bucket", with(func(c *artifact.Config) { c.Bucket = "" }), "s3.bucket"},
		{"a path as endpoint", with(func(c *artifact.Config) { c.Endpoint = "/var/lib" }), "s3.endpoint"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			store, err := artifact.Open(t.Context(), tt.config)
			if tt.says == "" {
				if err != nil {
					t.Fatal(err)
				}
				if err := store.Check(t.Context()); err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.says) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want one line with %q", err, tt.says)
			}
			if strings.Contains(tt.name, "wrong") && fault.Of(err) != fault.ClassInfra {
				t.Errorf("class %q", fault.Of(err))
			}
		})
	}
}

// Opened at the same instant, by several processes, the bucket is made once.
func TestOpen_race(t *testing.T) {
	t.Parallel()
	config := s3test.New(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, err := artifact.Open(t.Context(), config); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestStore_cancelled(t *testing.T) {
	t.Parallel()
	store := s3test.Open(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := store.Put(ctx, "k", strings.NewReader("x"), 1, "")
	if !errors.Is(err, context.Canceled) || fault.Of(err) == fault.ClassInfra {
		t.Errorf("error %v of class %q", err, fault.Of(err))
	}
}
