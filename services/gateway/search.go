package gateway

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"modernc.org/sqlite"

	"github.com/reeve-pipeline/reeve/pkg/civic"
	"github.com/reeve-pipeline/reeve/pkg/ledger"
	reevev1 "github.com/reeve-pipeline/reeve/proto/reeve/v1"
)

// Objects is the store of published databases.
type Objects interface {
	// ReadAll returns an object of at most limit bytes; fs.ErrNotExist when
	// there is none. An empty digest is not checked.
	ReadAll(ctx context.Context, key, sha256 string, limit int64) ([]byte, error)
	// GetFile downloads an object and checks its digest.
	GetFile(ctx context.Context, key, path, sha256 string) error
}

// Search answers full-text queries from the meetings.db that each site has
// published. It keeps a copy of each in a folder and replaces it when a newer
// one is published; queries go on meanwhile.
type Search struct {
	objects Objects
	dir     string

	mu    sync.Mutex
	sites map[string]*published
}

// published is the copy of one site's database. mu is held for reading by
// queries and for writing while the copy is replaced; looking is held from a
// look at the manifest until then, so that no look of before undoes it.
type published struct {
	looking sync.Mutex
	mu      sync.RWMutex
	asOf    time.Time // when the books last knew of a change, at the last look
	version string
	path    string
	db      *sql.DB
}

// maxManifest is the largest manifest read, in bytes.
const maxManifest = 64 << 20

var (
	errBadQuery         = errors.New("query cannot be read")
	errNothingPublished = errors.New("nothing published")
)

// NewSearch returns a Search that keeps its copies in a folder of its own,
// which it empties.
func NewSearch(objects Objects, dir string) (*Search, error) {
	if err := os.RemoveAll(dir); err != nil {
		return nil, fmt.Errorf("search folder: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("search folder: %w", err)
	}
	return &Search{objects: objects, dir: dir, sites: map[string]*published{}}, nil
}

// Close closes the copies.
func (s *Search) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, p := range s.sites {
		p.mu.Lock()
		if p.db != nil {
			errs = append(errs, p.db.Close())
		}
		p.mu.Unlock()
	}
	return errors.Join(errs...)
}

// query is a search request that makes sense.
type query struct {
	text     string
	kinds    []string // tables
	from, to string   // inclusive; "" and "\uffff" when open
	limit    int
}

// queryOf checks a request.
func queryOf(r *reevev1.SearchRequest) (query, error) {
	q := query{text: strings.TrimSpace(r.GetQuery()), kinds: []string{"minutes", "agendas"}, from: r.GetDateFrom(), to: cmp.Or(r.GetDateTo(), "\uffff"), limit: 20}
	switch {
	case q.text == "":
		return q, errors.New("nothing to search for: give one or more words")
	case len(q.text) > 1000:
		return q, fmt.Errorf("a query of %d bytes is too long: at most 1000", len(q.text))
	}
	switch r.GetKind() {
	case "":
	case civic.Minutes:
		q.kinds = []string{"minutes"}
	case civic.Agenda:
		q.kinds = []string{"agendas"}
	default:
		return q, fmt.Errorf("no kind %q: there are minutes and agenda", r.GetKind())
	}
	for _, date := range []string{r.GetDateFrom(), r.GetDateTo()} {
		if _, err := time.Parse(time.DateOnly, date); date != "" && err != nil {
			return q, fmt.Errorf("date %q is not of the form 2024-05-31", date)
		}
	}
	if r.GetLimit() > 0 {
		q.limit = min(int(r.GetLimit()), 1000)
	}
	return q, nil
}

// ranked is a hit with its place: the lower the better.
type ranked struct {
	hit  *reevev1.Hit
	rank float64
}

// Find looks in the sites' databases and returns the best hits of all. Sites
// that have published nothing are passed over, unless it is the only one.
func (s *Search) Find(ctx context.Context, sites []ledger.Site, q query) (*reevev1.SearchResponse, error) {
	var all []ranked
	var total int64
	for _, site := range sites {
		hits, n, err := s.findIn(ctx, site, q)
		if errors.Is(err, errNothingPublished) && len(sites) > 1 {
			continue
		}
		if err != nil {
			return nil, err
		}
		all, total = append(all, hits...), total+n
	}
	slices.SortStableFunc(all, func(a, b ranked) int { return cmp.Compare(a.rank, b.rank) })
	all = all[:min(len(all), q.limit)]
	return &reevev1.SearchResponse{Hits: each(all, func(r ranked) *reevev1.Hit { return r.hit }), Total: total}, nil
}

func (s *Search) findIn(ctx context.Context, of ledger.Site, q query) ([]ranked, int64, error) {
	site := of.Subdomain
	p := s.site(site)
	if err := s.refresh(ctx, site, p, of.UpdatedAt); err != nil {
		return nil, 0, err
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.db == nil {
		return nil, 0, fmt.Errorf("%w for site %s yet: run `reeve run start civic %s`", errNothingPublished, site, site)
	}
	var all []ranked
	var total int64
	for _, table := range q.kinds {
		hits, n, err := match(ctx, p.db, site, table, q)
		if err != nil {
			return nil, 0, err
		}
		all, total = append(all, hits...), total+n
	}
	return all, total, nil
}

func (s *Search) site(name string) *published {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.sites[name]
	if !ok {
		p = &published{}
		s.sites[name] = p
	}
	return p
}

// fresh reports whether the copy is what was published when the books changed.
func (p *published) fresh(changed time.Time) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.db != nil && p.asOf.Equal(changed)
}

