// Package local starts this machine's own S3 server, package s3d, as a child
// process, for the all-in-one and for tests. It knows the server only by its
// command line, so that it does not depend on the server's module.
package local

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/reeve-pipeline/reeve/pkg/artifact"
	"github.com/reeve-pipeline/reeve/pkg/service"
)

const (
	// startTimeout bounds the wait for the server to take requests.
	startTimeout = 30 * time.Second
	// stopTimeout bounds the wait for it to end before it is killed.
	stopTimeout = 15 * time.Second
	// tailSize is how much of what it last said goes into an error, in bytes.
	tailSize = 2 << 10
)

// Options say what to serve.
type Options struct {
	// Command is the program that runs s3d.Main, and the arguments before
	// s3d's own: such as {os.Executable(), "s3d"}.
	Command []string
	// Dir is the folder to serve; made if missing. Empty: a temporary one,
	// removed when the server ends.
	Dir string
	// Addr is the address to listen on; empty or port 0 takes a free port.
	Addr string
	// AccessKey and SecretKey are the credentials that clients must use.
	AccessKey string
	SecretKey service.Secret
	// Log takes what the server says, line by line; nil drops it.
	Log io.Writer
}

// Server is a running server. It ends with this process, however that ends.
type Server struct {
	options Options
	addr    string
	cmd     *exec.Cmd
	stdin   io.Closer
	tail    tail
	done    chan struct{}
	err     error // set before done is closed
}

// Start starts a server and returns when it takes requests. Only the start
// ends with ctx.
func Start(ctx context.Context, o Options) (*Server, error) {
	if len(o.Command) == 0 {
		return nil, errors.New("s3 server: no command to start it by")
	}
	args := slices.Concat(o.Command[1:], []string{"--with-parent", "--addr", o.addr()})
	if o.Dir == "" {
		args = append(args, "--temp")
	} else {
		args = append(args, "--dir", o.Dir)
	}
	cmd := exec.CommandContext(context.WithoutCancel(ctx), o.Command[0], args...)
	cmd.Env = append(cmd.Environ(), "REEVE_S3_ACCESS_KEY="+o.AccessKey, "REEVE_S3_SECRET_KEY="+o.SecretKey.Reveal())
	// A group of its own: Ctrl-C is for this process, which stops the server last.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}

	s := &Server{options: o, cmd: cmd, done: make(chan struct{})}
	cmd.Stderr = &s.tail
	if o.Log != nil {
		cmd.Stderr = io.MultiWriter(&s.tail, o.Log)
	}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("s3 server: %w", err)
	}
	s.stdin = stdin
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("s3 server: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("s3 server: %w", err)
	}

	ready := make(chan string, 1)
	go func() {
		defer close(s.done)
		defer close(ready)
		out := bufio.NewReader(stdout)
		line, _ := out.ReadBytes('\n') // what is missing then is the address
		var hello struct{ Addr string }
		if json.Unmarshal(line, &hello) == nil && hello.Addr != "" {
			ready <- hello.Addr
		}
		_, _ = io.Copy(io.Discard, out)
		s.err = cmd.Wait()
	}()
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	select {
	case addr, ok := <-ready:
		if ok {
			s.addr = addr
			return s, nil
		}
		<-s.done
		return nil, fmt.Errorf("start: %w", s.Err())
	case <-ctx.Done():
		return nil, errors.Join(fmt.Errorf("s3 server is not ready: %w: %s", ctx.Err(), s.tail.String()), s.Close())
	}
}

func (o Options) addr() string {
	if o.Addr == "" {
		return "127.0.0.1:0"
	}
	return o.Addr
}

// Addr is the address the server listens on, as host:port.
func (s *Server) Addr() string { return s.addr }

// Config is what opens a bucket of this server.
func (s *Server) Config(bucket string) artifact.Config {
	c := artifact.Defaults()
	c.Endpoint, c.Bucket = s.addr, bucket
	c.AccessKey, c.SecretKey = s.options.AccessKey, s.options.SecretKey
	return c
}

// Done is closed when the server has ended, whether it was closed or not.
func (s *Server) Done() <-chan struct{} { return s.done }

// Err says, once Done is closed, why the server ended.
func (s *Server) Err() error {
	if s.err == nil {
		return errors.New("s3 server ended")
	}
	return fmt.Errorf("s3 server ended: %w: %s", s.err, s.tail.String())
}

// Close stops the server and waits for its end.
func (s *Server) Close() error {
	_ = s.stdin.Close() // it may have ended by itself
	select {
	case <-s.done:
		return s.err
	case <-time.After(stopTimeout):
	}
	killed := s.cmd.Process.Kill()
	<-s.done
	return errors.Join(errors.New("s3 server had to be killed"), killed)
}

// tail keeps the end of what is written to it.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if extra := len(t.buf) - tailSize; extra > 0 {
		t.buf = append(t.buf[:0], t.buf[extra:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.TrimSpace(t.buf))
}
