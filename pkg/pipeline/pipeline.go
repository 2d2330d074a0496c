// Package pipeline says, as data, which stages there are, which pipelines they
// form, and how items travel from stage to stage. It is pure: it reads no
// clock, no environment and no network, and everything else in Reeve asks it
// rather than knowing a stage by name.
//
// To add a stage, add a [Stage] here, the edges that lead to it and from it,
// and a folder of the same name under services.
package pipeline

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Kind says how items cross an [Edge].
type Kind string

const (
	// Spawn: the outcomes of From list items, each of which becomes a task of To.
	Spawn Kind = "spawn"
	// Each: an item goes on to To as soon as it has completed From.
	Each Kind = "each"
	// Join: a parent goes on to To when all its children have ended From.
	Join Kind = "join"
	// All: one task of To for the whole run when From is closed for the run.
	All Kind = "all"
)

// Reads says what a task may read besides its spec.
type Reads string

const (
	// ReadsNothing: the spec is all there is.
	ReadsNothing Reads = ""
	// ReadsJoined: the children that a join has brought together.
	ReadsJoined Reads = "joined"
	// ReadsDocuments: every document of the subject, of this run or an earlier one.
	ReadsDocuments Reads = "documents"
)

// Resource is the kind of node a stage runs on.
type Resource string

// The two kinds of node.
const (
	CPU Resource = "cpu"
	GPU Resource = "gpu"
)

// Stage is one step that tasks go through. The numbers are defaults; a
// deployment may set others.
type Stage struct {
	// Name is the same everywhere: subject, consumer, rows, metrics, image.
	Name string
	// Item is the kind of thing that travels: site, document, pages, volume, lead.
	Item string
	// Service is the folder under services that works the stage off.
	Service string
	// Resource is the kind of node it needs.
	Resource Resource
	// Reads is what its tasks may ask for besides their spec.
	Reads Reads
	// Timeout bounds one attempt.
	Timeout time.Duration
	// MaxAttempts bounds the attempts that a task's own faults may spend.
	MaxAttempts int
	// Backoff and BackoffMax bound the wait between attempts: full jitter
	// below min(BackoffMax, Backoff·2^(attempt-1)).
	Backoff, BackoffMax time.Duration
	// Concurrency is the number of tasks one worker process has in hand.
	Concurrency int
	// MaxInFlight bounds the tasks in hand over the whole deployment.
	MaxInFlight int
	// Silence is how long a task handed out may say nothing before the sweeper
	// looks for its message.
	Silence time.Duration
}

// Edge leads items from one stage to another.
type Edge struct {
	Kind     Kind
	From, To string
	// Item names the task of an All edge. Stages fed by several All edges tell
	// them apart by it.
	Item string
	// When names a boolean setting of the run without which the edge is not
	// there. Empty: always.
	When string
	// MinSuccess and MaxFailedPct bound the failures that Join and All
	// overlook: at least MinSuccess items must have come through, if any came
	// at all, and at most MaxFailedPct percent may have failed.
	MinSuccess   int
	MaxFailedPct int
}

// Conflict says what happens to a run of a subject that has one going on.
type Conflict string

// What a second run of the same subject meets.
const (
	Refuse    Conflict = "refuse"
	Supersede Conflict = "supersede"
)

// Pipeline is a named, versioned graph of stages.
type Pipeline struct {
	Name string
	// Version is pinned by each run, and raised when the graph changes.
	Version int
	// Subject is the kind of thing a run is about: site, job, batch.
	Subject string
	// Root is the stage that a run's first items enter.
	Root string
	// Stages in the order in which a reader expects them.
	Stages []Stage
	Edges  []Edge
	// Conflict is the default for a run that names no other.
	Conflict Conflict
	// Settings are the defaults of a run's settings; a run may set no others.
	Settings map[string]any
	// Choices lists the values that a setting may have, where only some make sense.
	Choices map[string][]string
}

