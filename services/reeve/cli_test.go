package reeve_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	reevev1 "github.com/reeve-pipeline/reeve/proto/reeve/v1"
	"github.com/reeve-pipeline/reeve/proto/reeve/v1/reevev1connect"
	"github.com/reeve-pipeline/reeve/services/reeve"
)

var update = flag.Bool("update", false, "write the golden files anew")

// fakeAPI answers with what a test puts into it.
type fakeAPI struct {
	reevev1connect.UnimplementedReeveServiceHandler
	asked     []string
	token     string
	sites     []*reevev1.Site
	run       *reevev1.Run
	documents []*reevev1.Document
	hits      []*reevev1.Hit
	fail      error
}

func (f *fakeAPI) notef(format string, args ...any) {
	f.asked = append(f.asked, fmt.Sprintf(format, args...))
}

func (f *fakeAPI) AddSite(_ context.Context, r *connect.Request[reevev1.AddSiteRequest]) (*connect.Response[reevev1.Site], error) {
	s := r.Msg.GetSite()
	f.notef("add %s %s %q %q", s.GetSubdomain(), s.GetSource(), s.GetName(), s.GetState())
	return connect.NewResponse(r.Msg.GetSite()), f.fail
}

func (f *fakeAPI) GetSite(_ context.Context, r *connect.Request[reevev1.GetSiteRequest]) (*connect.Response[reevev1.Site], error) {
	for _, s := range f.sites {
		if s.GetSubdomain() == r.Msg.GetSubdomain() {
			return connect.NewResponse(s), nil
		}
	}
	return nil, connect.NewError(connect.CodeNotFound, errors.New("no site "+r.Msg.GetSubdomain()))
}

func (f *fakeAPI) ListSites(_ context.Context, r *connect.Request[reevev1.ListSitesRequest]) (*connect.Response[reevev1.ListSitesResponse], error) {
	f.token = r.Header().Get("Authorization")
	return connect.NewResponse(&reevev1.ListSitesResponse{Sites: f.sites}), f.fail
}

func (f *fakeAPI) RemoveSite(_ context.Context, r *connect.Request[reevev1.RemoveSiteRequest]) (*connect.Response[reevev1.RemoveSiteResponse], error) {
	f.notef("remove %s", r.Msg.GetSubdomain())
	return connect.NewResponse(&reevev1.RemoveSiteResponse{}), f.fail
}

func (f *fakeAPI) StartRun(_ context.Context, r *connect.Request[reevev1.StartRunRequest]) (*connect.Response[reevev1.Run], error) {
	f.notef("start %s %s %v force=%v", r.Msg.GetPipeline(), r.Msg.GetSubject(), r.Msg.GetSettings().AsMap(), r.Msg.GetForce())
	return connect.NewResponse(f.run), f.fail
}

func (f *fakeAPI) GetRun(context.Context, *connect.Request[reevev1.GetRunRequest]) (*connect.Response[reevev1.Run], error) {
	return connect.NewResponse(f.run), f.fail
}

func (f *fakeAPI) WatchRun(_ context.Context, _ *connect.Request[reevev1.GetRunRequest], s *connect.ServerStream[reevev1.Run]) error {
	return errors.Join(s.Send(f.run), f.fail)
}

func (f *fakeAPI) ListDocuments(_ context.Context, r *connect.Request[reevev1.ListDocumentsRequest]) (*connect.Response[reevev1.ListDocumentsResponse], error) {
	var some []*reevev1.Document
	for _, d := range f.documents {
		if r.Msg.GetStatus() == "" || d.GetStatus() == r.Msg.GetStatus() {
			some = append(some, d)
		}
	}
	return connect.NewResponse(&reevev1.ListDocumentsResponse{Documents: some}), f.fail
}

