package lineextraction

import (
	"context"

	"github.com/reeve-pipeline/reeve/pkg/artifact"
	"github.com/reeve-pipeline/reeve/pkg/bus"
	"github.com/reeve-pipeline/reeve/pkg/pages"
	"github.com/reeve-pipeline/reeve/pkg/service"
)

// Wire connects the stage to its store and its queue.
func Wire(ctx context.Context, env *service.Env) (service.Runner, error) {
	c := Defaults()
	if err := env.Load(Name, &c); err != nil {
		return nil, err
	}
	store, err := artifact.Wire(ctx, env)
	if err != nil {
		return nil, err
	}
	return bus.WireStage(env, Name, New(store, pages.NewReader(store, c.limits(), int64(c.Memory))), c.Hands)
}
