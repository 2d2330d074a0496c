// Package model describes neural networks as data: what an ONNX file takes and
// gives, how pictures become its input and how its classes become text. A
// manifest is all that the pipeline knows of a model, so adding a language is
// adding a manifest beside its ONNX file. The package runs nothing and needs no
// cgo; running is package onnx's.
package model

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Tasks of models, named as the stages that run them.
const (
	LineDetection = "line_detection"
	OCR           = "ocr"
)

// The models that are used when nothing else is asked for.
const (
	DefaultLineDetection = "ch_PP-OCRv4_det"
	DefaultOCR           = "en_PP-OCRv4_rec"
)

// What the numbers of an output are.
const (
	Probability = "probability" // between 0 and 1; over the classes of a frame they sum to 1
	Logit       = "logit"       // sigmoid, or softmax over the classes, is still to be taken
)

// Forms of a model's text: what the labels of its classes spell.
const (
	Unicode = "unicode"
	Wylie   = "wylie" // Tibetan in Latin letters, extended Wylie (EWTS)
)

// Manifest is one model.
type Manifest struct {
	// Name is what settings and artifacts call the model: letters, digits,
	// '.', '_' and '-'.
	Name string `json:"name"`
	Task string `json:"task"` // LineDetection or OCR
	// File is the name of the ONNX file in the folder of models.
	File   string `json:"file"`
	SHA256 string `json:"sha256"` // of the file, in lower-case hexadecimal
	Size   int64  `json:"size"`   // of the file, in bytes

	Input         Input         `json:"input"`
	Output        Output        `json:"output"`
	Canvas        Canvas        `json:"canvas"`
	Normalisation Normalisation `json:"normalisation"`

	// Regions is set for line detection, and only for it.
	Regions *Regions `json:"regions,omitempty"`

	// Charset holds the label of each class in the model's order, without the
	// blank; for OCR, and only for it, as are the fields up to Encoding. In
	// JSON it is a string, each character a label, or a list of strings.
	Charset Charset `json:"charset,omitempty"`
	// CharsetFile names, instead of Charset, a text file beside the manifest
	// with one label a line.
	CharsetFile string `json:"charset_file,omitempty"`
	// Blank is the index of CTC's blank among all classes.
	Blank    int    `json:"blank,omitempty"`
	Space    Space  `json:"space,omitzero"`
	Encoding string `json:"encoding,omitempty"` // Unicode or Wylie

	Licence string `json:"licence"`
	Source  Source `json:"source"`
}

// Input is the model's one input.
type Input struct {
	Name   string `json:"name"`
	Layout Layout `json:"layout"` // of N, H, W and, unless there is but one channel, C
}

// Output is the output that is read; a model may have others.
type Output struct {
	Name   string `json:"name"`
	Layout Layout `json:"layout"` // of N, H, W, C (line detection), or of N, T, V (OCR)
	Values string `json:"values"` // Probability or Logit
}

// Normalisation says how a pixel p of 0…255 becomes a number of the input:
// (p/Scale − Mean) / Std, with a mean and a deviation for each channel.
type Normalisation struct {
	Channels string    `json:"channels"` // "RGB", "BGR" or "GREY"
	Scale    float64   `json:"scale"`
	Mean     []float64 `json:"mean"`
	Std      []float64 `json:"std"`
}

// Regions says how an output of line detection is read.
type Regions struct {
	// Threshold is the probability above which a pixel belongs to a line.
	Threshold float64 `json:"threshold"`
	// Score is the mean probability below which a region is none; 0 keeps all.
	Score float64 `json:"score,omitempty"`
	// Unclip says how far a region is grown: by its area times this, divided by
	// its perimeter. Networks of the DB kind learn shrunken lines. 0: not at all.
	Unclip float64 `json:"unclip,omitempty"`
}

// Space says how the model's text shows a space.
type Space struct {
	// Append adds a class for the space after those of the charset.
	Append bool `json:"append,omitempty"`
	// Symbol is a label that stands for a space, such as "§"; empty for none.
	Symbol string `json:"symbol,omitempty"`
}

// Source says where the ONNX file was published.
type Source struct {
	Package string `json:"package"`
	Version string `json:"version"`
}

// Charset is a list of labels.
type Charset []string

// UnmarshalJSON takes a string, of which every character is a label, or a list.
func (c *Charset) UnmarshalJSON(data []byte) error {
	var list []string
	if err := json.Unmarshal(data, &list); err == nil {
		*c = list
		return nil
	}
	var all string
	if err := json.Unmarshal(data, &all); err != nil {
		return errors.New("charset: neither a string nor a list of strings")
	}
	*c = strings.Split(all, "")
	return nil
}

