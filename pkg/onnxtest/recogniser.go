package onnxtest

import (
	"image"
	"slices"

	"github.com/reeve-pipeline/reeve/pkg/model"
)

// Step is the width of a recogniser's time step, in pixels.
const Step = 8

// Recogniser returns a network of the PP-OCR family that reads pictures made
// by [Line]: [N,3,48,W] → probabilities [N,T,V]. Its charset is a to z; a
// space is appended.
func Recogniser() Model {
	m := model.Manifest{
		Input:         model.Input{Name: "x", Layout: "NCHW"},
		Output:        model.Output{Name: "softmax", Layout: "NTV", Values: model.Probability},
		Canvas:        model.Canvas{Fit: model.FitHeight, Height: 48, Multiple: 32},
		Normalisation: model.Normalisation{Channels: "BGR", Scale: 255, Mean: []float64{.5, .5, .5}, Std: []float64{.5, .5, .5}},
		Charset:       letters(),
		Space:         model.Space{Append: true},
		Encoding:      model.Unicode,
	}
	g := graph{}
	g.input("x", 0, 3, 48, 0)
	g.output("softmax", 0, 0, int64(m.Classes()))
	lines := g.squeeze("lines", g.classes(&m, "x", 48, Step), 2)
	steps := g.node("Transpose", "steps", []string{lines}, attr{name: "perm", list: []int64{0, 2, 1}})
	g.node("Softmax", "softmax", []string{steps})
	return read("test-recogniser", m, g)
}

// Easter2 returns a network of BDRC's family of that name that reads pictures
// made by [Line]: [N,H,W] → logits [N,V,T], its canvas of the given size, the
// width a multiple of [Step]. Its charset spells Wylie with "§" for the space.
func Easter2(height, width int) Model {
	m := bdrc(height, width)
	m.Input.Layout, m.Output.Layout = "NHW", "NVT"
	m.Charset = append(letters(), "'", "§")
	m.Encoding = model.Wylie
	g := graph{}
	g.input("input", 0, int64(height), int64(width))
	g.output("output", 0, int64(m.Classes()), int64(width/Step))
	picture := g.node("Unsqueeze", "picture", []string{"input", g.ints("channel", 1)})
	g.squeeze("output", g.classes(&m, picture, int64(height), Step), 2)
	return read("test-easter2", m, g)
}

// CRNN returns a network of BDRC's family of that name that reads pictures
// made by [Line]: [N,1,W,H] → logits [T,N,V], its canvas of the given size, the
// width a multiple of [Step]. Its charset is of Tibetan stacks.
func CRNN(height, width int) Model {
	m := bdrc(height, width)
	m.Input.Layout, m.Output.Layout = "NCWH", "TNV"
	m.Charset = model.Charset{"ཀ", "ཁ", "ག", "ང", "བསྒྲུ", "བས", "པ", "་", "།", "§"}
	m.Encoding = model.Unicode
	g := graph{}
	g.input("input", 0, 1, int64(width), int64(height))
	g.output("output", int64(width/Step), 0, int64(m.Classes()))
	lines := g.squeeze("lines", g.classes(&m, "input", Step, int64(height)), 3)
	g.node("Transpose", "output", []string{lines}, attr{name: "perm", list: []int64{2, 0, 1}})
	return read("test-crnn", m, g)
}

// bdrc is what BDRC's recognisers share.
func bdrc(height, width int) model.Manifest {
	return model.Manifest{
		Input:         model.Input{Name: "input"},
		Output:        model.Output{Name: "output", Values: model.Logit},
		Canvas:        model.Canvas{Fit: model.FitCanvas, Height: height, Width: width},
		Normalisation: model.Normalisation{Channels: "GREY", Scale: 255, Mean: []float64{.5}, Std: []float64{.5}},
		Space:         model.Space{Symbol: "§"},
	}
}

func read(name string, m model.Manifest, g graph) Model {
	m.Task = model.OCR
	return finish(name, m, g)
}

func letters() model.Charset {
	var all model.Charset
	for c := 'a'; c <= 'z'; c++ {
		all = append(all, string(c))
	}
	return all
}

// classes adds, for each window of the picture, a logit for each class: the
// closer the window's mean darkness d is to the class's own, m, the higher. It
// is −a(d−m)², less −ad², which all classes share: a convolution.
func (g *graph) classes(m *model.Manifest, input string, rows, columns int64) string {
	const steepness = 6000
	n := m.Normalisation
	channels := int64(len(n.Mean))
	count := float64(channels * rows * columns)
	var weights, biases []float32
	for class := range m.Classes() {
		own := darkness(class, m.Classes())
		bias := -steepness * own * own
		for c := range n.Mean {
			for range rows * columns {
				weights = append(weights, float32(-2*steepness*own*n.Std[c]/count))
			}
			bias += 2 * steepness * own * (1 - n.Mean[c]) / float64(channels)
		}
		biases = append(biases, float32(bias))
	}
	return g.node("Conv", "classes", []string{
		input,
		g.floats("weights", []int64{int64(m.Classes()), channels, rows, columns}, weights),
		g.floats("biases", []int64{int64(m.Classes())}, biases),
	}, attr{name: "strides", list: []int64{rows, columns}})
}

func (g *graph) squeeze(output, input string, axis int64) string {
	return g.node("Squeeze", output, []string{input, g.ints("axis", axis)})
}

// darkness is how dark a class's part of a picture is, from 0 to 1. The blank,
// which is the first, is white.
func darkness(class, classes int) float64 { return float64(class) / float64(classes-1) }

// Line draws the labels for a recogniser of this package: for each a bar one
// [Step] wide, as dark as its class, and another of white, the blank. The
// picture is of the height and, but for longer lines, the width. It panics at
// a label that the model does not have.
func Line(m model.Manifest, height, width int, labels ...string) *image.Gray {
	picture := image.NewGray(image.Rect(0, 0, max(width, 2*Step*len(labels)), height))
	for i := range picture.Pix {
		picture.Pix[i] = 255
	}
	known := m.Labels()
	for i, label := range labels {
		class := slices.Index(known, label)
		if class < 0 {
			panic("onnxtest: the model has no label " + label)
		}
		grey := uint8(255*(1-darkness(class, len(known))) + 0.5)
		for y := range height {
			for x := range Step {
				picture.Pix[y*picture.Stride+2*Step*i+x] = grey
			}
		}
	}
	return picture
}
