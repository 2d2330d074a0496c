package ledger_test

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/reeve-pipeline/reeve/pkg/ledger"
	"github.com/reeve-pipeline/reeve/pkg/stage"
)

// BenchmarkRecord measures how fast outcomes are counted and what follows from
// them is planned, by itself: three stages of a town's documents, the outcomes
// of which are there before the clock starts. It reports tasks per second and
// the CPU that one task costs this process and Postgres.
func BenchmarkRecord(b *testing.B) {
	for _, size := range []int{1, 100, 1000, 2000} {
		documents := min(10_000, 100*size)
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			w := newWorld(b)
			w.town(14)
			for n := range 8 { // as a rule the large run comes after small ones
				name := fmt.Sprintf("village%d", n)
				w.addSite(name)
				w.start(ledger.NewRun{Pipeline: "civic", Subject: name})
				w.finish()
			}
			if _, err := w.conn.Exec(b.Context(), "ANALYZE"); err != nil { // when everything has ended
				b.Fatal(err)
			}
			w.town(documents)
			var tasks int
			var busy, own, postgres time.Duration
			for n := 0; b.Loop(); n++ {
				name := fmt.Sprintf("town%d", n)
				w.addSite(name)
				w.start(ledger.NewRun{Pipeline: "civic", Subject: name})
				for {
					var outcomes []stage.Outcome
					for _, d := range w.handOut() {
						outcomes = append(outcomes, w.work[d.Stage](d)...)
					}
					if len(outcomes) == 0 {
						break
					}
					at, self, backends := time.Now(), cpu(b), w.backends()
					for len(outcomes) > 0 {
						k := min(size, len(outcomes))
						r, err := w.Record(b.Context(), outcomes[:k])
						if err != nil {
							b.Fatal(err)
						}
						tasks += r.Applied
						outcomes = outcomes[k:]
					}
					busy += time.Since(at)
					own += cpu(b) - self
					postgres += w.backends() - backends
				}
			}
			b.ReportMetric(float64(tasks)/busy.Seconds(), "tasks/s")
			b.ReportMetric(float64(own.Microseconds())/float64(tasks), "cpu-µs/task")
			b.ReportMetric(float64(postgres.Microseconds())/float64(tasks), "pg-µs/task")
		})
	}
}

// cpu is what this process has used.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// backends is what the server's processes for this database have used.
func (w *world) backends() time.Duration {
	rows, err := w.conn.Query(w.t.Context(), "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
	if err != nil {
		w.t.Fatal(err)
	}
	pids, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		w.t.Fatal(err)
	}
	var ticks int64
	for _, pid := range pids {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue // it has gone
		}
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		for _, f := range fields[11:13] { // utime and stime, in hundredths of a second
			n, _ := strconv.ParseInt(string(f), 10, 64)
			ticks += n
		}
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}