func (f *fakeAPI) ListTasks(_ context.Context, r *connect.Request[reevev1.ListTasksRequest]) (*connect.Response[reevev1.ListTasksResponse], error) {
	f.notef("tasks %d %q %q", r.Msg.GetRun(), r.Msg.GetStage(), r.Msg.GetStatus())
	return connect.NewResponse(&reevev1.ListTasksResponse{}), f.fail
}

func (f *fakeAPI) Search(_ context.Context, r *connect.Request[reevev1.SearchRequest]) (*connect.Response[reevev1.SearchResponse], error) {
	f.notef("search %s", r.Msg.GetQuery())
	return connect.NewResponse(&reevev1.SearchResponse{Hits: f.hits, Total: int64(len(f.hits))}), f.fail
}

// result is what a command printed and returned.
type result struct {
	out, err string
	code     int
}

// cli runs a command against the API, on a terminal of so many columns or none.
func (f *fakeAPI) cli(t *testing.T, columns int, args ...string) result {
	t.Helper()
	_, handler := reevev1connect.NewReeveServiceHandler(f)
	server := httptest.NewServer(handler)
	defer server.Close()
	return cli(t, columns, []string{"REEVE_API=" + server.URL}, args...)
}

func cli(t *testing.T, columns int, environ []string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var out, stderr bytes.Buffer
	code := reeve.Run(ctx, reeve.Process{
		Args: args, Environ: append([]string{"HOME=/home/clerk", "REEVE_DATA=" + t.TempDir(), "NO_COLOR=1"}, environ...), In: strings.NewReader(""),
		Out: reeve.Terminal{Writer: &out, Columns: columns}, Err: reeve.Terminal{Writer: &stderr, Columns: columns}, Version: "1.2.3",
	})
	return result{out.String(), stderr.String(), code}
}

// sampleRun is a run that ended with something of everything.
func sampleRun() *fakeAPI {
	at := time.Date(2024, 5, 7, 12, 0, 0, 0, time.UTC)
	now := timestamppb.New(at.Add(5 * time.Second))
	return &fakeAPI{
		run: &reevev1.Run{
			Run: 3, Pipeline: "civic", Subject: "alameda", Status: "completed", StartedAt: timestamppb.New(at), EndedAt: timestamppb.New(at.Add(12400 * time.Millisecond)),
			Stages: []*reevev1.StageProgress{
				{Stage: "fetch", Total: 19, Completed: 19, Skipped: 1, Sealed: true, Closed: true},
				{Stage: "pagination", Total: 17, Completed: 15, Failed: 2, Sealed: true, Closed: true},
			},
			Documents: &reevev1.DocumentSummary{Found: 18, Done: 12, Partial: 1, Failed: 2, Duplicates: 1, Unchanged: 2, Pages: map[string]int64{"native": 92, "image": 21, "blank": 1}},
		},
		documents: []*reevev1.Document{
			{DocumentId: "a", Source: "CityCouncil/2024-01-09.pdf", Status: "failed", UpdatedAt: now, Error: &reevev1.Error{Class: "permanent", Message: "CityCouncil/2024-01-09.pdf: is empty: 0 bytes"}},
			{DocumentId: "b", Source: "CityCouncil/2024-02-13.pdf", Status: "failed", UpdatedAt: now, Error: &reevev1.Error{Class: "permanent", Message: "needs a\npassword\x1b[31m"}},
			{DocumentId: "c", Source: "GolfCommission/2012-10-09.pdf", Status: "partial", UpdatedAt: now, Pages: 4, PagesImage: 3},
			{DocumentId: "d", Source: "GolfCommission/2012-11-13.pdf", Status: "partial", UpdatedAt: timestamppb.New(at.Add(-time.Hour)), Pages: 2, PagesImage: 2},
		},
	}
}

