package stage

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/reeve-pipeline/reeve/pkg/fault"
	"github.com/reeve-pipeline/reeve/pkg/pipeline"
)

// The whole policy of retries at a glance.
func TestJudge(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	now := time.Date(2025, 1, 2, 3, 4, 5, 0, time.UTC)
	settings := pipeline.Stage{Backoff: time.Second, BackoffMax: time.Minute}
	const half = 0.5 // what random says
	failed := func(class fault.Class) verdict { return verdict{status: StatusFailed, class: class} }
	again := func(class fault.Class, after time.Duration) verdict {
		return verdict{status: StatusRetry, class: class, after: after}
	}
	for _, tt := range []struct {
		name         string
		end          ending
		err          error
		attempt, try int
		want         verdict
	}{
		{"success is recorded", returned, nil, 1, 1, verdict{status: StatusCompleted}},
		{"success during a stop too", stopped, nil, 1, 1, verdict{status: StatusCompleted}},
		{"and at the last moment before the timeout", timedOut, nil, 1, 1, verdict{status: StatusCompleted}},

		{"a failure is tried again", returned, broken, 1, 1, again(fault.ClassTransient, time.Second/2)},
		{"with a longer wait each time", returned, broken, 2, 2, again(fault.ClassTransient, time.Second)},
		{"until the attempts are spent", returned, broken, 3, 3, failed(fault.ClassTransient)},
		{"a permanent failure spends one attempt", returned, fault.Permanent(broken), 1, 1, failed(fault.ClassPermanent)},
		{"however it is wrapped", returned, fmt.Errorf("page 3: %w", fault.Permanent(broken)), 1, 1, failed(fault.ClassPermanent)},

		{"a host's wait wins over a shorter backoff", returned, fault.RetryAfter(broken, time.Hour), 1, 1, again(fault.ClassRateLimited, time.Hour)},
		{"and loses against a longer one", returned, fault.RetryAfter(broken, time.Millisecond), 2, 2, again(fault.ClassRateLimited, time.Second)},
		{"it spends attempts", returned, fault.RetryAfter(broken, time.Hour), 3, 3, failed(fault.ClassRateLimited)},

		{"our own parts' faults are tried again for ever", returned, fault.Infra(broken), 3, 40, again(fault.ClassInfra, time.Minute/2)},
		{"with a wait that counts tries, not attempts", returned, fault.Infra(broken), 1, 3, again(fault.ClassInfra, 2*time.Second)},

		{"a timeout spends an attempt", timedOut, fmt.Errorf("read: %w", context.DeadlineExceeded), 1, 1, again(fault.ClassTransient, time.Second/2)},
		{"whatever the handler makes of it", timedOut, fault.Permanent(broken), 1, 1, again(fault.ClassTransient, time.Second/2)},
		{"or the store", timedOut, fault.Infra(broken), 1, 1, again(fault.ClassTransient, time.Second/2)},
		{"and may be the last", timedOut, context.DeadlineExceeded, 3, 3, failed(fault.ClassTransient)},

		{"a stop is not held against the task", stopped, context.Canceled, 3, 3, verdict{do: giveBack}},
		{"whatever the handler makes of it", stopped, fault.Permanent(broken), 3, 3, verdict{do: giveBack}},
		{"a cancelled run's task is dropped", cancelled, context.Canceled, 1, 1, verdict{do: drop}},

		{"an external job is waited for", returned, fault.Waiting("job-1", now.Add(time.Hour)), 1, 1, verdict{status: StatusWaiting, after: time.Hour}},
		{"also when the process stops", stopped, fault.Waiting("job-1", now.Add(time.Hour)), 1, 1, verdict{status: StatusWaiting, after: time.Hour}},
		{"a deadline that has passed is now", returned, fault.Waiting("job-1", now.Add(-time.Hour)), 1, 1, verdict{status: StatusWaiting}},

		{"a message that cannot be read fails", returned, fault.Poison(broken), 1, 1, failed(fault.ClassPoison)},
		{"and so does a task that kills its workers", returned, fault.Lost(broken), 1, 1, failed(fault.ClassLost)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			task := &Task{Attempt: tt.attempt, Try: tt.try, MaxAttempts: 3}
			if got := judge(tt.end, tt.err, task, settings, now, half); got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestBackoff_staysInBounds(t *testing.T) {
	t.Parallel()
	s := pipeline.Stage{Backoff: time.Second, BackoffMax: 5 * time.Minute}
	for _, n := range []int{-1, 0, 1, 2, 9, 10, 100, 5000} {
		if low := backoff(s, n, 0); low != 0 {
			t.Errorf("try %d: least wait %v, want 0", n, low)
		}
		if high := backoff(s, n, 0.999999); high <= 0 || high > s.BackoffMax {
			t.Errorf("try %d: most wait %v, want within %v", n, high, s.BackoffMax)
		}
	}
}
