package s3d

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRun_wrong(t *testing.T) {
	t.Parallel()
	good := options{temp: true, addr: "127.0.0.1:0", region: "us-east-1", metadata: "auto", access: "a", secret: "s"}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, says string
		change     func(*options)
	}{
		{"no access key", AccessKeyVar, func(o *options) { o.access = "" }},
		{"no secret", SecretKeyVar, func(o *options) { o.secret = "" }},
		{"no folder", "--dir", func(o *options) { o.temp = false }},
		{"two folders", "--temp", func(o *options) { o.dir = file }},
		{"a file for a folder", "not a directory", func(o *options) { o.temp, o.dir = false, file }},
		{"metadata nowhere", "--metadata", func(o *options) { o.metadata = "tape" }},
	} {
		o := good
		tt.change(&o)
		if err := run(t.Context(), o, io.Discard); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: error %v, want %q", tt.name, err, tt.says)
		}
	}
}

// What is synced is there, however deep, and what failed or is gone again is
// no new failure.
func TestBackend_settle(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "bucket"), 0o750); err != nil {
		t.Fatal(err)
	}
	for _, b := range []*backend{{root: root, sync: true}, {root: root, sync: true, sidecar: t.TempDir()}, {root: root}} {
		bucket, key := "bucket", "a/b/c/object"
		write := func() {
			t.Helper()
			file := filepath.Join(root, bucket, key)
			if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o750), os.WriteFile(file, nil, 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		settle := b.settle(&bucket, &key)
		write()
		if err := settle(nil); err != nil {
			t.Errorf("a new object in new folders: %v", err)
		}
		if err := b.settle(&bucket, &key)(nil); err != nil {
			t.Errorf("an object replaced: %v", err)
		}
		failed := errors.New("no")
		if err := b.settle(&bucket, &key)(failed); !errors.Is(err, failed) {
			t.Errorf("a put that failed: %v", err)
		}
		settle = b.settle(&bucket, &key)
		if err := os.RemoveAll(filepath.Join(root, bucket, "a")); err != nil {
			t.Fatal(err)
		}
		if err := settle(nil); err != nil {
			t.Errorf("an object removed meanwhile: %v", err)
		}
	}
}
