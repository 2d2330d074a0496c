package deploy

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/reeve-pipeline/reeve/pkg/artifact"
	"github.com/reeve-pipeline/reeve/pkg/bus"
	"github.com/reeve-pipeline/reeve/pkg/egress"
	"github.com/reeve-pipeline/reeve/pkg/service"
)

// Wire connects the stage to its store, its hooks and its queue.
func Wire(ctx context.Context, env *service.Env) (service.Runner, error) {
	c, s3 := Defaults(), artifact.Defaults()
	if err := env.Load(Name, &c); err != nil {
		return nil, err
	}
	if err := env.Load("s3", &s3); err != nil {
		return nil, err
	}
	store, err := artifact.Open(ctx, s3)
	if err != nil {
		return nil, err
	}
	env.Ready("s3", store.Check)
	hooks, err := c.hooks(ctx, s3)
	if err != nil {
		return nil, err
	}
	if c.Dev {
		env.Log.Info("dev mode: nothing is deployed; set deploy.dev to false for that")
	}
	return bus.WireStage(env, Name, New(store, c.Dev, c.Temp, hooks...), c.Hands)
}

// hooks opens those that are set, in the order in which they run.
func (c *Config) hooks(ctx context.Context, s3 artifact.Config) ([]Hook, error) {
	if c.Dev {
		return nil, nil
	}
	var hooks []Hook
	if c.Bucket != "" {
		if s3.Bucket = c.Bucket; c.BucketEndpoint != "" {
			s3.Endpoint, s3.AccessKey, s3.SecretKey, s3.Region = c.BucketEndpoint, c.BucketAccessKey, c.BucketSecretKey, c.BucketRegion
		}
		target, err := artifact.Open(ctx, s3)
		if err != nil {
			return nil, fmt.Errorf("deploy.bucket %s: %w", c.Bucket, err)
		}
		hooks = append(hooks, Bucket{Target: target, Prefix: c.BucketPrefix})
	}
	if len(c.Command) > 0 {
		// The program gets our environment without our settings and their secrets.
		environ := slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "REEVE_") }) //nolint:forbidigo // not read, handed on
		hooks = append(hooks, Command{Argv: c.Command, Environ: environ, Timeout: c.CommandTimeout})
	}
	if c.Webhook != "" {
		secrets, err := Secrets(c.WebhookSecret.Reveal())
		if err != nil {
			return nil, err
		}
		policy, err := egress.Allow(c.Allow...)
		if err != nil {
			return nil, err
		}
		client := egress.Client(policy)
		client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		hooks = append(hooks, Webhook{URL: c.Webhook, Secrets: secrets, Client: client, Timeout: c.WebhookTimeout, Now: time.Now})
	}
	return hooks, nil
}
