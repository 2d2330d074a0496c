package services_test

import (
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const ours = "github.com/reeve-pipeline/reeve/"

// carriers says which programs may carry a dependency that is heavy, or that
// gives a power few should have. The list of exceptions is the documentation.
var carriers = []struct {
	module string
	why    string
	by     []string
}{
	{
		"github.com/jackc/pgx", "only what keeps or shows the books may reach the database",
		[]string{"fanin", "sweeper", "gateway", "reeve"},
	},
	{
		ours + "pkg/ledger", "a worker never decides what comes next",
		[]string{"fanin", "sweeper", "gateway", "reeve"},
	},
	{
		"github.com/nats-io/nats-server", "the bus is a server of its own, but in the all-in-one",
		[]string{"reeve"},
	},
	{
		"github.com/versity/versitygw", "so is the object store",
		[]string{"reeve"},
	},
	{
		"modernc.org/sqlite", "one service writes the site's database, the gateway searches it",
		[]string{"compilation", "gateway", "reeve"},
	},
	{
		"github.com/klippa-app/go-pdfium", "PDFs are opened in one place",
		[]string{"pagination", "reeve"},
	},
	{
		"github.com/spf13/cobra", "services have settings, not commands",
		[]string{"reeve"},
	},
	{ours + "pkg/natstest", "helpers of tests stay in tests", nil},
	{ours + "pkg/pgtest", "helpers of tests stay in tests", nil},
	{ours + "pkg/s3test", "helpers of tests stay in tests", nil},
	{ours + "pkg/stagetest", "helpers of tests stay in tests", nil},
}

// program is a main package and all that its binary is made of.
type program struct {
	name string
	deps []string
}

// programs lists every program under services, as the file system has them.
func programs(t *testing.T) []program {
	t.Helper()
	mains, err := filepath.Glob("*/cmd/*/main.go")
	if err != nil || len(mains) == 0 {
		t.Fatalf("no programs: %v", err)
	}
	args := []string{"list", "-f", `{{.ImportPath}}{{range .Deps}} {{.}}{{end}}`}
	for _, m := range mains {
		args = append(args, "./"+filepath.ToSlash(filepath.Dir(m)))
	}
	cmd := exec.CommandContext(t.Context(), "go", args...)
	var complaint strings.Builder
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, complaint.String())
	}
	var all []program
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		all = append(all, program{path.Base(fields[0]), fields[1:]})
	}
	return all
}

func TestPrograms_CarryOnlyWhatTheyMay(t *testing.T) {
	t.Parallel()
	for _, p := range programs(t) {
		for _, c := range carriers {
			if slices.Contains(c.by, p.name) {
				continue
			}
			i := slices.IndexFunc(p.deps, func(dep string) bool {
				return dep == c.module || strings.HasPrefix(dep, c.module+"/")
			})
			if i >= 0 {
				t.Errorf("%s carries %s, but %s; see: go mod why -m, or go list -deps", p.name, p.deps[i], c.why)
			}
		}
	}
}

func TestPrograms_KnowNoOtherService(t *testing.T) {
	t.Parallel()
	for _, p := range programs(t) {
		if p.name == "reeve" { // all services in one
			continue
		}
		for _, dep := range p.deps {
			rest, isService := strings.CutPrefix(dep, ours+"services/")
			if other, _, _ := strings.Cut(rest, "/"); isService && other != p.name {
				t.Errorf("%s is made of %s: what services share is in pkg", p.name, dep)
			}
		}
	}
}
