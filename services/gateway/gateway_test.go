package gateway_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/reeve-pipeline/reeve/pkg/civic"
	"github.com/reeve-pipeline/reeve/pkg/fault"
	"github.com/reeve-pipeline/reeve/pkg/ledger"
	reevev1 "github.com/reeve-pipeline/reeve/proto/reeve/v1"
	"github.com/reeve-pipeline/reeve/proto/reeve/v1/reevev1connect"
	"github.com/reeve-pipeline/reeve/services/gateway"
)

// books is a ledger of one site and the runs that a test gives it.
type books struct {
	gateway.Ledger
	started ledger.NewRun
	runs    chan ledger.Run // what Run returns, one after the other
	listing string          // how the task stands that lists the documents
	fails   error           // what every change returns
}

func (b *books) Site(_ context.Context, name string) (ledger.Site, error) {
	if name != "alameda" {
		return ledger.Site{}, ledger.ErrNotFound
	}
	return ledger.Site{Site: civic.Site{Subdomain: name, Source: "/pdfs"}, UpdatedAt: time.Now()}, nil
}

func (b *books) Sites(ctx context.Context) ([]ledger.Site, error) {
	s, err := b.Site(ctx, "alameda")
	return []ledger.Site{s}, err
}

func (b *books) AddSite(_ context.Context, s civic.Site) (ledger.Site, error) {
	return ledger.Site{Site: s}, b.fails
}

func (b *books) StartRun(_ context.Context, n ledger.NewRun) (ledger.Run, error) {
	b.started = n
	return ledger.Run{Run: 7}, b.fails
}

func (b *books) Runs(context.Context, string, string, string, int) ([]ledger.Run, error) {
	return []ledger.Run{{Run: 6, Status: "running"}}, nil
}

func (b *books) Run(_ context.Context, id int64) (ledger.Run, error) {
	select {
	case r := <-b.runs:
		return r, nil
	default:
	}
	if id == 404 {
		return ledger.Run{}, ledger.ErrNotFound
	}
	return ledger.Run{Run: id, Pipeline: "civic", Status: "completed"}, nil
}

func (b *books) DocumentSummary(context.Context, int64) (ledger.DocumentSummary, error) {
	return ledger.DocumentSummary{Found: 18, Done: 18}, nil
}

func (b *books) Tasks(_ context.Context, f ledger.TaskFilter) ([]ledger.Task, error) {
	if f.Limit == 1 && f.Stage == "fetch" {
		return []ledger.Task{{Run: f.Run, Stage: "fetch", Item: "alameda", Status: b.listing}}, nil
	}
	return nil, nil
}
func (b *books) CancelRun(context.Context, int64) error         { return b.fails }
func (b *books) PauseStage(context.Context, string, bool) error { return b.fails }
func (b *books) Stages(context.Context) ([]ledger.StageState, error) {
	return []ledger.StageState{{Stage: "ocr", Paused: true, Backlog: 5}}, nil
}

// queues remembers what it was told.
type queues struct{ told []string }

func (q *queues) State(context.Context) (map[string]gateway.QueueState, error) {
	return map[string]gateway.QueueState{"ocr": {Queued: 3, InHand: 1, Waiting: 2}}, nil
}

func (q *queues) Wake() error { return nil }

func (q *queues) Cancel(_ context.Context, run int64) error {
	q.told = append(q.told, fmt.Sprint("cancel ", run))
	return nil
}

func (q *queues) Pause(_ context.Context, stage string, paused bool) error {
	q.told = append(q.told, fmt.Sprint("pause ", stage, " ", paused))
	return nil
}

// server is a gateway under test.
type server struct {
	*books
	*queues
	url      string
	api      reevev1connect.ReeveServiceClient
	stopping chan struct{}
}

func newServer(t *testing.T, token string) *server {
	t.Helper()
	s := &server{books: &books{runs: make(chan ledger.Run, 10)}, queues: &queues{}, stopping: make(chan struct{})}
	search, err := gateway.NewSearch(folder(t.TempDir()), filepath.Join(t.TempDir(), "search"))
	if err != nil {
		t.Fatal(err)
	}
	g := &gateway.Gateway{Ledger: s.books, Queues: s.queues, Search: search, Info: &reevev1.InfoResponse{Version: "1"}, Log: zap.NewNop(), Poll: time.Millisecond}
	h := httptest.NewServer(g.Handler(token, s.stopping))
	t.Cleanup(h.Close)
	s.url, s.api = h.URL, reevev1connect.NewReeveServiceClient(h.Client(), h.URL)
	return s
}

