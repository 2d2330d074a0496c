package reeve

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	reevev1 "github.com/reeve-pipeline/reeve/proto/reeve/v1"
	"github.com/reeve-pipeline/reeve/services/reeve/progress"
)

func (c *command) taskCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "task", Short: "List tasks", Aliases: []string{"tasks"}}
	cmd.AddCommand(c.taskList())
	return cmd
}

func (c *command) taskList() *cobra.Command {
	var failed bool
	q := &reevev1.ListTasksRequest{}
	cmd := &cobra.Command{
		Use: "list", Short: "List tasks with their last errors", Args: cobra.NoArgs, Aliases: []string{"ls"},
		Example: "  reeve task list --run 3 --failed",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if failed {
				q.Status = "failed"
			}
			a, err := ask(cmd.Context(), c.client().ListTasks, q)
			if err != nil {
				return err
			}
			if c.json {
				return writeJSON(c.Out, a)
			}
			now := time.Now()
			var rows [][]string
			for _, t := range a.GetTasks() {
				status := t.GetStatus()
				if status == "retry" && t.GetNotBefore() != nil {
					status = "retry in " + progress.Duration(max(0, t.GetNotBefore().AsTime().Sub(now).Seconds()))
				}
				rows = append(rows, []string{
					digits(t.GetRun()), t.GetStage(), t.GetItem(), status, digits(t.GetAttempts()),
					ago(now, t.GetUpdatedAt()), dash(t.GetError().GetClass()), dash(t.GetError().GetMessage()),
				})
			}
			c.table([]string{"run", "stage", "item", "status", "attempts", "updated", "class", "message"}, rows)
			c.more(len(rows), q.GetLimit())
			return nil
		},
	}
	f := cmd.Flags()
	f.BoolVar(&failed, "failed", false, "only failed tasks")
	f.Int64Var(&q.Run, "run", 0, "only tasks of this run")
	f.StringVar(&q.Stage, "stage", "", "only tasks of this stage")
	f.StringVar(&q.Status, "status", "", "only tasks that are planned, running, waiting, retry, completed, failed or cancelled")
	f.Int32Var(&q.Limit, "limit", 50, "at most this many")
	cmd.MarkFlagsMutuallyExclusive("failed", "status")
	must(cmd.RegisterFlagCompletionFunc("run", c.runs))
	must(cmd.RegisterFlagCompletionFunc("stage", stageNames))
	must(cmd.RegisterFlagCompletionFunc("status", cobra.FixedCompletions([]string{"planned", "running", "waiting", "retry", "completed", "failed", "cancelled"}, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

func (c *command) documentCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "document", Short: "List documents", Aliases: []string{"documents", "doc"}}
	cmd.AddCommand(c.documentList())
	return cmd
}

func (c *command) documentList() *cobra.Command {
	q := &reevev1.ListDocumentsRequest{}
	cmd := &cobra.Command{
		Use: "list [SITE]", Short: "List documents, their pages and their errors", Args: cobra.MaximumNArgs(1), Aliases: []string{"ls"}, ValidArgsFunction: first(c.sites),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				q.Subdomain = args[0]
			}
			a, err := ask(cmd.Context(), c.client().ListDocuments, q)
			if err != nil {
				return err
			}
			if c.json {
				return writeJSON(c.Out, a)
			}
			var rows [][]string
			for _, d := range a.GetDocuments() {
				remark := strings.TrimPrefix(d.GetError().GetMessage(), d.GetSource()+": ")
				switch {
				case d.GetDuplicateOf() != "":
					remark = "same bytes as " + d.GetDuplicateOf()
				case remark == "" && d.GetStatus() == "partial":
					remark = pagesMissing(d)
				}
				rows = append(rows, []string{d.GetSubdomain(), d.GetStatus(), d.GetKind(), d.GetMeeting(), dash(d.GetDate()), digits(d.GetPages()), d.GetSource(), dash(remark)})
			}
			c.table([]string{"site", "status", "kind", "meeting", "date", "pages", "source", "remark"}, rows)
			c.more(len(rows), q.GetLimit())
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&q.Status, "status", "", "only documents that are pending, done, partial, failed or duplicate")
	f.Int64Var(&q.Run, "run", 0, "only documents seen by this run")
	f.Int32Var(&q.Limit, "limit", 50, "at most this many")
	must(cmd.RegisterFlagCompletionFunc("run", c.runs))
	must(cmd.RegisterFlagCompletionFunc("status", cobra.FixedCompletions([]string{"pending", "done", "partial", "failed", "duplicate"}, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

func (c *command) stageCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "stage", Short: "List, pause and resume stages", Aliases: []string{"stages"}}
	pause := &cobra.Command{
		Use: "pause STAGE", Short: "Hand out no more tasks of a stage; those in hand are finished", Args: cobra.ExactArgs(1), ValidArgsFunction: first(stageNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := ask(cmd.Context(), c.client().PauseStage, &reevev1.PauseStageRequest{Stage: args[0]})
			return c.stagePaused(s, err)
		},
	}
	resume := &cobra.Command{
		Use: "resume STAGE", Short: "Hand out tasks of a stage again", Args: cobra.ExactArgs(1), ValidArgsFunction: first(stageNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := ask(cmd.Context(), c.client().ResumeStage, &reevev1.PauseStageRequest{Stage: args[0]})
			return c.stagePaused(s, err)
		},
	}
	cmd.AddCommand(c.stageList(), pause, resume)
	return cmd
}

func (c *command) stagePaused(s *reevev1.Stage, err error) error {
	switch {
	case err != nil:
		return err
	case c.json:
		return writeJSON(c.Out, s)
	}
	fmt.Fprintf(c.Out, "stage %s: %s\n", s.GetStage(), stageState(s))
	return nil
}

// open is the state of a stage whose tasks are handed out and worked off.
const open = "open"

func stageState(s *reevev1.Stage) string {
	switch {
	case s.GetPaused():
		return "paused"
	case s.GetWaitingHands() == 0 && s.GetInHand() == 0:
		return "nobody works on it"
	}
	return open
}

func (c *command) stageList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List stages with what waits at each", Args: cobra.NoArgs, Aliases: []string{"ls"},
		RunE: func(cmd *cobra.Command, _ []string) error {
			a, err := ask(cmd.Context(), c.client().ListStages, &reevev1.ListStagesRequest{})
			if err != nil {
				return err
			}
			if c.json {
				return writeJSON(c.Out, a)
			}
			var rows [][]string
			for _, s := range a.GetStages() {
				rows = append(rows, []string{
					s.GetStage(), stageState(s), digits(s.GetBacklog()), digits(s.GetQueued()), digits(s.GetInHand()),
					digits(s.GetWaitingHands()), s.GetResource(), strings.Join(s.GetPipelines(), ","),
				})
			}
			c.table([]string{"stage", "state", "planned", "queued", "in hand", "idle hands", "node", "pipelines"}, rows)
			return nil
		},
	}
}

