package vision_test

import (
	"image"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/reeve-pipeline/reeve/pkg/vision"
)

func layout() vision.Layout { return vision.Reeve().Layout }

// ordered gives each line's fragments as boxes.
func ordered(boxes []image.Rectangle, l vision.Layout) [][]image.Rectangle {
	var lines [][]image.Rectangle
	for _, ids := range vision.Lines(boxes, l) {
		var line []image.Rectangle
		for _, i := range ids {
			line = append(line, boxes[i])
		}
		lines = append(lines, line)
	}
	return lines
}

func singles(parts ...[]image.Rectangle) [][]image.Rectangle {
	var lines [][]image.Rectangle
	for _, p := range parts {
		for _, b := range p {
			lines = append(lines, []image.Rectangle{b})
		}
	}
	return lines
}

func TestLines_readingOrder(t *testing.T) {
	t.Parallel()
	var (
		title  = stack(200, 40, 500, 30, 1, 1)
		wide   = stack(60, 40, 800, 30, 1, 1)
		left   = stack(60, 120, 380, 20, 40, 6)
		right  = stack(480, 120, 380, 20, 40, 6)
		ragged = stack(480, 131, 380, 20, 33, 8)
		footer = stack(60, 420, 800, 20, 1, 1)
		a      = stack(60, 120, 240, 20, 40, 6)
		b      = stack(340, 120, 240, 20, 40, 6)
		c      = stack(620, 120, 240, 20, 40, 6)
	)
	for _, tt := range []struct {
		name  string
		parts [][]image.Rectangle // in reading order
	}{
		{"one column", [][]image.Rectangle{stack(60, 40, 800, 20, 30, 20)}},
		{"two columns", [][]image.Rectangle{left, right}},
		{"three columns", [][]image.Rectangle{a, b, c}},
		{"a title over both", [][]image.Rectangle{wide, left, right}},
		{"a centred title", [][]image.Rectangle{title, left, right, footer}},
		{"ragged columns", [][]image.Rectangle{wide, left, ragged}},
		{"a longer left column", [][]image.Rectangle{left, right[:2]}},
		{"a longer right column", [][]image.Rectangle{left[2:], right}},
		{"two, one, two", [][]image.Rectangle{left, right, footer, stack(60, 480, 380, 20, 40, 3), stack(480, 480, 380, 20, 40, 3)}},
		{"white over both ends the columns", [][]image.Rectangle{
			left, right, stack(60, 420, 380, 20, 40, 3), stack(480, 420, 380, 20, 40, 3),
		}},
		{"boxes that reach into each other", [][]image.Rectangle{stack(60, 93, 800, 30, 1, 1), left, right}},
		{"short lines that alternate are no columns", [][]image.Rectangle{
			stack(60, 100, 300, 20, 1, 1), stack(500, 140, 300, 20, 1, 1), stack(60, 180, 300, 20, 1, 1),
			stack(500, 220, 300, 20, 1, 1),
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			in := slices.Concat(tt.parts...)
			slices.Reverse(in)
			if diff := cmp.Diff(singles(tt.parts...), ordered(in, layout())); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Without columns a page is read from the top down, as BDRC reads it.
func TestLines_withoutColumns(t *testing.T) {
	t.Parallel()
	left, right := stack(60, 120, 380, 20, 40, 6), stack(480, 120, 380, 20, 40, 6)
	l := layout()
	l.Columns, l.Merge = false, vision.MergeNone
	var want [][]image.Rectangle
	for i := range left {
		want = append(want, singles(left[i:i+1], right[i:i+1])...)
	}
	if diff := cmp.Diff(want, ordered(slices.Concat(right, left), l)); diff != "" {
		t.Error(diff)
	}
	for _, p := range []vision.Profile{vision.BDRCApp(), vision.BDRCProd()} {
		if got := ordered(slices.Concat(right, left), p.Layout); len(got) != 6 || got[2][0] != left[2] || got[2][1] != right[2] {
			t.Errorf("%s: %v", p.Name, got)
		}
	}
}

// Numbers before paragraphs and words apart are one line, not columns.
func TestLines_numberedParagraphs(t *testing.T) {
	t.Parallel()
	numbers, texts := stack(60, 100, 30, 20, 40, 8), stack(130, 100, 600, 20, 40, 8)
	got := ordered(slices.Concat(texts, numbers), layout())
	if len(got) != 8 {
		t.Fatalf("%d lines: %v", len(got), got)
	}
	for i, line := range got {
		if diff := cmp.Diff([]image.Rectangle{numbers[i], texts[i]}, line); diff != "" {
			t.Error(diff)
		}
	}
}

// A line in three pieces that stand a quarter of its height higher or lower is
// one line, in every column; lines at 1.2 of their height stay apart.
func TestLines_mergesFragments(t *testing.T) {
	t.Parallel()
	const n, h = 12, 30
	var boxes []image.Rectangle
	for _, x := range []int{60, 560} {
		for i := range n {
			y := 100 + i*h*6/5
			for k, dy := range []int{h / 8, -h / 8, h / 9} {
				boxes = append(boxes, image.Rect(x+k*150, y+dy*(1-2*(i%2)), x+k*150+135, y+h+dy*(1-2*(i%2))))
			}
		}
	}
	got := ordered(boxes, layout())
	if len(got) != 2*n {
		t.Fatalf("%d lines, want %d", len(got), 2*n)
	}
	for i, line := range got {
		if diff := cmp.Diff(boxes[3*i:3*i+3], line); diff != "" {
			t.Errorf("line %d: %s", i, diff)
		}
	}
	// A wide jump is two lines, left before right although right is higher.
	far := []image.Rectangle{image.Rect(0, 104, 90, 130), image.Rect(900, 100, 990, 126)}
	if diff := cmp.Diff(singles(far), ordered(far, layout())); diff != "" {
		t.Error(diff)
	}
}

// Two boxes with one centre, or even the same box twice, both survive.
func TestLines_equalCentres(t *testing.T) {
	t.Parallel()
	boxes := []image.Rectangle{image.Rect(0, 0, 100, 20), image.Rect(20, 4, 80, 16), image.Rect(0, 0, 100, 20)}
	for _, p := range []vision.Profile{vision.Reeve(), vision.BDRCApp(), vision.BDRCProd()} {
		if got := slices.Concat(vision.Lines(boxes, p.Layout)...); len(got) != 3 {
			t.Errorf("%s: %v", p.Name, got)
		}
	}
}

// Every box is in one line, from left to right, and the order of the input does
// not matter.
func TestLines_property(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		boxes := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) image.Rectangle {
			x, y := rapid.IntRange(0, 900).Draw(t, "x"), rapid.IntRange(0, 900).Draw(t, "y")
			return image.Rect(x, y, x+rapid.IntRange(0, 500).Draw(t, "w"), y+rapid.IntRange(0, 40).Draw(t, "h"))
		}), 0, 40).Draw(t, "boxes")
		l := layout()
		l.Columns = rapid.Bool().Draw(t, "columns")
		l.Merge = rapid.SampledFrom([]vision.Merge{vision.MergeNone, vision.MergeOverlap, vision.MergeFirst, vision.MergeMean}).Draw(t, "merge")
		lines := vision.Lines(boxes, l)
		all := slices.Concat(lines...)
		slices.Sort(all)
		for i, id := range all {
			if i != id {
				t.Fatalf("%v is no permutation of %d boxes", all, len(boxes))
			}
		}
		if len(all) != len(boxes) {
			t.Fatalf("%d of %d boxes", len(all), len(boxes))
		}
		for _, line := range lines {
			if !slices.IsSortedFunc(line, func(i, j int) int { return boxes[i].Min.X - boxes[j].Min.X }) {
				t.Fatalf("line %v is not from left to right", line)
			}
		}
		shuffled := rapid.Permutation(boxes).Draw(t, "shuffled")
		if diff := cmp.Diff(ordered(boxes, l), ordered(shuffled, l)); diff != "" {
			t.Fatal(diff)
		}
	})
}
