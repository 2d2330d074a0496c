// Package stage is what a stage's author sees of the engine: the [Handler] to
// write, the [Task] it is given and the [Result] it gives back. The loop that
// works tasks off a queue is Run; the policy of retries is the pure function
// judge. Nothing here knows Postgres, and a handler never sees NATS.
package stage

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"

	"github.com/reeve-pipeline/reeve/pkg/fault"
)

// Handler does the work of one stage.
//
// Handle is called from several goroutines at once, and may be called again
// for a task it has already finished: delivery is at least once, so everything
// it writes must be safe to write twice. It derives its object keys from the
// task alone and never from the clock, the host or the attempt.
//
// A nil error means that the outputs exist and are durable. Any other error
// means try again later, unless package fault marks it otherwise: permanent
// (never again), rate limited (not before), waiting (an external service has
// it). Handle returns soon after ctx ends; an interrupted task goes back to
// the queue and no attempt is spent on it. Handle neither acknowledges,
// publishes, logs its own error nor touches the ledger.
type Handler interface {
	Handle(ctx context.Context, task *Task) (Result, error)
}

// Task is one item at one stage in one generation.
type Task struct {
	Run      int64
	Pipeline string
	// Subject is what the run is about: a site's subdomain, a job's key.
	Subject string
	Stage   string
	Item    string
	// Parent is the item that spawned this one, or empty.
	Parent     string
	Generation int
	// Try counts hand-outs from 1, Attempt only those that count against
	// MaxAttempts.
	Try, Attempt, MaxAttempts int
	// Settings are the run's settings, a JSON object.
	Settings json.RawMessage
	// Spec is what the stage before handed on, a JSON object.
	Spec json.RawMessage

	// Spawn hands on child items while the task is still at work. When it
	// returns nil they are durable. Spawning the same item again does nothing.
	Spawn func(ctx context.Context, items ...Item) error
	// Inputs reads what the stage reads besides its spec, page by page: the
	// joined children or the documents of the subject. An error ends it.
	Inputs func(ctx context.Context) iter.Seq2[Input, error]
}

// Item is a child to spawn. Spec is marshalled as a JSON object.
type Item struct {
	Item string
	Spec any
}

// Input is one item that a task reads besides its spec.
type Input struct {
	Item string
	// Status is how a joined task ended (completed, failed, cancelled), or a
	// document's status.
	Status string
	// Output is what the joined task handed on, or the document's row.
	Output    json.RawMessage
	Artifacts []Artifact
}

// Artifact is an object in the store. It is committed by the row that carries it.
type Artifact struct {
	Key    string `json:"key"`
	Size   int64  `json:"size"`   // bytes
	SHA256 string `json:"sha256"` // hex
	ETag   string `json:"etag,omitempty"`
}

// Result is what a handler made of a task.
type Result struct {
	// Output is handed on as the next task's spec; marshalled as a JSON object.
	Output any
	// Skip, when not empty, says why the item goes no further although nothing
	// failed: "unchanged", "duplicate".
	Skip string
	// Artifacts lists the objects written.
	Artifacts []Artifact
	// Metrics are measurements by name, with the unit in the name.
	Metrics map[string]float64
}

// Spec decodes the task's spec, and its settings where the type has fields for
// them. The error is permanent: the same bytes never decode.
func Spec[T any](task *Task) (T, error) {
	var v T
	if len(task.Spec) == 0 {
		return v, fault.Permanentf("task %s/%s of run %d has no spec", task.Stage, task.Item, task.Run)
	}
	if err := json.Unmarshal(task.Spec, &v); err != nil {
		return v, fault.Permanent(fmt.Errorf("spec of task %s/%s of run %d: %w", task.Stage, task.Item, task.Run, err))
	}
	return v, nil
}

// Settings decodes the run's settings. The error is permanent.
func Settings[T any](task *Task) (T, error) {
	var v T
	if len(task.Settings) == 0 {
		return v, nil
	}
	if err := json.Unmarshal(task.Settings, &v); err != nil {
		return v, fault.Permanent(fmt.Errorf("settings of run %d: %w", task.Run, err))
	}
	return v, nil
}
