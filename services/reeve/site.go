package reeve

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	reevev1 "github.com/reeve-pipeline/reeve/proto/reeve/v1"
)

func (c *command) siteCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "site", Short: "Register and look up sites", Aliases: []string{"sites"}}
	cmd.AddCommand(c.siteAdd(), c.siteList(), c.siteShow(), c.siteRemove())
	return cmd
}

func (c *command) siteAdd() *cobra.Command {
	site := &reevev1.Site{}
	cmd := &cobra.Command{
		Use: "add SITE --source FOLDER|URL", Short: "Register a site, or change its registration",
		Long: `Register a site, or change its registration: what is not given stays as it was.

SITE is its short name: lower-case letters, digits and hyphens, such as alameda.
The source is a folder with PDFs, or the URL of a page with links to PDFs.
Board and date of each are taken from its path, link or file name:
  CityCouncil/2024-05-07.pdf      Planning Board/Agenda 2024-05-13.pdf`,
		Example: "  reeve site add alameda --source ~/alameda/pdfs --name Alameda --state CA",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			site.Subdomain = args[0]
			if site.GetSource() != "" {
				source, err := absoluteSource(site.GetSource())
				if err != nil {
					return err
				}
				site.Source = source
			}
			before, err := ask(cmd.Context(), c.client().GetSite, &reevev1.GetSiteRequest{Subdomain: args[0]})
			switch {
			case err == nil:
				proto.Merge(before, site)
				site = before
			case connect.CodeOf(err) != connect.CodeNotFound:
				return err
			case site.GetSource() == "":
				return fmt.Errorf("site %s is new: say with --source where its documents are", args[0])
			}
			added, err := ask(cmd.Context(), c.client().AddSite, &reevev1.AddSiteRequest{Site: site})
			if err != nil {
				return err
			}
			if c.json {
				return writeJSON(c.Out, added)
			}
			fmt.Fprintf(c.Out, "site %s: %s\n", added.GetSubdomain(), added.GetSource())
			c.sayf("next: reeve run start civic %s --wait", added.GetSubdomain())
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&site.Source, "source", "", "folder with PDFs, or URL of a page with links to PDFs")
	f.StringVar(&site.Name, "name", "", "name for people, such as Alameda")
	f.StringVar(&site.State, "state", "", "state, such as CA")
	f.StringVar(&site.Country, "country", "", "country, such as US")
	f.StringVar(&site.Kind, "kind", "", "kind of body, such as city-council")
	f.Int32Var(&site.StartYear, "start-year", 0, "year of the first document")
	f.StringVar(&site.Lat, "lat", "", "latitude")
	f.StringVar(&site.Lng, "lng", "", "longitude")
	return cmd
}

// absoluteSource makes a folder's path absolute, since the service that reads
// it has another working folder, and leaves a URL alone.
func absoluteSource(source string) (string, error) {
	if strings.HasPrefix(source, "http://") || strings.HasPrefix(source, "https://") {
		return source, nil
	}
	if strings.Contains(source, "://") {
		return "", fmt.Errorf("source %s: only http:// and https:// are read; or give a folder", source)
	}
	path, err := filepath.Abs(source)
	if err != nil {
		return "", fmt.Errorf("source %s: %w", source, err)
	}
	st, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("source: %w; give a folder that exists, or a URL with http:// or https://", err)
	}
	if !st.IsDir() {
		return "", fmt.Errorf("source %s is a file: give the folder that holds the PDFs", path)
	}
	return path, nil
}

func (c *command) siteList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the sites and how their last runs stand", Args: cobra.NoArgs, Aliases: []string{"ls"},
		RunE: func(cmd *cobra.Command, _ []string) error {
			a, err := ask(cmd.Context(), c.client().ListSites, &reevev1.ListSitesRequest{})
			if err != nil {
				return err
			}
			if c.json {
				return writeJSON(c.Out, a)
			}
			var rows [][]string
			for _, s := range a.GetSites() {
				run := "-"
				if s.GetLastRun() != 0 {
					run = fmt.Sprintf("%d %s", s.GetLastRun(), s.GetLastRunStatus())
				}
				rows = append(rows, []string{s.GetSubdomain(), dash(s.GetName()), digits(s.GetDocuments()), digits(s.GetPages()), run, dash(s.GetCurrentStage()), s.GetSource()})
			}
			c.table([]string{"site", "name", "documents", "pages", "last run", "stage", "source"}, rows)
			return nil
		},
	}
}

func (c *command) siteShow() *cobra.Command {
	return &cobra.Command{
		Use: "show SITE", Short: "Show one site", Args: cobra.ExactArgs(1), ValidArgsFunction: first(c.sites),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := ask(cmd.Context(), c.client().GetSite, &reevev1.GetSiteRequest{Subdomain: args[0]})
			if err != nil {
				return err
			}
			if c.json {
				return writeJSON(c.Out, s)
			}
			now := time.Now()
			c.pairs([][]string{
				{"site", s.GetSubdomain()},
				{"name", s.GetName()},
				{"state", s.GetState()},
				{"country", s.GetCountry()},
				{"kind", s.GetKind()},
				{"source", s.GetSource()},
				{"start year", number(int64(s.GetStartYear()))},
				{"documents", digits(s.GetDocuments())},
				{"pages published", digits(s.GetPages())},
				{"last run", strings.TrimSpace(number(s.GetLastRun()) + " " + s.GetLastRunStatus())},
				{"stage", s.GetCurrentStage()},
				{"updated", ago(now, s.GetUpdatedAt())},
				{"added", ago(now, s.GetCreatedAt())},
			})
			return nil
		},
	}
}

func (c *command) siteRemove() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use: "remove SITE", Short: "Forget a site; its stored files stay", Args: cobra.ExactArgs(1), Aliases: []string{"rm"}, ValidArgsFunction: first(c.sites),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := c.confirm(yes, fmt.Sprintf("Forget site %s and what is known of its documents?", args[0])); err != nil {
				return err
			}
			if _, err := ask(cmd.Context(), c.client().RemoveSite, &reevev1.RemoveSiteRequest{Subdomain: args[0]}); err != nil {
				return err
			}
			if c.json {
				return writeJSON(c.Out, map[string]any{"removed": args[0]})
			}
			fmt.Fprintf(c.Out, "site %s removed\n", args[0])
			return nil
		},
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	return cmd
}

// pairs prints names and values, without those that have none.
func (c *command) pairs(all [][]string) {
	for _, p := range all {
		p = clean(p)
		switch {
		case p[1] == "":
		case c.Out.Columns == 0:
			fmt.Fprintf(c.Out, "%s\t%s\n", p[0], p[1])
		default:
			fmt.Fprintf(c.Out, "%-16s %s\n", p[0], p[1])
		}
	}
}

// number is empty for 0.
func number(n int64) string {
	if n == 0 {
		return ""
	}
	return digits(n)
}

// first completes only the first argument.
func first(f cobra.CompletionFunc) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, start string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return f(cmd, args, start)
	}
}
