package wylie_test

import (
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"

	"github.com/reeve-pipeline/reeve/pkg/wylie"
)

// both checks a pair in both directions.
func both(t *testing.T, latin, tibetan string) {
	t.Helper()
	to(t, latin, tibetan)
	if got := wylie.FromUnicode(tibetan); got != latin {
		t.Errorf("%s is written %q, want %q", tibetan, got, latin)
	}
}

// to checks the way to Unicode alone, where a text has several spellings.
func to(t *testing.T, latin, tibetan string) {
	t.Helper()
	got, problems := wylie.ToUnicode(latin)
	if got != norm.NFC.String(tibetan) || len(problems) > 0 {
		t.Errorf("%q is %s (%+q), %v; want %s (%+q)", latin, got, got, problems, tibetan, tibetan)
	}
}

func pairs(t *testing.T, table string) {
	t.Helper()
	count := 0
	for line := range strings.Lines(table) {
		words := strings.Fields(line)
		if len(words)%2 != 0 {
			t.Fatalf("%q is no list of pairs", line)
		}
		for n := 0; n < len(words); n += 2 {
			both(t, words[n], words[n+1])
			count++
		}
	}
	if count == 0 {
		t.Error("nothing was compared")
	}
}

func TestLetters(t *testing.T) {
	t.Parallel()
	pairs(t, `
		ka ཀ  kha ཁ  ga ག  nga ང
		ca ཅ  cha ཆ  ja ཇ  nya ཉ
		ta ཏ  tha ཐ  da ད  na ན
		pa པ  pha ཕ  ba བ  ma མ
		tsa ཙ  tsha ཚ  dza ཛ  wa ཝ
		zha ཞ  za ཟ  'a འ  ya ཡ
		ra ར  la ལ  sha ཤ  sa ས
		ha ཧ  a ཨ
		Ta ཊ  Tha ཋ  Da ཌ  Na ཎ  Sha ཥ
		fa ཕ༹  va བ༹  Ra ཪ`)
	for latin, tibetan := range map[string]string{
		"fi": "ཕི༹", "vo": "བོ༹", "ts^a": "ཙ༹", // the flag, which normal form puts behind the vowel
		"g+ha": "\u0f43", "d+ha": "\u0f52", "k+Sha": "\u0f69", "D+ha": "\u0f4d", // decomposed
	} {
		to(t, latin, tibetan)
	}
	if got := wylie.FromUnicode("ཕི༹"); got != "fi" {
		t.Errorf("ཕི༹ is written %q, want fi", got)
	}
	if got := wylie.FromUnicode("\u0f43\u0f69"); got != "g+hak+Sha" {
		t.Errorf("precomposed letters are written %q", got)
	}
}

func TestVowels(t *testing.T) {
	t.Parallel()
	pairs(t, `
		ka ཀ  ki ཀི  ku ཀུ  ke ཀེ  ko ཀོ
		kA ཀཱ  kI ཀཱི  kU ཀཱུ  kai ཀཻ  kau ཀཽ
		k-i ཀྀ  k-I ཀཱྀ  kr-i ཀྲྀ  kl-i ཀླྀ  r-i རྀ
		i ཨི  u ཨུ  e ཨེ  o ཨོ  A ཨཱ  I ཨཱི  ai ཨཻ
		kaM ཀཾ  ka~M ཀྃ  kaH ཀཿ  ka? ཀ྄  ka& ཀ྅  kaX ཀ༷  ka~X ཀ༵
		ki+u ཀིུ  ke+o ཀེོ`)
	both(t, "ka~M`", "ཀྂ")
}

