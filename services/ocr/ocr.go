// Package ocr reads the lines of pages: it cuts each out of its page image as
// line_extraction outlined it, and makes text of it. Nothing that it makes of a
// line depends on the lines beside it.
package ocr

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/reeve-pipeline/reeve/pkg/civic"
	"github.com/reeve-pipeline/reeve/pkg/fault"
	"github.com/reeve-pipeline/reeve/pkg/model"
	"github.com/reeve-pipeline/reeve/pkg/pages"
	"github.com/reeve-pipeline/reeve/pkg/stage"
	"github.com/reeve-pipeline/reeve/pkg/table"
	"github.com/reeve-pipeline/reeve/pkg/vision"
	"github.com/reeve-pipeline/reeve/pkg/wylie"
)

// Name is the stage's one name.
const Name = "ocr"

const (
	// resultsTable and textTable are the tables', and of the folders of their parts.
	resultsTable = "ocr_results"
	textTable    = "ocr_text"
	// maxTable is the largest table read, in bytes.
	maxTable = 256 << 20
	// algorithm is raised when the same model reads another text than before.
	algorithm = 1
)

// Objects keeps the tables. Put may overwrite.
type Objects interface {
	ReadAll(ctx context.Context, key, sha256 string, limit int64) ([]byte, error)
	Put(ctx context.Context, key string, r io.Reader, size int64, contentType string) (stage.Artifact, error)
}

// Images reads page images, as [pages.Reader] does.
type Images interface {
	Each(ctx context.Context, images []civic.PageImage, work func(pages.Page) error) error
}

// Recogniser is the stage's handler.
type Recogniser struct {
	objects Objects
	images  Images
	reader  *Reader
	engines chan Engine // those that are free
}

// New returns a handler that works on as many tasks at once as there are
// engines, all of the reader's model.
func New(objects Objects, images Images, reader *Reader, engines ...Engine) *Recogniser {
	free := make(chan Engine, len(engines))
	for _, e := range engines {
		free <- e
	}
	return &Recogniser{objects, images, reader, free}
}

// Settings are those of a run that the stage heeds.
type Settings struct {
	// Version keeps the tables of a later run apart; see [civic.Pages.Key].
	Version int `json:"version"`
	// Profile names the numbers that do not come with the model, as package
	// vision has them. Empty: what suits the model's family.
	Profile string `json:"profile"`
	// Encoding is the form of the text: unicode or wylie. Empty: unicode.
	Encoding string `json:"encoding"`
	// KFactor and BboxTolerance, when above 0, take the place of the profile's:
	// how far around its outline a line is cut out, and how high at most, in
	// heights of the line.
	KFactor       float64 `json:"k_factor"`
	BboxTolerance float64 `json:"bbox_tolerance"`
}

// profile returns the numbers that the settings name, with their changes.
func (s *Settings) profile(m *model.Manifest) (vision.Profile, error) {
	name := s.Profile
	if name == "" {
		name = vision.Reeve().Name
		if m.Canvas.Fit == model.FitCanvas {
			name = vision.BDRCProd().Name
		}
	}
	p, err := vision.ProfileNamed(name)
	if s.KFactor > 0 {
		p.Around.K = s.KFactor
	}
	if s.BboxTolerance > 0 {
		p.Around.Tolerance = s.BboxTolerance
	}
	return p, err
}

// Handle writes the range's parts of ocr_results and of the pages' text, and
// hands the pages on with them. A line that cannot be read costs that line, a
// page image that cannot be read that page: the rows say why.
func (r *Recogniser) Handle(ctx context.Context, task *stage.Task) (stage.Result, error) {
	spec, err := stage.Spec[civic.Pages](task)
	if err != nil {
		return stage.Result{}, err
	}
	if err := spec.Validate(); err != nil {
		return stage.Result{}, fault.Permanent(err)
	}
	if spec.Detection == nil || spec.Lines == nil {
		return stage.Result{}, fault.Permanentf("pages %d to %d come without the tables that line_detection and line_extraction give them", spec.First, spec.Last)
	}
	settings, err := stage.Settings[Settings](task)
	if err != nil {
		return stage.Result{}, err
	}
	profile, err := settings.profile(r.reader.model)
	if err != nil {
		return stage.Result{}, err
	}
	if settings.Encoding == "" {
		settings.Encoding = model.Unicode
	}
	if settings.Encoding != model.Unicode && settings.Encoding != model.Wylie {
		return stage.Result{}, fault.Permanentf("encoding %q is neither %s nor %s", settings.Encoding, model.Unicode, model.Wylie)
	}
	work, err := r.load(ctx, &spec)
	if err != nil {
		return stage.Result{}, err
	}
	select {
	case engine := <-r.engines:
		defer func() { r.engines <- engine }()
		work.engine, work.profile, work.encoding = engine, &profile, settings.Encoding
	case <-ctx.Done():
		return stage.Result{}, ctx.Err()
	}

	var wanted []civic.PageImage
	for _, img := range spec.Images {
		if len(work.lines[img.Page]) > 0 {
			wanted = append(wanted, img)
		}
	}
	if err := r.images.Each(ctx, wanted, func(p pages.Page) error { return work.read(ctx, p) }); err != nil {
		return stage.Result{}, err
	}
	return r.keep(ctx, &spec, settings, work)
}