// Configure returns a run's settings: the defaults, with some overridden. A
// setting that there is not, of another type or with a value that it may not
// have is an error that says what would do.
func (p *Pipeline) Configure(overrides map[string]any) (map[string]any, error) {
	settings := maps.Clone(p.Settings)
	for _, name := range slices.Sorted(maps.Keys(overrides)) {
		standard, known := p.Settings[name]
		value := overrides[name]
		choices := p.Choices[name]
		word, _ := value.(string)
		switch {
		case !known:
			return nil, fmt.Errorf("pipeline %s has no setting %q; it has %s", p.Name, name, strings.Join(slices.Sorted(maps.Keys(p.Settings)), ", "))
		case standard != nil && kindOf(standard) != kindOf(value):
			return nil, fmt.Errorf("setting %s of pipeline %s is a %s, not %v", name, p.Name, kindOf(standard), value)
		case choices != nil && !slices.Contains(choices, word):
			return nil, fmt.Errorf("setting %s of pipeline %s is %s, not %q", name, p.Name, strings.Join(choices, " or "), word)
		}
		settings[name] = value
	}
	return settings, nil
}

// kindOf says of what kind a setting's value is, as JSON knows kinds.
func kindOf(v any) string {
	switch v.(type) {
	case bool:
		return "boolean"
	case string:
		return "string"
	case int, int64, float64:
		return "number"
	}
	return fmt.Sprintf("%T", v)
}

// Stage returns the stage of that name.
func (p *Pipeline) Stage(name string) (Stage, bool) {
	i := slices.IndexFunc(p.Stages, func(s Stage) bool { return s.Name == name })
	if i < 0 {
		return Stage{}, false
	}
	return p.Stages[i], true
}

// Out returns the edges that leave a stage.
func (p *Pipeline) Out(stage string) []Edge {
	return filter(p.Edges, func(e Edge) bool { return e.From == stage })
}

// In returns the edges that enter a stage.
func (p *Pipeline) In(stage string) []Edge {
	return filter(p.Edges, func(e Edge) bool { return e.To == stage })
}

// SpawnsItself reports whether items of a stage spawn further items of it, as
// a listing spawns downloads. Then only spawned items travel on by Each.
func (p *Pipeline) SpawnsItself(stage string) bool {
	return slices.ContainsFunc(p.Edges, func(e Edge) bool {
		return e.Kind == Spawn && e.From == stage && e.To == stage
	})
}

// For returns the pipeline as a run with these settings sees it: without the
// edges whose condition is not met, and without the stages these alone led to.
func (p *Pipeline) For(settings map[string]any) *Pipeline {
	q := *p
	q.Edges = filter(p.Edges, func(e Edge) bool {
		on, _ := settings[e.When].(bool)
		return e.When == "" || on
	})
	for {
		reached := func(name string) bool {
			return name == q.Root || slices.ContainsFunc(q.Edges, func(e Edge) bool { return e.To == name && e.From != name })
		}
		stages := filter(q.Stages, func(s Stage) bool { return reached(s.Name) })
		edges := filter(q.Edges, func(e Edge) bool { return reached(e.From) })
		done := len(stages) == len(q.Stages) && len(edges) == len(q.Edges)
		q.Stages, q.Edges = stages, edges
		if done {
			return &q
		}
	}
}

var name = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)

