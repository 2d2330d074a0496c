package stage

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/reeve-pipeline/reeve/pkg/fault"
	"github.com/reeve-pipeline/reeve/pkg/pipeline"
)

// Config says how [Run] works a stage off.
type Config struct {
	Stage pipeline.Stage
	// Hands is the number of tasks worked on at once.
	Hands int
	// Lease is how long the queue leaves a task in hand without a sign of life.
	Lease time.Duration
	// Worker names this process in outcomes: host/pid.
	Worker string
	Log    *zap.Logger
	// Observe, if not nil, is told of every task taken and how long it was
	// queued. What it returns is told how the attempt ended.
	Observe func(queued time.Duration) func(Attempt)
}

// Attempt is one attempt of a task, when it has ended.
type Attempt struct {
	// Status is empty when the task was given back or dropped.
	Status Status
	Class  fault.Class
	Took   time.Duration
}

const (
	// A task at work reports that it is after firstSign, then every nextSign.
	firstSign = 5 * time.Second
	nextSign  = 30 * time.Second
	// returnDelay keeps a task given back away from pulls that are just being
	// cancelled: there it would be lost until its lease ends.
	returnDelay = 250 * time.Millisecond
	// maxDeliveries is how often a message is handed out before its task is
	// taken to be what kills its workers.
	maxDeliveries = 10
	// A handler that has not noticed the end of its context is left behind
	// after overrun, and after hurry when the process stops. Then a report may
	// take no longer than lastWord.
	overrun  = 15 * time.Second
	hurry    = 3 * time.Second
	lastWord = 1500 * time.Millisecond
)

// What ends the context of an attempt, besides a stop.
var (
	errTimedOut  = errors.New("timeout")
	errCancelled = errors.New("run cancelled")
)

// Run works tasks off the queue with c.Hands hands, each of which takes one
// task when it is free. When ctx ends it takes no more. Tasks in hand go on
// under the context work; when that ends too they are given back, which spends
// no attempt. Run returns when all hands are empty: nil, or why the queue is
// gone.
//
// The order of effects is: the handler's outputs are durable, then the outcome
// is, then the task leaves the queue. A crash in between repeats a step and
// skips none.
func Run(ctx, work context.Context, q Queue, h Handler, c Config) error {
	w := &worker{queue: q, handler: h, Config: c}
	pulling, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var hands sync.WaitGroup
	for range max(1, c.Hands) {
		hands.Go(func() {
			for {
				d, err := q.Next(pulling)
				if err != nil {
					stop(err) // of no effect when pulling has ended already
					return
				}
				w.work(work, d)
			}
		})
	}
	hands.Wait()
	if ctx.Err() == nil {
		return fmt.Errorf("stage %s: %w", c.Stage.Name, context.Cause(pulling))
	}
	return nil
}

type worker struct {
	queue   Queue
	handler Handler
	Config
}

// work sees one delivery through to its end.
func (w *worker) work(ctx context.Context, d Delivery) {
	task, err := d.Task()
	if task == nil {
		w.Log.Error("message dropped: nobody can tell which task it is", zap.Error(err))
		w.settled(w.Log, d.Drop("unreadable"))
		return
	}
	log := w.Log.With(zap.Int64("run", task.Run), zap.String("stage", task.Stage), zap.String("item", task.Item),
		zap.Int("generation", task.Generation), zap.Int("try", task.Try), zap.Int("attempt", task.Attempt))
	stopBeating := w.heartbeat(log, d)
	defer stopBeating()
	ended := func(Attempt) {}
	if w.Observe != nil {
		ended = w.Observe(time.Since(d.Queued()))
	}

	o := Outcome{
		Run: task.Run, Stage: task.Stage, Item: task.Item, Generation: task.Generation, Try: task.Try,
		Worker: w.Worker, StartedAt: time.Now(),
	}
	var end ending
	switch {
	case err != nil:
		err = fault.Poison(err)
	case d.Deliveries() > maxDeliveries:
		err = fault.Lost(fmt.Errorf("handed out %d times without an outcome: it may have taken its workers with it", d.Deliveries()-1))
	default:
		o, end, err = w.attempt(ctx, log, task, o)
	}
	o.EndedAt = time.Now()

	v := judge(end, err, task, w.Stage, o.EndedAt, rand.Float64()) //nolint:gosec // jitter is no secret
	switch v.do {
	case giveBack:
		log.Info("task given back: the process stops")
		w.settled(log, d.Return(returnDelay))
	case drop:
		log.Info("task dropped: its run was cancelled")
		w.settled(log, d.Done())
	case report:
		w.report(ctx, log, d, judged(o, v, err), err)
	}
	took := o.EndedAt.Sub(o.StartedAt)
	log.Debug("attempt", zap.String("status", string(v.status)), zap.String("class", string(v.class)),
		zap.Duration("took", took), zap.Duration("after", v.after), zap.Int("deliveries", d.Deliveries()), zap.Error(err))
	ended(Attempt{Status: v.status, Class: v.class, Took: took})
}

