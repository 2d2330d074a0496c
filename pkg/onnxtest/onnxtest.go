// Package onnxtest makes small neural networks whose answers are known
// beforehand, with the signatures of the real ones, so that tests of what is
// around a model need no weights. Each comes as its file and its manifest. The
// package also finds, for tests, the library that runs them.
package onnxtest

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"testing"

	"github.com/reeve-pipeline/reeve/pkg/model"
)

// Dir returns the folder with the library and the real models. It fails the
// test when there is none.
func Dir(t testing.TB) string {
	t.Helper()
	dir := model.Cache(os.Getenv) //nolint:forbidigo // a test has no settings
	Library(t)
	return dir
}

// Library returns the path of ONNX Runtime's library. It fails the test when
// there is none.
func Library(t testing.TB) string {
	t.Helper()
	path := filepath.Join(model.Cache(os.Getenv), model.Library) //nolint:forbidigo // a test has no settings
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("ONNX Runtime is not there (%v); run scripts/models", err)
	}
	return path
}

// Model is a network of this package: its file's content, and its manifest,
// which tells of that content.
type Model struct {
	Manifest model.Manifest
	File     []byte
}

// Write writes the model's file into the folder and returns its manifest.
func (m Model) Write(t testing.TB, dir string) model.Manifest {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, m.Manifest.File), m.File, 0o600); err != nil {
		t.Fatal(err)
	}
	return m.Manifest
}

// finish completes the manifest of a model with what follows from its file.
func finish(name string, m model.Manifest, g graph) Model {
	file := g.bytes()
	sum := sha256.Sum256(file)
	m.Name, m.File, m.Size, m.SHA256 = name, name+".onnx", int64(len(file)), hex.EncodeToString(sum[:])
	m.Licence, m.Source = "Apache-2.0", model.Source{Package: "onnxtest", Version: "1"}
	return Model{Manifest: m, File: file}
}

// Detector returns a network of the PP-OCR family that takes whatever is dark
// for a line: [N,3,H,W] → [N,1,H,W], for each pixel the probability that the
// mean of the 5×5 pixels around it is darker than half.
func Detector() Model {
	mean, std := []float64{0.485, 0.456, 0.406}, []float64{0.229, 0.224, 0.225}
	g := graph{}
	g.input("x", 0, 3, 0, 0)
	g.output("map", 0, 1, 0, 0)
	g.node("Sigmoid", "map", []string{g.darkness("logit", "x", mean, std)})
	return finish("test-detector", model.Manifest{
		Task:          model.LineDetection,
		Input:         model.Input{Name: "x", Layout: "NCHW"},
		Output:        model.Output{Name: "map", Layout: "NCHW", Values: model.Probability},
		Canvas:        model.Canvas{Fit: model.FitLongSide, Side: 960, Multiple: 32},
		Normalisation: model.Normalisation{Channels: "BGR", Scale: 255, Mean: mean, Std: std},
		Regions:       &model.Regions{Threshold: 0.3, Score: 0.5},
	}, g)
}

// LineModel returns a network of BDRC's family of line models that takes
// whatever is dark for a line: tiles [N,3,512,512] → logits [N,1,512,512], of
// the mean of the 5×5 pixels around each.
func LineModel() Model {
	mean, std := []float64{0, 0, 0}, []float64{1, 1, 1}
	const tile = 512
	g := graph{}
	g.input("input", 0, 3, tile, tile)
	g.output("output", 0, 1, tile, tile)
	g.darkness("output", "input", mean, std)
	return finish("test-lines", model.Manifest{
		Task:          model.LineDetection,
		Input:         model.Input{Name: "input", Layout: "NCHW"},
		Output:        model.Output{Name: "output", Layout: "NCHW", Values: model.Logit},
		Canvas:        model.Canvas{Fit: model.FitTiles, Side: tile},
		Normalisation: model.Normalisation{Channels: "RGB", Scale: 255, Mean: mean, Std: std},
		Regions:       &model.Regions{Threshold: 0.85},
	}, g)
}

// darkness adds the logit that the mean of the 5×5 pixels around each is
// darker than half, where 0 is black and 1 is white before the normalisation.
// Beyond the edge, the edge goes on.
func (g *graph) darkness(output, input string, mean, std []float64) string {
	const side, steepness = 5, 40
	channels := len(mean)
	count := float64(channels * side * side)
	// The mean of (v·std + mean) over channels and pixels is a convolution.
	var weights []float32
	bias := 0.5
	for c := range mean {
		for range side * side {
			weights = append(weights, float32(-steepness*std[c]/count))
		}
		bias -= mean[c] / float64(channels)
	}
	padded := g.node("Pad", "padded", []string{input, g.ints("pads", 0, 0, side/2, side/2, 0, 0, side/2, side/2)}, attr{name: "mode", word: "edge"})
	return g.node("Conv", output, []string{
		padded,
		g.floats("weights", []int64{1, int64(channels), side, side}, weights),
		g.floats("bias", []int64{1}, []float32{float32(steepness * bias)}),
	})
}
