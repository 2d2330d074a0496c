package pagination_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/reeve-pipeline/reeve/pkg/fault"
	"github.com/reeve-pipeline/reeve/pkg/s3test"
	"github.com/reeve-pipeline/reeve/pkg/sample"
	"github.com/reeve-pipeline/reeve/pkg/stage"
	"github.com/reeve-pipeline/reeve/pkg/stagetest"
	"github.com/reeve-pipeline/reeve/services/pagination"
)

func TestPaginator_isAHandler(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := sample.Write(dir); err != nil {
		t.Fatal(err)
	}
	papers := map[string][]byte{}
	var fixtures []stagetest.Fixture
	scratch := s3test.Open(t)
	for _, path := range []string{"CityCouncil/2024-02-13.pdf", "CityCouncil/2024-03-12.pdf", "ParksCommission/2024-03-14.pdf"} {
		body, err := os.ReadFile(filepath.Join(dir, path))
		if err != nil {
			t.Fatal(err)
		}
		papers[path] = body
		f := stagetest.Fixture{
			Name: path, Prefix: "sites/wrenfield/documents/",
			Task: *task(t, scratch, path, body, `{"ocr_mode":"skip"}`),
		}
		if path == "ParksCommission/2024-03-14.pdf" {
			f.Fails = fault.ClassPermanent
		}
		fixtures = append(fixtures, f)
	}
	stagetest.Check(t, func(t *testing.T) (stage.Handler, stagetest.Store) {
		store := s3test.Open(t)
		for path, body := range papers {
			task(t, store, path, body, "")
		}
		return pagination.New(store, readers, t.TempDir()), store
	}, fixtures...)
}
