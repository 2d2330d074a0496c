package bus

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/reeve-pipeline/reeve/pkg/fault"
	"github.com/reeve-pipeline/reeve/pkg/stage"
	reevev1 "github.com/reeve-pipeline/reeve/proto/reeve/v1"
)

var aTask = &stage.Task{
	Run: 42, Pipeline: "civic", Subject: "alameda", Stage: "pagination", Item: "2024-05-02-city-council-minutes", Parent: "alameda",
	Generation: 2, Try: 3, Attempt: 2, MaxAttempts: 3,
	Settings: json.RawMessage(`{"force":false,"ocr_mode":"skip"}`),
	Spec:     json.RawMessage(`{"document_id":"2024-05-02-city-council-minutes","pages":{"total":12},"title":"Minutes <final> & signed"}`),
}

var began = time.Date(2025, 1, 2, 3, 4, 5, 678e6, time.UTC)

var someOutcomes = []stage.Outcome{
	{
		Run: 42, Stage: "fetch", Item: "alameda", Try: 1, Status: stage.StatusWorking,
		Items:  []stage.SpawnedItem{{Item: "a", Spec: json.RawMessage(`{"document_id":"a"}`)}, {Item: "b"}},
		Worker: "host/1", StartedAt: began,
	},
	{
		Run: 42, Stage: "fetch", Item: "alameda", Try: 1, Status: stage.StatusCompleted, Skip: "unchanged",
		Output: json.RawMessage(`{"n":12345678901234567890,"s":"x"}`), Spawned: 2,
		Artifacts: []stage.Artifact{{Key: "sites/alameda/a.pdf", Size: 1<<53 + 1, SHA256: "00ff", ETag: "e"}},
		Metrics:   map[string]float64{"download_seconds": 1.5}, Worker: "host/1",
		StartedAt: began, EndedAt: time.Date(2025, 1, 2, 3, 4, 6, 0, time.UTC),
	},
	{
		Run: 42, Stage: "fetch", Item: "c", Generation: 1, Try: 2, Status: stage.StatusRetry, After: 1500 * time.Millisecond,
		ErrorClass: fault.ClassRateLimited, ErrorMessage: "429 Too Many Requests", Fingerprint: "f",
	},
	{Run: 42, Stage: "scrape", Item: "d", Try: 1, Status: stage.StatusWaiting, After: time.Hour, ExternalJobID: "j-1"},
	{
		Run: 42, Stage: "fetch", Item: "e", Try: 5, Status: stage.StatusFailed,
		ErrorClass: fault.ClassPermanent, ErrorMessage: "not a PDF", Fingerprint: "g",
	},
}

// Messages of every version that was ever shipped decode for ever.
func TestGolden(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"v1"} {
		task, err := decodeTask(golden(t, version, "task.json"))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(aTask, task); diff != "" {
			t.Errorf("%s task (-want +got):\n%s", version, diff)
		}
		outcomes, err := decodeOutcomes(golden(t, version, "outcomes.json"))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(someOutcomes, outcomes, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s outcomes (-want +got):\n%s", version, diff)
		}
	}
}

