package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"go.uber.org/zap"

	"github.com/reeve-pipeline/reeve/pkg/artifact"
	"github.com/reeve-pipeline/reeve/pkg/bus"
	"github.com/reeve-pipeline/reeve/pkg/ledger"
	"github.com/reeve-pipeline/reeve/pkg/pipeline"
	"github.com/reeve-pipeline/reeve/pkg/service"
	reevev1 "github.com/reeve-pipeline/reeve/proto/reeve/v1"
)

// Parts are what only a process that holds all of Reeve can give the gateway.
type Parts struct {
	Sweep Sweep
	Info  *reevev1.InfoResponse
}

// Wire connects a gateway that runs in a process of its own.
func Wire(ctx context.Context, env *service.Env) (service.Runner, error) {
	return WireWith(Parts{})(ctx, env)
}

// WireWith connects a gateway with what its process can give it.
func WireWith(parts Parts) service.Wire {
	return func(ctx context.Context, env *service.Env) (service.Runner, error) {
		c, db := Defaults(), ledger.Config{}
		if err := errors.Join(env.Load("gateway", &c), env.Load("postgres", &db)); err != nil {
			return nil, err
		}
		store, err := artifact.Wire(ctx, env)
		if err != nil {
			return nil, err
		}
		nc, err := env.NATS()
		if err != nil {
			return nil, err
		}
		b, err := bus.New(nc)
		if err != nil {
			return nil, err
		}
		books, err := ledger.Open(ctx, db.DSN.Reveal())
		if err != nil {
			return nil, err
		}
		env.OnClose(func(context.Context) error { books.Close(); return nil })
		env.Ready("postgres", books.Ping)

		dir := c.Cache
		if dir == "" {
			if dir, err = os.MkdirTemp("", "reeve-gateway-"); err != nil {
				return nil, err
			}
			env.OnClose(func(context.Context) error { return os.RemoveAll(dir) })
		}
		search, err := NewSearch(store, filepath.Join(dir, "search"))
		if err != nil {
			return nil, err
		}
		env.OnClose(func(context.Context) error { return search.Close() })

		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", c.Addr)
		if err != nil {
			return nil, fmt.Errorf("api: %w; free the port or set gateway.addr", err)
		}
		if parts.Info == nil {
			parts.Info = &reevev1.InfoResponse{Version: env.Version, ApiUrl: "http://" + listener.Addr().String()}
		}
		g := &Gateway{
			Ledger: books, Queues: queues{b}, Search: search, Sweep: parts.Sweep, Info: parts.Info, Log: env.Log, Poll: c.Poll,
		}
		return func(ctx context.Context) error {
			env.Log.Info("api", zap.Stringer("addr", listener.Addr()))
			return serve(ctx, env.Work(), listener, g.Handler(c.Token.Reveal(), ctx.Done()))
		}, nil
	}
}

// queues is the bus as the gateway wants it.
type queues struct{ bus *bus.Bus }

func (q queues) State(ctx context.Context) (map[string]QueueState, error) {
	all := map[string]QueueState{}
	for _, s := range pipeline.Stages() {
		c, err := q.bus.ConsumerState(ctx, s.Name)
		if err != nil {
			return nil, err
		}
		all[s.Name] = QueueState{Queued: int64(c.Pending), InHand: int64(c.InHand), Waiting: int64(c.Waiting)}
	}
	return all, nil
}

func (q queues) Cancel(ctx context.Context, run int64) error { return q.bus.CancelRun(ctx, run) }

func (q queues) Wake() error { return q.bus.Wake() }

func (q queues) Pause(ctx context.Context, stage string, paused bool) error {
	if paused {
		return q.bus.Pause(ctx, stage)
	}
	return q.bus.Resume(ctx, stage)
}
