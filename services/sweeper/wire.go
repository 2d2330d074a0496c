package sweeper

import (
	"context"
	"encoding/json"
	"os"

	"github.com/reeve-pipeline/reeve/pkg/bus"
	"github.com/reeve-pipeline/reeve/pkg/ledger"
	"github.com/reeve-pipeline/reeve/pkg/service"
	"github.com/reeve-pipeline/reeve/pkg/telemetry"
)

// Open connects a sweeper to the ledger and the bus.
func Open(ctx context.Context, env *service.Env) (*Sweeper, error) {
	c := Defaults()
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
	env.Ready("postgres", books.Ping)
	env.Ready("streams", b.Ping)
	return New(books, b, env.Log, telemetry.NewSweeper(env.Metrics), c), nil
}

// Wire connects a sweeper that sweeps at intervals, or once if so set.
func Wire(ctx context.Context, env *service.Env) (service.Runner, error) {
	s, err := Open(ctx, env)
	if err != nil {
		return nil, err
	}
	if !s.config.Once {
		return s.Run, nil
	}
	return func(ctx context.Context) error {
		r, err := s.Sweep(ctx, s.config.DryRun)
		if err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(map[string]any{
			"findings": r.Findings, "looked_at": r.LookedAt, "seconds": r.Took.Seconds(), "led": r.Led,
		})
	}, nil
}
