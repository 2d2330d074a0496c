package fetch

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/reeve-pipeline/reeve/pkg/egress"
	"github.com/reeve-pipeline/reeve/pkg/service"
)

// Config is how the stage behaves. Start from [Defaults].
type Config struct {
	Hands     int           `koanf:"hands"      help:"documents in hand at once in this process; 0: the stage's default"`
	UserAgent string        `koanf:"user_agent" help:"who we say we are; should name a way to reach you"`
	Folders   []string      `koanf:"folders"    help:"folders that sites may be read from, with all below them; / allows any"`
	Allow     []string      `koanf:"allow"      help:"hosts, host:port, addresses or CIDR blocks to reach although they are private or on other ports than 80 and 443"`
	Robots    bool          `koanf:"robots"     help:"keep to robots.txt"`
	PerHost   int           `koanf:"per_host"   help:"requests to one host at once"`
	Interval  time.Duration `koanf:"interval"   help:"least time between two requests to one host"`
	Stall     time.Duration `koanf:"stall"      help:"give a request up when nothing came for this long"`
	Timeout   time.Duration `koanf:"timeout"    help:"give a request up after this long"`
	MaxSize   service.Size  `koanf:"max_size"   help:"largest document taken"`
	MaxPage   service.Size  `koanf:"max_page"   help:"largest page of links read"`
	MaxPages  int           `koanf:"max_pages"  help:"pages of links followed by their next link; 1 follows none"`
	Temp      string        `koanf:"temp"       help:"folder for downloads under way; empty: the system's"`
}

// Defaults are the settings of a service among others: it reads no folders.
func Defaults() Config {
	return Config{
		UserAgent: "reeve/1 (+https://github.com/reeve-pipeline/reeve)",
		Robots:    true,
		PerHost:   2,
		Interval:  200 * time.Millisecond,
		Stall:     time.Minute,
		Timeout:   15 * time.Minute,
		MaxSize:   512 << 20,
		MaxPage:   16 << 20,
		MaxPages:  200,
	}
}

// Validate reports everything that is wrong with the settings, joined.
func (c *Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("fetch."+format, args...)) }
	for _, f := range c.Folders {
		if !filepath.IsAbs(f) {
			bad("folders: %q is no absolute path", f)
		}
	}
	if _, err := egress.Allow(c.Allow...); err != nil {
		bad("allow: %w", err)
	}
	if c.UserAgent == "" {
		bad("user_agent must not be empty")
	}
	if c.Hands < 0 || c.PerHost < 1 || c.Interval < 0 || c.Stall <= 0 || c.Timeout <= 0 || c.MaxSize <= 0 || c.MaxPage <= 0 || c.MaxPages < 1 {
		bad("per_host, stall, timeout, max_size, max_page and max_pages must be positive, hands and interval not negative")
	}
	return errors.Join(errs...)
}
