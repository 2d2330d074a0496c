package bus

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/reeve-pipeline/reeve/pkg/natstest"
	"github.com/reeve-pipeline/reeve/pkg/stage"
)

// Outcomes are kept for a week, but not at the price of those to come: a
// stream that fills up forgets what fan-in has acknowledged, and nothing else.
func TestOutcomes_makesRoom(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	b, err := New(natstest.New(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Provision(ctx, b.js, Options{DoneBytes: 64 << 10, Partitions: 2}); err != nil {
		t.Fatal(err)
	}
	report := func(partition int) error {
		return b.Report(ctx, partition, stage.Outcome{
			Run: 1, Stage: "fetch", Item: "a", Status: stage.StatusCompleted,
			Output: json.RawMessage(`{"x":"` + strings.Repeat("x", 4<<10) + `"}`),
		})
	}
	if err := report(1); err != nil {
		t.Fatal(err)
	}
	taken := [2]int{0, 1}
	for err == nil {
		if err = report(0); err == nil {
			taken[0]++
		}
	}
	if !errors.Is(err, ErrFull) {
		t.Fatalf("got %v, want %v", err, ErrFull)
	}
	ackAll := func(partition int) {
		t.Helper()
		r, err := b.Outcomes(ctx, partition, zap.NewNop())
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		for taken[partition] > 0 {
			batch, err := r.Next(ctx)
			if err != nil {
				t.Fatal(err)
			}
			taken[partition] -= len(batch.Outcomes)
			r.trimmed = time.Now().Add(-2 * trimEvery) // it is time to look
			if err := batch.Ack(); err != nil {
				t.Fatal(err)
			}
		}
	}
	ackAll(0)
	if err := report(0); !errors.Is(err, ErrFull) {
		t.Errorf("got %v, want %v while the other partition has not acknowledged", err, ErrFull)
	}
	ackAll(1)
	for deadline := time.Now().Add(10 * time.Second); report(0) != nil; {
		if time.Now().After(deadline) {
			t.Fatal("no room was made")
		}
		if err := b.trimDone(ctx); err != nil { // the last acknowledgement may only just have arrived
			t.Fatal(err)
		}
	}
}

// A stream that is full with what has been acknowledged does not wait for
// another outcome, which cannot come, to make room for it.
func TestOutcomes_makesRoomWhenNothingComes(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	b, err := New(natstest.New(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Provision(ctx, b.js, Options{DoneBytes: 64 << 10}); err != nil {
		t.Fatal(err)
	}
	report := func() error {
		return b.Report(ctx, 0, stage.Outcome{
			Run: 1, Stage: "fetch", Item: "a", Status: stage.StatusCompleted, Output: json.RawMessage(`{"x":"` + strings.Repeat("x", 4<<10) + `"}`),
		})
	}
	n := 0
	for err = report(); err == nil; err = report() {
		n++
	}
	if !errors.Is(err, ErrFull) {
		t.Fatalf("got %v, want %v", err, ErrFull)
	}
	r, err := b.Outcomes(ctx, 0, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for n > 0 {
		batch, err := r.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		n -= len(batch.Outcomes)
		if err := batch.Ack(); err != nil {
			t.Fatal(err)
		}
	}
	r.trimmed, r.idle = time.Now().Add(-2*trimEvery), 200*time.Millisecond // which also leaves the acknowledgements time to arrive
	came := make(chan error, 1)
	go func() {
		_, err := r.Next(ctx)
		came <- err
	}()
	for deadline := time.Now().Add(10 * time.Second); report() != nil; {
		if time.Now().After(deadline) {
			t.Fatal("no room was made")
		}
	}
	if err := <-came; err != nil {
		t.Error(err)
	}
}

// A batch is one transaction's worth, however large the outcomes are.
func TestOutcomes_batchesOfBoundedSize(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	b, err := New(natstest.New(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Provision(ctx, b.js, Options{}); err != nil {
		t.Fatal(err)
	}
	const n, size = 20, 900 << 10
	for range n {
		if err := b.Report(ctx, 0, stage.Outcome{
			Run: 1, Stage: "fetch", Item: "a", Status: stage.StatusWorking, Output: json.RawMessage(`{"x":"` + strings.Repeat("x", size) + `"}`),
		}); err != nil {
			t.Fatal(err)
		}
	}
	r, err := b.Outcomes(ctx, 0, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for deadline := time.Now().Add(10 * time.Second); len(r.messages) < n; {
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d messages are here", len(r.messages), n)
		}
	}
	batch, err := r.Next(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if got := len(batch.Outcomes); got < 2 || got > batchBytes/size+1 {
		t.Errorf("a batch has %d outcomes of %d bytes", got, size)
	}
}
