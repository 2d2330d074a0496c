package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/reeve-pipeline/reeve/pkg/civic"
	"github.com/reeve-pipeline/reeve/pkg/pipeline"
	"github.com/reeve-pipeline/reeve/pkg/stage"
)

// civicPipeline is the pipeline whose outcomes are projected onto
// site_registry and documents.
const civicPipeline = "civic"

// subjectSpec is the spec of a task that is about the subject itself: a site's
// registration for the civic pipeline, an empty object otherwise.
func subjectSpec(ctx context.Context, tx pgx.Tx, p *pipeline.Pipeline, subject string) (json.RawMessage, error) {
	if p.Name != civicPipeline {
		return json.RawMessage(`{}`), nil
	}
	s, err := registered(ctx, tx, subject)
	if err != nil {
		return nil, err
	}
	return json.Marshal(s)
}

type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// registered reads a site's registration, and keeps it from being removed until
// the transaction ends; ErrNotFound when there is none.
func registered(ctx context.Context, q querier, subdomain string) (civic.Site, error) {
	const get = `
		SELECT subdomain, name, state, country, kind, source, start_year, lat, lng, extra, deployed_version
		FROM site_registry WHERE subdomain = @subdomain FOR KEY SHARE`
	var s civic.Site
	err := q.QueryRow(ctx, get, pgx.NamedArgs{"subdomain": subdomain}).
		Scan(&s.Subdomain, &s.Name, &s.State, &s.Country, &s.Kind, &s.Source, &s.StartYear, &s.Lat, &s.Lng, &s.Extra, &s.DeployedVersion)
	if errors.Is(err, pgx.ErrNoRows) {
		return s, fmt.Errorf("site %s: %w", subdomain, ErrNotFound)
	}
	return s, err
}

// project queues the rows of the domain that follow from applied outcomes, in
// the order in which a document passes the stages. It marks documents that are
// byte for byte another one of their site as duplicates, which go no further.
func (b *batch) project(ctx context.Context, done []applied) error {
	var paginated, reduced documentColumns
	fetched, same := map[int64][]*applied{}, map[int64][]*applied{}
	for i := range done {
		a := &done[i]
		r := b.runs[a.Run]
		switch {
		case r.pipe.Name != civicPipeline || a.Status != stage.StatusCompleted && a.Status != stage.StatusFailed:
		case a.Stage == "fetch" && a.scope != "" && a.Status == stage.StatusCompleted && a.Skip == "":
			fetched[a.Run] = append(fetched[a.Run], a)
		case a.Stage == "fetch" && a.scope != "" && a.Status == stage.StatusCompleted:
			same[a.Run] = append(same[a.Run], a)
		case a.Stage == "pagination" && a.Status == stage.StatusCompleted:
			if err := b.add(&paginated, r, a); err != nil {
				return err
			}
		case a.Stage == "reduce" && a.Status == stage.StatusCompleted:
			if err := b.add(&reduced, r, a); err != nil {
				return err
			}
		default:
			if err := b.projectOne(r, a); err != nil {
				return err
			}
		}
	}
	for _, run := range slices.Sorted(maps.Keys(same)) {
		if err := b.unchanged(b.runs[run], same[run]); err != nil {
			return err
		}
	}
	for _, run := range slices.Sorted(maps.Keys(fetched)) {
		if err := b.fetched(ctx, b.runs[run], fetched[run]); err != nil {
			return err
		}
	}
	paginated.pages(&b.last)
	reduced.texts(&b.last)
	return nil
}

// documentColumns are documents turned into the arrays that a statement takes.
type documentColumns struct {
	subdomain, id, sha256, text              []string
	total, native, ocr, image, blank, failed []int
}

func (b *batch) add(c *documentColumns, r *runState, a *applied) error {
	var d civic.Document
	if err := json.Unmarshal(a.Output, &d); err != nil {
		return b.misfit(a, err)
	}
	var p civic.PageCounts
	if d.Pages != nil {
		p = *d.Pages
	}
	text := ""
	if d.Text != nil {
		raw, _ := json.Marshal(d.Text) // a struct of strings and integers
		text = string(cleanJSON(raw))
	}
	c.subdomain, c.id = append(c.subdomain, r.subject), append(c.id, a.Item)
	c.sha256, c.text = append(c.sha256, clean(d.SHA256)), append(c.text, text)
	c.total, c.native, c.ocr = append(c.total, p.Total), append(c.native, p.Native), append(c.ocr, p.OCR)
	c.image, c.blank, c.failed = append(c.image, p.Image), append(c.blank, p.Blank), append(c.failed, p.Failed)
	return nil
}

