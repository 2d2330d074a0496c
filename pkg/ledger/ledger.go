// Package ledger keeps the books of Reeve in Postgres: runs, their counters,
// their tasks, and the rows of the domain that follow from them. All SQL is
// here. What it promises: a task counts once per generation, however often its
// outcome arrives; a stage closes once; what follows from an outcome is
// planned in the transaction that counts it.
//
// It talks to nothing but Postgres. Methods return this package's types, never
// rows or transactions, and no method waits for anything but the database.
package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/reeve-pipeline/reeve/pkg/pipeline"
)

// Ledger is the books. It is safe for use by several goroutines.
type Ledger struct {
	pool *pgxpool.Pool
}

// Open connects to the database at dsn and checks that it answers.
func Open(ctx context.Context, dsn string) (*Ledger, error) {
	c, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("postgres dsn: %w", err)
	}
	if c.ConnConfig.ConnectTimeout == 0 {
		c.ConnConfig.ConnectTimeout = 5 * time.Second
	}
	c.MaxConns = max(c.MaxConns, 2) // one that leads needs another
	c.AfterConnect = settings
	pool, err := pgxpool.NewWithConfig(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("open postgres: %w", err)
	}
	if err := pool.Ping(ctx); err != nil {
		pool.Close()
		return nil, fmt.Errorf("postgres at %s:%d does not answer: %w", c.ConnConfig.Host, c.ConnConfig.Port, err)
	}
	return &Ledger{pool: pool}, nil
}

// settings are those of every session. Plans are made for the tables as they
// are: one kept from when they were small reads all of them for every task. No
// statement runs for so long that compiling it would pay. And whoever vanishes
// without a word holds its locks for a minute, not for hours.
func settings(ctx context.Context, conn *pgx.Conn) error {
	const set = `
		SELECT set_config('plan_cache_mode', 'force_custom_plan', false), set_config('jit', 'off', false), set_config('idle_in_transaction_session_timeout', '1min', false),
			set_config('tcp_keepalives_idle', '30', false), set_config('tcp_keepalives_interval', '10', false), set_config('tcp_keepalives_count', '3', false)`
	_, err := conn.Exec(ctx, set)
	return err
}

// Close closes all connections.
func (l *Ledger) Close() { l.pool.Close() }

// Ping reports whether the database answers.
func (l *Ledger) Ping(ctx context.Context) error { return l.pool.Ping(ctx) }

// tx runs do in a transaction, again when Postgres asks for it: after a
// deadlock or a serialization failure nothing of the first try is left.
func (l *Ledger) tx(ctx context.Context, do func(pgx.Tx) error) error {
	const tries = 5
	for try := 1; ; try++ {
		err := pgx.BeginFunc(ctx, l.pool, do)
		if try < tries && again(err) {
			continue
		}
		return err
	}
}

// again reports whether the same transaction may well succeed the next time.
func again(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (pg.Code == "40001" || pg.Code == "40P01")
}

// Unstorable reports whether err says that Postgres will never take the data
// as it is, whatever the circumstances: malformed values, broken constraints,
// more than a limit allows.
func Unstorable(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && len(pg.Code) == 5 && slices.Contains([]string{"21", "22", "23", "54"}, pg.Code[:2])
}

// definition returns the pipeline that a run with these settings goes through.
func definition(name string, settings map[string]any) (*pipeline.Pipeline, error) {
	p, ok := pipeline.Named(name)
	if !ok {
		return nil, fmt.Errorf("pipeline %q: %w", name, ErrNotFound)
	}
	return p.For(settings), nil
}
