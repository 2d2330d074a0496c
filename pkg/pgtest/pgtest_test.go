package pgtest_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/reeve-pipeline/reeve/pkg/pgtest"
)

func TestDatabasesAreMigratedAndApart(t *testing.T) {
	t.Parallel()
	one, two := pgtest.New(t), pgtest.New(t)
	if one == two {
		t.Fatal("two tests share a database")
	}
	for _, dsn := range []string{one, two} {
		t.Run("database", func(t *testing.T) {
			t.Parallel()
			conn, err := pgx.Connect(t.Context(), dsn)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(context.Background())
			if _, err := conn.Exec(t.Context(), `CREATE TABLE mine (n int); SELECT * FROM goose_db_version`); err != nil {
				t.Fatal(err)
			}
		})
	}
	began := time.Now()
	pgtest.New(t)
	t.Logf("a database took %v", time.Since(began))
}