func TestOutput(t *testing.T) {
	t.Parallel()
	sites := &fakeAPI{sites: []*reevev1.Site{
		{Subdomain: "alameda", Name: "Alameda", Source: "/pdfs", Documents: 18, Pages: 93, LastRun: 3, LastRunStatus: "completed", CurrentStage: "completed"},
		{Subdomain: "wrenfield", Source: "https://wrenfield.example/minutes"},
	}}
	hits := &fakeAPI{hits: []*reevev1.Hit{{Subdomain: "alameda", Kind: "minutes", Meeting: "CityCouncil", Date: "2024-01-09", Page: 2, Snippet: "a «motion»\tto approve"}}}
	for _, tt := range []struct {
		name    string
		api     *fakeAPI
		columns int
		args    []string
		code    int
	}{
		{"help", nil, 80, []string{"--help"}, 0},
		{"run_start_help", nil, 80, []string{"run", "start", "--help"}, 0},
		{"site_list", sites, 100, []string{"site", "list"}, 0},
		{"site_list_piped", sites, 0, []string{"site", "list"}, 0},
		{"site_list_json", sites, 0, []string{"site", "list", "--json"}, 0},
		{"no_sites", &fakeAPI{}, 100, []string{"site", "list"}, 0},
		{"run_show", sampleRun(), 100, []string{"run", "show", "3"}, 0},
		{"run_watch", sampleRun(), 0, []string{"run", "watch", "3"}, 1},
		{"run_watch_json", sampleRun(), 0, []string{"run", "watch", "3", "--json", "--progress", "quiet"}, 1},
		{"search", hits, 100, []string{"search", "motion"}, 0},
		{"search_piped", hits, 0, []string{"search", "motion"}, 0},
		{"version", nil, 0, []string{"version"}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var got result
			if tt.api == nil {
				got = cli(t, tt.columns, nil, tt.args...)
			} else {
				got = tt.api.cli(t, tt.columns, tt.args...)
			}
			if got.code != tt.code {
				t.Errorf("exit code %d, want %d", got.code, tt.code)
			}
			text := "$ reeve " + strings.Join(tt.args, " ") + "\n" + got.out + "--- stderr\n" + got.err
			path := filepath.Join("testdata", tt.name+".txt")
			if *update {
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatalf("%v; go test -run TestOutput -update writes it", err)
			}
			if diff := cmp.Diff(string(want), text); diff != "" {
				t.Error(diff)
			}
			if strings.Contains(text, "\x1b") {
				t.Error("control characters got through")
			}
		})
	}
}

