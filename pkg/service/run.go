package service

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"go.uber.org/zap"
)

const (
	// closeTime bounds each closer.
	closeTime = 5 * time.Second
	// overrun is how long runners may take to return after their work's context
	// has ended, before the process gives them up.
	overrun = 5 * time.Second
)

// Run opens all wires, serves health and metrics, runs until ctx ends or a
// runner fails or all are done, and stops in two phases. It returns the first
// error of a wire or a runner, and those of the closers. An Env is run once.
func Run(ctx context.Context, env *Env, wires ...Wire) error {
	stopServing, err := env.serve(ctx)
	if err != nil {
		return err
	}
	defer stopServing()
	err = env.run(ctx, wires)
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = nil // stopped while it was starting
	}
	return errors.Join(err, env.Close(context.WithoutCancel(ctx)))
}

func (e *Env) run(ctx context.Context, wires []Wire) error {
	began := time.Now()
	runners := make([]Runner, 0, len(wires))
	for _, wire := range wires {
		runner, err := wire(ctx, e)
		if err != nil {
			// A misspelt setting may be why.
			return errors.Join(err, e.proc.settings.unknown(true))
		}
		runners = append(runners, runner)
	}
	if err := e.Unknown(); err != nil {
		return err
	}
	e.proc.phase.CompareAndSwap(starting, running)
	e.Log.Info("ready", zap.String("http", e.Addr()), zap.Duration("took", time.Since(began)))
	return e.supervise(ctx, runners)
}

// supervise runs the runners and sees them to their end.
func (e *Env) supervise(ctx context.Context, runners []Runner) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, len(runners))
	for _, run := range runners {
		go func() { ended <- run(ctx) }()
	}

	var first error
	stopped := ctx.Done()
	var graceOver, giveUp <-chan time.Time
	for left := len(runners); left > 0; {
		select {
		case err := <-ended:
			left--
			if err != nil && first == nil && (ctx.Err() == nil || !errors.Is(err, context.Canceled)) {
				first = err
				stop()
			}
		case <-stopped:
			stopped = nil
			e.proc.phase.Store(stopping)
			e.Log.Info("stopping", zap.Duration("grace", e.Grace()))
			graceOver = time.After(e.Grace())
		case <-graceOver:
			e.Log.Warn("grace time is over, work in hand is given back", zap.Int("runners", left))
			e.proc.endWork()
			giveUp = time.After(overrun)
		case <-giveUp:
			stacks := make([]byte, 1<<16)
			stacks = stacks[:runtime.Stack(stacks, true)]
			e.Log.Error("runners do not stop", zap.Int("runners", left), zap.ByteString("stacks", stacks))
			return errors.Join(first, fmt.Errorf("%d runners did not stop %s after the grace time of %s", left, overrun, e.Grace()))
		}
	}
	return first
}

// Close ends [Env.Work] and runs the closers. [Run] does it; it is for programs
// and tests that do not call that.
func (e *Env) Close(ctx context.Context) error {
	e.proc.phase.Store(stopping)
	e.proc.endWork()
	var errs []error
	for {
		e.proc.mu.Lock()
		n := len(e.proc.closers)
		if n == 0 {
			e.proc.mu.Unlock()
			return errors.Join(errs...)
		}
		closer := e.proc.closers[n-1]
		e.proc.closers = e.proc.closers[:n-1]
		e.proc.mu.Unlock()
		errs = append(errs, within(ctx, closer))
	}
}

// within calls a closer and leaves it behind when it does not keep its time.
func within(ctx context.Context, closer func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, closeTime)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- closer(ctx) }()
	select {
	case err := <-done:
		return err
	case <-time.After(closeTime + time.Second):
		return fmt.Errorf("a closer did not end within %s", closeTime)
	}
}
