package onnx

import (
	"encoding/binary"
	"math"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// fuse rewrites an ONNX file to compute the same in fewer steps; numbers
// differ by the rounding of 32 bits. It knows three habits of PaddlePaddle's
// exporter that the runtime does not see through:
//
//   - x·clip(x+3, 0, 6)/6, four steps, is x·hardsigmoid(x), two;
//   - a convolution followed by ·s and +t, where s and t are single numbers,
//     is a convolution with other weights and another bias;
//   - ·s and +t before a convolution are the same if it does not pad, and
//     otherwise one batch normalisation, which, unlike the two, the runtime
//     does without leaving its blocked layout.
//
// A file without them, or that it does not understand, comes back as it is.
func fuse(file []byte) []byte {
	f := fuser{
		constants: map[string]constant{}, makers: map[string]*step{}, users: map[string][]*step{},
	}
	if !f.parse(file) {
		return file
	}
	for _, s := range f.steps {
		if s.op == "Clip" {
			f.hardSwish(s)
		}
	}
	for _, s := range f.steps {
		if s.op == "Conv" && len(s.out) == 1 {
			f.after(s)
			f.before(s)
		}
	}
	if !f.changed {
		return file
	}
	return f.bytes()
}

// Field numbers of onnx.proto3, of the ONNX project.
const (
	modelGraph, modelOperators = 7, 8

	graphNode, graphInitializer, graphOutput = 1, 5, 12

	valueName = 1

	nodeInput, nodeOutput, nodeOp, nodeAttribute = 1, 2, 4, 5

	attributeName, attributeFloat, attributeTensor = 1, 2, 5
	attributeInt, attributeInts                    = 3, 8
	attributeGraph, attributeGraphs, attributeKind = 6, 11, 20

	tensorDims, tensorType, tensorFloats, tensorName, tensorRaw = 1, 2, 4, 8, 9
)

// step is a node of the graph.
type step struct {
	op         string
	in, out    []string
	attributes []attribute
	raw        []byte // the node in the file; nil once it is another
}

// constant is a tensor of 32-bit numbers that the file holds.
type constant struct {
	dims   []int64
	values []float32
}

// fuser is a graph while it is rewritten.
type fuser struct {
	steps     []*step // a step that is gone has no op
	constants map[string]constant
	makers    map[string]*step   // by what they make
	users     map[string][]*step // by what they use; nil for the graph's output
	made      []string           // new constants, by name
	model     []byte             // all of the file but the graph
	graph     []byte             // all of the graph but its nodes
	changed   bool
}

// parse reads the file and reports whether it may be rewritten: not when some
// of its steps hold graphs of their own, which may use anything.
func (f *fuser) parse(file []byte) bool {
	simple := true
	each(file, func(num int, _ protowire.Type, value, whole []byte) {
		if num == modelOperators {
			operators, _ := protowire.ConsumeBytes(value)
			simple = modern(operators) && simple
		}
		if num != modelGraph {
			f.model = append(f.model, whole...)
			return
		}
		graph, _ := protowire.ConsumeBytes(value)
		each(graph, func(num int, _ protowire.Type, value, whole []byte) {
			part, _ := protowire.ConsumeBytes(value)
			switch num {
			case graphNode:
				simple = f.addStep(part) && simple
				return
			case graphInitializer:
				f.addConstant("", part)
			case graphOutput:
				fields(part, func(num int, name []byte, _ uint64) {
					if num == valueName {
						f.users[string(name)] = append(f.users[string(name)], nil)
					}
				})
			}
			f.graph = append(f.graph, whole...)
		})
	})
	return simple
}

// modern reports whether a set of operators is not so old that they meant
// something else.
func modern(operators []byte) bool {
	const oldest = 7
	domain, version := "", uint64(0)
	fields(operators, func(num int, part []byte, number uint64) {
		if num == 1 {
			domain = string(part)
		} else {
			version = number
		}
	})
	return version >= oldest || domain != "" && domain != "ai.onnx"
}

func (f *fuser) addStep(node []byte) (simple bool) {
	s := &step{raw: node}
	simple = true
	fields(node, func(num int, part []byte, _ uint64) {
		switch num {
		case nodeInput:
			s.in = append(s.in, string(part))
			f.users[string(part)] = append(f.users[string(part)], s)
		case nodeOutput:
			s.out = append(s.out, string(part))
			f.makers[string(part)] = s
		case nodeOp:
			s.op = string(part)
		case nodeAttribute:
			s.attributes = append(s.attributes, readAttribute(part))
			fields(part, func(num int, _ []byte, _ uint64) {
				simple = simple && num != attributeGraph && num != attributeGraphs
			})
		}
	})
	f.steps = append(f.steps, s)
	if s.op == "Constant" && len(s.out) == 1 {
		for _, a := range s.attributes {
			inside(a.raw, func(tensor []byte) { f.addConstant(s.out[0], tensor) }, attributeTensor)
		}
	}
	return simple
}

// addConstant remembers a tensor under the name, or its own, if it is of
// 32-bit numbers.
func (f *fuser) addConstant(name string, tensor []byte) {
	var c constant
	kind := uint64(0)
	fields(tensor, func(num int, part []byte, number uint64) {
		switch num {
		case tensorDims:
			c.dims = append(c.dims, wholes(part, number)...)
		case tensorType:
			kind = number
		case tensorName:
			if name == "" {
				name = string(part)
			}
		case tensorFloats, tensorRaw:
			for ; len(part) >= 4; part = part[4:] {
				c.values = append(c.values, math.Float32frombits(binary.LittleEndian.Uint32(part)))
			}
		}
	})
	size := int64(1)
	for _, d := range c.dims {
		size *= d
	}
	if kind == typeFloat && size == int64(len(c.values)) { // numbers may lie in another file
		f.constants[name] = c
	}
}

// typeFloat is the type of tensors of 32-bit numbers.
const typeFloat = 1

// wholes are the whole numbers of a repeated field, packed or not.
func wholes(packed []byte, number uint64) []int64 {
	if packed == nil {
		return []int64{int64(number)}
	}
	var all []int64
	for len(packed) > 0 {
		v, n := protowire.ConsumeVarint(packed)
		if n < 0 {
			return nil
		}
		all, packed = append(all, int64(v)), packed[n:]
	}
	return all
}

// only is the one step that uses a value, or a step without an op when it has
// several users, none, or is the graph's own output.
func (f *fuser) only(value string) *step {
	if all := f.users[value]; len(all) == 1 && all[0] != nil && len(all[0].out) == 1 {
		return all[0]
	}
	return &step{}
}

// maker is the step that makes a value for no other use, or one without an op.
func (f *fuser) maker(value string) *step {
	if m := f.makers[value]; m != nil && len(f.users[value]) == 1 {
		return m
	}
	return &step{}
}

// use notes that one step uses a value instead of another.
func (f *fuser) use(value string, before, after *step) {
	if i := slices.Index(f.users[value], before); i >= 0 {
		f.users[value][i] = after
	}
}

// with returns, of a step of that op, the single number that it computes with
// and its other input. The number may stand first only where that is the same.
func (f *fuser) with(s *step, op string) (number float32, other string, ok bool) {
	if s.op != op || len(s.in) != 2 {
		return 0, "", false
	}
	for at := 1; at >= 0; at-- {
		c, found := f.constants[s.in[at]]
		if found && len(c.values) == 1 && len(c.dims) <= 1 && (at == 1 || op != "Div") {
			return c.values[0], s.in[1-at], true
		}
	}
	return 0, "", false
}

// hardSwish turns x·clip(x+3, 0, 6)/6 into x·hardsigmoid(x).
func (f *fuser) hardSwish(clip *step) {
	if len(clip.out) != 1 || !f.bound(clip, "min", 1, 0) || !f.bound(clip, "max", 2, 6) {
		return
	}
	add := f.maker(clip.at(0))
	three, x, ok := f.with(add, "Add")
	mul := f.only(clip.out[0])
	if !ok || three != 3 || mul.op != "Mul" || !slices.Contains(mul.in, x) {
		return
	}
	div := f.only(mul.out[0])
	six, _, ok := f.with(div, "Div")
	if !ok || six != 6 {
		return
	}
	clip.op, clip.in = "HardSigmoid", []string{x}
	clip.attributes = []attribute{floatAttribute("alpha", 1./6), floatAttribute("beta", .5)}
	f.use(x, add, clip)
	f.drop(add)
	f.merge(mul, div)
	f.change(clip)
}

// after folds ·s and +t that follow a convolution into it.
func (f *fuser) after(conv *step) {
	for {
		next := f.only(conv.out[0])
		s, _, scaled := f.with(next, "Mul")
		t, _, shifted := f.with(next, "Add")
		switch {
		case scaled:
			if !f.refine(conv, func(weights, bias []float32) { scale(weights, s); scale(bias, s) }) {
				return
			}
		case shifted:
			if !f.refine(conv, func(_, bias []float32) { shift(bias, t) }) {
				return
			}
		default:
			return
		}
		f.merge(conv, next)
	}
}

// before folds ·s and then +t that precede a convolution into it, or makes
// them one step.
func (f *fuser) before(conv *step) {
	weights, ok := f.kernel(conv)
	add := f.maker(conv.at(0))
	t, scaled, shifts := f.with(add, "Add")
	mul := f.maker(scaled)
	s, x, scales := f.with(mul, "Mul")
	if !ok || !shifts || !scales {
		return
	}
	if _, pads := conv.attribute("auto_pad"); pads {
		return
	}
	pads, _ := conv.attribute("pads")
	if !slices.ContainsFunc(pads.ints, func(p int64) bool { return p != 0 }) {
		each := len(weights.values) / int(weights.dims[0])
		ok := f.refine(conv, func(weights, bias []float32) {
			for i := range bias {
				sum := 0.
				for _, w := range weights[i*each:][:each] {
					sum += float64(w)
				}
				bias[i] += float32(sum * float64(t))
			}
			scale(weights, s)
		})
		if ok {
			conv.in[0] = x
			f.use(x, mul, conv)
			f.drop(mul)
			f.drop(add)
		}
		return
	}
	channels := weights.dims[1]
	if group, ok := conv.attribute("group"); ok && len(group.ints) == 1 && group.ints[0] > 0 && group.ints[0] <= weights.dims[0] {
		channels *= group.ints[0]
	}
	name := add.out[0]
	even := func(suffix string, v float32) string {
		values := make([]float32, channels)
		shift(values, v)
		return f.add(name+suffix, constant{dims: []int64{channels}, values: values})
	}
	add.op = "BatchNormalization"
	add.in = []string{x, even(".scale", s), even(".shift", t), even(".mean", 0), even(".variance", 1)}
	add.attributes = []attribute{floatAttribute("epsilon", 0)}
	f.use(x, mul, add)
	f.drop(mul)
	f.change(add)
}

// kernel returns the weights of a convolution, if they are known: one output,
// one input and at least one place each.
func (f *fuser) kernel(conv *step) (constant, bool) {
	c, ok := f.constants[conv.at(1)]
	return c, ok && len(c.dims) >= 3 && len(c.values) > 0
}

// refine gives a convolution copies of its weights and bias, changed. It
// reports whether they are known.
func (f *fuser) refine(conv *step, change func(weights, bias []float32)) bool {
	weights, ok := f.kernel(conv)
	if !ok {
		return false
	}
	bias := constant{dims: weights.dims[:1], values: make([]float32, weights.dims[0])}
	if name := conv.at(2); name != "" {
		if bias, ok = f.constants[name]; !ok || int64(len(bias.values)) != weights.dims[0] {
			return false
		}
	}
	weights.values, bias.values = slices.Clone(weights.values), slices.Clone(bias.values)
	change(weights.values, bias.values)
	name := conv.out[0]
	conv.in = []string{conv.in[0], f.add(name+".weights", weights), f.add(name+".bias", bias)}
	f.change(conv)
	return true
}

func scale(values []float32, by float32) {
	for i := range values {
		values[i] *= by
	}
}

func shift(values []float32, by float32) {
	for i := range values {
		values[i] += by
	}
}

// add adds a constant to the graph and returns its name.
func (f *fuser) add(name string, c constant) string {
	f.constants[name] = c
	f.made = append(f.made, name)
	return name
}

func (f *fuser) change(s *step) { s.raw, f.changed = nil, true }

// merge lets the first of two steps make what the second made from it.
func (f *fuser) merge(first, second *step) {
	first.out = second.out
	f.makers[first.out[0]] = first
	f.drop(second)
	f.change(first)
}

func (f *fuser) drop(s *step) { *s = step{} }

// at is the name of an input, or empty.
func (s *step) at(i int) string {
	if i >= len(s.in) {
		return ""
	}
	return s.in[i]
}

// attribute is the attribute of that name, and whether there is one.
func (s *step) attribute(name string) (attribute, bool) {
	i := slices.IndexFunc(s.attributes, func(a attribute) bool { return a.name == name })
	if i < 0 {
		return attribute{}, false
	}
	return s.attributes[i], true
}

// bound reports whether a clip has that bound: an attribute, and since
// operators of version 11 an input.
func (f *fuser) bound(clip *step, name string, input int, v float32) bool {
	if c := f.constants[clip.at(input)]; len(c.values) == 1 {
		return c.values[0] == v
	}
	a, ok := clip.attribute(name)
	return ok && a.float == v
}

// attribute is a setting of a step.
type attribute struct {
	raw   []byte
	name  string
	float float32
	ints  []int64
}

func readAttribute(raw []byte) attribute {
	a := attribute{raw: raw}
	fields(raw, func(num int, part []byte, number uint64) {
		switch num {
		case attributeName:
			a.name = string(part)
		case attributeFloat:
			a.float = math.Float32frombits(uint32(number))
		case attributeInt, attributeInts:
			a.ints = append(a.ints, wholes(part, number)...)
		}
	})
	return a
}

func floatAttribute(name string, v float32) attribute {
	const float = 1
	raw := bytesField(nil, attributeName, []byte(name))
	raw = protowire.AppendFixed32(protowire.AppendTag(raw, attributeFloat, protowire.Fixed32Type), math.Float32bits(v))
	return attribute{raw: numberField(raw, attributeKind, float)}
}

// bytes is the file as it has become.
func (f *fuser) bytes() []byte {
	graph := f.graph
	used := map[string]bool{}
	for _, s := range f.steps {
		for _, in := range s.in {
			used[in] = true
		}
	}
	for _, s := range f.steps {
		replaced := s.op == "Constant" && !used[s.out[0]] && f.users[s.out[0]] != nil && !slices.Contains(f.users[s.out[0]], nil)
		if s.op == "" || replaced {
			continue
		}
		graph = bytesField(graph, graphNode, s.bytes())
	}
	for _, name := range f.made {
		if !used[name] {
			continue
		}
		c := f.constants[name]
		var tensor, raw []byte
		for _, d := range c.dims {
			tensor = numberField(tensor, tensorDims, uint64(d))
		}
		for _, v := range c.values {
			raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(v))
		}
		tensor = numberField(tensor, tensorType, typeFloat)
		tensor = bytesField(tensor, tensorName, []byte(name))
		graph = bytesField(graph, graphInitializer, bytesField(tensor, tensorRaw, raw))
	}
	return bytesField(f.model, modelGraph, graph)
}

func (s *step) bytes() []byte {
	if s.raw != nil {
		return s.raw
	}
	var node []byte
	for _, in := range s.in {
		node = bytesField(node, nodeInput, []byte(in))
	}
	for _, out := range s.out {
		node = bytesField(node, nodeOutput, []byte(out))
	}
	node = bytesField(node, nodeOp, []byte(s.op))
	for _, a := range s.attributes {
		node = bytesField(node, nodeAttribute, a.raw)
	}
	return node
}

func bytesField(to []byte, num int, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(to, protowire.Number(num), protowire.BytesType), value)
}

func numberField(to []byte, num int, value uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(to, protowire.Number(num), protowire.VarintType), value)
}
