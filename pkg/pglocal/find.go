package pglocal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// OldestMajor is the oldest major version of PostgreSQL that is used.
const OldestMajor = 15

// ErrNotInstalled is wrapped by the error that says how to install PostgreSQL.
var ErrNotInstalled = errors.New("PostgreSQL is not installed")

// Install is a folder with the programs of one PostgreSQL.
type Install struct {
	Bin   string // folder of postgres and initdb
	Major int
}

// places are where packages put the programs, as glob patterns.
var places = []string{
	"/usr/lib/postgresql/*/bin",
	"/usr/pgsql-*/bin",
	"/usr/libexec/postgresql*",
	"/opt/homebrew/opt/postgresql@*/bin",
	"/usr/local/opt/postgresql@*/bin",
	"/usr/local/pgsql/bin",
}

// Find returns the newest PostgreSQL on this machine, or the one of the given
// major version when it is not 0.
func Find(ctx context.Context, major int) (Install, error) {
	dirs := filepath.SplitList(os.Getenv("PATH")) //nolint:forbidigo // the search path is the environment's
	for _, place := range places {
		found, err := filepath.Glob(place)
		if err != nil {
			return Install{}, fmt.Errorf("look in %s: %w", place, err)
		}
		dirs = append(dirs, found...)
	}
	var all []Install
	for _, dir := range dirs {
		if in, ok := look(ctx, dir); ok && in.Major >= OldestMajor && (major == 0 || in.Major == major) {
			all = append(all, in)
		}
	}
	if len(all) == 0 {
		want := fmt.Sprintf("PostgreSQL %d or newer", OldestMajor)
		if major != 0 {
			want = fmt.Sprintf("PostgreSQL %d", major)
		}
		return Install{}, fmt.Errorf("%w: found no %s in PATH or under /usr/lib/postgresql; install it with: %s",
			ErrNotInstalled, want, installCommand(major))
	}
	return slices.MaxFunc(all, func(a, b Install) int { return cmp.Compare(a.Major, b.Major) }), nil
}

var versionLine = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)

// look reports the PostgreSQL in a folder, if there is a whole one.
func look(ctx context.Context, dir string) (Install, bool) {
	for _, program := range []string{"postgres", "initdb"} {
		if st, err := os.Stat(filepath.Join(dir, program)); err != nil || st.IsDir() { //nolint:gosec // PATH says where to look
			return Install{}, false
		}
	}
	// A link in PATH may lead to a wrapper's folder: the programs look for
	// their companions beside themselves.
	if target, err := filepath.EvalSymlinks(filepath.Join(dir, "postgres")); err == nil {
		dir = filepath.Dir(target)
	}
	out, err := exec.CommandContext(ctx, filepath.Join(dir, "postgres"), "--version").Output() //nolint:gosec // PATH says what to run
	if err != nil {
		return Install{}, false
	}
	m := versionLine.FindSubmatch(out)
	if m == nil {
		return Install{}, false
	}
	major, err := strconv.Atoi(string(m[1]))
	return Install{Bin: dir, Major: major}, err == nil
}

// installCommand is the one line that installs PostgreSQL here.
func installCommand(major int) string {
	suffix := ""
	if major != 0 {
		suffix = "-" + strconv.Itoa(major)
	}
	if runtime.GOOS == "darwin" {
		return "brew install postgresql@" + strings.TrimPrefix(cmp.Or(suffix, "-17"), "-")
	}
	for _, m := range []struct{ program, command string }{
		{"apt-get", "sudo apt-get install -y postgresql" + suffix},
		{"dnf", "sudo dnf install -y postgresql-server"},
		{"apk", "sudo apk add postgresql" + strings.TrimPrefix(suffix, "-")},
		{"pacman", "sudo pacman -S postgresql"},
	} {
		if _, err := exec.LookPath(m.program); err == nil {
			return m.command
		}
	}
	return "your system's package manager (package postgresql)"
}
