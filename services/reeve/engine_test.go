package reeve_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/reeve-pipeline/reeve/pkg/bus"
	"github.com/reeve-pipeline/reeve/pkg/civic"
	"github.com/reeve-pipeline/reeve/pkg/fault"
	"github.com/reeve-pipeline/reeve/pkg/ledger"
	"github.com/reeve-pipeline/reeve/pkg/natstest"
	"github.com/reeve-pipeline/reeve/pkg/pgtest"
	"github.com/reeve-pipeline/reeve/pkg/service"
	"github.com/reeve-pipeline/reeve/pkg/stage"
	"github.com/reeve-pipeline/reeve/pkg/telemetry"
	"github.com/reeve-pipeline/reeve/services/fanin"
	"github.com/reeve-pipeline/reeve/services/sweeper"
)

// engine is a deployment with a real bus, a real ledger and a real fan-in, in
// which the stages' work is a function of the test.
type engine struct {
	*ledger.Ledger
	t    testing.TB
	nats *natstest.Server
	dsn  string
	conn *pgx.Conn
	bus  *bus.Bus
}

func newEngine(t testing.TB) *engine {
	t.Helper()
	e := &engine{t: t, nats: natstest.NewServer(t), dsn: pgtest.New(t)}
	e.provision()
	var err error
	if e.Ledger, err = ledger.Open(t.Context(), e.dsn); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	if e.conn, err = pgx.Connect(t.Context(), e.dsn); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.conn.Close(context.WithoutCancel(t.Context())) })
	if e.bus, err = bus.New(e.nats.Connect()); err != nil {
		t.Fatal(err)
	}
	return e
}

func (e *engine) provision() {
	e.t.Helper()
	js, err := jetstream.New(e.nats.Connect())
	if err != nil {
		e.t.Fatal(err)
	}
	if _, err := bus.Provision(e.t.Context(), js, bus.Options{AckWait: 2 * time.Second}); err != nil {
		e.t.Fatal(err)
	}
}

// run starts a process's worth of services and returns what stops it. It is
// stopped with the test at the latest.
func (e *engine) run(name string, wires ...service.Wire) (stop func()) {
	e.t.Helper()
	env, err := service.New(name, service.Options{
		Values: map[string]any{"nats.url": e.nats.URL(), "postgres.dsn": e.dsn, "http.addr": "off", "grace": "5s"},
		Log:    zap.NewNop(),
	})
	if err != nil {
		e.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(e.t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- service.Run(ctx, env, wires...) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			e.t.Errorf("%s: %v", name, err)
		}
	})
	e.t.Cleanup(stop)
	return stop
}

// handler makes a stage's work of a function.
type handler func(ctx context.Context, task *stage.Task) (stage.Result, error)

func (h handler) Handle(ctx context.Context, task *stage.Task) (stage.Result, error) {
	return h(ctx, task)
}

// worker returns the wire of a stage whose work is a function.
func worker(name string, hands int, h handler) service.Wire {
	return func(_ context.Context, env *service.Env) (service.Runner, error) {
		return bus.WireStage(env, name, h, hands)
	}
}

// town returns the wires of a civic pipeline over n documents. Work that a
// test wants to be different replaces a stage's.
func town(n int, different map[string]handler) []service.Wire {
	work := townWork(n)
	var wires []service.Wire
	for _, name := range []string{"fetch", "pagination", "reduce", "compilation", "deploy"} {
		h := work[name]
		if d := different[name]; d != nil {
			h = d
		}
		wires = append(wires, worker(name, 8, h))
	}
	return wires
}

