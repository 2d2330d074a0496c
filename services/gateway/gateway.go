// Package gateway serves the API that operators and programs use: the methods
// of reeve.v1.ReeveService, each of them also a plain HTTP POST of JSON. It
// translates between the API and the ledger and decides nothing about runs: no
// rule of the engine lives here.
package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"github.com/reeve-pipeline/reeve/pkg/civic"
	"github.com/reeve-pipeline/reeve/pkg/fault"
	"github.com/reeve-pipeline/reeve/pkg/ledger"
	"github.com/reeve-pipeline/reeve/pkg/pipeline"
	"github.com/reeve-pipeline/reeve/pkg/stage"
	reevev1 "github.com/reeve-pipeline/reeve/proto/reeve/v1"
)

// Name is the service's one name.
const Name = "gateway"

// Ledger is what the gateway asks of the books.
type Ledger interface {
	AddSite(ctx context.Context, site civic.Site) (ledger.Site, error)
	Sites(ctx context.Context) ([]ledger.Site, error)
	Site(ctx context.Context, subdomain string) (ledger.Site, error)
	RemoveSite(ctx context.Context, subdomain string) error

	StartRun(ctx context.Context, run ledger.NewRun) (ledger.Run, error)
	Runs(ctx context.Context, subject, status, pipeline string, limit int) ([]ledger.Run, error)
	Run(ctx context.Context, run int64) (ledger.Run, error)
	DocumentSummary(ctx context.Context, run int64) (ledger.DocumentSummary, error)
	CancelRun(ctx context.Context, run int64) error
	RetryRun(ctx context.Context, run int64) error
	RerunRun(ctx context.Context, run int64, fromStage string) error

	Tasks(ctx context.Context, filter ledger.TaskFilter) ([]ledger.Task, error)
	Documents(ctx context.Context, filter ledger.DocumentFilter) ([]ledger.Document, error)
	Stages(ctx context.Context) ([]ledger.StageState, error)
	PauseStage(ctx context.Context, stage string, paused bool) error
}

// Queues tells the bus's side of the stages and takes runs off it.
type Queues interface {
	// State returns the queue of each stage that the bus knows.
	State(ctx context.Context) (map[string]QueueState, error)
	// Cancel tells the workers that a run has ended and takes its messages away.
	Cancel(ctx context.Context, run int64) error
	// Pause stops or resumes the handing out of a stage's messages.
	Pause(ctx context.Context, stage string, paused bool) error
	// Wake has new tasks handed out at once.
	Wake() error
}

// QueueState is a stage's queue on the bus.
type QueueState struct {
	Queued  int64 // messages not yet delivered
	InHand  int64 // delivered, not acknowledged
	Waiting int64 // idle hands
}

// Sweep looks for lost work once.
type Sweep func(ctx context.Context, dryRun bool) (*reevev1.SweepResponse, error)

// Gateway answers the API.
type Gateway struct {
	Ledger Ledger
	Queues Queues
	Search *Search
	// Sweep is nil where the sweeper runs in another process.
	Sweep Sweep
	// Info says where things are, without secrets.
	Info *reevev1.InfoResponse
	Log  *zap.Logger
	// Poll is the time between two looks at a watched run.
	Poll time.Duration
}

// The most rows that one answer carries, and how many when nobody says.
const (
	maxRows     = 10_000
	defaultRows = 50
)

