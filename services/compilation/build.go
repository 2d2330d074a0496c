package compilation

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/reeve-pipeline/reeve/pkg/civic"
	"github.com/reeve-pipeline/reeve/pkg/fault"
	"github.com/reeve-pipeline/reeve/pkg/stage"
	"github.com/reeve-pipeline/reeve/pkg/table"
)

// build is one compilation of one site.
type build struct {
	objects Objects
	site    civic.Site
	given   int                               // documents that the site has
	former  *civic.Manifest                   // nil: nothing is published that can be built on
	known   map[string]civic.ManifestDocument // the former's documents, by id

	entries  []entry
	place    map[string]string // document id by folder of page images
	warnings []string

	anew                   bool // built from nothing
	changed, removed, kept int  // documents
	collisions             int  // pages
}

// entry is a document as it is to stand in the database.
type entry struct {
	civic.ManifestDocument
	// text is the table that its pages are made of; nil when there is none,
	// and the document keeps the pages it had.
	text *civic.Object
	// unchanged: what is published has the very same pages of it.
	unchanged bool
}

// same reports whether two documents have the same rows.
func same(a, b civic.ManifestDocument) bool {
	a.DuplicateOf, a.Pages, b.DuplicateOf, b.Pages = "", 0, "", 0
	return a == b
}

// warnf notes what an operator should know. It is no failure.
func (b *build) warnf(format string, args ...any) {
	b.warnings = append(b.warnings, fmt.Sprintf(format, args...))
}

// documents reads the site's documents and sorts them.
func (b *build) documents(ctx context.Context, task *stage.Task) ([]civic.Document, error) {
	var docs []civic.Document
	for input, err := range task.Inputs(ctx) {
		if err != nil {
			return nil, fmt.Errorf("documents of %s: %w", b.site.Subdomain, err)
		}
		b.given++
		var d civic.Document
		if err := json.Unmarshal(input.Output, &d); err != nil {
			b.warnf("document %s is left out: its row cannot be read: %v", input.Item, err)
			continue
		}
		if d.ID = cmp.Or(d.ID, input.Item); tables[d.Kind] == "" {
			b.warnf("document %s is left out: it is of kind %q, neither minutes nor agenda", d.ID, d.Kind)
			continue
		}
		docs = append(docs, d)
	}
	slices.SortFunc(docs, func(x, y civic.Document) int {
		return cmp.Or(strings.Compare(x.Kind, y.Kind), strings.Compare(x.Meeting, y.Meeting), strings.Compare(x.Date, y.Date),
			cmp.Compare(x.Ordinal, y.Ordinal), strings.Compare(x.ID, y.ID))
	})
	return docs, nil
}

// recall reads what is published. One that cannot be read, or is of another
// format, is as good as none.
func (b *build) recall(ctx context.Context) error {
	data, err := b.objects.ReadAll(ctx, civic.SiteKey(b.site.Subdomain, "manifest.json"), "", maxManifest)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil && !lasting(err):
		return err
	}
	var m civic.Manifest
	if err == nil {
		err = json.Unmarshal(data, &m)
	}
	if err != nil {
		b.warnf("built anew, for the manifest before cannot be read: %v", err)
		return nil
	}
	if m.Format != format || m.Subdomain != b.site.Subdomain {
		return nil
	}
	b.former, b.known = &m, make(map[string]civic.ManifestDocument, len(m.Documents))
	for _, d := range m.Documents {
		b.known[d.ID] = d
	}
	return nil
}

// lasting reports whether an object is missing or damaged, rather than out of
// reach for now.
func lasting(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || fault.Of(err) == fault.ClassPermanent
}

// plan decides which documents are to stand in the database, and where.
func (b *build) plan(docs []civic.Document) {
	byID := make(map[string]civic.Document, len(docs))
	for _, d := range docs {
		byID[d.ID] = d
	}
	b.place = make(map[string]string, len(docs))
	for _, d := range docs {
		e := entry{text: d.Text, ManifestDocument: civic.ManifestDocument{
			ID: d.ID, Kind: d.Kind, Meeting: d.Meeting, Date: d.Date, Ordinal: max(d.Ordinal, 1), DuplicateOf: d.DuplicateOf,
		}}
		if original, ok := byID[d.DuplicateOf]; ok && original.Text != nil {
			e.text = original.Text
		}
		former, known := b.known[d.ID]
		switch {
		case e.text == nil && known:
			b.keep(e, former, cmp.Or(d.Status, "no status"))
			continue
		case e.text == nil:
			continue // it has come to nothing so far
		}
		e.TextSHA256 = e.text.SHA256
		for b.place[folder(e.ManifestDocument)] != "" {
			e.Ordinal++
		}
		if known && same(e.ManifestDocument, former) {
			e.unchanged, e.Pages = true, former.Pages
		}
		b.add(e)
	}
	b.sort()
}