// townWork is what the stages of a civic pipeline over n documents do.
func townWork(n int) map[string]handler {
	return map[string]handler{
		"fetch": func(ctx context.Context, task *stage.Task) (stage.Result, error) {
			if task.Parent == "" {
				items := make([]stage.Item, n)
				for i := range n {
					id := fmt.Sprintf("doc-%05d", i)
					items[i] = stage.Item{Item: id, Spec: civic.Document{ID: id, Kind: civic.Minutes, Source: id + ".pdf"}}
				}
				return stage.Result{}, task.Spawn(ctx, items...)
			}
			d, err := stage.Spec[civic.Document](task)
			d.SHA256, d.Key = fmt.Sprintf("%064x", d.ID), d.ID
			return stage.Result{Output: d}, err
		},
		"pagination": pass, "reduce": pass,
		"compilation": func(context.Context, *stage.Task) (stage.Result, error) {
			return stage.Result{Output: civic.Compiled{Version: "v"}}, nil
		},
		"deploy": func(context.Context, *stage.Task) (stage.Result, error) {
			return stage.Result{Output: civic.Deployed{Version: "v"}}, nil
		},
	}
}

func pass(_ context.Context, task *stage.Task) (stage.Result, error) {
	return stage.Result{Output: task.Spec}, nil
}

func (e *engine) start(subdomain string) int64 {
	e.t.Helper()
	if _, err := e.AddSite(e.t.Context(), civic.Site{Subdomain: subdomain, Source: "/docs"}); err != nil {
		e.t.Fatal(err)
	}
	r, err := e.StartRun(e.t.Context(), ledger.NewRun{Pipeline: "civic", Subject: subdomain})
	if err != nil {
		e.t.Fatal(err)
	}
	if err := e.bus.Wake(); err != nil {
		e.t.Fatal(err)
	}
	return r.Run
}

// until waits for a query to say true.
func (e *engine) until(what, query string, args ...any) {
	e.t.Helper()
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	deadline := time.After(2 * time.Minute)
	for {
		var ok bool
		if err := e.conn.QueryRow(e.t.Context(), query, args...).Scan(&ok); err != nil {
			e.t.Fatalf("%s: %v", what, err)
		}
		if ok {
			return
		}
		select {
		case <-poll.C:
		case <-deadline:
			e.dump()
			e.t.Fatalf("waited two minutes for: %s", what)
		}
	}
}

// dump prints where everything stands.
func (e *engine) dump() {
	rows, err := e.conn.Query(e.t.Context(), `
		SELECT format('%s %s/%s total %s done %s failed %s dispatched %s/%s sealed %s closed %s', run, stage, scope, total, completed, failed, dispatched, last_seq, sealed, closed_at IS NOT NULL)
		FROM run_stages WHERE total > 0 ORDER BY run, position, scope LIMIT 40`)
	if err != nil {
		return
	}
	lines, _ := pgx.CollectRows(rows, pgx.RowTo[string])
	e.t.Log(strings.Join(lines, "\n"))
}

func (e *engine) ended(run int64) ledger.Run {
	e.t.Helper()
	e.until(fmt.Sprintf("the end of run %d", run), "SELECT status <> 'running' FROM runs WHERE run = $1", run)
	r, err := e.Run(e.t.Context(), run)
	if err != nil {
		e.t.Fatal(err)
	}
	e.exact(run)
	return r
}

// exact checks that a run that ended adds up: counters equal the task rows,
// everything is closed, and what follows a whole stage was planned once.
func (e *engine) exact(run int64) {
	e.t.Helper()
	const q = `
		SELECT count(*) FROM run_stages s CROSS JOIN LATERAL (
			SELECT count(*) AS total, count(*) FILTER (WHERE status = 'completed') AS completed, count(*) FILTER (WHERE status = 'failed') AS failed
			FROM tasks t WHERE t.run = s.run AND t.stage = s.stage AND (s.scope = '' OR t.scope = s.scope)) n
		WHERE s.run = $1 AND ((s.total, s.completed, s.failed) <> (n.total, n.completed, n.failed) OR s.closed_at IS NULL)`
	var wrong, compilations int
	if err := e.conn.QueryRow(e.t.Context(), q, run).Scan(&wrong); err != nil {
		e.t.Fatal(err)
	}
	if err := e.conn.QueryRow(e.t.Context(), "SELECT count(*) FROM tasks WHERE run = $1 AND stage = 'compilation'", run).Scan(&compilations); err != nil {
		e.t.Fatal(err)
	}
	if wrong > 0 || compilations > 1 {
		e.dump()
		e.t.Errorf("run %d: %d counters are wrong or open, %d compilations", run, wrong, compilations)
	}
}

