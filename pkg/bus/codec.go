package bus

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/reeve-pipeline/reeve/pkg/fault"
	"github.com/reeve-pipeline/reeve/pkg/stage"
)

// Schema is the version of the messages that this build writes, and the
// newest that it reads.
const Schema = 1

// The messages of proto/reeve/v1/task.proto as they stand on the wire: the
// structs below read and write protojson with the proto's field names. They do
// so without the proto runtime, which would take every spec apart into a tree
// of values and lose integers above 2^53 on the way: here a spec stays the
// bytes it is. The tests hold every struct against its proto message, field by
// field and in both directions.

type wireTask struct {
	Schema      int32     `json:"schema,omitempty"`
	Run         wireInt64 `json:"run,omitempty"`
	Pipeline    string    `json:"pipeline,omitempty"`
	Subject     string    `json:"subject,omitempty"`
	Stage       string    `json:"stage,omitempty"`
	Item        string    `json:"item,omitempty"`
	Parent      string    `json:"parent,omitempty"`
	Generation  int       `json:"generation,omitempty"`
	Try         int       `json:"try,omitempty"`
	Attempt     int       `json:"attempt,omitempty"`
	MaxAttempts int       `json:"max_attempts,omitempty"`
	Settings    object    `json:"settings,omitempty"`
	Spec        object    `json:"spec,omitempty"`
}

type wireOutcome struct {
	Schema        int32              `json:"schema,omitempty"`
	Run           wireInt64          `json:"run,omitempty"`
	Stage         string             `json:"stage,omitempty"`
	Item          string             `json:"item,omitempty"`
	Generation    int                `json:"generation,omitempty"`
	Try           int                `json:"try,omitempty"`
	Status        wireStatus         `json:"status,omitempty"`
	Error         *wireError         `json:"error,omitempty"`
	After         wireDuration       `json:"after,omitempty"`
	ExternalJobID string             `json:"external_job_id,omitempty"`
	Skip          string             `json:"skip,omitempty"`
	Output        object             `json:"output,omitempty"`
	Items         []wireItem         `json:"items,omitempty"`
	Spawned       int                `json:"spawned,omitempty"`
	Artifacts     []wireArtifact     `json:"artifacts,omitempty"`
	Metrics       map[string]float64 `json:"metrics,omitempty"`
	Worker        string             `json:"worker,omitempty"`
	StartedAt     time.Time          `json:"started_at,omitzero"`
	EndedAt       time.Time          `json:"ended_at,omitzero"`
}

type wireError struct {
	Class       string `json:"class,omitempty"`
	Message     string `json:"message,omitempty"`
	Fingerprint string `json:"fingerprint,omitempty"`
}

type wireItem struct {
	Item string `json:"item,omitempty"`
	Spec object `json:"spec,omitempty"`
}

type wireArtifact struct {
	Key    string    `json:"key,omitempty"`
	Size   wireInt64 `json:"size,omitempty"`
	SHA256 string    `json:"sha256,omitempty"`
	ETag   string    `json:"etag,omitempty"`
}

type wireInputsRequest struct {
	Run    wireInt64 `json:"run,omitempty"`
	Stage  string    `json:"stage,omitempty"`
	Item   string    `json:"item,omitempty"`
	Cursor string    `json:"cursor,omitempty"`
}

type wireInputsReply struct {
	Inputs []wireInput `json:"inputs,omitempty"`
	Cursor string      `json:"cursor,omitempty"`
	Error  string      `json:"error,omitempty"`
}

type wireInput struct {
	Item      string         `json:"item,omitempty"`
	Status    string         `json:"status,omitempty"`
	Output    object         `json:"output,omitempty"`
	Artifacts []wireArtifact `json:"artifacts,omitempty"`
}

// wireInt64 is an int64, which protojson writes as a string and reads as either.
type wireInt64 int64

func (n wireInt64) MarshalJSON() ([]byte, error) {
	return strconv.AppendQuote(nil, strconv.FormatInt(int64(n), 10)), nil
}

func (n *wireInt64) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		return nil
	}
	v, err := strconv.ParseInt(string(bytes.Trim(b, `"`)), 10, 64)
	*n = wireInt64(v)
	return err
}

// wireDuration is a google.protobuf.Duration: seconds, as in "1.5s".
type wireDuration time.Duration