// verify reads the text of every document that is not published as it is, for
// what cannot be read must be known before anything is removed for it.
func (b *build) verify(ctx context.Context) error {
	planned := b.entries
	b.entries, b.place = nil, make(map[string]string, len(planned))
	failed := map[string]error{}
	for _, e := range planned {
		if !e.unchanged {
			pages, err := b.read(ctx, e)
			if err != nil && !lasting(err) {
				return err
			}
			if err != nil {
				failed[e.ID] = err
				continue
			}
			e.Pages = len(pages)
		}
		b.add(e)
	}
	for _, e := range planned {
		err, failed := failed[e.ID]
		former, known := b.known[e.ID]
		switch {
		case failed && known:
			b.keep(e, former, err.Error())
		case failed:
			b.warnf("document %s is left out: %v", e.ID, err)
		}
	}
	b.sort()
	return nil
}

// sort puts the documents in the order in which manifests list them.
func (b *build) sort() {
	slices.SortFunc(b.entries, func(x, y entry) int {
		return cmp.Or(strings.Compare(x.Kind, y.Kind), strings.Compare(x.Meeting, y.Meeting), strings.Compare(x.Date, y.Date),
			cmp.Compare(x.Ordinal, y.Ordinal), strings.Compare(x.ID, y.ID))
	})
}

// add lets a document stand where nothing else does.
func (b *build) add(e entry) {
	b.place[folder(e.ManifestDocument)] = e.ID
	b.entries = append(b.entries, e)
}

// keep lets a document keep the pages it had, unless another has their place.
func (b *build) keep(e entry, former civic.ManifestDocument, why string) {
	if b.place[folder(former)] != "" {
		b.warnf("document %s is left out (%s), for another has the place of the pages it had", former.ID, why)
		return
	}
	b.warnf("document %s keeps the pages it had (%s)", former.ID, why)
	b.kept++
	e.ManifestDocument, e.unchanged = former, true
	b.add(e)
}

// current reports whether what is published is what is wanted, and returns its
// manifest. That the database is whole is taken from the size and digest it is
// stored with.
func (b *build) current(ctx context.Context) (manifest stage.Artifact, current bool, err error) {
	if b.former == nil || b.version() != b.former.Version {
		return stage.Artifact{}, false, nil
	}
	db, err := b.objects.Stat(ctx, b.former.Database.Key)
	if err == nil {
		manifest, err = b.objects.Stat(ctx, path.Join(path.Dir(b.former.Database.Key), "manifest.json"))
	}
	if err != nil {
		if lasting(err) {
			err = nil
		}
		return stage.Artifact{}, false, err
	}
	return manifest, db.Size == b.former.Database.Size && db.SHA256 == b.former.Database.SHA256, nil
}

