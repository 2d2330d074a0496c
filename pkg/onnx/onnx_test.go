package onnx_test

import (
	"context"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/image/font"
	"golang.org/x/image/font/gofont/goregular"
	"golang.org/x/image/font/opentype"
	"golang.org/x/image/math/fixed"

	"github.com/reeve-pipeline/reeve/pkg/ctc"
	"github.com/reeve-pipeline/reeve/pkg/model"
	"github.com/reeve-pipeline/reeve/pkg/onnx"
	"github.com/reeve-pipeline/reeve/pkg/onnxtest"
)

// openOnly names a library that the process opens instead of running tests: a
// process can load but one.
const openOnly = "ONNX_TEST_OPEN"

func TestMain(m *testing.M) {
	if library := os.Getenv(openOnly); library != "" {
		if _, err := onnx.Open(onnx.Options{Library: library}); err != nil {
			fmt.Println(err)
			os.Exit(3)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func open(t testing.TB) *onnx.Runtime {
	t.Helper()
	r, err := onnx.Open(onnx.Options{Library: onnxtest.Library(t)})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// load loads a small model.
func load(t testing.TB, m onnxtest.Model) *onnx.Session {
	t.Helper()
	dir := t.TempDir()
	manifest := m.Write(t, dir)
	if err := manifest.Validate(); err != nil {
		t.Fatal(err)
	}
	return loadFrom(t, manifest, dir)
}

func loadFrom(t testing.TB, m model.Manifest, dir string) *onnx.Session {
	t.Helper()
	s, err := open(t).Load(onnx.Model(m.Contract()), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// run runs a session on pictures.
func run(t testing.TB, s *onnx.Session, m model.Manifest, pictures ...*image.Gray) onnx.Tensor {
	t.Helper()
	shape, data, err := m.Tensor(pictures...)
	if err != nil {
		t.Fatal(err)
	}
	out, err := s.Run(t.Context(), onnx.Tensor{Shape: shape, Data: data})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// text is what line n of the output says.
func text(t testing.TB, m model.Manifest, out onnx.Tensor, n int) string {
	t.Helper()
	kind := ctc.Probabilities
	if m.Output.Values == model.Logit {
		kind = ctc.Logits
	}
	scores, err := ctc.Line(out.Data, out.Shape, ctc.Layout(m.Output.Layout), kind, n)
	if err != nil {
		t.Fatal(err)
	}
	reading, err := ctc.Greedy(scores, m.Blank)
	if err != nil {
		t.Fatal(err)
	}
	labels := m.Labels()
	var b strings.Builder
	for _, s := range reading.Symbols {
		b.WriteString(labels[s.Class])
	}
	return strings.TrimSpace(b.String())
}

func TestOpen_SaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	library := onnxtest.Library(t)
	open(t)
	for _, tt := range []struct {
		name    string
		options onnx.Options
		want    string
	}{
		{"no library", onnx.Options{}, "no ONNX Runtime library is configured"},
		{"an unknown provider", onnx.Options{Library: library, Provider: "tpu"}, `execution provider "tpu" is none of cpu, cuda, tensorrt`},
		{"threads below 0", onnx.Options{Library: library, IntraThreads: -1}, "-1 threads is below 0"},
		{"options for the CPU", onnx.Options{Library: library, ProviderOptions: map[string]string{"device_id": "0"}}, "execution provider cpu has no options"},
		{"a second library", onnx.Options{Library: "/lib/other.so"}, "a process cannot load /lib/other.so as well"},
	} {
		_, err := onnx.Open(tt.options)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v; want %q", tt.name, err, tt.want)
		}
	}
	// The same library with other threads is another runtime of the same process.
	if r, err := onnx.Open(onnx.Options{Library: library, IntraThreads: 2, NoArena: true}); err != nil || r.Version() == "" {
		t.Errorf("a second runtime: %v", err)
	}
}

// A machine without a GPU says so, by the provider's name, before any work is
// taken.
func TestOpen_ProviderThatIsNotThere(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/driver/nvidia"); err == nil {
		return // it may well be there
	}
	for _, provider := range []string{onnx.CUDA, onnx.TensorRT} {
		_, err := onnx.Open(onnx.Options{Library: onnxtest.Library(t), Provider: provider})
		if err == nil || !strings.Contains(err.Error(), "execution provider "+provider+" is not there") || !strings.Contains(err.Error(), "choose provider cpu") {
			t.Errorf("%s: %v", provider, err)
		}
	}
}

func TestOpen_LibraryThatIsNone(t *testing.T) {
	t.Parallel()
	text := filepath.Join(t.TempDir(), "libonnxruntime.so")
	if err := os.WriteFile(text, []byte("not a library"), 0o600); err != nil {
		t.Fatal(err)
	}
	for library, want := range map[string]string{
		text:                         text + " is no ONNX Runtime library of version 1.24 or newer",
		"/nowhere/libonnxruntime.so": "/nowhere/libonnxruntime.so: no such file",
		"libc.so.6":                  "libc.so.6 is no ONNX Runtime library",
		onnxtest.Library(t):          "",
	} {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), openOnly+"="+library)
		out, err := cmd.Output()
		exit, ended := errors.AsType[*exec.ExitError](err)
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: %v, %s", library, err, out)
		case want != "" && (!ended || exit.ExitCode() != 3 || !strings.Contains(string(out), want)):
			t.Errorf("%s: %v, %s; want %q", library, err, out, want)
		}
	}
}

func TestLoad_Refuses(t *testing.T) {
	t.Parallel()
	r := open(t)
	dir := t.TempDir()
	rec := onnxtest.Recogniser()
	manifest := rec.Write(t, dir)
	lines := onnxtest.LineModel().Write(t, dir)
	write := func(name string, data []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("truncated.onnx", rec.File[:len(rec.File)/2])
	other := slices.Clone(rec.File)
	other[len(other)-1]++
	write("other.onnx", other)
	write("garbage.onnx", []byte("no model"))

	for _, tt := range []struct {
		name   string
		change func(*model.Manifest, *onnx.Model)
		want   string
	}{
		{"no file", func(_ *model.Manifest, o *onnx.Model) { o.File = "none.onnx" }, "none.onnx: no such file"},
		{"a truncated file", func(_ *model.Manifest, o *onnx.Model) { o.File = "truncated.onnx" }, "truncated.onnx is truncated"},
		{"a longer file", func(_ *model.Manifest, o *onnx.Model) { o.Size-- }, "is another file: "},
		{"one byte differs", func(_ *model.Manifest, o *onnx.Model) { o.File = "other.onnx" }, "other.onnx is another file: its sha256 is "},
		{"no ONNX file", func(_ *model.Manifest, o *onnx.Model) {
			o.File, o.Size = "garbage.onnx", 8
			o.SHA256 = "f62c7d17e241fe5c5c0c64d2e32ab6e3bd10547a9c02977cc126acc0fe6e6554"
		}, "garbage.onnx cannot be read as ONNX: "},
		{"an input of another name", func(_ *model.Manifest, o *onnx.Model) { o.Input = "image" }, `it has no input "image", only ["x"]`},
		{"an output of another name", func(_ *model.Manifest, o *onnx.Model) { o.Output = "y" }, `it has no output "y", only ["softmax"]`},
		{
			"a charset that is too short", func(m *model.Manifest, o *onnx.Model) {
				m.Charset = m.Charset[1:]
				o.OutputDims = m.Contract().OutputDims
			},
			`output "softmax": dimension 2 (classes: 25 of the charset, a blank, a space) is 28, not 27`,
		},
		{
			"a layout of fewer dimensions", func(m *model.Manifest, o *onnx.Model) {
				m.Input.Layout = "NHW"
				o.InputDims = m.Contract().InputDims
			},
			`input "x" has 4 dimensions [-1 3 48 -1], not 3 (batch, height, width)`,
		},
		{
			"a fixed size where it must be free", func(m *model.Manifest, o *onnx.Model) {
				m.Canvas = model.Canvas{Fit: model.FitLongSide, Side: 960, Multiple: 32}
				o.InputDims = m.Contract().InputDims
			},
			`dimension 2 (height) is fixed to 48, but must be free`,
		},
		{
			"lines for a recogniser", func(m *model.Manifest, o *onnx.Model) {
				*m, *o = lines, onnx.Model(lines.Contract())
				o.OutputDims = manifest.Contract().OutputDims
			},
			`output "output" has 4 dimensions [-1 1 512 512], not 3`,
		},
		{
			"a size that only running shows", func(_ *model.Manifest, o *onnx.Model) { o.OutputDims[1].Size = 5 },
			"output: dimension 1 (time steps) is 4, not 5",
		},
	} {
		m := rec.Manifest
		o := onnx.Model(m.Contract())
		tt.change(&m, &o)
		s, err := r.Load(o, dir)
		if err == nil {
			t.Errorf("%s: it is loaded: %v", tt.name, s.Close())
		} else if !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "model "+o.Name+": ") {
			t.Errorf("%s: %v; want %q, and the model's name", tt.name, err, tt.want)
		}
	}
}

// page is white with black rectangles.
func page(width, height int, black ...image.Rectangle) *image.Gray {
	p := image.NewGray(image.Rect(0, 0, width, height))
	draw.Draw(p, p.Bounds(), image.White, image.Point{}, draw.Src)
	for _, r := range black {
		draw.Draw(p, r, image.Black, image.Point{}, draw.Src)
	}
	return p
}

// The small detectors mark exactly what is black, up to the edge.
func TestSession_Lines(t *testing.T) {
	t.Parallel()
	bars := []image.Rectangle{image.Rect(40, 60, 400, 90), image.Rect(0, 200, 512, 230), image.Rect(100, 480, 300, 512)}
	for _, tt := range []struct {
		model onnxtest.Model
		above float32 // what a pixel of a line has at least
	}{
		{onnxtest.Detector(), 0.5},
		{onnxtest.LineModel(), 0},
	} {
		m := tt.model.Manifest
		s := load(t, tt.model)
		out := run(t, s, m, page(512, 512), page(512, 512, bars...))
		if want := []int64{2, 1, 512, 512}; !slices.Equal(out.Shape, want) {
			t.Fatalf("%s: output %v, not %v", m.Name, out.Shape, want)
		}
		for i, v := range out.Data {
			n, x, y := i/(512*512), i%512, i/512%512
			// Corners are a matter of definition, edges are not.
			black := slices.ContainsFunc(bars, func(r image.Rectangle) bool { return image.Pt(x, y).In(r) })
			near := slices.ContainsFunc(bars, func(r image.Rectangle) bool {
				return image.Pt(x, y).In(r.Inset(-2)) && !image.Pt(x, y).In(r.Inset(2)) && (x-r.Min.X)*(x-r.Max.X) > -2*r.Dx()
			})
			if !near && (v > tt.above) != (n == 1 && black) {
				t.Fatalf("%s: picture %d has %v at %d,%d; black: %v", m.Name, n, v, x, y, black)
			}
		}
	}
}

// Every family reads what is drawn for it, whatever stands beside it in a
// batch. Easter2's width makes as many time steps as classes.
func TestSession_Text(t *testing.T) {
	t.Parallel()
	easter := onnxtest.Easter2(32, 29*onnxtest.Step)
	if easter.Manifest.Classes() != 29 {
		t.Fatalf("%d classes are not as many as time steps", easter.Manifest.Classes())
	}
	for _, tt := range []struct {
		model         onnxtest.Model
		height, width int
		lines         [][]string
		want          []string
	}{
		{
			onnxtest.Recogniser(), 48, 320,
			[][]string{strings.Split("the motion passed", ""), strings.Split("aabbzz", ""), nil},
			[]string{"the motion passed", "aabbzz", ""},
		},
		{easter, 32, 29 * onnxtest.Step, [][]string{strings.Split("bkra shis", ""), {"d", "'"}}, []string{"bkra shis", "d'"}},
		{onnxtest.CRNN(32, 160), 32, 160, [][]string{{"བསྒྲུ", "བས", "།", " ", "ཀ"}, {"ཁ"}}, []string{"བསྒྲུབས། ཀ", "ཁ"}},
	} {
		m := tt.model.Manifest
		s := load(t, tt.model)
		var pictures []*image.Gray
		for i, labels := range tt.lines {
			picture := onnxtest.Line(m, tt.height, tt.width, labels...)
			pictures = append(pictures, picture)
			if got := text(t, m, run(t, s, m, picture), 0); got != tt.want[i] {
				t.Errorf("%s reads %q, not %q", m.Name, got, tt.want[i])
			}
		}
		slices.Reverse(pictures)
		out := run(t, s, m, pictures...)
		for i, want := range tt.want {
			if got := text(t, m, out, len(pictures)-1-i); got != want {
				t.Errorf("%s in a batch reads %q, not %q", m.Name, got, want)
			}
		}
	}
}

func TestSession_RefusesInput(t *testing.T) {
	t.Parallel()
	s := load(t, onnxtest.Recogniser())
	for _, tt := range []struct {
		shape []int64
		count int
		want  string
	}{
		{[]int64{1, 3, 48}, 144, "input has 3 dimensions [1 3 48], not 4 (batch, channels, height, width)"},
		{[]int64{1, 1, 48, 32}, 48 * 32, "dimension 1 (channels) is 1, not 3"},
		{[]int64{1, 3, 48, 33}, 3 * 48 * 33, "dimension 3 (width) is 33, no multiple of 32"},
		{[]int64{0, 3, 48, 32}, 0, "dimension 0 (batch) cannot be 0"},
		{[]int64{1 << 40, 3, 48, 1 << 40}, 0, "dimension 0 (batch) cannot be"},
		{[]int64{1, 3, 48, 32}, 7, "7 numbers do not fill the shape [1 3 48 32]"},
	} {
		_, err := s.Run(t.Context(), onnx.Tensor{Shape: tt.shape, Data: make([]float32, tt.count)})
		if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "model test-recogniser: ") {
			t.Errorf("%v: %v; want %q", tt.shape, err, tt.want)
		}
	}
}