func TestExitCodes(t *testing.T) {
	t.Parallel()
	refuse := func(code connect.Code, text string) *fakeAPI {
		return &fakeAPI{fail: connect.NewError(code, errors.New(text))}
	}
	ended := func(status string, failed int64) *fakeAPI {
		return &fakeAPI{run: &reevev1.Run{Run: 3, Status: status, Stages: []*reevev1.StageProgress{{Stage: "scrape", Failed: failed}}}}
	}
	for _, tt := range []struct {
		name string
		api  *fakeAPI
		args []string
		code int
		says string // on stderr
	}{
		{"a completed run", ended("completed", 0), []string{"run", "start", "civic", "alameda", "--wait"}, 0, ""},
		{"some items failed", ended("completed", 2), []string{"run", "start", "civic", "alameda", "--wait"}, 1, ""},
		{"a failed run", ended("failed", 0), []string{"run", "start", "civic", "alameda", "--wait"}, 1, ""},
		{"a cancelled run", ended("cancelled", 0), []string{"run", "watch", "3"}, 1, ""},
		{"a started run", ended("running", 0), []string{"run", "start", "civic", "alameda"}, 0, "reeve run watch 3"},
		{"a refused run", refuse(connect.CodeFailedPrecondition, "run 2 of alameda goes on"), []string{"run", "start", "civic", "alameda"}, 2, "run 2 of alameda goes on"},
		{"a run that there is not", refuse(connect.CodeNotFound, "no run 9"), []string{"run", "watch", "9"}, 2, "no run 9"},
		{"no number", &fakeAPI{}, []string{"run", "show", "latest"}, 2, "reeve run list"},
		{"a missing argument", &fakeAPI{}, []string{"run", "start", "civic"}, 2, "usage: reeve run start PIPELINE SUBJECT"},
		{"an unknown command", &fakeAPI{}, []string{"frobnicate"}, 2, "reeve --help"},
		{"nearly a command", &fakeAPI{}, []string{"sweeep"}, 2, "did you mean sweep?"},
		{"help on an unknown command", &fakeAPI{}, []string{"help", "run", "sart"}, 2, `no command "sart" of reeve run (see reeve run --help); did you mean start?`},
		{"help on a command", &fakeAPI{}, []string{"help", "run", "start"}, 0, ""},
		{"completion for an unknown shell", &fakeAPI{}, []string{"completion", "csh"}, 2, "reeve completion --help"},
		{"an unknown subcommand", &fakeAPI{}, []string{"site", "frobnicate"}, 2, "reeve site --help"},
		{"an unknown flag", &fakeAPI{}, []string{"site", "list", "--frob"}, 2, "reeve site list --help"},
		{"an unknown way of progress", &fakeAPI{}, []string{"site", "list", "--progress", "fancy"}, 2, "auto, tty, plain, json, quiet"},
		{"a source that is not there", &fakeAPI{}, []string{"site", "add", "alameda", "--source", "/no/such/folder"}, 2, "/no/such/folder"},
		{"a source of another kind", &fakeAPI{}, []string{"site", "add", "alameda", "--source", "ftp://alameda.example/"}, 2, "http:// and https://"},
		{"no source", &fakeAPI{}, []string{"site", "add", "alameda"}, 2, "site alameda is new: say with --source"},
		{"no stage", &fakeAPI{}, []string{"run", "rerun", "3"}, 2, "usage: reeve run rerun RUN --from STAGE"},
		{"a removal without a terminal to ask on", &fakeAPI{}, []string{"site", "remove", "alameda"}, 2, "--yes"},
		{"a removal", &fakeAPI{}, []string{"site", "remove", "alameda", "--yes"}, 0, ""},
		{"a setting that is none", &fakeAPI{}, []string{"run", "start", "civic", "alameda", "--set", "ocr_mode"}, 2, "name=value"},
		{"failed and status together", &fakeAPI{}, []string{"task", "list", "--failed", "--status", "retry"}, 2, "failed status"},
		{"up with a stray argument", &fakeAPI{}, []string{"up", "now"}, 2, "after --"},
		{"up for strangers", &fakeAPI{}, []string{"up", "--listen", "0.0.0.0:8480"}, 2, "--token"},
		{"up with a bad address", &fakeAPI{}, []string{"up", "--listen", "8480"}, 2, "--listen"},
		{"help without a command", &fakeAPI{}, []string{"site"}, 0, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := tt.api.cli(t, 0, tt.args...)
			if got.code != tt.code || !strings.Contains(got.err, tt.says) {
				t.Errorf("exit %d, want %d\n%s%s", got.code, tt.code, got.out, got.err)
			}
		})
	}
}

func TestRequests(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	f := &fakeAPI{run: &reevev1.Run{Run: 3, Status: "running"}}
	for _, args := range [][]string{
		{"site", "add", "alameda", "--source", dir},
		{"site", "add", "alameda", "--source", "https://alameda.example/"},
		{"site", "add", "alameda", "--name", "City of Alameda"},
		{"site", "add", "berkeley", "--source", "https://berkeley.example/"},
		{"run", "start", "civic", "alameda", "--set", "ocr_mode=skip", "--set", "entities=true", "--set", "n=3", "--force"},
		{"task", "list", "--failed", "--run", "3", "--stage", "ocr"},
		{"search", "library", "budget"},
	} {
		f.sites = []*reevev1.Site{{Subdomain: "alameda", Source: "/pdfs", Name: "Alameda", State: "CA"}}
		if got := f.cli(t, 0, args...); got.code != 0 {
			t.Errorf("%v: exit %d: %s", args, got.code, got.err)
		}
	}
	want := []string{
		"add alameda " + dir + ` "Alameda" "CA"`,
		`add alameda https://alameda.example/ "Alameda" "CA"`,
		`add alameda /pdfs "City of Alameda" "CA"`,
		`add berkeley https://berkeley.example/ "" ""`,
		"start civic alameda map[entities:true n:3 ocr_mode:skip] force=true",
		`tasks 3 "ocr" "failed"`,
		"search library budget",
	}
	if diff := cmp.Diff(want, f.asked); diff != "" {
		t.Error(diff)
	}
}

