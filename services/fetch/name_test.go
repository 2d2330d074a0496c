package fetch

import (
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/reeve-pipeline/reeve/pkg/civic"
)

func TestCalendar_date(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"2024-01-15":                      "2024-01-15",
		"2024_01_15":                      "2024-01-15",
		"2024.1.5":                        "2024-01-05",
		"2024/01/15":                      "2024-01-15",
		"2024 01 15":                      "2024-01-15",
		"01/15/2024":                      "2024-01-15",
		"1/5/2024":                        "2024-01-05",
		"1-15-24":                         "2024-01-15",
		"01.15.98":                        "1998-01-15",
		"15/01/2024":                      "2024-01-15",
		"20240115":                        "2024-01-15",
		"01152024":                        "2024-01-15",
		"CC-Minutes20240115final":         "2024-01-15",
		"Jan. 15, 2024":                   "2024-01-15",
		"Jan 15 2024":                     "2024-01-15",
		"January 15, 2024":                "2024-01-15",
		"JANUARY 15TH, 2024":              "2024-01-15",
		"January\u00a015,\u00a02024":      "2024-01-15",
		"January 15 2024":                 "2024-01-15",
		"Tuesday, September 3rd, 2024":    "2024-09-03",
		"Sept. 3, 2024":                   "2024-09-03",
		"15 January 2024":                 "2024-01-15",
		"15th of January, 2024":           "2024-01-15",
		"15-Jan-24":                       "2024-01-15",
		"Jan-15-24":                       "2024-01-15",
		"2024-Jan-15":                     "2024-01-15",
		"15Jan2024":                       "2024-01-15",
		"MinutesJanuary152024":            "2024-01-15",
		"January_15_2024_Minutes":         "2024-01-15",
		"15 de enero de 2024":             "2024-01-15",
		"3 de setiembre de 2024":          "2024-09-03",
		"May 1, 2024":                     "2024-05-01",
		"2024-02-29":                      "2024-02-29",
		"FY 2023-24 report of 01/15/2024": "2024-01-15",
		"2024-13-45 or 2024-01-15":        "2024-01-15",
		"12/31/2023 - 01/02/2024":         "2023-12-31",
		"Minutes 2024-01-15 (2)":          "2024-01-15",
		"2023-02-29":                      "",
		"2024-00-10":                      "",
		"2024-04-31":                      "",
		"99/99/2024":                      "",
		"January 32, 2024":                "",
		"12024-01-15":                     "",
		"2024-01-156":                     "",
		"January 15, 10 am":               "",
		"January 15 10 am":                "",
		"Mayor 15 2024":                   "",
		"marjan 15 2024":                  "",
		"1 15 24":                         "",
		"Resolution 2024-05 12 pages":     "",
		"1.2.3":                           "",
		"192.168.1.24":                    "",
		"20240115120000":                  "",
		"123456":                          "",
		"0000-00-00":                      "",
		"3024-01-15":                      "",
		"":                                "",
		"Minutes":                         "",
	} {
		if got, _, _ := (calendar{}).date(text); got != want {
			t.Errorf("date(%q) = %q, want %q", text, got, want)
		}
	}
	for text, want := range map[string]string{
		"05/01/2024": "2024-01-05", "15/01/2024": "2024-01-15", "01/15/2024": "2024-01-15", "05-01-24": "2024-01-05",
	} {
		if got, _, _ := (calendar{dayFirst: true}).date(text); got != want {
			t.Errorf("day first: date(%q) = %q, want %q", text, got, want)
		}
	}
}

func TestCalendar_dateIn(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"January 15": "2024-01-15", "Jan. 15th": "2024-01-15", "15 January": "2024-01-15", "01-15": "2024-01-15",
		"Feb 29": "2024-02-29", "Minutes of May 6": "2024-05-06", "Mayor 6": "", "7:00": "", "13-45": "", "Item 4": "",
	} {
		if got, _, _ := (calendar{}).dateIn(2024, text); got != want {
			t.Errorf("dateIn(2024, %q) = %q, want %q", text, got, want)
		}
	}
}

