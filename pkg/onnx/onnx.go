// Package onnx runs neural networks with ONNX Runtime, a shared library that is
// found at a given path when the program runs. It is the only package that
// needs cgo; built without, it compiles, and Open says so. It knows tensors and
// files, not what they mean: what a model must look like is told by a [Model],
// and a file that is or does otherwise is refused when it is loaded.
package onnx

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Execution providers: what a session computes on.
const (
	CPU      = "cpu"
	CUDA     = "cuda"
	TensorRT = "tensorrt" // and CUDA for what it does not know
)

// Options says where the library is and how sessions compute.
type Options struct {
	// Library is the path of libonnxruntime, of version 1.24 or newer; a name
	// without a slash is looked for as the system does. All runtimes of a
	// process share it.
	Library string
	// Provider is CPU, CUDA or TensorRT; empty is CPU.
	Provider string
	// ProviderOptions are the provider's own, by ONNX Runtime's names:
	// device_id, gpu_mem_limit, trt_engine_cache_path… The CPU has none.
	ProviderOptions map[string]string
	// IntraThreads is the number of CPU threads of one run; 0 is 1. Sessions
	// of their own make better use of cores than threads within one.
	IntraThreads int
	// NoArena gives memory back after each run instead of keeping it for the
	// next. It saves memory while nothing runs and costs up to half the speed.
	NoArena bool
}

func (o Options) validate() error {
	var errs []error
	if o.Library == "" {
		errs = append(errs, errors.New("no ONNX Runtime library is configured: give the path of libonnxruntime"))
	}
	if providers := []string{CPU, CUDA, TensorRT}; !slices.Contains(providers, o.provider()) {
		errs = append(errs, fmt.Errorf("execution provider %q is none of %s", o.Provider, strings.Join(providers, ", ")))
	}
	if o.IntraThreads < 0 {
		errs = append(errs, fmt.Errorf("%d threads is below 0", o.IntraThreads))
	}
	if o.provider() == CPU && len(o.ProviderOptions) > 0 {
		errs = append(errs, errors.New("execution provider cpu has no options"))
	}
	return errors.Join(errs...)
}

func (o Options) provider() string { return cmp.Or(o.Provider, CPU) }

// Dim is what a tensor's dimension must be: Size, or, when that is 0, any
// multiple of Multiple (0 is as 1). Name says what it counts, for messages.
type Dim = struct {
	Name           string
	Size, Multiple int64
}

// Model is what a model file must be. Its one input and the output that is
// read hold numbers of 32 bits.
type Model struct {
	Name, File, SHA256 string
	Size               int64 // of the file, in bytes
	Input, Output      string
	InputDims          []Dim
	OutputDims         []Dim
}

// Tensor holds numbers in row-major order.
type Tensor struct {
	Shape []int64
	Data  []float32
}

// read reads the model's file from the folder and checks that it is the very
// one.
func (m *Model) read(dir string) ([]byte, error) {
	path := filepath.Join(dir, m.File)
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("model %s: %w", m.Name, err)
	}
	defer file.Close()
	info, err := file.Stat()
	switch {
	case err != nil:
		return nil, fmt.Errorf("model %s: %w", m.Name, err)
	case info.Size() < m.Size:
		return nil, fmt.Errorf("model %s: %s is truncated: %d bytes of %d; fetch it again", m.Name, path, info.Size(), m.Size)
	case info.Size() > m.Size:
		return nil, fmt.Errorf("model %s: %s is another file: %d bytes, not %d; fetch it again", m.Name, path, info.Size(), m.Size)
	}
	data := make([]byte, m.Size)
	if _, err := file.ReadAt(data, 0); err != nil {
		return nil, fmt.Errorf("model %s: read %s: %w", m.Name, path, err)
	}
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != m.SHA256 {
		return nil, fmt.Errorf("model %s: %s is another file: its sha256 is %x, not %s; fetch it again", m.Name, path, sum, m.SHA256)
	}
	return data, nil
}

