// Package linedetection finds the lines of text on page images: their outlines
// in px of the original image, and how far the page is tilted. It changes no
// image and keeps none.
package linedetection

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"image"
	"io"
	"math"

	"github.com/reeve-pipeline/reeve/pkg/civic"
	"github.com/reeve-pipeline/reeve/pkg/fault"
	"github.com/reeve-pipeline/reeve/pkg/model"
	"github.com/reeve-pipeline/reeve/pkg/pages"
	"github.com/reeve-pipeline/reeve/pkg/stage"
	"github.com/reeve-pipeline/reeve/pkg/table"
	"github.com/reeve-pipeline/reeve/pkg/vision"
)

// Name is the stage's one name.
const Name = "line_detection"

// algorithm is raised when the same model finds other lines than before.
const algorithm = 1

// Tables keeps the tables. Put may overwrite.
type Tables interface {
	Put(ctx context.Context, key string, r io.Reader, size int64, contentType string) (stage.Artifact, error)
}

// Images reads page images, as [pages.Reader] does.
type Images interface {
	Each(ctx context.Context, images []civic.PageImage, work func(pages.Page) error) error
}

// Detector is the stage's handler.
type Detector struct {
	tables  Tables
	images  Images
	model   model.Manifest
	engines chan Engine // those that are free
}

// New returns a handler that works on as many tasks at once as there are
// engines, all of the one model.
func New(tables Tables, images Images, m model.Manifest, engines ...Engine) *Detector {
	free := make(chan Engine, len(engines))
	for _, e := range engines {
		free <- e
	}
	return &Detector{tables, images, m, free}
}

// Settings are those of a run that the stage heeds.
type Settings struct {
	// Version keeps the tables of a later run apart; see [civic.Pages.Key].
	Version int `json:"version"`
	// Profile names the numbers that do not come with the model, as package
	// vision has them. Empty: what suits the model's family.
	Profile string `json:"profile"`
	// UseTPS flattens pages whose lines are bent.
	UseTPS bool `json:"use_tps"`
}

// profile returns the numbers that the settings name.
func (s *Settings) profile(m *model.Manifest) (vision.Profile, error) {
	name := s.Profile
	if name == "" {
		name = vision.Reeve().Name
		if m.Canvas.Fit == model.FitTiles {
			name = vision.BDRCProd().Name
		}
	}
	return vision.ProfileNamed(name)
}

// Handle writes the range's part of line_detection and hands the pages on with
// it. A page that cannot be read, or that the model fails on, costs that page:
// its row says why. A page without lines is none of that.
func (d *Detector) Handle(ctx context.Context, task *stage.Task) (stage.Result, error) {
	spec, err := stage.Spec[civic.Pages](task)
	if err != nil {
		return stage.Result{}, err
	}
	if err := spec.Validate(); err != nil {
		return stage.Result{}, fault.Permanent(err)
	}
	settings, err := stage.Settings[Settings](task)
	if err != nil {
		return stage.Result{}, err
	}
	profile, err := settings.profile(&d.model)
	if err != nil {
		return stage.Result{}, err
	}
	var engine Engine
	select {
	case engine = <-d.engines:
		defer func() { d.engines <- engine }()
	case <-ctx.Done():
		return stage.Result{}, ctx.Err()
	}

	var rows []table.Detection
	var lines, blank, failed int
	err = d.images.Each(ctx, spec.Images, func(p pages.Page) error {
		row, err := d.page(ctx, engine, &profile, settings.UseTPS, p)
		if err != nil {
			return err
		}
		switch row.Source {
		case civic.SourceFailed:
			failed++
		case civic.SourceBlank:
			blank++
		}
		lines += len(row.Contours)
		rows = append(rows, row)
		return nil
	})
	if err != nil {
		return stage.Result{}, err
	}
	var buf bytes.Buffer
	if err := table.WriteDetections(&buf, rows, d.about(&profile, settings.UseTPS)); err != nil {
		return stage.Result{}, fault.Permanent(err)
	}
	kept, err := d.tables.Put(ctx, spec.Part(Name, settings.Version, Name), &buf, int64(buf.Len()), table.ContentType)
	if err != nil {
		return stage.Result{}, err
	}
	spec.Detection = &civic.Object{Key: kept.Key, Size: kept.Size, SHA256: kept.SHA256}
	spec.Lines, spec.Results, spec.Text = nil, nil, nil
	return stage.Result{
		Output:    spec,
		Artifacts: []stage.Artifact{kept},
		Metrics: map[string]float64{
			"pages": float64(len(rows)), "pages_blank": float64(blank), "pages_failed": float64(failed), "lines": float64(lines),
		},
	}, nil
}

// page makes a page's row. The error is one that the page is not to blame for.
func (d *Detector) page(ctx context.Context, engine Engine, profile *vision.Profile, useTPS bool, p pages.Page) (table.Detection, error) {
	if p.Gray == nil {
		return table.Detection{About: p.About(Name, "")}, nil
	}
	lines, err := Detect(ctx, engine, &d.model, profile, p.Gray)
	switch {
	case fault.Of(err) == fault.ClassPermanent:
		return table.Detection{About: pages.Failed(p.PageImage, Name, fmt.Errorf("%s: %w", p.Name, err))}, nil
	case err != nil:
		return table.Detection{}, fmt.Errorf("%s: %w", p.Name, err)
	case len(lines) == 0:
		return table.Detection{About: p.About(Name, civic.SourceBlank)}, nil
	}
	row := table.Detection{About: p.About(Name, civic.SourceImage)}
	var scores float64
	rects := make([]vision.Rect, len(lines))
	shapes := make([][]image.Point, len(lines))
	for i, l := range lines {
		contour := make([]table.Point, len(l.Outline))
		for j, at := range l.Outline {
			contour[j] = table.Point{int32(math.Round(at.X)), int32(math.Round(at.Y))}
		}
		row.Contours = append(row.Contours, contour)
		row.Scores = append(row.Scores, float32(l.Score))
		scores += l.Score
		rects[i], shapes[i] = vision.MinAreaRect(l.Outline), l.Shape
	}
	row.Confidence = float32(scores / float64(len(lines)))
	tilt := vision.PageTilt(rects, profile.Tilt)
	row.Angle, row.AngleFlag = tilt.Angle, string(tilt.Flag)
	if !useTPS {
		return row, nil
	}
	bend, err := vision.Flatten(shapes, p.Width, p.Height, profile.Bend)
	if err != nil { // shapes that no spline goes through: the page is read as it is
		row.ErrorMessage = fmt.Sprintf("%s is not flattened: %v", p.Name, err)
	}
	row.TPSRatio = float64(bend.Bent) / float64(max(bend.Lines, 1))
	if bend.Spline != nil {
		row.Dewarping, row.TPSAlpha = true, bend.Spline.Alpha
		for i, from := range bend.Spline.Source {
			to := bend.Spline.Target[i]
			row.TPSPoints = append(row.TPSPoints, [4]float64{from.Y, from.X, to.Y, to.X})
		}
	}
	return row, nil
}

// about is what the table's footer says of how it came about.
func (d *Detector) about(profile *vision.Profile, useTPS bool) map[string]string {
	config, err := json.Marshal(struct {
		Algorithm int
		Model     model.Manifest
		Profile   *vision.Profile
		UseTPS    bool
	}{algorithm, d.model, profile, useTPS})
	if err != nil { // numbers and text alone
		panic(err)
	}
	sum := sha256.Sum256(config)
	return map[string]string{
		"model": d.model.Name, "model_sha256": d.model.SHA256, "profile": profile.Name, "config_sha256": hex.EncodeToString(sum[:]),
	}
}
