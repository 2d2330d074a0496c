package wylie

import (
	"maps"
	"slices"
)

// The letters, with the place of each in Unicode. A subjoined letter is 0x50
// behind the letter.
var (
	consonants = map[string]string{
		"k": "ཀ", "kh": "ཁ", "g": "ག", "ng": "ང",
		"c": "ཅ", "ch": "ཆ", "j": "ཇ", "ny": "ཉ",
		"t": "ཏ", "th": "ཐ", "d": "ད", "n": "ན",
		"p": "པ", "ph": "ཕ", "b": "བ", "m": "མ",
		"ts": "ཙ", "tsh": "ཚ", "dz": "ཛ", "w": "ཝ",
		"zh": "ཞ", "z": "ཟ", "'": "འ", "y": "ཡ",
		"r": "ར", "l": "ལ", "sh": "ཤ", "s": "ས", "h": "ཧ",
		// For Sanskrit.
		"T": "ཊ", "Th": "ཋ", "D": "ཌ", "N": "ཎ", "Sh": "ཥ",
		// Full forms that do not change below or above others.
		"R": "\u0f6a", "W": "ཝ", "Y": "ཡ",
		// With a flag, for foreign sounds.
		"f": "ཕ\u0f39", "v": "བ\u0f39",
	}
	subjoined = below(consonants)

	vowels = map[string]string{
		"a": "", "A": "\u0f71", "i": "\u0f72", "I": "\u0f71\u0f72", "u": "\u0f74", "U": "\u0f71\u0f74",
		"e": "\u0f7a", "ai": "\u0f7b", "o": "\u0f7c", "au": "\u0f7d", "-i": "\u0f80", "-I": "\u0f71\u0f80",
	}

	signs = map[string]string{
		"M": "\u0f7e", "H": "\u0f7f", "~M`": "\u0f82", "~M": "\u0f83", "?": "\u0f84", "&": "\u0f85",
		"~X": "\u0f35", "X": "\u0f37", "^": "\u0f39",
	}

	marks = map[string]string{
		" ": "\u0f0b", "*": "\u0f0c", "_": " ", "/": "\u0f0d", "//": "\u0f0e", ";": "\u0f0f", "|": "\u0f11",
		"!": "\u0f08", ":": "\u0f14", "=": "\u0f34", "<": "\u0f3a", ">": "\u0f3b", "(": "\u0f3c", ")": "\u0f3d",
		"@": "\u0f04", "#": "\u0f05", "$": "\u0f06", "%": "\u0f07",
		"0": "༠", "1": "༡", "2": "༢", "3": "༣", "4": "༤", "5": "༥", "6": "༦", "7": "༧", "8": "༨", "9": "༩",
	}
)

// What Tibetan spelling knows.
var (
	// superscripts lists what may stand below r, l and s.
	superscripts = map[string]string{
		"r": "k g ng j ny t d n b m ts dz",
		"l": "k g ng c j t d p b h",
		"s": "k g ng ny t d n p b m ts",
	}
	// subscripts lists what may stand above y, r, l and w.
	subscripts = map[string]string{
		"y": "k kh g p ph b m rk rg rm sk sg sp sb sm",
		"r": "k kh g t th d n p ph b m sh s h dz sk sg sp sb sm sn",
		"l": "k g b r s z",
		"w": "k kh g c ny t d ts tsh zh z r l sh s h gr dr phy rg rts",
	}
	// prefixes lists the roots that each may stand before.
	prefixes = map[string]string{
		"g": "c ny t d n ts zh z y sh s",
		"d": "k g ng p b m ky gy py by my kr gr pr br",
		"b": "k g c t d ts zh z sh s ky gy kr gr kl zl rl sl sr rk rg rng rj rny rt rd rn rts rdz lt ld lc lj " +
			"sk sg sng sny st sd sn sts rky rgy sky sgy skr sgr",
		"m": "kh g ng ch j ny th d n tsh dz khy gy khr gr",
		"'": "kh g ch j th d ph b tsh dz khy gy phy by khr gr dr phr br",
	}
	// suffixes lists those that may close a syllable (T in mantras: phaT), and
	// those that may stand before a second one.
	suffixes = map[string]string{
		"":  "g ng d n b m ' r l s T",
		"s": "g ng b m",
		"d": "n r l",
	}
	// firstRoots lists letters in the middle of three, all of which could be
	// either (prefix, root, suffix; or root and two suffixes), where it is the
	// first that is the root: bags, dangs, mangs. In all others it is the one
	// in the middle: dgas, 'gas.
	firstRoots = map[string]string{"b": "g", "d": "ng", "m": "g ng"}
)

// The tables from Tibetan to Latin.
var (
	consonantNames = reversed(consonants, map[string]string{carrier: "a"}, "W", "Y")
	subjoinedNames = reversed(subjoined, nil)
	vowelNames     = reversed(vowels, nil, "a")
	signNames      = reversed(signs, nil)
	markNames      = reversed(marks, nil)
)

// below makes the table of subjoined letters.
func below(letters map[string]string) map[string]string {
	table := map[string]string{"W": "\u0fba", "Y": "\u0fbb", "R": "\u0fbc"}
	for name, text := range letters {
		if _, ok := table[name]; ok {
			continue
		}
		var sub []rune
		for _, c := range text {
			if c >= 0x0f40 && c <= 0x0f6c {
				c += 0x50
			}
			sub = append(sub, c)
		}
		table[name] = string(sub)
	}
	return table
}

// reversed turns a table around, without some of its names.
func reversed(table, more map[string]string, without ...string) map[string]string {
	names := maps.Clone(more)
	if names == nil {
		names = map[string]string{}
	}
	for name, text := range table {
		if !slices.Contains(without, name) {
			names[text] = name
		}
	}
	return names
}
