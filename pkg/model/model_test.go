package model_test

import (
	"encoding/json"
	"image"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/reeve-pipeline/reeve/pkg/model"
)

func TestBuiltin(t *testing.T) {
	t.Parallel()
	det, err := model.Named(model.DefaultLineDetection)
	if err != nil {
		t.Fatal(err)
	}
	if det.Task != model.LineDetection {
		t.Errorf("%s is for %s", det.Name, det.Task)
	}
	rec, err := model.Named(model.DefaultOCR)
	if err != nil {
		t.Fatal(err)
	}
	labels := rec.Labels()
	if len(labels) != 97 || rec.Classes() != 97 {
		t.Fatalf("%d labels and %d classes, not 97", len(labels), rec.Classes())
	}
	// The blank is first; the charset ends with a space, and another is appended.
	for class, want := range map[int]string{0: "", 1: "0", 10: "9", 17: "@", 18: "A", 49: "`", 76: "{", 80: "!", 94: "/", 95: " ", 96: " "} {
		if labels[class] != want {
			t.Errorf("class %d is %q, not %q", class, labels[class], want)
		}
	}
	if _, err := model.Named("fr"); err == nil || !strings.Contains(err.Error(), "ch_PP-OCRv4_det, en_PP-OCRv4_rec") {
		t.Errorf("an unknown name: %v; want the names there are", err)
	}
}

// write writes a manifest like the builtin one of that name, changed.
func write(t *testing.T, dir, file, like string, change func(map[string]any)) {
	t.Helper()
	m, err := model.Named(like)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(raw, &fields); err != nil {
		t.Fatal(err)
	}
	change(fields)
	if raw, err = json.Marshal(fields); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, file), raw, 0o600); err != nil {
		t.Fatal(err)
	}
}

// Adding a language is adding a manifest, and a list of its letters.
func TestLoad_AddsALanguage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, "ko.json", model.DefaultOCR, func(m map[string]any) {
		m["name"], m["charset_file"], m["blank"] = "korean", "ko.txt", 3
		delete(m, "charset")
	})
	if err := os.WriteFile(filepath.Join(dir, "ko.txt"), []byte("가\r\n \r\n나다\r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := model.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{model.DefaultLineDetection, model.DefaultOCR, "korean"}
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(c))); diff != "" {
		t.Error(diff)
	}
	m, err := c.Named("korean")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"가", " ", "나다", "", " "}, m.Labels()); diff != "" {
		t.Error(diff)
	}
	if m.Encoding != model.Unicode {
		t.Errorf("encoding %q", m.Encoding)
	}
	if c, err := model.Load(filepath.Join(dir, "none")); err != nil || len(c) != 2 {
		t.Errorf("a folder that is not there: %d models, %v", len(c), err)
	}
}

func TestLoad_SaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	set := func(key string, value any) func(map[string]any) {
		return func(m map[string]any) { m["name"], m[key] = "mine", value }
	}
	for _, tt := range []struct {
		name, like string
		change     func(map[string]any)
		want       string
	}{
		{"an unknown key", model.DefaultOCR, set("charsett", "en"), `unknown field "charsett"`},
		{"a name that is taken", model.DefaultOCR, func(map[string]any) {}, "another manifest has the name en_PP-OCRv4_rec"},
		{"a task that is none", model.DefaultOCR, set("task", "ner"), `task: "ner" is none of line_detection, ocr`},
		{"a file outside the folder", model.DefaultOCR, set("file", "../x.onnx"), `file: "../x.onnx" is no plain file name`},
		{"a short digest", model.DefaultOCR, set("sha256", "ffff"), "sha256: \"ffff\" must be 64"},
		{"a layout of other letters", model.DefaultOCR, set("input", map[string]any{"name": "x", "layout": "NCHX"}), `input.layout: "NCHX" is no order`},
		{"colour without channels", model.DefaultOCR, set("input", map[string]any{"name": "x", "layout": "NHW"}), "has no C for the 3 channels of BGR"},
		{"a mean for one channel of three", model.DefaultOCR, set("normalisation", map[string]any{"channels": "RGB", "scale": 1, "mean": []int{0}, "std": []int{1, 1, 1}}), "normalisation.mean: 1 numbers for 3 channels"},
		{"a canvas with too much", model.DefaultOCR, set("canvas", map[string]any{"fit": "tiles", "side": 512, "height": 1}), `canvas.height: "tiles" does not use it`},
		{"a side that is no multiple", model.DefaultLineDetection, set("canvas", map[string]any{"fit": "long_side", "side": 950, "multiple": 32}), "canvas.side: 950 is no multiple of 32"},
		{"no charset", model.DefaultOCR, set("charset", ""), "charset: it is missing"},
		{"two charsets", model.DefaultOCR, set("charset_file", "a.txt"), "only one of them"},
		{"an empty label", model.DefaultOCR, set("charset", []string{"a", ""}), "charset: label 1 is empty"},
		{"a blank beyond the classes", model.DefaultOCR, set("blank", 97), "blank: 97 is not from 0 to 96"},
		{"an encoding that is none", model.DefaultOCR, set("encoding", "latin1"), `encoding: "latin1" is none of unicode, wylie`},
		{"a charset for lines", model.DefaultLineDetection, set("charset", "abc"), "line detection has none"},
		{"lines without regions", model.DefaultLineDetection, set("regions", nil), "regions: it is missing"},
		{"no licence", model.DefaultLineDetection, set("licence", ""), "licence: it is missing"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			write(t, dir, "m.json", tt.like, tt.change)
			_, err := model.Load(dir)
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), filepath.Join(dir, "m.json")) {
				t.Errorf("%v; want %q, and the file", err, tt.want)
			}
		})
	}
}

