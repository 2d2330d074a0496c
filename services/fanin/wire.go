package fanin

import (
	"context"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/reeve-pipeline/reeve/pkg/bus"
	"github.com/reeve-pipeline/reeve/pkg/ledger"
	"github.com/reeve-pipeline/reeve/pkg/service"
	"github.com/reeve-pipeline/reeve/pkg/stage"
	"github.com/reeve-pipeline/reeve/pkg/telemetry"
)

// Wire connects fan-in: one recorder for each partition of outcomes, the
// dispatcher, and the answers to workers' requests for inputs.
func Wire(ctx context.Context, env *service.Env) (service.Runner, error) {
	var c Config
	if err := env.Load(Name, &c); err != nil {
		return nil, err
	}
	var pg ledger.Config
	if err := env.Load("postgres", &pg); err != nil {
		return nil, err
	}
	nc, err := env.NATS()
	if err != nil {
		return nil, err
	}
	books, err := ledger.Open(ctx, pg.DSN.Reveal())
	if err != nil {
		return nil, err
	}
	env.OnClose(func(context.Context) error { books.Close(); return nil })
	b, err := bus.New(nc)
	if err != nil {
		return nil, err
	}
	partitions, err := b.Partitions(ctx)
	if err != nil {
		return nil, err
	}
	if len(c.Partitions) == 0 {
		for i := range partitions {
			c.Partitions = append(c.Partitions, i)
		}
	}
	env.Ready("postgres", books.Ping)
	env.Ready("streams", b.Ping)

	metrics := telemetry.NewFanIn(env.Metrics)
	mine := func(run int64) bool { return slices.Contains(c.Partitions, bus.Partition(run, partitions)) }
	dispatcher := NewDispatcher(books, b, env.Log, metrics, mine)
	recorder := NewRecorder(books, env.Log, metrics, dispatcher.Recorded)
	var sources []*bus.Outcomes
	for _, p := range c.Partitions {
		source, err := b.Outcomes(ctx, p, env.Log)
		if err != nil {
			return nil, err
		}
		env.OnClose(func(context.Context) error { source.Close(); return nil })
		sources = append(sources, source)
	}
	return func(ctx context.Context) error {
		g, ctx := errgroup.WithContext(ctx)
		for _, source := range sources {
			g.Go(func() error { return recorder.Run(ctx, env.Work(), source) })
		}
		g.Go(func() error { return dispatcher.Run(ctx) })
		g.Go(func() error { return b.OnWake(ctx, dispatcher.Look) })
		g.Go(func() error {
			return b.ServeInputs(ctx, Name, func(ctx context.Context, r bus.InputsRequest, limit int) ([]stage.Input, string, error) {
				return books.Inputs(ctx, r.Run, r.Stage, r.Item, r.Cursor, limit)
			})
		})
		return g.Wait()
	}, nil
}