var subdomain = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// AddSite registers a site or changes its registration.
func (g *api) AddSite(ctx context.Context, r *connect.Request[reevev1.AddSiteRequest]) (*connect.Response[reevev1.Site], error) {
	site, err := siteFrom(r.Msg.GetSite())
	if err != nil {
		return nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
	added, err := g.Ledger.AddSite(ctx, site)
	if err != nil {
		return nil, g.failed(err, "site %s", site.Subdomain)
	}
	return connect.NewResponse(siteOf(added)), nil
}

// siteFrom checks a registration.
func siteFrom(s *reevev1.Site) (civic.Site, error) {
	site := civic.Site{
		Subdomain: s.GetSubdomain(), Name: s.GetName(), State: s.GetState(), Country: s.GetCountry(), Kind: s.GetKind(),
		Source: s.GetSource(), StartYear: int(s.GetStartYear()), Lat: s.GetLat(), Lng: s.GetLng(),
	}
	if !subdomain.MatchString(site.Subdomain) {
		return site, fmt.Errorf("subdomain %q: use 1 to 63 lower-case letters, digits and hyphens, such as alameda or berkeley-ca", site.Subdomain)
	}
	u, err := url.Parse(site.Source)
	web := err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != ""
	if !web && !filepath.IsAbs(site.Source) {
		return site, fmt.Errorf("source %q of site %s: give a folder's absolute path or the http(s) URL of a page with links to PDFs", site.Source, site.Subdomain)
	}
	if y := site.StartYear; y != 0 && (y < 1600 || y > 9999) {
		return site, fmt.Errorf("start year %d of site %s is not a year", y, site.Subdomain)
	}
	if s.GetExtra() != nil {
		if site.Extra, err = s.GetExtra().MarshalJSON(); err != nil {
			return site, fmt.Errorf("extra of site %s: %w", site.Subdomain, err)
		}
	}
	return site, nil
}

// ListSites lists the registry.
func (g *api) ListSites(ctx context.Context, _ *connect.Request[reevev1.ListSitesRequest]) (*connect.Response[reevev1.ListSitesResponse], error) {
	sites, err := g.Ledger.Sites(ctx)
	if err != nil {
		return nil, g.failed(err, "sites")
	}
	return connect.NewResponse(&reevev1.ListSitesResponse{Sites: each(sites, siteOf)}), nil
}

// GetSite returns one registration.
func (g *api) GetSite(ctx context.Context, r *connect.Request[reevev1.GetSiteRequest]) (*connect.Response[reevev1.Site], error) {
	site, err := g.Ledger.Site(ctx, r.Msg.GetSubdomain())
	if err != nil {
		return nil, g.failed(err, "site %s", r.Msg.GetSubdomain())
	}
	return connect.NewResponse(siteOf(site)), nil
}

// RemoveSite forgets a registration.
func (g *api) RemoveSite(ctx context.Context, r *connect.Request[reevev1.RemoveSiteRequest]) (*connect.Response[reevev1.RemoveSiteResponse], error) {
	if err := g.Ledger.RemoveSite(ctx, r.Msg.GetSubdomain()); err != nil {
		return nil, g.failed(err, "site %s", r.Msg.GetSubdomain())
	}
	return connect.NewResponse(&reevev1.RemoveSiteResponse{}), nil
}

var priorities = map[string]ledger.Priority{"high": ledger.High, "normal": ledger.Normal, "": ledger.Normal, "low": ledger.Low}

// StartRun starts a run of a subject through a pipeline.
func (g *api) StartRun(ctx context.Context, r *connect.Request[reevev1.StartRunRequest]) (*connect.Response[reevev1.Run], error) {
	m := r.Msg
	p, ok := pipeline.Named(cmp.Or(m.GetPipeline(), "civic"))
	if !ok {
		return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("no pipeline %q: there are %s", m.GetPipeline(), strings.Join(pipelineNames(), ", ")))
	}
	priority, ok := priorities[m.GetPriority()]
	if !ok {
		return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("no priority %q: there are high, normal and low", m.GetPriority()))
	}
	if m.GetSubject() == "" {
		return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("a run of %s needs its %s", p.Name, p.Subject))
	}
	if _, err := p.Configure(m.GetSettings().AsMap()); err != nil {
		return nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
	run := ledger.NewRun{
		Pipeline: p.Name, Subject: m.GetSubject(), Priority: priority, Trigger: cmp.Or(m.GetTrigger(), "api"),
		Settings: m.GetSettings().AsMap(), Supersede: m.GetSupersede(),
	}
	if m.GetForce() {
		run.Settings["force"] = true
	}
	if p.Subject == "site" {
		site, err := g.Ledger.Site(ctx, m.GetSubject())
		if err != nil {
			return nil, g.failed(err, "site %s", m.GetSubject())
		}
		run.Items = []stage.Item{{Item: site.Subdomain, Spec: site.Site}}
	}
	var before []ledger.Run
	if run.Supersede {
		var err error
		if before, err = g.Ledger.Runs(ctx, run.Subject, "running", p.Name, 1); err != nil {
			return nil, g.failed(err, "runs of %s", run.Subject)
		}
	}
	started, err := g.Ledger.StartRun(ctx, run)
	if err != nil {
		return nil, g.failed(err, "%s run of %s", p.Name, run.Subject)
	}
	for _, old := range before {
		g.takeOff(ctx, old.Run)
	}
	g.wake()
	return g.run(ctx, started.Run)
}

