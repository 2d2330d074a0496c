//go:build unix && !linux

package pglocal

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// confine makes a command run as the account, in a process group of its own,
// so that the terminal's interrupt is ours to hand on.
func confine(cmd *exec.Cmd, dir string, owner *account) {
	cmd.Dir = dir
	cmd.Env = []string{"LC_ALL=C", "PATH=/usr/bin:/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if owner != nil {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: owner.uid, Gid: owner.gid}
	}
}

// isPostmaster reports whether a process is the server of a data folder.
func isPostmaster(pid int, data string) bool {
	out, err := exec.Command("ps", "-o", "args=", "-p", strconv.Itoa(pid)).Output() //nolint:noctx // ends by itself
	return err == nil && strings.Contains(string(out), "postgres") && strings.Contains(string(out), data)
}

// letThrough reports a folder that the account cannot pass through.
func letThrough(dir string, _ *account) error {
	st, err := os.Stat(dir)
	if err == nil && st.Mode()&0o001 == 0 {
		err = fmt.Errorf("folder %s may not be entered by others", dir)
	}
	return err
}