func (c *documentColumns) args() pgx.NamedArgs {
	return pgx.NamedArgs{
		"subdomain": c.subdomain, "id": c.id, "sha256": c.sha256, "text": c.text, "pages": c.total,
		"native": c.native, "ocr": c.ocr, "image": c.image, "blank": c.blank, "failed": c.failed,
	}
}

const (
	setPages = `
		UPDATE documents d SET
			pages = n.pages, pages_native = n.native, pages_ocr = n.ocr, pages_image = n.image, pages_blank = n.blank, pages_failed = n.failed,
			updated_at = now()`
	fromDocuments = `
		FROM unnest(@subdomain::text[], @id::text[], @sha256::text[], @text::text[], @pages::bigint[], @native::bigint[], @ocr::bigint[], @image::bigint[],
			@blank::bigint[], @failed::bigint[]) AS n(subdomain, id, sha256, text, pages, native, ocr, image, blank, failed)`
)

// pages writes what pagination has found of the documents.
func (c *documentColumns) pages(q *pgx.Batch) {
	const found = setPages + fromDocuments + ` WHERE d.subdomain = n.subdomain AND d.document_id = n.id`
	if len(c.id) > 0 {
		q.Queue(found, c.args())
	}
}

// texts writes what reduce has made of the documents. Documents that are the
// same bytes share it.
func (c *documentColumns) texts(q *pgx.Batch) {
	const text = `, text = nullif(n.text, '')::jsonb, error_class = '', error_message = ''`
	const made = setPages + text + `, status = CASE WHEN n.image + n.failed > 0 THEN 'partial' ELSE 'done' END` + fromDocuments + `
		WHERE d.subdomain = n.subdomain AND d.document_id = n.id`
	const shared = setPages + text + fromDocuments + `
		WHERE d.subdomain = n.subdomain AND d.duplicate_of = n.id AND d.duplicate_of <> '' AND d.sha256 = n.sha256`
	if len(c.id) > 0 {
		q.Queue(made, c.args())
		q.Queue(shared, c.args())
	}
}

func (b *batch) projectOne(r *runState, a *applied) error {
	ok := a.Status == stage.StatusCompleted
	switch {
	case a.Stage == "fetch" && a.scope != "" && !ok:
		var d civic.Document
		_ = json.Unmarshal(a.spec, &d) // a failure is kept whatever was listed
		const insert = `
			INSERT INTO documents (subdomain, document_id, kind, meeting, date, ordinal, source, title, status, error_class, error_message, run)
			SELECT @subdomain, @id, @kind, @meeting, @date, @ordinal, @source, @title, 'failed', @class, @message, @run
			WHERE EXISTS (SELECT FROM site_registry WHERE subdomain = @subdomain)
			ON CONFLICT (subdomain, document_id) DO UPDATE SET
				status = 'failed', error_class = @class, error_message = @message, run = @run, updated_at = now()`
		b.last.Queue(insert, documentArgs(r, a, d))
	case (a.Stage == "pagination" || a.Stage == "reduce") && !ok:
		const fail = `
			UPDATE documents SET status = 'failed', error_class = @class, error_message = @message, updated_at = now()
			WHERE subdomain = @subdomain AND document_id = @id`
		b.last.Queue(fail, documentArgs(r, a, civic.Document{ID: a.Item}))
	case a.Stage == "compilation" && ok && len(a.Output) > 0:
		var c civic.Compiled
		if err := json.Unmarshal(a.Output, &c); err != nil {
			return b.misfit(a, err)
		}
		if c.Version == "" {
			return nil
		}
		const compiled = `
			UPDATE site_registry SET compiled_version = @version, compiled_at = now(), pages = @pages, updated_at = now()
			WHERE subdomain = @subdomain`
		b.last.Queue(compiled, pgx.NamedArgs{"version": c.Version, "pages": c.Minutes + c.Agendas, "subdomain": r.subject})
	case a.Stage == "deploy" && ok && a.Skip == "":
		var d civic.Deployed
		if err := json.Unmarshal(a.Output, &d); err != nil {
			return b.misfit(a, err)
		}
		const deployed = `
			UPDATE site_registry SET deployed_version = @version, deployed_at = now(), updated_at = now()
			WHERE subdomain = @subdomain`
		b.last.Queue(deployed, pgx.NamedArgs{"version": d.Version, "subdomain": r.subject})
	}
	return nil
}

