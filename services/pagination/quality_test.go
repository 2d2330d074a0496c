package pagination_test

import (
	"strings"
	"testing"

	"github.com/reeve-pipeline/reeve/pkg/pdf"
	"github.com/reeve-pipeline/reeve/services/pagination"
)

const minutes = `MINUTES OF THE REGULAR MEETING OF THE CITY COUNCIL
TUESDAY - FEBRUARY 13, 2024 - 7:00 P.M.
ROLL CALL - Present: Councilmembers Abara, DeWitt, McQuill, Tessier, and Mayor Hartwell - 5. Absent: None.
(24-014) Recommendation to Award a Contract in the Amount of $86,150, Including Contingencies, to Larkspur Paving.
Councilmember Tessier moved approval of the staff recommendation. Vice Mayor O'Donnell-Knightsbridge seconded the
motion, which carried by the following roll call vote: Ayes: 4. Noes: 1 - Councilmember Abara. See www.wrenfield.gov/council.`

// shifted moves every letter on by three, as a font without a map of its
// glyphs does.
func shifted(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z':
			return 'a' + (r-'a'+3)%26
		case 'A' <= r && r <= 'Z':
			return 'A' + (r-'A'+3)%26
		}
		return r
	}, text)
}

func TestQuality(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		page     pdf.Page
		low, top float64
	}{
		{"good minutes", pdf.Page{Text: minutes}, 0.97, 1},
		{"the last lines of good minutes", pdf.Page{Text: "ADJOURNMENT\nThe meeting was adjourned at 9:14 p.m.\nPhilippa Dunmore\nCity Clerk"}, 0.97, 1},
		{"a table of numbers", pdf.Page{Text: "Fund  2022-23  2023-24  Change\n101 General ........ $1,204,500 $1,310,250 8.8%\n205 Library (net) _____ 318,402.77 (12,004) -3.6%\nR-1 / C-2 / M-1A zones: 12 34 56 78"}, 0.95, 1},
		{"an agenda with bullets and leaders", pdf.Page{Text: "1. Roll Call ............ 2\n• Ordinance No. 24-03, §13A(b)(2)\n* * *\nVII. Adjournment ______"}, 0.95, 1},
		{"acronyms", pdf.Page{Text: "CDBG and NPDES funds for the HVAC of the PWD, per CEQA, FY23-24, CIP No. 91-812, RFP #7B, and the MOU with the ACTC and BCDC."}, 0.95, 1},
		{"Spanish", pdf.Page{Text: "La señora Ibáñez ofreció un taller de encuadernación para niños y mayores; la inscripción, según el año, será gratuita."}, 0.97, 1},
		{"Vietnamese", pdf.Page{Text: "Hội đồng thành phố sẽ họp vào thứ Ba để thảo luận về ngân sách và các dịch vụ công cộng cho người dân."}, 0.95, 1},
		{"Polish", pdf.Page{Text: "Rada miejska przyjęła uchwałę w sprawie budżetu; przewodniczący zamknął posiedzenie o godzinie dwudziestej pierwszej, dziękując wszystkim mieszkańcom."}, 0.95, 1},
		{"German", pdf.Page{Text: "Der Stadtrat beschloss die Straßenausbaubeitragssatzung; Bürgermeisterin Großkreutz schloss die Sitzung gegen einundzwanzig Uhr."}, 0.9, 1},
		{"Chinese", pdf.Page{Text: "市议会将于星期二举行会议，讨论预算和公共服务。"}, 0.97, 1},
		{"Tibetan", pdf.Page{Text: "བོད་ཡིག་གི་དཔེ་ཆ། འདི་ནི་དཔེ་མཚོན་ཡིན།"}, 0.9, 1},
		{"good OCR with a few slips", pdf.Page{Text: strings.Replace(strings.Replace(minutes, "Council", "Counci1", 1), "carried", "carr;ed", 1)}, 0.85, 0.99},

		{"bad OCR", pdf.Page{Text: "Tlje Cit;y Co~nc\\l m€t 1n reg'~lar s3ssi0n aud th3 rn^yor c@lled .,;|: t0 or6er @t 7:3O p,rn. l~l|| rnern6er$ pr3s3nt ex<ept C0unc1lrn3rnb3r A8ara"}, 0, 0.65},
		{"a picture read as text", pdf.Page{Text: ".,;|~ ^^'-_ iiiilll }{][ ~~=_| lIlI1l ..;:,'` |\\/| rnnrnnm ,.-'* \\\\//= wvvwwv"}, 0, 0.35},
		{"glyph numbers", pdf.Page{Text: strings.Repeat("(cid:12)(cid:47)(cid:3) ", 40)}, 0, 0.05},
		{"UTF-8 read as Latin-1", pdf.Page{Text: "seÃ±ora IbÃ¡Ã±ez inscripciÃ³n niÃ±os donâ€™t â€œMayorâ€\u009d aÃ±o segÃºn"}, 0, 0.1},
		{"letters shifted", pdf.Page{Text: shifted(minutes)}, 0, 0.35},
		{"private use", pdf.Page{Text: strings.Repeat("\ue001\ue014\ue203 ", 30)}, 0, 0.05},
		{"half of the glyphs unmapped", pdf.Page{Text: minutes, Unmapped: 500}, 0.4, 0.6},
		{"letterspaced", pdf.Page{Text: strings.Join(strings.Split(strings.ReplaceAll(minutes, " ", ""), ""), " ")}, 0, 0.5},
		{"a header over a scan", pdf.Page{Text: "City Council - February 13, 2024 - Page 3", Images: 1}, 0.01, 0.2},
		{"minutes with a seal", pdf.Page{Text: minutes, Images: 1}, 0.97, 1},
		{"nothing", pdf.Page{}, 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := pagination.Quality(tt.page); got < tt.low || got > tt.top {
				t.Errorf("quality %.3f, want %.2f to %.2f", got, tt.low, tt.top)
			}
		})
	}
}
