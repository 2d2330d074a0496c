package bus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/reeve-pipeline/reeve/pkg/fault"
	"github.com/reeve-pipeline/reeve/pkg/stage"
)

// ErrFull says that a stream has reached its limit. The message was not taken;
// try again when there is room.
var ErrFull = errors.New("stream is full")

// TaskMessage is a task to be queued.
type TaskMessage struct {
	Task     stage.Task
	Priority int // 0 high, 1 normal, 2 low
	// Traceparent, if any, goes along in the message's header.
	Traceparent string
}

// Ref names the task's message.
func (m TaskMessage) Ref() TaskRef {
	return TaskRef{Stage: m.Task.Stage, Priority: m.Priority, Pipeline: m.Task.Pipeline, Run: m.Task.Run, Item: m.Task.Item}
}

const (
	// window is how many messages are on their way to the server at once.
	window = 512
	// maxBatch is how many outcomes travel in one message at most.
	maxBatch = 100
	// spare is what a message's subject, header and envelope may take of the
	// server's limit, in bytes.
	spare = 32 << 10
)

// PublishTasks queues tasks and returns one error for each: nil once it is
// durably queued, which it also is when it was queued already. An older try or
// generation of the same task that still stands in the queue gives way to this
// one; a newer one stays and this one is dropped. Tasks not taken because the
// stream is full have [ErrFull]; those that can never be queued have a
// permanent error.
func (b *Bus) PublishTasks(ctx context.Context, tasks []TaskMessage) []error {
	errs := make([]error, len(tasks))
	futures := make([]jetstream.PubAckFuture, len(tasks))
	settle := func(i int) {
		if futures[i] == nil {
			return
		}
		errs[i] = await(futures[i], ctx.Done())
		if occupied(errs[i]) {
			errs[i] = b.replace(ctx, &tasks[i])
		}
		if errs[i] != nil {
			errs[i] = fmt.Errorf("queue %s: %w", futures[i].Msg().Subject, errs[i])
		}
	}
	for i := range tasks {
		if i >= window {
			settle(i - window)
		}
		msg, err := b.taskMsg(&tasks[i])
		if err == nil {
			futures[i], err = b.js.PublishMsgAsync(msg)
		}
		errs[i] = err
	}
	for i := max(0, len(tasks)-window); i < len(tasks); i++ {
		settle(i)
	}
	return errs
}

func (b *Bus) taskMsg(m *TaskMessage) (*nats.Msg, error) {
	data, err := encodeTask(&m.Task)
	if err != nil {
		return nil, fault.Permanent(fmt.Errorf("task %s/%s of run %d: %w", m.Task.Stage, m.Task.Item, m.Task.Run, err))
	}
	if limit := b.maxPayload(); len(data) > limit {
		return nil, fault.Permanent(fmt.Errorf("task %s/%s of run %d has %d bytes, at most %d fit a message: hand large things on as objects",
			m.Task.Stage, m.Task.Item, m.Task.Run, len(data), limit))
	}
	return &nats.Msg{Subject: m.Ref().Subject(), Data: data, Header: taskHeader(&m.Task, m.Traceparent)}, nil
}

// maxPayload is the most that the data of a message may have, in bytes.
func (b *Bus) maxPayload() int { return int(b.nc.MaxPayload()) - spare }

// replace settles whose message stands on the subject that m is refused for:
// an equal or newer one stays, an older one gives way.
func (b *Bus) replace(ctx context.Context, m *TaskMessage) error {
	s, err := b.taskStream(ctx)
	if err != nil {
		return err
	}
	msg, err := b.taskMsg(m)
	if err != nil {
		return err
	}
	for range 3 { // the queue moves on meanwhile
		var old *jetstream.RawStreamMsg
		old, err = s.GetLastMsgForSubject(ctx, msg.Subject)
		switch {
		case errors.Is(err, jetstream.ErrMsgNotFound):
		case err != nil:
			return err
		case !older(old.Header, &m.Task):
			return nil
		default:
			if err := s.DeleteMsg(ctx, old.Sequence); err != nil && !errors.Is(err, jetstream.ErrMsgDeleteUnsuccessful) {
				return err
			}
		}
		if _, err = b.js.PublishMsg(ctx, msg); !occupied(err) {
			return full(err)
		}
	}
	return err
}

// older reports whether a message is of an earlier try than the task.
func older(h nats.Header, t *stage.Task) bool {
	generation, try := headerInt(h, headerGeneration), headerInt(h, headerTry)
	return generation < t.Generation || generation == t.Generation && try < t.Try
}