func settings(t *testing.T, name string, value any) *structpb.Struct {
	t.Helper()
	s, err := structpb.NewStruct(map[string]any{name: value})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	s := newServer(t, "")
	ctx := t.Context()
	for _, tt := range []struct {
		name string
		call func() error
		code connect.Code
		says string
	}{
		{"a site with a bad name", func() error {
			_, err := s.api.AddSite(ctx, connect.NewRequest(&reevev1.AddSiteRequest{Site: &reevev1.Site{Subdomain: "San José", Source: "/p"}}))
			return err
		}, connect.CodeInvalidArgument, "lower-case"},
		{"a site without a source", func() error {
			_, err := s.api.AddSite(ctx, connect.NewRequest(&reevev1.AddSiteRequest{Site: &reevev1.Site{Subdomain: "alameda"}}))
			return err
		}, connect.CodeInvalidArgument, "absolute path"},
		{"a relative source", func() error {
			_, err := s.api.AddSite(ctx, connect.NewRequest(&reevev1.AddSiteRequest{Site: &reevev1.Site{Subdomain: "alameda", Source: "../pdfs"}}))
			return err
		}, connect.CodeInvalidArgument, "absolute path"},
		{"a site that is not there", func() error {
			_, err := s.api.GetSite(ctx, connect.NewRequest(&reevev1.GetSiteRequest{Subdomain: "nowhere"}))
			return err
		}, connect.CodeNotFound, "reeve site list"},
		{"a run of an unknown pipeline", func() error {
			_, err := s.api.StartRun(ctx, connect.NewRequest(&reevev1.StartRunRequest{Pipeline: "civil", Subject: "alameda"}))
			return err
		}, connect.CodeInvalidArgument, "civic, volumes, leads"},
		{"a run of an unknown site", func() error {
			_, err := s.api.StartRun(ctx, connect.NewRequest(&reevev1.StartRunRequest{Subject: "nowhere"}))
			return err
		}, connect.CodeNotFound, "no site nowhere"},
		{"a run of nothing", func() error {
			_, err := s.api.StartRun(ctx, connect.NewRequest(&reevev1.StartRunRequest{}))
			return err
		}, connect.CodeInvalidArgument, "needs its site"},
		{"an unknown priority", func() error {
			_, err := s.api.StartRun(ctx, connect.NewRequest(&reevev1.StartRunRequest{Subject: "alameda", Priority: "urgent"}))
			return err
		}, connect.CodeInvalidArgument, "high, normal and low"},
		{"a setting that there is not", func() error {
			_, err := s.api.StartRun(ctx, connect.NewRequest(&reevev1.StartRunRequest{Subject: "alameda", Settings: settings(t, "ocr_mod", "skip")}))
			return err
		}, connect.CodeInvalidArgument, "entities, force, "},
		{"a setting of another kind", func() error {
			_, err := s.api.StartRun(ctx, connect.NewRequest(&reevev1.StartRunRequest{Subject: "alameda", Settings: settings(t, "entities", "maybe")}))
			return err
		}, connect.CodeInvalidArgument, "entities of pipeline civic is a boolean, not maybe"},
		{"runs in an unknown status", func() error {
			_, err := s.api.ListRuns(ctx, connect.NewRequest(&reevev1.ListRunsRequest{Status: "done"}))
			return err
		}, connect.CodeInvalidArgument, "there are running, completed, failed, cancelled, superseded"},
		{"runs of an unknown pipeline", func() error {
			_, err := s.api.ListRuns(ctx, connect.NewRequest(&reevev1.ListRunsRequest{Pipeline: "civil"}))
			return err
		}, connect.CodeInvalidArgument, "there are civic, volumes, leads"},
		{"tasks in an unknown status", func() error {
			_, err := s.api.ListTasks(ctx, connect.NewRequest(&reevev1.ListTasksRequest{Status: "done"}))
			return err
		}, connect.CodeInvalidArgument, "planned, running, waiting, retry"},
		{"tasks of a run that there is not", func() error {
			_, err := s.api.ListTasks(ctx, connect.NewRequest(&reevev1.ListTasksRequest{Run: 404}))
			return err
		}, connect.CodeNotFound, "no run 404"},
		{"documents in an unknown status", func() error {
			_, err := s.api.ListDocuments(ctx, connect.NewRequest(&reevev1.ListDocumentsRequest{Status: "completed"}))
			return err
		}, connect.CodeInvalidArgument, "pending, done, partial, failed, duplicate"},
		{"documents of an unknown site", func() error {
			_, err := s.api.ListDocuments(ctx, connect.NewRequest(&reevev1.ListDocumentsRequest{Subdomain: "nowhere"}))
			return err
		}, connect.CodeNotFound, "no site nowhere"},
		{"a rerun of a run that there is not", func() error {
			_, err := s.api.RerunRun(ctx, connect.NewRequest(&reevev1.RerunRunRequest{Run: 404, FromStage: "reduce"}))
			return err
		}, connect.CodeNotFound, "no run 404; "},
		{"a rerun from a stage of another pipeline", func() error {
			_, err := s.api.RerunRun(ctx, connect.NewRequest(&reevev1.RerunRunRequest{Run: 7, FromStage: "intel"}))
			return err
		}, connect.CodeInvalidArgument, "run 7 is of pipeline civic, which has no stage intel: there are fetch, "},
		{"a rerun from an unknown stage", func() error {
			_, err := s.api.RerunRun(ctx, connect.NewRequest(&reevev1.RerunRunRequest{Run: 1, FromStage: "slice"}))
			return err
		}, connect.CodeNotFound, "line_detection"},
		{"a pause of an unknown stage", func() error {
			_, err := s.api.PauseStage(ctx, connect.NewRequest(&reevev1.PauseStageRequest{Stage: "slice"}))
			return err
		}, connect.CodeNotFound, "no stage \"slice\""},
		{"a sweep where the sweeper is elsewhere", func() error {
			_, err := s.api.Sweep(ctx, connect.NewRequest(&reevev1.SweepRequest{}))
			return err
		}, connect.CodeUnimplemented, "sweeper --once"},
		{"a search for nothing", func() error {
			_, err := s.api.Search(ctx, connect.NewRequest(&reevev1.SearchRequest{Query: "  "}))
			return err
		}, connect.CodeInvalidArgument, "nothing to search for"},
		{"a search of a site that has published nothing", func() error {
			_, err := s.api.Search(ctx, connect.NewRequest(&reevev1.SearchRequest{Query: "motion", Subdomain: "alameda"}))
			return err
		}, connect.CodeFailedPrecondition, "reeve run start civic alameda"},
		{"a date that is none", func() error {
			_, err := s.api.Search(ctx, connect.NewRequest(&reevev1.SearchRequest{Query: "motion", DateFrom: "May"}))
			return err
		}, connect.CodeInvalidArgument, "2024-05-31"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			err := tt.call()
			if connect.CodeOf(err) != tt.code || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("got %v, want %v with %q", err, tt.code, tt.says)
			}
		})
	}
}

