package bus_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/reeve-pipeline/reeve/pkg/bus"
	"github.com/reeve-pipeline/reeve/pkg/fault"
	"github.com/reeve-pipeline/reeve/pkg/stage"
)

// serve answers requests with a page function until the test ends.
func serve(t *testing.T, b *bus.Bus, page bus.PageFunc) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.ServeInputs(ctx, "fanin", page) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestInputs(t *testing.T) {
	t.Parallel()
	b, _ := open(t)
	const n = 1234
	big := strings.Repeat("x", 10<<10) // a full page of these is too large for a message
	serve(t, b, func(_ context.Context, r bus.InputsRequest, limit int) ([]stage.Input, string, error) {
		if r.Run != 7 || r.Stage != "reduce" || r.Item != "doc" {
			return nil, "", fmt.Errorf("unexpected request %+v", r)
		}
		from, _ := strconv.Atoi(r.Cursor)
		to := min(n, from+limit)
		var page []stage.Input
		for i := from; i < to; i++ {
			page = append(page, stage.Input{
				Item: strconv.Itoa(i), Status: "completed", Output: json.RawMessage(`{"x":"` + big + `"}`),
				Artifacts: []stage.Artifact{{Key: "k", Size: 1 << 60, SHA256: "00"}},
			})
		}
		if to == n {
			return page, "", nil
		}
		return page, strconv.Itoa(to), nil
	})
	var first error
	eventually(t, "somebody answers", func() bool { // serve needs a moment to listen
		for _, first = range b.Inputs(t.Context(), bus.InputsRequest{Run: 7, Stage: "reduce", Item: "doc"}) {
			break
		}
		return first == nil
	})
	i := 0
	for in, err := range b.Inputs(t.Context(), bus.InputsRequest{Run: 7, Stage: "reduce", Item: "doc"}) {
		if err != nil {
			t.Fatal(err)
		}
		if in.Item != strconv.Itoa(i) || in.Status != "completed" || len(in.Output) < len(big) || in.Artifacts[0].Size != 1<<60 {
			t.Fatalf("input %d: got %+v", i, in)
		}
		i++
	}
	if i != n {
		t.Errorf("%d inputs, want %d", i, n)
	}
	for _, err := range b.Inputs(t.Context(), bus.InputsRequest{Run: 8, Stage: "reduce", Item: "doc"}) {
		if fault.Of(err) != fault.ClassInfra || !strings.Contains(err.Error(), "unexpected request") {
			t.Errorf("got %v, want the server's error, of class infra", err)
		}
	}
}

func TestInputs_nobodyAnswers(t *testing.T) {
	t.Parallel()
	b, _ := open(t)
	for _, err := range b.Inputs(t.Context(), bus.InputsRequest{Run: 7, Stage: "reduce", Item: "doc"}) {
		if fault.Of(err) != fault.ClassInfra || !strings.Contains(err.Error(), "is fan-in running?") {
			t.Errorf("got %v, want an error of class infra that says what to look for", err)
		}
	}
}

func TestInputs_tooLarge(t *testing.T) {
	t.Parallel()
	b, _ := open(t)
	serve(t, b, func(context.Context, bus.InputsRequest, int) ([]stage.Input, string, error) {
		return []stage.Input{{Item: "giant", Output: json.RawMessage(`{"x":"` + strings.Repeat("x", 2<<20) + `"}`)}}, "", nil
	})
	var got error
	eventually(t, "somebody answers", func() bool {
		for _, got = range b.Inputs(t.Context(), bus.InputsRequest{Run: 7, Stage: "reduce", Item: "doc"}) {
			break
		}
		return got != nil && !strings.Contains(got.Error(), "nobody answers")
	})
	if !strings.Contains(got.Error(), "giant") {
		t.Errorf("got %v, want an error that names the input", got)
	}
	if errors.Is(got, context.DeadlineExceeded) {
		t.Error("the server did not answer")
	}
}
