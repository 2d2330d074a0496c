package pipeline

import "fmt"

// Count is where one stage of a run stands, for the whole run or for the
// children of one parent.
type Count struct {
	Total, Completed, Failed, Cancelled int64
	// Skipped completed, but went no further; a part of Completed.
	Skipped int64
	// Sealed: nothing can be added any more. Closed: sealed, and all have ended.
	Sealed, Closed bool
}

// Full reports whether every task counted so far has ended.
func (c Count) Full() bool { return c.Completed+c.Failed+c.Cancelled == c.Total }

// Planned is a task for the run itself, planned when a stage closed.
type Planned struct {
	Stage, Item string
	// From is the stage whose closing planned it.
	From string
}

// Verdict is why too little came through a stage to go on from it.
type Verdict struct {
	Stage   string
	Message string
}

// Settled is what [Pipeline.Settle] found to do.
type Settled struct {
	// Plan lists the tasks that the stages closed just now call for.
	Plan []Planned
	// Doomed says why the run must end as failed; nil when nothing does.
	Doomed *Verdict
	// Note says why a closed stage called for nothing: "no_documents".
	Note string
	// Ended: every stage is closed.
	Ended bool
}

// Settle seals and closes the stages of a run as far as its counts allow, in
// the order of the pipeline, and says what follows. Counts of stages without
// tasks may be missing; a stage is there once it has been sealed. Tasks that
// it plans are already added to the totals. Settling twice changes nothing.
//
// A stage is sealed when all that can feed it is closed, and closed when it is
// sealed and full, so totals of 0, 1 and 100,000 go the same way.
func (p *Pipeline) Settle(counts map[string]*Count) Settled {
	var s Settled
	s.Ended = true
	for _, st := range p.Stages {
		c := counts[st.Name]
		if c == nil {
			c = &Count{}
			counts[st.Name] = c
		}
		if !c.Sealed {
			c.Sealed = p.fed(st.Name, counts)
		}
		if c.Closed || !c.Sealed || !c.Full() {
			s.Ended = s.Ended && c.Closed
			continue
		}
		c.Closed = true
		for _, e := range p.Out(st.Name) {
			if e.Kind != All {
				continue
			}
			done, failed := p.through(st.Name, counts)
			switch why := e.refuses(done, failed, st.Item); {
			case done+failed == 0:
				s.Note = "no_" + plural(st.Item)
			case why != "":
				s.Doomed = &Verdict{Stage: st.Name, Message: why}
			default:
				s.Plan = append(s.Plan, Planned{Stage: e.To, Item: e.Item, From: st.Name})
				next := counts[e.To]
				if next == nil {
					next = &Count{}
					counts[e.To] = next
				}
				next.Total++
			}
		}
	}
	return s
}

// fed reports whether everything that feeds a stage is closed.
func (p *Pipeline) fed(stage string, counts map[string]*Count) bool {
	for _, e := range p.In(stage) {
		if e.From == stage {
			continue
		}
		if c := counts[e.From]; c == nil || !c.Closed {
			return false
		}
	}
	return true
}

// through adds up what became of the items that set out for a stage: those
// that came through it, with those that were skipped on the way because
// nothing had to be done, and those that failed on the way. Only stages of the
// same kind of item count, so a failed page is not a failed document.
func (p *Pipeline) through(stage string, counts map[string]*Count) (done, failed int64) {
	kind, _ := p.Stage(stage)
	visited := map[string]bool{}
	var walk func(string)
	walk = func(at string) {
		if visited[at] {
			return
		}
		visited[at] = true
		if s, _ := p.Stage(at); s.Item == kind.Item {
			if c := counts[at]; c != nil {
				failed += c.Failed + c.Cancelled
				done += c.Skipped
				if at == stage {
					done += c.Completed - c.Skipped
				}
			}
		}
		for _, e := range p.In(at) {
			if e.Kind != All {
				walk(e.From)
			}
		}
	}
	walk(stage)
	return done, failed
}

// refuses says why an edge does not go on after so many failures, or "".
func (e Edge) refuses(done, failed int64, item string) string {
	all := done + failed
	switch {
	case all == 0:
		return ""
	case done < int64(e.MinSuccess):
		return fmt.Sprintf("%d of %d %s came through, at least %d must", done, all, plural(item), e.MinSuccess)
	case failed*100 > all*int64(e.MaxFailedPct):
		return fmt.Sprintf("%d of %d %s failed, more than %d %%", failed, all, plural(item), e.MaxFailedPct)
	}
	return ""
}

// Failed says why a run whose stages are all closed has failed, or "". Beyond
// the verdicts on the way, a run fails with a task of the subject itself, such
// as a deploy, and when nothing at all came through a pipeline without All edges.
func (p *Pipeline) Failed(counts map[string]*Count) string {
	var failed int64
	var all bool
	for _, s := range p.Stages {
		c := counts[s.Name]
		if c == nil {
			continue
		}
		if s.Item == p.Subject && c.Failed > 0 {
			return fmt.Sprintf("%s of the %s failed", s.Name, p.Subject)
		}
		failed += c.Failed
	}
	for _, e := range p.Edges {
		all = all || e.Kind == All
	}
	last := p.Stages[len(p.Stages)-1]
	if c := counts[last.Name]; !all && failed > 0 && (c == nil || c.Completed == 0) {
		return fmt.Sprintf("no %s came through", last.Item)
	}
	return ""
}

// ChainDone reports whether the children of one parent have gone, one way or
// the other, through all the stages before they are joined. The counts are
// those of the parent's scope; a stage that no child has reached has none.
// The first is sealed when the parent has ended.
func ChainDone(through []string, counts map[string]*Count) bool {
	first := counts[through[0]]
	if first == nil || !first.Sealed {
		return false
	}
	for _, name := range through {
		if c := counts[name]; c != nil && !c.Full() {
			return false
		}
	}
	return true
}

// Counted reports whether the tasks of a stage are counted for each parent as
// well as for the run: where items are spawned, and on the way to a join.
func (p *Pipeline) Counted(stage string) bool {
	return p.spawned(stage) || p.joins(stage)
}

func (p *Pipeline) spawned(stage string) bool {
	for _, e := range p.In(stage) {
		if e.Kind == Spawn {
			return true
		}
	}
	return false
}

func (p *Pipeline) joins(stage string) bool {
	for _, e := range p.Out(stage) {
		if e.Kind == Join || e.Kind == Each && p.joins(e.To) {
			return true
		}
	}
	return false
}

// Spawner returns the stage whose items are the parents of a stage's tasks; ""
// when its items are the run's own.
func (p *Pipeline) Spawner(stage string) string { return p.spawnOf(stage) }

func plural(item string) string {
	if item == "batch" {
		return "batches"
	}
	if item == "pages" {
		return "page ranges"
	}
	return item + "s"
}
