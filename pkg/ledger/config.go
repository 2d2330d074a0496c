package ledger

import (
	"errors"

	"github.com/reeve-pipeline/reeve/pkg/service"
)

// Config are the settings under "postgres" of the processes that keep books.
type Config struct {
	DSN service.Secret `koanf:"dsn" help:"connection string, as in postgres://user@host/reeve"`
}

// Validate reports a missing connection string.
func (c Config) Validate() error {
	if c.DSN == "" {
		return errors.New("postgres.dsn is not set: give --postgres.dsn or REEVE_POSTGRES_DSN")
	}
	return nil
}
