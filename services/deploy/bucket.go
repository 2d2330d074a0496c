package deploy

import (
	"context"
	"path"

	"github.com/reeve-pipeline/reeve/pkg/stage"
)

// Target is a bucket to deploy to. PutFile replaces what was there at once,
// and sends nothing when it is there already.
type Target interface {
	PutFile(ctx context.Context, key, path, contentType string) (stage.Artifact, error)
}

// Bucket is the hook that copies the database, then its manifest, to
// PREFIX/SUBDOMAIN in another bucket. A reader that finds a manifest finds the
// database of its digest, or an earlier manifest for a moment.
type Bucket struct {
	Target Target
	Prefix string
}

// Name is the hook's name.
func (Bucket) Name() string { return "bucket" }

// Run copies the release.
func (b Bucket) Run(ctx context.Context, r Release) error {
	at := path.Join(b.Prefix, r.Site.Subdomain)
	if _, err := b.Target.PutFile(ctx, path.Join(at, "meetings.db"), r.Database, "application/vnd.sqlite3"); err != nil {
		return err
	}
	_, err := b.Target.PutFile(ctx, path.Join(at, "manifest.json"), r.Manifest, "application/json")
	return err
}
