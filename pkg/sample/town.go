// Package sample invents a small town and writes its meeting papers, so that
// demos and tests need no one else's documents. There is one of every kind of
// PDF that a town's web site offers, the broken ones included, and [Town] says
// what is to be made of each. The same call always writes the same bytes.
package sample

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/reeve-pipeline/reeve/pkg/civic"
	"github.com/reeve-pipeline/reeve/pkg/fault"
)

// Town is what was written and what is to be expected of it.
type Town struct {
	// Site is the town's registration. Its source is the folder written to.
	Site  civic.Site
	Files []File
}

// File is one document of a town.
type File struct {
	// Path is relative to the folder, with slashes. It is also the document's source.
	Path string
	// Kind, Meeting and Date are what the path says.
	Kind, Meeting, Date string
	// Status is how the document ends: done, partial, failed or duplicate.
	Status string
	// Pages are what is found in it, all 0 when it fails. A page without text
	// counts as an image: nothing is recognised.
	Pages civic.PageCounts
	// DuplicateOf is the path of the file with the same bytes. Which of the two
	// ends as the duplicate depends on which is fetched first.
	DuplicateOf string
	// Class and Reason say how it fails: the error's class, and words that its
	// message has besides Path.
	Class  fault.Class
	Reason string
	// Phrases are found in its text.
	Phrases []string
}

// File returns the file at a path.
func (t Town) File(path string) (File, bool) {
	for _, f := range t.Files {
		if f.Path == path {
			return f, true
		}
	}
	return File{}, false
}

// Count returns how many files end in a status.
func (t Town) Count(status string) int {
	n := 0
	for _, f := range t.Files {
		if f.Status == status {
			n++
		}
	}
	return n
}

// Pages returns what all files but the duplicates hold together.
func (t Town) Pages() civic.PageCounts {
	var sum civic.PageCounts
	for _, f := range t.Files {
		if f.Status == duplicate {
			continue
		}
		sum.Total += f.Pages.Total
		sum.Native += f.Pages.Native
		sum.Image += f.Pages.Image
		sum.Blank += f.Pages.Blank
	}
	return sum
}

// How a document ends.
const (
	done      = "done"
	partial   = "partial"
	failed    = "failed"
	duplicate = "duplicate"
)

func site(dir, subdomain, name string) (civic.Site, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return civic.Site{}, err
	}
	return civic.Site{
		Subdomain: subdomain, Name: name, State: "VT", Country: "US", Kind: "city",
		Source: abs, StartYear: 2024, Lat: "44.05", Lng: "-72.61",
	}, nil
}

// Write writes the town of Wrenfield to dir, which is created when missing.
// Files that are already there are written over.
func Write(dir string) (Town, error) {
	papers, err := wrenfield()
	if err != nil {
		return Town{}, err
	}
	home, err := site(dir, "wrenfield", "Wrenfield")
	if err != nil {
		return Town{}, err
	}
	town := Town{Site: home}
	for _, p := range papers {
		if err := put(dir, p.Path, p.bytes); err != nil {
			return Town{}, err
		}
		town.Files = append(town.Files, p.File)
	}
	return town, nil
}

// WriteN writes n different documents of one page and about a kilobyte each, for load.
func WriteN(dir string, n int) (Town, error) {
	boards := []string{"CityCouncil", "PlanningBoard", "LibraryBoard", "ParksCommission", "WaterDistrict"}
	home, err := site(dir, "wrenfield-load", "Wrenfield (load)")
	if err != nil {
		return Town{}, err
	}
	home.StartYear = 1950
	town := Town{Site: home}
	first := time.Date(home.StartYear, time.January, 1, 0, 0, 0, 0, time.UTC)
	for i := range n {
		board, date := boards[i%len(boards)], first.AddDate(0, 0, i/len(boards)).Format(time.DateOnly)
		f := minutes(board, date, done, civic.PageCounts{Total: 1, Native: 1})
		phrase := fmt.Sprintf("Resolution %06d", i)
		f.Phrases = []string{phrase}
		text := wrap(fmt.Sprintf("The %s met on %s. A motion to adopt %s carried by a unanimous voice vote of the members present.", board, date, phrase))
		if err := put(dir, f.Path, encode([]sheet{letter(text...)}, "")); err != nil {
			return Town{}, err
		}
		town.Files = append(town.Files, f)
	}
	return town, nil
}

