package reeve

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	reevev1 "github.com/reeve-pipeline/reeve/proto/reeve/v1"
)

func (c *command) infoCommand() *cobra.Command {
	return &cobra.Command{
		Use: "info", Short: "Print where everything of the running Reeve is",
		Long: `Print where everything of the running Reeve is: with passwords, from its data
folder, when it runs on this machine and that folder is yours; otherwise, and
with --api, as the API tells it, without them.`,
		Example: "  psql \"$(reeve info --json | jq -r .postgres_dsn)\"",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if st, ok := c.instance(cmd.Context()); ok {
				if c.json {
					return writeJSON(c.Out, st)
				}
				c.pairs([][]string{
					{"version", st.Version},
					{"process", digits(st.PID)},
					{"started", st.StartedAt.Local().Format(time.DateTime)},
					{"data", st.Data},
					{"api", st.API},
					{"nats", st.NATS},
					{"nats monitor", st.NATSMonitor},
					{"postgres", st.PostgresDSN},
					{"s3 endpoint", "http://" + st.S3Endpoint},
					{"s3 bucket", st.S3Bucket},
					{"s3 access key", st.S3AccessKey},
					{"s3 secret key", st.S3SecretKey},
					{"metrics", st.Metrics},
				})
				return nil
			}
			a, err := ask(cmd.Context(), c.client().Info, &reevev1.InfoRequest{})
			if err != nil {
				return err
			}
			if c.json {
				return writeJSON(c.Out, a)
			}
			started := ""
			if a.GetStartedAt() != nil {
				started = a.GetStartedAt().AsTime().Local().Format(time.DateTime)
			}
			c.pairs([][]string{
				{"version", a.GetVersion()},
				{"started", started},
				{"data", a.GetDataDir()},
				{"api", a.GetApiUrl()},
				{"nats", a.GetNatsUrl()},
				{"nats monitor", a.GetNatsMonitorUrl()},
				{"postgres", a.GetPostgresDsn()},
				{"s3 endpoint", "http://" + a.GetS3Endpoint()},
				{"s3 bucket", a.GetS3Bucket()},
				{"s3 access key", a.GetS3AccessKey()},
				{"metrics", a.GetMetricsUrl()},
			})
			return nil
		},
	}
}

func (c *command) configCommand() *cobra.Command {
	var config string
	cmd := &cobra.Command{
		Use: "config [-- settings of services]", Short: "Print the settings of services and where each comes from, secrets masked",
		Long: `Print the settings that "reeve up" gives its services when it is started from
here, with this environment, and where each comes from. Secrets are masked.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			self, err := os.Executable()
			if err != nil {
				return err
			}
			args = append([]string{ServicesCommand, "--print-config"}, args...)
			if config != "" {
				args = append(args, "--config="+config)
			}
			given, err := c.given()
			if err != nil {
				return err
			}
			// A process of its own, for it is the services that know their settings.
			child := exec.CommandContext(cmd.Context(), self, args...)
			child.Env = serviceEnviron(slices.Concat(c.Environ, given))
			var problems bytes.Buffer
			child.Stderr = &problems
			out, err := child.Output()
			if err != nil && problems.Len() > 0 {
				return errors.New(strings.TrimSpace(strings.ReplaceAll(problems.String(), "reeve: ", "")))
			}
			if err != nil {
				return fmt.Errorf("print settings: %w", err)
			}
			all := parseConfig(string(out), given)
			if c.json {
				return writeJSON(c.Out, map[string]any{"settings": all})
			}
			var rows [][]string
			for _, s := range all {
				rows = append(rows, []string{s.Name, dash(s.Value), s.Origin})
			}
			c.table([]string{"setting", "value", "from"}, rows)
			return nil
		},
	}
	cmd.Flags().StringVar(&config, "config", "", "YAML file with settings of services")
	must(cmd.MarkFlagFilename("config", "yaml", "yml"))
	return cmd
}

// given are the settings that an all-in-one gives its services, as variables:
// those of its last start, or placeholders before the first.
func (c *command) given() ([]string, error) {
	dir, err := c.dataDir()
	if err != nil {
		return nil, err
	}
	st, err := readState(dir)
	if errors.Is(err, fs.ErrNotExist) {
		st = State{API: defaultAPI, NATS: "nats://" + local127(8481), S3Endpoint: local127(8482), S3Bucket: bucket, PostgresDSN: "postgres://" + local127(8483) + "/reeve", Metrics: "http://" + local127(8485) + "/metrics"}
	} else if err != nil {
		return nil, err
	}
	return append(openFolders(c.Environ),
		"REEVE_HTTP_ADDR="+strings.TrimSuffix(strings.TrimPrefix(st.Metrics, "http://"), "/metrics"), "REEVE_GATEWAY_CACHE="+filepath.Join(dir, "cache"),
		"REEVE_NATS_URL="+st.NATS, "REEVE_POSTGRES_DSN="+st.PostgresDSN, "REEVE_S3_ENDPOINT="+st.S3Endpoint,
		"REEVE_S3_BUCKET="+st.S3Bucket, "REEVE_S3_ACCESS_KEY="+st.S3AccessKey, "REEVE_S3_SECRET_KEY="+st.S3SecretKey,
		"REEVE_GATEWAY_ADDR="+strings.TrimPrefix(st.API, "http://"), "REEVE_GATEWAY_TOKEN="+st.Token,
	), nil
}

// setting is a setting in force.
type setting struct {
	Name   string `json:"name"`
	Value  string `json:"value"`
	Origin string `json:"origin"`
}

var configLine = regexp.MustCompile(`(?m)^(?:# )?([a-z0-9_.]+): (.*?) +# ([^#\n]*)$`)

// parseConfig reads what --print-config prints. What the all-in-one gave comes
// from there, and not from the environment it was given through.
func parseConfig(text string, given []string) []setting {
	all := []setting{}
	for _, m := range configLine.FindAllStringSubmatch(text, -1) {
		s := setting{Name: m[1], Value: strings.Trim(m[2], `"`), Origin: m[3]}
		name, _ := strings.CutPrefix(s.Origin, "environment ")
		if slices.ContainsFunc(given, func(v string) bool { return strings.HasPrefix(v, name+"=") }) {
			s.Origin = "reeve up"
		}
		all = append(all, s)
	}
	return all
}