// Every stack that spelling knows, by what stands above or below.
func TestStacks(t *testing.T) {
	t.Parallel()
	pairs(t, `
		rka རྐ  rga རྒ  rnga རྔ  rja རྗ  rnya རྙ  rta རྟ  rda རྡ  rna རྣ  rba རྦ  rma རྨ  rtsa རྩ  rdza རྫ
		lka ལྐ  lga ལྒ  lnga ལྔ  lca ལྕ  lja ལྗ  lta ལྟ  lda ལྡ  lpa ལྤ  lba ལྦ  lha ལྷ
		ska སྐ  sga སྒ  snga སྔ  snya སྙ  sta སྟ  sda སྡ  sna སྣ  spa སྤ  sba སྦ  sma སྨ  stsa སྩ
		kya ཀྱ  khya ཁྱ  gya གྱ  pya པྱ  phya ཕྱ  bya བྱ  mya མྱ
		rkya རྐྱ  rgya རྒྱ  rmya རྨྱ  skya སྐྱ  sgya སྒྱ  spya སྤྱ  sbya སྦྱ  smya སྨྱ
		kra ཀྲ  khra ཁྲ  gra གྲ  tra ཏྲ  thra ཐྲ  dra དྲ  nra ནྲ  pra པྲ  phra ཕྲ  bra བྲ  mra མྲ  shra ཤྲ  sra སྲ  hra ཧྲ
		skra སྐྲ  sgra སྒྲ  spra སྤྲ  sbra སྦྲ  smra སྨྲ  snra སྣྲ
		kla ཀླ  gla གླ  bla བླ  rla རླ  sla སླ  zla ཟླ
		kwa ཀྭ  khwa ཁྭ  gwa གྭ  cwa ཅྭ  nywa ཉྭ  twa ཏྭ  dwa དྭ  tswa ཙྭ  tshwa ཚྭ  zhwa ཞྭ  zwa ཟྭ  rwa རྭ  lwa ལྭ  shwa ཤྭ  swa སྭ  hwa ཧྭ
		grwa གྲྭ  drwa དྲྭ  phywa ཕྱྭ  rgwa རྒྭ  rtswa རྩྭ
		d+ma དྨ  g+ha གྷ  b+ha བྷ  d+ha དྷ  k+Sha ཀྵ  r+ya རྱ  n+d+ra ནྡྲ  s+t+ra སྟྲ  k+Wa ཀྺ  k+Ya ཀྻ  k+Ra ཀྼ  R+ka ཪྐ`)
	for latin, tibetan := range map[string]string{"r+g+ya": "རྒྱ", "s+ga": "སྒ", "t+ra": "ཏྲ"} {
		to(t, latin, tibetan) // spelled out, the same
	}
}

