package bus_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/reeve-pipeline/reeve/pkg/bus"
	"github.com/reeve-pipeline/reeve/pkg/natstest"
	"github.com/reeve-pipeline/reeve/pkg/pipeline"
	"github.com/reeve-pipeline/reeve/pkg/stage"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fetch is the stage that most tests use.
var fetch = pipeline.Stage{
	Name: "fetch", Service: "fetch", Timeout: time.Minute, MaxAttempts: 3,
	Backoff: time.Millisecond, BackoffMax: time.Millisecond, Concurrency: 1, MaxInFlight: 16, Silence: time.Minute,
}

// options keep a task in hand for so short a time that tests can wait for it.
func options() bus.Options {
	return bus.Options{Stages: []pipeline.Stage{fetch}, AckWait: time.Second}
}

// open returns a bus on a provisioned server of the test's own.
func open(t *testing.T) (*bus.Bus, *nats.Conn) {
	t.Helper()
	nc := natstest.New(t)
	provision(t, nc, options())
	return onConn(t, nc), nc
}

func onConn(t *testing.T, nc *nats.Conn) *bus.Bus {
	t.Helper()
	b, err := bus.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func provision(t *testing.T, nc *nats.Conn, o bus.Options) []bus.Change {
	t.Helper()
	changes, err := bus.Provision(t.Context(), jetStream(t, nc), o)
	if err != nil {
		t.Fatal(err)
	}
	return changes
}

// reprovision provisions a server that has only just come up again.
func reprovision(t *testing.T, nc *nats.Conn) {
	t.Helper()
	js := jetStream(t, nc)
	eventually(t, "the bus is provisioned again", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := bus.Provision(ctx, js, options())
		return err == nil
	})
}

func jetStream(t *testing.T, nc *nats.Conn) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

func task(item string) bus.TaskMessage {
	return bus.TaskMessage{Priority: 1, Task: stage.Task{
		Run: 1, Pipeline: "civic", Subject: "alameda", Stage: "fetch", Item: item, Try: 1, Attempt: 1, MaxAttempts: 3,
	}}
}

func tasks(n int) []bus.TaskMessage {
	var all []bus.TaskMessage
	for i := range n {
		all = append(all, task(fmt.Sprintf("item-%d", i)))
	}
	return all
}

func publish(t *testing.T, b *bus.Bus, tasks ...bus.TaskMessage) {
	t.Helper()
	for _, err := range b.PublishTasks(t.Context(), tasks) {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// eventually waits for a condition, at most ten seconds.
func eventually(t *testing.T, what string, met func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !met() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("never: %s", what)
		}
	}
}

func state(t *testing.T, b *bus.Bus) bus.ConsumerState {
	t.Helper()
	s, err := b.ConsumerState(t.Context(), "fetch")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// empty reports whether no task is queued or in hand.
func empty(t *testing.T, b *bus.Bus) bool {
	s := state(t, b)
	return s.Pending == 0 && s.InHand == 0
}

var quiet = zap.NewNop()
