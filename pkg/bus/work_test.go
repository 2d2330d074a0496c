package bus_test

import (
	"context"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/reeve-pipeline/reeve/pkg/bus"
	"github.com/reeve-pipeline/reeve/pkg/natstest"
	"github.com/reeve-pipeline/reeve/pkg/service"
	"github.com/reeve-pipeline/reeve/pkg/stage"
)

// A stage's service is one call in its wire.
func TestWireStage(t *testing.T) {
	t.Parallel()
	srv := natstest.NewServer(t)
	nc := srv.Connect()
	env, err := service.New("fetch", service.Options{
		Values: map[string]any{"nats.url": srv.URL(), "http.addr": "127.0.0.1:0"}, Log: zap.NewNop(),
	})
	if err != nil {
		t.Fatal(err)
	}
	done := handler(func(context.Context, *stage.Task) (stage.Result, error) { return stage.Result{}, nil })
	if _, err := bus.WireStage(env, "fetch", done, 0); err == nil || !strings.Contains(err.Error(), "provision the bus first") {
		t.Errorf("before it is provisioned: got %v, want the remedy", err)
	}
	provision(t, nc, bus.Options{})
	if _, err := bus.WireStage(env, "nonsense", done, 0); err == nil {
		t.Error("an unknown stage was wired")
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- service.Run(ctx, env, func(context.Context, *service.Env) (service.Runner, error) {
			return bus.WireStage(env, "fetch", done, 2)
		})
	}()
	b := onConn(t, nc)
	publish(t, b, tasks(20)...)
	once(t, collect(t, b, 20))
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	families, err := env.Metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var counted uint64
	for _, f := range families {
		if f.GetName() == "pipeline_task_duration_seconds" {
			counted = f.GetMetric()[0].GetHistogram().GetSampleCount()
		}
	}
	if counted != 20 {
		t.Errorf("metrics count %d tasks, want 20", counted)
	}
}
