package onnx

import (
	"encoding/binary"
	"math"

	"google.golang.org/protobuf/encoding/protowire"
)

// negligible is how small a weight is, compared to the largest of its tensor,
// that cannot change a sum of 32-bit numbers any more.
const negligible = 1e-18

// flush sets to zero, in place, the negligible weights of an ONNX file. The
// channels that a training let die are full of them, down to numbers that are
// not even normal, and with such many processors compute a hundred times as
// slowly: en_PP-OCRv4_rec takes a third of the time without. A file that is
// none is left as it is, for the runtime to complain of.
//
// Weights are the initializers of the graph and the tensors in the attributes
// of its nodes; field numbers are those of onnx.proto3, of the ONNX project.
func flush(file []byte) {
	const graph, node, attribute, tensor, initializer = 7, 1, 5, 5, 5
	inside(file, flushTensor, graph, initializer)
	inside(file, flushTensor, graph, node, attribute, tensor)
}

func flushTensor(tensor []byte) {
	const dataType, float, floatData, rawData = 2, 1, 4, 9
	isFloat := false
	fields(tensor, func(num int, _ []byte, v uint64) {
		isFloat = isFloat || num == dataType && v == float
	})
	if !isFloat {
		return
	}
	fields(tensor, func(num int, numbers []byte, _ uint64) {
		if num != floatData && num != rawData {
			return
		}
		var largest float32
		for i := 0; i+4 <= len(numbers); i += 4 {
			largest = max(largest, magnitude(numbers[i:]))
		}
		if math.IsInf(float64(largest), 0) {
			return // a mask; it says nothing of what is small
		}
		for i := 0; i+4 <= len(numbers); i += 4 {
			if magnitude(numbers[i:]) < largest*negligible {
				clear(numbers[i : i+4])
			}
		}
	})
}

func magnitude(number []byte) float32 {
	return math.Float32frombits(binary.LittleEndian.Uint32(number) &^ (1 << 31))
}

// inside calls f for every message that the path of field numbers leads to.
func inside(message []byte, f func([]byte), path ...int) {
	if len(path) == 0 {
		f(message)
		return
	}
	fields(message, func(num int, part []byte, _ uint64) {
		if num == path[0] && part != nil {
			inside(part, f, path[1:]...)
		}
	})
}

// fields calls f for every field of a message, with its bytes, or with its
// number if it is one. The bytes are a part of the message, never nil.
func fields(message []byte, f func(num int, part []byte, number uint64)) {
	each(message, func(num int, kind protowire.Type, value, _ []byte) {
		switch kind {
		case protowire.BytesType:
			part, _ := protowire.ConsumeBytes(value)
			f(num, part, 0)
		case protowire.VarintType:
			number, _ := protowire.ConsumeVarint(value)
			f(num, nil, number)
		case protowire.Fixed32Type:
			number, _ := protowire.ConsumeFixed32(value)
			f(num, nil, uint64(number))
		default: // not in what is read here
		}
	})
}

// each calls f for every field of a message, as encoded without and with its
// tag, up to the first that is damaged.
func each(message []byte, f func(num int, kind protowire.Type, value, whole []byte)) {
	for len(message) > 0 {
		num, kind, tag := protowire.ConsumeTag(message)
		if tag < 0 {
			return
		}
		n := protowire.ConsumeFieldValue(num, kind, message[tag:])
		if n < 0 {
			return
		}
		f(int(num), kind, message[tag:tag+n], message[:tag+n])
		message = message[tag+n:]
	}
}
