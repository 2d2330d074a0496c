// Package fault classes errors. A class is decided where the error is made, by
// its type or status code, never by searching its message; everything after
// that only asks for it.
package fault

import (
	"errors"
	"fmt"
	"time"
)

// Class is the kind of a failure; it decides what happens to the task.
type Class string

const (
	// ClassPermanent: the same input always fails. Recorded as failed at once.
	ClassPermanent Class = "permanent"
	// ClassTransient: may pass. Tried again until the attempts are spent.
	ClassTransient Class = "transient"
	// ClassRateLimited: passes, but not before a given wait.
	ClassRateLimited Class = "rate_limited"
	// ClassInfra: Reeve's own parts are unreachable. No attempt is spent.
	ClassInfra Class = "infra"
	// ClassPoison: a message that cannot be read.
	ClassPoison Class = "poison"
	// ClassLost: the task vanished, or took its worker with it, once too often.
	ClassLost Class = "lost"
	// ClassCancelled: somebody stopped it.
	ClassCancelled Class = "cancelled"
)

// classed is an error with a class decided where it was made.
type classed struct {
	err   error
	class Class
	after time.Duration
}

func (c *classed) Error() string { return c.err.Error() }
func (c *classed) Unwrap() error { return c.err }

// Permanent marks an error as one that the same input always brings.
func Permanent(err error) error { return mark(err, ClassPermanent, 0) }

// Permanentf is fmt.Errorf, marked as permanent.
func Permanentf(format string, args ...any) error {
	return Permanent(fmt.Errorf(format, args...))
}

// Infra marks an error as a fault of Reeve's own parts.
func Infra(err error) error { return mark(err, ClassInfra, 0) }

// RetryAfter marks an error as one that passes, but not before d.
func RetryAfter(err error, d time.Duration) error { return mark(err, ClassRateLimited, d) }

func mark(err error, class Class, after time.Duration) error {
	if err == nil {
		return nil
	}
	return &classed{err: err, class: class, after: after}
}

// After returns how long to wait at least before the next attempt; 0 when the
// error does not say.
func After(err error) time.Duration {
	if c, ok := errors.AsType[*classed](err); ok {
		return c.after
	}
	return 0
}
