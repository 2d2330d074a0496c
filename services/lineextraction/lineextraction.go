// Package lineextraction makes lines out of what was found on pages: fragments
// joined, in reading order over columns, each with its box, its outline and a
// name of its own. It looks at no pixel unless line images are asked for.
package lineextraction

import (
	"bytes"
	"context"
	"fmt"
	"image"
	"image/jpeg"
	"io"

	"github.com/reeve-pipeline/reeve/pkg/civic"
	"github.com/reeve-pipeline/reeve/pkg/fault"
	"github.com/reeve-pipeline/reeve/pkg/pages"
	"github.com/reeve-pipeline/reeve/pkg/stage"
	"github.com/reeve-pipeline/reeve/pkg/table"
	"github.com/reeve-pipeline/reeve/pkg/vision"
)

// Name is the stage's one name.
const Name = "line_extraction"

// tableName is the table's, and of the folder of its parts.
const tableName = "line_images"

// maxTable is the largest table read, in bytes.
const maxTable = 256 << 20

// Objects keeps tables and line images. Put may overwrite.
type Objects interface {
	ReadAll(ctx context.Context, key, sha256 string, limit int64) ([]byte, error)
	Put(ctx context.Context, key string, r io.Reader, size int64, contentType string) (stage.Artifact, error)
}

// Images reads page images, as [pages.Reader] does.
type Images interface {
	Each(ctx context.Context, images []civic.PageImage, work func(pages.Page) error) error
}

// Extractor is the stage's handler.
type Extractor struct {
	objects Objects
	images  Images
}

// New returns a handler that reads and writes tables in a store.
func New(objects Objects, images Images) *Extractor { return &Extractor{objects, images} }

// What becomes of the lines' images.
const (
	imagesNone  = "none"  // they are cut out again where they are needed
	imagesFiles = "files" // they are kept, too, each a JPEG
)

// Settings are those of a run that the stage heeds.
type Settings struct {
	// Version keeps the tables of a later run apart; see [civic.Pages.Key].
	Version int `json:"version"`
	// Profile names the numbers of lines and columns, as package vision has
	// them. Empty: reeve.
	Profile string `json:"profile"`
	// MergeLines: whether fragments beside each other become one line. Not set:
	// what the profile says.
	MergeLines *bool `json:"merge_lines"`
	// LineImages is what becomes of the lines' images: none or files. Empty: none.
	LineImages string `json:"line_images"`
}

// profile returns the numbers that the settings name, with their changes.
func (s *Settings) profile() (vision.Profile, error) {
	name := s.Profile
	if name == "" {
		name = vision.Reeve().Name
	}
	p, err := vision.ProfileNamed(name)
	switch {
	case s.MergeLines == nil:
	case !*s.MergeLines:
		p.Layout.Merge = vision.MergeNone
	case p.Layout.Merge == vision.MergeNone:
		p.Layout.Merge = vision.MergeOverlap
	}
	return p, err
}

