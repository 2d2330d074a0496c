package ledger

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/reeve-pipeline/reeve/pkg/civic"
	"github.com/reeve-pipeline/reeve/pkg/stage"
)

// Sentinels that callers branch on.
var (
	// ErrNotFound: there is no such site, run or stage.
	ErrNotFound = errors.New("not found")
	// ErrConflict: a run of the same subject is going on, or the run is not in
	// the state that the operation needs.
	ErrConflict = errors.New("conflict")
)

// Priority orders runs: all tasks of a higher priority are handed out first.
type Priority int16

// The three priorities.
const (
	High   Priority = 0
	Normal Priority = 1
	Low    Priority = 2
)

// NewRun asks for a run.
type NewRun struct {
	Pipeline string
	Subject  string
	Priority Priority
	Trigger  string
	// Settings override the pipeline's; a key it does not have is an error.
	Settings map[string]any
	// Items are the first items; none means one, the subject itself.
	Items []stage.Item
	// Supersede ends a run of the same subject that goes on.
	Supersede bool
}

// Run is one passage of a subject through a pipeline.
type Run struct {
	Run                    int64
	Pipeline               string
	Version                int
	Subject                string
	Status                 string
	Priority               Priority
	Trigger                string
	Settings               json.RawMessage
	StartedAt, UpdatedAt   time.Time
	EndedAt                *time.Time
	Note                   string
	ErrorStage, ErrorClass string
	ErrorMessage           string
	ErrorAt                *time.Time
	// Stages in the pipeline's order; only filled by Run.
	Stages []StageProgress
}

// StageProgress counts one stage of one run.
type StageProgress struct {
	Stage                                                    string
	Generation                                               int
	Total, Completed, Failed, Cancelled, Skipped, Dispatched int64
	Sealed, Closed                                           bool
	OpenedAt, UpdatedAt                                      time.Time
	ClosedAt                                                 *time.Time
}

// DocumentSummary adds up the documents that a run has seen.
type DocumentSummary struct {
	Found, Done, Partial, Failed, Duplicates, Unchanged, Pending int64
	// Pages by where their text comes from.
	Pages map[string]int64
}

// TaskFilter selects tasks. Zero fields select all.
type TaskFilter struct {
	Run    int64
	Stage  string
	Status string
	Limit  int
}

// Task is a row of tasks.
type Task struct {
	Run                                   int64
	Stage, Item, Parent, Status           string
	Generation, Attempts, Tries           int
	ErrorClass, ErrorMessage, Fingerprint string
	NotBefore                             *time.Time
	UpdatedAt                             time.Time
	Worker                                string
	Artifacts                             []stage.Artifact
	Spec, Output                          json.RawMessage
}

// Site is a row of the registry with where its last run stands.
type Site struct {
	civic.Site
	Pages, Documents     int64
	CurrentStage         string
	LastRun              int64
	LastRunStatus        string
	UpdatedAt, CreatedAt time.Time
}

// DocumentFilter selects documents. Zero fields select all.
type DocumentFilter struct {
	Subdomain string
	Status    string
	// Run selects the documents that this run has seen.
	Run   int64
	Limit int
}

// Document is a row of documents.
type Document struct {
	Subdomain string
	civic.Document
	ErrorMessage string
	UpdatedAt    time.Time
}

// StageState is a stage of this deployment, over all runs.
type StageState struct {
	Stage  string
	Paused bool
	// Backlog is what is planned and not yet handed to the bus.
	Backlog int64
}
