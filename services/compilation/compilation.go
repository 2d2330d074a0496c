// Package compilation makes a site's meetings.db of the texts of its documents
// and publishes it.
//
// Only what changed since the last time is touched: the database that was
// published last is fetched, the pages of changed documents are replaced, and
// the result is published under a key of its own before the manifest, the one
// thing readers start from, names it. Its version follows from the documents
// alone, however it was built.
package compilation

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/reeve-pipeline/reeve/pkg/civic"
	"github.com/reeve-pipeline/reeve/pkg/fault"
	"github.com/reeve-pipeline/reeve/pkg/stage"
)

// Name is the stage's one name.
const Name = "compilation"

const (
	// format is part of every version: raise it when the same documents are to
	// make another database, and every site is built anew.
	format = "meetings.db/1"
	// maxText is the largest text table read, in bytes.
	maxText = 512 << 20
	// maxManifest is the largest manifest read, in bytes.
	maxManifest = 256 << 20
	// maxWarnings bounds the warnings that a manifest lists.
	maxWarnings = 100
)

// Objects keeps texts, databases and manifests.
type Objects interface {
	Stat(ctx context.Context, key string) (stage.Artifact, error)
	ReadAll(ctx context.Context, key, sha256 string, limit int64) ([]byte, error)
	GetFile(ctx context.Context, key, path, sha256 string) error
	Put(ctx context.Context, key string, r io.Reader, size int64, contentType string) (stage.Artifact, error)
	PutFile(ctx context.Context, key, path, contentType string) (stage.Artifact, error)
	Copy(ctx context.Context, from, to string) (stage.Artifact, error)
	Remove(ctx context.Context, key string) error
}

// Compiler is the stage's handler.
type Compiler struct {
	objects Objects
	dir     string
}

// New returns a handler that builds databases in a folder, the system's
// temporary one if empty, and publishes them to a store.
func New(objects Objects, dir string) *Compiler { return &Compiler{objects, dir} }

// Handle brings the site's meetings.db up to date with its documents.
//
// A document whose text is missing or damaged never fails the site: it keeps
// the pages it had, or is left out, and the manifest says so. With no document
// left that has text, the task fails and what is published stays as it is. The
// result is skipped as "unchanged" when the database is the one last deployed,
// and as "no_documents" when the site has none.
func (c *Compiler) Handle(ctx context.Context, task *stage.Task) (stage.Result, error) {
	site, err := stage.Spec[civic.Site](task)
	if err != nil {
		return stage.Result{}, err
	}
	if site.Subdomain == "" {
		return stage.Result{}, fault.Permanentf("task %s of run %d names no site", task.Item, task.Run)
	}
	settings, err := stage.Settings[struct {
		Force bool `json:"force"`
	}](task)
	if err != nil {
		return stage.Result{}, err
	}
	b := &build{objects: c.objects, site: site}
	docs, err := b.documents(ctx, task)
	if err != nil {
		return stage.Result{}, err
	}
	if b.given == 0 {
		return stage.Result{Skip: "no_documents"}, nil
	}
	if err := b.recall(ctx); err != nil {
		return stage.Result{}, err
	}
	b.plan(docs)
	anew := settings.Force || b.former == nil
	whole := *b // before it is known what cannot be read
	if !anew {
		if err := b.verify(ctx); err != nil {
			return stage.Result{}, err
		}
	}
	if len(b.entries) == 0 {
		return stage.Result{}, b.nothing()
	}
	if !settings.Force {
		manifest, current, err := b.current(ctx)
		if err != nil {
			return stage.Result{}, err
		}
		if current && b.former.Version == site.DeployedVersion {
			return stage.Result{Skip: "unchanged", Metrics: b.metrics()}, nil
		}
		if current {
			return b.result(*b.former, manifest), nil
		}
	}

	dir, err := os.MkdirTemp(c.dir, "reeve-compilation-*")
	if err != nil {
		return stage.Result{}, fmt.Errorf("folder for the database: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }() // the system's to clean up, if need be
	file := filepath.Join(dir, "meetings.db")
	if !anew {
		err := b.update(ctx, file)
		if err != nil && (ctx.Err() != nil || fault.Of(err) == fault.ClassInfra) {
			return stage.Result{}, err
		}
		if err != nil {
			b, anew = &whole, true
			b.warnf("built anew, for the database before could not be used: %v", err)
		}
	}
	if anew {
		if err := b.create(ctx, file); err != nil {
			return stage.Result{}, err
		}
	}
	m, manifest, err := b.publish(ctx, file)
	if err != nil {
		return stage.Result{}, err
	}
	return b.result(m, manifest), nil
}

// result is what the task hands on.
func (b *build) result(m civic.Manifest, manifest stage.Artifact) stage.Result {
	db := stage.Artifact{Key: m.Database.Key, Size: m.Database.Size, SHA256: m.Database.SHA256}
	return stage.Result{
		Output: civic.Compiled{
			Site: b.site, Version: m.Version, Database: m.Database,
			Manifest:  civic.Object{Key: manifest.Key, Size: manifest.Size, SHA256: manifest.SHA256},
			Documents: len(m.Documents), Minutes: m.Minutes, Agendas: m.Agendas,
		},
		Artifacts: []stage.Artifact{db, manifest},
		Metrics:   b.metrics(),
	}
}

func (b *build) metrics() map[string]float64 {
	minutes, agendas := b.pages()
	m := map[string]float64{
		"documents": float64(len(b.entries)), "documents_left_out": float64(b.given - len(b.entries)),
		"documents_changed": float64(b.changed), "documents_removed": float64(b.removed), "documents_kept": float64(b.kept),
		"pages_minutes": float64(minutes), "pages_agendas": float64(agendas),
		"id_collisions": float64(b.collisions), "warnings": float64(len(b.warnings)), "built_anew": 0,
	}
	if b.anew {
		m["built_anew"] = 1
	}
	return m
}