func (d wireDuration) MarshalJSON() ([]byte, error) {
	seconds, nanos := time.Duration(d)/time.Second, time.Duration(d)%time.Second
	sign := ""
	if d < 0 {
		sign, seconds, nanos = "-", -seconds, -nanos
	}
	if nanos == 0 {
		return fmt.Appendf(nil, `"%s%ds"`, sign, int64(seconds)), nil
	}
	return fmt.Appendf(nil, `"%s%d.%09ds"`, sign, int64(seconds), int64(nanos)), nil
}

func (d *wireDuration) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		return nil
	}
	v, err := time.ParseDuration(string(bytes.Trim(b, `"`)))
	*d = wireDuration(v)
	return err
}

// wireStatus is reeve.v1.Status, by name.
type wireStatus stage.Status

const statusPrefix = "STATUS_"

func (s wireStatus) MarshalJSON() ([]byte, error) {
	return strconv.AppendQuote(nil, statusPrefix+strings.ToUpper(string(s))), nil
}

func (s *wireStatus) UnmarshalJSON(b []byte) error {
	name, ok := strings.CutPrefix(string(bytes.Trim(b, `"`)), statusPrefix)
	switch status := stage.Status(strings.ToLower(name)); status {
	case stage.StatusWorking, stage.StatusCompleted, stage.StatusFailed, stage.StatusRetry, stage.StatusWaiting:
		if ok {
			*s = wireStatus(status)
			return nil
		}
	}
	return fmt.Errorf("unknown status %s", b)
}

// object is a google.protobuf.Struct: any JSON object, or nothing.
type object json.RawMessage

// nul is how JSON writes the one character that Postgres keeps neither in text
// nor in jsonb.
var nul = []byte(`\u0000`)

func (o object) MarshalJSON() ([]byte, error) {
	b := bytes.TrimLeft(o, " \t\r\n")
	if len(b) == 0 || b[0] != '{' {
		return nil, errors.New("not a JSON object")
	}
	if bytes.Contains(b, nul) {
		return withoutNUL(b)
	}
	return b, nil
}

func (o *object) UnmarshalJSON(b []byte) error {
	switch {
	case string(b) == "null":
		return nil
	case b[0] != '{':
		return errors.New("not a JSON object")
	}
	*o = bytes.Clone(b)
	return nil
}

// withoutNUL replaces NUL in all strings of a JSON text by the replacement character.
func withoutNUL(b []byte) ([]byte, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	return encode(clean(v))
}

func clean(v any) any {
	switch v := v.(type) {
	case string:
		return text(v)
	case []any:
		for i := range v {
			v[i] = clean(v[i])
		}
	case map[string]any:
		for key, value := range v {
			delete(v, key)
			v[text(key)] = clean(value)
		}
	}
	return v
}

// text is a string that Postgres can keep.
func text(s string) string { return strings.ReplaceAll(s, "\x00", "\uFFFD") }

// encode is json.Marshal with < > & as they are, for whoever reads it in the
// nats CLI.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

func encodeTask(t *stage.Task) ([]byte, error) {
	return encode(wireTask{
		Schema: Schema, Run: wireInt64(t.Run), Pipeline: t.Pipeline, Subject: t.Subject, Stage: t.Stage, Item: t.Item,
		Parent: t.Parent, Generation: t.Generation, Try: t.Try, Attempt: t.Attempt, MaxAttempts: t.MaxAttempts,
		Settings: object(t.Settings), Spec: object(t.Spec),
	})
}

func decodeTask(b []byte) (*stage.Task, error) {
	var w wireTask
	if err := json.Unmarshal(b, &w); err != nil {
		return nil, err
	}
	if err := valid(w.Schema, w.Run, w.Stage, w.Item); err != nil {
		return nil, err
	}
	return &stage.Task{
		Run: int64(w.Run), Pipeline: w.Pipeline, Subject: w.Subject, Stage: w.Stage, Item: w.Item, Parent: w.Parent,
		Generation: w.Generation, Try: w.Try, Attempt: w.Attempt, MaxAttempts: w.MaxAttempts,
		Settings: json.RawMessage(w.Settings), Spec: json.RawMessage(w.Spec),
	}, nil
}

// valid refuses what this build cannot know the meaning of.
func valid(schema int32, run wireInt64, stageName, item string) error {
	switch {
	case schema > Schema:
		return fmt.Errorf("schema %d is newer than %d, the newest this build reads: upgrade it", schema, Schema)
	case schema < 1:
		return errors.New("no schema version")
	case run < 1 || stageName == "" || item == "":
		return fmt.Errorf("run %d, stage %q, item %q: all three are needed", run, stageName, item)
	}
	return nil
}

