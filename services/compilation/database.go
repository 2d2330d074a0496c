package compilation

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/reeve-pipeline/reeve/pkg/civic"
)

// Shapes of entities_json and votes_json of a page whose entities nobody has
// extracted.
const (
	noEntities = `{"persons": [], "orgs": [], "locations": []}`
	noVotes    = `{"votes": []}`
)

// schema is the contract with everything that reads a meetings.db: the tables
// and their columns, by name and in this order, and a full-text index of each
// table's text with the default tokenizer. The index on meeting and date is
// ours: pages are grouped by them, and replaced by them. A VACUUM would give
// rows other numbers than the full-text indexes have; never do it.
const schema = `
CREATE TABLE [minutes] (
   [id] TEXT PRIMARY KEY,
   [meeting] TEXT,
   [date] TEXT,
   [page] INTEGER,
   [text] TEXT,
   [page_image] TEXT,
   [entities_json] TEXT,
   [votes_json] TEXT
);
CREATE TABLE [agendas] (
   [id] TEXT PRIMARY KEY,
   [meeting] TEXT,
   [date] TEXT,
   [page] INTEGER,
   [text] TEXT,
   [page_image] TEXT,
   [entities_json] TEXT,
   [votes_json] TEXT
);
CREATE INDEX [idx_minutes_meeting_date] ON [minutes] ([meeting], [date]);
CREATE INDEX [idx_agendas_meeting_date] ON [agendas] ([meeting], [date]);
CREATE VIRTUAL TABLE [minutes_fts] USING FTS5 ([text], content=[minutes]);
CREATE VIRTUAL TABLE [agendas_fts] USING FTS5 ([text], content=[agendas]);
`

// tables are the tables by the kind of document they hold.
var tables = map[string]string{civic.Minutes: "minutes", civic.Agenda: "agendas"}

// errForeign: the database does not hold what its manifest says.
var errForeign = errors.New("the database does not hold what its manifest says")

// page is what a row is made of, besides its document.
type page struct {
	number int
	text   string
}

// database is a meetings.db under construction: a file of ours alone that is
// thrown away when anything goes wrong, and so needs no journal.
type database struct {
	pool *sql.DB
	conn *sql.Conn
	// fresh: built from nothing; the full-text index is made at the end.
	fresh bool
	// shared are short ids that more than one page may have, by table.
	shared map[string]map[string]bool
	// collisions counts pages that got a long id.
	collisions int
}

// openDatabase opens the file at path, or makes it when fresh is set.
func openDatabase(ctx context.Context, path string, fresh bool) (*database, error) {
	pool, err := sql.Open("sqlite", path)
	if err != nil {
		return nil, err
	}
	conn, err := pool.Conn(ctx)
	if err != nil {
		return nil, errors.Join(err, pool.Close())
	}
	d := &database{pool: pool, conn: conn, fresh: fresh, shared: map[string]map[string]bool{}}
	setup := []string{
		"PRAGMA journal_mode = OFF", "PRAGMA synchronous = OFF", "PRAGMA locking_mode = EXCLUSIVE",
		"PRAGMA page_size = 8192",    // bytes; of a new file: most pages of text then waste little
		"PRAGMA cache_size = -32768", // kibibytes
		"BEGIN",
	}
	if fresh {
		setup = append(setup, schema)
	}
	if err := d.exec(ctx, setup...); err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

func (d *database) exec(ctx context.Context, statements ...string) error {
	for _, s := range statements {
		if _, err := d.conn.ExecContext(ctx, s); err != nil {
			return fmt.Errorf("%.60q: %w", s, err)
		}
	}
	return nil
}

func (d *database) close() error { return errors.Join(d.conn.Close(), d.pool.Close()) }

// in writes a statement for one of the tables, which it calls TABLE.
func in(table, statement string) string { return strings.ReplaceAll(statement, "TABLE", table) }

// folder is where a document's page images are, as its pages' paths say.
func folder(d civic.ManifestDocument) string {
	path := "/" + cmp.Or(d.Meeting, "unknown") + "/" + cmp.Or(d.Date, "undated")
	if d.Ordinal > 1 {
		path += fmt.Sprintf("-%d", d.Ordinal)
	}
	if d.Kind == civic.Agenda {
		path = "/_agendas" + path
	}
	return path
}

// insert adds a document's pages.
func (d *database) insert(ctx context.Context, doc civic.ManifestDocument, pages []page) error {
	table := tables[doc.Kind]
	row, err := d.conn.PrepareContext(ctx, in(table, `INSERT INTO TABLE
		(id, meeting, date, page, text, page_image, entities_json, votes_json)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING`))
	if err != nil {
		return err
	}
	defer row.Close()
	index, err := d.conn.PrepareContext(ctx, in(table, `INSERT INTO TABLE_fts (rowid, text) VALUES (?, ?)`))
	if err != nil {
		return err
	}
	defer index.Close()
	for _, p := range pages {
		image := fmt.Sprintf("%s/%d.png", folder(doc), p.number)
		short := pageID(doc.Kind, doc.Meeting, doc.Date, p.number, p.text)
		res, err := row.ExecContext(ctx, short, doc.Meeting, doc.Date, p.number, p.text, image, noEntities, noVotes)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil {
			return err
		} else if n == 0 {
			d.share(table, short)
			res, err = row.ExecContext(ctx, longID(short, image), doc.Meeting, doc.Date, p.number, p.text, image, noEntities, noVotes)
			if err != nil {
				return err
			}
		}
		if d.fresh {
			continue
		}
		number, err := res.LastInsertId()
		if err != nil {
			return err
		}
		if _, err := index.ExecContext(ctx, number, p.text); err != nil {
			return err
		}
	}
	return nil
}

// remove deletes a document's pages. The error is errForeign when they are not
// all there.
func (d *database) remove(ctx context.Context, doc civic.ManifestDocument) error {
	table := tables[doc.Kind]
	type row struct {
		number   int64
		id, text string
	}
	var found []row
	rows, err := d.conn.QueryContext(ctx, in(table, `SELECT rowid, id, text FROM TABLE
		WHERE meeting = ?1 AND date = ?2 AND substr(page_image, 1, length(?3)) = ?3`), doc.Meeting, doc.Date, folder(doc)+"/")
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var r row
		if err := rows.Scan(&r.number, &r.id, &r.text); err != nil {
			return err
		}
		found = append(found, r)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return err
	}
	if len(found) != doc.Pages {
		return fmt.Errorf("%w: %d pages of %s, not %d", errForeign, len(found), doc.ID, doc.Pages)
	}
	for _, r := range found {
		// The index must be told what it is to forget.
		if _, err := d.conn.ExecContext(ctx, in(table, `INSERT INTO TABLE_fts (TABLE_fts, rowid, text) VALUES ('delete', ?, ?)`), r.number, r.text); err != nil {
			return err
		}
		if _, err := d.conn.ExecContext(ctx, in(table, `DELETE FROM TABLE WHERE rowid = ?`), r.number); err != nil {
			return err
		}
		d.share(table, r.id[:min(idLen, len(r.id))])
	}
	return nil
}