// Validate reports everything that is wrong with the definition, joined.
func (p *Pipeline) Validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("pipeline %s: "+format, append([]any{p.Name}, args...)...))
	}
	if !name.MatchString(p.Name) {
		bad("a name is lower-case letters, digits and underscores")
	}
	if p.Version < 1 {
		bad("version must be at least 1")
	}
	seen := map[string]bool{}
	for _, s := range p.Stages {
		switch {
		case !name.MatchString(s.Name):
			bad("stage %q: a name is lower-case letters, digits and underscores", s.Name)
		case seen[s.Name]:
			bad("stage %s stands twice", s.Name)
		}
		seen[s.Name] = true
		if s.Timeout <= 0 || s.MaxAttempts < 1 || s.Concurrency < 1 || s.MaxInFlight < 1 || s.Silence <= 0 {
			bad("stage %s: timeout, max attempts, concurrency, max in flight and silence must be positive", s.Name)
		}
		if s.Backoff <= 0 || s.BackoffMax < s.Backoff {
			bad("stage %s: backoff must be positive and at most its maximum", s.Name)
		}
	}
	if !seen[p.Root] {
		bad("root %q is not one of its stages", p.Root)
	}
	for _, e := range p.Edges {
		if !seen[e.From] || !seen[e.To] {
			bad("edge %s -> %s: both ends must be stages of the pipeline", e.From, e.To)
		}
		if e.From == e.To && e.Kind != Spawn {
			bad("edge %s -> %s: only spawn may lead back to the same stage", e.From, e.To)
		}
		if (e.Kind == All) != (e.Item != "") {
			bad("edge %s -> %s: all edges, and only these, name their item", e.From, e.To)
		}
		if e.MaxFailedPct < 0 || e.MaxFailedPct > 100 {
			bad("edge %s -> %s: max failed percent must lie in 0..100", e.From, e.To)
		}
		if e.Kind == Join && p.spawnOf(e.From) == "" {
			bad("edge %s -> %s: nothing spawns the items that are joined", e.From, e.To)
		}
	}
	for _, s := range p.Stages {
		if p.reaches(s.Name, s.Name) {
			bad("stage %s can be reached from itself", s.Name)
		}
		if s.Name != p.Root && !p.reaches(p.Root, s.Name) {
			bad("stage %s cannot be reached from %s", s.Name, p.Root)
		}
	}
	return errors.Join(errs...)
}

// reaches reports whether items can get from one stage to another by at least
// one edge; a stage that spawns itself does not count as a cycle.
func (p *Pipeline) reaches(from, to string) bool {
	visited := map[string]bool{}
	var walk func(string) bool
	walk = func(at string) bool {
		for _, e := range p.Out(at) {
			if e.From == e.To {
				continue
			}
			if e.To == to {
				return true
			}
			if !visited[e.To] {
				visited[e.To] = true
				if walk(e.To) {
					return true
				}
			}
		}
		return false
	}
	return walk(from)
}

// After lists the stages that items can get to from a stage, in the
// pipeline's order.
func (p *Pipeline) After(stage string) []string {
	var list []string
	for _, s := range p.Stages {
		if s.Name != stage && p.reaches(stage, s.Name) {
			list = append(list, s.Name)
		}
	}
	return list
}

// spawnOf returns the stage whose outcomes list the items that travel through
// a stage: the source of the spawn edge that an each chain starts from.
func (p *Pipeline) spawnOf(stage string) string {
	for _, e := range p.In(stage) {
		switch {
		case e.Kind == Spawn:
			return e.From
		case e.Kind == Each:
			if from := p.spawnOf(e.From); from != "" {
				return from
			}
		}
	}
	return ""
}

// JoinAfter returns the join that the children spawned by a stage end in, and
// the stages they go through before it, in order. ok is false when nothing
// joins them.
func (p *Pipeline) JoinAfter(spawner string) (join Edge, through []string, ok bool) {
	var walk func(at string, path []string) bool
	walk = func(at string, path []string) bool {
		path = append(path, at)
		for _, e := range p.Out(at) {
			switch {
			case e.Kind == Join:
				join, through = e, slices.Clone(path)
				return true
			case e.Kind == Each && walk(e.To, path):
				return true
			}
		}
		return false
	}
	for _, e := range p.Out(spawner) {
		if e.Kind == Spawn && e.From != e.To && walk(e.To, nil) {
			return join, through, true
		}
	}
	return Edge{}, nil, false
}

func filter[T any](all []T, keep func(T) bool) []T {
	var kept []T
	for _, x := range all {
		if keep(x) {
			kept = append(kept, x)
		}
	}
	return kept
}
