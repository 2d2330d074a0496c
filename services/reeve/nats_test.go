package reeve

import (
	"errors"
	"io/fs"
	"testing"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// A stream on a full disk stays shut: the all-in-one must end, not stand still.
func TestAFullDiskEndsNATS(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		err  error
		ends bool
	}{
		{&fs.PathError{Op: "write", Path: "1.blk", Err: unix.ENOSPC}, true},
		{&fs.PathError{Op: "open", Path: "1.blk", Err: unix.ENOENT}, false},
	} {
		fatal := make(chan error, 1)
		l := natsLog{zap.NewNop().Sugar(), fatal}
		for range 2 { // the second finds nobody to tell
			l.Errorf("stream %q: %v", "REEVE_TASKS", tt.err)
		}
		select {
		case err := <-fatal:
			if !tt.ends || !errors.Is(err, unix.ENOSPC) {
				t.Errorf("%v ends it with %v", tt.err, err)
			}
		default:
			if tt.ends {
				t.Errorf("%v does not end it", tt.err)
			}
		}
	}
}
