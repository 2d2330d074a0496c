package stage

import (
	"math"
	"time"

	"github.com/reeve-pipeline/reeve/pkg/fault"
	"github.com/reeve-pipeline/reeve/pkg/pipeline"
)

// ending is how an attempt came to its end.
type ending int

const (
	returned  ending = iota // of its own accord
	timedOut                // by the stage's timeout
	stopped                 // because the process stops
	cancelled               // because the run was cancelled
)

// verdict is what becomes of a task: reported, given back to the queue, or
// dropped without a word. Only a report has the other fields.
type verdict struct {
	do     action
	status Status
	class  fault.Class
	// after is the least wait of a retry, or how long a waiting task waits.
	after time.Duration
}

type action int

const (
	report action = iota
	giveBack
	drop
)

// judge is the whole policy of retries. It reads no clock and no randomness
// but its arguments: now, and random in [0, 1).
//
// Whether a retry spends an attempt follows from its class alone: infra does
// not, the others do.
func judge(end ending, err error, task *Task, s pipeline.Stage, now time.Time, random float64) verdict {
	if err == nil {
		return verdict{status: StatusCompleted} // also during a stop: the work is done
	}
	if _, deadline, ok := fault.AsWaiting(err); ok {
		return verdict{status: StatusWaiting, after: max(0, deadline.Sub(now))} // also then: the job's id would be lost
	}
	class := fault.Of(err)
	switch end {
	case returned:
	case cancelled:
		return verdict{do: drop}
	case stopped:
		return verdict{do: giveBack} // whatever err says, it may be the stop's echo
	case timedOut:
		class = fault.ClassTransient // whatever err says, it may be the timeout's echo
	}
	retry := verdict{status: StatusRetry, class: class, after: backoff(s, task.Attempt, random)}
	switch {
	case class == fault.ClassInfra:
		retry.after = backoff(s, task.Try, random)
		return retry
	case class == fault.ClassTransient && task.Attempt < task.MaxAttempts:
		return retry
	case class == fault.ClassRateLimited && task.Attempt < task.MaxAttempts:
		retry.after = max(retry.after, fault.After(err))
		return retry
	default:
		return verdict{status: StatusFailed, class: class}
	}
}

// backoff is the wait after the n-th try: full jitter below
// min(BackoffMax, Backoff·2^(n-1)).
func backoff(s pipeline.Stage, n int, random float64) time.Duration {
	ceiling := float64(s.Backoff) * math.Pow(2, float64(max(n, 1)-1))
	return time.Duration(random * min(ceiling, float64(s.BackoffMax)))
}
