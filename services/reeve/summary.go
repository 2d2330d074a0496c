package reeve

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	reevev1 "github.com/reeve-pipeline/reeve/proto/reeve/v1"
	"github.com/reeve-pipeline/reeve/services/reeve/progress"
)

// problem is a document or task that did not come through whole.
type problem struct {
	Item    string `json:"item"` // a document's source, or stage/item
	Status  string `json:"status"`
	Class   string `json:"class"`
	Message string `json:"message"`
	// Unchanged: an earlier run met it, and this one found the same bytes.
	Unchanged bool `json:"unchanged"`
}

// mostProblems bounds how many are listed.
const mostProblems = 1000

// problems lists what did not come through: failed and partial documents, and
// failed tasks that are no document's.
func (c *command) problems(ctx context.Context, run *reevev1.Run) ([]problem, error) {
	all := []problem{}
	documents := map[string]bool{}
	if sum := run.GetDocuments(); sum != nil {
		for status, n := range map[string]int64{"failed": sum.GetFailed(), "partial": sum.GetPartial()} {
			if n+sum.GetUnchanged() == 0 {
				continue
			}
			a, err := ask(ctx, c.client().ListDocuments, &reevev1.ListDocumentsRequest{Run: run.GetRun(), Subdomain: run.GetSubject(), Status: status, Limit: mostProblems})
			if err != nil {
				return nil, err
			}
			for _, d := range a.GetDocuments() {
				documents[d.GetDocumentId()] = true
				p := problem{Item: d.GetSource(), Status: status, Class: d.GetError().GetClass(), Message: d.GetError().GetMessage()}
				p.Unchanged = d.GetUpdatedAt().AsTime().Before(run.GetStartedAt().AsTime())
				if p.Message == "" {
					p.Message = pagesMissing(d)
				}
				all = append(all, p)
			}
		}
	}
	slices.SortFunc(all, func(a, b problem) int {
		return cmp.Or(strings.Compare(a.Status, b.Status), strings.Compare(a.Item, b.Item))
	})
	a, err := ask(ctx, c.client().ListTasks, &reevev1.ListTasksRequest{Run: run.GetRun(), Status: "failed", Limit: mostProblems})
	if err != nil {
		return nil, err
	}
	for _, t := range a.GetTasks() {
		if !documents[t.GetItem()] {
			all = append(all, problem{Item: t.GetStage() + "/" + t.GetItem(), Status: "failed", Class: t.GetError().GetClass(), Message: t.GetError().GetMessage()})
		}
	}
	return all, nil
}

// pagesMissing says what a partial document lacks.
func pagesMissing(d *reevev1.Document) string {
	var parts []string
	of := fmt.Sprintf(" of %s ", plural(int64(d.GetPages()), "page"))
	if n := d.GetPagesImage(); n > 0 {
		parts = append(parts, digits(n)+of+"without text")
	}
	if n := d.GetPagesFailed(); n > 0 {
		parts = append(parts, digits(n)+of+"unreadable")
	}
	return strings.Join(parts, ", ")
}

// stagesOf prints how the stages of a run stand, and why one that goes on may
// stand still.
func (c *command) stagesOf(ctx context.Context, run *reevev1.Run) error {
	held := map[string]string{}
	if run.GetStatus() == "running" {
		a, err := ask(ctx, c.client().ListStages, &reevev1.ListStagesRequest{})
		if err != nil {
			return err
		}
		for _, s := range a.GetStages() {
			if state := stageState(s); state != open {
				held[s.GetStage()] = ", " + state
			}
		}
	}
	var rows [][]string
	for _, s := range run.GetStages() {
		state := "waiting"
		switch {
		case s.GetClosed():
			state = "closed"
		case s.GetSealed():
			state = "total final"
		case s.GetTotal() > 0:
			state = "total may grow"
		}
		if s.GetTotal() > s.GetCompleted()+s.GetFailed()+s.GetCancelled() {
			state += held[s.GetStage()]
		}
		rows = append(rows, []string{s.GetStage(), digits(s.GetTotal()), digits(s.GetCompleted()), digits(s.GetSkipped()), digits(s.GetFailed()), digits(s.GetCancelled()), state})
	}
	c.table([]string{"stage", "total", "completed", "of these skipped", "failed", "cancelled", "state"}, rows)
	fmt.Fprintln(c.Out)
	return nil
}

