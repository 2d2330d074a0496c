package fetch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/reeve-pipeline/reeve/pkg/civic"
	"github.com/reeve-pipeline/reeve/pkg/fault"
	"github.com/reeve-pipeline/reeve/pkg/stage"
)

// open opens a folder that lies within one of the allowed folders. Nothing
// outside of it can be opened through the root it returns, by links neither.
func (f *Fetcher) open(folder string) (*os.Root, error) {
	if len(f.Folders) == 0 {
		return nil, fault.Permanentf("folders are not read here; allow %s or a folder above it in fetch.folders", folder)
	}
	resolved, err := filepath.EvalSymlinks(folder)
	if err != nil {
		return nil, local(err)
	}
	for _, allowed := range f.Folders {
		allowed, err := filepath.EvalSymlinks(allowed)
		if err != nil {
			continue
		}
		if rel, err := filepath.Rel(allowed, resolved); err == nil && filepath.IsLocal(rel) {
			if info, err := os.Stat(resolved); err == nil && !info.IsDir() {
				return nil, fault.Permanentf("%s is no folder", folder)
			}
			root, err := os.OpenRoot(resolved)
			return root, local(err)
		}
	}
	return nil, fault.Permanentf("%s lies in none of the folders allowed by fetch.folders: %s", folder, strings.Join(f.Folders, ", "))
}

// local classes an error of a folder that a user named: what is missing or
// closed to us stays so.
func local(err error) error {
	for _, lasting := range []error{fs.ErrNotExist, fs.ErrPermission, fs.ErrInvalid, syscall.ENOTDIR, syscall.ELOOP, syscall.ENAMETOOLONG} {
		if errors.Is(err, lasting) {
			return fault.Permanent(err)
		}
	}
	return err
}

// walk lists the PDFs in a folder and the folders below it, by name. Hidden
// ones are passed over, and linked folders are not entered. What cannot be
// read is handed on as a document, whose task then says so.
func (f *Fetcher) walk(ctx context.Context, folder string, l *listing) error {
	root, err := f.open(folder)
	if err != nil {
		return err
	}
	defer root.Close()
	return l.enter(ctx, root, ".")
}

// enter lists one folder. It does so by itself, for package fs walks no paths
// that are not UTF-8.
func (l *listing) enter(ctx context.Context, root *os.Root, folder string) error {
	entries, err := readDir(root, folder)
	switch {
	case err != nil && folder == ".":
		return local(err)
	case err != nil:
		l.metrics["folders_unreadable"]++
		return l.file(ctx, folder)
	}
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return err
		}
		path := filepath.Join(folder, e.Name())
		switch {
		case strings.HasPrefix(e.Name(), "."):
			l.metrics["files_hidden"]++
			continue
		case e.IsDir():
			err = l.enter(ctx, root, path)
		case isPDF(e.Name()):
			err = l.file(ctx, path)
		default:
			l.metrics["files_other"]++
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func readDir(root *os.Root, folder string) ([]fs.DirEntry, error) {
	dir, err := root.Open(folder)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	entries, err := dir.ReadDir(-1)
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, err
}

// file hands on one file, described by its path.
func (l *listing) file(ctx context.Context, path string) error {
	spec := Spec{Document: civic.Document{Source: path}}
	if !utf8.ValidString(path) {
		spec.Source, spec.Path = rendering(path), []byte(path)
	}
	stem, folders := filed(spec.Source)
	spec.Title = stem
	return l.add(ctx, spec, clues{texts: []string{stem}, folders: folders, tree: true})
}

// copy stores a document out of a folder. A file of the size and time that it
// had is taken to be the same without reading it.
func (f *Fetcher) copy(ctx context.Context, subdomain string, spec Spec) (stage.Result, error) {
	root, err := f.open(spec.Folder)
	if err != nil {
		return stage.Result{}, err
	}
	defer root.Close()
	path := spec.Source
	if spec.Path != nil {
		path = string(spec.Path)
	}
	file, err := root.Open(path)
	if err != nil {
		if info, at := root.Lstat(path); at == nil && info.Mode()&fs.ModeSymlink != 0 {
			return stage.Result{}, fault.Permanentf("%s is a link that leads nowhere or out of %s: %w", spec.Source, spec.Folder, err)
		}
		return stage.Result{}, local(fmt.Errorf("in %s: %w", spec.Folder, err))
	}
	defer file.Close()
	info, err := file.Stat()
	switch {
	case err != nil:
		return stage.Result{}, local(err)
	case !info.Mode().IsRegular():
		return stage.Result{}, fault.Permanentf("%s in %s is no regular file", spec.Source, spec.Folder)
	case info.Size() > int64(f.MaxSize):
		return stage.Result{}, tooLarge(spec.Source, int64(f.MaxSize))
	}
	spec.LastModified = info.ModTime().UTC().Format(time.RFC3339Nano)
	spec.ETag = ""
	if p := spec.Previous; p != nil && p.Settled && p.Size == info.Size() && p.LastModified == spec.LastModified {
		return unchanged(spec), nil
	}
	m := newMeasure(io.Discard)
	stop := context.AfterFunc(ctx, func() { _ = file.Close() }) // ends a read that goes on
	defer stop()
	if _, err := io.Copy(m, io.LimitReader(file, int64(f.MaxSize)+1)); err != nil {
		return stage.Result{}, fmt.Errorf("read %s: %w", spec.Source, cmp.Or(ctx.Err(), err))
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return stage.Result{}, fmt.Errorf("read %s: %w", spec.Source, err)
	}
	return f.keep(ctx, subdomain, spec, m, file)
}
