package onnx

import (
	"encoding/binary"
	"math"
	"slices"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/reeve-pipeline/reeve/pkg/onnxtest"
)

// file is an ONNX file with one tensor of a type, as an initializer and in an
// attribute of a node.
func file(kind uint64, numbers ...float32) []byte {
	message := func(num int, inner []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, protowire.Number(num), protowire.BytesType), inner)
	}
	var raw []byte
	for _, v := range numbers {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(v))
	}
	tensor := protowire.AppendVarint(protowire.AppendTag(nil, 2, protowire.VarintType), kind)
	tensor = append(tensor, message(9, raw)...)
	return message(7, slices.Concat(message(5, tensor), message(1, message(5, message(5, tensor)))))
}

func TestFlush(t *testing.T) {
	t.Parallel()
	const float, int32s = 1, 6
	tiny := math.Float32frombits(3) // not normal
	for _, tt := range []struct {
		name       string
		kind       uint64
		have, want []float32
	}{
		{"dead weights among others", float, []float32{1, -2, tiny, -tiny, 1e-19, -1e-19, 1e-17}, []float32{1, -2, 0, 0, 0, 0, 1e-17}},
		{"a tensor of only small ones", float, []float32{1e-30, -2e-30}, []float32{1e-30, -2e-30}},
		{"an infinite one says nothing", float, []float32{1, float32(math.Inf(-1))}, []float32{1, float32(math.Inf(-1))}},
		{"no floats", int32s, []float32{1, tiny}, []float32{1, tiny}},
	} {
		have := file(tt.kind, tt.have...)
		flush(have)
		if want := file(tt.kind, tt.want...); !slices.Equal(have, want) {
			t.Errorf("%s:\n%x, not\n%x", tt.name, have, want)
		}
	}
}

// Whatever the bytes, they are only looked at and never outgrown.
func FuzzRewrite(f *testing.F) {
	whole := file(1, 1, 1e-30)
	for i := range whole {
		f.Add(whole[:i])
	}
	f.Add(onnxtest.CRNN(8, 8).File)
	f.Fuzz(func(_ *testing.T, data []byte) { flush(fuse(data)) })
}