func (e *engine) done(r ledger.Run, stage string) int64 {
	i := slices.IndexFunc(r.Stages, func(s ledger.StageProgress) bool { return s.Stage == stage })
	return r.Stages[i].Completed
}

// Totals of 0, 1, 2 and 20,000 go the same way through real services.
func TestEngine_Totals(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, 2, 20_000} {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			t.Parallel()
			e := newEngine(t)
			e.run("fanin", fanin.Wire)
			e.run("workers", town(n, nil)...)
			began := time.Now()
			r := e.ended(e.start("town"))
			if r.Status != "completed" || e.done(r, "reduce") != int64(n) {
				t.Errorf("run is %s with %d of %d reduced: %s", r.Status, e.done(r, "reduce"), n, r.ErrorMessage)
			}
			t.Logf("%d documents, %d tasks in %v", n, 3*n+3, time.Since(began).Round(time.Millisecond))
		})
	}
}

// A handler that fails, fails for a while, panics or is interrupted: every
// document is counted once, and nothing is delayed by the others.
func TestEngine_Faults(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	e.run("fanin", fanin.Wire)
	var passing sync.Map
	e.run("workers", town(40, map[string]handler{
		"pagination": func(ctx context.Context, task *stage.Task) (stage.Result, error) {
			n := task.Item[len(task.Item)-1]
			_, again := passing.LoadOrStore(task.Item, true)
			switch {
			case n == '1':
				return stage.Result{}, fault.Permanentf("%s.pdf is not a PDF", task.Item)
			case n == '2' && !again:
				panic("a bug")
			case n == '3' && !again:
				return stage.Result{}, fault.Infra(io.ErrUnexpectedEOF)
			case n == '4' && !again:
				return stage.Result{}, fault.RetryAfter(io.ErrUnexpectedEOF, time.Second)
			}
			return stage.Result{Output: task.Spec}, nil
		},
	})...)
	r := e.ended(e.start("town"))
	if r.Status != "completed" || e.done(r, "reduce") != 36 {
		t.Errorf("run is %s with %d reduced, want 36", r.Status, e.done(r, "reduce"))
	}
	tasks, err := e.Tasks(t.Context(), ledger.TaskFilter{Run: r.Run, Status: "failed"})
	if err != nil || len(tasks) != 4 {
		t.Fatalf("failed tasks: %d, %v", len(tasks), err)
	}
	if tasks[0].ErrorClass != "permanent" || !strings.Contains(tasks[0].ErrorMessage, ".pdf is not a PDF") || tasks[0].Fingerprint == "" {
		t.Errorf("a failed task says %q (%s, %s)", tasks[0].ErrorMessage, tasks[0].ErrorClass, tasks[0].Fingerprint)
	}
}

// Documents of which a sign of life or a failed try is recorded by itself,
// between others that end, are counted with them all the same.
func TestEngine_ListedItemsThatTakeTheirTime(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	e.run("fanin", fanin.Wire)
	var tried sync.Map
	fetch := townWork(3)["fetch"]
	e.run("workers", town(3, map[string]handler{
		"fetch": func(ctx context.Context, task *stage.Task) (stage.Result, error) {
			n := task.Item[len(task.Item)-1]
			if _, again := tried.LoadOrStore(task.Item, true); task.Parent != "" && n != '0' && !again {
				return stage.Result{}, fault.RetryAfter(io.ErrUnexpectedEOF, time.Duration(n-'0')*300*time.Millisecond)
			}
			return fetch(ctx, task)
		},
	})...)
	if r := e.ended(e.start("town")); r.Status != "completed" || e.done(r, "fetch") != 4 || e.done(r, "reduce") != 3 {
		t.Errorf("run is %s with %d fetched, %d reduced: %s", r.Status, e.done(r, "fetch"), e.done(r, "reduce"), r.ErrorMessage)
	}
}