func TestWords(t *testing.T) {
	t.Parallel()
	for latin, tibetan := range map[string]string{
		"bkra shis bde legs":        "བཀྲ་ཤིས་བདེ་ལེགས",
		"sangs rgyas":               "སངས་རྒྱས",
		"'jam dpal":                 "འཇམ་དཔལ",
		"oM ma Ni pad+me hU~M":      "ཨོཾ་མ་ཎི་པདྨེ་ཧཱུྃ",
		"rdo rje":                   "རྡོ་རྗེ",
		"blo bzang grags pa":        "བློ་བཟང་གྲགས་པ",
		"byang chub sems dpa'":      "བྱང་ཆུབ་སེམས་དཔའ",
		"bsgrubs brgyad":            "བསྒྲུབས་བརྒྱད",
		"g.yag gyag g.yon":          "གཡག་གྱག་གཡོན",
		"dwags po'i mthar":          "དྭགས་པོའི་མཐར",
		"rgya mtsho'i dbyangs":      "རྒྱ་མཚོའི་དབྱངས",
		"dga'i dga' pa'ang pa'am":   "དགའི་དགའ་པའང་པའམ",
		"'od 'brug 'di'i":           "འོད་འབྲུག་འདིའི",
		"mkhyen mkha' bzhi mda'":    "མཁྱེན་མཁའ་བཞི་མདའ",
		"brtsams brla bzla":         "བརྩམས་བརླ་བཟླ",
		"dag dga' dgas bags mangs":  "དག་དགའ་དགས་བགས་མངས",
		"gnad dmag gsum lngas":      "གནད་དམག་གསུམ་ལྔས",
		"sa bon spre'u le'u":        "ས་བོན་སྤྲེའུ་ལེའུ",
		"badz+ra sat+wa":            "བཛྲ་སཏྭ",
		"sid+d+hi hU~M phaT swA hA": "སིདྡྷི་ཧཱུྃ་ཕཊ་སྭཱ་ཧཱ",
		"@#_/_/bod skad/_/":         "༄༅ ། །བོད་སྐད། །",
		"dang /_1959 lo":            "དང་། ༡༩༥༩་ལོ",
		"ka/[]/ kha// ga;|!:":       "ཀ།།་ཁ༎་ག༏༑༈༔",
		"<ka>(kha)=*":               "༺ཀ༻༼ཁ༽༴༌",
		"bod [Tibet 2024]_[(x)]":    "བོད་Tibet 2024 (x)",
		"ka [a]\\u005b[b]\\u005d":   "ཀ་a[b]",
		"\\u0f00 ka\nkha":           "ༀ་ཀ\nཁ",
		"\\u0f2a":                   "༪",
	} {
		to(t, latin, tibetan)
		if latin = strings.NewReplacer("badz+ra sat+wa", "badzra satwa", "]_[", " ").Replace(latin); latin != wylie.FromUnicode(tibetan) {
			t.Errorf("%s is written %q, want %q", tibetan, wylie.FromUnicode(tibetan), latin)
		}
	}
	for latin, tibetan := range map[string]string{
		"dags": "དགས", "bgas": "བགས", "oM": "ཨོཾ", // other spellings of the same
		"karma": "ཀརྨ", "kar.ma": "ཀརམ", "[[x] y]": "[x] y", "\\U0001f600": "😀",
	} {
		to(t, latin, tibetan)
	}
}