func put(dir, path string, b []byte) error {
	file := filepath.Join(dir, filepath.FromSlash(path))
	err := os.MkdirAll(filepath.Dir(file), 0o755)
	if err == nil {
		err = os.WriteFile(file, b, 0o644)
	}
	if err != nil {
		return fmt.Errorf("write the sample: %w", err)
	}
	return nil
}

// A paper is a file and its bytes.
type paper struct {
	File
	bytes []byte
}

func minutes(board, date, status string, pages civic.PageCounts) File {
	return File{Path: board + "/" + date + ".pdf", Kind: civic.Minutes, Meeting: board, Date: date, Status: status, Pages: pages}
}

func agenda(board, date, status string, pages civic.PageCounts) File {
	f := minutes(board, date, status, pages)
	f.Path, f.Kind = "_agendas/"+f.Path, civic.Agenda
	return f
}

func (f File) saying(phrases ...string) File {
	f.Phrases = phrases
	return f
}

func (f File) failing(reason string) File {
	f.Class, f.Reason = fault.ClassPermanent, reason
	return f
}

// wrenfield returns the town's papers.
func wrenfield() ([]paper, error) {
	var errs []error
	scan := func(lines ...string) sheet {
		s, err := scanned(lines...)
		errs = append(errs, err)
		return s
	}
	fax := func(lines ...string) sheet {
		s := scan(lines...)
		s.bitonal = true
		return s
	}
	native := func(n int) civic.PageCounts { return civic.PageCounts{Total: n, Native: n} }
	image := func(n int) civic.PageCounts { return civic.PageCounts{Total: n, Image: n} }

	library := encode([]sheet{
		letter(libraryReport...),
		letter(),
		letter(libraryNotice...),
	}, "")
	libraryPages := civic.PageCounts{Total: 3, Native: 2, Blank: 1}
	whole := encode([]sheet{letter(councilApril...), letter(councilApril...)}, "")
	absurd := letter("Plan of the sewers of Wrenfield, scale 1 to 1.")
	absurd.width, absurd.height = 200_000, 200_000

	papers := []paper{
		{
			minutes("CityCouncil", "2024-01-09", done, native(3)).
				saying("stormwater easement", "Ayes: 4 - Councilmembers Abara", "Larkspur", "com-\nprehensive"),
			encode([]sheet{letter(councilJanuary[0]...), letter(councilJanuary[1]...), letter(councilJanuary[2]...)}, ""),
		},
		{
			minutes("CityCouncil", "2024-02-13", done, native(14)).
				saying("opened the public hearing", "speaker number 2 ", "speaker number 13 "),
			encode(hearing(), ""),
		},
		{
			minutes("CityCouncil", "2024-03-12", partial, civic.PageCounts{Total: 3, Native: 2, Image: 1}).
				saying("signature page attached", "Hollis & Daughters, at $641,900"),
			encode([]sheet{letter(councilMarch[0]...), scan(signatures...), letter(councilMarch[1]...)}, ""),
		},
		{minutes("LibraryBoard", "2024-01-17", done, libraryPages).saying("bookmobile", "señora Ibáñez"), library},
		{
			func() File {
				f := minutes("LibraryBoard", "2024-03-20", duplicate, libraryPages)
				f.DuplicateOf = "LibraryBoard/2024-01-17.pdf"
				return f
			}(),
			library,
		},
		{minutes("PlanningBoard", "2024-02-26", partial, image(2)), encode([]sheet{scan(planning...), scan(signatures...)}, "")},
		{
			minutes("Mayor'sYouthPanel(MYP)", "2024-02-05", done, native(1)).saying("skate park"),
			encode([]sheet{letter(youth...)}, ""),
		},
		{
			agenda("CityCouncil", "2024-01-09", done, native(1)).saying("Adoption of Ordinance 24-03"),
			encode([]sheet{letter(councilAgenda...)}, ""),
		},
		{agenda("PlanningBoard", "2024-02-26", partial, image(1)), encode([]sheet{fax(planningAgenda...)}, "")},

		{minutes("CityCouncil", "2024-04-09", failed, civic.PageCounts{}).failing("damaged or cut short"), whole[:len(whole)/2]},
		{minutes("ParksCommission", "2024-01-11", failed, civic.PageCounts{}).failing("empty"), nil},
		{
			minutes("ParksCommission", "2024-02-08", failed, civic.PageCounts{}).failing("password"),
			encode([]sheet{letter("Closed session. Lease of the boathouse.")}, "boathouse"),
		},
		{minutes("ParksCommission", "2024-03-14", failed, civic.PageCounts{}).failing("200000 x 200000 points"), encode([]sheet{absurd}, "")},
		{agenda("ParksCommission", "2024-02-08", failed, civic.PageCounts{}).failing("html"), []byte(notFound)},
	}
	return papers, errors.Join(errs...)
}