// Handle writes the range's part of line_images, and the images where they are
// asked for, and hands the pages on with it. Pages that came to nothing before
// have no lines here; their rows in line_detection say why.
func (e *Extractor) Handle(ctx context.Context, task *stage.Task) (stage.Result, error) {
	spec, err := stage.Spec[civic.Pages](task)
	if err != nil {
		return stage.Result{}, err
	}
	if err := spec.Validate(); err != nil {
		return stage.Result{}, fault.Permanent(err)
	}
	if spec.Detection == nil {
		return stage.Result{}, fault.Permanentf("pages %d to %d come without the table that line_detection gives them", spec.First, spec.Last)
	}
	settings, err := stage.Settings[Settings](task)
	if err != nil {
		return stage.Result{}, err
	}
	profile, err := settings.profile()
	if err != nil {
		return stage.Result{}, err
	}
	if mode := settings.LineImages; mode != "" && mode != imagesNone && mode != imagesFiles {
		return stage.Result{}, fault.Permanentf("line_images %q is not offered, only %q and %q", mode, imagesNone, imagesFiles)
	}
	data, err := e.objects.ReadAll(ctx, spec.Detection.Key, spec.Detection.SHA256, maxTable)
	if err != nil {
		return stage.Result{}, err
	}
	found, meta, err := table.ReadDetections(bytes.NewReader(data), int64(len(data))) //nolint:contextcheck // from memory: nothing to wait for
	if err != nil {
		return stage.Result{}, fmt.Errorf("%s: %w", spec.Detection.Key, err)
	}

	byPage := map[int][]table.LineImage{}
	var rows []table.LineImage
	var result stage.Result
	for i := range found {
		d := &found[i]
		if len(d.Contours) != len(d.Scores) {
			return stage.Result{}, fault.Permanentf("%s: page %d has %d lines and %d scores", spec.Detection.Key, d.Page, len(d.Contours), len(d.Scores))
		}
		byPage[int(d.Page)] = Order(d, profile.Layout, spec.Prefix)
	}
	if settings.LineImages == imagesFiles {
		if result.Artifacts, err = e.keep(ctx, &spec, settings.Version, &profile, byPage); err != nil {
			return stage.Result{}, err
		}
	}
	for _, d := range found {
		rows = append(rows, byPage[int(d.Page)]...)
	}

	meta["reading_order"] = profile.Name
	var buf bytes.Buffer
	if err := table.WriteLineImages(&buf, rows, meta); err != nil {
		return stage.Result{}, fault.Permanent(err)
	}
	kept, err := e.objects.Put(ctx, spec.Part(Name, settings.Version, tableName), &buf, int64(buf.Len()), table.ContentType)
	if err != nil {
		return stage.Result{}, err
	}
	spec.Lines = &civic.Object{Key: kept.Key, Size: kept.Size, SHA256: kept.SHA256}
	spec.Results, spec.Text = nil, nil
	result.Output = spec
	result.Metrics = map[string]float64{"pages": float64(len(found)), "lines": float64(len(rows)), "line_images": float64(len(result.Artifacts))}
	result.Artifacts = append(result.Artifacts, kept)
	return result, nil
}

// keep stores an image of each line and notes where. A page that cannot be read
// any more loses its images, not its lines.
func (e *Extractor) keep(ctx context.Context, spec *civic.Pages, version int, profile *vision.Profile, byPage map[int][]table.LineImage) ([]stage.Artifact, error) {
	var wanted []civic.PageImage
	for _, img := range spec.Images {
		if len(byPage[img.Page]) > 0 {
			wanted = append(wanted, img)
		}
	}
	var all []stage.Artifact
	err := e.images.Each(ctx, wanted, func(p pages.Page) error {
		lines := byPage[p.Page]
		if p.Err != nil {
			for i := range lines {
				lines[i].About = pages.Failed(p.PageImage, Name, p.Err)
			}
			return nil
		}
		for i := range lines {
			l := &lines[i]
			crop, err := cut(p.Gray, l, profile)
			if err != nil {
				l.About = pages.Failed(p.PageImage, Name, fmt.Errorf("line %d: %w", l.Index, err))
				continue
			}
			var buf bytes.Buffer
			if err := jpeg.Encode(&buf, crop, &jpeg.Options{Quality: 90}); err != nil {
				return err
			}
			l.Path = spec.Key(Name, version, fmt.Sprintf("lines/%s_%d.jpg", p.Name, l.Index))
			kept, err := e.objects.Put(ctx, l.Path, &buf, int64(buf.Len()), "image/jpeg")
			if err != nil {
				return err
			}
			all = append(all, kept)
		}
		return nil
	})
	return all, err
}

// cut cuts a line out of its page for people to look at: upright, in the
// page's own resolution.
func cut(page *image.Gray, l *table.LineImage, profile *vision.Profile) (*image.Gray, error) {
	if profile.Spread {
		contour := make([]image.Point, len(l.Contour))
		for i, p := range l.Contour {
			contour[i] = image.Pt(int(p[0]), int(p[1]))
		}
		img, _, err := vision.CutSpread(page, contour, profile.Around)
		return img, err
	}
	r := vision.MinAreaRect(places(l.Contour))
	crop := profile.Crop
	crop.Height = max(1, min(int(r.H+0.5), 1024))
	crop.MaxWidth = min(16*crop.MaxWidth, vision.MaxPixels/64/crop.Height)
	return vision.Cut(page, nil, r, crop)
}