// wake has new tasks handed out at once. If it fails, they are a moment later.
func (g *api) wake() {
	if err := g.Queues.Wake(); err != nil {
		g.Log.Debug("fan-in not woken", zap.Error(err))
	}
}

// takeOff removes an ended run from the bus. The ledger has ended it already,
// so that a failure here costs work done in vain and nothing else.
func (g *api) takeOff(ctx context.Context, run int64) {
	if err := g.Queues.Cancel(ctx, run); err != nil {
		g.Log.Warn("ended run is still on the bus", zap.Int64("run", run), zap.Error(err))
	}
}

func pipelineNames() []string {
	return each(pipeline.Pipelines(), func(p *pipeline.Pipeline) string { return p.Name })
}

// What rows may be selected by: an answer without rows would hide a typo.
var (
	runStatuses      = []string{"running", "completed", "failed", "cancelled", "superseded"}
	taskStatuses     = []string{"planned", "running", "waiting", "retry", "completed", "failed", "cancelled"}
	documentStatuses = []string{"pending", "done", "partial", "failed", "duplicate"}
)

// known reports a word that is none of those there are. None at all is fine.
func known(what, word string, all ...string) error {
	if word == "" || slices.Contains(all, word) {
		return nil
	}
	return connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("no %s %q: there are %s", what, word, strings.Join(all, ", ")))
}

// knownRun reports a run that there is not. 0 is all runs.
func (g *api) knownRun(ctx context.Context, id int64) error {
	if id == 0 {
		return nil
	}
	if _, err := g.Ledger.Run(ctx, id); err != nil {
		return g.failed(err, "run %d", id)
	}
	return nil
}

// ListRuns lists runs, newest first.
func (g *api) ListRuns(ctx context.Context, r *connect.Request[reevev1.ListRunsRequest]) (*connect.Response[reevev1.ListRunsResponse], error) {
	m := r.Msg
	if err := cmp.Or(known("status", m.GetStatus(), runStatuses...), known("pipeline", m.GetPipeline(), pipelineNames()...)); err != nil {
		return nil, err
	}
	runs, err := g.Ledger.Runs(ctx, m.GetSubject(), m.GetStatus(), m.GetPipeline(), limit(m.GetLimit()))
	if err != nil {
		return nil, g.failed(err, "runs")
	}
	return connect.NewResponse(&reevev1.ListRunsResponse{Runs: each(runs, runOf)}), nil
}

// GetRun returns a run with its stages and documents.
func (g *api) GetRun(ctx context.Context, r *connect.Request[reevev1.GetRunRequest]) (*connect.Response[reevev1.Run], error) {
	return g.run(ctx, r.Msg.GetRun())
}

func (g *api) run(ctx context.Context, id int64) (*connect.Response[reevev1.Run], error) {
	run, err := g.look(ctx, id)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(run), nil
}

// look returns a run as it stands.
func (g *api) look(ctx context.Context, id int64) (*reevev1.Run, error) {
	run, err := g.Ledger.Run(ctx, id)
	if err != nil {
		return nil, g.failed(err, "run %d", id)
	}
	out := runOf(run)
	p, ok := pipeline.Named(run.Pipeline)
	if ok && run.Status == "running" && p.SpawnsItself(p.Root) {
		if err := g.listing(ctx, p.Root, out); err != nil {
			return nil, err
		}
	}
	if ok && p.Subject == "site" {
		sum, err := g.Ledger.DocumentSummary(ctx, id)
		if err != nil {
			return nil, g.failed(err, "documents of run %d", id)
		}
		out.Documents = summaryOf(sum)
	}
	return out, nil
}

