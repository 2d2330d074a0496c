package fault_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/reeve-pipeline/reeve/pkg/fault"
)

// shell runs a command line and returns how it ended.
func shell(t *testing.T, line string) error {
	t.Helper()
	return exec.CommandContext(t.Context(), "/bin/sh", "-c", line).Run()
}

// refused is the error of a dial to a port that nobody listens on.
func refused(t *testing.T) error {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	var d net.Dialer
	_, err = d.DialContext(t.Context(), "tcp", addr)
	return err
}

// untrusted is the error of a request to a server with a certificate of its own making.
func untrusted(t *testing.T) error {
	t.Helper()
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	s.Config.ErrorLog = zap.NewStdLog(zap.NewNop()) // it complains of the client, too
	s.StartTLS()
	t.Cleanup(s.Close)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err == nil {
		_ = resp.Body.Close()
	}
	return err
}

func TestOf(t *testing.T) {
	t.Parallel()
	plain := errors.New("broken")
	for _, tt := range []struct {
		name string
		err  error
		want fault.Class
	}{
		{"no error has no class", nil, ""},
		{"an unmarked error may pass", plain, fault.ClassTransient},
		{"a mark is seen through wrapping", fmt.Errorf("page 3: %w", fault.Permanent(plain)), fault.ClassPermanent},
		{"a mark is seen in a joined error", errors.Join(plain, fault.Infra(plain)), fault.ClassInfra},
		{"the outer mark wins", fault.Permanent(fault.Infra(plain)), fault.ClassPermanent},
		{"a mark wins over the table", fault.Infra(refused(t)), fault.ClassInfra},
		{"cancelled by somebody", fault.Cancelled(plain), fault.ClassCancelled},
		{"unreadable message", fault.Poison(plain), fault.ClassPoison},
		{"lost once too often", fault.Lost(plain), fault.ClassLost},
		{"panic", fault.Recovered("boom"), fault.ClassTransient},

		{"deadline", context.DeadlineExceeded, fault.ClassTransient},
		{"cancelled context", fmt.Errorf("read: %w", context.Canceled), fault.ClassTransient},
		{"connection refused", refused(t), fault.ClassTransient},
		{"connection reset", &net.OpError{Op: "read", Err: syscall.ECONNRESET}, fault.ClassTransient},
		{"no such host", &url.Error{Op: "Get", URL: "https://x.invalid", Err: &net.DNSError{Err: "no such host", IsNotFound: true}}, fault.ClassPermanent},
		{"name server is busy", &net.DNSError{Err: "server misbehaving", IsTemporary: true}, fault.ClassTransient},
		{"untrusted certificate", untrusted(t), fault.ClassPermanent},
		{"certificate of another host", x509.HostnameError{Certificate: &x509.Certificate{}, Host: "x"}, fault.ClassPermanent},
		{"not TLS at all", tls.RecordHeaderError{Msg: "first record does not look like a TLS handshake"}, fault.ClassPermanent},
		{"body cut short", io.ErrUnexpectedEOF, fault.ClassTransient},
		{"body too large", &http.MaxBytesError{Limit: 1}, fault.ClassPermanent},
		{"bad escape in a URL", url.EscapeError("%zz"), fault.ClassPermanent},

		{"disk full", &fs.PathError{Op: "write", Path: "/tmp/x", Err: syscall.ENOSPC}, fault.ClassInfra},
		{"out of file descriptors", os.NewSyscallError("pipe", syscall.EMFILE), fault.ClassInfra},
		{"file not there", fs.ErrNotExist, fault.ClassTransient},

		{"program not installed", exec.CommandContext(t.Context(), "/no/such/program").Run(), fault.ClassPermanent},
		{"program not on the path", exec.CommandContext(t.Context(), "reeve-no-such-program").Run(), fault.ClassPermanent},
		{"program ended with 1", shell(t, "exit 1"), fault.ClassTransient},
		{"program refused its input", shell(t, "exit 65"), fault.ClassPermanent},
		{"program asks to try again", shell(t, "exit 75"), fault.ClassTransient},
		{"program had no room", shell(t, "exit 74"), fault.ClassInfra},
		{"program was out of memory", shell(t, "kill -KILL $$"), fault.ClassTransient},
		{"program was terminated", shell(t, "kill -TERM $$"), fault.ClassTransient},
		{"program crashed", shell(t, "kill -SEGV $$"), fault.ClassPermanent},
		{"program crashed under a shell", shell(t, "exit 139"), fault.ClassPermanent},
		{"program used all its processor time", shell(t, "kill -XCPU $$"), fault.ClassPermanent},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := fault.Of(tt.err); got != tt.want {
				t.Errorf("Of(%v) = %q, want %q", tt.err, got, tt.want)
			}
		})
	}
}