// The messages of each stage in turn are deleted while they are queued: the
// sweeper brings all of them back, and leaves those alone that merely wait.
func TestEngine_LostMessages(t *testing.T) {
	t.Parallel()
	for _, lost := range []string{"fetch", "pagination", "reduce", "compilation", "deploy"} {
		t.Run(lost, func(t *testing.T) {
			t.Parallel()
			e := newEngine(t)
			e.run("fanin", fanin.Wire)
			wires := town(5, nil)
			at := slices.Index([]string{"fetch", "pagination", "reduce", "compilation", "deploy"}, lost)
			late := wires[at]
			for i, w := range wires { // no worker of the stage: its messages stay queued
				if i != at {
					e.run("worker", w)
				}
			}
			run := e.start("town")
			e.until("a message of "+lost, "SELECT count(*) > 0 FROM run_stages WHERE stage = $1 AND scope = '' AND total > 0 AND dispatched = total AND (total = $2 OR stage <> 'pagination')", lost, 5)

			sweep := e.sweeper()
			e.silence()
			if r := sweep(false); len(r.Findings) != 1 || r.Findings[0].Found != sweeper.NoConsumers {
				t.Fatalf("a queue that merely waits: %+v", r.Findings)
			}
			js, err := jetstream.New(e.nats.Connect())
			if err != nil {
				t.Fatal(err)
			}
			s, err := js.Stream(t.Context(), bus.TaskStream)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Purge(t.Context(), jetstream.WithPurgeSubject("reeve.task."+lost+".>")); err != nil {
				t.Fatal(err)
			}
			if r := sweep(true); len(r.Findings) == 0 || r.Findings[0].Found != sweeper.LostMessage {
				t.Fatalf("a dry sweep finds %+v", r.Findings)
			}
			for _, f := range sweep(false).Findings {
				if f.Found != sweeper.LostMessage || f.Done != sweeper.Republished || f.Stage != lost {
					t.Errorf("the sweep finds %+v", f)
				}
			}
			if r := sweep(false); len(r.Findings) > 1 {
				t.Errorf("a second sweep finds %+v", r.Findings)
			}
			e.run("worker", late)
			if r := e.ended(run); r.Status != "completed" || e.done(r, "reduce") != 5 {
				t.Errorf("run is %s", r.Status)
			}
		})
	}
}

// silence makes all tasks look as if nothing had been heard of them for long.
func (e *engine) silence() {
	e.t.Helper()
	if _, err := e.conn.Exec(e.t.Context(), "UPDATE tasks SET updated_at = updated_at - interval '1 hour' WHERE status NOT IN ('completed', 'failed', 'cancelled')"); err != nil {
		e.t.Fatal(err)
	}
}

// sweeper returns a sweep to which the stream seems to have been there always,
// so that silence counts as such.
func (e *engine) sweeper() func(dryRun bool) sweeper.Report {
	e.t.Helper()
	s := sweeper.New(e.Ledger, agedBus{e.bus}, zap.NewNop(), telemetry.NewSweeper(prometheus.NewRegistry()), sweeper.Defaults())
	return func(dryRun bool) sweeper.Report {
		r, err := s.Sweep(e.t.Context(), dryRun)
		if err != nil {
			e.t.Fatal(err)
		}
		return r
	}
}

// agedBus is the bus, with streams as old as can be.
type agedBus struct{ *bus.Bus }

func (agedBus) TasksCreated(context.Context) (time.Time, error) { return time.Time{}, nil }