// port is an input or output as a model file declares it.
type port struct {
	name  string
	float bool    // a tensor of float32
	kind  string  // what it is, in words
	shape []int64 // below 0: not fixed
}

// agree checks what a file declares against what the model must be.
func (m *Model) agree(inputs, outputs []port) error {
	return errors.Join(
		m.agreeOn("input", m.Input, m.InputDims, inputs),
		m.agreeOn("output", m.Output, m.OutputDims, outputs),
	)
}

func (m *Model) agreeOn(what, name string, dims []Dim, found []port) error {
	i := slices.IndexFunc(found, func(p port) bool { return p.name == name })
	if i < 0 {
		names := make([]string, len(found))
		for i, p := range found {
			names[i] = p.name
		}
		return fmt.Errorf("model %s: it has no %s %q, only %q", m.Name, what, name, names)
	}
	if what == "input" && len(found) > 1 {
		return fmt.Errorf("model %s: it has %d inputs, not 1", m.Name, len(found))
	}
	p := found[i]
	if !p.float {
		return fmt.Errorf("model %s: %s %q holds %s, not float32", m.Name, what, name, p.kind)
	}
	if len(p.shape) != len(dims) {
		return fmt.Errorf("model %s: %s %q has %d dimensions %v, not %d (%s)", m.Name, what, name, len(p.shape), p.shape, len(dims), names(dims))
	}
	var errs []error
	for i, d := range dims {
		got := p.shape[i]
		switch {
		case got < 0: // found out by running it
		case d.Size > 0 && got != d.Size:
			errs = append(errs, fmt.Errorf("model %s: %s %q: dimension %d (%s) is %d, not %d", m.Name, what, name, i, d.Name, got, d.Size))
		case d.Size == 0 && d.Name != "batch" && what == "input":
			errs = append(errs, fmt.Errorf("model %s: %s %q: dimension %d (%s) is fixed to %d, but must be free", m.Name, what, name, i, d.Name, got))
		}
	}
	return errors.Join(errs...)
}

// check checks a tensor against the dimensions that it must have.
func (m *Model) check(what string, t Tensor, dims []Dim) error {
	if len(t.Shape) != len(dims) {
		return fmt.Errorf("model %s: %s has %d dimensions %v, not %d (%s)", m.Name, what, len(t.Shape), t.Shape, len(dims), names(dims))
	}
	total := int64(1)
	for i, got := range t.Shape {
		d := dims[i]
		switch multiple := max(d.Multiple, 1); {
		case d.Size > 0 && got != d.Size:
			return fmt.Errorf("model %s: %s: dimension %d (%s) is %d, not %d", m.Name, what, i, d.Name, got, d.Size)
		case got <= 0 || got > maxNumbers/total:
			return fmt.Errorf("model %s: %s: dimension %d (%s) cannot be %d", m.Name, what, i, d.Name, got)
		case d.Size == 0 && got%multiple != 0:
			return fmt.Errorf("model %s: %s: dimension %d (%s) is %d, no multiple of %d", m.Name, what, i, d.Name, got, multiple)
		}
		total *= got
	}
	if total != int64(len(t.Data)) {
		return fmt.Errorf("model %s: %s: %d numbers do not fill the shape %v", m.Name, what, len(t.Data), t.Shape)
	}
	return nil
}

// maxNumbers is how many numbers a tensor may hold: 8 GiB of them.
const maxNumbers = 1 << 31

// sample is the smallest input that the model takes, all zero.
func (m *Model) sample() Tensor {
	t := Tensor{}
	total := int64(1)
	for _, d := range m.InputDims {
		n := d.Size
		if n == 0 {
			n = max(d.Multiple, 1)
		}
		t.Shape = append(t.Shape, n)
		total *= n
	}
	t.Data = make([]float32, total)
	return t
}

func names(dims []Dim) string {
	all := make([]string, len(dims))
	for i, d := range dims {
		all[i], _, _ = strings.Cut(d.Name, ":")
	}
	return strings.Join(all, ", ")
}