// Closing waits for runs under way; after it, runs say so.
func TestSession_CloseWhileRunning(t *testing.T) {
	t.Parallel()
	small := onnxtest.Recogniser()
	s := load(t, small)
	shape, data, err := small.Manifest.Tensor(onnxtest.Line(small.Manifest, 48, 320, "a"))
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for {
				out, err := s.Run(t.Context(), onnx.Tensor{Shape: shape, Data: data})
				if err != nil {
					if !strings.Contains(err.Error(), "the session is closed") {
						t.Error(err)
					}
					return
				}
				if got := text(t, small.Manifest, out, 0); got != "a" {
					t.Errorf("read %q", got)
				}
			}
		})
	}
	if err := errors.Join(s.Close(), s.Close()); err != nil {
		t.Error(err)
	}
	all.Wait()
}

// A run that takes long ends when its context does, and the session goes on.
func TestSession_Cancelled(t *testing.T) {
	t.Parallel()
	m, s := shipped(t, model.DefaultLineDetection)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	shape, data, err := m.Tensor(page(1920, 1920))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Run(ctx, onnx.Tensor{Shape: shape, Data: data}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, not the end of the context", err)
	}
	if _, err := s.Run(ctx, onnx.Tensor{Shape: shape, Data: data}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("after the end: %v", err)
	}
	run(t, s, m, page(64, 64))
}

