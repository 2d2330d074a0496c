package vision_test

import (
	"image"
	"testing"

	"github.com/reeve-pipeline/reeve/pkg/vision"
)

func TestProfileNamed(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"reeve", "bdrc-app", "bdrc-prod"} {
		if p, err := vision.ProfileNamed(name); err != nil || p.Name != name {
			t.Errorf("%s: %+v, %v", name, p, err)
		}
	}
	if _, err := vision.ProfileNamed("bdrc"); err == nil {
		t.Error("an unknown profile is taken")
	}
}

// The frames of pages: a pecha of 3:1 is one row of tiles, a page of whole
// tiles has no empty row, and no page takes more than 8 by 2 tiles.
func TestFrame_sizes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		profile            vision.Profile
		w, h               int
		fw, fh, cols, rows int
	}{
		{vision.BDRCProd(), 3000, 1000, 1536, 512, 3, 1},
		{vision.BDRCProd(), 20000, 3000, 3413, 512, 7, 1},
		{vision.BDRCProd(), 20000, 12000, 1706, 1024, 4, 2},
		{vision.BDRCProd(), 1024, 512, 1024, 512, 2, 1},
		{vision.BDRCProd(), 1000, 560, 914, 512, 2, 1},
		{vision.BDRCProd(), 600, 400, 600, 400, 2, 1}, // never up
		{vision.BDRCApp(), 5000, 3000, 4096, 2457, 8, 5},
		{vision.BDRCApp(), 3000, 5000, 1228, 2048, 3, 4},
		{vision.BDRCApp(), 1000, 256, 2000, 512, 4, 1},
		{vision.BDRCApp(), 512, 512, 512, 512, 1, 1},
		{vision.Reeve(), 1700, 2200, 736, 960, 1, 1},
		{vision.Reeve(), 300, 20, 288, 32, 1, 1},
		{vision.Reeve(), 0, 7, 0, 0, 1, 1},
	} {
		fw, fh := tt.profile.Frame.Size(tt.w, tt.h)
		cols, rows := tt.profile.Frame.Tiles(fw, fh)
		if fw != tt.fw || fh != tt.fh || fw > 0 && (cols != tt.cols || rows != tt.rows) {
			t.Errorf("%s, %d by %d: %d by %d in %d by %d tiles, want %d by %d in %d by %d",
				tt.profile.Name, tt.w, tt.h, fw, fh, cols, rows, tt.fw, tt.fh, tt.cols, tt.rows)
		}
	}
}

// What is too small is no line, and each profile has its own idea of small.
func TestKeep(t *testing.T) {
	t.Parallel()
	const w, h = 1000, 1000
	contours := [][]image.Point{
		box(image.Rect(0, 0, 400, 30)), // a line
		box(image.Rect(0, 50, 60, 60)), // low
		box(image.Rect(0, 70, 60, 82)), // small
		box(image.Rect(0, 90, 9, 300)), // narrow
		box(image.Rect(0, 400, 3, 403)),
	}
	for _, tt := range []struct {
		profile     vision.Profile
		lines, tilt int
	}{{vision.Reeve(), 4, 5}, {vision.BDRCApp(), 2, 2}, {vision.BDRCProd(), 1, 2}} {
		k := tt.profile.Keep
		if got := len(k.Lines(contours, w, h)); got != tt.lines {
			t.Errorf("%s: %d lines, want %d", tt.profile.Name, got, tt.lines)
		}
		if got := len(k.ForTilt(contours, w, h)); got != tt.tilt {
			t.Errorf("%s: %d for the tilt, want %d", tt.profile.Name, got, tt.tilt)
		}
	}
}
