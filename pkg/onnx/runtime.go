//go:build cgo

package onnx

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	ort "github.com/yalue/onnxruntime_go"
)

// loaded is the library that the process has loaded. ONNX Runtime keeps one
// environment a process, from the first Open to the end.
var loaded struct {
	sync.Mutex
	library string
}

// Runtime makes sessions. It may be used from several goroutines.
type Runtime struct{ options Options }

// Open loads the library, unless the process has it already, and makes sure
// that the provider is there. A second runtime may have another provider or
// number of threads, but not another library.
func Open(o Options) (*Runtime, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	if err := load(o.Library); err != nil {
		return nil, err
	}
	r := &Runtime{options: o}
	settings, err := r.settings()
	if err != nil {
		return nil, err
	}
	return r, settings.Destroy()
}

func load(library string) error {
	loaded.Lock()
	defer loaded.Unlock()
	switch loaded.library {
	case library:
		return nil
	case "":
	default:
		return fmt.Errorf("ONNX Runtime is loaded from %s already; a process cannot load %s as well", loaded.library, library)
	}
	if strings.ContainsRune(library, '/') {
		if _, err := os.Stat(library); err != nil {
			return fmt.Errorf("ONNX Runtime library: %w", err)
		}
	}
	ort.SetSharedLibraryPath(library)
	// What it would log comes back as errors.
	if err := ort.InitializeEnvironment(ort.WithLogLevelFatal()); err != nil {
		return fmt.Errorf("%s is no ONNX Runtime library of version 1.%d or newer for this machine: %w", library, oldestMinor, err)
	}
	loaded.library = library
	return nil
}

// oldestMinor is the oldest ONNX Runtime 1.x that has the calls that are used.
const oldestMinor = 24

// Version returns the library's version, such as "1.30.0".
func (r *Runtime) Version() string { return ort.GetVersion() }

// settings returns the settings of a session.
func (r *Runtime) settings() (*ort.SessionOptions, error) {
	s, err := ort.NewSessionOptions()
	if err != nil {
		return nil, err
	}
	err = errors.Join(
		s.SetIntraOpNumThreads(max(r.options.IntraThreads, 1)),
		s.SetInterOpNumThreads(1),
		s.SetCpuMemArena(!r.options.NoArena),
		// A thread that waits must not burn the core that others need.
		s.AddSessionConfigEntry("session.intra_op.allow_spinning", "0"),
	)
	if err == nil {
		err = r.provide(s)
	}
	if err != nil {
		return nil, errors.Join(err, s.Destroy())
	}
	return s, nil
}

// provide adds the execution provider to the settings of a session.
func (r *Runtime) provide(s *ort.SessionOptions) error {
	provider, own := r.options.provider(), r.options.ProviderOptions
	var err error
	switch provider {
	case CPU:
		return nil
	case TensorRT:
		if err = tensorRT(s, own); err == nil {
			err = cuda(s, nil)
		}
	default:
		err = cuda(s, own)
	}
	if err != nil {
		return fmt.Errorf("execution provider %s is not there: %w; it needs an NVIDIA driver and a GPU build of ONNX Runtime %s "+
			"with libonnxruntime_providers_%s.so and its libraries beside %s; without them, choose provider cpu",
			provider, err, ort.GetVersion(), provider, r.options.Library)
	}
	return nil
}

func cuda(s *ort.SessionOptions, own map[string]string) error {
	o, err := ort.NewCUDAProviderOptions()
	if err != nil {
		return err
	}
	defer release(o)
	if err := o.Update(own); err != nil {
		return err
	}
	return s.AppendExecutionProviderCUDA(o)
}

func tensorRT(s *ort.SessionOptions, own map[string]string) error {
	o, err := ort.NewTensorRTProviderOptions()
	if err != nil {
		return err
	}
	defer release(o)
	if err := o.Update(own); err != nil {
		return err
	}
	return s.AppendExecutionProviderTensorRT(o)
}

