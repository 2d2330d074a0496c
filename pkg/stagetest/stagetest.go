// Package stagetest is the suite that the handler of every stage passes. It
// holds a handler to what [stage.Handler] promises: that it may be called
// again, at any time, beside itself, and be stopped at any moment.
package stagetest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/reeve-pipeline/reeve/pkg/fault"
	"github.com/reeve-pipeline/reeve/pkg/stage"
)

// Store is where a handler writes its objects; an artifact.Store is one.
type Store interface {
	// List lists the objects whose keys begin with prefix. Objects of the same
	// bytes have the same SHA256 or ETag.
	List(ctx context.Context, prefix string) iter.Seq2[stage.Artifact, error]
}

// Fixture is a task and what to expect of it.
type Fixture struct {
	Name string
	// Task is what the handler is given. Its Spawn and Inputs are set by the suite.
	Task stage.Task
	// Inputs are what Task.Inputs brings.
	Inputs []stage.Input
	// Prefix is what the keys of all objects written begin with. Empty: the
	// handler writes none.
	Prefix string
	// Fails is the class of error that the task must end with. Empty: it succeeds.
	Fails fault.Class
	// Volatile names the fields of the output that need not be the same
	// whenever the task is worked on, such as a time.
	Volatile []string
}

// prompt is how long a handler may take to return once its context has ended.
const prompt = 5 * time.Second