// Classes returns how many classes the model tells apart, the blank included.
func (m *Manifest) Classes() int {
	n := len(m.Charset) + 1
	if m.Space.Append {
		n++
	}
	return n
}

// Labels returns the text of every class in the model's order. The blank's is
// empty, and the symbol of the space has become a space.
func (m *Manifest) Labels() []string {
	labels := make([]string, 0, m.Classes())
	for _, label := range m.Charset {
		if label == m.Space.Symbol {
			label = " "
		}
		labels = append(labels, label)
	}
	if m.Space.Append {
		labels = append(labels, " ")
	}
	return slices.Insert(labels, m.Blank, "")
}

//go:embed manifests/*.json
var manifests embed.FS

// Catalogue holds manifests by name.
type Catalogue map[string]Manifest

// Builtin returns the manifests that the program carries.
func Builtin() (Catalogue, error) {
	dir, err := fs.Sub(manifests, "manifests")
	if err != nil {
		return nil, err
	}
	return Catalogue{}.with(dir, "built in")
}

// Load returns the builtin manifests and those of the folder, its files
// *.json. The error joins everything that is wrong with any of them. A folder
// that does not exist, or an empty name, adds nothing.
func Load(dir string) (Catalogue, error) {
	c, err := Builtin()
	if err != nil || dir == "" {
		return c, err
	}
	return c.with(os.DirFS(dir), dir)
}

// Named returns a builtin manifest.
func Named(name string) (Manifest, error) {
	c, err := Builtin()
	if err != nil {
		return Manifest{}, err
	}
	return c.Named(name)
}

// Named returns the manifest of that name, or an error that lists the names
// there are.
func (c Catalogue) Named(name string) (Manifest, error) {
	m, ok := c[name]
	if !ok {
		return Manifest{}, fmt.Errorf("there is no model %q; there are %s; a model of your own needs a manifest in the folder of models",
			name, strings.Join(slices.Sorted(maps.Keys(c)), ", "))
	}
	return m, nil
}

// with adds the manifests of a folder.
func (c Catalogue) with(dir fs.FS, where string) (Catalogue, error) {
	files, err := fs.Glob(dir, "*.json")
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, file := range files {
		m, err := read(dir, file)
		if _, taken := c[m.Name]; err == nil && taken {
			err = fmt.Errorf("another manifest has the name %s", m.Name)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("model manifest %s: %w", filepath.Join(where, file), err))
			continue
		}
		c[m.Name] = m
	}
	return c, errors.Join(errs...)
}

// read reads one manifest and its charset.
func read(dir fs.FS, file string) (Manifest, error) {
	raw, err := fs.ReadFile(dir, file)
	if err != nil {
		return Manifest{}, err
	}
	m, err := Decode(raw)
	if err != nil {
		return Manifest{}, err
	}
	if m.CharsetFile != "" {
		if len(m.Charset) > 0 {
			return Manifest{}, errors.New("charset and charset_file: only one of them may be given")
		}
		labels, err := fs.ReadFile(dir, m.CharsetFile)
		if err != nil {
			return Manifest{}, fmt.Errorf("charset_file: %w", err)
		}
		text := strings.TrimSuffix(strings.ReplaceAll(string(labels), "\r\n", "\n"), "\n")
		m.Charset = strings.Split(text, "\n")
	}
	err = m.Validate()
	return m, err
}

// Decode reads a manifest from JSON and takes nothing that it does not know; a
// misspelt key would else be a default. What it returns is not yet validated,
// and the charset file not yet read.
func Decode(raw []byte) (Manifest, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	var m Manifest
	if err := d.Decode(&m); err != nil {
		return Manifest{}, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Manifest{}, errors.New("something follows the manifest")
	}
	return m, nil
}

// Cache returns the folder in which scripts/models keeps models and the
// library that runs them: REEVE_MODELS, or reeve/models in the user's cache.
// The environment is what getenv says.
func Cache(getenv func(string) string) string {
	if dir := getenv("REEVE_MODELS"); dir != "" {
		return dir
	}
	cache := getenv("XDG_CACHE_HOME")
	if cache == "" {
		cache = filepath.Join(getenv("HOME"), ".cache")
	}
	return filepath.Join(cache, "reeve", "models")
}

// Library is the file name of ONNX Runtime's library in that folder.
const Library = "libonnxruntime.so"
