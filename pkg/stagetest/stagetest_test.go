package stagetest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/reeve-pipeline/reeve/pkg/fault"
	"github.com/reeve-pipeline/reeve/pkg/stage"
)

// memory is a store.
type memory struct {
	mu      sync.Mutex
	objects map[string]stage.Artifact
}

func (m *memory) put(key, data string) stage.Artifact {
	m.mu.Lock()
	defer m.mu.Unlock()
	sum := sha256.Sum256([]byte(data))
	a := stage.Artifact{Key: key, Size: int64(len(data)), SHA256: hex.EncodeToString(sum[:])}
	if m.objects == nil {
		m.objects = map[string]stage.Artifact{}
	}
	m.objects[key] = a
	return a
}

func (m *memory) List(context.Context, string) iter.Seq2[stage.Artifact, error] {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := maps.Clone(m.objects)
	return func(yield func(stage.Artifact, error) bool) {
		for _, a := range all {
			if !yield(a, nil) {
				return
			}
		}
	}
}

// fake is a handler of which a test may replace what it wants to see fail.
type fake struct {
	memory
	calls  atomic.Int64
	handle func(ctx context.Context, f *fake, name string, task *stage.Task) (stage.Result, error)
	// lax handlers take any spec.
	lax bool
}

func (f *fake) Handle(ctx context.Context, task *stage.Task) (stage.Result, error) {
	spec, err := stage.Spec[struct {
		Name string `json:"name"`
	}](task)
	if err != nil && !f.lax {
		return stage.Result{}, err
	}
	if err := ctx.Err(); err != nil {
		return stage.Result{}, err
	}
	f.calls.Add(1)
	return f.handle(ctx, f, spec.Name, task)
}

func good(ctx context.Context, f *fake, name string, task *stage.Task) (stage.Result, error) {
	n := 0
	for _, err := range task.Inputs(ctx) {
		if err != nil {
			return stage.Result{}, err
		}
		n++
	}
	if err := task.Spawn(ctx, stage.Item{Item: "child", Spec: map[string]int{"n": n}}); err != nil {
		return stage.Result{}, err
	}
	a := f.put("own/"+name, "bytes")
	return stage.Result{Output: map[string]any{"n": n, "call": f.calls.Load()}, Artifacts: []stage.Artifact{a}}, nil
}

var fixture = Fixture{
	Name:     "a document",
	Task:     stage.Task{Run: 1, Stage: "test", Item: "a", Spec: json.RawMessage(`{"name":"a"}`)},
	Inputs:   []stage.Input{{Item: "x"}, {Item: "y"}},
	Prefix:   "own/",
	Volatile: []string{"call"},
}

func TestCheck(t *testing.T) {
	t.Parallel()
	failing := fixture
	failing.Name, failing.Fails, failing.Prefix = "a document that is broken", fault.ClassPermanent, ""
	failing.Task.Spec = json.RawMessage(`{"name":"broken"}`)
	Check(t, func(*testing.T) (stage.Handler, Store) {
		f := &fake{handle: func(ctx context.Context, f *fake, name string, task *stage.Task) (stage.Result, error) {
			if name == "broken" {
				return stage.Result{}, fault.Permanent(errors.New("not a document"))
			}
			return good(ctx, f, name, task)
		}}
		return f, f
	}, fixture, failing)
}

// The suite notices what it is there for.
func TestCheck_notices(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		check  check
		handle func(ctx context.Context, f *fake, name string, task *stage.Task) (stage.Result, error)
		lax    bool
		says   string
	}{
		{"an output that changes", twice, func(_ context.Context, f *fake, _ string, _ *stage.Task) (stage.Result, error) {
			return stage.Result{Output: map[string]int64{"n": f.calls.Load()}}, nil
		}, false, "another result"},
		{"a child that changes", twice, func(ctx context.Context, f *fake, _ string, task *stage.Task) (stage.Result, error) {
			return stage.Result{}, task.Spawn(ctx, stage.Item{Item: strconv.FormatInt(f.calls.Load(), 10)})
		}, false, "another result"},
		{"a key that changes", twice, func(_ context.Context, f *fake, _ string, _ *stage.Task) (stage.Result, error) {
			f.put(fmt.Sprintf("own/%d", f.calls.Load()), "x")
			return stage.Result{}, nil
		}, false, "other objects"},
		{"bytes that change", twice, func(_ context.Context, f *fake, _ string, _ *stage.Task) (stage.Result, error) {
			f.put("own/a", strconv.FormatInt(f.calls.Load(), 10))
			return stage.Result{}, nil
		}, false, "other objects"},
		{"an object of others", twice, func(_ context.Context, f *fake, _ string, _ *stage.Task) (stage.Result, error) {
			f.put("theirs/a", "x")
			return stage.Result{}, nil
		}, false, "is not its own"},
		{"an artifact that is not there", twice, func(_ context.Context, f *fake, _ string, _ *stage.Task) (stage.Result, error) {
			return stage.Result{Artifacts: []stage.Artifact{{Key: "own/a", Size: 1}}}, nil
		}, false, "is not in the store"},
		{"a failure", twice, func(context.Context, *fake, string, *stage.Task) (stage.Result, error) {
			return stage.Result{}, errors.New("broken")
		}, false, "unexpected error: broken"},
		{"half an object", interrupted, func(ctx context.Context, f *fake, name string, task *stage.Task) (stage.Result, error) {
			f.put("own/a", "half")
			select {
			case <-ctx.Done():
				return stage.Result{}, ctx.Err()
			case <-time.After(50 * time.Millisecond):
			}
			f.put("own/a", "the whole")
			return stage.Result{}, nil
		}, false, "which a run to the end does not"},
		{"a spec that is taken whatever it is", garbage, func(_ context.Context, f *fake, _ string, _ *stage.Task) (stage.Result, error) {
			return stage.Result{}, nil
		}, true, "want \"permanent\""},
		{"state that tasks share", together, func(_ context.Context, f *fake, _ string, _ *stage.Task) (stage.Result, error) {
			return stage.Result{Output: map[string]bool{"first": f.calls.Load() == 1}}, nil
		}, false, "another result"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			fresh := func() bench {
				f := &fake{handle: tt.handle, lax: tt.lax}
				return bench{f, f}
			}
			err := tt.check(t.Context(), fresh, fixture)
			if err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("got %v, want an error that says %q", err, tt.says)
			}
		})
	}
}
