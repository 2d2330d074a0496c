package compilation

import "testing"

// Ids as Python computes them: sites link to pages by these.
func TestPageID(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		kind, meeting, date string
		page                int
		text, want          string
	}{
		{"minutes", "M0", "2024-000000", 1, "page of M0 2024-000000", "58a090e0f94c"},
		{"minutes", "CityCouncil", "2024-01-15", 1, "The meeting was called to order at 7:00 PM.", "69214928a4bf"},
		{"minutes", "CityCouncil", "2024-01-15", 2, "", "d9c5d7891265"},
		{"agenda", "PlanningBoard", "2023-06-12", 10, "Tab\there\nnewline \"quoted\" back\\slash /slash", "b25d43d0ecd4"},
		{"minutes", "CityCouncil", "2018-02-06", 3, "Councilmember Ezzy Ashcraft – 4. Peña & Müller § 5 — “quotes”", "a36c96b95a6a"},
		{"minutes", "བཀའ་འགྱུར", "2020-01-01", 1, "བོད་ཡིག། emoji 😀 astral 𝄞", "8ae680235faa"},
		{"minutes", "CityCouncil", "2024-01-15", 1, "control \x01\x7f\u2028 del <tag> & amp", "afd80e57186d"},
		{"agenda", "CityCouncil", "2024-01-15", 1, "form\fFeed\r\nCRLF", "bf6b5802aa76"},
	} {
		if got := pageID(tt.kind, tt.meeting, tt.date, tt.page, tt.text); got != tt.want {
			t.Errorf("%s %s page %d: id %s, want %s", tt.meeting, tt.date, tt.page, got, tt.want)
		}
	}
}
