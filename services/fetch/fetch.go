// Package fetch is the first stage: it lists the documents of a site and
// downloads each. A site is a folder of PDFs or a web page with links to PDFs;
// its task spawns one task a document, and these store the bytes as they came.
// It decides nothing about their content but that they claim to be a PDF.
package fetch

import (
	"context"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"

	"github.com/reeve-pipeline/reeve/pkg/civic"
	"github.com/reeve-pipeline/reeve/pkg/egress"
	"github.com/reeve-pipeline/reeve/pkg/fault"
	"github.com/reeve-pipeline/reeve/pkg/stage"
)

// Name is the stage's one name.
const Name = "fetch"

// Fetcher lists and downloads. It is safe for concurrent use; what it knows of
// a host is shared by all its tasks.
type Fetcher struct {
	store Store
	web   *http.Client
	Config
}

// New returns a Fetcher. The configuration must be valid.
func New(store Store, c Config) (*Fetcher, error) {
	policy, err := egress.Allow(c.Allow...)
	if err != nil {
		return nil, err
	}
	return &Fetcher{store: store, web: polite(egress.Client(policy), c), Config: c}, nil
}

// Spec is the spec of a document's task: the document as it was listed, and
// what an earlier run knows of it.
type Spec struct {
	civic.Document
	// Folder is the absolute path of the folder that the source lies in; empty
	// for a URL.
	Folder string `json:"folder,omitempty"`
	// Path is the source's path where it is no UTF-8 and the source only a
	// rendering of it.
	Path []byte `json:"path,omitempty"`
	// Previous is nil for a document that is new.
	Previous *Previous `json:"previous,omitempty"`
}

// Previous is what an earlier run made of a document.
type Previous struct {
	Key          string `json:"key,omitempty"`
	SHA256       string `json:"sha256,omitempty"`
	Size         int64  `json:"size,omitempty"` // bytes
	ETag         string `json:"etag,omitempty"`
	LastModified string `json:"last_modified,omitempty"`
	Version      int    `json:"version,omitempty"`
	// Settled: these bytes were worked through to the end, or failed for good
	// and would again. They need not be worked on once more.
	Settled bool `json:"settled,omitempty"`
}

// settings are the settings of the run that matter here.
type settings struct {
	Force bool `json:"force"`
}

// Handle lists the site when the task is the site's, and downloads the
// document when a listing has spawned it.
func (f *Fetcher) Handle(ctx context.Context, task *stage.Task) (stage.Result, error) {
	run, err := stage.Settings[settings](task)
	if err != nil {
		return stage.Result{}, err
	}
	if task.Parent == "" {
		site, err := stage.Spec[civic.Site](task)
		if err != nil {
			return stage.Result{}, err
		}
		return f.list(ctx, task, site)
	}
	spec, err := stage.Spec[Spec](task)
	if err != nil {
		return stage.Result{}, err
	}
	if spec.ID != task.Item || spec.Source == "" {
		return stage.Result{}, fault.Permanentf("task %s of run %d names document %q at %q", task.Item, task.Run, spec.ID, spec.Source)
	}
	if run.Force {
		spec.Previous = spec.Previous.unsettled()
	}
	if spec.Folder != "" {
		return f.copy(ctx, task.Subject, spec)
	}
	return f.download(ctx, task.Subject, spec)
}

func (p *Previous) unsettled() *Previous {
	if p == nil {
		return nil
	}
	q := *p
	q.Settled = false
	return &q
}

// origin tells what a site's source is: a folder's path, or a page's URL.
func origin(site civic.Site) (folder string, page *url.URL, err error) {
	source := strings.TrimSpace(site.Source)
	if filepath.IsAbs(source) {
		return filepath.Clean(source), nil, nil
	}
	u, err := url.Parse(source)
	switch {
	case source == "":
		return "", nil, fault.Permanentf("site %s has no source; give it a folder or the address of a page with links to PDFs", site.Subdomain)
	case err != nil:
		return "", nil, fault.Permanentf("source of site %s: %w", site.Subdomain, err)
	case u.Scheme == "file" && (u.Host == "" || u.Host == "localhost") && filepath.IsAbs(u.Path):
		return filepath.Clean(u.Path), nil, nil
	case (u.Scheme == "http" || u.Scheme == "https") && u.Host != "":
		return "", u, nil
	}
	return "", nil, fault.Permanentf("source %q of site %s is neither an absolute path nor an http, https or file URL", source, site.Subdomain)
}
