package pglocal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// confine makes a command run as the account, in a process group of its own,
// so that the terminal's interrupt is ours to hand on, and makes it end (a
// fast shutdown) when we die.
func confine(cmd *exec.Cmd, dir string, owner *account) {
	cmd.Dir = dir
	cmd.Env = []string{"LC_ALL=C", "PATH=/usr/bin:/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGINT}
	if owner != nil {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: owner.uid, Gid: owner.gid}
	}
}

// isPostmaster reports whether a process is the server of a data folder: it is
// the only kind of process that works there.
func isPostmaster(pid int, data string) bool {
	cwd, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/cwd")
	return err == nil && cwd == data
}

// letThrough lets the account pass through a folder, and gives nobody else
// anything: an access control entry with the search permission alone.
func letThrough(dir string, owner *account) error {
	st, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("folder %s: %w", dir, err)
	}
	if st.Mode()&0o001 != 0 {
		return nil
	}
	acl, err := readACL(dir, st.Mode())
	if err != nil {
		return fmt.Errorf("access control of %s: %w", dir, err)
	}
	if err := unix.Setxattr(dir, aclName, acl.grant(owner.uid, 1).encode(), 0); err != nil {
		return fmt.Errorf("access control of %s: %w", dir, err)
	}
	return nil
}

// The extended attribute that holds a file's access control list, and the tags
// of its entries in the order they stand in.
const (
	aclName     = "system.posix_acl_access"
	aclVersion  = 2
	tagUserObj  = 0x01
	tagUser     = 0x02
	tagGroupObj = 0x04
	tagMask     = 0x10
	tagOther    = 0x20
	noID        = ^uint32(0)
)

type aclEntry struct {
	Tag, Perm uint16
	ID        uint32
}

type acl []aclEntry

// readACL returns a folder's list; without one, what its mode says.
func readACL(dir string, mode os.FileMode) (acl, error) {
	buf := make([]byte, 4096)
	n, err := unix.Getxattr(dir, aclName, buf)
	if errors.Is(err, unix.ENODATA) {
		m := uint16(mode.Perm())
		return acl{{tagUserObj, m >> 6 & 7, noID}, {tagGroupObj, m >> 3 & 7, noID}, {tagOther, m & 7, noID}}, nil
	}
	if err != nil {
		return nil, err
	}
	var list acl
	for at := 4; at+8 <= n; at += 8 {
		list = append(list, aclEntry{
			binary.LittleEndian.Uint16(buf[at:]), binary.LittleEndian.Uint16(buf[at+2:]), binary.LittleEndian.Uint32(buf[at+4:]),
		})
	}
	return list, nil
}

// grant returns the list with a permission for one user more.
func (l acl) grant(uid uint32, perm uint16) acl {
	var named, rest, out acl
	entry, mask := aclEntry{tagUser, perm, uid}, perm
	for _, e := range l {
		switch {
		case e.Tag == tagUserObj:
			out = append(out, e)
		case e.Tag == tagUser && e.ID == uid:
			entry.Perm |= e.Perm
		case e.Tag == tagUser:
			named = append(named, e)
		case e.Tag == tagMask:
			mask |= e.Perm
		case e.Tag == tagOther:
			rest = append(rest, aclEntry{tagMask, 0, noID}, e)
		default:
			if e.Tag == tagGroupObj {
				mask |= e.Perm
			}
			rest = append(rest, e)
		}
	}
	out = append(append(append(out, named...), entry), rest...)
	for i := range out {
		if out[i].Tag == tagMask {
			out[i].Perm = mask
		}
	}
	return out
}

func (l acl) encode() []byte {
	b := binary.LittleEndian.AppendUint32(nil, aclVersion)
	for _, e := range l {
		b = binary.LittleEndian.AppendUint16(b, e.Tag)
		b = binary.LittleEndian.AppendUint16(b, e.Perm)
		b = binary.LittleEndian.AppendUint32(b, e.ID)
	}
	return b
}
