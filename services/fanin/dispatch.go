package fanin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/reeve-pipeline/reeve/pkg/bus"
	"github.com/reeve-pipeline/reeve/pkg/fault"
	"github.com/reeve-pipeline/reeve/pkg/ledger"
	"github.com/reeve-pipeline/reeve/pkg/stage"
	"github.com/reeve-pipeline/reeve/pkg/telemetry"
)

// Backlog is where planned tasks come from.
type Backlog interface {
	Backlogs(ctx context.Context, runs []int64) ([]ledger.Backlog, error)
	Undispatched(ctx context.Context, b ledger.Backlog, limit int) ([]ledger.Dispatchable, error)
	MarkDispatched(ctx context.Context, marks []ledger.Backlog) error
	Due(ctx context.Context, limit int) ([]ledger.Dispatchable, error)
	MarkRedispatched(ctx context.Context, tasks []ledger.Dispatchable) error
	Live(ctx context.Context) (map[string]int64, error)
	Record(ctx context.Context, outcomes []stage.Outcome) (ledger.Recorded, error)
}

// Publisher is where tasks go.
type Publisher interface {
	PublishTasks(ctx context.Context, tasks []bus.TaskMessage) []error
	ConsumerState(ctx context.Context, stage string) (bus.ConsumerState, error)
}

const (
	// tick is how often the dispatcher looks by itself: for retries that are
	// due, for runs that others started, and at how fast the stages are.
	tick = 250 * time.Millisecond
	// turn is how many tasks of one run are handed out before the next run's.
	turn = 200
	// least is the smallest window of a stage, in tasks.
	least = 32
	// ahead is how much of a stage's work is kept on the bus, at the rate it
	// was last seen to go.
	ahead = 1500 * time.Millisecond
	// patience is how long a step may take before it is given up and begun
	// again: the other end of a connection may be gone without a word.
	patience = time.Minute
)

// Dispatcher hands planned tasks out. Postgres is the backlog, the bus the
// working set: each stage has a window of live tasks, as large as its workers
// get through in a second or two, which runs share in turns, those of higher
// priority first. So one huge run never starves a small one, and a cancelled
// run leaves little behind.
//
// It publishes first and moves the mark after: a crash in between publishes
// again, which the bus takes for what it is while the message is there, and
// the ledger counts once when it is not.
type Dispatcher struct {
	books   Backlog
	bus     Publisher
	log     *zap.Logger
	metrics *telemetry.FanIn
	// mine reports whether this process looks after a run.
	mine func(run int64) bool

	wake   chan ledger.Recorded
	look   chan struct{} // look at everything now
	stages map[string]*pace
	// known are the backlogs that are known of.
	known map[ledger.RunStage]ledger.Backlog
}

// pace is how a stage gets on.
type pace struct {
	// live is how many tasks are on the bus or in hand.
	live int64
	// finished counts tasks since the last tick; rate is their smoothed number
	// per second.
	finished, rate float64
	// hands is how many workers' hands there are.
	hands int64
	// stuck: the bus took no more; wait for the next tick.
	stuck bool
	// last is the run that had the last turn.
	last int64
}

// window is how many tasks of the stage may be live: one waiting for each
// hand that works, and what they get through in the time ahead.
func (p *pace) window() int64 {
	return max(least, 2*p.hands+int64(p.rate*ahead.Seconds()))
}

// NewDispatcher returns a dispatcher for the runs that mine says are its own.
func NewDispatcher(books Backlog, publisher Publisher, log *zap.Logger, metrics *telemetry.FanIn, mine func(run int64) bool) *Dispatcher {
	return &Dispatcher{
		books: books, bus: publisher, log: log, metrics: metrics, mine: mine,
		wake: make(chan ledger.Recorded, 64), look: make(chan struct{}, 1), stages: map[string]*pace{}, known: map[ledger.RunStage]ledger.Backlog{},
	}
}

// Recorded tells the dispatcher of a commit: what may be handed out now, and
// what has made room. It never blocks; what it cannot tell, the next tick finds.
func (d *Dispatcher) Recorded(r ledger.Recorded) {
	select {
	case d.wake <- r:
	default:
	}
}

