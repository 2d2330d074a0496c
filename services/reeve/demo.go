package reeve

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/reeve-pipeline/reeve/pkg/civic"
	"github.com/reeve-pipeline/reeve/pkg/sample"
	reevev1 "github.com/reeve-pipeline/reeve/proto/reeve/v1"
)

func (c *command) demoCommand() *cobra.Command {
	var docs, name string
	var o Options
	cmd := &cobra.Command{
		Use: "demo", Short: "Take a small town's documents through the whole pipeline",
		Long: `Take documents through the whole pipeline and search them: those of an invented
town, or your own with --docs. A Reeve that runs is used; otherwise one runs for
as long as the demo takes, and everything it made stays.

Exits like "run start --wait": with 1 when some of your own documents failed. Of
the invented town, some are broken on purpose: there it exits with 1 when a
document did not end as it was made to.`,
		Example: "  reeve demo\n  reeve demo --docs ~/alameda/pdfs",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			began := time.Now()
			st, ok := c.instance(cmd.Context())
			data := st.Data
			if !ok {
				if data, err = c.dataDir(); err != nil {
					return err
				}
			}
			site, words, invented, err := c.town(docs, name, data)
			if err != nil {
				return err
			}
			if ok {
				c.sayf("using the Reeve that runs at %s\n", st.API)
			} else {
				var stop func() error
				if err := c.complete(&o, "reeve.log"); err != nil {
					return err
				}
				if st, stop, err = c.background(cmd.Context(), o); err != nil {
					return err
				}
				o.Say("ready     %s  after %.1f s\n", st.API, time.Since(began).Seconds())
				defer func() {
					if err := stop(); err != nil {
						fmt.Fprintln(c.Err, "reeve: stop:", err) // what was asked for is done
					}
				}()
			}
			c.api, c.token = st.API, st.Token
			return c.demo(cmd.Context(), st, site, words, invented, !ok)
		},
	}
	f := cmd.Flags()
	f.StringVar(&docs, "docs", "", "folder of your own PDFs, as in CityCouncil/2024-05-07.pdf")
	f.StringVar(&name, "site", "", "name of the site for --docs (default: from the folder's)")
	f.StringVar(&o.Listen, "listen", "127.0.0.1:0", "address of the API, with port 0 a free one")
	must(cmd.MarkFlagDirname("docs"))
	return cmd
}

// town returns the site to take, words to search it for, and what was made of
// it if it is invented: that one, written into the data folder, or a folder's.
func (c *command) town(docs, name, data string) (*reevev1.Site, []string, *sample.Town, error) {
	if docs != "" {
		path, err := absoluteSource(docs)
		if err != nil {
			return nil, nil, nil, err
		}
		name = cmp.Or(name, siteName(path))
		return &reevev1.Site{Subdomain: name, Name: name, Source: path}, []string{"motion", "minutes", "meeting", "council", "report", "the"}, nil, nil
	}
	town, err := sample.Write(filepath.Join(data, "sample"))
	if err != nil {
		return nil, nil, nil, err
	}
	var words []string
	for _, f := range town.Files {
		words = append(words, f.Phrases...)
	}
	s := town.Site
	return &reevev1.Site{
		Subdomain: s.Subdomain, Name: s.Name, State: s.State, Country: s.Country, Kind: s.Kind, Source: s.Source,
		StartYear: int32(s.StartYear), Lat: s.Lat, Lng: s.Lng,
	}, append(words, "meeting"), &town, nil
}

var notName = regexp.MustCompile(`[^a-z0-9]+`)

// siteName makes a site's name of a folder's path: its last part, or the one
// before when the last only says that there are documents.
func siteName(path string) string {
	base := filepath.Base(path)
	switch strings.ToLower(base) {
	case "pdf", "pdfs", "docs", "documents", "files", "minutes", "agendas":
		base = filepath.Base(filepath.Dir(path))
	}
	return cmp.Or(strings.Trim(notName.ReplaceAllString(strings.ToLower(base), "-"), "-"), "town")
}