func (d *database) share(table, short string) {
	if d.shared[table] == nil {
		d.shared[table] = map[string]bool{}
	}
	d.shared[table][short] = true
}

// settle gives each short id to the first of the pages that have it, in an
// order that does not depend on when they came, and long ids to the others.
func (d *database) settle(ctx context.Context, table, short string) error {
	type row struct {
		number    int64
		id, image string
	}
	var sharing []row
	rows, err := d.conn.QueryContext(ctx, in(table, `SELECT rowid, id, page_image FROM TABLE WHERE id >= ?1 AND id < ?1 || 'g'`), short)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var r row
		if err := rows.Scan(&r.number, &r.id, &r.image); err != nil {
			return err
		}
		sharing = append(sharing, r)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return err
	}
	slices.SortFunc(sharing, func(a, b row) int {
		return cmp.Or(cmp.Compare(len(a.image), len(b.image)), strings.Compare(a.image, b.image))
	})
	d.collisions += max(0, len(sharing)-1)
	// From the last to the first, the short id is free when it is its turn.
	for i, r := range slices.Backward(sharing) {
		id := short
		if i > 0 {
			id = longID(short, r.image)
		}
		if id == r.id {
			continue
		}
		if _, err := d.conn.ExecContext(ctx, in(table, `UPDATE TABLE SET id = ? WHERE rowid = ?`), id, r.number); err != nil {
			return err
		}
	}
	return nil
}

// finish settles what is open, checks the database against the numbers of
// pages it is to hold, and closes it.
func (d *database) finish(ctx context.Context, minutes, agendas int) (err error) {
	defer func() { err = errors.Join(err, d.close()) }()
	for _, table := range slices.Sorted(maps.Keys(d.shared)) {
		for _, short := range slices.Sorted(maps.Keys(d.shared[table])) {
			if err := d.settle(ctx, table, short); err != nil {
				return fmt.Errorf("settle id %s: %w", short, err)
			}
		}
	}
	if d.fresh {
		for _, table := range slices.Sorted(maps.Values(tables)) {
			err := d.exec(ctx, in(table, `INSERT INTO TABLE_fts (TABLE_fts) VALUES ('rebuild')`), in(table, `INSERT INTO TABLE_fts (TABLE_fts) VALUES ('optimize')`))
			if err != nil {
				return err
			}
		}
	}
	if err := d.exec(ctx, "COMMIT"); err != nil {
		return err
	}
	for table, want := range map[string]int{"minutes": minutes, "agendas": agendas} {
		// What the full-text index counts is what it has been given, row by row.
		var rows, indexed int
		err := d.conn.QueryRowContext(ctx, in(table, `SELECT (SELECT count(*) FROM TABLE), (SELECT count(*) FROM TABLE_fts_docsize)`)).Scan(&rows, &indexed)
		if err != nil {
			return err
		}
		if rows != want || indexed != want {
			return fmt.Errorf("%w: table %s has %d pages and its index %d, not %d", errForeign, table, rows, indexed, want)
		}
	}
	if !d.fresh {
		return nil
	}
	var verdict string
	if err := d.conn.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&verdict); err != nil {
		return err
	}
	if verdict != "ok" {
		return fmt.Errorf("check the database: %s", verdict)
	}
	for _, table := range slices.Sorted(maps.Values(tables)) {
		if err := d.exec(ctx, in(table, `INSERT INTO TABLE_fts (TABLE_fts, rank) VALUES ('integrity-check', 0)`)); err != nil {
			return err
		}
	}
	return nil
}
