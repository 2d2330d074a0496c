package bus_test

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/reeve-pipeline/reeve/pkg/bus"
	"github.com/reeve-pipeline/reeve/pkg/natstest"
	"github.com/reeve-pipeline/reeve/pkg/pipeline"
)

func TestProvision(t *testing.T) {
	t.Parallel()
	nc := natstest.New(t)
	js := jetStream(t, nc)

	dry, err := bus.Provision(t.Context(), js, bus.Options{DryRun: true})
	if err != nil {
		t.Fatal(err)
	}
	if want := 3 + len(pipeline.Stages()) + 1; len(dry) != want {
		t.Errorf("a dry run would make %d changes, want %d: %v", len(dry), want, dry)
	}
	if _, err := js.Stream(t.Context(), bus.TaskStream); !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Errorf("after a dry run: got %v, want no stream", err)
	}
	if did := provision(t, nc, bus.Options{}); len(did) != len(dry) {
		t.Errorf("made %d changes, want the %d foretold: %v", len(did), len(dry), did)
	}
	if again := provision(t, nc, bus.Options{}); len(again) != 0 {
		t.Errorf("a second time changed %v", again)
	}
	b := onConn(t, nc)
	if err := b.Pause(t.Context(), "fetch"); err != nil {
		t.Fatal(err)
	}
	stages := pipeline.Stages()
	stages[0].MaxInFlight = 7
	did := provision(t, nc, bus.Options{Stages: stages, TaskBytes: 2 << 30, Partitions: 2})
	var got []string
	for _, c := range did {
		got = append(got, c.String())
	}
	want := []string{
		"update stream REEVE_TASKS: max_bytes: 1073741824 -> 2147483648",
		"update stream REEVE_DONE: metadata",
		"update consumer REEVE_TASKS/" + stages[0].Name + ": max_ack_pending: 256 -> 7",
		"create consumer REEVE_DONE/fanin-1",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("changed\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if !state(t, b).Paused {
		t.Error("an update has resumed a paused stage")
	}
	if n, err := b.Partitions(t.Context()); n != 2 || err != nil {
		t.Errorf("%d partitions, error %v; want 2", n, err)
	}
	if did := provision(t, nc, bus.Options{Stages: stages, TaskBytes: 2 << 30}); len(did) != 2 {
		t.Errorf("back to one partition: got %v, want the consumer deleted and the metadata updated", did)
	}
}

func TestProvision_byManyAtOnce(t *testing.T) {
	t.Parallel()
	nc := natstest.New(t)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			if _, err := bus.Provision(t.Context(), jetStream(t, nc), bus.Options{}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if did := provision(t, nc, bus.Options{}); len(did) != 0 {
		t.Errorf("left to do: %v", did)
	}
}

func TestProvision_refuses(t *testing.T) {
	t.Parallel()
	ours := map[string]string{"app": "reeve"}
	for _, tt := range []struct {
		name  string
		there jetstream.StreamConfig
		says  string
	}{
		{
			"another retention",
			jetstream.StreamConfig{Name: bus.TaskStream, Subjects: []string{"reeve.task.>"}, Metadata: ours},
			"retention is Limits and must be WorkQueue",
		},
		{
			"another storage",
			jetstream.StreamConfig{Name: bus.TaskStream, Subjects: []string{"reeve.task.>"}, Retention: jetstream.WorkQueuePolicy, Storage: jetstream.MemoryStorage, Metadata: ours},
			"storage is Memory and must be File",
		},
		{
			"somebody else's stream",
			jetstream.StreamConfig{Name: bus.TaskStream, Subjects: []string{"other.>"}},
			"not Reeve's",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			js := jetStream(t, natstest.New(t))
			if _, err := js.CreateStream(t.Context(), tt.there); err != nil {
				t.Fatal(err)
			}
			_, err := bus.Provision(t.Context(), js, bus.Options{})
			if !errors.Is(err, bus.ErrRefused) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("got %v, want a refusal that says %q", err, tt.says)
			}
		})
	}
}

func TestProvision_keepsPartitionsWithOutcomes(t *testing.T) {
	t.Parallel()
	nc := natstest.New(t)
	provision(t, nc, bus.Options{Partitions: 2})
	b := onConn(t, nc)
	if err := b.Report(t.Context(), 1, completed("a")); err != nil {
		t.Fatal(err)
	}
	if _, err := bus.Provision(t.Context(), jetStream(t, nc), bus.Options{}); !errors.Is(err, bus.ErrRefused) {
		t.Errorf("got %v, want a refusal", err)
	}
}
