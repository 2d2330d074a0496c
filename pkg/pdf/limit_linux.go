package pdf

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// setDataLimit bounds the writable private memory of this process, in bytes.
// Address space (RLIMIT_AS) would not do: the Go runtime reserves gigabytes it
// never touches.
func setDataLimit(limit int64) error {
	return unix.Setrlimit(unix.RLIMIT_DATA, &unix.Rlimit{Cur: uint64(limit), Max: uint64(limit)})
}

// apart has the child die with its parent, even where it hangs and the parent
// has no time to kill it.
func apart() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// self is the running binary, also after an upgrade has replaced the file.
func self() (string, error) { return "/proc/self/exe", nil }
