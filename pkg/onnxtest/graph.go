package onnxtest

import (
	"encoding/binary"
	"math"

	"google.golang.org/protobuf/encoding/protowire"
)

// graph is an ONNX model in the making: nodes in order, their constants, and
// its ends. Field numbers are those of onnx.proto3, of the ONNX project.
type graph struct{ body []byte }

// Types of a tensor's elements.
const (
	typeFloat = 1
	typeInt64 = 7
)

// attr is an attribute of a node: a list of whole numbers, or a word.
type attr struct {
	name string
	list []int64
	word string // instead of the list, unless empty
}

// node adds a node and returns the name of its output.
func (g *graph) node(op, output string, inputs []string, attrs ...attr) string {
	var n []byte
	for _, in := range inputs {
		n = field(n, 1, []byte(in))
	}
	n = field(n, 2, []byte(output))
	n = field(n, 4, []byte(op))
	for _, a := range attrs {
		const isString, isInts = 3, 7
		v := field(nil, 1, []byte(a.name))
		if a.word != "" {
			v = number(field(v, 4, []byte(a.word)), 20, isString)
		} else {
			for _, i := range a.list {
				v = number(v, 8, i)
			}
			v = number(v, 20, isInts)
		}
		n = field(n, 5, v)
	}
	g.body = field(g.body, 1, n)
	return output
}

// floats adds a constant and returns its name.
func (g *graph) floats(name string, dims []int64, values []float32) string {
	var raw []byte
	for _, v := range values {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(v))
	}
	return g.constant(name, typeFloat, dims, raw)
}

// ints adds a constant list and returns its name.
func (g *graph) ints(name string, values ...int64) string {
	var raw []byte
	for _, v := range values {
		raw = binary.LittleEndian.AppendUint64(raw, uint64(v))
	}
	return g.constant(name, typeInt64, []int64{int64(len(values))}, raw)
}

func (g *graph) constant(name string, kind int64, dims []int64, raw []byte) string {
	var t []byte
	for _, d := range dims {
		t = number(t, 1, d)
	}
	t = number(t, 2, kind)
	t = field(t, 8, []byte(name))
	t = field(t, 9, raw)
	g.body = field(g.body, 5, t)
	return name
}

// input and output add the ends of the graph. A dimension of 0 is free.
func (g *graph) input(name string, dims ...int64)  { g.end(11, name, dims) }
func (g *graph) output(name string, dims ...int64) { g.end(12, name, dims) }

func (g *graph) end(num protowire.Number, name string, dims []int64) {
	var shape []byte
	for i, d := range dims {
		if d > 0 {
			shape = field(shape, 1, number(nil, 1, d))
		} else {
			shape = field(shape, 1, field(nil, 2, []byte{'d', byte('0' + i)}))
		}
	}
	tensor := field(number(nil, 1, typeFloat), 2, shape)
	v := field(nil, 1, []byte(name))
	v = field(v, 2, field(nil, 1, tensor))
	g.body = field(g.body, num, v)
}

// bytes returns the file.
func (g *graph) bytes() []byte {
	const format, operators = 8, 17 // versions of the file's format and of its operators
	body := field(g.body, 2, []byte("test"))
	file := number(nil, 1, format)
	file = field(file, 7, body)
	return field(file, 8, number(field(nil, 1, nil), 2, operators))
}

func field(b []byte, num protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, num, protowire.BytesType), value)
}

func number(b []byte, num protowire.Number, value int64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, num, protowire.VarintType), uint64(value))
}