// load reads what the stages before have found.
func (r *Recogniser) load(ctx context.Context, spec *civic.Pages) (*work, error) {
	data, err := r.objects.ReadAll(ctx, spec.Detection.Key, spec.Detection.SHA256, maxTable)
	if err != nil {
		return nil, err
	}
	found, _, err := table.ReadDetections(bytes.NewReader(data), int64(len(data))) //nolint:contextcheck // from memory: nothing to wait for
	if err != nil {
		return nil, fmt.Errorf("%s: %w", spec.Detection.Key, err)
	}
	if data, err = r.objects.ReadAll(ctx, spec.Lines.Key, spec.Lines.SHA256, maxTable); err != nil {
		return nil, err
	}
	lines, _, err := table.ReadLineImages(bytes.NewReader(data), int64(len(data))) //nolint:contextcheck // from memory: nothing to wait for
	if err != nil {
		return nil, fmt.Errorf("%s: %w", spec.Lines.Key, err)
	}
	w := &work{reader: r.reader, found: map[int]*table.Detection{}, lines: map[int][]table.LineImage{}, results: map[int][]table.Recognition{}, texts: map[int]table.Page{}}
	for i := range found {
		w.found[int(found[i].Page)] = &found[i]
	}
	for _, l := range lines {
		w.lines[int(l.Page)] = append(w.lines[int(l.Page)], l)
	}
	for _, img := range spec.Images {
		if w.found[img.Page] == nil {
			return nil, fault.Permanentf("%s: page %d is missing", spec.Detection.Key, img.Page)
		}
	}
	return w, nil
}

// work is one task in hand. Its maps are by page.
type work struct {
	reader   *Reader
	engine   Engine
	profile  *vision.Profile
	encoding string

	found   map[int]*table.Detection
	lines   map[int][]table.LineImage
	results map[int][]table.Recognition
	texts   map[int]table.Page
}

// read reads the lines of a page. The error is one that the page is not to
// blame for.
func (w *work) read(ctx context.Context, p pages.Page) error {
	lines, d := w.lines[p.Page], w.found[p.Page]
	var sheet *Sheet
	if p.Err == nil {
		sheet, p.Err = NewSheet(p.Gray, p.DPI, d, w.reader.model, w.profile)
	}
	rows := make([]table.Recognition, len(lines))
	placed := make([]Placed, len(lines))
	var first error // of the lines that failed
	failed := 0
	for i, l := range lines {
		row := table.Recognition{About: p.About(Name, civic.SourceOCR), Index: l.Index, GUID: l.GUID, Encoding: w.encoding}
		if p.Err == nil {
			text, confidence, err := w.line(ctx, sheet, l.Contour)
			switch {
			case fault.Of(err) == fault.ClassPermanent:
				row.About = pages.Failed(p.PageImage, Name, fmt.Errorf("%s: line %d: %w", p.Name, l.Index, err))
				failed++
				first = cmp.Or(first, err)
			case err != nil:
				return fmt.Errorf("%s: line %d: %w", p.Name, l.Index, err)
			default:
				row.Confidence = float32(confidence)
				row.Text, row.ErrorMessage = spell(text, w.reader.model.Encoding, w.encoding)
			}
		}
		rows[i] = row
		placed[i] = Placed{row.Text, Rect(points(l.Contour), d.Angle)}
	}
	w.results[p.Page] = rows

	page := table.Page{Page: int32(p.Page), Source: civic.SourceOCR}
	if p.DPI > 0 {
		page.Width, page.Height = float32(p.Width)*72/float32(p.DPI), float32(p.Height)*72/float32(p.DPI)
	}
	page.Text = Text(placed, d.Angle)
	switch {
	case p.Err != nil:
		page.Source, page.Error = civic.SourceFailed, fault.Message(p.Err)
	case failed == len(lines):
		page.Source, page.Error = civic.SourceFailed, fault.Message(first)
	case page.Text == "" && failed == 0:
		page.Source = civic.SourceBlank // what looked like lines was none
	case failed > 0:
		page.Error = fmt.Sprintf("%d of %d lines could not be read", failed, len(lines))
	}
	w.texts[p.Page] = page
	return nil
}

