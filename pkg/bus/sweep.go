package bus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/reeve-pipeline/reeve/pkg/pipeline"
)

// TasksCreated is when the stream of tasks was made. A task handed out before
// has no message any more.
func (b *Bus) TasksCreated(ctx context.Context) (time.Time, error) {
	s, err := b.js.Stream(ctx, TaskStream)
	if err != nil {
		return time.Time{}, fmt.Errorf("stream %s: %w", TaskStream, provisionFirst(err))
	}
	return s.CachedInfo().Created, nil
}

// settleWait is the time between two looks at how far fan-in is.
const settleWait = 20 * time.Millisecond

// OutcomesSettled waits until every outcome that is in the stream now has been
// acknowledged, that is, counted. It returns the error of ctx when that ends
// first.
func (b *Bus) OutcomesSettled(ctx context.Context) error {
	s, err := b.js.Stream(ctx, DoneStream)
	if err != nil {
		return fmt.Errorf("stream %s: %w", DoneStream, provisionFirst(err))
	}
	last := s.CachedInfo().State.LastSeq
	for {
		done, err := b.counted(ctx, s)
		if err != nil {
			return err
		}
		if done >= last {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(settleWait):
		}
	}
}

// Repair makes streams and consumers again when some are missing: with the
// partitions that there are, or, when everything is gone, with the defaults.
func (b *Bus) Repair(ctx context.Context) error {
	if b.complete(ctx) {
		return nil
	}
	var o Options
	n, err := b.Partitions(ctx)
	switch {
	case err == nil:
		o.Partitions = n
	case !errors.Is(err, jetstream.ErrStreamNotFound):
		return err
	}
	_, err = Provision(ctx, b.js, o)
	if errors.Is(err, nats.ErrNoResponders) {
		return fmt.Errorf("jetstream does not answer: %w", err)
	}
	return err
}

// complete reports whether all streams and all stages' consumers are there.
func (b *Bus) complete(ctx context.Context) bool {
	if b.Ping(ctx) != nil {
		return false
	}
	for _, s := range pipeline.Stages() {
		if _, err := b.js.Consumer(ctx, TaskStream, s.Name); err != nil {
			return false
		}
	}
	n, err := b.Partitions(ctx)
	if err != nil {
		return false
	}
	for i := range n {
		if _, err := b.js.Consumer(ctx, DoneStream, fanIn(i)); err != nil {
			return false
		}
	}
	return true
}
