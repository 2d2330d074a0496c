// Package reeve is the reeve command: the all-in-one (`reeve up`), which runs
// every service in one process, and the operator's commands, which speak to
// the API of a running Reeve and to nothing else.
package reeve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	reevev1 "github.com/reeve-pipeline/reeve/proto/reeve/v1"
	"github.com/reeve-pipeline/reeve/proto/reeve/v1/reevev1connect"
	"github.com/reeve-pipeline/reeve/services/reeve/progress"
)

// Exit codes.
const (
	exitOK          = 0
	exitSomeFailed  = 1   // it ran, but not everything came through
	exitCannotRun   = 2   // wrong usage, or it could not be done
	exitInterrupted = 130 // stopped by a signal
)

// Terminal is what a stream is connected to.
type Terminal struct {
	io.Writer
	Columns int // 0 when it is no terminal
}

// Process is what the command is given by its surroundings.
type Process struct {
	Name    string   // of the program, as it was called
	Args    []string // without it
	Environ []string
	In      io.Reader
	InTTY   bool
	Out     Terminal
	Err     Terminal
	Version string
}

// command is one call of reeve.
type command struct {
	Process
	http *http.Client

	// Flags of every command.
	api, token, data string
	json             bool
	progress         string
}

// outcome is an error that is an exit code: what there was to say has been said.
type outcome int

func (o outcome) Error() string { return fmt.Sprintf("exit %d", int(o)) }

// Run runs one command and returns its exit code.
func Run(ctx context.Context, p Process) int {
	c := &command{Process: p, http: &http.Client{}}
	root := c.root() //nolint:contextcheck // commands are given theirs when they run
	root.SetArgs(p.Args)
	root.SetIn(p.In)
	root.SetOut(p.Out)
	root.SetErr(p.Err)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	if o, ok := errors.AsType[outcome](err); ok {
		return int(o)
	}
	if ctx.Err() != nil {
		c.report(connect.NewError(connect.CodeCanceled, errors.New("interrupted")))
		return exitInterrupted
	}
	c.report(err)
	return exitCannotRun
}

// report prints an error: one line on stderr, and the final object with --json.
func (c *command) report(err error) {
	code, message := "error", err.Error()
	if e, ok := errors.AsType[*connect.Error](err); ok {
		code, message = e.Code().String(), e.Message()
	}
	if c.json {
		_ = writeJSON(c.Out, map[string]any{"error": map[string]any{"code": code, "message": message}}) // the exit code says it too
	}
	fmt.Fprintln(c.Err, "reeve:", message)
}

// sayf prints a remark on stderr, the way progress is shown there.
func (c *command) sayf(format string, args ...any) {
	c.display().Say(fmt.Sprintf(format, args...))
}

const long = `Reeve turns a town's meeting documents into a searchable site, and counts
every one of them exactly once.

Exit codes, of every command:
  0    everything was done
  1    it ran, but some items failed, or the run failed or was cancelled
  2    it could not run: wrong usage, no answer from the API, refused
  130  interrupted

Results go to standard output, as aligned tables on a terminal, as lines of
tab-separated values in a pipe, and as one JSON object with --json, which is
{"error": {"code", "message"}} when there is none. Progress and errors go to
standard error.`

func (c *command) root() *cobra.Command {
	root := &cobra.Command{
		Use: "reeve", Short: "Documents in, searchable sites out", Long: long, Version: c.Version,
		SilenceErrors: true, SilenceUsage: true,
	}
	root.SetVersionTemplate("reeve {{.Version}}\n")
	f := root.PersistentFlags()
	f.StringVar(&c.api, "api", "", "URL of the API (REEVE_API; otherwise that of the Reeve running in --data)")
	f.StringVar(&c.token, "token", "", "bearer token for the API (REEVE_TOKEN)")
	f.StringVar(&c.data, "data", "", "folder of the all-in-one (REEVE_DATA; default "+c.tilde(c.defaultData())+")")
	f.BoolVar(&c.json, "json", false, "print the result as one JSON object")
	f.StringVar(&c.progress, "progress", "auto", "how to show progress on stderr: "+strings.Join(progress.Modes, ", "))
	must(root.RegisterFlagCompletionFunc("progress", cobra.FixedCompletions(progress.Modes, cobra.ShellCompDirectiveNoFileComp)))
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		if !slices.Contains(progress.Modes, c.progress) {
			return fmt.Errorf("no --progress %q: there are %s", c.progress, strings.Join(progress.Modes, ", "))
		}
		if err := cmd.ValidateRequiredFlags(); err != nil {
			return fmt.Errorf("%w; usage: %s", err, use(cmd))
		}
		return nil
	}
	root.AddGroup(&cobra.Group{ID: "run", Title: "Run:"}, &cobra.Group{ID: "ask", Title: "Operate:"}, &cobra.Group{ID: "about", Title: "About:"})
	for group, commands := range map[string][]*cobra.Command{
		"run":   {c.upCommand(), c.demoCommand()},
		"ask":   {c.siteCommand(), c.runCommand(), c.taskCommand(), c.documentCommand(), c.stageCommand(), c.sweepCommand(), c.searchCommand()},
		"about": {c.infoCommand(), c.configCommand(), c.versionCommand()},
	} {
		for _, sub := range commands {
			sub.GroupID = group
			root.AddCommand(sub)
		}
	}
	root.SetHelpCommandGroupID("about")
	root.SetCompletionCommandGroupID("about")
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	usage(root)
	// A group of commands does nothing by itself but to list them.
	root.SetUsageTemplate(strings.Replace(root.UsageTemplate(), "{{if .Runnable}}", "{{if and .Runnable (not .HasAvailableSubCommands)}}", 1))
	return root
}