// shipped loads one of the default models.
func shipped(t testing.TB, name string) (model.Manifest, *onnx.Session) {
	t.Helper()
	m, err := model.Named(name)
	if err != nil {
		t.Fatal(err)
	}
	return m, loadFrom(t, m, onnxtest.Dir(t))
}

// The default models find a printed line and read it.
func TestDefaultModels(t *testing.T) {
	t.Parallel()
	const said = "The motion passed 7-0."
	typeface, err := opentype.Parse(goregular.TTF)
	if err != nil {
		t.Fatal(err)
	}
	face, err := opentype.NewFace(typeface, &opentype.FaceOptions{Size: 32, DPI: 72})
	if err != nil {
		t.Fatal(err)
	}
	paper := page(960, 480)
	pen := font.Drawer{Dst: paper, Src: image.NewUniform(color.Black), Face: face, Dot: fixed.P(200, 240)}
	pen.DrawString(said)
	ink := image.Rect(200, 215, pen.Dot.X.Ceil(), 247)

	det, s := shipped(t, model.DefaultLineDetection)
	found := run(t, s, det, paper)
	var box image.Rectangle
	for i, v := range found.Data {
		if float64(v) > det.Regions.Threshold {
			at := image.Pt(i%960, i/960)
			box = box.Union(image.Rectangle{Min: at, Max: at.Add(image.Pt(1, 1))})
		}
	}
	if box.Empty() || !box.In(ink.Inset(-8)) || box.Dx() < ink.Dx()*9/10 {
		t.Fatalf("text is found in %v; it is in %v", box, ink)
	}

	rec, s := shipped(t, model.DefaultOCR)
	box = box.Inset(-int(float64(box.Dx()*box.Dy())/float64(2*(box.Dx()+box.Dy()))*det.Regions.Unclip) / 2)
	width := (box.Dx() + 31) / 32 * 32
	line := page(width, 48)
	draw.Draw(line, image.Rect(0, 0, box.Dx(), box.Dy()).Add(image.Pt(0, (48-box.Dy())/2)), paper, box.Min, draw.Src)
	if got := text(t, rec, run(t, s, rec, line), 0); got != said {
		t.Errorf("read %q, not %q", got, said)
	}
}

// What a page of 960 pixels and a line of 1280 take, also in CPU time, which
// other work on the machine disturbs less.
func BenchmarkRun(b *testing.B) {
	for name, size := range map[string]image.Point{model.DefaultLineDetection: {768, 960}, model.DefaultOCR: {1280, 48}} {
		b.Run(name, func(b *testing.B) {
			m, s := shipped(b, name)
			shape, data, err := m.Tensor(page(size.X, size.Y))
			if err != nil {
				b.Fatal(err)
			}
			var before, after syscall.Rusage
			if err := syscall.Getrusage(syscall.RUSAGE_SELF, &before); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				if _, err := s.Run(b.Context(), onnx.Tensor{Shape: shape, Data: data}); err != nil {
					b.Fatal(err)
				}
			}
			if err := syscall.Getrusage(syscall.RUSAGE_SELF, &after); err != nil {
				b.Fatal(err)
			}
			spent := after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()
			b.ReportMetric(float64(spent)/1e6/float64(b.N), "cpu-ms/op")
		})
	}
}