// judged completes an outcome by the verdict on err.
func judged(o Outcome, v verdict, err error) Outcome {
	o.Status, o.After = v.status, v.after
	if v.status == StatusWaiting {
		o.ExternalJobID, _, _ = fault.AsWaiting(err)
	}
	if v.class != "" {
		o.ErrorClass, o.ErrorMessage, o.Fingerprint = v.class, fault.Message(err), fault.Fingerprint(o.Stage, err)
	}
	return o
}

// report sees the outcome onto the bus, however long that takes, and then the
// task off it. Only a stop ends that early: then the task goes back, to be
// worked on again.
func (w *worker) report(ctx context.Context, log *zap.Logger, d Delivery, o Outcome, cause error) {
	ctx, cancel := linger(ctx, lastWord)
	defer cancel()
	err := w.tell(ctx, log, o)
	if fault.Of(err) == fault.ClassPermanent {
		cause = err
		o.Output, o.Items, o.Artifacts, o.Metrics = nil, nil, nil, nil
		o = judged(o, verdict{status: StatusFailed, class: fault.ClassPermanent}, cause)
		err = w.tell(ctx, log, o)
	}
	if err != nil {
		log.Warn("task given back: its outcome could not be reported", zap.Error(err))
		w.settled(log, d.Return(returnDelay))
		return
	}
	if o.Status == StatusFailed {
		log.Error("task failed", zap.String("class", string(o.ErrorClass)), zap.Error(cause))
	}
	if o.ErrorClass == fault.ClassPoison {
		w.settled(log, d.Drop("unreadable"))
		return
	}
	w.settled(log, d.Done())
}

// tell reports an outcome, again and again until it is durable, ctx ends, or
// the error is permanent.
func (w *worker) tell(ctx context.Context, log *zap.Logger, o Outcome) error {
	wait := 100 * time.Millisecond
	for {
		err := w.queue.Report(ctx, o)
		if err == nil || fault.Of(err) == fault.ClassPermanent {
			return err
		}
		if ctx.Err() == nil {
			log.Warn("outcome not reported yet", zap.Error(err), zap.Duration("again_in", wait))
		}
		select {
		case <-ctx.Done():
			return fault.Infra(err)
		case <-time.After(wait):
		}
		wait = min(2*wait, 5*time.Second)
	}
}

// settled notes that a task's last word did not reach the queue: then it is
// handed out again when its lease ends.
func (w *worker) settled(log *zap.Logger, err error) {
	if err != nil {
		log.Warn("queue not told; the task will be handed out again", zap.Error(err))
	}
}

// heartbeat keeps the task in hand until stop is called.
func (w *worker) heartbeat(log *zap.Logger, d Delivery) (stop func()) {
	return every(w.Lease/3, w.Lease/3, func() {
		if err := d.Working(); err != nil {
			log.Debug("heartbeat", zap.Error(err))
		}
	})
}