// misfit is an output that does not have the form that its stage promises.
func (b *batch) misfit(a *applied, err error) error {
	return fmt.Errorf("%w: task %s/%s of run %d: %w", ErrMisfit, a.Stage, a.Item, a.Run, err)
}

// ErrMisfit is an outcome whose output does not have the form that its stage
// promises: like unreadable bytes, it can never be recorded.
var ErrMisfit = errors.New("output of another form than the stage's")

// unchanged keeps what a source says of documents whose bytes are the same as
// before, so that the next run can tell without reading them.
func (b *batch) unchanged(r *runState, tasks []*applied) error {
	var id, title, etag, lastModified []string
	for _, a := range tasks {
		if len(a.Output) == 0 {
			continue
		}
		var d civic.Document
		if err := json.Unmarshal(a.Output, &d); err != nil {
			return b.misfit(a, err)
		}
		id, title = append(id, a.Item), append(title, clean(d.Title))
		etag, lastModified = append(etag, clean(d.ETag)), append(lastModified, clean(d.LastModified))
	}
	if len(id) == 0 {
		return nil
	}
	const told = `
		UPDATE documents d SET title = n.title, etag = n.etag, last_modified = n.last_modified
		FROM unnest(@id::text[], @title::text[], @etag::text[], @last_modified::text[]) AS n(id, title, etag, last_modified)
		WHERE d.subdomain = @subdomain AND d.document_id = n.id
		  AND (d.title, d.etag, d.last_modified) IS DISTINCT FROM (n.title, n.etag, n.last_modified)`
	b.last.Queue(told, pgx.NamedArgs{"subdomain": r.subject, "id": id, "title": title, "etag": etag, "last_modified": lastModified})
	return nil
}

