package civic_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/reeve-pipeline/reeve/pkg/civic"
)

func pages() civic.Pages {
	img := func(page int, name string) civic.PageImage {
		return civic.PageImage{Page: page, Name: name, Object: civic.Object{Key: "in/" + name, Size: 7, SHA256: "ab"}, DPI: 200}
	}
	return civic.Pages{Prefix: "p", Document: "d", First: 33, Last: 64, Images: []civic.PageImage{img(33, "I1.jpg"), img(40, "I1.tif"), img(64, "I3.jpg")}}
}

func TestPages_Validate(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		change func(*civic.Pages)
		says   string // empty: nothing is wrong
	}{
		{"good", func(*civic.Pages) {}, ""},
		{"no prefix", func(p *civic.Pages) { p.Prefix = "" }, "prefix"},
		{"of nothing", func(p *civic.Pages) { p.Document = "" }, "document or of a volume"},
		{"of two things", func(p *civic.Pages) { p.Volume = "v" }, "document or of a volume"},
		{"from 0", func(p *civic.Pages) { p.First = 0 }, "no range"},
		{"backwards", func(p *civic.Pages) { p.Last = 32 }, "no range"},
		{"no images", func(p *civic.Pages) { p.Images = nil }, "0 images"},
		{"too many", func(p *civic.Pages) { p.Images = make([]civic.PageImage, civic.MaxPages+1) }, "33 images"},
		{"outside", func(p *civic.Pages) { p.Last = 63 }, "page 64"},
		{"out of order", func(p *civic.Pages) { p.Images[1].Page = 33 }, "page 33 follows page 33"},
		{"no key", func(p *civic.Pages) { p.Images[1].Key = "" }, "page 40"},
		{"a name with a folder", func(p *civic.Pages) { p.Images[1].Name = "../x" }, "no file name"},
		{"no name", func(p *civic.Pages) { p.Images[1].Name = "" }, "no file name"},
		{"one name twice", func(p *civic.Pages) { p.Images[1].Name = "I1.jpg" }, "I1.jpg, too"},
	} {
		p := pages()
		tt.change(&p)
		switch err := p.Validate(); {
		case tt.says == "" && err != nil, tt.says != "" && (err == nil || !strings.Contains(err.Error(), tt.says)):
			t.Errorf("%s: error %v, want %q", tt.name, err, tt.says)
		}
	}
}

func TestPages_keys(t *testing.T) {
	t.Parallel()
	document, volume := pages(), pages()
	volume.Document, volume.Volume = "", "W1-I1"
	for _, tt := range []struct{ got, want string }{
		{document.Part("ocr", 0, "ocr_results"), "p/ocr_results.parquet/part-00033-00064.parquet"},
		{document.Part("ocr", 2, "ocr_results"), "p/v2/ocr_results.parquet/part-00033-00064.parquet"},
		{volume.Part("ocr", 0, "ocr_results"), "p/ocr/ocr_results.parquet/part-00033-00064.parquet"},
		{volume.Part("ocr", 2, "ocr_results"), "p/ocr/v2/ocr_results.parquet/part-00033-00064.parquet"},
		{volume.Key("line_extraction", 0, "lines/I1.jpg_0.jpg"), "p/line_extraction/lines/I1.jpg_0.jpg"},
	} {
		if tt.got != tt.want {
			t.Errorf("key %s, want %s", tt.got, tt.want)
		}
	}
}

func TestPages_JSON(t *testing.T) {
	t.Parallel()
	want := pages()
	want.Text = &civic.Object{Key: "t", Size: 1, SHA256: "cd"}
	data, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	for _, field := range []string{`"images":[{"page":33,"name":"I1.jpg","key":"in/I1.jpg","size":7,"sha256":"ab","dpi":200}`, `"text":{"key":"t"`} {
		if !strings.Contains(string(data), field) {
			t.Errorf("%s is missing in %s", field, data)
		}
	}
	var got civic.Pages
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
