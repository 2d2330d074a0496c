package bus

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"time"

	"go.uber.org/zap"

	"github.com/reeve-pipeline/reeve/pkg/pipeline"
	"github.com/reeve-pipeline/reeve/pkg/service"
	"github.com/reeve-pipeline/reeve/pkg/stage"
	"github.com/reeve-pipeline/reeve/pkg/telemetry"
)

// WireStage connects a handler to the queue of its stage: what the wire of
// every stage ends with. hands is the number of tasks worked on at once; 0
// means what the stage's definition says.
func WireStage(env *service.Env, stageName string, h stage.Handler, hands int) (service.Runner, error) {
	s, ok := pipeline.StageNamed(stageName)
	if !ok {
		return nil, fmt.Errorf("no pipeline has a stage %q", stageName)
	}
	if hands == 0 {
		hands = s.Concurrency
	}
	nc, err := env.NATS()
	if err != nil {
		return nil, err
	}
	b, err := New(nc)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(env.Work(), ackTimeout)
	defer cancel()
	log := env.Log.With(zap.String("stage", stageName))
	q, err := b.Queue(ctx, stageName, log)
	if err != nil {
		return nil, err
	}
	env.OnClose(func(context.Context) error { q.Close(); return nil })
	env.Ready("consumer "+stageName, func(ctx context.Context) error {
		_, err := b.ConsumerState(ctx, stageName)
		return err
	})
	metrics := telemetry.NewWorker(env.Metrics)
	return func(ctx context.Context) error {
		return stage.Run(ctx, env.Work(), q, h, stage.Config{
			Stage: s, Hands: hands, Lease: q.Lease(), Worker: worker(), Log: env.Log, Observe: observe(metrics, stageName),
		})
	}, nil
}

func observe(m *telemetry.Worker, stageName string) func(time.Duration) func(stage.Attempt) {
	return func(queued time.Duration) func(stage.Attempt) {
		m.QueueWait.WithLabelValues(stageName).Observe(queued.Seconds())
		m.TasksInHand.WithLabelValues(stageName).Inc()
		return func(a stage.Attempt) {
			m.TasksInHand.WithLabelValues(stageName).Dec()
			m.TaskSeconds.WithLabelValues(stageName, cmp.Or(string(a.Status), "given_back")).Observe(a.Took.Seconds())
		}
	}
}

// worker names this process.
func worker() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s/%d", host, os.Getpid())
}