// A task that gets lost again and again is given up, and the run ends.
func TestEngine_LostForGood(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	e.run("fanin", fanin.Wire)
	run := e.start("town")
	e.until("the listing's message", "SELECT dispatched = 1 FROM run_stages WHERE stage = 'fetch' AND scope = ''")
	js, err := jetstream.New(e.nats.Connect())
	if err != nil {
		t.Fatal(err)
	}
	s, err := js.Stream(t.Context(), bus.TaskStream)
	if err != nil {
		t.Fatal(err)
	}
	sweep := e.sweeper()
	for range 4 {
		if err := s.Purge(t.Context()); err != nil {
			t.Fatal(err)
		}
		e.silence()
		sweep(false)
	}
	if r := e.ended(run); r.Status != "failed" || r.ErrorClass != "lost" && !strings.Contains(r.ErrorMessage, "lost") {
		t.Errorf("run is %s: %s", r.Status, r.ErrorMessage)
	}
}

// JetStream forgets everything in the middle of a run: the run ends all the
// same, and counts each document once.
func TestEngine_Amnesia(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	const n = 200
	gate := make(chan struct{})
	var opened sync.Once
	t.Cleanup(func() { opened.Do(func() { close(gate) }) })
	var seen atomic.Int32
	half := make(chan struct{})
	different := map[string]handler{"pagination": func(ctx context.Context, task *stage.Task) (stage.Result, error) {
		if seen.Add(1) == n/2 {
			close(half)
		}
		if seen.Load() >= n/2 {
			select {
			case <-gate:
			case <-ctx.Done():
			}
		}
		return stage.Result{Output: task.Spec}, ctx.Err()
	}}
	stopFanIn := e.run("fanin", fanin.Wire)
	stopWorkers := e.run("workers", town(n, different)...)
	run := e.start("town")
	<-half
	opened.Do(func() { close(gate) })
	stopWorkers()
	stopFanIn()
	e.nats.Wipe()
	e.provision()
	e.run("fanin", fanin.Wire)
	e.run("workers", town(n, nil)...)
	e.run("sweeper", sweeper.Wire)
	if r := e.ended(run); r.Status != "completed" || e.done(r, "reduce") != n {
		t.Errorf("run is %s with %d of %d", r.Status, e.done(r, "reduce"), n)
	}
}

