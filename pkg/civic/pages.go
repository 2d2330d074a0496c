package civic

import (
	"errors"
	"fmt"
	"path"
	"strings"
)

// MaxPages is the most pages that one [Pages] may hold: what one task of the
// OCR stages works on.
const MaxPages = 32

// Pages is a range of pages of one document or volume that have to be read: the
// spec of line_detection, line_extraction and ocr. Each stage adds the tables
// it wrote and hands it on; [Pages.Text] is what reduce joins.
type Pages struct {
	// Prefix is what the keys of everything made of these pages begin with: the
	// document's version (as [DocumentKey] names it, without a file) or the
	// volume (jobs/JOB/volumes/WORK-IMAGEGROUP).
	Prefix string `json:"prefix"`
	// Exactly one of the two names what the pages are of. It decides the layout
	// of keys, see [Pages.Key].
	Document string `json:"document_id,omitempty"`
	Volume   string `json:"volume_id,omitempty"`
	// First and Last bound the range; its pages need not fill it.
	First int `json:"first"`
	Last  int `json:"last"`
	// Images are the pages to read, by ascending page number.
	Images []PageImage `json:"images"`

	Detection *Object `json:"line_detection,omitempty"` // table.Detection rows
	Lines     *Object `json:"line_images,omitempty"`    // table.LineImage rows
	Results   *Object `json:"ocr_results,omitempty"`    // table.Recognition rows
	Text      *Object `json:"text,omitempty"`           // table.Page rows
}

// PageImage is the picture of one page: a JPEG, PNG or TIFF file.
type PageImage struct {
	Page int `json:"page"` // from 1
	// Name is the picture's file name, unique within its document or volume.
	Name string `json:"name"`
	Object
	// Width and Height are the picture's size, as far as it is known before it
	// is opened; what is found in the file counts.
	Width  int `json:"width,omitempty"`  // px
	Height int `json:"height,omitempty"` // px
	DPI    int `json:"dpi,omitempty"`    // px per inch; 0: not known
}

// Validate reports the first thing that makes no sense. The same pages never
// become valid.
func (p *Pages) Validate() error {
	switch {
	case p.Prefix == "":
		return errors.New("pages come without the prefix of their objects")
	case (p.Document == "") == (p.Volume == ""):
		return errors.New("pages are of a document or of a volume, one of the two")
	case p.First < 1 || p.Last < p.First:
		return fmt.Errorf("pages %d to %d are no range", p.First, p.Last)
	case len(p.Images) == 0 || len(p.Images) > MaxPages:
		return fmt.Errorf("pages %d to %d come with %d images, not 1 to %d", p.First, p.Last, len(p.Images), MaxPages)
	}
	names := map[string]bool{}
	for i, img := range p.Images {
		switch {
		case img.Page < p.First || img.Page > p.Last:
			return fmt.Errorf("page %d is outside of %d to %d", img.Page, p.First, p.Last)
		case i > 0 && img.Page <= p.Images[i-1].Page:
			return fmt.Errorf("page %d follows page %d", img.Page, p.Images[i-1].Page)
		case img.Key == "":
			return fmt.Errorf("page %d comes without the key of its image", img.Page)
		case img.Name == "" || img.Name == "." || img.Name == ".." || strings.ContainsAny(img.Name, "/\\\x00"):
			return fmt.Errorf("page %d: %q is no file name", img.Page, img.Name)
		case names[img.Name]:
			return fmt.Errorf("page %d: another page is called %s, too", img.Page, img.Name)
		}
		names[img.Name] = true
	}
	return nil
}

// Key names a file that a stage makes of these pages. Those of a document are
// at PREFIX/FILE, those of a volume at PREFIX/STAGE/FILE. A version above 0
// keeps a later run's files apart from the first's: PREFIX/vN/FILE.
func (p *Pages) Key(stage string, version int, file string) string {
	dir := p.Prefix
	if p.Volume != "" {
		dir = path.Join(dir, stage)
	}
	if version > 0 {
		dir = path.Join(dir, fmt.Sprintf("v%d", version))
	}
	return path.Join(dir, file)
}

// Part names this range's part of a table, which is a folder of such parts:
// programs that read Parquet open the folder as one table.
func (p *Pages) Part(stage string, version int, table string) string {
	return p.Key(stage, version, fmt.Sprintf("%s.parquet/part-%05d-%05d.parquet", table, p.First, p.Last))
}
