package deploy

import (
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/reeve-pipeline/reeve/pkg/egress"
	"github.com/reeve-pipeline/reeve/pkg/service"
)

// Config says where sites are deployed to. Start from [Defaults].
type Config struct {
	Hands int    `koanf:"hands" help:"sites in hand at once in this process; 0: the stage's default"`
	Dev   bool   `koanf:"dev"   help:"run no hook"`
	Temp  string `koanf:"temp"  help:"folder for copies under way; empty: the system's"`

	Bucket          string         `koanf:"bucket"            help:"hook: bucket to copy meetings.db and manifest.json to"`
	BucketPrefix    string         `koanf:"bucket_prefix"     help:"prefix of its keys"`
	BucketEndpoint  string         `koanf:"bucket_endpoint"   help:"host:port or URL of its S3 API; empty: that of the s3 settings, with their keys"`
	BucketAccessKey string         `koanf:"bucket_access_key" help:"access key for that endpoint"`
	BucketSecretKey service.Secret `koanf:"bucket_secret_key" help:"secret key that belongs to it"`
	BucketRegion    string         `koanf:"bucket_region"     help:"region of the bucket"`

	Command        []string      `koanf:"command"         help:"hook: program and arguments, with {site} {database} {manifest} {version}; no shell"`
	CommandTimeout time.Duration `koanf:"command_timeout" help:"kill it after this long"`

	Webhook        string         `koanf:"webhook"         help:"hook: URL to tell by a signed POST"`
	WebhookSecret  service.Secret `koanf:"webhook_secret"  help:"whsec_ and base64; several, separated by spaces, while changing it"`
	WebhookTimeout time.Duration  `koanf:"webhook_timeout" help:"give the webhook up after this long"`
	Allow          []string       `koanf:"allow"           help:"hosts, host:port, addresses or CIDR blocks the webhook may reach although they are private or on other ports than 80 and 443"`
}

// Defaults run no hook.
func Defaults() Config {
	return Config{Dev: true, CommandTimeout: 5 * time.Minute, WebhookTimeout: 30 * time.Second, BucketRegion: "us-east-1"}
}

// Validate reports everything that is wrong with the settings, joined.
func (c *Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("deploy."+format, args...)) }
	if !c.Dev && c.Bucket == "" && len(c.Command) == 0 && c.Webhook == "" {
		bad("dev is false, but there is no hook: set deploy.bucket, deploy.command or deploy.webhook")
	}
	if c.Hands < 0 || c.CommandTimeout <= 0 || c.WebhookTimeout <= 0 {
		bad("command_timeout and webhook_timeout must be positive, hands not negative")
	}
	if c.Webhook != "" {
		if u, err := url.Parse(c.Webhook); err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
			bad("webhook: %q is no http or https URL", c.Webhook)
		}
		if _, err := Secrets(c.WebhookSecret.Reveal()); err != nil {
			bad("webhook_secret: %w", err)
		}
	}
	if _, err := egress.Allow(c.Allow...); err != nil {
		bad("allow: %w", err)
	}
	return errors.Join(errs...)
}
