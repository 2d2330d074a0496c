package fetch

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/reeve-pipeline/reeve/pkg/civic"
	"github.com/reeve-pipeline/reeve/pkg/fault"
	"github.com/reeve-pipeline/reeve/pkg/stage"
)

// chunk is how many documents are handed on at once.
const chunk = 256

// listing is one listing of a site on its way. It remembers of each document
// no more than it takes to know it again and to number those that are new.
type listing struct {
	calendar
	startYear int
	folder    string
	spawn     func(context.Context, ...stage.Item) error
	known     map[string]civic.Document // by source
	ids       map[string]bool           // in use
	last      map[group]int             // the highest ordinal
	listed    map[string]bool           // sources
	batch     []stage.Item
	metrics   map[string]float64
}

// group is what documents share that only their ordinal tells apart.
type group struct{ kind, meeting, date string }

func groupOf(d civic.Document) group { return group{d.Kind, d.Meeting, d.Date} }

// list hands on a task for each document of the site. Documents that the site
// no longer has are left as they are.
func (f *Fetcher) list(ctx context.Context, task *stage.Task, site civic.Site) (stage.Result, error) {
	folder, page, err := origin(site)
	if err != nil {
		return stage.Result{}, err
	}
	l := &listing{
		calendar:  calendar{dayFirst: dayFirst(site.Country)},
		startYear: site.StartYear,
		folder:    folder,
		spawn:     task.Spawn,
		known:     map[string]civic.Document{},
		ids:       map[string]bool{},
		last:      map[group]int{},
		listed:    map[string]bool{},
		metrics:   map[string]float64{},
	}
	if err := l.recall(ctx, task); err != nil {
		return stage.Result{}, err
	}
	if page != nil {
		err = f.crawl(ctx, page, l)
	} else {
		err = f.walk(ctx, folder, l)
	}
	if err == nil {
		err = l.flush(ctx)
	}
	if err != nil {
		return stage.Result{}, fmt.Errorf("list %s: %w", site.Source, err)
	}
	missing := 0
	for source := range l.known {
		if !l.listed[source] {
			missing++
		}
	}
	l.metrics["documents_found"] = float64(len(l.listed))
	l.metrics["documents_missing"] = float64(missing)
	return stage.Result{Metrics: l.metrics}, nil
}

// dayFirst reports whether a country writes 1 February as 01/02.
func dayFirst(country string) bool {
	return !slices.Contains([]string{"", "us", "usa", "united states", "united states of america"}, strings.ToLower(strings.TrimSpace(country)))
}

// recall reads the documents that earlier runs know of.
func (l *listing) recall(ctx context.Context, task *stage.Task) error {
	for in, err := range task.Inputs(ctx) {
		if err != nil {
			return fmt.Errorf("known documents of %s: %w", task.Subject, err)
		}
		var d civic.Document
		if err := json.Unmarshal(in.Output, &d); err != nil {
			return fault.Permanentf("known document %s of %s: %w", in.Item, task.Subject, err)
		}
		if d.Status == "" {
			d.Status = in.Status
		}
		l.known[d.Source] = d
		l.ids[d.ID] = true
		l.last[groupOf(d)] = max(l.last[groupOf(d)], d.Ordinal)
	}
	return nil
}

// add hands on one document, described by its clues. The same source is one
// document, however often it is listed.
func (l *listing) add(ctx context.Context, spec Spec, k clues) error {
	d := &spec.Document
	if l.listed[d.Source] {
		return nil
	}
	l.listed[d.Source] = true
	l.describe(d, k)
	if d.Date != "" && d.Date < fmt.Sprintf("%04d", l.startYear) {
		l.metrics["documents_before_start_year"]++
		return nil
	}
	if d.Date == "" {
		l.metrics["documents_undated"]++
	}
	old, isKnown := l.known[d.Source]
	if isKnown {
		d.ID, d.Ordinal = old.ID, old.Ordinal
		spec.Previous = previous(old)
	} else {
		d.ID = identify(*d, func(id string) bool { return l.ids[id] })
		l.ids[d.ID] = true
		l.metrics["documents_new"]++
	}
	if g := groupOf(*d); d.Ordinal < 1 || groupOf(old) != g {
		l.last[g]++
		d.Ordinal = l.last[g]
	}
	spec.Folder = l.folder
	l.batch = append(l.batch, stage.Item{Item: d.ID, Spec: spec})
	if len(l.batch) < chunk {
		return nil
	}
	return l.flush(ctx)
}

func (l *listing) flush(ctx context.Context) error {
	if len(l.batch) == 0 {
		return nil
	}
	if err := l.spawn(ctx, l.batch...); err != nil {
		return err
	}
	l.batch = nil
	return nil
}

// previous says what is known of a document's earlier bytes. A failure for
// good counts as settled only where it was not the source's: a document with
// text has failed since in being fetched, and is worth another look.
func previous(d civic.Document) *Previous {
	p := &Previous{
		Key: d.Key, SHA256: d.SHA256, Size: d.Size,
		ETag: d.ETag, LastModified: d.LastModified, Version: d.Version,
	}
	switch d.Status {
	case "done", "partial", "duplicate":
		p.Settled = d.SHA256 != ""
	case "failed":
		p.Settled = d.SHA256 != "" && d.ErrorClass == string(fault.ClassPermanent) && d.Text == nil
	}
	return p
}

// rendering writes a path that is no UTF-8 as text: the bytes that are none as
// %XX.
func rendering(path string) string {
	var b strings.Builder
	for i, r := range path {
		if r == '\uFFFD' && path[i] != 0xEF {
			b.WriteString("%" + strings.ToUpper(strconv.FormatInt(int64(path[i])|0x100, 16)[1:]))
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}
