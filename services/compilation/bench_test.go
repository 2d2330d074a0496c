package compilation_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/reeve-pipeline/reeve/pkg/civic"
)

// words makes text that indexes like prose: a few words often, many seldom.
func words(r *rand.Rand, n int) string {
	var b strings.Builder
	for range n {
		fmt.Fprintf(&b, "w%d ", int(r.ExpFloat64()*2000))
	}
	return b.String()
}

// peak returns the most memory this process has held, in MB.
func peak(b *testing.B) float64 {
	b.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Skip("peak memory is read from /proc")
	}
	var kb float64
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "VmHWM:") {
			if _, err := fmt.Sscanf(line, "VmHWM: %f kB", &kb); err != nil {
				b.Fatal(err)
			}
		}
	}
	return kb / 1024
}

// BenchmarkHandle builds a large site, and then adds one document to it.
func BenchmarkHandle(b *testing.B) {
	const documents, pagesEach = 1000, 100
	w := newTown(b)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range documents {
		pages := make([]string, pagesEach)
		for j := range pages {
			pages[j] = words(r, 350)
		}
		w.add(civic.Document{ID: fmt.Sprintf("d%05d", i), Kind: civic.Minutes, Meeting: fmt.Sprintf("Board%d", i%7), Date: fmt.Sprintf("2024-%05d", i)}, pages...)
	}
	b.Run("first", func(b *testing.B) {
		w.settings = `{"force": true}`
		for b.Loop() {
			out, _ := w.compile()
			b.ReportMetric(float64(out.Database.Size)/1e6, "MB")
		}
		b.ReportMetric(peak(b), "MB-peak")
	})
	w.settings = ""
	n := 0
	b.Run("one-more", func(b *testing.B) {
		for b.Loop() {
			n++
			w.add(civic.Document{ID: fmt.Sprintf("new%d", n), Kind: civic.Minutes, Meeting: "Board1", Date: fmt.Sprintf("2025-%05d", n)}, words(r, 350))
			if _, res := w.compile(); res.Metrics["documents_changed"] != 1 {
				b.Fatal(res.Metrics)
			}
		}
		b.ReportMetric(peak(b), "MB-peak")
	})
}