// fetched writes documents of one run that were downloaded. A document that
// has the bytes of another one of its site, of this batch or before, is marked
// as its duplicate, which goes no further.
func (b *batch) fetched(ctx context.Context, r *runState, tasks []*applied) error {
	var c struct {
		id, kind, meeting, date, source, title, sha256, key, etag, lastModified, duplicateOf []string
		ordinal                                                                              []int
		size                                                                                 []int64
	}
	for _, a := range tasks {
		var d civic.Document
		if err := json.Unmarshal(a.Output, &d); err != nil {
			return b.misfit(a, err)
		}
		if d.Kind != civic.Agenda {
			d.Kind = civic.Minutes
		}
		c.id, c.kind, c.meeting, c.date = append(c.id, a.Item), append(c.kind, d.Kind), append(c.meeting, clean(d.Meeting)), append(c.date, clean(d.Date))
		c.ordinal, c.source, c.title = append(c.ordinal, max(d.Ordinal, 1)), append(c.source, clean(d.Source)), append(c.title, clean(d.Title))
		c.sha256, c.size, c.key = append(c.sha256, clean(d.SHA256)), append(c.size, d.Size), append(c.key, clean(d.Key))
		c.etag, c.lastModified = append(c.etag, clean(d.ETag)), append(c.lastModified, clean(d.LastModified))
	}
	args := pgx.NamedArgs{
		"subdomain": r.subject, "run": r.run, "id": c.id, "kind": c.kind, "meeting": c.meeting, "date": c.date, "ordinal": c.ordinal,
		"source": c.source, "title": c.title, "sha256": c.sha256, "size": c.size, "key": c.key, "etag": c.etag, "last_modified": c.lastModified,
	}
	const same = `
		SELECT sha256, document_id FROM documents
		WHERE subdomain = @subdomain AND sha256 = ANY(@sha256) AND duplicate_of = ''
		ORDER BY created_at DESC, document_id DESC`
	rows, err := b.tx.Query(ctx, same, args)
	if err != nil {
		return err
	}
	now := make(map[string]string, len(c.id)) // what the documents of the batch have become
	for i, id := range c.id {
		now[id] = c.sha256[i]
	}
	original := map[string]string{}
	var sum, id string
	if _, err := pgx.ForEachRow(rows, []any{&sum, &id}, func() error {
		if became, ok := now[id]; !ok || became == sum {
			original[sum] = id
		}
		return nil
	}); err != nil {
		return err
	}
	var duplicates []string
	for i, id := range c.id {
		first, there := original[c.sha256[i]]
		if !there || first == id {
			original[c.sha256[i]], first = id, ""
		} else {
			tasks[i].Skip = "duplicate"
			duplicates = append(duplicates, id)
		}
		c.duplicateOf = append(c.duplicateOf, first)
	}
	args["duplicate_of"], args["duplicates"] = c.duplicateOf, duplicates
	// A document that now differs from those posted twice leaves these with
	// what it was: they have the text already.
	const release = `
		UPDATE documents c SET duplicate_of = '', status = CASE WHEN c.text IS NULL THEN 'pending' WHEN c.pages_image + c.pages_failed > 0 THEN 'partial' ELSE 'done' END
		FROM unnest(@id::text[], @sha256::text[]) AS n(id, sha256)
		WHERE c.subdomain = @subdomain AND c.duplicate_of = n.id AND c.duplicate_of <> '' AND c.sha256 <> n.sha256`
	const upsert = `
		INSERT INTO documents AS d (subdomain, document_id, kind, meeting, date, ordinal, source, title, status, version,
			sha256, size, key, etag, last_modified, duplicate_of, run)
		SELECT @subdomain, id, kind, meeting, date, ordinal, source, title, 'pending', 1, sha256, size, key, etag, last_modified, duplicate_of, @run
		FROM unnest(@id::text[], @kind::text[], @meeting::text[], @date::text[], @ordinal::bigint[], @source::text[], @title::text[], @sha256::text[],
			@size::bigint[], @key::text[], @etag::text[], @last_modified::text[], @duplicate_of::text[])
			AS n(id, kind, meeting, date, ordinal, source, title, sha256, size, key, etag, last_modified, duplicate_of)
		ON CONFLICT (subdomain, document_id) DO UPDATE SET
			kind = excluded.kind, meeting = excluded.meeting, date = excluded.date, ordinal = excluded.ordinal,
			source = excluded.source, title = excluded.title, status = 'pending',
			version = d.version + (d.sha256 <> excluded.sha256)::int,
			sha256 = excluded.sha256, size = excluded.size, key = excluded.key, etag = excluded.etag,
			last_modified = excluded.last_modified, duplicate_of = excluded.duplicate_of,
			error_class = '', error_message = '', run = excluded.run, updated_at = now()`
	const version = `
		INSERT INTO document_versions (subdomain, document_id, version, sha256, size, key, run)
		SELECT subdomain, document_id, version, sha256, size, key, run FROM documents
		WHERE subdomain = @subdomain AND document_id = ANY(@id)
		ON CONFLICT DO NOTHING`
	const share = `
		UPDATE documents d SET status = 'duplicate', text = o.text, pages = o.pages, pages_native = o.pages_native, pages_ocr = o.pages_ocr,
			pages_image = o.pages_image, pages_blank = o.pages_blank, pages_failed = o.pages_failed
		FROM documents o
		WHERE d.subdomain = @subdomain AND d.document_id = ANY(@duplicates) AND o.subdomain = @subdomain AND o.document_id = d.duplicate_of`
	const stop = `UPDATE tasks SET skip = 'duplicate' WHERE run = @run AND stage = 'fetch' AND item = ANY(@duplicates)`
	statements := []string{release, upsert, version}
	if len(duplicates) > 0 {
		statements = append(statements, share, stop)
	}
	for _, statement := range statements {
		b.last.Queue(statement, args)
	}
	return nil
}