// summary prints how a run went: the arithmetic of its documents and pages,
// and by name what did not come through.
func (c *command) summary(run *reevev1.Run, problems []problem) {
	paint := c.paint(c.Out)
	colour := map[string]progress.Colour{"completed": progress.Green, "running": progress.Yellow}[run.GetStatus()]
	status := paint(cmp.Or(colour, progress.Red), run.GetStatus())
	fmt.Fprintf(c.Out, "run %d of %s %s", run.GetRun(), run.GetSubject(), status)
	switch {
	case run.GetStatus() == "running":
		fmt.Fprintf(c.Out, ", for %s so far", progress.Duration(progress.Elapsed(time.Now(), run).Seconds()))
	default:
		fmt.Fprintf(c.Out, " in %s", progress.Duration(progress.Elapsed(time.Now(), run).Seconds()))
	}
	if note := run.GetNote(); note != "" {
		fmt.Fprintf(c.Out, " (%s)", cmp.Or(notes[note], note))
	}
	fmt.Fprintln(c.Out)
	if run.GetErrorMessage() != "" && run.GetStatus() == "failed" {
		fmt.Fprintf(c.Out, "  %s, %s: %s\n", run.GetErrorStage(), run.GetErrorClass(), oneLine(run.GetErrorMessage()))
	}
	if d := run.GetDocuments(); d != nil {
		fmt.Fprintf(c.Out, "  documents  %s\n", documentSum(d))
		if len(d.GetPages()) > 0 {
			fmt.Fprintf(c.Out, "  pages      %s\n", pageSum(d.GetPages()))
		}
	}
	before := map[string]int{}
	problems = slices.DeleteFunc(slices.Clone(problems), func(p problem) bool {
		if p.Unchanged {
			before[p.Status]++
		}
		return p.Unchanged
	})
	if len(before) > 0 {
		fmt.Fprintf(c.Out, "  unchanged  %d failed and %d partial since earlier runs: reeve document list %s\n", before["failed"], before["partial"], run.GetSubject())
	}
	const most = 20
	for i, p := range problems {
		if i == most {
			fmt.Fprintf(c.Out, "  and %d more: reeve document list %s --run %d --status %s\n", len(problems)-most, run.GetSubject(), run.GetRun(), p.Status)
			break
		}
		mark := paint(progress.Yellow, fmt.Sprintf("%-10s", p.Status))
		if p.Status == "failed" {
			mark = paint(progress.Red, fmt.Sprintf("%-10s", p.Status))
		}
		detail := strings.TrimPrefix(p.Message, p.Item+": ")
		if p.Class != "" {
			detail = p.Class + ": " + detail
		}
		fmt.Fprintf(c.Out, "  %s %s: %s\n", mark, oneLine(p.Item), oneLine(detail))
	}
}

func oneLine(s string) string { return clean([]string{s})[0] }

// documentSum is the arithmetic of a run's documents.
func documentSum(d *reevev1.DocumentSummary) string {
	s := fmt.Sprintf("%d found = %d done + %d partial + %d failed + %s + %d unchanged",
		d.GetFound(), d.GetDone(), d.GetPartial(), d.GetFailed(), plural(d.GetDuplicates(), "duplicate"), d.GetUnchanged())
	if d.GetPending() > 0 {
		s += fmt.Sprintf(" + %d pending", d.GetPending())
	}
	if sum := d.GetDone() + d.GetPartial() + d.GetFailed() + d.GetDuplicates() + d.GetUnchanged() + d.GetPending(); sum != d.GetFound() {
		s += fmt.Sprintf("  (these are %d: please report this)", sum)
	}
	return s
}

// notes say why a run that completed did nothing, or little.
var notes = map[string]string{"no_documents": "no documents found", "unchanged": "the site is unchanged"}

// pageOrder is the order in which a page count names its parts.
var pageOrder = []string{"native", "ocr", "image", "blank", "failed", "duplicate"}

var pageWords = map[string]string{
	"native": "with a text layer", "ocr": "recognised", "image": "images without text", "blank": "blank",
	"failed": "unreadable", "duplicate": "in duplicates",
}

// pageSum is the arithmetic of a run's pages, by where their text comes from.
func pageSum(pages map[string]int64) string {
	var total int64
	var names []string
	for name, n := range pages {
		total += n
		if n > 0 {
			names = append(names, name)
		}
	}
	place := func(name string) int {
		if i := slices.Index(pageOrder, name); i >= 0 {
			return i
		}
		return len(pageOrder)
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(place(a), place(b)), strings.Compare(a, b)) })
	var parts []string
	for _, name := range names {
		parts = append(parts, fmt.Sprintf("%d %s", pages[name], cmp.Or(pageWords[name], name)))
	}
	if len(parts) == 0 {
		return "0"
	}
	return fmt.Sprintf("%d = %s", total, strings.Join(parts, " + "))
}
