package fault

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os/exec"
	"runtime/debug"
	"syscall"
	"time"
)

// Of returns the class of an error: the mark it carries, else what the table
// says of its type, else transient. Of(nil) is empty.
//
// A cancelled context is transient here; whether it was the worker's stop, and
// then nobody's fault, is known only to whoever holds the context.
func Of(err error) Class {
	if err == nil {
		return ""
	}
	if c, ok := errors.AsType[*classed](err); ok {
		return c.class
	}
	for _, rule := range table {
		if rule.applies(err) {
			return rule.class
		}
	}
	return ClassTransient
}

// table says of which class errors are that nobody has marked. The first rule
// that applies decides.
var table = []struct {
	what    string
	class   Class
	applies func(error) bool
}{
	{"the machine is out of disk, files or memory, or its disk is broken", ClassInfra, isAny(
		syscall.ENOSPC, syscall.EDQUOT, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EIO, syscall.EROFS)},
	{"a program is not there or cannot be run", ClassPermanent, anyOf(isType[*exec.Error], notStarted)},
	{"a program ended with a status that sysexits.h calls final", ClassPermanent, exited(
		64, 65, 66, 67, 68, 70, 76, 77, 78, 126, 127)},
	{"a program could not use its machine", ClassInfra, exited(71, 72, 73, 74)},
	{"a program crashed on its input", ClassPermanent, signalled(
		syscall.SIGSEGV, syscall.SIGBUS, syscall.SIGABRT, syscall.SIGILL, syscall.SIGFPE, syscall.SIGSYS, syscall.SIGTRAP, syscall.SIGXCPU, syscall.SIGXFSZ)},
	{"a program was killed: out of memory, or by somebody", ClassTransient, isType[*exec.ExitError]},
	{"time ran out", ClassTransient, isAny(context.DeadlineExceeded, context.Canceled)},
	{"there is no such host", ClassPermanent, noSuchHost},
	{"a certificate is not trusted", ClassPermanent, anyOf(
		isType[*tls.CertificateVerificationError], isType[x509.UnknownAuthorityError], isType[x509.HostnameError],
		isType[x509.CertificateInvalidError], isType[tls.RecordHeaderError])},
	{"an address cannot be read", ClassPermanent, anyOf(
		isType[*net.AddrError], isType[*net.ParseError], isType[net.InvalidAddrError],
		isType[url.EscapeError], isType[url.InvalidHostError])},
	{"more bytes than are allowed", ClassPermanent, isType[*http.MaxBytesError]},
	{"the network: refused, reset, timed out, unreachable", ClassTransient, isType[net.Error]},
}

func isAny(targets ...error) func(error) bool {
	return func(err error) bool {
		for _, t := range targets {
			if errors.Is(err, t) {
				return true
			}
		}
		return false
	}
}

func isType[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

func anyOf(rules ...func(error) bool) func(error) bool {
	return func(err error) bool {
		for _, applies := range rules {
			if applies(err) {
				return true
			}
		}
		return false
	}
}

func noSuchHost(err error) bool {
	dns, ok := errors.AsType[*net.DNSError](err)
	return ok && dns.IsNotFound
}

// notStarted matches a program given by its path that could not be started.
func notStarted(err error) bool {
	path, ok := errors.AsType[*fs.PathError](err)
	return ok && path.Op == "fork/exec" && !isAny(syscall.EAGAIN, syscall.ETXTBSY)(err)
}

// exited matches a program that ended by itself with one of the codes.
func exited(codes ...int) func(error) bool {
	return func(err error) bool {
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			return false
		}
		for _, c := range codes {
			if exit.ExitCode() == c {
				return true
			}
		}
		return false
	}
}

// signalled matches a program that one of the signals ended, also when a shell
// in between reports it as 128 and the signal's number.
func signalled(signals ...syscall.Signal) func(error) bool {
	return func(err error) bool {
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			return false
		}
		status, _ := exit.Sys().(syscall.WaitStatus)
		for _, s := range signals {
			if status.Signaled() && status.Signal() == s || exit.ExitCode() == 128+int(s) {
				return true
			}
		}
		return false
	}
}

// Panic is what a recovered panic becomes: a bug, and transient, since the
// next attempt may take another way.
type Panic struct { //nolint:errname // it reads fault.Panic
	Value any
	Stack []byte
}

// Error says what was panicked with; the stack is for the log.
func (p *Panic) Error() string { return fmt.Sprintf("panic: %v", p.Value) }

// Unwrap returns the error that was panicked with, if it was one.
func (p *Panic) Unwrap() error {
	err, _ := p.Value.(error)
	return err
}

// Recovered turns the value of recover() into an error; nil stays nil. It is
// called in the deferred function itself, so that the stack is the panic's.
func Recovered(value any) error {
	if value == nil {
		return nil
	}
	return mark(&Panic{Value: value, Stack: debug.Stack()}, ClassTransient, 0)
}

// Cancelled marks an error as somebody's wish.
func Cancelled(err error) error { return mark(err, ClassCancelled, 0) }

// Poison marks a message that cannot be read.
func Poison(err error) error { return mark(err, ClassPoison, 0) }

// Lost marks work that vanished once too often.
func Lost(err error) error { return mark(err, ClassLost, 0) }

// Waiting is what a handler returns when an external service has the task: it
// is neither done nor failed. id is the service's own name for the job.
// deadline is when to ask the service what became of it.
func Waiting(id string, deadline time.Time) error { return &waiting{id, deadline} }

// AsWaiting returns what [Waiting] was given; ok is false for other errors.
func AsWaiting(err error) (id string, deadline time.Time, ok bool) {
	if w, is := errors.AsType[*waiting](err); is {
		return w.id, w.deadline, true
	}
	return "", time.Time{}, false
}

type waiting struct {
	id       string
	deadline time.Time
}

func (w *waiting) Error() string { return "waiting for external job " + w.id }
