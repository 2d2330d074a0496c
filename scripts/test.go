//go:build ignore

// Test runs the tests of the workspace with the race detector, in random
// order, and prints one line a package, all that a failed test said, and at
// last "N passed, N failed, N skipped". A run of everything also demands that
// nothing was skipped and that every package which tests against a real
// server did so: a test that quietly does nothing is not a passed one.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
)

// event is one line of go test -json.
type event struct {
	Action, Package, ImportPath, Test, Output string
	Elapsed                                   float64
}

// tally is what became of the tests of one package.
type tally struct{ passed, failed, skipped int }

func main() {
	pattern := flag.String("p", "work", "package pattern")
	only := flag.String("t", "", "regular expression of tests")
	count := flag.String("count", "", "file to write the last line to as well")
	flag.Parse()
	if err := run(*pattern, *only, *count); err != nil {
		fmt.Fprintln(os.Stderr, "test:", err)
		os.Exit(1)
	}
}

func run(pattern, only, count string) error {
	args := []string{"test", "-race", "-shuffle=on", "-timeout=10m", "-json"}
	if only != "" {
		args = append(args, "-run", only)
	}
	cmd := exec.Command("go", append(args, pattern)...)
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}

	byPackage := map[string]*tally{}
	output := map[string]*strings.Builder{} // by package and test
	lines := bufio.NewReader(stdout)
	for {
		line, readErr := lines.ReadBytes('\n')
		var e event
		switch {
		case len(line) == 0:
		case json.Unmarshal(line, &e) != nil:
			os.Stdout.Write(line) // the compiler's
		default:
			note(e, byPackage, output)
		}
		if readErr != nil {
			break
		}
	}
	runErr := cmd.Wait()

	var all tally
	for _, t := range byPackage {
		all.passed += t.passed
		all.failed += t.failed
		all.skipped += t.skipped
	}
	var errs []error
	if pattern == "work" && only == "" {
		if all.skipped > 0 {
			errs = append(errs, fmt.Errorf("%d tests were skipped; a test that cannot run must fail and say why", all.skipped))
		}
		needed, err := integration()
		errs = append(errs, err)
		for _, pkg := range needed {
			if t := byPackage[pkg]; t == nil || t.passed == 0 {
				errs = append(errs, fmt.Errorf("%s tests against a real server, but none of its tests passed", pkg))
			}
		}
		fmt.Printf("%d packages test against a real server\n", len(needed))
	}
	if all.failed == 0 && runErr != nil {
		errs = append(errs, runErr)
	}
	err = errors.Join(errs...)
	if err != nil {
		all.failed = max(all.failed, 1)
		fmt.Println(err)
	}
	last := fmt.Sprintf("%d passed, %d failed, %d skipped\n", all.passed, all.failed, all.skipped)
	fmt.Print(last)
	if count != "" {
		if err := os.WriteFile(count, []byte(last), 0o600); err != nil {
			return err
		}
	}
	if all.failed > 0 {
		return errors.New("not everything passed")
	}
	return nil
}

// note takes in one event.
func note(e event, byPackage map[string]*tally, output map[string]*strings.Builder) {
	key := e.Package + " " + e.Test
	said := output[key]
	if said == nil {
		said = &strings.Builder{}
		output[key] = said
	}
	t := byPackage[e.Package]
	if t == nil && e.Package != "" {
		t = &tally{}
		byPackage[e.Package] = t
	}
	switch e.Action {
	case "build-output":
		fmt.Print(e.Output)
	case "output":
		said.WriteString(e.Output)
	case "pass", "skip":
		switch {
		case e.Test == "" && e.Action == "pass":
			fmt.Printf("ok    %s (%d tests, %.1fs)\n", e.Package, t.passed, e.Elapsed)
		case e.Test == "": // no test files
		case e.Action == "skip":
			fmt.Print(said.String())
			t.skipped++
		default:
			t.passed++
		}
		delete(output, key)
	case "fail":
		fmt.Print(said.String())
		if e.Test != "" || t.failed == 0 { // a package may fail as a whole
			t.failed++
		}
		if e.Test == "" {
			fmt.Printf("FAIL  %s (%d tests failed, %.1fs)\n", e.Package, t.failed, e.Elapsed)
		}
		delete(output, key)
	}
}

var realServer = regexp.MustCompile(`/pkg/(natstest|pgtest|s3test)\b`)

// integration lists the packages whose tests use a real server.
func integration() ([]string, error) {
	out, err := exec.Command("go", "list", "-f",
		`{{.ImportPath}} {{join .TestImports " "}} {{join .XTestImports " "}}`, "work").Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	var pkgs []string
	for line := range strings.Lines(string(out)) {
		pkg, imports, _ := strings.Cut(strings.TrimSpace(line), " ")
		if realServer.MatchString(imports) {
			pkgs = append(pkgs, pkg)
		}
	}
	slices.Sort(pkgs)
	return pkgs, nil
}
