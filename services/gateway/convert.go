package gateway

import (
	"encoding/json"
	"time"

	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/reeve-pipeline/reeve/pkg/ledger"
	"github.com/reeve-pipeline/reeve/pkg/stage"
	reevev1 "github.com/reeve-pipeline/reeve/proto/reeve/v1"
)

func siteOf(s ledger.Site) *reevev1.Site {
	return &reevev1.Site{
		Subdomain: s.Subdomain, Name: s.Name, State: s.State, Country: s.Country, Kind: s.Kind, Source: s.Source,
		StartYear: int32(s.StartYear), Lat: s.Lat, Lng: s.Lng, Extra: structOf(s.Extra),
		Pages: s.Pages, Documents: s.Documents, CurrentStage: s.CurrentStage, LastRun: s.LastRun, LastRunStatus: s.LastRunStatus,
		UpdatedAt: timeOf(&s.UpdatedAt), CreatedAt: timeOf(&s.CreatedAt),
	}
}

var priorityNames = map[ledger.Priority]string{ledger.High: "high", ledger.Normal: "normal", ledger.Low: "low"}

func runOf(r ledger.Run) *reevev1.Run {
	return &reevev1.Run{
		Run: r.Run, Pipeline: r.Pipeline, Version: int32(r.Version), Subject: r.Subject, Status: r.Status,
		Priority: priorityNames[r.Priority], Trigger: r.Trigger, Settings: structOf(r.Settings),
		StartedAt: timeOf(&r.StartedAt), UpdatedAt: timeOf(&r.UpdatedAt), EndedAt: timeOf(r.EndedAt), Note: r.Note,
		ErrorStage: r.ErrorStage, ErrorClass: r.ErrorClass, ErrorMessage: r.ErrorMessage, ErrorAt: timeOf(r.ErrorAt),
		Stages: each(r.Stages, progressOf),
	}
}

func progressOf(s ledger.StageProgress) *reevev1.StageProgress {
	return &reevev1.StageProgress{
		Stage: s.Stage, Total: s.Total, Completed: s.Completed, Failed: s.Failed, Cancelled: s.Cancelled, Skipped: s.Skipped,
		Dispatched: s.Dispatched, Sealed: s.Sealed, Closed: s.Closed, Generation: int32(s.Generation),
		OpenedAt: timeOf(&s.OpenedAt), UpdatedAt: timeOf(&s.UpdatedAt), ClosedAt: timeOf(s.ClosedAt),
	}
}

func summaryOf(d ledger.DocumentSummary) *reevev1.DocumentSummary {
	return &reevev1.DocumentSummary{
		Found: d.Found, Done: d.Done, Partial: d.Partial, Failed: d.Failed, Duplicates: d.Duplicates,
		Unchanged: d.Unchanged, Pending: d.Pending, Pages: d.Pages,
	}
}

func taskOf(t ledger.Task) *reevev1.TaskRow {
	return &reevev1.TaskRow{
		Run: t.Run, Stage: t.Stage, Item: t.Item, Parent: t.Parent, Status: t.Status, Generation: int32(t.Generation),
		Attempts: int32(t.Attempts), Tries: int32(t.Tries), Error: errorOf(t.ErrorClass, t.ErrorMessage, t.Fingerprint),
		NotBefore: timeOf(t.NotBefore), UpdatedAt: timeOf(&t.UpdatedAt), Worker: t.Worker,
		Artifacts: each(t.Artifacts, artifactOf), Spec: structOf(t.Spec), Output: structOf(t.Output),
	}
}

func artifactOf(a stage.Artifact) *reevev1.Artifact {
	return &reevev1.Artifact{Key: a.Key, Size: a.Size, Sha256: a.SHA256, Etag: a.ETag}
}

func documentOf(d ledger.Document) *reevev1.Document {
	out := &reevev1.Document{
		Subdomain: d.Subdomain, DocumentId: d.ID, Kind: d.Kind, Meeting: d.Meeting, Date: d.Date, Source: d.Source,
		Status: d.Status, Sha256: d.SHA256, Size: d.Size, Version: int32(d.Version), DuplicateOf: d.DuplicateOf,
		Error: errorOf(d.ErrorClass, d.ErrorMessage, ""), UpdatedAt: timeOf(&d.UpdatedAt),
	}
	if p := d.Pages; p != nil {
		out.Pages, out.PagesNative, out.PagesOcr = int32(p.Total), int32(p.Native), int32(p.OCR)
		out.PagesImage, out.PagesBlank, out.PagesFailed = int32(p.Image), int32(p.Blank), int32(p.Failed)
	}
	return out
}

// errorOf is nil when there is no error.
func errorOf(class, message, fingerprint string) *reevev1.Error {
	if class == "" && message == "" {
		return nil
	}
	return &reevev1.Error{Class: class, Message: message, Fingerprint: fingerprint}
}

// timeOf is nil for a time that is not set.
func timeOf(t *time.Time) *timestamppb.Timestamp {
	if t == nil || t.IsZero() {
		return nil
	}
	return timestamppb.New(*t)
}

// structOf is nil when there is no JSON object.
func structOf(raw json.RawMessage) *structpb.Struct {
	s := new(structpb.Struct)
	if len(raw) == 0 || s.UnmarshalJSON(raw) != nil {
		return nil
	}
	return s
}