// usage makes wrong usage an error that names the command's help, everywhere.
func usage(cmd *cobra.Command) {
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w (see %s --help)", err, cmd.CommandPath())
	})
	if cmd.Name() == "help" && !cmd.Parent().HasParent() {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			of, rest, err := cmd.Root().Find(args)
			if err == nil && len(rest) > 0 {
				err = unknown(of, rest[0])
			}
			return err
		}
	} else if check := cmd.Args; check != nil && !cmd.HasSubCommands() {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return fmt.Errorf("%w; usage: %s", err, use(cmd))
			}
			return nil
		}
	}
	if cmd.HasSubCommands() && !cmd.Runnable() {
		cmd.SuggestionsMinimumDistance = 2
		cmd.Args = cobra.ArbitraryArgs
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			return unknown(cmd, args[0])
		}
	}
	for _, sub := range cmd.Commands() {
		usage(sub)
	}
}

// unknown is the error for a command that there is not.
func unknown(of *cobra.Command, name string) error {
	err := fmt.Errorf("no command %q of %s (see %s --help)", name, of.CommandPath(), of.CommandPath())
	if like := of.SuggestionsFor(name); len(like) > 0 {
		err = fmt.Errorf("%w; did you mean %s?", err, strings.Join(like, " or "))
	}
	return err
}

// use is a command with its arguments.
func use(cmd *cobra.Command) string { return strings.TrimSuffix(cmd.UseLine(), " [flags]") }

// must stops the program for a mistake in the program.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// env returns a variable of the environment.
func (c *command) env(name string) string {
	for _, v := range slices.Backward(c.Environ) {
		if value, ok := strings.CutPrefix(v, name+"="); ok {
			return value
		}
	}
	return ""
}

// defaultData is where the all-in-one keeps everything when nobody says.
func (c *command) defaultData() string {
	base := c.env("XDG_DATA_HOME")
	if base == "" {
		base = filepath.Join(cmp.Or(c.env("HOME"), os.TempDir()), ".local", "share")
	}
	return filepath.Join(base, "reeve")
}

// dataDir returns the folder of the all-in-one, as an absolute path.
func (c *command) dataDir() (string, error) {
	dir, err := filepath.Abs(cmp.Or(c.data, c.env("REEVE_DATA"), c.defaultData()))
	if err != nil {
		return "", fmt.Errorf("data folder: %w", err)
	}
	return dir, nil
}

// tilde shortens a path in the user's home.
func (c *command) tilde(path string) string {
	if rest, ok := strings.CutPrefix(path, c.env("HOME")+"/"); ok {
		return "~/" + rest
	}
	return path
}

// defaultAPI is where an API is looked for when nothing says where it is.
const defaultAPI = "http://127.0.0.1:8480"

// address returns the API's URL and token: those that were named, or those of
// the Reeve that runs in the data folder, or, when nothing names a folder, the
// default. It is empty when a folder was named in which none runs: what is
// meant for one Reeve must not reach another.
func (c *command) address() (url, token string) {
	token = cmp.Or(c.token, c.env("REEVE_TOKEN"))
	if api := cmp.Or(c.api, c.env("REEVE_API")); api != "" {
		if !strings.Contains(api, "://") {
			api = "http://" + api
		}
		return strings.TrimRight(api, "/"), token
	}
	if st, ok := c.running(); ok {
		return st.API, cmp.Or(token, st.Token)
	}
	if cmp.Or(c.data, c.env("REEVE_DATA")) != "" {
		return "", token
	}
	return defaultAPI, token
}