// every calls do after first, then each time next has passed, until stop is
// called. Stop waits for the last call.
func every(first, next time.Duration, do func()) (stop func()) {
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		timer := time.NewTimer(first)
		defer timer.Stop()
		for {
			select {
			case <-end:
				return
			case <-timer.C:
				do()
				timer.Reset(next)
			}
		}
	}()
	return func() { close(end); <-ended }
}

// attempt calls the handler once and returns the outcome with what it made of
// the task, and how the attempt ended.
func (w *worker) attempt(ctx context.Context, log *zap.Logger, task *Task, o Outcome) (Outcome, ending, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, w.Stage.Timeout, errTimedOut)
	defer cancel()
	ctx, cancelRun := context.WithCancelCause(ctx)
	defer cancelRun(nil)
	forget := w.queue.Watch(task.Run, func() { cancelRun(errCancelled) })
	defer forget()

	part := o
	part.Status = StatusWorking
	children := &spawner{part: part, seen: map[string]struct{}{}, tell: func(ctx context.Context, o Outcome) error { return w.tell(ctx, log, o) }}
	task.Spawn = children.spawn
	task.Inputs = func(ctx context.Context) iter.Seq2[Input, error] { return w.queue.Inputs(ctx, task) }

	signs, stopSigns := context.WithCancel(ctx)
	waitSigns := every(firstSign, nextSign, func() {
		if err := w.queue.Report(signs, part); err != nil && signs.Err() == nil {
			log.Warn("sign of life not reported", zap.Error(err))
		}
	})
	result, err := w.call(ctx, log, task)
	stopSigns()
	waitSigns()

	end := endingOf(ctx)
	if err != nil {
		if end == timedOut {
			err = fmt.Errorf("timed out after %v: %w", w.Stage.Timeout, err)
		}
		return o, end, err
	}
	o.Skip, o.Artifacts, o.Spawned = result.Skip, result.Artifacts, children.spawned()
	o.Metrics = finite(result.Metrics)
	if o.Output, err = object(result.Output); err != nil {
		return part, returned, fault.Permanent(fmt.Errorf("output: %w", err))
	}
	return o, end, nil
}

// endingOf tells from an attempt's context what has ended it so far.
func endingOf(ctx context.Context) ending {
	switch cause := context.Cause(ctx); {
	case cause == nil:
		return returned
	case errors.Is(cause, errCancelled):
		return cancelled
	case errors.Is(cause, errTimedOut):
		return timedOut
	default:
		return stopped
	}
}

// call calls the handler. A panic becomes an error; a handler that does not
// notice the end of its context is left behind.
func (w *worker) call(ctx context.Context, log *zap.Logger, task *Task) (Result, error) {
	type answer struct {
		result Result
		err    error
	}
	answers := make(chan answer, 1)
	go func() {
		a := answer{err: errors.New("the handler ended its goroutine")}
		defer func() {
			if err := fault.Recovered(recover()); err != nil {
				a.err = err
				if p, ok := errors.AsType[*fault.Panic](err); ok {
					log.Error("handler panicked", zap.Any("panic", p.Value), zap.ByteString("stack", p.Stack))
				}
			}
			answers <- a
		}()
		a.result, a.err = w.handler.Handle(ctx, task)
	}()
	select {
	case a := <-answers:
		return a.result, a.err
	case <-ctx.Done():
	}
	patience := overrun
	if endingOf(ctx) == stopped {
		patience = hurry
	}
	select {
	case a := <-answers:
		return a.result, a.err
	case <-time.After(patience):
		log.Error("handler left behind: it goes on although its context has ended", zap.Duration("since", patience))
		return Result{}, fmt.Errorf("the handler did not return within %v of its context's end", patience)
	}
}

// finite drops what JSON has no number for.
func finite(metrics map[string]float64) map[string]float64 {
	kept := make(map[string]float64, len(metrics))
	for name, v := range metrics {
		if !math.IsNaN(v) && !math.IsInf(v, 0) {
			kept[name] = v
		}
	}
	return kept
}

// linger returns a context that outlives ctx by d.
func linger(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	lingering, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-lingering.Done():
		case <-time.After(d):
			cancel()
		}
	})
	return lingering, func() { stop(); cancel() }
}