// hearing is long enough that page 10 sorts before page 2 where somebody sorts
// page numbers as text.
func hearing() []sheet {
	speakers := []string{
		"Odile Marchetti, 22 Tannery Row", "Bram Okonkwo, 310 Orchard Street", "Lucinda Pell, 5 Chapel Hill",
		"Teodor Vance, 1147 Quarry Lane", "Agnes Whitlock, 88 Mill Race", "Rafael Sundberg, 14 Depot Square",
	}
	sheets := []sheet{letter(lines(
		"MINUTES OF THE REGULAR MEETING OF THE CITY COUNCIL",
		"TUESDAY - FEBRUARY 13, 2024 - 7:00 P.M.",
		"",
		"Mayor Hartwell convened the meeting at 7:02 p.m. and opened the public hearing on the mill race bridge.",
		"",
		"ROLL CALL - Present: Councilmembers Abara, Quill, Tessier, and Mayor Hartwell - 4. Absent: Councilmember Novak - 1.",
		"",
		"The City Engineer presented three ways to repair the bridge, at $410,000, $655,000 and $1,210,000, and said that the cheapest would close Tannery Row for eleven weeks.",
	)...)}
	for n := 1; n <= 13; n++ {
		who := speakers[n%len(speakers)]
		sheets = append(sheets, letter(lines(
			fmt.Sprintf("City Council - February 13, 2024 - Page %d", n+1),
			"",
			fmt.Sprintf("%s, was speaker number %d on the bridge.", who, n),
			"",
			fmt.Sprintf("The speaker said that the crossing had been closed %d times in the last year, and asked the Council to weigh the cost of delay against the cost of the repair.", n+2),
			"",
			"Councilmember Quill asked whether the detour would serve the school buses. The City Engineer answered that it would, with two stops moved to Depot Square.",
		)...))
	}
	return sheets
}

// lines breaks paragraphs into lines that fit the page.
func lines(paragraphs ...string) []string {
	var all []string
	for _, p := range paragraphs {
		all = append(all, wrap(p)...)
	}
	return all
}

// columns is the number of characters that surely fit on a line.
const columns = 84

func wrap(paragraph string) []string {
	var all []string
	line := ""
	for word := range strings.FieldsSeq(paragraph) {
		switch {
		case line == "":
			line = word
		case len(line)+1+len(word) > columns:
			all = append(all, line)
			line = word
		default:
			line += " " + word
		}
	}
	return append(all, line)
}