// instance returns the state of the all-in-one on this machine that commands
// speak to: the one in the data folder, or, when nothing names another, the one
// that answers at the default address and lets us read its folder.
func (c *command) instance(ctx context.Context) (State, bool) {
	if c.api != "" || c.env("REEVE_API") != "" {
		return State{}, false
	}
	if st, ok := c.running(); ok {
		return st, true
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	a, err := ask(ctx, c.client().Info, &reevev1.InfoRequest{})
	if err != nil || a.GetDataDir() == "" {
		return State{}, false
	}
	st, err := readState(a.GetDataDir())
	return st, err == nil && st.Running
}

// client returns the API to ask. Its errors name the address and the remedy.
func (c *command) client() reevev1connect.ReeveServiceClient {
	i := c.caller()
	return reevev1connect.NewReeveServiceClient(c.http, i.address, connect.WithInterceptors(i))
}

func (c *command) caller() *caller {
	address, token := c.address()
	nobody := fmt.Errorf("no Reeve answers at %s: start one with `reeve up`, or name another with --api", address)
	if address == "" {
		dir := cmp.Or(c.data, c.env("REEVE_DATA"))
		nobody = fmt.Errorf("no Reeve runs in %s: start one with `reeve up --data %s`, or name another with --data or --api", dir, dir)
	}
	return &caller{address: address, token: token, nobody: connect.NewError(connect.CodeUnavailable, nobody)}
}

// caller puts the token on requests, bounds them, and explains why one had no
// answer.
type caller struct {
	address, token string
	nobody         error // what to say when nobody answers
}

// patience bounds one question; streams have no bound.
const patience = 60 * time.Second

// WrapUnary implements [connect.Interceptor].
func (i *caller) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
		if i.address == "" {
			return nil, i.nobody
		}
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		if i.token != "" {
			r.Header().Set("Authorization", "Bearer "+i.token)
		}
		resp, err := next(ctx, r)
		return resp, i.explain(err)
	}
}

// WrapStreamingClient implements [connect.Interceptor].
func (i *caller) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		if i.token != "" {
			conn.RequestHeader().Set("Authorization", "Bearer "+i.token)
		}
		return conn
	}
}

// WrapStreamingHandler implements [connect.Interceptor].
func (i *caller) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

// explain names the address and the remedy when nobody answered. What the
// gateway itself says is explained already.
func (i *caller) explain(err error) error {
	e, ok := errors.AsType[*connect.Error](err)
	if !ok || connect.IsWireError(err) {
		return err
	}
	switch e.Code() { //nolint:exhaustive // the others say enough themselves
	case connect.CodeUnavailable:
		return i.nobody
	case connect.CodeDeadlineExceeded:
		return connect.NewError(e.Code(), fmt.Errorf("no answer from %s within %v", i.address, patience))
	case connect.CodeUnknown, connect.CodeUnimplemented, connect.CodeInternal:
		return connect.NewError(e.Code(), fmt.Errorf("%s does not answer like a Reeve: %s", i.address, e.Message()))
	}
	return err
}

// display returns what shows progress on stderr.
func (c *command) display() *progress.Display {
	mode := c.progress
	cursor := c.Err.Columns > 0 && c.env("TERM") != "dumb"
	if mode == "auto" {
		mode = "plain"
		if cursor {
			mode = "tty"
		}
	}
	return &progress.Display{W: c.Err, Mode: mode, Width: cmp.Or(c.Err.Columns, 100), Paint: c.paint(c.Err), Every: 5 * time.Second}
}

// paint colours what goes to a stream when that is a terminal and nobody minds.
func (c *command) paint(t Terminal) progress.Paint {
	switch {
	case c.env("NO_COLOR") != "":
		return progress.Plain
	case c.env("CLICOLOR_FORCE") != "" && c.env("CLICOLOR_FORCE") != "0":
		return progress.ANSI
	case t.Columns == 0 || c.env("TERM") == "dumb":
		return progress.Plain
	}
	return progress.ANSI
}

func (c *command) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if c.json {
				return writeJSON(c.Out, map[string]any{"version": c.Version})
			}
			fmt.Fprintln(c.Out, "reeve", c.Version)
			return nil
		},
	}
}

// ask is what a simple command does: one question, one answer, printed.
func ask[Q, A any](ctx context.Context, call func(context.Context, *connect.Request[Q]) (*connect.Response[A], error), q *Q) (*A, error) {
	r, err := call(ctx, connect.NewRequest(q))
	if err != nil {
		return nil, err
	}
	return r.Msg, nil
}

// confirm asks on a terminal before something is lost; elsewhere it wants --yes.
func (c *command) confirm(yes bool, question string) error {
	if yes {
		return nil
	}
	if !c.InTTY || c.Err.Columns == 0 {
		return fmt.Errorf("%s Say --yes, as there is no terminal to ask on", question)
	}
	fmt.Fprintf(c.Err, "%s [y/N] ", question)
	var answer string
	_, _ = fmt.Fscanln(c.In, &answer) // no answer is a no
	if !strings.EqualFold(answer, "y") && !strings.EqualFold(answer, "yes") {
		return errors.New("not done")
	}
	return nil
}

// sites completes names of sites.
func (c *command) sites(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	return complete(cmd, c.client().ListSites, &reevev1.ListSitesRequest{}, func(a *reevev1.ListSitesResponse) []string {
		var names []string
		for _, s := range a.GetSites() {
			names = append(names, s.GetSubdomain()+"\t"+s.GetName())
		}
		return names
	})
}

// complete asks the API for completions, and has none when it does not answer
// soon.
func complete[Q, A any](cmd *cobra.Command, call func(context.Context, *connect.Request[Q]) (*connect.Response[A], error), q *Q, names func(*A) []string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), 2*time.Second)
	defer cancel()
	a, err := ask(ctx, call, q)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return names(a), cobra.ShellCompDirectiveNoFileComp
}
