package sample

// The papers of Wrenfield. Nobody in them exists.
var (
	councilJanuary = [][]string{
		lines(
			"MINUTES OF THE REGULAR MEETING OF THE CITY COUNCIL",
			"TUESDAY - JANUARY 9, 2024 - 7:00 P.M.",
			"",
			"Mayor Hartwell convened the meeting at 7:01 p.m. in the Council Chambers, 40 Depot Square, Wrenfield.",
			"",
			"ROLL CALL - Present: Councilmembers Abara, Novak, Quill, Tessier, and Mayor Hartwell - 5. Absent: None.",
			"",
			"CONSENT CALENDAR",
			"",
			"Councilmember Tessier moved approval of the Consent Calendar. Councilmember Novak seconded the motion, which carried by unanimous voice vote - 5.",
			"",
			"(24-001) Minutes of the Special and Regular Meetings held on December 12, 2023. Approved.",
			"(24-002) Ratified bills in the amount of $318,402.77.",
			"(24-003) Recommendation to award a contract in the amount of $86,150 to Larkspur Paving for the resurfacing of Orchard Street. Accepted.",
		),
		lines(
			"REGULAR AGENDA ITEMS",
			"",
			"(24-004) Resolution No. 24-1, granting a stormwater easement across 1147 Quarry Lane.",
			"",
			"The Public Works Director gave a brief presentation and answered questions on the depth of the culvert and the term of the easement.",
			"",
			"Councilmember Abara moved adoption of the resolution. Councilmember Quill seconded the motion, which carried by the following roll call vote:",
			"",
			"Ayes: 4 - Councilmembers Abara, Novak, Quill, and Mayor Hartwell. Noes: 1 - Councilmember Tessier. Absent: None. Abstain: None.",
			"",
			"(24-005) Introduction of Ordinance No. 24-03, amending the zoning map at 9 and 11 Tannery Row.",
			"",
			"Councilmember Novak stated that the com-",
			"prehensive plan foresees shops on the ground floor, and moved introduction of the ordinance.",
			"Councilmember Abara seconded the motion, which FAILED by the following roll call vote: Ayes: 2. Noes: 3.",
		),
		lines(
			"COUNCIL COMMUNICATIONS",
			"",
			"Mayor Hartwell announced that the skating rink at the Commons opens on January 13. Councilmember Quill thanked the volunteers who cleared the Chapel Hill footpath after the storm.",
			"",
			"ADJOURNMENT",
			"",
			"There being no further business, Mayor Hartwell adjourned the meeting at 9:14 p.m.",
			"",
			"Respectfully submitted,",
			"",
			"Philippa Dunmore",
			"City Clerk",
		),
	}
	councilMarch = [][]string{
		lines(
			"MINUTES OF THE REGULAR MEETING OF THE CITY COUNCIL",
			"TUESDAY - MARCH 12, 2024 - 7:00 P.M.",
			"",
			"(24-019) The bids for the mill race bridge were opened. The lowest of four was that of Hollis & Daughters, at $641,900, with completion by August 30.",
			"",
			"Councilmember Quill moved that the contract be awarded to Hollis & Daughters. Councilmember Abara seconded the motion, which carried by unanimous voice vote - 5. See the signature page attached.",
		),
		lines(
			"ADJOURNMENT",
			"",
			"Mayor Hartwell adjourned the meeting at 8:40 p.m. in memory of Constance Ashcombe, who kept the town library for thirty-one years.",
		),
	}
	councilApril = lines(
		"MINUTES OF THE REGULAR MEETING OF THE CITY COUNCIL",
		"TUESDAY - APRIL 9, 2024 - 7:00 P.M.",
		"",
		"This file was cut short on its way and can no longer be read.",
	)
	councilAgenda = lines(
		"AGENDA - CITY COUNCIL - TUESDAY, JANUARY 9, 2024 - 7:00 P.M.",
		"Council Chambers, 40 Depot Square, Wrenfield",
		"",
		"1. Roll Call",
		"2. Oral Communications, Non-Agenda (Public Comment)",
		"3. Consent Calendar",
		"4. Resolution granting a stormwater easement across 1147 Quarry Lane",
		"5. Adoption of Ordinance 24-03, zoning map, 9 and 11 Tannery Row",
		"6. Council Communications",
		"7. Adjournment",
	)
	signatures = lines(
		"SIGNATURE PAGE",
		"",
		"In witness whereof the parties have executed this agreement on March 12, 2024.",
		"",
		"Eleanor Hartwell, Mayor",
		"Jonas Hollis, for Hollis & Daughters",
	)
	planning = lines(
		"MINUTES OF THE PLANNING BOARD",
		"MONDAY, FEBRUARY 26, 2024",
		"",
		"President Saltmarsh called the meeting to order at 7:00 p.m.",
		"Present: Board Members Ferreira, Kowalczyk, Lund, and President Saltmarsh.",
		"Absent: Board Member Obi.",
		"",
		"Board Member Lund moved approval of the design review for 88 Mill Race, with the condition that the cornice be kept. Board Member Ferreira seconded the motion. Ayes: 4. Noes: 0. Motion passed.",
		"",
		"The meeting adjourned at 8:25 p.m.",
	)
	planningAgenda = lines(
		"AGENDA - PLANNING BOARD - MONDAY, FEBRUARY 26, 2024",
		"",
		"1. Roll Call",
		"2. Design review, 88 Mill Race",
		"3. Staff communications",
		"4. Adjournment",
	)
	libraryReport = lines(
		"MINUTES OF THE LIBRARY BOARD - JANUARY 17, 2024",
		"",
		"The regular meeting of the Wrenfield Library Board was called to order at 6:31 p.m.",
		"",
		"Present: Imogen Faraday, President; Desmond Achterberg; Yuki Tran. Absent: Paul Renner.",
		"",
		"Board Member Tran MOVED approval of the purchase of a second-hand bookmobile for $23,500. Board Member Achterberg SECONDED the motion, which CARRIED by a unanimous voice vote.",
		"",
		"The Director reported 4,812 loans in December, 6.3 % more than a year before.",
	)
	libraryNotice = lines(
		"AVISO PÚBLICO",
		"",
		"La biblioteca abrirá también los sábados por la mañana, de nueve a una. La señora Ibáñez ofrecerá un taller de encuadernación para niños y mayores; la inscripción es gratuita.",
		"",
		"The library will also open on Saturday mornings, from nine to one.",
	)
	youth = lines(
		"MAYOR'S YOUTH PANEL (MYP) - NOTES OF FEBRUARY 5, 2024",
		"",
		"The panel walked the site of the skate park behind the Depot Square garage and asked for shade, a drinking fountain, and lights until nine.",
		"",
		"Motion by Wren Castellane, second by Theo Abernathy, to send the notes to the City Council. Approved 7-0.",
	)
)

// notFound is what a web site answers when it has lost a PDF and will not say so.
const notFound = `<!DOCTYPE html>
<html><head><title>Wrenfield: page not found</title></head>
<body><h1>Sorry!</h1><p>The agenda you are looking for has moved.</p></body></html>
`