func TestHTTP(t *testing.T) {
	t.Parallel()
	plain := errors.New("broken")
	date := func(d time.Duration) http.Header {
		now := time.Date(2024, 5, 1, 12, 0, 0, 0, time.UTC)
		return http.Header{"Date": {now.Format(http.TimeFormat)}, "Retry-After": {now.Add(d).Format(http.TimeFormat)}}
	}
	seconds := func(s string) http.Header { return http.Header{"Retry-After": {s}} }
	for _, tt := range []struct {
		name   string
		code   int
		header http.Header
		want   fault.Class
		after  time.Duration
	}{
		{"not found", 404, nil, fault.ClassPermanent, 0},
		{"gone", 410, nil, fault.ClassPermanent, 0},
		{"unauthorized", 401, nil, fault.ClassPermanent, 0},
		{"redirected in a circle", 302, nil, fault.ClassPermanent, 0},
		{"request timeout", 408, nil, fault.ClassTransient, 0},
		{"conflict", 409, nil, fault.ClassTransient, 0},
		{"too many requests, no wait given", 429, nil, fault.ClassRateLimited, time.Minute},
		{"too many requests, seconds", 429, seconds("7"), fault.ClassRateLimited, 7 * time.Second},
		{"too many requests, date", 429, date(90 * time.Second), fault.ClassRateLimited, 90 * time.Second},
		{"a date that is over", 429, date(-time.Hour), fault.ClassRateLimited, 0},
		{"a wait beyond reason", 429, seconds("86400000000"), fault.ClassRateLimited, time.Hour},
		{"a date beyond reason", 503, date(48 * time.Hour), fault.ClassRateLimited, time.Hour},
		{"nonsense", 429, seconds("soon"), fault.ClassRateLimited, time.Minute},
		{"negative", 429, seconds("-5"), fault.ClassRateLimited, time.Minute},
		{"unavailable", 503, nil, fault.ClassTransient, 0},
		{"unavailable until", 503, seconds("30"), fault.ClassRateLimited, 30 * time.Second},
		{"forbidden", 403, nil, fault.ClassPermanent, 0},
		{"forbidden to the hasty", 403, seconds("30"), fault.ClassRateLimited, 30 * time.Second},
		{"not found stays so", 404, seconds("30"), fault.ClassPermanent, 0},
		{"internal error", 500, nil, fault.ClassTransient, 0},
		{"not implemented", 501, nil, fault.ClassPermanent, 0},
		{"somebody's own 5xx", 529, nil, fault.ClassTransient, 0},
		{"success does not mark", 200, nil, fault.ClassTransient, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			err := fault.HTTP(tt.code, tt.header, plain)
			if got, after := fault.Of(err), fault.After(err); got != tt.want || after != tt.after {
				t.Errorf("class %q after %v, want %q after %v", got, after, tt.want, tt.after)
			}
			if !errors.Is(err, plain) {
				t.Error("the error itself is lost")
			}
		})
	}
	if err := fault.HTTP(404, nil, nil); err == nil || err.Error() != "404 not found" {
		t.Errorf("without an error the status is one: %v", err)
	}
	if err := fault.HTTP(204, nil, nil); err != nil {
		t.Errorf("success is no error: %v", err)
	}
}

func TestS3(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		code   string
		status int
		want   fault.Class
	}{
		{"NoSuchKey", 404, fault.ClassPermanent},
		{"NoSuchBucket", 404, fault.ClassInfra},
		{"SlowDown", 503, fault.ClassInfra},
		{"AccessDenied", 403, fault.ClassInfra},
		{"BadDigest", 400, fault.ClassTransient},
		{"SomethingNew", 400, fault.ClassTransient},
		{"SomethingNew", 500, fault.ClassInfra},
		{"", 0, fault.ClassInfra},
	} {
		if got := fault.Of(fault.S3(tt.code, tt.status, errors.New("broken"))); got != tt.want {
			t.Errorf("S3(%q, %d) is %q, want %q", tt.code, tt.status, got, tt.want)
		}
	}
	if fault.S3("NoSuchKey", 404, nil) != nil {
		t.Error("no error stays none")
	}
}

func TestRecovered(t *testing.T) {
	t.Parallel()
	work := func() (err error) {
		defer func() { err = fault.Recovered(recover()) }()
		panic(io.ErrShortBuffer)
	}
	err := work()
	p, ok := errors.AsType[*fault.Panic](err)
	if !ok || len(p.Stack) == 0 || !errors.Is(err, io.ErrShortBuffer) {
		t.Errorf("%#v does not tell of the panic", err)
	}
	if fault.Recovered(nil) != nil {
		t.Error("no panic is no error")
	}
}

func TestWaiting(t *testing.T) {
	t.Parallel()
	at := time.Date(2024, 5, 1, 12, 0, 0, 0, time.UTC)
	id, deadline, ok := fault.AsWaiting(fmt.Errorf("scrape: %w", fault.Waiting("job-7", at)))
	if !ok || id != "job-7" || !deadline.Equal(at) {
		t.Errorf("%q %v %v", id, deadline, ok)
	}
	if _, _, ok := fault.AsWaiting(errors.New("broken")); ok {
		t.Error("an ordinary error waits for nothing")
	}
}