// documentArgs are the arguments of the statements on a document that failed.
func documentArgs(r *runState, a *applied, d civic.Document) pgx.NamedArgs {
	kind := d.Kind
	if kind != civic.Agenda {
		kind = civic.Minutes
	}
	return pgx.NamedArgs{
		"subdomain": r.subject, "id": a.Item, "run": a.Run, "class": string(a.ErrorClass), "message": clean(a.ErrorMessage),
		"kind": kind, "meeting": clean(d.Meeting), "date": clean(d.Date), "ordinal": min(max(d.Ordinal, 1), math.MaxInt32), "source": clean(d.Source), "title": clean(d.Title),
	}
}

// AddSite registers a site or changes its registration.
func (l *Ledger) AddSite(ctx context.Context, s civic.Site) (Site, error) {
	const upsert = `
		INSERT INTO site_registry (subdomain, name, state, country, kind, source, start_year, lat, lng, extra)
		VALUES (@subdomain, @name, @state, @country, @kind, @source, @start_year, @lat, @lng, coalesce(nullif(@extra, '')::jsonb, '{}'))
		ON CONFLICT (subdomain) DO UPDATE SET
			name = excluded.name, state = excluded.state, country = excluded.country, kind = excluded.kind, source = excluded.source,
			start_year = excluded.start_year, lat = excluded.lat, lng = excluded.lng, extra = excluded.extra, updated_at = now()`
	_, err := l.pool.Exec(ctx, upsert, pgx.NamedArgs{
		"subdomain": s.Subdomain, "name": s.Name, "state": s.State, "country": s.Country, "kind": s.Kind, "source": s.Source,
		"start_year": s.StartYear, "lat": s.Lat, "lng": s.Lng, "extra": string(cleanJSON(s.Extra)),
	})
	if err != nil {
		return Site{}, fmt.Errorf("add site %s: %w", s.Subdomain, err)
	}
	return l.Site(ctx, s.Subdomain)
}

// Sites lists the registered sites by subdomain.
func (l *Ledger) Sites(ctx context.Context) ([]Site, error) { return l.sites(ctx, "") }

// Site returns one site. The error wraps ErrNotFound when it is not registered.
func (l *Ledger) Site(ctx context.Context, subdomain string) (Site, error) {
	list, err := l.sites(ctx, subdomain)
	if err == nil && len(list) == 0 {
		err = fmt.Errorf("site %s: %w", subdomain, ErrNotFound)
	}
	if err != nil {
		return Site{}, err
	}
	return list[0], nil
}

