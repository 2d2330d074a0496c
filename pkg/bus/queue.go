package bus

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/reeve-pipeline/reeve/pkg/stage"
)

// Queue is the queue of one stage as its workers see it: the [stage.Queue] on
// JetStream.
type Queue struct {
	bus        *Bus
	log        *zap.Logger
	stage      string
	partitions int
	lease      time.Duration

	mu      sync.Mutex
	idle    []*puller
	watched map[int64][]*func()
	cancels *nats.Subscription
}

// Queue opens the queue of a stage. [Queue.Close] ends it.
func (b *Bus) Queue(ctx context.Context, stageName string, log *zap.Logger) (*Queue, error) {
	c, err := b.js.Consumer(ctx, TaskStream, stageName)
	if err != nil {
		return nil, fmt.Errorf("consumer of stage %s: %w", stageName, provisionFirst(err))
	}
	partitions, err := b.Partitions(ctx)
	if err != nil {
		return nil, err
	}
	q := &Queue{
		bus: b, log: log, stage: stageName, partitions: partitions, lease: c.CachedInfo().Config.AckWait,
		watched: map[int64][]*func(){},
	}
	if q.cancels, err = b.nc.Subscribe("reeve.cancel.*", q.cancelled); err != nil {
		return nil, fmt.Errorf("listen for cancelled runs: %w", err)
	}
	return q, nil
}

// Lease is how long a task stays in hand without a sign of life.
func (q *Queue) Lease() time.Duration { return q.lease }

// Close ends the queue when nobody is in [Queue.Next] any more.
func (q *Queue) Close() {
	_ = q.cancels.Unsubscribe() // only fails when it is over anyway
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, p := range q.idle {
		p.stop()
	}
	q.idle = nil
}

// Next waits for one task. Only one is asked for, when it is asked for.
func (q *Queue) Next(ctx context.Context) (stage.Delivery, error) {
	p := q.puller()
	msg, err := p.next(ctx)
	if err != nil {
		p.stop()
		return nil, err
	}
	q.mu.Lock()
	q.idle = append(q.idle, p)
	q.mu.Unlock()
	return &delivery{msg: msg}, nil
}

func (q *Queue) puller() *puller {
	q.mu.Lock()
	defer q.mu.Unlock()
	if n := len(q.idle); n > 0 {
		p := q.idle[n-1]
		q.idle = q.idle[:n-1]
		return p
	}
	return &puller{bus: q.bus, log: q.log, stream: TaskStream, consumer: q.stage, ahead: 1}
}

// Report publishes an outcome to its run's partition.
func (q *Queue) Report(ctx context.Context, o stage.Outcome) error {
	return q.bus.Report(ctx, Partition(o.Run, q.partitions), o)
}

// Inputs asks fan-in, see [Bus.Inputs].
func (q *Queue) Inputs(ctx context.Context, task *stage.Task) iter.Seq2[stage.Input, error] {
	return q.bus.Inputs(ctx, InputsRequest{Run: task.Run, Stage: task.Stage, Item: task.Item})
}

// Watch calls cancelled when [Bus.CancelRun] is called for the run.
func (q *Queue) Watch(run int64, cancelled func()) (forget func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.watched[run] = append(q.watched[run], &cancelled)
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.watched[run] = slices.DeleteFunc(q.watched[run], func(f *func()) bool { return f == &cancelled })
		if len(q.watched[run]) == 0 {
			delete(q.watched, run)
		}
	}
}

func (q *Queue) cancelled(msg *nats.Msg) {
	run, err := strconv.ParseInt(strings.TrimPrefix(msg.Subject, "reeve.cancel."), 10, 64)
	if err != nil {
		return
	}
	q.mu.Lock()
	watchers := slices.Clone(q.watched[run])
	q.mu.Unlock()
	for _, f := range watchers {
		(*f)()
	}
}

// delivery is the [stage.Delivery] of a JetStream message.
type delivery struct{ msg jetstream.Msg }

// Task reads the message. Where the payload cannot be read, the subject and
// the headers still tell which task it is.
func (d *delivery) Task() (*stage.Task, error) {
	task, err := decodeTask(d.msg.Data())
	if err == nil {
		return task, nil
	}
	err = fmt.Errorf("message on %s: %w", d.msg.Subject(), err)
	ref, whole, perr := ParseTaskSubject(d.msg.Subject())
	if perr != nil || !whole {
		return nil, err
	}
	h := d.msg.Headers()
	return &stage.Task{
		Run: ref.Run, Pipeline: ref.Pipeline, Stage: ref.Stage, Item: ref.Item,
		Generation: headerInt(h, headerGeneration), Try: headerInt(h, headerTry), Attempt: headerInt(h, headerAttempt),
	}, err
}

// Queued is when the server stored the message.
func (d *delivery) Queued() time.Time {
	meta, err := d.msg.Metadata()
	if err != nil {
		return time.Now()
	}
	return meta.Timestamp
}

// Deliveries is 1 for a message handed out for the first time.
func (d *delivery) Deliveries() int {
	meta, err := d.msg.Metadata()
	if err != nil {
		return 1
	}
	return int(meta.NumDelivered)
}

func (d *delivery) Working() error                   { return d.msg.InProgress() }
func (d *delivery) Done() error                      { return d.msg.Ack() }
func (d *delivery) Return(after time.Duration) error { return d.msg.NakWithDelay(after) }
func (d *delivery) Drop(reason string) error         { return d.msg.TermWithReason(reason) }
