package lineextraction

import (
	"errors"

	"github.com/reeve-pipeline/reeve/pkg/raster"
	"github.com/reeve-pipeline/reeve/pkg/service"
)

// Config is how the stage behaves. Start from [Defaults].
type Config struct {
	Hands     int          `koanf:"hands"      help:"page ranges in hand at once in this process; 0: the stage's default"`
	Memory    service.Size `koanf:"memory"     help:"memory for decoded pages, of all hands together; only line images need any"`
	MaxPixels int64        `koanf:"max_pixels" help:"most pixels that a page may have"`
}

// Defaults are the settings that nobody has changed.
func Defaults() Config { return Config{Memory: 128 << 20, MaxPixels: raster.Defaults().MaxPixels} }

// Validate reports everything that is wrong with the settings, joined.
func (c *Config) Validate() error {
	var errs []error
	if c.Hands < 0 {
		errs = append(errs, errors.New("line_extraction.hands must not be negative"))
	}
	if c.Memory <= 0 {
		errs = append(errs, errors.New("line_extraction.memory must be above 0"))
	}
	if c.MaxPixels <= 0 {
		errs = append(errs, errors.New("line_extraction.max_pixels must be above 0"))
	}
	return errors.Join(errs...)
}

// limits are those of one page.
func (c *Config) limits() raster.Limits {
	l := raster.Defaults()
	l.MaxPixels = c.MaxPixels
	return l
}