// refresh replaces the copy of a site's database when a newer one is published.
// It looks only when the site or its last run has changed since the last look:
// what a run publishes is there before the run's end is known.
func (s *Search) refresh(ctx context.Context, site string, p *published, changed time.Time) error {
	if p.fresh(changed) {
		return nil
	}
	p.looking.Lock()
	defer p.looking.Unlock()
	if p.fresh(changed) {
		return nil
	}
	raw, err := s.objects.ReadAll(ctx, civic.SiteKey(site, "manifest.json"), "", maxManifest)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // nothing published, or no longer: keep what there is
	}
	if err != nil {
		return fmt.Errorf("manifest of site %s: %w", site, err)
	}
	var m civic.Manifest
	if err := json.Unmarshal(raw, &m); err != nil {
		return fmt.Errorf("manifest of site %s: %w", site, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asOf = changed
	if p.version == m.Database.SHA256 && p.db != nil {
		return nil
	}
	path := filepath.Join(s.dir, fmt.Sprintf("%s-%.16s.db", site, m.Database.SHA256))
	if err := s.objects.GetFile(ctx, m.Database.Key, path, m.Database.SHA256); err != nil {
		return fmt.Errorf("database of site %s: %w", site, err)
	}
	db, err := sql.Open("sqlite", "file:"+(&url.URL{Path: path}).EscapedPath()+"?mode=ro&immutable=1")
	if err != nil {
		return fmt.Errorf("database of site %s: %w", site, err)
	}
	if p.db != nil {
		err = errors.Join(p.db.Close(), os.Remove(p.path))
	}
	p.db, p.path, p.version = db, path, m.Database.SHA256
	return err
}

// The two tables of a meetings.db, minutes and agendas, look the same.
var statements = map[string]struct{ count, hits string }{
	"minutes": {
		count: `SELECT count(*) FROM minutes_fts JOIN minutes d ON d.rowid = minutes_fts.rowid WHERE minutes_fts MATCH ? AND d.date BETWEEN ? AND ?`,
		hits: `SELECT d.id, d.meeting, d.date, d.page, coalesce(d.page_image, ''), snippet(minutes_fts, 0, '«', '»', '…', 20), bm25(minutes_fts)
			FROM minutes_fts JOIN minutes d ON d.rowid = minutes_fts.rowid WHERE minutes_fts MATCH ? AND d.date BETWEEN ? AND ?
			ORDER BY 7, d.date DESC, d.page LIMIT ?`,
	},
	"agendas": {
		count: `SELECT count(*) FROM agendas_fts JOIN agendas d ON d.rowid = agendas_fts.rowid WHERE agendas_fts MATCH ? AND d.date BETWEEN ? AND ?`,
		hits: `SELECT d.id, d.meeting, d.date, d.page, coalesce(d.page_image, ''), snippet(agendas_fts, 0, '«', '»', '…', 20), bm25(agendas_fts)
			FROM agendas_fts JOIN agendas d ON d.rowid = agendas_fts.rowid WHERE agendas_fts MATCH ? AND d.date BETWEEN ? AND ?
			ORDER BY 7, d.date DESC, d.page LIMIT ?`,
	},
}

var kindOf = map[string]string{"minutes": civic.Minutes, "agendas": civic.Agenda}

// match looks in one table. A query that is no full-text expression is looked
// for as the phrase it is.
func match(ctx context.Context, db *sql.DB, site, table string, q query) ([]ranked, int64, error) {
	hits, total, err := matchAs(ctx, db, site, table, q.text, q)
	if isSyntax(err) {
		phrase := `"` + strings.ReplaceAll(q.text, `"`, `""`) + `"`
		hits, total, err = matchAs(ctx, db, site, table, phrase, q)
	}
	if isSyntax(err) {
		err = fmt.Errorf("%w: %q: %w", errBadQuery, q.text, err)
	}
	return hits, total, err
}

// isSyntax reports an error in what was asked for, not in asking.
func isSyntax(err error) bool {
	e, ok := errors.AsType[*sqlite.Error](err)
	return ok && e.Code() == 1 // SQLITE_ERROR
}

func matchAs(ctx context.Context, db *sql.DB, site, table, text string, q query) ([]ranked, int64, error) {
	var total int64
	if err := db.QueryRowContext(ctx, statements[table].count, text, q.from, q.to).Scan(&total); err != nil || total == 0 {
		return nil, 0, err
	}
	rows, err := db.QueryContext(ctx, statements[table].hits, text, q.from, q.to, q.limit)
	if err != nil {
		return nil, 0, err
	}
	defer rows.Close()
	var hits []ranked
	for rows.Next() {
		h := &reevev1.Hit{Subdomain: site, Kind: kindOf[table]}
		var rank float64
		if err := rows.Scan(&h.Id, &h.Meeting, &h.Date, &h.Page, &h.PageImage, &h.Snippet, &rank); err != nil {
			return nil, 0, err
		}
		h.Snippet = strings.ToValidUTF8(strings.Join(strings.Fields(h.GetSnippet()), " "), "�")
		hits = append(hits, ranked{hit: h, rank: rank})
	}
	return hits, total, rows.Err()
}