func TestSimplify(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"City Council":                                                     "CityCouncil",
		"Parks & Recreation *":                                             "ParksAndRecreation",
		"Planning/Zoning Board":                                            "PlanningAndZoningBoard",
		"Meeting of the City Council":                                      "CityCouncil",
		"Concurrent Meeting of the Board":                                  "Board",
		"Special Concurrent Meeting of the City Council":                   "CityCouncil",
		"Special Meeting of the City Council":                              "SpecialCityCouncil", // as clerk has it
		"CityofAlameda-ACTransitInteragencyLiaisonCommittee(ILC)":          "CityofAlameda-ACTransitInteragencyLiaisonCommittee(ILC)",
		"City of Alameda - AC Transit Interagency Liaison Committee (ILC)": "CityofAlameda-ACTransitInteragencyLiaisonCommittee(ILC)",
		"Comite\u0301 d’urbanisme":                                         "Comitéd’urbanisme",
		"..":                                                               unknown, "": unknown, "***": unknown, "a/../b": "aAnd..Andb", "x\x00y\\z\n": "xyz",
		strings.Repeat("é", 100): strings.Repeat("é", 60),
	} {
		if got := simplify(name); got != want {
			t.Errorf("simplify(%q) = %q, want %q", name, got, want)
		}
	}
}

