// Package bus is the conveyor: tasks out to the stages, outcomes back to
// fan-in, on NATS JetStream. It owns the streams, consumers and subjects, and
// what the messages look like. Nothing on it is the truth, which is in
// Postgres: all of it may be lost at any moment, and is then sent again.
//
// The subjects:
//
//	reeve.task.STAGE.PRIORITY.PIPELINE.RUN.ITEM   a task, at most one message each
//	reeve.done.PARTITION.STAGE                    outcomes, up to 100 a message
//	reeve.inputs.STAGE                            requests to fan-in for a task's inputs
//	reeve.cancel.RUN                              broadcast: stop work on the run
//	reeve.wake                                    broadcast: there is something to hand out
package bus

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/reeve-pipeline/reeve/pkg/stage"
)

// Bus is one process's view of the bus. It is safe for concurrent use, and
// what it is asked for needs the streams that [Provision] makes.
type Bus struct {
	nc *nats.Conn
	js jetstream.JetStream

	mu    sync.Mutex
	tasks jetstream.Stream // opened on first use

	reports reporter
}

// ackTimeout is how long the server may take to store a message.
const ackTimeout = 10 * time.Second

// New returns the bus on a connection, which stays the caller's to close.
func New(nc *nats.Conn) (*Bus, error) {
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncTimeout(ackTimeout), jetstream.WithDefaultTimeout(ackTimeout))
	if err != nil {
		return nil, fmt.Errorf("bus: %w", err)
	}
	b := &Bus{nc: nc, js: js}
	b.reports.bus = b
	return b, nil
}

// Ping reports whether the streams can be reached.
func (b *Bus) Ping(ctx context.Context) error {
	for _, name := range []string{TaskStream, DoneStream} {
		if _, err := b.js.Stream(ctx, name); err != nil {
			return fmt.Errorf("stream %s: %w", name, err)
		}
	}
	return nil
}

// Partitions is the number of partitions that outcomes are spread over, as
// provisioned.
func (b *Bus) Partitions(ctx context.Context) (int, error) {
	s, err := b.js.Stream(ctx, DoneStream)
	if err != nil {
		return 0, fmt.Errorf("stream %s: %w", DoneStream, provisionFirst(err))
	}
	n, err := strconv.Atoi(s.CachedInfo().Config.Metadata[metaPartitions])
	if err != nil || n < 1 {
		return 0, fmt.Errorf("stream %s says nothing of its partitions: provision it", DoneStream)
	}
	return n, nil
}

// provisionFirst adds the remedy to an error that says something is missing.
func provisionFirst(err error) error {
	if errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, jetstream.ErrConsumerNotFound) {
		return fmt.Errorf("%w: provision the bus first", err)
	}
	return err
}

// taskStream returns the handle of the task stream. It only names the stream,
// so it outlives a wipe.
func (b *Bus) taskStream(ctx context.Context) (jetstream.Stream, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.tasks == nil {
		s, err := b.js.Stream(ctx, TaskStream)
		if err != nil {
			return nil, fmt.Errorf("stream %s: %w", TaskStream, provisionFirst(err))
		}
		b.tasks = s
	}
	return b.tasks, nil
}

// HasTask reports whether the task is queued or in hand.
func (b *Bus) HasTask(ctx context.Context, ref TaskRef) (bool, error) {
	s, err := b.taskStream(ctx)
	if err != nil {
		return false, err
	}
	_, err = s.GetLastMsgForSubject(ctx, ref.Subject())
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for %s: %w", ref.Subject(), err)
	}
	return true, nil
}

// Subjects is a set of subjects.
type Subjects map[string]uint64

// Has reports whether a task's message is among them.
func (s Subjects) Has(ref TaskRef) bool { return s[ref.Subject()] > 0 }

// TaskSubjects returns the subjects of all tasks of a stage that are queued or
// in hand.
func (b *Bus) TaskSubjects(ctx context.Context, name string) (Subjects, error) {
	s, err := b.taskStream(ctx)
	if err != nil {
		return nil, err
	}
	info, err := s.Info(ctx, jetstream.WithSubjectFilter(stageFilter(name)))
	if err != nil {
		return nil, fmt.Errorf("tasks of stage %s: %w", name, err)
	}
	return info.State.Subjects, nil
}

func stageFilter(name string) string { return "reeve.task." + name + ".>" }

