package model

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

var (
	goodName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)
	goodHash = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

// Validate returns all that is wrong with the manifest, joined.
func (m *Manifest) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	oneOf := func(key, got string, want ...string) {
		check(slices.Contains(want, got), "%s: %q is none of %s", key, got, strings.Join(want, ", "))
	}

	check(goodName.MatchString(m.Name), "name: %q must be letters, digits, '.', '_' and '-'", m.Name)
	oneOf("task", m.Task, LineDetection, OCR)
	check(m.File != "" && m.File == filepath.Base(m.File) && m.File[0] != '.', "file: %q is no plain file name", m.File)
	check(goodHash.MatchString(m.SHA256), "sha256: %q must be 64 lower-case hexadecimal digits", m.SHA256)
	check(m.Size > 0, "size: %d bytes cannot be a model", m.Size)

	check(m.Input.Name != "", "input.name: it is missing")
	check(m.Output.Name != "", "output.name: it is missing")
	check(m.Input.Layout.arranges("NCHW") || m.Input.Layout.arranges("NHW"),
		"input.layout: %q is no order of N, C, H and W, or of N, H and W", m.Input.Layout)
	oneOf("output.values", m.Output.Values, Probability, Logit)

	n := m.Normalisation
	oneOf("normalisation.channels", n.Channels, "RGB", "BGR", "GREY")
	check(m.Input.Layout.Axis('C') >= 0 || n.channels() == 1,
		"input.layout: %q has no C for the %d channels of %s", m.Input.Layout, n.channels(), n.Channels)
	check(n.Scale > 0, "normalisation.scale: %v is not above 0", n.Scale)
	check(len(n.Mean) == n.channels(), "normalisation.mean: %d numbers for %d channels", len(n.Mean), n.channels())
	check(len(n.Std) == n.channels(), "normalisation.std: %d numbers for %d channels", len(n.Std), n.channels())
	check(!slices.ContainsFunc(n.Std, func(v float64) bool { return v <= 0 }), "normalisation.std: %v must be above 0", n.Std)
	errs = append(errs, m.Canvas.validate())

	switch m.Task {
	case LineDetection:
		check(m.Output.Layout.arranges("NCHW") || m.Output.Layout.arranges("NHW"),
			"output.layout: %q is no order of N, C, H and W, or of N, H and W", m.Output.Layout)
		check(len(m.Charset) == 0 && m.CharsetFile == "" && m.Blank == 0 && m.Space == Space{} && m.Encoding == "",
			"charset, blank, space, encoding: line detection has none")
		check(m.Regions != nil, "regions: it is missing")
		if m.Regions != nil {
			r := *m.Regions
			check(r.Threshold > 0 && r.Threshold < 1, "regions.threshold: %v is not between 0 and 1", r.Threshold)
			check(r.Score >= 0 && r.Score < 1, "regions.score: %v is not from 0 to below 1", r.Score)
			check(r.Unclip >= 0, "regions.unclip: %v is below 0", r.Unclip)
		}
	case OCR:
		check(m.Output.Layout.arranges("NTV"), "output.layout: %q is no order of N, T and V", m.Output.Layout)
		check(m.Regions == nil, "regions: only line detection has them")
		check(len(m.Charset) > 0, "charset: it is missing")
		check(!slices.Contains(m.Charset, ""), "charset: label %d is empty", slices.Index(m.Charset, ""))
		check(m.Blank >= 0 && m.Blank < m.Classes(), "blank: %d is not from 0 to %d", m.Blank, m.Classes()-1)
		check(m.Space.Symbol == "" || slices.Contains(m.Charset, m.Space.Symbol), "space.symbol: %q is not in the charset", m.Space.Symbol)
		oneOf("encoding", m.Encoding, Unicode, Wylie)
	}
	check(m.Licence != "", "licence: it is missing")
	check(m.Source.Package != "", "source.package: it is missing")
	check(m.Source.Version != "", "source.version: it is missing")
	return errors.Join(errs...)
}