// A stop gives back what is in hand: no attempt is spent, and another worker
// of the stage finishes it.
func TestEngine_StopSpendsNoAttempt(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	e.run("fanin", fanin.Wire)
	wires := town(4, nil)
	e.run("others", append(wires[:1:1], wires[2:]...)...)
	inHand := make(chan struct{}, 8)
	hang := worker("pagination", 2, func(ctx context.Context, _ *stage.Task) (stage.Result, error) {
		inHand <- struct{}{}
		<-ctx.Done()
		return stage.Result{}, ctx.Err()
	})
	env, err := service.New("hanging", service.Options{
		Values: map[string]any{"nats.url": e.nats.URL(), "http.addr": "off", "grace": "50ms"}, Log: zap.NewNop(),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- service.Run(ctx, env, hang) }()
	run := e.start("town")
	<-inHand
	<-inHand
	stop()
	if err := <-ended; err != nil {
		t.Errorf("the stopped worker: %v", err)
	}
	e.run("pagination", wires[1])
	if r := e.ended(run); r.Status != "completed" {
		t.Errorf("run is %s", r.Status)
	}
	var attempts int
	if err := e.conn.QueryRow(t.Context(), "SELECT max(attempts) FROM tasks").Scan(&attempts); err != nil || attempts != 0 {
		t.Errorf("the stop cost %d attempts, %v", attempts, err)
	}
}

// Two processes of one stage share its tasks.
func TestEngine_TwoWorkersShare(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	e.run("fanin", fanin.Wire)
	wires := town(100, nil)
	e.run("others", append(wires[:1:1], wires[2:]...)...)
	var by [2]atomic.Int32
	for i := range by {
		e.run("pagination", worker("pagination", 2, func(_ context.Context, task *stage.Task) (stage.Result, error) {
			by[i].Add(1)
			return stage.Result{Output: task.Spec}, nil
		}))
	}
	if r := e.ended(e.start("town")); r.Status != "completed" {
		t.Errorf("run is %s", r.Status)
	}
	a, b := by[0].Load(), by[1].Load()
	if a+b != 100 || a == 0 || b == 0 {
		t.Errorf("the workers did %d and %d of 100 tasks", a, b)
	}
}

// Fan-in is killed at any point, again and again, as a process of its own: no
// outcome is lost or counted twice, and nothing is planned twice.
func TestEngine_KilledFanIn(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	binary := filepath.Join(t.TempDir(), "fanin")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "github.com/reeve-pipeline/reeve/services/fanin/cmd/fanin").CombinedOutput(); err != nil {
		t.Fatalf("build fanin: %v\n%s", err, out)
	}
	fanIn := func() *exec.Cmd {
		c := exec.Command(binary)
		c.Env = append(os.Environ(), "REEVE_NATS_URL="+e.nats.URL(), "REEVE_POSTGRES_DSN="+e.dsn)
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		return c
	}
	const n = 3000
	e.run("workers", town(n, nil)...)
	run := e.start("town")
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 6 {
		c := fanIn()
		before := e.counted()
		e.until("some progress", "SELECT (SELECT sum(completed) FROM run_stages) > $1 OR (SELECT bool_and(status <> 'running') FROM runs)", before)
		select {
		case <-time.After(time.Duration(rng.IntN(150)) * time.Millisecond): // anywhere in its cycle
		case <-t.Context().Done():
		}
		_ = c.Process.Kill()
		_ = c.Wait()
	}
	last := fanIn()
	t.Cleanup(func() { _ = last.Process.Kill(); _ = last.Wait() })
	r := e.ended(run)
	if r.Status != "completed" || e.done(r, "reduce") != n {
		t.Errorf("run is %s with %d of %d", r.Status, e.done(r, "reduce"), n)
	}
}

func (e *engine) counted() int64 {
	e.t.Helper()
	var n int64
	if err := e.conn.QueryRow(e.t.Context(), "SELECT coalesce(sum(completed), 0)::bigint FROM run_stages").Scan(&n); err != nil {
		e.t.Fatal(err)
	}
	return n
}

// workerVar makes the test binary a process of workers, for tests that kill it.
const workerVar = "REEVE_TEST_WORKERS"

func TestMain(m *testing.M) {
	n, err := strconv.Atoi(os.Getenv(workerVar))
	if err != nil {
		os.Exit(m.Run())
	}
	_ = os.Unsetenv(workerVar) // it is no setting
	os.Exit(service.Main("workers", town(n, nil)...))
}

// Processes of workers are killed at any point of their cycle, again and
// again: what they had in hand is done by others, and spends no attempt.
func TestEngine_KilledWorkers(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	const n = 2000
	workers := func() *exec.Cmd {
		c := exec.Command(self)
		c.Env = append(os.Environ(), workerVar+"="+strconv.Itoa(n), "REEVE_NATS_URL="+e.nats.URL())
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
		return c
	}
	e.run("fanin", fanin.Wire)
	run := e.start("town")
	rng := rand.New(rand.NewPCG(rand.Uint64(), 0))
	pair := []*exec.Cmd{workers(), workers()}
	for range 6 {
		before := e.counted()
		e.until("some progress", "SELECT (SELECT sum(completed) FROM run_stages) > $1 OR (SELECT bool_and(status <> 'running') FROM runs)", before)
		select {
		case <-time.After(time.Duration(rng.IntN(100)) * time.Millisecond): // anywhere in its cycle
		case <-t.Context().Done():
		}
		i := rng.IntN(2)
		_ = pair[i].Process.Kill()
		_ = pair[i].Wait()
		pair[i] = workers()
	}
	r := e.ended(run)
	if r.Status != "completed" || e.done(r, "reduce") != n {
		t.Errorf("run is %s with %d of %d", r.Status, e.done(r, "reduce"), n)
	}
	var attempts int
	if err := e.conn.QueryRow(t.Context(), "SELECT max(attempts) FROM tasks").Scan(&attempts); err != nil || attempts != 0 {
		t.Errorf("the kills cost %d attempts, %v", attempts, err)
	}
}