// PurgeRun takes all tasks of a run off the queue, those in hand included:
// what becomes of these is no longer waited for.
func (b *Bus) PurgeRun(ctx context.Context, run int64) error {
	s, err := b.taskStream(ctx)
	if err != nil {
		return err
	}
	if err := s.Purge(ctx, jetstream.WithPurgeSubject(fmt.Sprintf("reeve.task.*.*.*.%d.>", run))); err != nil {
		return fmt.Errorf("purge run %d: %w", run, err)
	}
	return nil
}

// CancelRun takes all tasks of a run off the queue and tells the workers that
// have some in hand to stop. The run should be cancelled in the ledger before.
func (b *Bus) CancelRun(ctx context.Context, run int64) error {
	if err := b.PurgeRun(ctx, run); err != nil {
		return err
	}
	if err := b.nc.Publish(cancelSubject(run), nil); err != nil {
		return fmt.Errorf("cancel run %d: %w", run, err)
	}
	return nil
}

// Wake tells fan-in that there is something new to hand out, such as the first
// task of a run. It is only for speed: fan-in looks by itself now and then.
func (b *Bus) Wake() error {
	if err := b.nc.Publish(wakeSubject, nil); err != nil {
		return fmt.Errorf("wake fan-in: %w", err)
	}
	return nil
}

// OnWake calls woken for every [Bus.Wake] until ctx ends.
func (b *Bus) OnWake(ctx context.Context, woken func()) error {
	sub, err := b.nc.Subscribe(wakeSubject, func(*nats.Msg) { woken() })
	if err != nil {
		return fmt.Errorf("listen for wakes: %w", err)
	}
	<-ctx.Done()
	return sub.Unsubscribe()
}

// ConsumerState is how a stage's queue stands.
type ConsumerState struct {
	// Pending counts the tasks that nobody has in hand.
	Pending uint64
	// InHand counts the tasks that are being worked on.
	InHand int
	// Waiting counts the hands that are free.
	Waiting int
	Paused  bool
}

// ConsumerState returns how a stage's queue stands.
func (b *Bus) ConsumerState(ctx context.Context, name string) (ConsumerState, error) {
	c, err := b.js.Consumer(ctx, TaskStream, name)
	if err != nil {
		return ConsumerState{}, fmt.Errorf("consumer of stage %s: %w", name, provisionFirst(err))
	}
	info := c.CachedInfo()
	return ConsumerState{Pending: info.NumPending, InHand: info.NumAckPending, Waiting: info.NumWaiting, Paused: info.Paused}, nil
}

// Pause stops handing out tasks of a stage until [Bus.Resume]. Those in hand go on.
func (b *Bus) Pause(ctx context.Context, name string) error {
	return b.pause(ctx, name, time.Now().AddDate(100, 0, 0))
}

// Resume hands out tasks of a stage again.
func (b *Bus) Resume(ctx context.Context, name string) error {
	return b.pause(ctx, name, time.Time{})
}

func (b *Bus) pause(ctx context.Context, name string, until time.Time) error {
	if _, err := b.js.PauseConsumer(ctx, TaskStream, name, until); err != nil {
		return fmt.Errorf("pause or resume stage %s: %w", name, provisionFirst(err))
	}
	return nil
}

// Header names of a task's message. They repeat what the payload says, for
// whoever looks with the nats CLI, and let a message be told from an older one
// of the same task without its payload being read.
const (
	headerSchema     = "Reeve-Schema"
	headerRun        = "Reeve-Run"
	headerGeneration = "Reeve-Generation"
	headerTry        = "Reeve-Try"
	headerAttempt    = "Reeve-Attempt"
	// headerTraceparent is lower case, as W3C Trace Context has it.
	headerTraceparent = "traceparent"
)

func taskHeader(t *stage.Task, traceparent string) nats.Header {
	h := nats.Header{
		headerSchema:     {strconv.Itoa(Schema)},
		headerRun:        {strconv.FormatInt(t.Run, 10)},
		headerGeneration: {strconv.Itoa(t.Generation)},
		headerTry:        {strconv.Itoa(t.Try)},
		headerAttempt:    {strconv.Itoa(t.Attempt)},
	}
	if traceparent != "" {
		h[headerTraceparent] = []string{traceparent}
	}
	return h
}

// headerInt reads a number from a header; 0 when there is none.
func headerInt(h nats.Header, name string) int {
	n, _ := strconv.Atoi(h.Get(name))
	return n
}