// line reads one line, as the model spells it.
func (w *work) line(ctx context.Context, sheet *Sheet, contour []table.Point) (text string, confidence float64, err error) {
	picture, err := sheet.Line(contour)
	if err != nil {
		return "", 0, err
	}
	return w.reader.Read(ctx, w.engine, picture)
}

// page returns the text of a page, whether it had lines to read or not.
func (w *work) page(img civic.PageImage) table.Page {
	if page, ok := w.texts[img.Page]; ok {
		return page
	}
	page, d := table.Page{Page: int32(img.Page), Source: civic.SourceBlank}, w.found[img.Page]
	if img.DPI > 0 {
		page.Width, page.Height = float32(d.Width)*72/float32(img.DPI), float32(d.Height)*72/float32(img.DPI)
	}
	if !d.OK {
		page.Source, page.Error = civic.SourceFailed, d.ErrorMessage
	}
	return page
}

// keep writes the tables.
func (r *Recogniser) keep(ctx context.Context, spec *civic.Pages, settings Settings, w *work) (stage.Result, error) {
	var rows []table.Recognition
	var texts []table.Page
	metrics := map[string]float64{"pages": float64(len(spec.Images))}
	for _, img := range spec.Images {
		for _, row := range w.results[img.Page] {
			rows = append(rows, row)
			switch {
			case !row.OK:
				metrics["lines_failed"]++
			case row.ErrorMessage != "":
				metrics["lines_misspelt"]++
			}
		}
		page := w.page(img)
		texts = append(texts, page)
		metrics["pages_"+page.Source]++
		metrics["characters"] += float64(utf8.RuneCountInString(page.Text))
	}
	metrics["lines"] = float64(len(rows))

	meta := r.about(w.profile, settings)
	var results, text bytes.Buffer
	if err := table.WriteRecognitions(&results, rows, meta); err != nil {
		return stage.Result{}, fault.Permanent(err)
	}
	if err := table.WritePages(&text, texts, meta); err != nil {
		return stage.Result{}, fault.Permanent(err)
	}
	keptResults, err := r.objects.Put(ctx, spec.Part(Name, settings.Version, resultsTable), &results, int64(results.Len()), table.ContentType)
	if err != nil {
		return stage.Result{}, err
	}
	keptText, err := r.objects.Put(ctx, spec.Part(Name, settings.Version, textTable), &text, int64(text.Len()), table.ContentType)
	if err != nil {
		return stage.Result{}, err
	}
	out := *spec
	out.Results = &civic.Object{Key: keptResults.Key, Size: keptResults.Size, SHA256: keptResults.SHA256}
	out.Text = &civic.Object{Key: keptText.Key, Size: keptText.Size, SHA256: keptText.SHA256}
	return stage.Result{Output: out, Artifacts: []stage.Artifact{keptResults, keptText}, Metrics: metrics}, nil
}

// about is what the tables' footers say of how they came about.
func (r *Recogniser) about(profile *vision.Profile, settings Settings) map[string]string {
	m := r.reader.model
	config, err := json.Marshal(struct {
		Algorithm int
		Model     *model.Manifest
		Profile   *vision.Profile
		Encoding  string
		Below     float64
		Width     int
	}{algorithm, m, profile, settings.Encoding, r.reader.decode.Below, r.reader.decode.Width})
	if err != nil { // numbers and text alone
		panic(err)
	}
	sum := sha256.Sum256(config)
	return map[string]string{
		"model": m.Name, "model_sha256": m.SHA256, "profile": profile.Name, "encoding": settings.Encoding, "config_sha256": hex.EncodeToString(sum[:]),
	}
}

func points(contour []table.Point) []vision.Point {
	all := make([]vision.Point, len(contour))
	for i, p := range contour {
		all[i] = vision.Point{X: float64(p[0]), Y: float64(p[1])}
	}
	return all
}

// spell turns text from the encoding that a model writes into the one wanted.
// The remark names what is not spelt by the scheme; it is in the text as well
// as it can be.
func spell(text, from, to string) (spelt, remark string) {
	switch {
	case from == to:
		return text, ""
	case to == model.Wylie:
		return wylie.FromUnicode(text), ""
	}
	spelt, problems := wylie.ToUnicode(text)
	if len(problems) > 0 {
		remark = fmt.Sprintf("%d pieces are no Wylie, the first: %v", len(problems), problems[0])
	}
	return spelt, remark
}