func (c *command) sweepCommand() *cobra.Command {
	var once bool
	q := &reevev1.SweepRequest{}
	cmd := &cobra.Command{
		Use: "sweep", Short: "Look for lost work now, and put it right",
		Long: `Look for lost work now, and put it right. The sweeper does this by itself every
minute; this is for when you do not want to wait.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			a, err := ask(cmd.Context(), c.client().Sweep, q)
			if err != nil {
				return err
			}
			if c.json {
				return writeJSON(c.Out, a)
			}
			var rows [][]string
			for _, f := range a.GetFindings() {
				rows = append(rows, []string{number(f.GetRun()), f.GetStage(), dash(f.GetItem()), f.GetFound(), f.GetDone(), dash(f.GetDetail())})
			}
			done := "done"
			if q.GetDryRun() {
				done = "would be done"
			}
			if len(rows) > 0 {
				c.table([]string{"run", "stage", "item", "found", done, "detail"}, rows)
			}
			c.sayf("looked at %s in %s, found %d", plural(a.GetLookedAt(), "silent task"), progress.Duration(a.GetSeconds()), len(rows))
			return nil
		},
	}
	cmd.Flags().BoolVar(&q.DryRun, "dry-run", false, "say what would be done and do nothing")
	cmd.Flags().BoolVar(&once, "once", true, "sweep once; the only way there is here")
	return cmd
}

func (c *command) searchCommand() *cobra.Command {
	q := &reevev1.SearchRequest{}
	cmd := &cobra.Command{
		Use: "search WORDS...", Short: "Search the published pages",
		Long: `Search the published pages, best first. The words are an FTS5 expression:
  budget library        both words        "second reading"    the phrase
  budget OR library     either            librar*             words that begin so
What is no such expression is looked for as the phrase it is.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			q.Query = strings.Join(args, " ")
			a, err := ask(cmd.Context(), c.client().Search, q)
			if err != nil {
				return err
			}
			if c.json {
				return writeJSON(c.Out, a)
			}
			c.hits(a)
			c.sayf("%d of %s", len(a.GetHits()), plural(a.GetTotal(), "hit"))
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&q.Subdomain, "site", "", "only this site")
	f.StringVar(&q.Kind, "kind", "", "only minutes or agenda")
	f.StringVar(&q.DateFrom, "from", "", "first date, such as 2024-01-31")
	f.StringVar(&q.DateTo, "to", "", "last date")
	f.Int32Var(&q.Limit, "limit", 10, "at most this many")
	must(cmd.RegisterFlagCompletionFunc("site", c.sites))
	must(cmd.RegisterFlagCompletionFunc("kind", cobra.FixedCompletions([]string{"minutes", "agenda"}, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

// hits prints hits: two lines each on a terminal, one in a pipe.
func (c *command) hits(a *reevev1.SearchResponse) {
	paint := c.paint(c.Out)
	for _, h := range a.GetHits() {
		snippet := oneLine(h.GetSnippet())
		if c.Out.Columns == 0 {
			fmt.Fprintln(c.Out, strings.Join(clean([]string{h.GetSubdomain(), h.GetMeeting(), h.GetDate(), h.GetKind(), digits(h.GetPage()), snippet}), "\t"))
			continue
		}
		fmt.Fprintf(c.Out, "%s\n    %s\n", oneLine(place(h)), highlight(snippet, paint))
	}
}

// place is where a hit stands.
func place(h *reevev1.Hit) string {
	return fmt.Sprintf("%s  %s %s %s, page %d", h.GetSubdomain(), h.GetMeeting(), h.GetDate(), h.GetKind(), h.GetPage())
}

// highlight colours what stands between « and ».
func highlight(snippet string, paint progress.Paint) string {
	var b strings.Builder
	for {
		before, rest, ok := strings.Cut(snippet, "«")
		match, after, closed := strings.Cut(rest, "»")
		if !ok || !closed {
			b.WriteString(snippet)
			return b.String()
		}
		b.WriteString(before + paint(progress.Yellow, "«"+match+"»"))
		snippet = after
	}
}