func encodeOutcome(o *stage.Outcome) ([]byte, error) {
	w := wireOutcome{
		Schema: Schema, Run: wireInt64(o.Run), Stage: o.Stage, Item: o.Item, Generation: o.Generation, Try: o.Try,
		Status: wireStatus(o.Status), After: wireDuration(o.After), ExternalJobID: text(o.ExternalJobID), Skip: text(o.Skip),
		Output: object(o.Output), Spawned: o.Spawned, Artifacts: artifactsOut(o.Artifacts), Metrics: o.Metrics,
		Worker: o.Worker, StartedAt: o.StartedAt.UTC(), EndedAt: o.EndedAt.UTC(),
	}
	if o.ErrorClass != "" || o.ErrorMessage != "" {
		w.Error = &wireError{Class: string(o.ErrorClass), Message: text(o.ErrorMessage), Fingerprint: o.Fingerprint}
	}
	for _, item := range o.Items {
		w.Items = append(w.Items, wireItem{Item: item.Item, Spec: object(item.Spec)})
	}
	return encode(w)
}

// decodeOutcomes reads a message of a done subject. Outcomes that cannot be
// read are left out, and the error says why.
func decodeOutcomes(b []byte) ([]stage.Outcome, error) {
	var all struct {
		Outcomes []wireOutcome `json:"outcomes"`
	}
	if err := json.Unmarshal(b, &all); err != nil {
		return decodeEach(b)
	}
	return outcomes(all.Outcomes)
}

// decodeEach reads what can be read of a message that as a whole cannot.
func decodeEach(b []byte) ([]stage.Outcome, error) {
	var all struct {
		Outcomes []json.RawMessage `json:"outcomes"`
	}
	if err := json.Unmarshal(b, &all); err != nil {
		return nil, err
	}
	var good []wireOutcome
	var errs []error
	for i, raw := range all.Outcomes {
		var w wireOutcome
		if err := json.Unmarshal(raw, &w); err != nil {
			errs = append(errs, fmt.Errorf("outcome %d: %w", i, err))
			continue
		}
		good = append(good, w)
	}
	out, err := outcomes(good)
	return out, errors.Join(append(errs, err)...)
}

func outcomes(all []wireOutcome) ([]stage.Outcome, error) {
	out := make([]stage.Outcome, 0, len(all))
	var errs []error
	for _, w := range all {
		err := valid(w.Schema, w.Run, w.Stage, w.Item)
		if err == nil && w.Status == "" {
			err = fmt.Errorf("outcome of %s/%s of run %d has no status", w.Stage, w.Item, w.Run)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		o := stage.Outcome{
			Run: int64(w.Run), Stage: w.Stage, Item: w.Item, Generation: w.Generation, Try: w.Try, Status: stage.Status(w.Status),
			After: time.Duration(w.After), ExternalJobID: w.ExternalJobID, Skip: w.Skip, Output: json.RawMessage(w.Output),
			Spawned: w.Spawned, Artifacts: artifactsIn(w.Artifacts), Metrics: w.Metrics,
			Worker: w.Worker, StartedAt: w.StartedAt, EndedAt: w.EndedAt,
		}
		if w.Error != nil {
			o.ErrorClass, o.ErrorMessage, o.Fingerprint = fault.Class(w.Error.Class), w.Error.Message, w.Error.Fingerprint
		}
		for _, item := range w.Items {
			o.Items = append(o.Items, stage.SpawnedItem{Item: item.Item, Spec: json.RawMessage(item.Spec)})
		}
		out = append(out, o)
	}
	return out, errors.Join(errs...)
}

func artifactsOut(in []stage.Artifact) []wireArtifact {
	var out []wireArtifact
	for _, a := range in {
		out = append(out, wireArtifact{Key: a.Key, Size: wireInt64(a.Size), SHA256: a.SHA256, ETag: a.ETag})
	}
	return out
}

func artifactsIn(in []wireArtifact) []stage.Artifact {
	var out []stage.Artifact
	for _, a := range in {
		out = append(out, stage.Artifact{Key: a.Key, Size: int64(a.Size), SHA256: a.SHA256, ETag: a.ETag})
	}
	return out
}
