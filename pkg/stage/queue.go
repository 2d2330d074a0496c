package stage

import (
	"context"
	"iter"
	"time"
)

// Queue is where tasks come from and where word of them goes. Package bus has
// the one on JetStream. Its methods are called from several goroutines at once.
type Queue interface {
	// Next waits for one task. It returns the error of ctx when that ends; any
	// other error means that the queue is gone for good.
	Next(ctx context.Context) (Delivery, error)
	// Report returns nil when the outcome is durable. Outcomes reported one
	// after the other stand on the bus in that order. A permanent error means
	// that this one never can, for it is too large.
	Report(ctx context.Context, o Outcome) error
	// Inputs reads what a task reads besides its spec.
	Inputs(ctx context.Context, task *Task) iter.Seq2[Input, error]
	// Watch calls cancelled when the run is cancelled, until forget is called.
	Watch(run int64, cancelled func()) (forget func())
}

// Delivery is one task in hand. It stays in hand for the queue's lease, and
// for another from each call of Working; then it is handed out again.
type Delivery interface {
	// Task reads the message. When it cannot be read, the error says why and
	// the task is what is known all the same: nil if not even which one it is.
	Task() (*Task, error)
	// Queued is when the message was put on the queue.
	Queued() time.Time
	// Deliveries counts how often the message was handed out, this time included.
	Deliveries() int
	// Working says that the task is still being worked on.
	Working() error
	// Done takes the task off the queue.
	Done() error
	// Return gives the task back, to be handed out again after a delay.
	Return(after time.Duration) error
	// Drop takes a message off the queue that nobody can work on.
	Drop(reason string) error
}