// Look makes the dispatcher look at the whole backlog at once.
func (d *Dispatcher) Look() {
	select {
	case d.look <- struct{}{}:
	default: // it is about to
	}
}

// Run hands tasks out until ctx ends. Faults of the bus or of Postgres are
// logged and tried again at the next tick.
func (d *Dispatcher) Run(ctx context.Context) error {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	full := true // look at everything, not only at what has been told
	for {
		if err := patiently(ctx, func(ctx context.Context) error { return d.round(ctx, full) }); err != nil && ctx.Err() == nil {
			d.log.Warn("tasks not handed out; trying again", zap.Error(err))
		}
		full = false
		var woken []ledger.Recorded
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			d.paceUp()
			full = true
		case <-d.look:
			full = true
		case r := <-d.wake:
			woken = append(woken, r)
		}
		for more := true; more; {
			select {
			case r := <-d.wake:
				woken = append(woken, r)
			default:
				more = false
			}
		}
		if err := patiently(ctx, func(ctx context.Context) error { return d.learn(ctx, woken) }); err != nil && ctx.Err() == nil {
			d.log.Warn("backlog not read; trying again", zap.Error(err))
		}
	}
}

// patiently does a step for no longer than patience.
func patiently(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return do(ctx)
}

// learn takes in what has been recorded.
func (d *Dispatcher) learn(ctx context.Context, woken []ledger.Recorded) error {
	var runs []int64
	for _, r := range woken {
		for name, n := range r.Finished {
			p := d.pace(name)
			p.finished += float64(n)
			p.live = max(0, p.live-int64(n))
		}
		for _, rs := range r.Planned {
			if !slices.Contains(runs, rs.Run) && d.mine(rs.Run) {
				runs = append(runs, rs.Run)
			}
		}
	}
	if len(runs) == 0 {
		return nil
	}
	list, err := d.books.Backlogs(ctx, runs)
	if err != nil {
		return err
	}
	for _, b := range list {
		d.know(b)
	}
	return nil
}

func (d *Dispatcher) know(b ledger.Backlog) {
	d.known[ledger.RunStage{Run: b.Run, Stage: b.Stage}] = b
}

func (d *Dispatcher) pace(name string) *pace {
	p := d.stages[name]
	if p == nil {
		p = &pace{}
		d.stages[name] = p
	}
	return p
}

// round hands out what there is room for. A full round first reads the whole
// backlog, and what is due again.
func (d *Dispatcher) round(ctx context.Context, full bool) error {
	if full {
		if err := d.refresh(ctx); err != nil {
			return err
		}
		if err := d.retries(ctx); err != nil {
			return err
		}
	}
	byStage := map[string][]ledger.Backlog{}
	for _, b := range d.known {
		byStage[b.Stage] = append(byStage[b.Stage], b)
	}
	for name, list := range byStage {
		if err := d.share(ctx, name, list); err != nil {
			return err
		}
	}
	return nil
}

// refresh reads the backlog of all runs and how the stages get on.
func (d *Dispatcher) refresh(ctx context.Context) error {
	list, err := d.books.Backlogs(ctx, nil)
	if err != nil {
		return err
	}
	live, err := d.books.Live(ctx)
	if err != nil {
		return err
	}
	clear(d.known)
	for _, b := range list {
		if d.mine(b.Run) {
			d.know(b)
			d.pace(b.Stage)
		}
	}
	waiting := map[string]int64{}
	for _, b := range list {
		waiting[b.Stage] += b.LastSeq - b.Dispatched
	}
	for name, p := range d.stages {
		p.live, p.stuck = live[name], false
		d.metrics.Backlog.WithLabelValues(name).Set(float64(waiting[name] + p.live))
		if waiting[name] == 0 {
			continue
		}
		state, err := d.bus.ConsumerState(ctx, name)
		if err != nil {
			d.log.Warn("consumer not seen", zap.String("stage", name), zap.Error(err))
			continue
		}
		p.hands = int64(state.InHand + state.Waiting)
	}
	return nil
}

// paceUp takes how much each stage got through since the last tick into its rate.
func (d *Dispatcher) paceUp() {
	for _, p := range d.stages {
		p.rate += (p.finished/tick.Seconds() - p.rate) / 2
		p.finished = 0
	}
}