// Every message of the outcome stream is delivered again, and unreadable ones
// among them: nothing changes, and what cannot be read is kept.
func TestEngine_ReplayAndPoison(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	stop := e.run("fanin", fanin.Wire)
	e.run("workers", town(50, nil)...)
	run := e.start("town")
	first := e.ended(run)
	stop()
	nc := e.nats.Connect()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"{", `{"outcomes":[{"schema":1,"run":"x"}]}`, "\x00\x01", `{"outcomes":[{"schema":1,"run":"1","stage":"reduce","item":"doc-00001","generation":9,"try":1,"status":"STATUS_FAILED"}]}`} {
		if _, err := js.Publish(t.Context(), bus.DoneSubject(0, "reduce"), []byte(bad)); err != nil {
			t.Fatal(err)
		}
	}
	c, err := js.Consumer(t.Context(), bus.DoneStream, "fanin-0")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := nc.Request("$JS.API.CONSUMER.RESET."+bus.DoneStream+".fanin-0", []byte(`{"seq":1}`), 5*time.Second); err != nil {
		t.Fatal(err)
	}
	e.run("fanin", fanin.Wire)
	e.until("the poison", "SELECT count(*) >= 3 FROM poison")
	for deadline := time.Now().Add(time.Minute); ; {
		info, err := c.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if info.NumPending == 0 && info.NumAckPending == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d outcomes are still to be read", info.NumPending)
		}
	}
	e.exact(run)
	second, err := e.Run(t.Context(), run)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(first.Stages, second.Stages); diff != "" {
		t.Errorf("the replay changed the counters (-before +after):\n%s", diff)
	}
}

// BenchmarkHandOver measures the time from the end of one task's handler to
// the start of the next stage's, at low load: one document at a time.
func BenchmarkHandOver(b *testing.B) {
	e := newEngine(b)
	e.run("fanin", fanin.Wire)
	var mu sync.Mutex
	ended := map[string]time.Time{}
	var hops []time.Duration
	clocked := func(previous, name string, h handler) handler {
		return func(ctx context.Context, task *stage.Task) (stage.Result, error) {
			now := time.Now()
			mu.Lock()
			if at, ok := ended[previous+task.Subject+task.Item]; ok {
				hops = append(hops, now.Sub(at))
			}
			mu.Unlock()
			r, err := h(ctx, task)
			mu.Lock()
			ended[name+task.Subject+task.Item] = time.Now()
			mu.Unlock()
			return r, err
		}
	}
	e.run("workers", town(1, map[string]handler{
		"pagination": clocked("-", "pagination", pass),
		"reduce":     clocked("pagination", "reduce", pass),
		"compilation": clocked("-", "compilation", func(context.Context, *stage.Task) (stage.Result, error) {
			return stage.Result{Output: civic.Compiled{Version: "v"}}, nil
		}),
		"deploy": clocked("compilation", "deploy", func(context.Context, *stage.Task) (stage.Result, error) {
			return stage.Result{Output: civic.Deployed{Version: "v"}}, nil
		}),
	})...)
	i := 0
	for b.Loop() {
		i++
		e.ended(e.start(fmt.Sprintf("town%d", i)))
	}
	slices.Sort(hops)
	if len(hops) == 0 {
		b.Fatal("no hand-over was seen")
	}
	b.ReportMetric(float64(hops[len(hops)/2].Microseconds())/1000, "p50-ms/hop")
	b.ReportMetric(float64(hops[len(hops)*99/100].Microseconds())/1000, "p99-ms/hop")
	b.ReportMetric(float64(len(hops)), "hops")
}