// Load loads the model from the folder. It refuses a file that is not the very
// one by its digest, or whose inputs, outputs, dimensions or classes are not
// the model's, and runs it once on nothing, which finds out what the file
// leaves open and takes the first run's delay.
//
// In memory, the file is first rewritten to compute the same faster: see fuse
// and flush.
func (r *Runtime) Load(m Model, dir string) (*Session, error) {
	data, err := m.read(dir)
	if err != nil {
		return nil, err
	}
	data = fuse(data)
	flush(data)
	inputs, outputs, err := ort.GetInputOutputInfoWithONNXData(data)
	if err != nil {
		return nil, fmt.Errorf("model %s: %s cannot be read as ONNX: %w", m.Name, m.File, err)
	}
	if err := m.agree(ports(inputs), ports(outputs)); err != nil {
		return nil, err
	}
	settings, err := r.settings()
	if err != nil {
		return nil, err
	}
	defer release(settings)
	native, err := ort.NewDynamicAdvancedSessionWithONNXData(data, []string{m.Input}, []string{m.Output}, settings)
	if err != nil {
		return nil, fmt.Errorf("model %s: open on %s: %w", m.Name, r.options.provider(), err)
	}
	s := &Session{model: m, native: native}
	if _, err := s.Run(context.Background(), m.sample()); err != nil {
		return nil, errors.Join(fmt.Errorf("first run: %w", err), s.Close())
	}
	return s, nil
}

func ports(infos []ort.InputOutputInfo) []port {
	all := make([]port, len(infos))
	for i, info := range infos {
		isTensor := info.OrtValueType == ort.ONNXTypeTensor
		all[i] = port{
			name:  info.Name,
			float: isTensor && info.DataType == ort.TensorElementDataTypeFloat,
			kind:  info.OrtValueType.String(),
			shape: info.Dimensions,
		}
		if isTensor {
			all[i].kind = info.DataType.String()
		}
	}
	return all
}

// Session is a loaded model. Calls of one session take turns: give each worker
// its own.
type Session struct {
	model Model

	mu     sync.Mutex
	native *ort.DynamicAdvancedSession // nil once closed
}

// Run runs the model. It returns soon after ctx ends, with the error of ctx.
// The input is only read; the output is the caller's.
func (s *Session) Run(ctx context.Context, input Tensor) (Tensor, error) {
	if err := s.model.check("input", input, s.model.InputDims); err != nil {
		return Tensor{}, err
	}
	if err := ctx.Err(); err != nil {
		return Tensor{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.native == nil {
		return Tensor{}, fmt.Errorf("model %s: the session is closed", s.model.Name)
	}
	output, err := s.run(ctx, input)
	if err != nil {
		if ctx.Err() != nil {
			return Tensor{}, ctx.Err()
		}
		return Tensor{}, fmt.Errorf("model %s: run on %v: %w", s.model.Name, input.Shape, err)
	}
	return output, s.model.check("output", output, s.model.OutputDims)
}

func (s *Session) run(ctx context.Context, input Tensor) (Tensor, error) {
	in, err := ort.NewTensor(ort.NewShape(input.Shape...), input.Data)
	if err != nil {
		return Tensor{}, err
	}
	defer release(in)
	options, err := ort.NewRunOptions()
	if err != nil {
		return Tensor{}, err
	}
	defer release(options)
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		_ = options.Terminate() // then the run just takes its time
	})
	out := []ort.Value{nil}
	err = s.native.RunWithOptions([]ort.Value{in}, out, options)
	if !stop() {
		<-interrupted // before the options go
	}
	if err != nil {
		return Tensor{}, err
	}
	defer release(out[0])
	numbers, ok := out[0].(*ort.Tensor[float32])
	if !ok {
		return Tensor{}, errors.New("the output is no tensor of float32")
	}
	return Tensor{Shape: numbers.GetShape(), Data: numbers.GetData()}, nil
}

// Close gives the session's memory back, after a run that is under way. A
// second Close does nothing.
func (s *Session) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.native == nil {
		return nil
	}
	native := s.native
	s.native = nil
	return native.Destroy()
}

// release gives back what the library allocated. It errs only for what was
// never allocated.
func release(v interface{ Destroy() error }) { _ = v.Destroy() }
