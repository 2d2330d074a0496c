package sweeper

import (
	"errors"
	"time"
)

// Config are the sweeper's settings.
type Config struct {
	Every     time.Duration `koanf:"every" help:"time between two sweeps"`
	Settle    time.Duration `koanf:"settle" help:"how long to wait for outcomes under way to be counted before a task is called lost"`
	Stuck     time.Duration `koanf:"stuck" help:"how long a run may stand still before it counts as stuck"`
	Provision bool          `koanf:"provision" help:"make streams and consumers that have gone missing"`
	Once      bool          `koanf:"once" help:"sweep once and exit"`
	DryRun    bool          `koanf:"dry_run" help:"say what would be done, and do nothing; with once"`
}

// Defaults are the settings that a deployment need not give.
func Defaults() Config {
	return Config{Every: time.Minute, Settle: 20 * time.Second, Stuck: 2 * time.Hour, Provision: true}
}

// Validate reports everything that is wrong with the settings, joined.
func (c Config) Validate() error {
	var errs []error
	if c.Every < time.Second {
		errs = append(errs, errors.New("every must be at least 1s"))
	}
	if c.Settle <= 0 || c.Stuck <= 0 {
		errs = append(errs, errors.New("settle and stuck must be positive"))
	}
	if c.DryRun && !c.Once {
		errs = append(errs, errors.New("dry_run only makes sense with once"))
	}
	return errors.Join(errs...)
}