func TestErrorsOfTheLedgerHaveTheirCodes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		err  error
		code connect.Code
	}{
		{ledger.ErrNotFound, connect.CodeNotFound},
		{fmt.Errorf("run 6 of alameda goes on: %w", ledger.ErrConflict), connect.CodeFailedPrecondition},
		{fault.Infra(errors.New("postgres is away")), connect.CodeUnavailable},
		{fault.Permanent(errors.New("no setting ocr_mod")), connect.CodeInvalidArgument},
		{errors.New("whatever"), connect.CodeInternal},
	} {
		s := newServer(t, "")
		s.fails = tt.err
		_, err := s.api.CancelRun(t.Context(), connect.NewRequest(&reevev1.GetRunRequest{Run: 7}))
		if connect.CodeOf(err) != tt.code {
			t.Errorf("%v: got %v, want %v", tt.err, err, tt.code)
		}
		if len(s.told) > 0 {
			t.Errorf("%v: the bus was told %v", tt.err, s.told)
		}
	}
}

func TestStartRun(t *testing.T) {
	t.Parallel()
	s := newServer(t, "")
	r, err := s.api.StartRun(t.Context(), connect.NewRequest(&reevev1.StartRunRequest{Subject: "alameda", Priority: "high", Force: true, Supersede: true}))
	if err != nil {
		t.Fatal(err)
	}
	if r.Msg.GetRun() != 7 || r.Msg.GetDocuments().GetFound() != 18 {
		t.Errorf("got %v", r.Msg)
	}
	n := s.started
	if n.Pipeline != "civic" || n.Priority != ledger.High || fmt.Sprint(n.Settings) != "map[force:true]" || n.Trigger != "api" {
		t.Errorf("started %+v", n)
	}
	if len(n.Items) != 1 || n.Items[0].Item != "alameda" || n.Items[0].Spec.(civic.Site).Source != "/pdfs" {
		t.Errorf("first items: %+v", n.Items)
	}
	if diff := cmp.Diff([]string{"cancel 6"}, s.told); diff != "" {
		t.Errorf("the superseded run on the bus: %s", diff)
	}
}