// version is the digest of all that decides what is in the database.
func (b *build) version() string {
	h := sha256.New()
	enc := json.NewEncoder(h)
	_ = enc.Encode(format) // a hash takes everything
	for _, e := range b.entries {
		_ = enc.Encode(e.ManifestDocument)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// pages counts the pages of the documents.
func (b *build) pages() (minutes, agendas int) {
	for _, e := range b.entries {
		if e.Kind == civic.Agenda {
			agendas += e.Pages
		} else {
			minutes += e.Pages
		}
	}
	return minutes, agendas
}

// update fetches the database that is published and replaces what changed.
func (b *build) update(ctx context.Context, file string) error {
	if err := b.objects.GetFile(ctx, b.former.Database.Key, file, b.former.Database.SHA256); err != nil {
		return err
	}
	d, err := openDatabase(ctx, file, false)
	if err != nil {
		return err
	}
	return b.finish(ctx, d, func() error {
		stays := make(map[string]bool, len(b.entries)) // with the pages it had
		for _, e := range b.entries {
			stays[e.ID] = e.unchanged
		}
		for _, former := range b.former.Documents {
			unchanged, there := stays[former.ID]
			if unchanged {
				continue
			}
			if !there {
				b.removed++
			}
			if err := d.remove(ctx, former); err != nil {
				return err
			}
		}
		for _, e := range b.entries {
			if e.unchanged {
				continue
			}
			pages, err := b.read(ctx, e)
			if err != nil {
				return err
			}
			if err := d.insert(ctx, e.ManifestDocument, pages); err != nil {
				return fmt.Errorf("document %s: %w", e.ID, err)
			}
			b.changed++
		}
		return nil
	})
}

// create builds the database from nothing.
func (b *build) create(ctx context.Context, file string) error {
	b.anew, b.kept, b.changed, b.removed = true, 0, 0, 0
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	d, err := openDatabase(ctx, file, true)
	if err != nil {
		return err
	}
	return b.finish(ctx, d, func() error {
		planned := b.entries
		b.entries = nil
		for _, e := range planned {
			if e.text == nil {
				b.warnf("document %s is left out: it has no text, and the pages it had are lost", e.ID)
				continue
			}
			pages, err := b.read(ctx, e)
			if err != nil && !lasting(err) {
				return err
			}
			if err != nil {
				b.warnf("document %s is left out: %v", e.ID, err)
				continue
			}
			e.Pages = len(pages)
			if err := d.insert(ctx, e.ManifestDocument, pages); err != nil {
				return fmt.Errorf("document %s: %w", e.ID, err)
			}
			b.entries = append(b.entries, e)
			b.changed++
		}
		return nil
	})
}

// finish fills a database, checks it and closes it.
func (b *build) finish(ctx context.Context, d *database, fill func() error) error {
	err := fill()
	if err == nil && len(b.entries) == 0 {
		err = b.nothing()
	}
	if err != nil {
		return errors.Join(err, d.close())
	}
	minutes, agendas := b.pages()
	err = d.finish(ctx, minutes, agendas)
	b.collisions = d.collisions
	return err
}

// nothing is the error of a site without any text, with the first reasons.
func (b *build) nothing() error {
	return fault.Permanentf("site %s: none of its %d documents has text that can be read; what is published stays as it is: %s",
		b.site.Subdomain, b.given, strings.Join(b.warnings[:min(3, len(b.warnings))], "; "))
}

// read returns a document's pages in the order of their numbers.
func (b *build) read(ctx context.Context, e entry) ([]page, error) {
	data, err := b.objects.ReadAll(ctx, e.text.Key, e.text.SHA256, maxText)
	if err != nil {
		return nil, err
	}
	rows, _, err := table.ReadPages(bytes.NewReader(data), int64(len(data))) //nolint:contextcheck // from memory: nothing to wait for
	if err != nil {
		return nil, fmt.Errorf("%s: %w", e.text.Key, err)
	}
	slices.SortFunc(rows, func(x, y table.Page) int { return cmp.Compare(x.Page, y.Page) })
	pages := make([]page, len(rows))
	for i, r := range rows {
		if i > 0 && r.Page == rows[i-1].Page {
			return nil, fault.Permanentf("%s: page %d is listed twice", e.text.Key, r.Page)
		}
		pages[i] = page{int(r.Page), clean.Replace(strings.ToValidUTF8(r.Text, "\uFFFD"))}
	}
	return pages, nil
}

// clean takes out what ends a text early for half of SQLite's functions.
var clean = strings.NewReplacer("\x00", "\uFFFD")

// publish stores the database and its manifest under keys that no other
// content has, then under the site's own, the manifest last.
func (b *build) publish(ctx context.Context, file string) (civic.Manifest, stage.Artifact, error) {
	m := civic.Manifest{
		Format: format, Subdomain: b.site.Subdomain, Version: b.version(),
		Documents: make([]civic.ManifestDocument, len(b.entries)),
		Warnings:  b.warnings[:min(maxWarnings, len(b.warnings))],
	}
	m.Minutes, m.Agendas = b.pages()
	for i, e := range b.entries {
		m.Documents[i] = e.ManifestDocument
	}
	// The same documents may make other bytes, when built another way.
	sum, err := digestOf(file)
	if err != nil {
		return m, stage.Artifact{}, err
	}
	home := civic.SiteKey(b.site.Subdomain, path.Join("versions", m.Version[:16]+"-"+sum[:16]))
	db, err := b.objects.PutFile(ctx, path.Join(home, "meetings.db"), file, "application/vnd.sqlite3")
	if err != nil {
		return m, stage.Artifact{}, err
	}
	m.Database = civic.Object{Key: db.Key, Size: db.Size, SHA256: db.SHA256}
	var obsolete *civic.Object
	if b.former != nil {
		m.Previous, obsolete = &b.former.Database, b.former.Previous
		if m.Previous.Key == m.Database.Key {
			m.Previous, obsolete = b.former.Previous, nil
		}
	}
	data, err := json.Marshal(m)
	if err != nil {
		return m, stage.Artifact{}, err
	}
	put := func(key string) (stage.Artifact, error) {
		return b.objects.Put(ctx, key, bytes.NewReader(data), int64(len(data)), "application/json")
	}
	manifest, err := put(path.Join(home, "manifest.json"))
	if err != nil {
		return m, stage.Artifact{}, err
	}
	if _, err := b.objects.Copy(ctx, m.Database.Key, civic.SiteKey(b.site.Subdomain, "meetings.db")); err != nil {
		return m, stage.Artifact{}, err
	}
	if _, err := put(civic.SiteKey(b.site.Subdomain, "manifest.json")); err != nil {
		return m, stage.Artifact{}, err
	}
	if obsolete != nil && obsolete.Key != m.Database.Key {
		err := errors.Join(b.objects.Remove(ctx, obsolete.Key), b.objects.Remove(ctx, path.Join(path.Dir(obsolete.Key), "manifest.json")))
		if err != nil {
			return m, stage.Artifact{}, fmt.Errorf("tidy up: %w", err)
		}
	}
	return m, manifest, nil
}

// digestOf returns the SHA-256 of a file, in hex.
func digestOf(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
