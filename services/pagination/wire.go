package pagination

import (
	"cmp"
	"context"

	"github.com/reeve-pipeline/reeve/pkg/artifact"
	"github.com/reeve-pipeline/reeve/pkg/bus"
	"github.com/reeve-pipeline/reeve/pkg/pdf"
	"github.com/reeve-pipeline/reeve/pkg/pipeline"
	"github.com/reeve-pipeline/reeve/pkg/service"
)

// Wire connects the stage to its readers, its store and its queue. The main of
// the process must have called [pdf.ChildMain].
func Wire(ctx context.Context, env *service.Env) (service.Runner, error) {
	c := Defaults()
	if err := env.Load(Name, &c); err != nil {
		return nil, err
	}
	c.CacheDir = cmp.Or(c.CacheDir, userCache())
	store, err := artifact.Wire(ctx, env)
	if err != nil {
		return nil, err
	}
	s, _ := pipeline.StageNamed(Name)
	hands := cmp.Or(c.Hands, s.Concurrency)
	readers, err := pdf.Open(ctx, c.reader(hands))
	if err != nil {
		return nil, err
	}
	env.OnClose(func(context.Context) error { readers.Close(); return nil })
	return bus.WireStage(env, Name, New(store, readers, c.Temp), hands)
}
