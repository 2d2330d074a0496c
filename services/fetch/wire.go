package fetch

import (
	"context"

	"github.com/reeve-pipeline/reeve/pkg/artifact"
	"github.com/reeve-pipeline/reeve/pkg/bus"
	"github.com/reeve-pipeline/reeve/pkg/service"
)

// Wire connects the stage to its store and its queue.
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
	f, err := New(store, c)
	if err != nil {
		return nil, err
	}
	return bus.WireStage(env, Name, f, c.Hands)
}
