package artifact

import (
	"context"
	"errors"
	"strings"

	"github.com/reeve-pipeline/reeve/pkg/service"
)

// Config says where the store is.
type Config struct {
	Endpoint  string         `koanf:"endpoint" help:"host:port or URL of the S3 API"`
	Bucket    string         `koanf:"bucket" help:"bucket that holds the objects; created if missing"`
	AccessKey string         `koanf:"access_key" help:"access key; empty: AWS_ACCESS_KEY_ID or the machine's role"`
	SecretKey service.Secret `koanf:"secret_key" help:"secret key that belongs to the access key"`
	Region    string         `koanf:"region" help:"region of the bucket"`
	Secure    bool           `koanf:"secure" help:"speak TLS; a URL as the endpoint decides by itself"`
}

// Defaults are the settings of a store on this machine.
func Defaults() Config {
	return Config{Endpoint: "127.0.0.1:8482", Bucket: "reeve", Region: "us-east-1"}
}

// Validate reports everything that is wrong with the settings, joined.
func (c Config) Validate() error {
	var errs []error
	if host, _ := c.host(); host == "" || strings.ContainsAny(host, "/ ") {
		errs = append(errs, errors.New("s3.endpoint must be host:port or http(s)://host:port"))
	}
	if c.Bucket == "" {
		errs = append(errs, errors.New("s3.bucket must be set"))
	}
	if (c.AccessKey == "") != (c.SecretKey == "") {
		errs = append(errs, errors.New("s3.access_key and s3.secret_key must be set together"))
	}
	return errors.Join(errs...)
}

// host returns the endpoint as host:port, and whether to speak TLS.
func (c Config) host() (host string, secure bool) {
	if h, ok := strings.CutPrefix(c.Endpoint, "http://"); ok {
		return strings.TrimSuffix(h, "/"), false
	}
	if h, ok := strings.CutPrefix(c.Endpoint, "https://"); ok {
		return strings.TrimSuffix(h, "/"), true
	}
	return c.Endpoint, c.Secure
}

// Wire opens the store that the process's s3 settings name, and makes the
// process ready only while it can be reached.
func Wire(ctx context.Context, env *service.Env) (*Store, error) {
	c := Defaults()
	if err := env.Load("s3", &c); err != nil {
		return nil, err
	}
	s, err := Open(ctx, c)
	if err != nil {
		return nil, err
	}
	env.Ready("s3", s.Check)
	return s, nil
}