func TestToUnicode_problems(t *testing.T) {
	t.Parallel()
	for latin, want := range map[string]struct {
		tibetan string
		offset  int
		text    string
	}{
		"bkra Qis":  {"བཀྲ་Qཨིས", 5, "Q"},
		"ka é":      {"ཀ་é", 3, "é"},
		"brgy":      {"བརྒྱ", 0, "brgy"},
		"ka+":       {"ཀ+", 2, "+"},
		"bde legs.": {"བདེ་ལེགས.", 8, "."},
		"ka [x":     {"ཀ་x", 3, "[x"},
		`ka \x`:     {"ཀ་\\x", 3, `\`},
		"M":         {"ཾ", 0, "M"},
		"ཀ":         {"ཀ", 0, "ཀ"},
	} {
		got, problems := wylie.ToUnicode(latin)
		if got != want.tibetan || len(problems) == 0 || problems[0].Offset != want.offset || problems[0].Text != want.text {
			t.Errorf("%q is %q, %v; want %q with a problem at %d, %q", latin, got, problems, want.tibetan, want.offset, want.text)
		}
	}
}

// generated is a syllable of the grammar of Tibetan: prefix, root, vowel,
// suffixes, particle.
func generated(r *rand.Rand) string {
	pick := func(list string) string {
		words := strings.Fields(list)
		return strings.Trim(words[r.IntN(len(words))], "-")
	}
	root := pick("k kh g ng c ch j ny t th d n p ph b m ts tsh dz w zh z ' y r l sh s h " +
		"rk rg rng rj rny rt rd rn rb rm rts rdz lk lg lng lc lj lt ld lp lb lh sk sg sng sny st sd sn sp sb sm sts " +
		"ky khy gy py phy by my kr khr gr dr pr phr br hr sr kl gl bl rl sl zl rky rgy skr sgr spr sby smy")
	prefix := ""
	if r.IntN(3) == 0 {
		two := strings.Fields("g.ya gtsa gzhi gsu gnya gce dko dpya dbra dma dnga bka bga bca bda bzha bsa bkya bsgra brgya blta " +
			"mkha mga mcha mda mtsha mkhya mgra 'kha 'ga 'cha 'da 'pha 'ba 'tsha 'dza 'bra 'dra 'khya")
		root = two[r.IntN(len(two))]
		prefix, root = root[:len(root)-1], ""
	}
	vowel := pick("a i u e o")
	if r.IntN(4) == 0 {
		return prefix + root + vowel + pick("'i 'o 'u 'ang 'am")
	}
	suffix := pick("- - g ng d n b m r l s gs ngs bs ms nd rd ld")
	return prefix + root + vowel + suffix
}

// A syllable goes to Unicode without a problem and comes back as it was, but
// for those whose root no script tells; and what comes back is the same text.
func TestRoundTrip_syllables(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	other := map[string]string{}
	for range 5_000 {
		latin := generated(r)
		tibetan, problems := wylie.ToUnicode(latin)
		if len(problems) > 0 {
			t.Fatalf("%q: %v", latin, problems)
		}
		back := wylie.FromUnicode(tibetan)
		if back != latin {
			other[latin] = back
		}
		if again, _ := wylie.ToUnicode(back); again != tibetan {
			t.Errorf("%q is %s, that %q, that %s", latin, tibetan, back, again)
		}
	}
	for latin, back := range other {
		if !strings.Contains(latin, "a") || strings.ContainsAny(latin, "iueo") || len(latin) > 5 {
			t.Errorf("%q comes back as %q", latin, back)
		}
	}
	if len(other) > 40 {
		t.Errorf("%d syllables come back otherwise: %v", len(other), other)
	}
	t.Logf("other spellings: %v", other)
}

// Any text, Tibetan or not, survives the way to Latin and back.
func TestRoundTrip_anything(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 4))
	common := []rune("ཀགངདནབམའརལསྱྲླྭཱིེོུཾཿ༹")
	for range 5_000 {
		var b strings.Builder
		for range r.IntN(12) {
			switch r.IntN(6) {
			case 0:
				b.WriteRune(rune(0x0f00 + r.IntN(0x100)))
			case 1:
				b.WriteRune(rune(0x20 + r.IntN(0x5f)))
			case 2:
				b.WriteRune([]rune("\n \\[]😀é་།")[r.IntN(9)])
			default:
				b.WriteRune(common[r.IntN(len(common))])
			}
		}
		survives(t, b.String())
	}
}

func survives(t *testing.T, text string) {
	t.Helper()
	latin := wylie.FromUnicode(text)
	back, problems := wylie.ToUnicode(latin)
	if norm.NFC.String(back) != norm.NFC.String(text) || len(problems) > 0 {
		t.Errorf("%+q is written %q, which is %+q, %v", text, latin, back, problems)
	}
}

func FuzzToUnicode(f *testing.F) {
	for _, s := range []string{"bkra shis bde legs/", "oM ma Ni pad+me hU~M", "g.yag [x] \\u0f00", "+.+a", "[[", "\\U", "~M`"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, latin string) {
		out, problems := wylie.ToUnicode(latin)
		if utf8.ValidString(latin) && !utf8.ValidString(out) {
			t.Errorf("%q becomes %q", latin, out)
		}
		for _, p := range problems {
			if p.Offset < 0 || p.Offset+len(p.Text) > len(latin) || latin[p.Offset:p.Offset+len(p.Text)] != p.Text {
				t.Errorf("%q: %+v", latin, p)
			}
		}
	})
}

func FuzzFromUnicode(f *testing.F) {
	for _, s := range []string{"བཀྲ་ཤིས་བདེ་ལེགས། །", "ཨོཾ་མ་ཎི་པདྨེ་ཧཱུྃ", "a[b] \u0f43\u0f77\u0f71", "།།༎།"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if utf8.ValidString(text) {
			survives(t, text)
		}
	})
}