// demo takes a site through the pipeline and shows what came of it.
func (c *command) demo(ctx context.Context, st State, site *reevev1.Site, words []string, invented *sample.Town, ours bool) error {
	api := c.client()
	if _, err := ask(ctx, api.AddSite, &reevev1.AddSiteRequest{Site: site}); err != nil {
		return err
	}
	run, err := ask(ctx, api.StartRun, &reevev1.StartRunRequest{Pipeline: "civic", Subject: site.GetSubdomain(), Trigger: "demo"})
	if connect.CodeOf(err) == connect.CodeFailedPrecondition {
		// A run that a crash cut short goes on by itself.
		a, listErr := ask(ctx, api.ListRuns, &reevev1.ListRunsRequest{Subject: site.GetSubdomain(), Status: "running", Limit: 1})
		if listErr != nil {
			return listErr
		}
		if len(a.GetRuns()) == 1 {
			run, err = a.GetRuns()[0], nil
		}
	}
	if err != nil {
		return err
	}
	if run, err = c.watch(ctx, run.GetRun()); err != nil {
		return err
	}
	problems, err := c.problems(ctx, run)
	if err != nil {
		return err
	}
	hits, err := c.findTwo(ctx, site.GetSubdomain(), words)
	if err != nil {
		return err
	}
	files := publishedFiles(st, site.GetSubdomain())
	if c.json {
		out := whole(run, problems)
		out["searches"], out["files"] = hits, files
		if err := writeJSON(c.Out, out); err != nil {
			return err
		}
		return c.judgeDemo(ctx, run, invented)
	}
	fmt.Fprintln(c.Out)
	c.summary(run, problems)
	paint := c.paint(c.Out)
	for _, h := range hits {
		fmt.Fprintf(c.Out, "\nsearch for %s: found on %s, such as\n", h.Query, plural(h.Total, "page"))
		fmt.Fprintf(c.Out, "  %s %s %s, page %d\n  %s\n", oneLine(h.Meeting), h.Date, h.Kind, h.Page, highlight(oneLine(h.Snippet), paint))
	}
	fmt.Fprintf(c.Out, "\neverything lies in %s\n", st.Data)
	for _, f := range files {
		fmt.Fprintf(c.Out, "  %-14s %s\n", f.What, f.Path)
	}
	self := cmp.Or(c.Name, "reeve")
	if c.data != "" {
		self += " --data " + c.data
	}
	fmt.Fprintln(c.Out, "\nnext")
	if ours {
		fmt.Fprintf(c.Out, "  %-44s run it all, until interrupted\n", self+" up")
	}
	for _, n := range [][2]string{
		{" search " + cmp.Or(firstQuery(hits), "budget"), "search what was found"},
		{" site add TOWN --source FOLDER", "add a town of your own"},
		{" run start civic TOWN --wait", "and take it through"},
		{" info", "addresses, and the DSN of Postgres"},
	} {
		fmt.Fprintf(c.Out, "  %-44s %s\n", self+n[0], n[1])
	}
	return c.judgeDemo(ctx, run, invented)
}

// judgeDemo decides how the demo exits: by the run, or, of the invented town,
// by whether every document ended as it was made to.
func (c *command) judgeDemo(ctx context.Context, run *reevev1.Run, invented *sample.Town) error {
	if invented == nil || run.GetStatus() != "completed" {
		return judge(run)
	}
	a, err := ask(ctx, c.client().ListDocuments, &reevev1.ListDocumentsRequest{Subdomain: run.GetSubject()})
	if err != nil {
		return err
	}
	ended := map[string]string{}
	for _, d := range a.GetDocuments() {
		ended[d.GetSource()] = d.GetStatus()
	}
	broken := 0
	for _, f := range invented.Files {
		got, want := ended[f.Path], f.Status
		if of := f.DuplicateOf; of != "" && got == "done" && ended[of] == want {
			got = want // of two alike, the one that was fetched first is the original
		} else if got == "duplicate" && want == "done" && twin(invented, f.Path, ended) {
			got = want
		}
		if got != want {
			return fmt.Errorf("%s ended as %q, and was made to end as %q", f.Path, got, want)
		}
		if want == "failed" {
			broken++
		}
	}
	if !c.json {
		fmt.Fprintf(c.Out, "\nevery document ended as it was made to; %d of the %d are broken on purpose\n", broken, len(invented.Files))
	}
	return nil
}

// twin reports whether the file's duplicate was taken for the original.
func twin(town *sample.Town, path string, ended map[string]string) bool {
	for _, f := range town.Files {
		if f.DuplicateOf == path {
			return ended[f.Path] == "done"
		}
	}
	return false
}

// found is a search and its best hit.
type found struct {
	Query   string `json:"query"`
	Total   int64  `json:"total"`
	Meeting string `json:"meeting"`
	Date    string `json:"date"`
	Kind    string `json:"kind"`
	Page    int32  `json:"page"`
	Snippet string `json:"snippet"`
}

func firstQuery(all []found) string {
	if len(all) == 0 {
		return ""
	}
	return all[0].Query
}

// findTwo searches for words until two have brought hits on different pages.
func (c *command) findTwo(ctx context.Context, site string, words []string) ([]found, error) {
	all := []found{}
	seen := map[string]bool{}
	for _, w := range words {
		if strings.Contains(w, " ") {
			w = `"` + w + `"`
		}
		a, err := ask(ctx, c.client().Search, &reevev1.SearchRequest{Query: w, Subdomain: site, Limit: 5})
		if connect.CodeOf(err) == connect.CodeFailedPrecondition {
			return all, nil // nothing was published
		}
		if err != nil {
			return nil, err
		}
		for _, h := range a.GetHits() {
			if !seen[h.GetId()] {
				seen[h.GetId()] = true
				all = append(all, found{w, a.GetTotal(), h.GetMeeting(), h.GetDate(), h.GetKind(), h.GetPage(), h.GetSnippet()})
				break
			}
		}
		if len(all) == 2 {
			break
		}
	}
	return all, nil
}

// published is a file that a run has made.
type published struct {
	What string `json:"what"`
	Path string `json:"path"`
}

// publishedFiles says where the files of a site are that the all-in-one keeps.
func publishedFiles(st State, site string) []published {
	root := filepath.Join(st.Data, "s3", "buckets", st.S3Bucket)
	path := func(key string) string { return filepath.Join(root, filepath.FromSlash(key)) }
	all := []published{}
	add := func(what, path string) {
		if _, err := os.Stat(path); err == nil {
			all = append(all, published{what, path})
		}
	}
	manifest := path(civic.SiteKey(site, "manifest.json"))
	var m civic.Manifest
	if b, err := os.ReadFile(manifest); err == nil && json.Unmarshal(b, &m) == nil && m.Database.Key != "" {
		add("database", path(m.Database.Key))
	}
	add("manifest", manifest)
	add("documents", path(civic.SiteKey(site, "documents")))
	add("log", filepath.Join(st.Data, "reeve.log"))
	return all
}