// codeStoreFailed is the server's error code for a stream at one of its
// limits, whichever it is.
const codeStoreFailed jetstream.ErrorCode = 10077

// occupied reports whether a message was refused for another on its subject.
// The code is the same for every limit; only the description tells which.
func occupied(err error) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	return ok && api.ErrorCode == codeStoreFailed && strings.Contains(api.Description, "per subject")
}

// full marks the other limits of a stream: bytes and messages.
func full(err error) error {
	api, ok := errors.AsType[*jetstream.APIError](err)
	if ok && api.ErrorCode == codeStoreFailed && strings.HasPrefix(api.Description, "maximum ") {
		return fmt.Errorf("%w: %w", ErrFull, err)
	}
	return err
}

// await waits for the server's word on a message, or until given up.
func await(f jetstream.PubAckFuture, giveUp <-chan struct{}) error {
	select {
	case <-f.Ok():
		return nil
	case err := <-f.Err():
		return full(err)
	case <-giveUp:
		return context.Canceled
	}
}

// Report publishes an outcome and returns nil when it is durable. Outcomes
// that are ready at the same time travel together, and none waits for another:
// while a message is on its way to the server, the next one gathers.
func (b *Bus) Report(ctx context.Context, partition int, o stage.Outcome) error {
	data, err := encodeOutcome(&o)
	if err != nil {
		return fault.Permanent(fmt.Errorf("outcome of %s/%s of run %d: %w", o.Stage, o.Item, o.Run, err))
	}
	if limit := b.maxPayload(); len(data) > limit {
		return fault.Permanent(fmt.Errorf("outcome of %s/%s of run %d has %d bytes, at most %d fit a message: hand large things on as objects",
			o.Stage, o.Item, o.Run, len(data), limit))
	}
	done := b.reports.add(DoneSubject(partition, o.Stage), data)
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// reporter sends what has gathered, one round after the other.
type reporter struct {
	bus *Bus

	mu      sync.Mutex
	waiting []*outcomeOut
	sending bool
}

type outcomeOut struct {
	subject string
	data    []byte
	done    chan error // buffered
}

func (r *reporter) add(subject string, data []byte) <-chan error {
	out := &outcomeOut{subject: subject, data: data, done: make(chan error, 1)}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting = append(r.waiting, out)
	if !r.sending {
		r.sending = true
		go r.send()
	}
	return out.done
}

// send sends rounds until nothing is waiting.
func (r *reporter) send() {
	for {
		r.mu.Lock()
		round := r.waiting
		r.waiting = nil
		if len(round) == 0 {
			r.sending = false
			r.mu.Unlock()
			return
		}
		r.mu.Unlock()

		var sent []func()
		for _, batch := range batches(round, r.bus.maxPayload()) {
			sent = append(sent, r.publish(batch))
		}
		for _, wait := range sent {
			wait()
		}
	}
}

// publish sends one message and returns how to wait for its end.
func (r *reporter) publish(batch []*outcomeOut) (wait func()) {
	var data bytes.Buffer
	data.WriteString(`{"outcomes":[`)
	for i, out := range batch {
		if i > 0 {
			data.WriteByte(',')
		}
		data.Write(out.data)
	}
	data.WriteString(`]}`)
	msg := &nats.Msg{Subject: batch[0].subject, Data: data.Bytes(), Header: nats.Header{headerSchema: {strconv.Itoa(Schema)}}}
	future, err := r.bus.js.PublishMsgAsync(msg)
	return func() {
		if err == nil {
			err = await(future, nil) // no longer than ackTimeout
		}
		for _, out := range batch {
			out.done <- err
		}
	}
}

// batches splits a round into messages: of one subject each, in the order in
// which the outcomes came, within the limits of size and number.
func batches(round []*outcomeOut, maxBytes int) [][]*outcomeOut {
	var all [][]*outcomeOut
	open := map[string]int{} // subject to the index of the batch that takes more
	size := map[string]int{}
	for _, out := range round {
		i, ok := open[out.subject]
		if !ok || len(all[i]) == maxBatch || size[out.subject]+len(out.data) >= maxBytes {
			i = len(all)
			all = append(all, nil)
			open[out.subject], size[out.subject] = i, 0
		}
		all[i] = append(all[i], out)
		size[out.subject] += len(out.data) + 1
	}
	return all
}
