package fetch

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/html"

	"github.com/reeve-pipeline/reeve/pkg/civic"
	"github.com/reeve-pipeline/reeve/pkg/fault"
	"github.com/reeve-pipeline/reeve/pkg/s3test"
	"github.com/reeve-pipeline/reeve/pkg/stage"
	"github.com/reeve-pipeline/reeve/pkg/stagetest"
)

// town is a page as towns have them.
const town = `<!DOCTYPE html><html><head><title>Meetings | Town of Springfield</title></head><body>
<nav><a href="/">Home</a> <a href="budget.xlsx">Budget</a> <a href="mailto:x@y">Mail</a> <a href="#top">Top</a></nav>
<h1>Agendas &amp; Minutes</h1>
<h2>City Council</h2>
<table>
<tr><th>Date</th><th>Agenda</th><th>Minutes</th></tr>
<tr><td>January 15, 2024</td><td><a href="/files/1001.pdf">PDF</a></td><td><a href="/files/1002.pdf">PDF</a></td></tr>
<tr><td>January 15, 2024 (special)</td><td></td><td><a href="/files/1003.pdf"><img alt="pdf icon"></a> <a href="/files/1003.pdf">Special meeting</a></td></tr>
</table>
<h2>Planning Commission</h2><svg><title>An icon</title></svg>
<h3>2023</h3>
<ul>
<li>December 19: <a href="pc/a1.pdf?v=2">Agenda</a>, <a href="pc/m1.pdf#page=2">Minutes</a></li>
<li><a href="/view?id=77" type="application/pdf">Minutes of November 21</a> <a href="/packet.zip">Packet</a></li>
<li><a href="/DocumentCenter/View/88">Agenda October 17 (PDF)</a></li>
</ul>
<p><a href="https://cdn.example/get?file=Library%20Board%202024-02-01%20minutes.pdf">Library Board</a></p>
<iframe src="/embedded/zoning-board-2022-05-06.pdf"></iframe>
<a rel="next" href="?page=2">Next</a>
</body></html>`

func TestReadPage(t *testing.T) {
	t.Parallel()
	doc, err := html.Parse(strings.NewReader(town))
	if err != nil {
		t.Fatal(err)
	}
	at, err := url.Parse("https://town.example/gov/meetings")
	if err != nil {
		t.Fatal(err)
	}
	p := readPage(doc, at)
	got := map[string]string{}
	for _, l := range p.links {
		var d civic.Document
		calendar{}.describe(&d, l.clues)
		got[l.source] = fmt.Sprintf("%s %s %s | %s", d.Kind, d.Meeting, d.Date, l.title)
	}
	want := map[string]string{
		"https://town.example/files/1001.pdf":                                     "agenda CityCouncil 2024-01-15 | PDF",
		"https://town.example/files/1002.pdf":                                     "minutes CityCouncil 2024-01-15 | PDF",
		"https://town.example/files/1003.pdf":                                     "minutes CityCouncil 2024-01-15 | Special meeting",
		"https://town.example/gov/pc/a1.pdf?v=2":                                  "agenda PlanningCommission 2023-12-19 | Agenda",
		"https://town.example/gov/pc/m1.pdf":                                      "minutes PlanningCommission 2023-12-19 | Minutes",
		"https://town.example/view?id=77":                                         "minutes PlanningCommission 2023-11-21 | Minutes of November 21",
		"https://town.example/DocumentCenter/View/88":                             "agenda PlanningCommission 2023-10-17 | Agenda October 17 (PDF)",
		"https://cdn.example/get?file=Library%20Board%202024-02-01%20minutes.pdf": "minutes LibraryBoard 2024-02-01 | Library Board",
		"https://town.example/embedded/zoning-board-2022-05-06.pdf":               "minutes ZoningBoard 2022-05-06 | zoning-board-2022-05-06",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if p.next == nil || p.next.String() != "https://town.example/gov/meetings?page=2" {
		t.Errorf("next %v", p.next)
	}
}

func TestCrawl(t *testing.T) {
	t.Parallel()
	pages := map[string]string{
		"/one":   `<base href="/docs/"><h1>City Council</h1><a href="2024-01-15.pdf">b</a><a href="2024-01-15%20a.pdf">a</a><a href="/two" rel="next">2</a>`,
		"/two":   `<h1>Library Board</h1><a href="2024-01-15.pdf">x</a><a href="docs/2024-01-15.pdf">again</a><a href="three">Next »</a>`,
		"/three": "<meta charset=iso-8859-1><h1>Comit\xe9 d'urbanisme</h1><a href='2024-03-01.pdf'>Minutes</a><a href=/one>Next</a>",
		"/empty": `<p>No meetings yet.`, "/blank": "",
		"/loop": `<a href="/loop?a=1#x" rel=next>n</a>`,
	}
	srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/moved":
			http.Redirect(w, r, "/one", http.StatusMovedPermanently)
		case "/pdf":
			_, _ = w.Write([]byte(pdf("a document")))
		case "/json":
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(`{"a":1}`))
		default:
			body, ok := pages[r.URL.Path]
			if !ok {
				http.NotFound(w, r)
				return
			}
			w.Header().Set("Content-Type", "text/html")
			_, _ = w.Write([]byte(body))
		}
	})
	c := config()
	c.MaxPages = 5
	f := fetcher(t, nil, c)
	l := must(list(t, f, civic.Site{Source: srv + "/moved"}))(t)
	var got []string
	for _, s := range l.specs {
		got = append(got, fmt.Sprintf("%s %s %s %d", strings.TrimPrefix(s.Source, srv), s.Meeting, s.Date, s.Ordinal))
	}
	want := []string{
		"/docs/2024-01-15%20a.pdf CityCouncil 2024-01-15 1",
		"/docs/2024-01-15.pdf CityCouncil 2024-01-15 2",
		"/2024-01-15.pdf LibraryBoard 2024-01-15 1",
		"/2024-03-01.pdf Comitéd'urbanisme 2024-03-01 1",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if l.result.Metrics["pages_read"] != 4 { // the first again under its other address
		t.Errorf("metrics %v", l.result.Metrics)
	}
	for path, n := range map[string]int{"/empty": 0, "/blank": 0, "/loop": 0, "/pdf": 1} {
		if l, err := list(t, f, civic.Site{Source: srv + path}); err != nil || len(l.specs) != n {
			t.Errorf("%s: %d documents, %v", path, len(l.specs), err)
		}
	}
	_, err := list(t, f, civic.Site{Source: srv + "/missing"})
	wantFault(t, err, fault.ClassPermanent, "404", "/missing")
	_, err = list(t, f, civic.Site{Source: srv + "/json"})
	wantFault(t, err, fault.ClassPermanent, "no web page", `{\"a\":1}`)
	c.MaxPage = 10
	_, err = list(t, fetcher(t, nil, c), civic.Site{Source: srv + "/one"})
	wantFault(t, err, fault.ClassPermanent, "fetch.max_page")
}