// listing unseals a run's first stage while its first task still lists items
// for it. The books need no seal there, since the listing is one of the tasks
// that must end; who watches must not take the total for the last word.
func (g *api) listing(ctx context.Context, root string, run *reevev1.Run) error {
	first, err := g.Ledger.Tasks(ctx, ledger.TaskFilter{Run: run.GetRun(), Stage: root, Limit: 1})
	if err != nil {
		return g.failed(err, "tasks of run %d", run.GetRun())
	}
	for _, s := range run.GetStages() {
		if s.GetStage() == root && len(first) == 1 && !slices.Contains([]string{"completed", "failed", "cancelled"}, first[0].Status) {
			s.Sealed = false
		}
	}
	return nil
}

// WatchRun sends the run now, whenever it changes, and once it has ended.
func (g *api) WatchRun(ctx context.Context, r *connect.Request[reevev1.GetRunRequest], out *connect.ServerStream[reevev1.Run]) error {
	tick := time.NewTicker(g.Poll)
	defer tick.Stop()
	var sent *reevev1.Run
	for {
		run, err := g.look(ctx, r.Msg.GetRun())
		if err != nil {
			return err
		}
		if !proto.Equal(run, sent) {
			if err := out.Send(run); err != nil {
				return err
			}
			sent = run
		}
		if run.GetStatus() != "running" {
			return nil
		}
		select {
		case <-tick.C:
		case <-g.stopping:
			return connect.NewError(connect.CodeUnavailable, errors.New("the gateway is stopping"))
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// CancelRun ends a run that goes on.
func (g *api) CancelRun(ctx context.Context, r *connect.Request[reevev1.GetRunRequest]) (*connect.Response[reevev1.Run], error) {
	if err := g.Ledger.CancelRun(ctx, r.Msg.GetRun()); err != nil {
		return nil, g.failed(err, "run %d", r.Msg.GetRun())
	}
	g.takeOff(ctx, r.Msg.GetRun())
	return g.run(ctx, r.Msg.GetRun())
}

// RetryRun hands the failed tasks of an ended run out again.
func (g *api) RetryRun(ctx context.Context, r *connect.Request[reevev1.GetRunRequest]) (*connect.Response[reevev1.Run], error) {
	if err := g.Ledger.RetryRun(ctx, r.Msg.GetRun()); err != nil {
		return nil, g.failed(err, "run %d", r.Msg.GetRun())
	}
	g.wake()
	return g.run(ctx, r.Msg.GetRun())
}

// RerunRun runs an ended run again from a stage on.
func (g *api) RerunRun(ctx context.Context, r *connect.Request[reevev1.RerunRunRequest]) (*connect.Response[reevev1.Run], error) {
	if err := knownStage(r.Msg.GetFromStage()); err != nil {
		return nil, err
	}
	run, err := g.Ledger.Run(ctx, r.Msg.GetRun())
	if err != nil {
		return nil, g.failed(err, "run %d", r.Msg.GetRun())
	}
	if p, ok := pipeline.Named(run.Pipeline); ok {
		if _, ok := p.Stage(r.Msg.GetFromStage()); !ok {
			names := each(p.Stages, func(s pipeline.Stage) string { return s.Name })
			return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("run %d is of pipeline %s, which has no stage %s: there are %s", run.Run, p.Name, r.Msg.GetFromStage(), strings.Join(names, ", ")))
		}
	}
	if err := g.Ledger.RerunRun(ctx, r.Msg.GetRun(), r.Msg.GetFromStage()); err != nil {
		return nil, g.failed(err, "run %d", r.Msg.GetRun())
	}
	g.wake()
	return g.run(ctx, r.Msg.GetRun())
}

// ListTasks lists task rows.
func (g *api) ListTasks(ctx context.Context, r *connect.Request[reevev1.ListTasksRequest]) (*connect.Response[reevev1.ListTasksResponse], error) {
	m := r.Msg
	if m.GetStage() != "" {
		if err := knownStage(m.GetStage()); err != nil {
			return nil, err
		}
	}
	if err := cmp.Or(known("status", m.GetStatus(), taskStatuses...), g.knownRun(ctx, m.GetRun())); err != nil {
		return nil, err
	}
	tasks, err := g.Ledger.Tasks(ctx, ledger.TaskFilter{Run: m.GetRun(), Stage: m.GetStage(), Status: m.GetStatus(), Limit: limit(m.GetLimit())})
	if err != nil {
		return nil, g.failed(err, "tasks")
	}
	return connect.NewResponse(&reevev1.ListTasksResponse{Tasks: each(tasks, taskOf)}), nil
}

// ListDocuments lists document rows.
func (g *api) ListDocuments(ctx context.Context, r *connect.Request[reevev1.ListDocumentsRequest]) (*connect.Response[reevev1.ListDocumentsResponse], error) {
	m := r.Msg
	if err := cmp.Or(known("status", m.GetStatus(), documentStatuses...), g.knownRun(ctx, m.GetRun())); err != nil {
		return nil, err
	}
	// A run may be of a site that is registered no more.
	if only := m.GetSubdomain(); only != "" && m.GetRun() == 0 {
		if _, err := g.Ledger.Site(ctx, only); err != nil {
			return nil, g.failed(err, "site %s", only)
		}
	}
	docs, err := g.Ledger.Documents(ctx, ledger.DocumentFilter{Subdomain: m.GetSubdomain(), Status: m.GetStatus(), Run: m.GetRun(), Limit: limit(m.GetLimit())})
	if err != nil {
		return nil, g.failed(err, "documents")
	}
	return connect.NewResponse(&reevev1.ListDocumentsResponse{Documents: each(docs, documentOf)}), nil
}

// ListStages says how the stages of this deployment stand, over all runs.
func (g *api) ListStages(ctx context.Context, _ *connect.Request[reevev1.ListStagesRequest]) (*connect.Response[reevev1.ListStagesResponse], error) {
	stages, err := g.stages(ctx)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&reevev1.ListStagesResponse{Stages: stages}), nil
}

func (g *api) stages(ctx context.Context) ([]*reevev1.Stage, error) {
	states, err := g.Ledger.Stages(ctx)
	if err != nil {
		return nil, g.failed(err, "stages")
	}
	queues, err := g.Queues.State(ctx)
	if err != nil {
		return nil, g.failed(err, "queues")
	}
	return each(pipeline.Stages(), func(s pipeline.Stage) *reevev1.Stage {
		q := queues[s.Name]
		out := &reevev1.Stage{Stage: s.Name, Resource: string(s.Resource), Queued: q.Queued, InHand: q.InHand, WaitingHands: q.Waiting}
		for _, p := range pipeline.Pipelines() {
			if _, ok := p.Stage(s.Name); ok {
				out.Pipelines = append(out.Pipelines, p.Name)
			}
		}
		if i := slices.IndexFunc(states, func(t ledger.StageState) bool { return t.Stage == s.Name }); i >= 0 {
			out.Paused, out.Backlog = states[i].Paused, states[i].Backlog
		}
		return out
	}), nil
}

// PauseStage stops handing out the tasks of a stage.
func (g *api) PauseStage(ctx context.Context, r *connect.Request[reevev1.PauseStageRequest]) (*connect.Response[reevev1.Stage], error) {
	return g.pause(ctx, r.Msg.GetStage(), true)
}

// ResumeStage hands them out again.
func (g *api) ResumeStage(ctx context.Context, r *connect.Request[reevev1.PauseStageRequest]) (*connect.Response[reevev1.Stage], error) {
	return g.pause(ctx, r.Msg.GetStage(), false)
}

func (g *api) pause(ctx context.Context, name string, paused bool) (*connect.Response[reevev1.Stage], error) {
	if err := knownStage(name); err != nil {
		return nil, err
	}
	if err := g.Ledger.PauseStage(ctx, name, paused); err != nil {
		return nil, g.failed(err, "stage %s", name)
	}
	// The ledger holds back what is planned, the bus what is queued.
	if err := g.Queues.Pause(ctx, name, paused); err != nil {
		return nil, g.failed(err, "stage %s", name)
	}
	stages, err := g.stages(ctx)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(stages, func(s *reevev1.Stage) bool { return s.GetStage() == name })
	return connect.NewResponse(stages[i]), nil
}

// knownStage reports a stage that there is not, with those that there are.
func knownStage(name string) error {
	if _, ok := pipeline.StageNamed(name); !ok {
		names := each(pipeline.Stages(), func(s pipeline.Stage) string { return s.Name })
		return connect.NewError(connect.CodeNotFound, fmt.Errorf("no stage %q: there are %s", name, strings.Join(names, ", ")))
	}
	return nil
}

// Sweep looks for lost work once, now.
func (g *api) Sweep(ctx context.Context, r *connect.Request[reevev1.SweepRequest]) (*connect.Response[reevev1.SweepResponse], error) {
	if g.Gateway.Sweep == nil {
		return nil, connect.NewError(connect.CodeUnimplemented, errors.New("the sweeper runs in another process: run `sweeper --once` there"))
	}
	found, err := g.Gateway.Sweep(ctx, r.Msg.GetDryRun())
	if err != nil {
		return nil, g.failed(err, "sweep")
	}
	return connect.NewResponse(found), nil
}

// Search looks in the published meetings.db of one site or of all.
func (g *api) Search(ctx context.Context, r *connect.Request[reevev1.SearchRequest]) (*connect.Response[reevev1.SearchResponse], error) {
	q, err := queryOf(r.Msg)
	if err != nil {
		return nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
	var sites []ledger.Site
	if only := r.Msg.GetSubdomain(); only != "" {
		site, err := g.Ledger.Site(ctx, only)
		if err != nil {
			return nil, g.failed(err, "site %s", only)
		}
		sites = []ledger.Site{site}
	} else if sites, err = g.Ledger.Sites(ctx); err != nil {
		return nil, g.failed(err, "sites")
	}
	found, err := g.Gateway.Search.Find(ctx, sites, q)
	switch {
	case errors.Is(err, errBadQuery):
		return nil, connect.NewError(connect.CodeInvalidArgument, err)
	case errors.Is(err, errNothingPublished):
		return nil, connect.NewError(connect.CodeFailedPrecondition, err)
	case err != nil:
		return nil, g.failed(err, "search")
	}
	return connect.NewResponse(found), nil
}

// Info says where everything of this instance is, without its secrets.
func (g *api) Info(context.Context, *connect.Request[reevev1.InfoRequest]) (*connect.Response[reevev1.InfoResponse], error) {
	return connect.NewResponse(g.Gateway.Info), nil
}

// failed gives an error its code, and names the thing and the remedy.
func (g *api) failed(err error, format string, args ...any) error {
	thing := fmt.Sprintf(format, args...)
	switch {
	case errors.Is(err, ledger.ErrNotFound):
		kind, _, _ := strings.Cut(thing, " ")
		return connect.NewError(connect.CodeNotFound, fmt.Errorf("no %s; `reeve %s list` shows what there is", thing, kind))
	case errors.Is(err, ledger.ErrConflict):
		return connect.NewError(connect.CodeFailedPrecondition, errors.New(strings.TrimSuffix(err.Error(), ": "+ledger.ErrConflict.Error())))
	case errors.Is(err, context.Canceled):
		return connect.NewError(connect.CodeCanceled, fmt.Errorf("%s: %w", thing, err))
	case errors.Is(err, context.DeadlineExceeded):
		return connect.NewError(connect.CodeDeadlineExceeded, fmt.Errorf("%s: %w", thing, err))
	}
	err = fmt.Errorf("%s: %w", thing, err)
	class := fault.Of(err)
	if class == fault.ClassInfra {
		return connect.NewError(connect.CodeUnavailable, err)
	}
	if class == fault.ClassPermanent {
		return connect.NewError(connect.CodeInvalidArgument, err)
	}
	g.Log.Error("request failed", zap.Error(err))
	return connect.NewError(connect.CodeInternal, err)
}

// limit bounds the number of rows asked for.
func limit(n int32) int {
	if n <= 0 {
		return defaultRows
	}
	return min(int(n), maxRows)
}

// each applies f to every element.
func each[A, B any](all []A, f func(A) B) []B {
	out := make([]B, 0, len(all))
	for _, a := range all {
		out = append(out, f(a))
	}
	return out
}
