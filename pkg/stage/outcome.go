package stage

import (
	"encoding/json"
	"time"

	"github.com/reeve-pipeline/reeve/pkg/fault"
)

// Status says how a task ended, or that it has not ended yet.
type Status string

const (
	// StatusWorking: still at work. A sign of life, or a part of the spawned items.
	StatusWorking Status = "working"
	// StatusCompleted: the outputs exist and are durable.
	StatusCompleted Status = "completed"
	// StatusFailed: it will not be tried again.
	StatusFailed Status = "failed"
	// StatusRetry: hand it out again, not before [Outcome.After] from now.
	StatusRetry Status = "retry"
	// StatusWaiting: given to an external service, until [Outcome.After] from
	// now at the latest.
	StatusWaiting Status = "waiting"
)

// Outcome is what a worker reports of one try of a task.
type Outcome struct {
	Run        int64
	Stage      string
	Item       string
	Generation int
	Try        int
	Status     Status

	// ErrorClass, ErrorMessage and Fingerprint say why; set when Status is
	// StatusFailed or StatusRetry. The message is one line.
	ErrorClass   fault.Class
	ErrorMessage string
	// Fingerprint is the same for errors of the same kind, whatever the item.
	Fingerprint string
	// After is the least wait of a retry, or the deadline of a waiting task.
	After time.Duration
	// ExternalJobID is the external service's name for the work of a waiting task.
	ExternalJobID string
	// Skip, on a completed task, says why the item goes no further.
	Skip string

	// Output is handed on to the next stage, a JSON object or empty.
	Output json.RawMessage
	// Items are children found so far; working outcomes carry them in parts.
	Items []SpawnedItem
	// Spawned, on a completed task, counts the different items of all parts.
	Spawned   int
	Artifacts []Artifact
	// Metrics are measurements by name, with the unit in the name.
	Metrics map[string]float64

	// Worker is the host and process that worked the task: host/pid.
	Worker string
	// StartedAt and EndedAt are when the handler ran, by the worker's clock;
	// zero when it did not.
	StartedAt, EndedAt time.Time
}

// SpawnedItem is a child item as it travels. Spec is a JSON object.
type SpawnedItem struct {
	Item string
	Spec json.RawMessage
}
