package gateway_test

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"

	"github.com/reeve-pipeline/reeve/pkg/civic"
	reevev1 "github.com/reeve-pipeline/reeve/proto/reeve/v1"
	"github.com/reeve-pipeline/reeve/services/gateway"
)

// folder is a store of objects in a folder.
type folder string

func (f folder) ReadAll(_ context.Context, key, _ string, _ int64) ([]byte, error) {
	return os.ReadFile(filepath.Join(string(f), key))
}

func (f folder) GetFile(_ context.Context, key, path, _ string) error {
	b, err := os.ReadFile(filepath.Join(string(f), key))
	if err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o600)
}

// publish writes a meetings.db as compilation would, with its manifest. Pages
// are "minutes|meeting|date|page|text".
func publish(t *testing.T, f folder, site, version string, pages ...string) {
	t.Helper()
	key := civic.SiteKey(site, version+"/meetings.db")
	path := filepath.Join(string(f), key)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	exec := func(q string, args ...any) {
		t.Helper()
		if _, err := db.ExecContext(t.Context(), q, args...); err != nil {
			t.Fatal(err)
		}
	}
	for _, table := range []string{"minutes", "agendas"} {
		exec(`CREATE TABLE ` + table + ` (id TEXT PRIMARY KEY, meeting TEXT, date TEXT, page INTEGER, text TEXT, page_image TEXT, entities_json TEXT, votes_json TEXT)`)
		exec(`CREATE VIRTUAL TABLE ` + table + `_fts USING FTS5([text], content=[` + table + `])`)
	}
	for i, p := range pages {
		c := strings.SplitN(p, "|", 5)
		exec(`INSERT INTO `+c[0]+` VALUES (?, ?, ?, ?, ?, ?, '{}', '{}')`, fmt.Sprintf("%s%d", site, i), c[1], c[2], c[3], c[4], "/"+c[1]+"/"+c[2]+"/"+c[3]+".png")
	}
	for _, table := range []string{"minutes", "agendas"} {
		exec(`INSERT INTO ` + table + `_fts(` + table + `_fts) VALUES ('rebuild')`)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(b)
	m, err := json.Marshal(civic.Manifest{Subdomain: site, Version: version, Database: civic.Object{Key: key, SHA256: hex.EncodeToString(sum[:])}})
	if err != nil {
		t.Fatal(err)
	}
	manifest := filepath.Join(string(f), civic.SiteKey(site, "manifest.json"))
	if err := errors.Join(os.WriteFile(manifest+".new", m, 0o600), os.Rename(manifest+".new", manifest)); err != nil {
		t.Fatal(err)
	}
}

// searcher asks a gateway that searches what is published in a folder.
func searcher(t *testing.T, f folder) func(*reevev1.SearchRequest) (*reevev1.SearchResponse, error) {
	t.Helper()
	s, err := gateway.NewSearch(f, filepath.Join(t.TempDir(), "search"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	g := &gateway.Gateway{Ledger: &books{}, Search: s, Log: zap.NewNop()}
	return func(r *reevev1.SearchRequest) (*reevev1.SearchResponse, error) {
		a, err := gateway.API(g).Search(t.Context(), connect.NewRequest(r))
		if err != nil {
			return nil, err
		}
		return a.Msg, nil
	}
}

func TestSearch(t *testing.T) {
	t.Parallel()
	f := folder(t.TempDir())
	publish(t, f, "alameda", "v1",
		"minutes|CityCouncil|2024-01-09|1|Motion to approve the library budget. Motion carried.",
		"minutes|CityCouncil|2024-02-13|2|The library\nwas   closed.",
		"agendas|CityCouncil|2024-02-13|1|Item 3: O'Brien's \"quoted\" budget (50%)",
	)
	search := searcher(t, f)
	for _, tt := range []struct {
		name  string
		ask   *reevev1.SearchRequest
		total int64
		first string // kind date page snippet
	}{
		{"one word", &reevev1.SearchRequest{Query: "motion"}, 1, "minutes 2024-01-09 1 «Motion» to approve the library budget. «Motion» carried."},
		{"two words are both wanted", &reevev1.SearchRequest{Query: "library closed"}, 1, "minutes 2024-02-13 2 The «library» was «closed»."},
		{"a phrase", &reevev1.SearchRequest{Query: `"library budget"`}, 1, "minutes 2024-01-09 1 Motion to approve the «library budget». Motion carried."},
		{"a prefix", &reevev1.SearchRequest{Query: "clos*"}, 1, "minutes 2024-02-13 2 The library was «closed»."},
		{"both kinds", &reevev1.SearchRequest{Query: "budget"}, 2, ""},
		{"one kind", &reevev1.SearchRequest{Query: "budget", Kind: "agenda"}, 1, `agenda 2024-02-13 1 Item 3: O'Brien's "quoted" «budget» (50%)`},
		{"a range of dates", &reevev1.SearchRequest{Query: "library", DateFrom: "2024-02-01", DateTo: "2024-02-28"}, 1, "minutes 2024-02-13 2 The «library» was closed."},
		{"what is no expression is a phrase", &reevev1.SearchRequest{Query: "O'Brien's"}, 1, `agenda 2024-02-13 1 Item 3: «O'Brien's» "quoted" budget (50%)`},
		{"a lone quote", &reevev1.SearchRequest{Query: `budget"`}, 2, ""},
		{"a column that there is not", &reevev1.SearchRequest{Query: "item: 3"}, 1, ""},
		{"signs only", &reevev1.SearchRequest{Query: `"""*()`}, 0, ""},
		{"nothing found", &reevev1.SearchRequest{Query: "zoning"}, 0, ""},
		{"at most one", &reevev1.SearchRequest{Query: "library", Limit: 1}, 2, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a, err := search(tt.ask)
			if err != nil {
				t.Fatal(err)
			}
			if a.GetTotal() != tt.total {
				t.Errorf("total %d, want %d: %v", a.GetTotal(), tt.total, a)
			}
			if n := int(tt.ask.GetLimit()); n > 0 && len(a.GetHits()) != n {
				t.Errorf("%d hits, want %d", len(a.GetHits()), n)
			}
			if tt.first != "" && len(a.GetHits()) > 0 {
				h := a.GetHits()[0]
				got := fmt.Sprintf("%s %s %d %s", h.GetKind(), h.GetDate(), h.GetPage(), h.GetSnippet())
				if diff := cmp.Diff(tt.first, got); diff != "" {
					t.Error(diff)
				}
			}
		})
	}
}

func TestSearchFollowsWhatIsPublished(t *testing.T) {
	t.Parallel()
	f := folder(t.TempDir())
	publish(t, f, "alameda", "v1", "minutes|Board|2024-01-01|1|first version")
	search := searcher(t, f)
	if a, err := search(&reevev1.SearchRequest{Query: "version"}); err != nil || a.GetTotal() != 1 {
		t.Fatalf("%v %v", a, err)
	}
	// Queries go on while a newer database takes the place of the old one.
	stop := make(chan struct{})
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if a, err := search(&reevev1.SearchRequest{Query: "version"}); err != nil || a.GetTotal() == 0 {
					t.Errorf("%v %v", a, err)
					return
				}
			}
		})
	}
	for v := range 5 {
		publish(t, f, "alameda", fmt.Sprint("w", v), "minutes|Board|2024-01-01|1|first version", fmt.Sprintf("minutes|Board|2024-01-02|1|version w%d", v))
	}
	a, err := search(&reevev1.SearchRequest{Query: "w4"})
	close(stop)
	all.Wait()
	if err != nil || a.GetTotal() != 1 {
		t.Fatalf("%v %v", a, err)
	}
}