// Nothing that is wrong hides behind something else that is.
func TestValidate_JoinsAll(t *testing.T) {
	t.Parallel()
	err := (&model.Manifest{Task: model.OCR}).Validate()
	if err == nil {
		t.Fatal("an empty manifest is valid")
	}
	for _, key := range []string{
		"name", "file", "sha256", "size", "input.name", "output.name", "input.layout", "output.layout",
		"output.values", "normalisation.channels", "normalisation.scale", "canvas.fit", "charset", "encoding", "licence", "source.package", "source.version",
	} {
		if !strings.Contains(err.Error(), key+": ") {
			t.Errorf("nothing about %s in:\n%v", key, err)
		}
	}
}

func TestDecode_NothingFollows(t *testing.T) {
	t.Parallel()
	if _, err := model.Decode([]byte(`{"name": "a"} {"name": "b"}`)); err == nil {
		t.Error("two manifests in a file are taken for one")
	}
}

func TestContract(t *testing.T) {
	t.Parallel()
	m := model.Manifest{
		Name: "lines", File: "l.onnx", SHA256: "ab", Size: 3,
		Input:         model.Input{Name: "in", Layout: "NCWH"},
		Output:        model.Output{Name: "out", Layout: "TNV"},
		Canvas:        model.Canvas{Fit: model.FitHeight, Height: 48, Multiple: 8},
		Normalisation: model.Normalisation{Channels: "GREY"},
		Charset:       model.Charset{"a", "b"},
		Space:         model.Space{Append: true},
	}
	want := model.Contract{
		Name: "lines", File: "l.onnx", SHA256: "ab", Size: 3, Input: "in", Output: "out",
		InputDims: []model.Dim{
			{Name: "batch"},
			{Name: "channels", Size: 1},
			{Name: "width", Multiple: 8},
			{Name: "height", Size: 48, Multiple: 8},
		},
		OutputDims: []model.Dim{
			{Name: "time steps"},
			{Name: "batch"},
			{Name: "classes: 2 of the charset, a blank, a space", Size: 4},
		},
	}
	if diff := cmp.Diff(want, m.Contract()); diff != "" {
		t.Error(diff)
	}
}

// Two pictures of 2×3 pixels, one of them a part of a wider one, in every
// layout there is.
func TestTensor(t *testing.T) {
	t.Parallel()
	wide := &image.Gray{Pix: []byte{1, 2, 3, 0, 4, 5, 6, 0}, Stride: 4, Rect: image.Rect(0, 0, 4, 2)}
	first, ok := wide.SubImage(image.Rect(0, 0, 3, 2)).(*image.Gray)
	if !ok {
		t.Fatal("not grey")
	}
	second := &image.Gray{Pix: []byte{7, 8, 9, 10, 11, 12}, Stride: 3, Rect: image.Rect(0, 0, 3, 2)}
	grey := model.Normalisation{Channels: "GREY", Scale: 1, Mean: []float64{0}, Std: []float64{1}}
	for _, tt := range []struct {
		layout model.Layout
		n      model.Normalisation
		shape  []int64
		data   []float32
	}{
		{"NHW", grey, []int64{2, 2, 3}, []float32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}},
		{"NCWH", grey, []int64{2, 1, 3, 2}, []float32{1, 4, 2, 5, 3, 6, 7, 10, 8, 11, 9, 12}},
		{
			"NCHW",
			model.Normalisation{Channels: "RGB", Scale: 2, Mean: []float64{0, 1, 0}, Std: []float64{.5, 1, .25}},
			[]int64{2, 3, 2, 3},
			[]float32{
				1, 2, 3, 4, 5, 6, -.5, 0, .5, 1, 1.5, 2, 2, 4, 6, 8, 10, 12,
				7, 8, 9, 10, 11, 12, 2.5, 3, 3.5, 4, 4.5, 5, 14, 16, 18, 20, 22, 24,
			},
		},
	} {
		m := model.Manifest{Input: model.Input{Layout: tt.layout}, Normalisation: tt.n}
		shape, data, err := m.Tensor(first, second)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.shape, shape); diff != "" {
			t.Errorf("%s: %s", tt.layout, diff)
		}
		if diff := cmp.Diff(tt.data, data); diff != "" {
			t.Errorf("%s: %s", tt.layout, diff)
		}
	}
	m := model.Manifest{Input: model.Input{Layout: "NHW"}, Normalisation: grey}
	if _, _, err := m.Tensor(first, wide); err == nil {
		t.Error("pictures of two sizes make a tensor")
	}
	if _, _, err := m.Tensor(); err == nil {
		t.Error("no pictures make a tensor")
	}
}

func TestCache(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		env  map[string]string
		want string
	}{
		{map[string]string{"HOME": "/h"}, "/h/.cache/reeve/models"},
		{map[string]string{"HOME": "/h", "XDG_CACHE_HOME": "/c"}, "/c/reeve/models"},
		{map[string]string{"HOME": "/h", "XDG_CACHE_HOME": "/c", "REEVE_MODELS": "/m"}, "/m"},
	} {
		if got := model.Cache(func(name string) string { return tt.env[name] }); got != tt.want {
			t.Errorf("%v: %s, not %s", tt.env, got, tt.want)
		}
	}
}
