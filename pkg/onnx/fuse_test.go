//go:build cgo

package onnx

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	ort "github.com/yalue/onnxruntime_go"

	"github.com/reeve-pipeline/reeve/pkg/model"
	"github.com/reeve-pipeline/reeve/pkg/onnxtest"
)

// operators counts a file's steps by what they do.
func operators(file []byte) map[string]int {
	count := map[string]int{}
	inside(file, func(op []byte) { count[string(op)]++ }, modelGraph, graphNode, nodeOp)
	return count
}

// open makes a session of the file as it is.
func open(t testing.TB, m *model.Manifest, file []byte) *Session {
	t.Helper()
	r, err := Open(Options{Library: onnxtest.Library(t)})
	if err != nil {
		t.Fatal(err)
	}
	settings, err := r.settings()
	if err != nil {
		t.Fatal(err)
	}
	defer release(settings)
	native, err := ort.NewDynamicAdvancedSessionWithONNXData(file, []string{m.Input.Name}, []string{m.Output.Name}, settings)
	if err != nil {
		t.Fatal(err)
	}
	s := &Session{model: Model(m.Contract()), native: native}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// The default models lose their activations in pieces and their loose scales,
// and say the same but for rounding.
func TestFuse_DefaultModels(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		shape []int64
		clips int
	}{
		{model.DefaultOCR, []int64{1, 3, 48, 320}, 28},
		{model.DefaultLineDetection, []int64{1, 3, 160, 96}, 24},
	} {
		m, err := model.Named(tt.name)
		if err != nil {
			t.Fatal(err)
		}
		file, err := os.ReadFile(filepath.Join(onnxtest.Dir(t), m.File))
		if err != nil {
			t.Fatal(err)
		}
		fused := fuse(file)
		before, after := operators(file), operators(fused)
		if before["Clip"] != tt.clips || after["Clip"] != 0 || after["HardSigmoid"]-before["HardSigmoid"] != tt.clips || after["Conv"] != before["Conv"] {
			t.Errorf("%s: %v became %v", tt.name, before, after)
		}
		t.Logf("%s: Add %d to %d, Mul %d to %d, Div %d to %d, BatchNormalization %d to %d", tt.name, before["Add"], after["Add"],
			before["Mul"], after["Mul"], before["Div"], after["Div"], before["BatchNormalization"], after["BatchNormalization"])
		if again := fuse(fused); !slices.Equal(again, fused) {
			t.Errorf("%s: fusing once more changes it", tt.name)
		}

		input := Tensor{Shape: tt.shape, Data: make([]float32, tt.shape[1]*tt.shape[2]*tt.shape[3])}
		random := rand.New(rand.NewPCG(1, 2))
		for i := range input.Data {
			input.Data[i] = 2*random.Float32() - 1
		}
		want, err := open(t, &m, file).Run(t.Context(), input)
		if err != nil {
			t.Fatal(err)
		}
		flush(fused)
		got, err := open(t, &m, fused).Run(t.Context(), input)
		if err != nil {
			t.Fatal(err)
		}
		for i := range want.Data {
			if math.Abs(float64(want.Data[i]-got.Data[i])) > 1e-4 {
				t.Fatalf("%s: number %d is %v, not %v", tt.name, i, got.Data[i], want.Data[i])
			}
		}
	}
}

// put changes each single number of the file that is from.
func put(file []byte, from, to float32) {
	change := func(tensor []byte) {
		fields(tensor, func(num int, part []byte, _ uint64) {
			if num == tensorRaw && len(part) == 4 && magnitude(part) == from {
				binary.LittleEndian.PutUint32(part, math.Float32bits(to))
			}
		})
	}
	inside(file, change, modelGraph, graphNode, nodeAttribute, attributeTensor)
	inside(file, change, modelGraph, graphInitializer)
}

// What only looks like a hard swish is none.
func TestFuse_OtherNumbers(t *testing.T) {
	t.Parallel()
	whole, err := os.ReadFile(filepath.Join(onnxtest.Dir(t), "en_PP-OCRv4_rec.onnx"))
	if err != nil {
		t.Fatal(err)
	}
	for _, number := range []float32{3, 6} {
		file := slices.Clone(whole)
		put(file, number, number+0.5)
		if before, after := operators(file), operators(fuse(file)); after["Clip"] != before["Clip"] || after["Div"] != before["Div"] {
			t.Errorf("with %v for %v, %v became %v", number+0.5, number, before, after)
		}
	}
}

// What is not one of the patterns stays as it is, byte for byte.
func TestFuse_LeavesTheRest(t *testing.T) {
	t.Parallel()
	for _, m := range []onnxtest.Model{onnxtest.Detector(), onnxtest.LineModel(), onnxtest.Recogniser(), onnxtest.CRNN(32, 64)} {
		if !slices.Equal(fuse(slices.Clone(m.File)), m.File) {
			t.Errorf("%s is changed", m.Manifest.Name)
		}
	}
	if damaged := []byte("no model"); !slices.Equal(fuse(damaged), damaged) {
		t.Error("no model is changed")
	}
}