func TestCancelAndPauseReachTheBus(t *testing.T) {
	t.Parallel()
	s := newServer(t, "")
	if _, err := s.api.CancelRun(t.Context(), connect.NewRequest(&reevev1.GetRunRequest{Run: 7})); err != nil {
		t.Fatal(err)
	}
	r, err := s.api.PauseStage(t.Context(), connect.NewRequest(&reevev1.PauseStageRequest{Stage: "ocr"}))
	if err != nil {
		t.Fatal(err)
	}
	want := &reevev1.Stage{Stage: "ocr", Pipelines: []string{"civic", "volumes"}, Paused: true, Backlog: 5, Queued: 3, InHand: 1, WaitingHands: 2, Resource: "gpu"}
	if r.Msg.String() != want.String() {
		t.Errorf("got %v, want %v", r.Msg, want)
	}
	if diff := cmp.Diff([]string{"cancel 7", "pause ocr true"}, s.told); diff != "" {
		t.Error(diff)
	}
}

func TestWatchRunSendsChangesAndTheEnd(t *testing.T) {
	t.Parallel()
	s := newServer(t, "")
	for _, total := range []int64{1, 1, 1, 5, 5, 9} {
		s.runs <- ledger.Run{Run: 7, Status: "running", Stages: []ledger.StageProgress{{Stage: "fetch", Total: total}}}
	}
	stream, err := s.api.WatchRun(t.Context(), connect.NewRequest(&reevev1.GetRunRequest{Run: 7}))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for stream.Receive() {
		r := stream.Msg()
		total := int64(0)
		for _, s := range r.GetStages() {
			total += s.GetTotal()
		}
		got = append(got, fmt.Sprint(r.GetStatus(), total))
	}
	if err := stream.Err(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"running1", "running5", "running9", "completed0"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestTotalsMayGrowWhileTheSiteIsListed(t *testing.T) {
	t.Parallel()
	for status, final := range map[string]bool{"planned": false, "running": false, "completed": true, "failed": true} {
		s := newServer(t, "")
		s.listing = status
		s.runs <- ledger.Run{Run: 7, Pipeline: "civic", Status: "running", Stages: []ledger.StageProgress{{Stage: "fetch", Total: 3, Sealed: true}}}
		r, err := s.api.GetRun(t.Context(), connect.NewRequest(&reevev1.GetRunRequest{Run: 7}))
		if err != nil || r.Msg.GetStages()[0].GetSealed() != final {
			t.Errorf("while the listing is %s: %v %v", status, r, err)
		}
	}
}

func TestStreamsEndWhenTheGatewayStops(t *testing.T) {
	t.Parallel()
	s := newServer(t, "")
	for range cap(s.runs) {
		s.runs <- ledger.Run{Run: 7, Status: "running"}
	}
	close(s.stopping)
	stream, err := s.api.WatchRun(t.Context(), connect.NewRequest(&reevev1.GetRunRequest{Run: 7}))
	if err != nil {
		t.Fatal(err)
	}
	for stream.Receive() {
	}
	if connect.CodeOf(stream.Err()) != connect.CodeUnavailable {
		t.Errorf("got %v", stream.Err())
	}
}

// post is what curl does.
func post(t *testing.T, url, host, token, body string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	if token != "" {
		r.Header.Set("Authorization", token)
	}
	if host != "" {
		r.Host = host
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestPlainHTTP(t *testing.T) {
	t.Parallel()
	open, closed := newServer(t, ""), newServer(t, "sesame")
	const info = "/reeve.v1.ReeveService/Info"
	for _, tt := range []struct {
		name, url, host, token, body string
		status                       int
		says                         string
	}{
		{"a post of JSON is enough", open.url + info, "", "", `{}`, 200, `"version":"1"`},
		{"numbers are numbers, names those of the definition, nothing is left out", open.url + "/reeve.v1.ReeveService/GetRun", "", "", `{"run": "7"}`, 200, `"error_message":"","error_stage":"","note":"","pipeline":"civic","priority":"high","run":7,`},
		{"an empty list is one", open.url + "/reeve.v1.ReeveService/ListTasks", "", "", `{"status": "failed"}`, 200, `{"tasks":[]}`},
		{"a field in camelCase", open.url + "/reeve.v1.ReeveService/RerunRun", "", "", `{"run": 7, "fromStage": "slice"}`, 404, `no stage \"slice\"`},
		{"a field that there is not", open.url + "/reeve.v1.ReeveService/StartRun", "", "", `{"pipline": "civic"}`, 400, `pipline`},
		{"no JSON", open.url + info, "", "", `{`, 400, "invalid_argument"},
		{"a body beyond all measure", open.url + info, "", "", `{"x": "` + strings.Repeat("x", 2<<20) + `"}`, 429, "resource_exhausted"},
		{"a name of another machine, as a web page would use", open.url + info, "evil.example", "", `{}`, 403, "not this machine"},
		{"localhost by name", open.url + info, "localhost:8480", "", `{}`, 200, "version"},
		{"no token", closed.url + info, "", "", `{}`, 401, "REEVE_TOKEN"},
		{"a wrong token", closed.url + info, "", "Bearer open", `{}`, 401, "token"},
		{"a token that is no bearer", closed.url + info, "", "sesame", `{}`, 401, "token"},
		{"the token", closed.url + info, "", "Bearer sesame", `{}`, 200, "version"},
		{"the token, by any name", closed.url + info, "reeve.example", "Bearer sesame", `{}`, 200, "version"},
		{"another path", open.url + "/elsewhere", "", "", `{}`, 404, "not found"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			status, body := post(t, tt.url, tt.host, tt.token, tt.body)
			if status != tt.status || !strings.Contains(body, tt.says) {
				t.Errorf("got %d %.200s", status, body)
			}
		})
	}
}

func TestFrontPage(t *testing.T) {
	t.Parallel()
	s := newServer(t, "")
	for accept, want := range map[string]string{"": "application/json", "text/html,*/*": "text/html; charset=utf-8"} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+"/", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Accept", accept)
		r.Host = `"><script>`
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		if err = errors.Join(err, resp.Body.Close()); err != nil {
			t.Fatal(err)
		}
		if got := resp.Header.Get("Content-Type"); resp.StatusCode == http.StatusOK && (got != want || strings.Contains(string(b), "<script>")) {
			t.Errorf("accept %q: %s %s", accept, got, b)
		}
		if want == "application/json" && resp.StatusCode == http.StatusOK && !json.Valid(b) {
			t.Errorf("no JSON: %s", b)
		}
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	for addr, want := range map[string]string{
		"127.0.0.1:8480": "", "localhost:0": "", "[::1]:8480": "",
		"0.0.0.0:8480": "set gateway.token", ":8480": "set gateway.token", "8480": "host:port",
	} {
		c := gateway.Defaults()
		c.Addr = addr
		err := c.Validate()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", addr, err)
		}
	}
	c := gateway.Defaults()
	c.Addr, c.Token = "0.0.0.0:8480", "sesame"
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
}