func TestHandler(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, "CityCouncil/2024-01-15.pdf", pdf("one"))
	write(t, dir, "CityCouncil/2024-01-16.pdf", "<html>")
	web := httptest.NewServer(http.FileServer(http.Dir(dir)))
	t.Cleanup(web.Close)
	down := func(name string, s Spec, class fault.Class) stagetest.Fixture {
		s.ID = "doc-1"
		f := stagetest.Fixture{
			Name: name, Fails: class,
			Task: stage.Task{Run: 1, Subject: "town", Stage: Name, Item: "doc-1", Parent: "town", Spec: object(t, s)},
		}
		if class == "" {
			f.Prefix = "sites/town/documents/doc-1/"
		}
		return f
	}
	stagetest.Check(t, func(t *testing.T) (stage.Handler, stagetest.Store) {
		store := s3test.Open(t)
		return fetcher(t, store, config()), store
	},
		down("a file", Spec{Document: civic.Document{Source: "CityCouncil/2024-01-15.pdf"}, Folder: dir}, ""),
		down("a download", doc(web.URL+"/CityCouncil/2024-01-15.pdf"), ""),
		down("no PDF", doc(web.URL+"/CityCouncil/2024-01-16.pdf"), fault.ClassPermanent),
		stagetest.Fixture{
			Name: "a folder",
			Task: stage.Task{Run: 1, Subject: "town", Stage: Name, Item: "town", Spec: object(t, civic.Site{Subdomain: "town", Source: dir})},
		},
	)
}

func FuzzReadPage(f *testing.F) {
	f.Add(town)
	f.Add(`<table><tr><td colspan=3><a href=//x/y.pdf>`)
	f.Add(`<base href="::"><a href="%zz.pdf">x</a><a rel=next href="http://[::1">`)
	at, err := url.Parse("https://town.example/x")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text string) {
		doc, err := html.Parse(strings.NewReader(text))
		if err != nil {
			return
		}
		for _, l := range readPage(doc, at).links {
			if u, err := url.Parse(l.source); err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Fragment != "" {
				t.Fatalf("source %q", l.source)
			}
		}
	})
}