func TestCalendar_describe(t *testing.T) {
	t.Parallel()
	fs := func(p string) clues {
		stem, folders := filed(p)
		return clues{texts: []string{stem}, folders: folders, tree: true}
	}
	for _, tt := range []struct {
		name                string
		clues               clues
		kind, meeting, date string
	}{
		{"clerk's tree", fs("CityCouncil/2024-01-15.pdf"), "minutes", "CityCouncil", "2024-01-15"},
		{"clerk's agendas", fs("_agendas/CityCouncil/2024-01-15.pdf"), "agenda", "CityCouncil", "2024-01-15"},
		{"clerk's whole tree", fs("_agendas/pdfs/PlanningBoard/2024-01-15.pdf"), "agenda", "PlanningBoard", "2024-01-15"},
		{"a name with all sorts in it", fs("CityofAlameda-ACTransitInteragencyLiaisonCommittee(ILC)/2018-01-03.pdf"), "minutes", "CityofAlameda-ACTransitInteragencyLiaisonCommittee(ILC)", "2018-01-03"},
		{"no word for a board", fs("Harbor Days & Co/2018-01-03.pdf"), "minutes", "HarborDaysAndCo", "2018-01-03"},
		{"years as folders", fs("Planning Board/2024/Agendas/Jan 15.pdf"), "agenda", "PlanningBoard", "2024-01-15"},
		{"folders of a date", fs("LibraryBoard/2024/01/15/Minutes.pdf"), "minutes", "LibraryBoard", "2024-01-15"},
		{"flat, run together", fs("CityCouncil_2024-01-15_agenda.pdf"), "agenda", "CityCouncil", "2024-01-15"},
		{"flat, in words", fs("City Council Minutes 01-15-2024.pdf"), "minutes", "CityCouncil", "2024-01-15"},
		{"flat, with hyphens", fs("planning-board-agenda-2024-01-15.pdf"), "agenda", "PlanningBoard", "2024-01-15"},
		{"flat, camel", fs("PlanningBoardMinutes20240115.pdf"), "minutes", "PlanningBoard", "2024-01-15"},
		{"flat, no board", fs("2024-01-15.pdf"), "minutes", unknown, "2024-01-15"},
		{"nothing at all", fs("scan0001.pdf"), "minutes", unknown, ""},
		{"generic folders", fs("pdfs/documents/2024-01-15.pdf"), "minutes", unknown, "2024-01-15"},
		{"a board named for agendas", fs("Agenda Review Committee/2024-01-15.pdf"), "minutes", "AgendaReviewCommittee", "2024-01-15"},
		{"a folder of one kind", fs("Council Agendas/2024-01-15.pdf"), "agenda", unknown, "2024-01-15"},
		{"a board with a number", fs("Board07/2024-01-15.pdf"), "minutes", "Board07", "2024-01-15"},
		{"a board with a year", fs("City Council 2024/January 15.pdf"), "minutes", "CityCouncil", "2024-01-15"},
		{"wards in words", clues{texts: []string{"Ward 3 Committee, January 15, 2024 (2)"}}, "minutes", "Ward3Committee", "2024-01-15"},
		{"a day beside the board", clues{texts: []string{"Planning Commission January 15"}, heads: []string{"2024"}}, "minutes", "PlanningCommission", "2024-01-15"},
		{"minutes of another day", fs("CityCouncil/2024-01-15 (2).pdf"), "minutes", "CityCouncil", "2024-01-15"},
		{
			"a table of dates and kinds",
			clues{texts: []string{"PDF", "Agenda", "doc123"}, around: []string{"January 15, 2024", "City Council", "Agenda", "Minutes"}, heads: []string{"Meetings"}},
			"agenda", "CityCouncil", "2024-01-15",
		},
		{
			"headings of board and year",
			clues{texts: []string{"January 15"}, heads: []string{"2024", "Planning Commission", "Town of Springfield"}, folders: []string{"uploads", "wp-content"}},
			"minutes", "PlanningCommission", "2024-01-15",
		},
		{
			"a whole sentence",
			clues{texts: []string{"Minutes of the Regular Meeting of the City Council held on Tuesday, January 15, 2024 at 7:00 PM"}},
			"minutes", "CityCouncil", "2024-01-15",
		},
		{
			"a board with on and with in it",
			clues{texts: []string{"Commission on Persons with Disabilities Agenda for 1/15/2024 (PDF)"}},
			"agenda", "CommissiononPersonswithDisabilities", "2024-01-15",
		},
		{
			"the link outweighs the server's folders",
			clues{texts: []string{"Library Board, 2024-01-15"}, folders: []string{"planning-board", "files"}},
			"minutes", "LibraryBoard", "2024-01-15",
		},
		{
			"both kinds named",
			clues{texts: []string{"Agenda and Minutes 2024-01-15"}, heads: []string{"Zoning Board"}},
			"minutes", "ZoningBoard", "2024-01-15",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var got civic.Document
			calendar{}.describe(&got, tt.clues)
			want := civic.Document{Kind: tt.kind, Meeting: tt.meeting, Date: tt.date}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

var idForm = regexp.MustCompile(`^[a-z0-9][a-z0-9-]*$`)

func TestIdentify(t *testing.T) {
	t.Parallel()
	never := func(string) bool { return false }
	d := civic.Document{Kind: "minutes", Meeting: "CityCouncil", Date: "2024-01-15", Source: "CityCouncil/2024-01-15.pdf"}
	if got, want := identify(d, never), "minutes-city-council-2024-01-15-e86d8555"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	taken := identify(d, never)
	if got := identify(d, func(id string) bool { return id == taken }); got == taken || !strings.HasPrefix(got, taken) {
		t.Errorf("a taken ID was not made longer: %s", got)
	}
	long := d
	long.Meeting = strings.Repeat("VeryLongBoardName", 20)
	if got := identify(long, never); len(got) > maxID || !idForm.MatchString(got) {
		t.Errorf("%s: %d bytes", got, len(got))
	}
	if got := identify(civic.Document{Source: "x", Meeting: "委員会"}, never); !idForm.MatchString(got) {
		t.Errorf("%q", got)
	}
}

func FuzzDescribe(f *testing.F) {
	for _, s := range []string{
		"CityCouncil/2024-01-15.pdf", "_agendas/x/1-15-24.pdf", "\xff\xfe/é.pdf", "January 99, 2024", "|||", "((()))",
		"2024/2024/2024", "Meeting of the Meeting of the", strings.Repeat("a-", 300), "\x00", "İstanbul Board", "1/1/1/1/1/1",
	} {
		f.Add(s, s)
	}
	f.Fuzz(func(t *testing.T, p, text string) {
		p, text = strings.ToValidUTF8(p, "?"), strings.ToValidUTF8(text, "?")
		stem, folders := filed(p)
		d := civic.Document{Source: p}
		calendar{}.describe(&d, clues{texts: []string{text, stem}, heads: []string{text}, folders: folders})
		if d.Kind != civic.Minutes && d.Kind != civic.Agenda {
			t.Fatalf("kind %q", d.Kind)
		}
		if d.Meeting == "" || len(d.Meeting) > maxMeeting || strings.ContainsAny(d.Meeting, "/\\ \x00") || !utf8.ValidString(d.Meeting) {
			t.Fatalf("meeting %q", d.Meeting)
		}
		if d.Date != "" && !regexp.MustCompile(`^\d{4}-\d{2}-\d{2}$`).MatchString(d.Date) {
			t.Fatalf("date %q", d.Date)
		}
		if id := identify(d, func(string) bool { return false }); len(id) > maxID || !idForm.MatchString(id) {
			t.Fatalf("id %q", id)
		}
	})
}
