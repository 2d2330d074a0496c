// Package deploy is the last stage: it takes a site's meetings.db to where its
// readers are. Where that is, is for the deployment to say: a bucket, a
// command, a webhook, run in this order. In dev mode nothing leaves the place.
//
// A hook that failed is run again with those before it, so each must be safe
// to run twice; the ones here are. Runs of one site follow each other, and the
// deploys of one run too but for retries: a deploy whose database has been
// overtaken in the store meanwhile is skipped, so that an older version never
// replaces a newer one.
package deploy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/reeve-pipeline/reeve/pkg/civic"
	"github.com/reeve-pipeline/reeve/pkg/fault"
	"github.com/reeve-pipeline/reeve/pkg/stage"
)

// Name is the stage's one name.
const Name = "deploy"

// Store holds what is deployed. GetFile checks the digest.
type Store interface {
	GetFile(ctx context.Context, key, path, sha256 string) error
	ReadAll(ctx context.Context, key, sha256 string, limit int64) ([]byte, error)
}

// Hook takes a release somewhere. Run may be called again for a release that
// it has taken there already.
type Hook interface {
	Name() string
	Run(ctx context.Context, r Release) error
}

// Release is what hooks are given.
type Release struct {
	// ID is the same whenever the same task is done.
	ID string
	// Database and Manifest are paths of verified copies, there while hooks run.
	Database, Manifest string
	civic.Compiled
}

// Deployer runs hooks.
type Deployer struct {
	store Store
	hooks []Hook
	temp  string
	dev   bool
}

// New returns a Deployer that runs the hooks in this order, or none in dev
// mode. temp is the folder for copies under way; empty: the system's.
func New(store Store, dev bool, temp string, hooks ...Hook) *Deployer {
	return &Deployer{store: store, hooks: hooks, temp: temp, dev: dev}
}

// Handle runs every hook, and stops at the first that fails.
func (d *Deployer) Handle(ctx context.Context, task *stage.Task) (stage.Result, error) {
	c, err := stage.Spec[civic.Compiled](task)
	if err != nil {
		return stage.Result{}, err
	}
	if c.Version == "" || c.Database.Key == "" || c.Manifest.Key == "" || c.Site.Subdomain == "" {
		return stage.Result{}, fault.Permanentf("deploy %s of run %d: the spec names no database, manifest, version or site", task.Subject, task.Run)
	}
	out := civic.Deployed{Version: c.Version, Hooks: []string{}, DryRun: d.dev}
	if d.dev {
		return stage.Result{Output: out}, nil
	}
	overtaken, err := d.overtaken(ctx, c)
	if err != nil {
		return stage.Result{}, err
	}
	if overtaken {
		// What is known to be deployed is what was when this was compiled.
		return stage.Result{Output: civic.Deployed{Version: c.Site.DeployedVersion, Hooks: []string{}}, Skip: "superseded"}, nil
	}

	dir, err := os.MkdirTemp(d.temp, "reeve-deploy-*")
	if err != nil {
		return stage.Result{}, fault.Infra(err)
	}
	defer os.RemoveAll(dir)
	r := Release{
		ID:       fmt.Sprintf("run-%d-%s-%d-%s-%.12s", task.Run, Name, task.Generation, task.Item, c.Version),
		Database: filepath.Join(dir, "meetings.db"),
		Manifest: filepath.Join(dir, "manifest.json"),
		Compiled: c,
	}
	if err := d.store.GetFile(ctx, c.Database.Key, r.Database, c.Database.SHA256); err != nil {
		return stage.Result{}, fmt.Errorf("database of %s: %w", c.Site.Subdomain, err)
	}
	if err := d.store.GetFile(ctx, c.Manifest.Key, r.Manifest, c.Manifest.SHA256); err != nil {
		return stage.Result{}, fmt.Errorf("manifest of %s: %w", c.Site.Subdomain, err)
	}
	for _, h := range d.hooks {
		if err := h.Run(ctx, r); err != nil {
			return stage.Result{}, fmt.Errorf("hook %s: %w", h.Name(), err)
		}
		out.Hooks = append(out.Hooks, h.Name())
	}
	return stage.Result{Output: out, Metrics: map[string]float64{"bytes_deployed": float64(c.Database.Size)}}, nil
}

// maxManifest bounds a manifest in bytes.
const maxManifest = 256 << 20

// overtaken reports whether the store's newest manifest of the site is of
// another version than the one to deploy. Compilation writes it last, and a
// site's compilations follow each other, so another version is a newer one.
func (d *Deployer) overtaken(ctx context.Context, c civic.Compiled) (bool, error) {
	key := civic.SiteKey(c.Site.Subdomain, "manifest.json")
	b, err := d.store.ReadAll(ctx, key, "", maxManifest)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("newest manifest of %s: %w", c.Site.Subdomain, err)
	}
	var m civic.Manifest
	if err := json.Unmarshal(b, &m); err != nil {
		return false, fmt.Errorf("newest manifest of %s: %s: %w", c.Site.Subdomain, key, err)
	}
	return m.Version != c.Version, nil
}
