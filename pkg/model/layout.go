package model

import (
	"errors"
	"fmt"
	"image"
	"slices"
	"strings"
)

// Layout names the dimensions of a tensor in their order, a letter each:
// N pictures, C channels, H rows, W columns, T time steps, V classes.
type Layout string

// Axis returns the index of a dimension, or -1 when there is no such.
func (l Layout) Axis(letter byte) int { return strings.IndexByte(string(l), letter) }

// arranges reports whether the layout has exactly the letters, in any order.
func (l Layout) arranges(letters string) bool {
	a, b := []byte(l), []byte(letters)
	slices.Sort(a)
	slices.Sort(b)
	return slices.Equal(a, b)
}

// How a picture is brought to a size that the model takes.
const (
	// FitLongSide scales the picture so that its longer side is Side, and both
	// sides are multiples of Multiple.
	FitLongSide = "long_side"
	// FitHeight scales a line to Height and pads its width to a multiple of
	// Multiple.
	FitHeight = "height"
	// FitTiles cuts the picture into squares of Side.
	FitTiles = "tiles"
	// FitCanvas scales a line to fit into Width by Height and pads the rest.
	FitCanvas = "canvas"
)

// Canvas says which sizes the model takes, in pixels. The unused are 0.
type Canvas struct {
	Fit      string `json:"fit"`
	Side     int    `json:"side,omitempty"`
	Height   int    `json:"height,omitempty"`
	Width    int    `json:"width,omitempty"`
	Multiple int    `json:"multiple,omitempty"`
}

func (c Canvas) validate() error {
	used := map[string][4]bool{ // side, height, width, multiple
		FitLongSide: {true, false, false, true},
		FitHeight:   {false, true, false, true},
		FitTiles:    {true, false, false, false},
		FitCanvas:   {false, true, true, false},
	}
	want, ok := used[c.Fit]
	if !ok {
		return fmt.Errorf("canvas.fit: %q is none of %s, %s, %s, %s", c.Fit, FitLongSide, FitHeight, FitTiles, FitCanvas)
	}
	var errs []error
	for i, v := range []int{c.Side, c.Height, c.Width, c.Multiple} {
		name := []string{"side", "height", "width", "multiple"}[i]
		switch {
		case want[i] && v <= 0:
			errs = append(errs, fmt.Errorf("canvas.%s: %d is not above 0", name, v))
		case !want[i] && v != 0:
			errs = append(errs, fmt.Errorf("canvas.%s: %q does not use it", name, c.Fit))
		}
	}
	if c.Fit == FitLongSide && c.Multiple > 0 && c.Side%c.Multiple != 0 {
		errs = append(errs, fmt.Errorf("canvas.side: %d is no multiple of %d", c.Side, c.Multiple))
	}
	return errors.Join(errs...)
}

// bounds returns what the canvas says of a height and a width: the size, or 0
// and what it must be a multiple of.
func (c Canvas) bounds() (height, width, multiple int64) {
	switch c.Fit {
	case FitTiles:
		return int64(c.Side), int64(c.Side), 0
	default:
		return int64(c.Height), int64(c.Width), int64(c.Multiple)
	}
}

// Dim is what a tensor's dimension must be: Size, or, when that is 0, any
// multiple of Multiple (0 is as 1). Name says what it counts, for messages.
//
// It is an alias of a type without a name so that the packages which describe
// models and the one that runs them agree on it without knowing each other.
type Dim = struct {
	Name           string
	Size, Multiple int64
}

// Contract is all of a manifest that matters for loading and running the
// model. Package onnx has the same type under the name Model: the one is
// converted into the other.
type Contract struct {
	Name, File, SHA256 string
	Size               int64 // of the file, in bytes
	Input, Output      string
	InputDims          []Dim
	OutputDims         []Dim
}

// Contract returns the manifest's contract.
func (m *Manifest) Contract() Contract {
	height, width, multiple := m.Canvas.bounds()
	sides := map[rune]Dim{
		'N': {Name: "batch"},
		'C': {Name: "channels", Size: int64(m.Normalisation.channels())},
		'H': {Name: "height", Size: height, Multiple: multiple},
		'W': {Name: "width", Size: width, Multiple: multiple},
		'T': {Name: "time steps"},
		'V': {Name: m.classesInWords(), Size: int64(m.Classes())},
	}
	dims := func(layout Layout) []Dim {
		var all []Dim
		for _, letter := range string(layout) {
			all = append(all, sides[letter])
		}
		return all
	}
	c := Contract{
		Name: m.Name, File: m.File, SHA256: m.SHA256, Size: m.Size,
		Input: m.Input.Name, Output: m.Output.Name,
		InputDims: dims(m.Input.Layout),
	}
	sides['C'] = Dim{Name: "masks", Size: 1}
	c.OutputDims = dims(m.Output.Layout)
	return c
}

func (m *Manifest) classesInWords() string {
	words := fmt.Sprintf("classes: %d of the charset, a blank", len(m.Charset))
	if m.Space.Append {
		words += ", a space"
	}
	return words
}

// channels returns how many channels the input has.
func (n Normalisation) channels() int {
	if n.Channels == "GREY" {
		return 1
	}
	return 3
}

// Tensor lays grey pictures of one size out as the model's input: its shape,
// and its numbers in row-major order. A model with three channels gets the
// same grey in each. Whether the size suits the model is not looked at; that
// is checked when it runs.
func (m *Manifest) Tensor(pictures ...*image.Gray) (shape []int64, data []float32, err error) {
	if len(pictures) == 0 {
		return nil, nil, errors.New("there is no picture to make a tensor of")
	}
	size := pictures[0].Bounds().Size()
	channels := m.Normalisation.channels()
	extent := map[byte]int{'N': len(pictures), 'C': channels, 'H': size.Y, 'W': size.X}
	shape = make([]int64, len(m.Input.Layout))
	stride := map[byte]int{} // of each dimension, in numbers; 0 for one that is not there
	total := 1
	for i := len(shape) - 1; i >= 0; i-- {
		letter := m.Input.Layout[i]
		shape[i] = int64(extent[letter])
		stride[letter] = total
		total *= extent[letter]
	}
	data = make([]float32, total)
	for c := range channels {
		var value [256]float32 // of each grey
		for p := range value {
			n := m.Normalisation
			value[p] = float32((float64(p)/n.Scale - n.Mean[c]) / n.Std[c])
		}
		for i, picture := range pictures {
			if picture.Bounds().Size() != size {
				return nil, nil, fmt.Errorf("picture %d is %v, the first %v: a tensor takes pictures of one size", i, picture.Bounds().Size(), size)
			}
			from := i*stride['N'] + c*stride['C']
			for y := range size.Y {
				row := picture.Pix[y*picture.Stride:][:size.X]
				at, step := from+y*stride['H'], stride['W']
				for _, p := range row {
					data[at] = value[p]
					at += step
				}
			}
		}
	}
	return shape, data, nil
}
