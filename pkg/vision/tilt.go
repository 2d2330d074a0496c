package vision

import (
	"math"
	"slices"
)

// Estimator is how a page's tilt follows from the tilts of its lines.
type Estimator string

const (
	// Median is the median by length, and then the mean of the lines near it by
	// length squared, for a line's tilt is known to 1 px in its length. Lines at
	// exactly 0° count. A page where less than half of the length agrees is
	// Uncertain.
	Median Estimator = "median"
	// Majority is bdrc-app's: the mean of the clockwise or of the
	// counter-clockwise lines, whichever are more; lines at exactly 0° are left out.
	Majority Estimator = "majority"
	// Trimmed is bdrc-prod's: the mean by area without what is more than three
	// median deviations off; lines at exactly 0° are left out.
	Trimmed Estimator = "trimmed"
)

// TiltRule says how a page's tilt is found.
type TiltRule struct {
	Estimator Estimator
	// Min is the dead band in degrees: less is 0, and the pixels stay untouched.
	Min float64
	// Max is the largest tilt in degrees that is believed.
	Max float64
	// Elongation is how many times wider than high a line must be to count; 0
	// takes all.
	Elongation float64
}

// TiltFlag says why a page's tilt was not corrected; empty when it is known.
type TiltFlag string

const (
	// NoLines: nothing on the page has a tilt.
	NoLines TiltFlag = "no_lines"
	// OutOfRange: the lines agree on more than the rule believes.
	OutOfRange TiltFlag = "skew_out_of_range"
	// Uncertain: the lines do not agree.
	Uncertain TiltFlag = "skew_uncertain"
)

// Tilt is how far a page is turned clockwise.
type Tilt struct {
	// Angle is what to correct, in degrees, with [Rotate] by its negative: 0 in
	// the dead band, and 0 with a flag.
	Angle float64
	// Measured is what the lines say, flagged or not, in degrees.
	Measured float64
	// Confidence is the share of the lines, by weight, that agree with Measured,
	// times n/(n+1) for n of them: from 0 for none towards 1.
	Confidence float64
	// Lines is how many lines agree.
	Lines int
	Flag  TiltFlag
}

// PageTilt is the tilt of a page by the rectangles around its lines, in any
// order. Error: 0.1° for lines of 500 px and more whose ends are even; ragged
// ends of short lines may double it.
func PageTilt(lines []Rect, rule TiltRule) Tilt {
	var used, beyond, straight []slope
	for _, l := range lines {
		if !finite(l.Angle, l.W, l.H) || l.W <= 0 || l.W < rule.Elongation*l.H {
			continue
		}
		s := slope{l.Angle, l.W}
		if rule.Estimator != Median {
			s.weight = l.W * max(l.H, 1)
			if math.Abs(s.deg) < 1e-6 {
				straight = append(straight, s)
				continue
			}
			if math.Abs(s.deg) > rule.Max || rule.Estimator == Majority && math.Abs(s.deg) == rule.Max {
				beyond = append(beyond, s)
				continue
			}
		}
		used = append(used, s)
	}
	var t Tilt
	switch {
	case weigh(beyond) > weigh(used)+weigh(straight):
		// What BDRC leaves at 0 without a word.
		t = robust(beyond)
		t.Flag = OutOfRange
		return t
	case len(used) == 0 && len(straight) > 0:
		return tilt(0, 1, len(straight))
	case len(used) == 0:
		return Tilt{Flag: NoLines}
	case rule.Estimator == Majority:
		t = majority(used)
	case rule.Estimator == Trimmed:
		t = trimmed(used)
	default:
		t = robust(used)
		switch {
		case t.Confidence < 0.5*float64(t.Lines)/float64(t.Lines+1):
			t.Flag = Uncertain
			return t
		case math.Abs(t.Measured) > rule.Max:
			t.Flag = OutOfRange
			return t
		}
	}
	if math.Abs(t.Measured) >= rule.Min {
		t.Angle = t.Measured
	}
	return t
}

type slope struct{ deg, weight float64 }

func weigh(ss []slope) float64 {
	sum := 0.0
	for _, s := range ss {
		sum += s.weight
	}
	return sum
}

// median is the weighted median; it sorts.
func median(ss []slope) float64 {
	slices.SortFunc(ss, func(a, b slope) int {
		switch {
		case a.deg != b.deg:
			return sign(a.deg - b.deg)
		default:
			return sign(a.weight - b.weight)
		}
	})
	half := weigh(ss) / 2
	for _, s := range ss {
		if half -= s.weight; half <= 0 {
			return s.deg
		}
	}
	return 0
}

func sign(f float64) int {
	switch {
	case f < 0:
		return -1
	case f > 0:
		return 1
	}
	return 0
}

// deviation is the weighted median of the distances from m.
func deviation(ss []slope, m float64) float64 {
	off := make([]slope, len(ss))
	for i, s := range ss {
		off[i] = slope{math.Abs(s.deg - m), s.weight}
	}
	return median(off)
}

func robust(ss []slope) Tilt {
	m := median(ss)
	// 1.4826 makes of the median deviation a normal one; half a degree is what
	// ragged ends do to honest lines.
	near := min(max(3*1.4826*deviation(ss, m), 0.5), 2)
	var sum, squares, agreed float64
	n := 0
	for _, s := range ss {
		if math.Abs(s.deg-m) <= near {
			sum += s.deg * s.weight * s.weight
			squares += s.weight * s.weight
			agreed += s.weight
			n++
		}
	}
	return tilt(sum/squares, agreed/weigh(ss), n)
}

func tilt(deg, share float64, n int) Tilt {
	return Tilt{Measured: deg, Confidence: share * float64(n) / float64(n+1), Lines: n}
}

func majority(ss []slope) Tilt {
	var sums [2]float64
	var counts [2]int
	for _, s := range ss {
		side := 0
		if s.deg < 0 {
			side = 1
		}
		sums[side] += s.deg
		counts[side]++
	}
	side := 1
	if counts[0] > counts[1] || counts[1] == 0 {
		side = 0
	}
	n := counts[side]
	return tilt(sums[side]/float64(n), float64(n)/float64(len(ss)), n)
}

func trimmed(ss []slope) Tilt {
	m := middling(ss, func(s slope) float64 { return s.deg })
	mad := middling(ss, func(s slope) float64 { return math.Abs(s.deg - m) })
	var sum, weight float64
	n := 0
	for _, s := range ss {
		if mad == 0 || math.Abs(s.deg-m) <= 3*mad {
			sum += s.deg * s.weight
			weight += s.weight
			n++
		}
	}
	return tilt(sum/weight, weight/weigh(ss), n)
}

// middling is the plain median, the mean of the two in the middle of an even
// number.
func middling(ss []slope, value func(slope) float64) float64 {
	vs := make([]float64, len(ss))
	for i, s := range ss {
		vs[i] = value(s)
	}
	slices.Sort(vs)
	return (vs[(len(vs)-1)/2] + vs[len(vs)/2]) / 2
}
