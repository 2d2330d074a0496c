//go:build cgo

// Command ocr runs the ocr stage until it is told to stop.
package main

import (
	"context"
	"os"

	"github.com/reeve-pipeline/reeve/pkg/model"
	"github.com/reeve-pipeline/reeve/pkg/onnx"
	"github.com/reeve-pipeline/reeve/pkg/service"
	"github.com/reeve-pipeline/reeve/services/ocr"
)

func main() {
	os.Exit(service.Main(ocr.Name, ocr.Wire(model.Cache(os.Getenv), open)))
}

// open opens a session of its own.
func open(c ocr.Config, m model.Manifest) (ocr.Engine, error) {
	runtime, err := onnx.Open(onnx.Options{Library: c.Library, Provider: c.Provider, ProviderOptions: c.ProviderOptions, IntraThreads: c.Threads})
	if err != nil {
		return nil, err
	}
	s, err := runtime.Load(onnx.Model(m.Contract()), c.Models)
	if err != nil {
		return nil, err
	}
	return session{s}, nil
}

// session is an ONNX session as the stage's engine.
type session struct{ *onnx.Session }

// Run runs the model.
func (s session) Run(ctx context.Context, shape []int64, data []float32) ([]int64, []float32, error) {
	out, err := s.Session.Run(ctx, onnx.Tensor{Shape: shape, Data: data})
	return out.Shape, out.Data, err
}
