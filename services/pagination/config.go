package pagination

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/reeve-pipeline/reeve/pkg/pdf"
	"github.com/reeve-pipeline/reeve/pkg/service"
)

// Config is how the stage behaves. Start from [Defaults].
type Config struct {
	Hands       int           `koanf:"hands"        help:"documents in hand at once in this process; 0: the stage's default"`
	Timeout     time.Duration `koanf:"timeout"      help:"give a document up after this long"`
	PageTimeout time.Duration `koanf:"page_timeout" help:"give a page up after this long"`
	Memory      service.Size  `koanf:"memory"       help:"most memory that reading a document may take"`
	MaxPages    int           `koanf:"max_pages"    help:"most pages a document may have"`
	MaxSide     float64       `koanf:"max_side"     help:"longest side a page may have, in points of 1/72 inch"`
	CacheDir    string        `koanf:"cache_dir"    help:"folder for compiled code, 20 MB, that nobody else may write to; empty: the user's cache folder"`
	Temp        string        `koanf:"temp"         help:"folder for documents at work; empty: the system's"`
}

// Defaults are the settings that nobody has changed.
func Defaults() Config {
	d := pdf.Defaults()
	return Config{
		Timeout: d.Timeout, PageTimeout: d.PageTimeout, Memory: service.Size(d.Memory),
		MaxPages: d.MaxPages, MaxSide: d.MaxSide,
	}
}

// Validate reports everything that is wrong with the settings, joined.
func (c *Config) Validate() error {
	var errs []error
	if c.Hands < 0 {
		errs = append(errs, errors.New("pagination.hands must not be negative"))
	}
	if err := c.reader(1).Validate(); err != nil {
		errs = append(errs, fmt.Errorf("pagination: %w", err))
	}
	return errors.Join(errs...)
}

// reader is the part that is about reading PDFs, so many at once.
func (c *Config) reader(hands int) pdf.Config {
	return pdf.Config{
		CacheDir: c.CacheDir, Children: hands, Timeout: c.Timeout, PageTimeout: c.PageTimeout,
		Memory: int64(c.Memory), MaxPages: c.MaxPages, MaxSide: c.MaxSide,
	}
}

// userCache returns the folder that is used when none is set, or nothing where
// this user has none to write to: then every start compiles anew.
func userCache() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	dir = filepath.Join(dir, "reeve")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return ""
	}
	return dir
}