func golden(t testing.TB, version, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", version, name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// What is written is protojson of the proto's messages: the proto runtime
// reads it, knows every field, and what it writes in turn is read back equal.
func TestCodec_isProtojson(t *testing.T) {
	t.Parallel()
	data, err := encodeTask(aTask)
	if err != nil {
		t.Fatal(err)
	}
	again := reencode(t, data, &reevev1.Task{})
	task, err := decodeTask(again)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(aTask, task, sameJSON); diff != "" {
		t.Errorf("task (-want +got):\n%s", diff)
	}
	for _, want := range someOutcomes {
		data, err := encodeOutcome(&want)
		if err != nil {
			t.Fatal(err)
		}
		again := reencode(t, data, &reevev1.Outcome{})
		got, err := decodeOutcomes([]byte(`{"outcomes":[` + string(again) + `]}`))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got[0], sameJSON, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("outcome (-want +got):\n%s", diff)
		}
	}
	for _, m := range []struct {
		wire  any
		proto proto.Message
	}{
		{wireInputsRequest{Run: 1, Stage: "s", Item: "i", Cursor: "c"}, &reevev1.InputsRequest{Run: 1, Stage: "s", Item: "i", Cursor: "c"}},
		{
			wireInputsReply{Cursor: "c", Error: "e", Inputs: []wireInput{{Item: "i", Status: "done", Artifacts: []wireArtifact{{Key: "k", Size: 3}}}}},
			&reevev1.InputsReply{Cursor: "c", Error: "e", Inputs: []*reevev1.Input{{Item: "i", Status: "done", Artifacts: []*reevev1.Artifact{{Key: "k", Size: 3}}}}},
		},
	} {
		data, err := encode(m.wire)
		if err != nil {
			t.Fatal(err)
		}
		got := m.proto.ProtoReflect().New().Interface()
		if err := protojson.Unmarshal(data, got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(m.proto, got, protocmp.Transform()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

// sameJSON compares JSON by value; the proto runtime knows no integers above 2^53.
var sameJSON = cmp.FilterValues(func(x, y json.RawMessage) bool { return len(x) > 0 && len(y) > 0 },
	cmp.Transformer("json", func(raw json.RawMessage) any {
		var v any
		_ = json.Unmarshal(raw, &v)
		return v
	}))

// reencode reads data with the proto runtime, which refuses unknown fields, and
// writes it again.
func reencode(t *testing.T, data []byte, m proto.Message) []byte {
	t.Helper()
	if err := protojson.Unmarshal(data, m); err != nil {
		t.Fatalf("%s: %v", data, err)
	}
	again, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return again
}

// Every field of a proto message is a field here and the other way round, with
// the same JSON name.
func TestCodec_hasAllFields(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		wire  any
		proto proto.Message
	}{
		{wireTask{}, &reevev1.Task{}},
		{wireOutcome{}, &reevev1.Outcome{}},
		{wireError{}, &reevev1.Error{}},
		{wireItem{}, &reevev1.Item{}},
		{wireArtifact{}, &reevev1.Artifact{}},
		{wireInputsRequest{}, &reevev1.InputsRequest{}},
		{wireInputsReply{}, &reevev1.InputsReply{}},
		{wireInput{}, &reevev1.Input{}},
	} {
		var want, got []string
		fields := tt.proto.ProtoReflect().Descriptor().Fields()
		for i := range fields.Len() {
			want = append(want, string(fields.Get(i).Name()))
		}
		typ := reflect.TypeOf(tt.wire)
		for field := range typ.Fields() {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			got = append(got, name)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%T (-proto +wire):\n%s", tt.wire, diff)
		}
	}
	statuses := reevev1.Status(0).Descriptor().Values()
	for i := 1; i < statuses.Len(); i++ {
		var s wireStatus
		name := string(statuses.Get(i).Name())
		if err := s.UnmarshalJSON([]byte(`"` + name + `"`)); err != nil {
			t.Error(err)
		}
		if b, _ := s.MarshalJSON(); string(b) != `"`+name+`"` {
			t.Errorf("%s is written as %s", name, b)
		}
	}
}

func TestDecodeTask_refuses(t *testing.T) {
	t.Parallel()
	for name, data := range map[string]string{
		"no JSON":                  `schema: 1`,
		"nothing":                  ``,
		"a list":                   `[]`,
		"a newer schema":           `{"schema":2,"run":"1","stage":"s","item":"i"}`,
		"no schema":                `{"run":"1","stage":"s","item":"i"}`,
		"no run":                   `{"schema":1,"stage":"s","item":"i"}`,
		"no item":                  `{"schema":1,"run":"1","stage":"s"}`,
		"a run that is not":        `{"schema":1,"run":"x","stage":"s","item":"i"}`,
		"a spec that is no object": `{"schema":1,"run":"1","stage":"s","item":"i","spec":[1]}`,
	} {
		if task, err := decodeTask([]byte(data)); err == nil {
			t.Errorf("%s: got %+v, want an error", name, task)
		}
	}
}

// One outcome that cannot be read costs nothing but itself.
func TestDecodeOutcomes_keepsTheGood(t *testing.T) {
	t.Parallel()
	const good = `{"schema":1,"run":"1","stage":"s","item":"i","status":"STATUS_COMPLETED"}`
	for name, bad := range map[string]string{
		"unknown status": `{"schema":1,"run":"1","stage":"s","item":"j","status":"STATUS_MELTED"}`,
		"no status":      `{"schema":1,"run":"1","stage":"s","item":"j"}`,
		"newer schema":   `{"schema":9,"run":"1","stage":"s","item":"j","status":"STATUS_COMPLETED"}`,
		"a number":       `7`,
	} {
		got, err := decodeOutcomes([]byte(`{"outcomes":[` + good + `,` + bad + `,` + good + `]}`))
		if err == nil {
			t.Errorf("%s: no error", name)
		}
		if len(got) != 2 {
			t.Errorf("%s: %d outcomes, want the 2 good ones", name, len(got))
		}
	}
	if got, err := decodeOutcomes([]byte(`{"outcomes":`)); err == nil || len(got) != 0 {
		t.Errorf("a cut message: got %d outcomes, error %v", len(got), err)
	}
}

// Postgres keeps no NUL, in text nor in jsonb.
func TestEncodeOutcome_replacesNUL(t *testing.T) {
	t.Parallel()
	data, err := encodeOutcome(&stage.Outcome{
		Run: 1, Stage: "s", Item: "i", Status: stage.StatusFailed, ErrorClass: fault.ClassPermanent, ErrorMessage: "a\x00b",
		Output: json.RawMessage(`{"k\u0000":["v\u0000",{"n":1e400}],"big":12345678901234567890}`),
	})
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(data), `\u0000`) {
		t.Errorf("NUL left in %s", data)
	}
	if !strings.Contains(string(data), "1e400") || !strings.Contains(string(data), "12345678901234567890") {
		t.Errorf("numbers changed: %s", data)
	}
}

func TestEncode_refusesWhatIsNoObject(t *testing.T) {
	t.Parallel()
	for _, spec := range []string{`[]`, `7`, `{`, `nonsense`} {
		if data, err := encodeTask(&stage.Task{Run: 1, Stage: "s", Item: "i", Spec: json.RawMessage(spec)}); err == nil {
			t.Errorf("%s: written as %s", spec, data)
		}
	}
}

func FuzzDecodeTask(f *testing.F) {
	f.Add(golden(f, "v1", "task.json"))
	f.Add([]byte(`{"schema":1,"run":1,"stage":"s","item":"i","spec":{"a":"\u0000"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		task, err := decodeTask(data)
		if err != nil {
			return
		}
		again, err := encodeTask(task)
		if err != nil {
			t.Fatalf("read but not written: %v", err)
		}
		if _, err := decodeTask(again); err != nil {
			t.Fatalf("%s: %v", again, err)
		}
	})
}

func FuzzDecodeOutcomes(f *testing.F) {
	f.Add(golden(f, "v1", "outcomes.json"))
	f.Add([]byte(`{"outcomes":[{"schema":1,"run":1,"stage":"s","item":"i","status":"STATUS_RETRY","after":"0.000000001s"},7]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		outcomes, _ := decodeOutcomes(data)
		for _, o := range outcomes {
			if y := o.EndedAt.Year(); y < 0 || y > 9999 {
				continue
			}
			if y := o.StartedAt.Year(); y < 0 || y > 9999 {
				continue
			}
			again, err := encodeOutcome(&o)
			if err != nil {
				t.Fatalf("read but not written: %v", err)
			}
			if back, err := decodeOutcomes([]byte(`{"outcomes":[` + string(again) + `]}`)); err != nil || len(back) != 1 {
				t.Fatalf("%s: %v", again, err)
			}
		}
	})
}

// The proto runtime beside it is what the hand-written codec saves.
func BenchmarkCodec(b *testing.B) {
	data := golden(b, "v1", "task.json")
	b.Run("encode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := encodeTask(aTask); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("decode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := decodeTask(data); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("proto/decode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			var m reevev1.Task
			if err := protojson.Unmarshal(data, &m); err != nil {
				b.Fatal(err)
			}
			if _, err := m.GetSpec().MarshalJSON(); err != nil {
				b.Fatal(err)
			}
		}
	})
	var m reevev1.Task
	if err := protojson.Unmarshal(data, &m); err != nil {
		b.Fatal(err)
	}
	b.Run("proto/encode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := m.GetSpec().UnmarshalJSON(aTask.Spec); err != nil {
				b.Fatal(err)
			}
			if _, err := protojson.Marshal(&m); err != nil {
				b.Fatal(err)
			}
		}
	})
}