// retries hands out tasks whose wait is over. They were given a place in the
// window before, and do not wait for one again.
func (d *Dispatcher) retries(ctx context.Context) error {
	for {
		due, err := d.books.Due(ctx, turn)
		if err != nil || len(due) == 0 {
			return err
		}
		sent, err := d.publish(ctx, due)
		if err := d.books.MarkRedispatched(ctx, due[:sent]); err != nil {
			return err
		}
		if err != nil {
			return err
		}
		if len(due) < turn {
			return nil
		}
	}
}

// share gives the runs with a backlog at a stage their turns, the higher
// priority first, as long as there is room.
func (d *Dispatcher) share(ctx context.Context, name string, list []ledger.Backlog) error {
	p := d.pace(name)
	slices.SortFunc(list, func(a, b ledger.Backlog) int {
		// Within a priority, begin after the run that had the last turn.
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(btoi(a.Run <= p.last), btoi(b.Run <= p.last)), cmp.Compare(a.Run, b.Run))
	})
	for len(list) > 0 {
		level := list[0].Priority
		n := slices.IndexFunc(list, func(b ledger.Backlog) bool { return b.Priority != level })
		if n < 0 {
			n = len(list)
		}
		peers := list[:n]
		list = list[n:]
		for len(peers) > 0 {
			var rest []ledger.Backlog
			for _, b := range peers {
				room := p.window() - p.live
				if room <= 0 || p.stuck {
					return nil
				}
				left, err := d.handOut(ctx, p, b, int(min(room, turn)))
				if err != nil {
					return err
				}
				p.last = b.Run
				if left.Dispatched < left.LastSeq {
					rest = append(rest, left)
				}
			}
			peers = rest
		}
	}
	return nil
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// handOut publishes the next tasks of a backlog and moves its mark. It returns
// what is left.
func (d *Dispatcher) handOut(ctx context.Context, p *pace, b ledger.Backlog, limit int) (ledger.Backlog, error) {
	tasks, err := d.books.Undispatched(ctx, b, limit)
	if err != nil {
		return b, err
	}
	sent, failed := d.publish(ctx, tasks)
	if sent > 0 {
		b.Dispatched = tasks[sent-1].Seq
	}
	if failed == nil && len(tasks) < limit {
		b.Dispatched = max(b.Dispatched, b.LastSeq) // what is missing from the numbers has been cancelled
	}
	if err := d.books.MarkDispatched(ctx, []ledger.Backlog{b}); err != nil {
		return b, err
	}
	p.live += int64(sent)
	if b.Dispatched >= b.LastSeq {
		delete(d.known, ledger.RunStage{Run: b.Run, Stage: b.Stage})
	} else {
		d.know(b)
	}
	if errors.Is(failed, bus.ErrFull) {
		p.stuck = true
		d.log.Warn("the bus is full; waiting", zap.String("stage", b.Stage), zap.Error(failed))
		return b, nil
	}
	return b, failed
}

// publish queues tasks and returns how many of them, from the first on, are
// dealt with. A task that can never be queued is failed.
func (d *Dispatcher) publish(ctx context.Context, tasks []ledger.Dispatchable) (int, error) {
	if len(tasks) == 0 {
		return 0, nil
	}
	messages := make([]bus.TaskMessage, len(tasks))
	for i, t := range tasks {
		messages[i] = bus.TaskMessage{Task: t.Task, Priority: int(t.Priority), Traceparent: t.TraceID}
	}
	for i, err := range d.bus.PublishTasks(ctx, messages) {
		if err == nil {
			continue
		}
		if fault.Of(err) != fault.ClassPermanent {
			return i, err
		}
		t := tasks[i]
		d.log.Error("task cannot be queued", zap.Int64("run", t.Run), zap.String("stage", t.Stage), zap.String("item", t.Item), zap.Error(err))
		r, err := d.books.Record(ctx, []stage.Outcome{{
			Run: t.Run, Stage: t.Stage, Item: t.Item, Generation: t.Generation, Try: t.Try, Status: stage.StatusFailed,
			ErrorClass: fault.ClassPermanent, ErrorMessage: fmt.Sprintf("cannot be queued: %v", err), Fingerprint: "unqueueable",
		}})
		if err != nil {
			return i, err
		}
		d.Recorded(r)
	}
	return len(tasks), nil
}