// Check runs the suite. newHandler returns a new handler and the store it
// writes to, a store of its own that holds what the fixtures' tasks read and
// nothing else; the store is nil for a handler that uses none. Run it with
// -race.
func Check(t *testing.T, newHandler func(t *testing.T) (stage.Handler, Store), fixtures ...Fixture) {
	t.Helper()
	for _, c := range []struct {
		name string
		run  check
	}{
		{"a task worked on twice gives the same", twice},
		{"a handler stopped at any moment leaves nothing half done", interrupted},
		{"a spec that makes no sense is a permanent error", garbage},
		{"tasks worked on at once do not disturb each other", together},
	} {
		for _, f := range fixtures {
			t.Run(c.name+"/"+f.Name, func(t *testing.T) {
				t.Parallel()
				fresh := func() bench {
					h, store := newHandler(t)
					return bench{handler: h, store: store}
				}
				if err := c.run(t.Context(), fresh, f); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// check returns everything that is wrong, joined.
type check func(ctx context.Context, fresh func() bench, f Fixture) error

// bench is a handler and what it writes to.
type bench struct {
	handler stage.Handler
	store   Store
}

// made is what a handler made of a task: everything that must be the same
// another time.
type made struct {
	Output  any
	Skip    string
	Spawned map[string]any
	Class   fault.Class
	err     error
	written []stage.Artifact
}

// failure is the handler's error, or says that there was none.
func (m made) failure() error {
	if m.err == nil {
		return errors.New("no error")
	}
	return m.err
}

// work calls the handler once.
func (b bench) work(ctx context.Context, f Fixture) (made, error) {
	m := made{Spawned: map[string]any{}}
	task := f.Task
	var mu sync.Mutex
	task.Spawn = func(ctx context.Context, items ...stage.Item) error {
		mu.Lock()
		defer mu.Unlock()
		for _, item := range items {
			spec, err := plain(item.Spec)
			if err != nil {
				return err
			}
			m.Spawned[item.Item] = spec
		}
		return ctx.Err()
	}
	task.Inputs = func(ctx context.Context) iter.Seq2[stage.Input, error] {
		return func(yield func(stage.Input, error) bool) {
			for _, in := range f.Inputs {
				if err := ctx.Err(); err != nil {
					yield(stage.Input{}, err)
					return
				}
				if !yield(in, nil) {
					return
				}
			}
		}
	}
	result, err := b.handler.Handle(ctx, &task)
	if err != nil {
		m.err, m.Class = err, fault.Of(err)
		return m, nil
	}
	m.Skip, m.written = result.Skip, result.Artifacts
	output, err := plain(result.Output)
	if err != nil {
		return m, fmt.Errorf("output: %w", err)
	}
	fields, ok := output.(map[string]any)
	if !ok && output != nil {
		return m, fmt.Errorf("output: %T is no JSON object", result.Output)
	}
	for _, name := range f.Volatile {
		delete(fields, name)
	}
	m.Output = output
	return m, nil
}

// plain is v as it reads after having travelled as JSON.
func plain(v any) (any, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var out any
	err = d.Decode(&out)
	return out, err
}

// expect works the fixture and checks it by itself.
func (b bench) expect(ctx context.Context, f Fixture) (made, error) {
	m, err := b.work(ctx, f)
	switch {
	case err != nil:
		return m, err
	case m.Class != f.Fails && f.Fails == "":
		return m, fmt.Errorf("unexpected error: %w", m.err)
	case m.Class != f.Fails:
		return m, fmt.Errorf("class is %q, want %q: %w", m.Class, f.Fails, m.failure())
	}
	return m, nil
}

// objects are the objects of a store by key.
type objects map[string]stage.Artifact

func (b bench) objects(ctx context.Context) (objects, error) {
	all := objects{}
	if b.store == nil {
		return all, nil
	}
	for a, err := range b.store.List(ctx, "") {
		if err != nil {
			return nil, fmt.Errorf("list objects: %w", err)
		}
		all[a.Key] = a
	}
	return all, nil
}

// since returns the objects that are new or have changed.
func (o objects) since(before objects) objects {
	written := objects{}
	for key, a := range o {
		if was, ok := before[key]; !ok || was != a {
			written[key] = a
		}
	}
	return written
}

// own checks where objects were written.
func (o objects) own(f Fixture) error {
	var errs []error
	for key := range o {
		if f.Prefix == "" || !strings.HasPrefix(key, f.Prefix) {
			errs = append(errs, fmt.Errorf("object %s is not its own: it may write under %q only", key, f.Prefix))
		}
	}
	return errors.Join(errs...)
}

// same compares what was made, and where it was written.
func same(what string, first, second made, wrote, again objects) error {
	var errs []error
	if diff := cmp.Diff(first, second, cmp.FilterPath(func(p cmp.Path) bool {
		name := p.Last().String()
		return name == ".err" || name == ".written"
	}, cmp.Ignore())); diff != "" {
		errs = append(errs, fmt.Errorf("%s: another result (-first +second):\n%s", what, diff))
	}
	if diff := cmp.Diff(wrote, again); diff != "" {
		errs = append(errs, fmt.Errorf("%s: other objects (-first +second):\n%s", what, diff))
	}
	return errors.Join(errs...)
}

// twice works a task twice, then a third time with nothing left from before.
func twice(ctx context.Context, fresh func() bench, f Fixture) error {
	b := fresh()
	before, err := b.objects(ctx)
	if err != nil {
		return err
	}
	first, err := b.expect(ctx, f)
	if err != nil {
		return err
	}
	there, err := b.objects(ctx)
	if err != nil {
		return err
	}
	wrote := there.since(before)
	errs := []error{wrote.own(f)}
	for _, a := range first.written {
		if o, ok := there[a.Key]; !ok || o.Size != a.Size {
			errs = append(errs, fmt.Errorf("artifact %s of %d bytes is not in the store as it says", a.Key, a.Size))
		}
	}

	second, err := b.expect(ctx, f)
	if err != nil {
		return errors.Join(append(errs, fmt.Errorf("a second time: %w", err))...)
	}
	there, err = b.objects(ctx)
	if err != nil {
		return err
	}
	errs = append(errs, same("a second time", first, second, wrote, there.since(before)))

	b = fresh()
	third, err := b.expect(ctx, f)
	if err != nil {
		return errors.Join(append(errs, fmt.Errorf("with another handler: %w", err))...)
	}
	there, err = b.objects(ctx)
	if err != nil {
		return err
	}
	errs = append(errs, same("with another handler", first, third, wrote, there.since(before)))
	return errors.Join(errs...)
}

// interrupted ends the context before the handler is called and at several
// moments while it works.
func interrupted(ctx context.Context, fresh func() bench, f Fixture) error {
	whole := fresh()
	began := time.Now()
	if _, err := whole.expect(ctx, f); err != nil {
		return err
	}
	took := time.Since(began)
	complete, err := whole.objects(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, part := range []float64{0, 0.25, 0.5, 0.75} {
		b := fresh()
		after := time.Duration(float64(took) * part)
		if err := b.interrupt(ctx, f, after, complete); err != nil {
			errs = append(errs, fmt.Errorf("context ended after %v of %v: %w", after, took, err))
		}
	}
	return errors.Join(errs...)
}

func (b bench) interrupt(ctx context.Context, f Fixture, after time.Duration, complete objects) error {
	stopping, stop := context.WithCancel(ctx)
	defer stop()
	if after == 0 {
		stop()
	} else {
		defer time.AfterFunc(after, stop).Stop()
	}
	returned := make(chan made, 1)
	go func() {
		m, _ := b.work(stopping, f)
		returned <- m
	}()
	<-stopping.Done()
	var m made
	select {
	case m = <-returned:
	case <-time.After(prompt):
		return fmt.Errorf("the handler has not returned within %v", prompt)
	}
	there, err := b.objects(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for key, a := range there {
		if a != complete[key] {
			errs = append(errs, fmt.Errorf("it left object %s of %d bytes, which a run to the end does not", key, a.Size))
		}
	}
	if m.err == nil && f.Fails == "" && len(there) != len(complete) {
		errs = append(errs, errors.New("it reported success without having written everything"))
	}
	return errors.Join(errs...)
}

// garbage gives the handler specs that make no sense.
func garbage(ctx context.Context, fresh func() bench, f Fixture) error {
	specs := map[string]json.RawMessage{"no spec": nil, "a cut spec": json.RawMessage(`{"`), "a list for a spec": json.RawMessage(`[1]`)}
	var fields map[string]any
	if err := json.Unmarshal(f.Task.Spec, &fields); err == nil && len(fields) > 0 {
		for name := range fields {
			fields[name] = []any{map[string]any{"garbage": true}, 7}
		}
		b, err := json.Marshal(fields)
		if err != nil {
			return err
		}
		specs["a spec of other types"] = b
	}
	b := fresh()
	before, err := b.objects(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for name, spec := range specs {
		bad := f
		bad.Task.Spec = spec
		m, err := b.work(ctx, bad)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
		if m.Class != fault.ClassPermanent {
			errs = append(errs, fmt.Errorf("%s: class is %q, want %q: %w", name, m.Class, fault.ClassPermanent, m.failure()))
		}
	}
	after, err := b.objects(ctx)
	if err != nil {
		return err
	}
	for key := range after.since(before) {
		errs = append(errs, fmt.Errorf("object %s was written for it", key))
	}
	return errors.Join(errs...)
}

// hands is how many tasks are worked on at once.
const hands = 8

// together works the same task eight times at once.
func together(ctx context.Context, fresh func() bench, f Fixture) error {
	calm := fresh()
	first, err := calm.expect(ctx, f)
	if err != nil {
		return err
	}
	wrote, err := calm.objects(ctx)
	if err != nil {
		return err
	}
	b := fresh()
	errs := make([]error, hands)
	results := make([]made, hands)
	var all sync.WaitGroup
	for i := range hands {
		all.Go(func() { results[i], errs[i] = b.expect(ctx, f) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	there, err := b.objects(ctx)
	if err != nil {
		return err
	}
	for _, m := range results {
		if err := same("eight at once", first, m, wrote, there); err != nil {
			return err
		}
	}
	return nil
}
