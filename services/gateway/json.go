package gateway

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// codec is the JSON of the API: what [Plain] makes of an answer, and of a
// request every field by its name in the definition or in JSON's camelCase. A
// field that there is not is an error, since a typo must not be a default.
type codec string

// codecs are the content types that it stands for.
var codecs = []codec{"json", "json; charset=utf-8"}

// Name implements [connect.Codec].
func (c codec) Name() string { return string(c) }

// Marshal implements [connect.Codec].
func (codec) Marshal(v any) ([]byte, error) {
	m, ok := v.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("%T is no message", v)
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(Plain(m))
	return b.Bytes(), err
}

// Unmarshal implements [connect.Codec].
func (codec) Unmarshal(b []byte, v any) error {
	m, ok := v.(proto.Message)
	if !ok {
		return fmt.Errorf("%T is no message", v)
	}
	return protojson.Unmarshal(b, m)
}

// Plain turns a message into what encoding/json prints the way a script wants
// it: the names of the definition, numbers as numbers, times by RFC 3339, every
// field present.
func Plain(m proto.Message) any { return plain(m.ProtoReflect()) }

func plain(m protoreflect.Message) any {
	switch v := m.Interface().(type) {
	case *timestamppb.Timestamp:
		return v.AsTime().Format(time.RFC3339Nano)
	case *structpb.Struct:
		return v.AsMap()
	}
	out := map[string]any{}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		name, value := string(f.Name()), m.Get(f)
		switch {
		case f.IsList():
			list := make([]any, value.List().Len())
			for j := range list {
				list[j] = scalar(f, value.List().Get(j))
			}
			out[name] = list
		case f.IsMap():
			all := map[string]any{}
			value.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				all[k.String()] = scalar(f.MapValue(), v)
				return true
			})
			out[name] = all
		case f.Message() != nil && !m.Has(f):
			out[name] = nil
		default:
			out[name] = scalar(f, value)
		}
	}
	return out
}

func scalar(f protoreflect.FieldDescriptor, v protoreflect.Value) any {
	switch {
	case f.Message() != nil:
		return plain(v.Message())
	case f.Enum() != nil:
		return string(f.Enum().Values().ByNumber(v.Enum()).Name())
	}
	return v.Interface()
}