func TestErrorsAreAnObjectWithJSON(t *testing.T) {
	t.Parallel()
	f := &fakeAPI{fail: connect.NewError(connect.CodeNotFound, errors.New("no site nowhere"))}
	got := f.cli(t, 0, "site", "list", "--json")
	var v struct {
		Error struct{ Code, Message string }
	}
	if err := json.Unmarshal([]byte(got.out), &v); err != nil || v.Error.Code != "not_found" || v.Error.Message != "no site nowhere" || got.code != 2 {
		t.Errorf("%v %+v %+v", err, v, got)
	}
}

func TestNobodyAnswers(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"site", "list"}, {"run", "watch", "3"}, {"info"}} {
		got := cli(t, 0, []string{"REEVE_API=127.0.0.1:1"}, args...)
		want := "reeve: no Reeve answers at http://127.0.0.1:1: start one with `reeve up`, or name another with --api\n"
		if got.code != 2 || got.err != want {
			t.Errorf("%v: exit %d: %s", args, got.code, got.err)
		}
	}
	// What is meant for one folder's Reeve must not reach another.
	got := cli(t, 0, []string{"REEVE_API=", "REEVE_DATA=/srv/elsewhere"}, "site", "remove", "alameda", "--yes")
	want := "reeve: no Reeve runs in /srv/elsewhere: start one with `reeve up --data /srv/elsewhere`, or name another with --data or --api\n"
	if got.code != 2 || got.err != want {
		t.Errorf("exit %d: %s", got.code, got.err)
	}
	other := httptest.NewServer(nil) // something else on that port
	defer other.Close()
	if got := cli(t, 0, []string{"REEVE_API=" + other.URL}, "site", "list"); got.code != 2 || !strings.Contains(got.err, "does not answer like a Reeve") {
		t.Errorf("exit %d: %s", got.code, got.err)
	}
}

func TestAListThatIsCutOffSaysSo(t *testing.T) {
	t.Parallel()
	f := sampleRun()
	for limit, says := range map[string]string{"4": "the first 4; --limit shows more\n", "5": ""} {
		if got := f.cli(t, 0, "document", "list", "--limit", limit); got.code != 0 || got.err != says {
			t.Errorf("limit %s: exit %d: %s", limit, got.code, got.err)
		}
	}
}

func TestTheTokenIsSent(t *testing.T) {
	t.Parallel()
	f := &fakeAPI{}
	f.cli(t, 0, "site", "list", "--token", "sesame")
	if f.token != "Bearer sesame" {
		t.Errorf("sent %q", f.token)
	}
}

func TestCompletion(t *testing.T) {
	t.Parallel()
	f := sampleRun()
	f.sites = []*reevev1.Site{{Subdomain: "alameda", Name: "Alameda"}}
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"run", "start", ""}, "civic\nvolumes\nleads\n"},
		{[]string{"run", "start", "civic", ""}, "alameda\tAlameda\n"},
		{[]string{"site", "show", ""}, "alameda\tAlameda\n"},
		{[]string{"run", "rerun", "3", "--from", "line_d"}, "line_detection\n"},
		{[]string{"stage", "pause", "comp"}, "compilation\n"},
	} {
		got := f.cli(t, 0, append([]string{"__complete"}, tt.args...)...)
		if !strings.Contains("\n"+got.out, "\n"+tt.want) {
			t.Errorf("%v: %q, want %q", tt.args, got.out, tt.want)
		}
	}
}
