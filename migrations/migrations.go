// Package migrations carries the schema of Reeve's Postgres database and
// brings a database up to it. Migrations go forward only; each is safe while
// the release before it still runs.
package migrations

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver named "pgx"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

//go:embed 0*.sql
var files embed.FS

// ErrNewer is returned when the database is ahead of this build: an older
// program must not touch it.
var ErrNewer = errors.New("the database's schema is newer than this program")

// Up brings the database to the newest version. It takes a session lock, so
// that several processes may call it at once. The error wraps [ErrNewer] when
// the database knows migrations that this build does not.
func Up(ctx context.Context, dsn string) error {
	return with(dsn, func(p *goose.Provider) error {
		if err := notNewer(ctx, p); err != nil {
			return err
		}
		if _, err := p.Up(ctx); err != nil {
			return fmt.Errorf("migrate: %w", err)
		}
		return nil
	})
}

// Current reports the database's version and the newest of this build.
func Current(ctx context.Context, dsn string) (database, build int64, err error) {
	err = with(dsn, func(p *goose.Provider) error {
		database, build, err = p.GetVersions(ctx)
		return err
	})
	return database, build, err
}

func notNewer(ctx context.Context, p *goose.Provider) error {
	database, build, err := p.GetVersions(ctx)
	if err != nil {
		return fmt.Errorf("read schema version: %w", err)
	}
	if database > build {
		return fmt.Errorf("%w: database %d, program %d; install the newer release", ErrNewer, database, build)
	}
	return nil
}

func with(dsn string, do func(*goose.Provider) error) error {
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		return fmt.Errorf("open database: %w", err)
	}
	defer db.Close()
	locker, err := lock.NewPostgresSessionLocker()
	if err != nil {
		return err
	}
	p, err := goose.NewProvider(goose.DialectPostgres, db, files, goose.WithSessionLocker(locker))
	if err != nil {
		return fmt.Errorf("open migrations: %w", err)
	}
	return do(p)
}
