//go:build !linux

package pdf

import (
	"os"
	"syscall"
)

// setDataLimit does nothing here: only the sandbox's own limit holds.
func setDataLimit(int64) error { return nil }

func apart() *syscall.SysProcAttr { return nil }

func self() (string, error) { return os.Executable() }