func (l *Ledger) sites(ctx context.Context, subdomain string) ([]Site, error) {
	const q = `
		SELECT s.subdomain, s.name, s.state, s.country, s.kind, s.source, s.start_year, s.lat, s.lng, s.extra, s.deployed_version,
		       s.pages, (SELECT count(*) FROM documents d WHERE d.subdomain = s.subdomain),
		       coalesce(v.current_stage, ''), coalesce(r.run, 0), coalesce(r.status, ''), greatest(s.updated_at, r.updated_at), s.created_at
		FROM site_registry s
		JOIN sites v USING (subdomain)
		LEFT JOIN LATERAL (
			SELECT run, status, updated_at FROM runs WHERE subject = s.subdomain AND pipeline = 'civic' ORDER BY run DESC LIMIT 1
		) r ON true
		WHERE @subdomain = '' OR s.subdomain = @subdomain
		ORDER BY s.subdomain`
	rows, err := l.pool.Query(ctx, q, pgx.NamedArgs{"subdomain": subdomain})
	if err != nil {
		return nil, fmt.Errorf("list sites: %w", err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (s Site, err error) {
		err = row.Scan(&s.Subdomain, &s.Name, &s.State, &s.Country, &s.Kind, &s.Source, &s.StartYear, &s.Lat, &s.Lng, &s.Extra,
			&s.DeployedVersion, &s.Pages, &s.Documents, &s.CurrentStage, &s.LastRun, &s.LastRunStatus, &s.UpdatedAt, &s.CreatedAt)
		return s, err
	})
}

// RemoveSite forgets a site's registration and its documents' rows; the runs'
// history and the objects stay. The error wraps ErrConflict while a run of the
// site goes on.
func (l *Ledger) RemoveSite(ctx context.Context, subdomain string) error {
	return l.tx(ctx, func(tx pgx.Tx) error {
		// A run that is just being started is waited for, and found.
		const lock = `SELECT FROM site_registry WHERE subdomain = @subdomain FOR UPDATE`
		if _, err := tx.Exec(ctx, lock, pgx.NamedArgs{"subdomain": subdomain}); err != nil {
			return fmt.Errorf("remove site %s: %w", subdomain, err)
		}
		const running = `SELECT run FROM runs WHERE pipeline = 'civic' AND subject = @subdomain AND status = 'running'`
		var run int64
		switch err := tx.QueryRow(ctx, running, pgx.NamedArgs{"subdomain": subdomain}).Scan(&run); {
		case err == nil:
			return fmt.Errorf("site %s: run %d goes on; cancel it first: %w", subdomain, run, ErrConflict)
		case !errors.Is(err, pgx.ErrNoRows):
			return fmt.Errorf("remove site %s: %w", subdomain, err)
		}
		const remove = `DELETE FROM site_registry WHERE subdomain = @subdomain`
		tag, err := tx.Exec(ctx, remove, pgx.NamedArgs{"subdomain": subdomain})
		if err != nil {
			return fmt.Errorf("remove site %s: %w", subdomain, err)
		}
		if tag.RowsAffected() == 0 {
			return fmt.Errorf("site %s: %w", subdomain, ErrNotFound)
		}
		return nil
	})
}

// Documents lists documents by kind, meeting and date.
func (l *Ledger) Documents(ctx context.Context, f DocumentFilter) ([]Document, error) {
	const q = `
		SELECT subdomain, document_id, kind, meeting, date, ordinal, source, title, status, version, sha256, size, key, etag, last_modified,
		       pages, pages_native, pages_ocr, pages_image, pages_blank, pages_failed, text, duplicate_of, error_class, error_message, updated_at
		FROM documents d
		WHERE (@subdomain = '' OR subdomain = @subdomain) AND (@status = '' OR status = @status)
		  AND (@run::bigint = 0 OR EXISTS (
			SELECT FROM tasks t JOIN runs r USING (run)
			WHERE t.run = @run AND t.stage = 'fetch' AND t.item = d.document_id AND r.subject = d.subdomain))
		ORDER BY subdomain, kind DESC, meeting, date, ordinal, document_id
		LIMIT nullif(@limit::int, 0)`
	rows, err := l.pool.Query(ctx, q, pgx.NamedArgs{"subdomain": f.Subdomain, "status": f.Status, "run": f.Run, "limit": f.Limit})
	if err != nil {
		return nil, fmt.Errorf("list documents: %w", err)
	}
	return pgx.CollectRows(rows, scanDocument)
}

func scanDocument(row pgx.CollectableRow) (d Document, err error) {
	p := &civic.PageCounts{}
	err = row.Scan(&d.Subdomain, &d.ID, &d.Kind, &d.Meeting, &d.Date, &d.Ordinal, &d.Source, &d.Title, &d.Status, &d.Version, &d.SHA256,
		&d.Size, &d.Key, &d.ETag, &d.LastModified, &p.Total, &p.Native, &p.OCR, &p.Image, &p.Blank, &p.Failed, &d.Text, &d.DuplicateOf,
		&d.ErrorClass, &d.ErrorMessage, &d.UpdatedAt)
	if p.Total > 0 {
		d.Pages = p
	}
	return d, err
}

// counted adds up the documents that a run has seen: each fetch task of a
// document is one, and goes where the run has brought it. It groups rather than
// joins: a plan made while the tables were small cannot get it wrong.
const counted = `
	SELECT count(*) AS found,
		count(*) FILTER (WHERE state = 'done') AS done,
		count(*) FILTER (WHERE state = 'partial') AS partial,
		count(*) FILTER (WHERE state = 'failed') AS failed,
		count(*) FILTER (WHERE state = 'duplicate') AS duplicates,
		count(*) FILTER (WHERE state = 'unchanged') AS unchanged,
		count(*) FILTER (WHERE state = 'pending') AS pending,
		coalesce(sum(pages_native) FILTER (WHERE state IN ('done', 'partial')), 0) AS native,
		coalesce(sum(pages_ocr)    FILTER (WHERE state IN ('done', 'partial')), 0) AS ocr,
		coalesce(sum(pages_image)  FILTER (WHERE state IN ('done', 'partial')), 0) AS image,
		coalesce(sum(pages_blank)  FILTER (WHERE state IN ('done', 'partial')), 0) AS blank,
		coalesce(sum(pages_failed) FILTER (WHERE state IN ('done', 'partial')), 0) AS unreadable,
		coalesce(sum(pages)        FILTER (WHERE state = 'duplicate'), 0) AS duplicate
	FROM (
		SELECT x.*, CASE
			WHEN fetched IN ('failed', 'cancelled') THEN 'failed'
			WHEN skip = 'duplicate' THEN 'duplicate'
			WHEN skip IS NOT NULL THEN 'unchanged'
			WHEN paginated IN ('failed', 'cancelled') OR reduced IN ('failed', 'cancelled') THEN 'failed'
			WHEN reduced = 'completed' AND pages_image + pages_failed > 0 THEN 'partial'
			WHEN reduced = 'completed' THEN 'done'
			ELSE 'pending'
		END AS state
		FROM (
			SELECT max(fetched) AS fetched, max(skip) AS skip, max(paginated) AS paginated, max(reduced) AS reduced, max(pages) AS pages,
				max(pages_native) AS pages_native, max(pages_ocr) AS pages_ocr, max(pages_image) AS pages_image,
				max(pages_blank) AS pages_blank, max(pages_failed) AS pages_failed
			FROM (
				SELECT item, status AS fetched, skip, NULL AS paginated, NULL AS reduced,
					NULL::int AS pages, NULL::int AS pages_native, NULL::int AS pages_ocr, NULL::int AS pages_image, NULL::int AS pages_blank, NULL::int AS pages_failed
				FROM tasks WHERE run = @run AND stage = 'fetch' AND scope <> ''
				UNION ALL
				SELECT item, NULL, NULL, CASE stage WHEN 'pagination' THEN status END, CASE stage WHEN 'reduce' THEN status END, NULL, NULL, NULL, NULL, NULL, NULL
				FROM tasks WHERE run = @run AND stage IN ('pagination', 'reduce')
				UNION ALL
				SELECT document_id, NULL, NULL, NULL, NULL, pages, pages_native, pages_ocr, pages_image, pages_blank, pages_failed
				FROM documents WHERE subdomain = @subdomain
			) y GROUP BY item HAVING max(fetched) IS NOT NULL
		) x
	) x`

// freezeSummary keeps the sums of a run that has ended, since its documents
// belong to later runs from then on.
const freezeSummary = `UPDATE runs SET summary = (SELECT to_jsonb(c) FROM (` + counted + `) c) WHERE run = @run`

// DocumentSummary adds up the documents that a run has seen.
func (l *Ledger) DocumentSummary(ctx context.Context, run int64) (DocumentSummary, error) {
	const frozen = `SELECT subject, summary FROM runs WHERE run = @run`
	var (
		s       DocumentSummary
		subject string
		sums    map[string]int64
	)
	err := l.pool.QueryRow(ctx, frozen, pgx.NamedArgs{"run": run}).Scan(&subject, &sums)
	if errors.Is(err, pgx.ErrNoRows) {
		return s, fmt.Errorf("run %d: %w", run, ErrNotFound)
	}
	if err == nil && sums == nil {
		const now = `SELECT to_jsonb(c) FROM (` + counted + `) c`
		err = l.pool.QueryRow(ctx, now, pgx.NamedArgs{"run": run, "subdomain": subject}).Scan(&sums)
	}
	if err != nil {
		return s, fmt.Errorf("sum up run %d: %w", run, err)
	}
	s = DocumentSummary{
		Found: sums["found"], Done: sums["done"], Partial: sums["partial"], Failed: sums["failed"],
		Duplicates: sums["duplicates"], Unchanged: sums["unchanged"], Pending: sums["pending"],
		Pages: map[string]int64{
			civic.SourceNative: sums["native"], civic.SourceOCR: sums["ocr"], civic.SourceImage: sums["image"],
			civic.SourceBlank: sums["blank"], civic.SourceFailed: sums["unreadable"], "duplicate": sums["duplicate"],
		},
	}
	return s, nil
}
