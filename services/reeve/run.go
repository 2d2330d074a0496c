package reeve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/reeve-pipeline/reeve/pkg/pipeline"
	reevev1 "github.com/reeve-pipeline/reeve/proto/reeve/v1"
	"github.com/reeve-pipeline/reeve/proto/reeve/v1/reevev1connect"
	"github.com/reeve-pipeline/reeve/services/gateway"
	"github.com/reeve-pipeline/reeve/services/reeve/progress"
)

func (c *command) runCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "run", Short: "Start, watch and steer runs", Aliases: []string{"runs"}}
	cmd.AddCommand(c.runStart(), c.runList(), c.runShow(), c.runWatch(),
		c.runSteer("cancel RUN", "End a run; what it has done so far stays", func(api reevev1connect.ReeveServiceClient) steer { return api.CancelRun }),
		c.runSteer("retry RUN", "Hand the failed items of an ended run out again", func(api reevev1connect.ReeveServiceClient) steer { return api.RetryRun }),
		c.runRerun())
	return cmd
}

func (c *command) runStart() *cobra.Command {
	var wait bool
	var settings []string
	q := &reevev1.StartRunRequest{Trigger: "cli"}
	cmd := &cobra.Command{
		Use: "start PIPELINE SUBJECT", Short: "Start a run of a subject through a pipeline",
		Example: "  reeve run start civic alameda --wait",
		Args:    cobra.ExactArgs(2),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, start string) ([]string, cobra.ShellCompDirective) {
			switch len(args) {
			case 0:
				return pipelineNames(), cobra.ShellCompDirectiveNoFileComp
			case 1:
				return c.sites(cmd, args, start)
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			q.Pipeline, q.Subject = args[0], args[1]
			var err error
			if q.Settings, err = parseSettings(settings); err != nil {
				return err
			}
			run, err := ask(cmd.Context(), c.client().StartRun, q)
			if err != nil {
				return err
			}
			return c.started(cmd.Context(), run, wait)
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&wait, "wait", "w", false, "show progress until the run has ended")
	f.StringVar(&q.Priority, "priority", "normal", "high, normal or low")
	f.StringArrayVar(&settings, "set", nil, "a setting of the run, such as ocr_mode=skip; may be given again")
	f.BoolVar(&q.Supersede, "supersede", false, "end a run of the same subject that still goes on")
	f.BoolVar(&q.Force, "force", false, "process every document again, changed or not")
	must(cmd.RegisterFlagCompletionFunc("priority", cobra.FixedCompletions([]string{"high", "normal", "low"}, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

func pipelineNames() []string {
	var names []string
	for _, p := range pipeline.Pipelines() {
		names = append(names, p.Name)
	}
	return names
}

// parseSettings reads name=value; a value that is JSON is taken as such, any
// other as text.
func parseSettings(all []string) (*structpb.Struct, error) {
	m := map[string]any{}
	for _, s := range all {
		name, text, ok := strings.Cut(s, "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("--set %q is not of the form name=value", s)
		}
		var value any
		if json.Unmarshal([]byte(text), &value) != nil {
			value = text
		}
		m[name] = value
	}
	return structpb.NewStruct(m)
}

// started says that a run goes on, or waits for its end.
func (c *command) started(ctx context.Context, run *reevev1.Run, wait bool) error {
	if wait {
		return c.follow(ctx, run.GetRun())
	}
	if c.json {
		return writeJSON(c.Out, run)
	}
	fmt.Fprintf(c.Out, "run %d of %s: %s\n", run.GetRun(), run.GetSubject(), run.GetStatus())
	c.sayf("next: reeve run watch %d", run.GetRun())
	return nil
}

// follow watches a run to its end, prints how it went, and turns that into the
// exit code. An interrupt ends the watching, not the run.
func (c *command) follow(ctx context.Context, id int64) error {
	run, err := c.watch(ctx, id)
	if err != nil {
		if ctx.Err() != nil {
			c.sayf("run %d goes on; see it with: reeve run watch %d", id, id)
		}
		return err
	}
	problems, err := c.problems(ctx, run)
	if err != nil {
		return err
	}
	if c.json {
		if err := writeJSON(c.Out, whole(run, problems)); err != nil {
			return err
		}
	} else {
		c.summary(run, problems)
	}
	return judge(run)
}

// whole is a run as --json prints it: with what did not come through.
func whole(run *reevev1.Run, problems []problem) map[string]any {
	out := gateway.Plain(run).(map[string]any)
	out["problems"] = problems
	out["seconds"] = progress.Elapsed(time.Now(), run).Seconds()
	return out
}

// judge turns how a run ended into an exit code.
func judge(run *reevev1.Run) error {
	failed := run.GetDocuments().GetFailed()
	for _, s := range run.GetStages() {
		failed += s.GetFailed()
	}
	if run.GetStatus() != "completed" || failed > 0 {
		return outcome(exitSomeFailed)
	}
	return nil
}

// patienceWatching is how long a watcher waits for an API that has gone away:
// long enough for a restart.
const patienceWatching = 2 * time.Minute

// watch shows a run's progress until it has ended and returns it. When the API
// goes away it is waited for, since the run survives a restart.
func (c *command) watch(ctx context.Context, id int64) (*reevev1.Run, error) {
	show := c.display()
	to := c.caller()
	var last *reevev1.Run
	var since time.Time // when it went away
	for {
		err := c.stream(ctx, to, id, func(run *reevev1.Run) {
			last, since = run, time.Time{}
			show.Show(time.Now(), run)
		})
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case last != nil && last.GetStatus() != "running":
			return last, nil
		case err != nil && (last == nil || connect.CodeOf(err) == connect.CodeNotFound):
			return nil, to.explain(err)
		}
		now := time.Now()
		if since.IsZero() {
			since = now
			show.Say("lost the API at " + to.address + "; waiting for it to come back")
		}
		if now.Sub(since) > patienceWatching {
			return nil, fmt.Errorf("no Reeve has answered at %s for %v; the run goes on once `reeve up` runs again", to.address, patienceWatching)
		}
		select {
		case <-time.After(500 * time.Millisecond):
			if _, ok := c.running(); ok {
				to = c.caller() // a restart may have moved it
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// stream hands on what the API sends of a run until it has no more.
func (c *command) stream(ctx context.Context, to *caller, id int64, got func(*reevev1.Run)) error {
	if to.address == "" {
		return to.nobody
	}
	api := reevev1connect.NewReeveServiceClient(c.http, to.address, connect.WithInterceptors(to))
	s, err := api.WatchRun(ctx, connect.NewRequest(&reevev1.GetRunRequest{Run: id}))
	if err != nil {
		return err
	}
	// Between two changes the view still moves on: time passes.
	runs := make(chan *reevev1.Run)
	ended := make(chan error, 1)
	go func() {
		for s.Receive() {
			select {
			case runs <- s.Msg():
			case <-ctx.Done():
			}
		}
		ended <- errors.Join(s.Err(), s.Close())
	}()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var last *reevev1.Run
	for {
		select {
		case last = <-runs:
			got(last)
		case <-tick.C:
			if last != nil {
				got(last)
			}
		case err := <-ended:
			return err
		}
	}
}

func (c *command) runList() *cobra.Command {
	q := &reevev1.ListRunsRequest{}
	cmd := &cobra.Command{
		Use: "list", Short: "List runs, newest first", Args: cobra.NoArgs, Aliases: []string{"ls"},
		RunE: func(cmd *cobra.Command, _ []string) error {
			a, err := ask(cmd.Context(), c.client().ListRuns, q)
			if err != nil {
				return err
			}
			if c.json {
				return writeJSON(c.Out, a)
			}
			now := time.Now()
			var rows [][]string
			for _, r := range a.GetRuns() {
				what := r.GetNote()
				if r.GetErrorMessage() != "" {
					what = r.GetErrorStage() + ": " + r.GetErrorMessage()
				}
				rows = append(rows, []string{
					digits(r.GetRun()), r.GetPipeline(), r.GetSubject(), r.GetStatus(), ago(now, r.GetStartedAt()),
					progress.Duration(progress.Elapsed(now, r).Seconds()), r.GetTrigger(), dash(what),
				})
			}
			c.table([]string{"run", "pipeline", "subject", "status", "started", "took", "by", "remark"}, rows)
			c.more(len(rows), q.GetLimit())
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&q.Subject, "subject", "", "only runs of this site, job or batch")
	f.StringVar(&q.Status, "status", "", "only runs that are running, completed, failed, cancelled or superseded")
	f.StringVar(&q.Pipeline, "pipeline", "", "only runs of this pipeline")
	f.Int32Var(&q.Limit, "limit", 50, "at most this many")
	must(cmd.RegisterFlagCompletionFunc("subject", c.sites))
	must(cmd.RegisterFlagCompletionFunc("status", cobra.FixedCompletions([]string{"running", "completed", "failed", "cancelled", "superseded"}, cobra.ShellCompDirectiveNoFileComp)))
	must(cmd.RegisterFlagCompletionFunc("pipeline", cobra.FixedCompletions(pipelineNames(), cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

func (c *command) runShow() *cobra.Command {
	return &cobra.Command{
		Use: "show RUN", Short: "Show one run: its stages, its documents and what failed", Args: cobra.ExactArgs(1), ValidArgsFunction: first(c.runs),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := runNumber(args[0])
			if err != nil {
				return err
			}
			run, err := ask(cmd.Context(), c.client().GetRun, &reevev1.GetRunRequest{Run: id})
			if err != nil {
				return err
			}
			problems, err := c.problems(cmd.Context(), run)
			if err != nil {
				return err
			}
			if c.json {
				return writeJSON(c.Out, whole(run, problems))
			}
			if err := c.stagesOf(cmd.Context(), run); err != nil {
				return err
			}
			c.summary(run, problems)
			return nil
		},
	}
}

func (c *command) runWatch() *cobra.Command {
	return &cobra.Command{
		Use: "watch RUN", Short: "Show a run's progress until it has ended", Args: cobra.ExactArgs(1), ValidArgsFunction: first(c.runs),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := runNumber(args[0])
			if err != nil {
				return err
			}
			return c.follow(cmd.Context(), id)
		},
	}
}

// steer is a method that takes a run and returns it.
type steer func(context.Context, *connect.Request[reevev1.GetRunRequest]) (*connect.Response[reevev1.Run], error)

func (c *command) runSteer(use, short string, method func(reevev1connect.ReeveServiceClient) steer) *cobra.Command {
	var wait bool
	cmd := &cobra.Command{
		Use: use, Short: short, Args: cobra.ExactArgs(1), ValidArgsFunction: first(c.runs),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := runNumber(args[0])
			if err != nil {
				return err
			}
			run, err := ask(cmd.Context(), method(c.client()), &reevev1.GetRunRequest{Run: id})
			if err != nil {
				return err
			}
			if run.GetStatus() != "running" && !wait {
				if c.json {
					return writeJSON(c.Out, run)
				}
				fmt.Fprintf(c.Out, "run %d of %s: %s\n", run.GetRun(), run.GetSubject(), run.GetStatus())
				return nil
			}
			return c.started(cmd.Context(), run, wait)
		},
	}
	if !strings.HasPrefix(use, "cancel") {
		cmd.Flags().BoolVarP(&wait, "wait", "w", false, "show progress until the run has ended")
	}
	return cmd
}

func (c *command) runRerun() *cobra.Command {
	var wait bool
	q := &reevev1.RerunRunRequest{}
	cmd := &cobra.Command{
		Use: "rerun RUN --from STAGE", Short: "Run an ended run again from a stage on", Args: cobra.ExactArgs(1), ValidArgsFunction: first(c.runs),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if q.Run, err = runNumber(args[0]); err != nil {
				return err
			}
			run, err := ask(cmd.Context(), c.client().RerunRun, q)
			if err != nil {
				return err
			}
			return c.started(cmd.Context(), run, wait)
		},
	}
	cmd.Flags().StringVar(&q.FromStage, "from", "", "first stage to run again")
	cmd.Flags().BoolVarP(&wait, "wait", "w", false, "show progress until the run has ended")
	must(cmd.MarkFlagRequired("from"))
	must(cmd.RegisterFlagCompletionFunc("from", stageNames))
	return cmd
}

func runNumber(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("%q is no run's number; `reeve run list` shows them", s)
	}
	return n, nil
}

// runs completes numbers of runs.
func (c *command) runs(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	return complete(cmd, c.client().ListRuns, &reevev1.ListRunsRequest{Limit: 20}, func(a *reevev1.ListRunsResponse) []string {
		var all []string
		for _, r := range a.GetRuns() {
			all = append(all, fmt.Sprintf("%d\t%s %s", r.GetRun(), r.GetSubject(), r.GetStatus()))
		}
		return all
	})
}

// stageNames completes names of stages.
func stageNames(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	var names []string
	for _, s := range pipeline.Stages() {
		names = append(names, s.Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
