package deploy

import (
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	// tailSize is how much of a command's output its error shows, in bytes.
	tailSize = 2 << 10
	// leave is how long a command may take to end once it was asked to.
	leave = 5 * time.Second
)

// Command is the hook that runs a program, without a shell. Its arguments may
// hold {site}, {database}, {manifest} and {version}; its environment has the
// same as REEVE_SITE, REEVE_DATABASE, REEVE_MANIFEST and REEVE_VERSION. Any end
// but 0 is an error; the codes that sysexits.h calls final are. It and all it
// has started are killed when it takes too long.
type Command struct {
	Argv    []string
	Environ []string // its whole environment but for the above
	Timeout time.Duration
}

// Name is the hook's name.
func (Command) Name() string { return "command" }

// Run runs the program.
func (c Command) Run(ctx context.Context, r Release) error {
	values := strings.NewReplacer("{site}", r.Site.Subdomain, "{database}", r.Database, "{manifest}", r.Manifest, "{version}", r.Version)
	argv := make([]string, len(c.Argv))
	for i, a := range c.Argv {
		argv[i] = values.Replace(a)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, c.Timeout, fmt.Errorf("killed after %v", c.Timeout))
	defer cancel()

	var out tail
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(append([]string{}, c.Environ...),
		"REEVE_SITE="+r.Site.Subdomain, "REEVE_DATABASE="+r.Database, "REEVE_MANIFEST="+r.Manifest,
		"REEVE_VERSION="+r.Version, "REEVE_DOCUMENTS="+strconv.Itoa(r.Documents))
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = leave

	err := cmd.Run()
	if cmd.Process != nil && err != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what it left running
	}
	switch {
	case err == nil:
		return nil
	case context.Cause(ctx) != nil:
		err = context.Cause(ctx)
	}
	return fmt.Errorf("%s: %w%s", argv[0], err, out.quoted())
}

// tail keeps the end of what is written to it. Only one goroutine writes:
// package exec sees to that where stdout and stderr are the same.
type tail struct {
	end []byte
	cut bool
}

func (t *tail) Write(p []byte) (int, error) {
	t.end = append(t.end, p...)
	if over := len(t.end) - tailSize; over > 0 {
		t.end = append(t.end[:0], t.end[over:]...)
		t.cut = true
	}
	return len(p), nil
}

func (t *tail) quoted() string {
	text := strings.TrimSpace(strings.ToValidUTF8(strings.ReplaceAll(string(t.end), "\x00", ""), ""))
	switch {
	case text == "":
		return ""
	case t.cut:
		return ": …" + text
	}
	return ": " + text
}
