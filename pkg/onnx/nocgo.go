//go:build !cgo

package onnx

import (
	"context"
	"errors"
)

var errNoCgo = errors.New("this program was built without cgo and cannot run models; build it with CGO_ENABLED=1 and a C compiler")

// Runtime makes sessions; this one cannot be opened.
type Runtime struct{}

// Open fails.
func Open(Options) (*Runtime, error) { return nil, errNoCgo }

// Version returns nothing.
func (*Runtime) Version() string { return "" }

// Load fails.
func (*Runtime) Load(Model, string) (*Session, error) { return nil, errNoCgo }

// Session is a loaded model; there are none.
type Session struct{}

// Run fails.
func (*Session) Run(context.Context, Tensor) (Tensor, error) { return Tensor{}, errNoCgo }

// Close does nothing.
func (*Session) Close() error { return nil }
