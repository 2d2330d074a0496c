package lineextraction_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/jpeg"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/reeve-pipeline/reeve/pkg/artifact"
	"github.com/reeve-pipeline/reeve/pkg/civic"
	"github.com/reeve-pipeline/reeve/pkg/fault"
	"github.com/reeve-pipeline/reeve/pkg/pages"
	"github.com/reeve-pipeline/reeve/pkg/raster"
	"github.com/reeve-pipeline/reeve/pkg/s3test"
	"github.com/reeve-pipeline/reeve/pkg/stage"
	"github.com/reeve-pipeline/reeve/pkg/stagetest"
	"github.com/reeve-pipeline/reeve/pkg/table"
	"github.com/reeve-pipeline/reeve/pkg/vision"
	"github.com/reeve-pipeline/reeve/services/lineextraction"
)

const prefix = "jobs/j/volumes/W1-I1"

// found is a page with the given boxes on it, turned by angle about its middle.
func found(page int, angle float64, boxes ...image.Rectangle) table.Detection {
	d := table.Detection{
		About: table.About{Page: int32(page), Image: fmt.Sprintf("%d.jpg", page), Width: 1000, Height: 1400, OK: true, Source: civic.SourceImage},
		Angle: angle,
	}
	turn, _, _ := vision.Rotation(1000, 1400, angle, false)
	for i, b := range boxes {
		var contour []table.Point
		for _, p := range []image.Point{b.Min, {b.Max.X - 1, b.Min.Y}, b.Max.Sub(image.Pt(1, 1)), {b.Min.X, b.Max.Y - 1}} {
			q := turn.Forward(vision.Point{X: float64(p.X), Y: float64(p.Y)})
			contour = append(contour, table.Point{int32(math.Round(q.X)), int32(math.Round(q.Y))})
		}
		d.Contours = append(d.Contours, contour)
		d.Scores = append(d.Scores, 0.5+float32(i%4)/8)
	}
	return d
}

// line is a line's box: 24 px high.
func line(x0, x1, y int) image.Rectangle { return image.Rect(x0, y, x1, y+24) }

// Lines are read down the columns, fragments become one, whatever the tilt and
// in whatever order they were found.
func TestOrder(t *testing.T) {
	t.Parallel()
	columns := []image.Rectangle{line(100, 900, 100)} // a title over both
	for i := range 6 {
		columns = append(columns, line(100, 460, 200+40*i))
	}
	for i := range 5 { // of another pitch
		columns = append(columns, line(540, 900, 205+47*i))
	}
	broken := []image.Rectangle{
		line(100, 300, 100), line(316, 600, 104), line(612, 900, 98),
		line(100, 300, 129), line(316, 600, 127), line(612, 900, 131), // at 1.2 heights
	}
	for _, tt := range []struct {
		name  string
		boxes []image.Rectangle
		merge vision.Merge
		want  [][]int // the boxes of each line
	}{
		{"nothing", nil, vision.MergeOverlap, nil},
		{"columns", columns, vision.MergeOverlap, [][]int{{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}, {10}, {11}}},
		{"broken lines", broken, vision.MergeOverlap, [][]int{{0, 1, 2}, {3, 4, 5}}},
		{"broken lines, left so", broken[:3], vision.MergeNone, [][]int{{0}, {1}, {2}}},
		{"one centre", []image.Rectangle{line(100, 900, 100), image.Rect(480, 92, 520, 132)}, vision.MergeNone, [][]int{{0}, {1}}},
	} {
		for _, angle := range []float64{0, -3, 4.5} {
			t.Run(fmt.Sprintf("%s/%v°", tt.name, angle), func(t *testing.T) {
				t.Parallel()
				layout := vision.Reeve().Layout
				layout.Merge = tt.merge
				d := found(7, angle, tt.boxes...)
				lines := lineextraction.Order(&d, layout, prefix)
				if len(lines) != len(tt.want) {
					t.Fatalf("%d lines, want %d", len(lines), len(tt.want))
				}
				seen := map[string]bool{}
				for i, l := range lines {
					if l.Index != int32(i) || l.Page != 7 || !l.OK || seen[l.GUID] || len(l.GUID) != 36 || l.GUID[14] != '5' {
						t.Errorf("line %d: index %d, page %d, guid %s", i, l.Index, l.Page, l.GUID)
					}
					seen[l.GUID] = true
					var xs, ys []int32
					for _, b := range tt.want[i] {
						for _, p := range d.Contours[b] {
							xs, ys = append(xs, p[0]), append(ys, p[1])
						}
					}
					box := []int32{slices.Min(xs), slices.Min(ys), slices.Max(xs) - slices.Min(xs) + 1, slices.Max(ys) - slices.Min(ys) + 1}
					if diff := cmp.Diff(box, []int32{l.X, l.Y, l.W, l.H}); diff != "" {
						t.Errorf("box of line %d (-want +got):\n%s", i, diff)
					}
					if l.CenterX != l.X+l.W/2 || l.CenterY != l.Y+l.H/2 || len(l.Contour) < 4 || l.Confidence < 0.5 || l.Confidence > 0.875 {
						t.Errorf("line %d: %+v", i, l)
					}
				}
				slices.Reverse(d.Contours)
				slices.Reverse(d.Scores)
				if diff := cmp.Diff(lines, lineextraction.Order(&d, layout, prefix)); diff != "" {
					t.Errorf("found in another order (-first +second):\n%s", diff)
				}
			})
		}
	}
}

// bench is a store with what line_detection left in it.
type bench struct {
	store *artifact.Store
	spec  civic.Pages
}

func newBench(t *testing.T, rows ...table.Detection) *bench {
	t.Helper()
	b := &bench{s3test.Open(t), civic.Pages{Prefix: prefix, Volume: "W1-I1", First: 1, Last: 32}}
	for _, r := range rows {
		img := civic.PageImage{Page: int(r.Page), Name: r.Image, Object: civic.Object{Key: "in/" + r.Image}}
		b.spec.Images = append(b.spec.Images, img)
	}
	var buf bytes.Buffer
	if err := table.WriteDetections(&buf, rows, map[string]string{"model": "m"}); err != nil {
		t.Fatal(err)
	}
	kept, err := b.store.Put(t.Context(), "in/detection", &buf, -1, "")
	if err != nil {
		t.Fatal(err)
	}
	b.spec.Detection = &civic.Object{Key: kept.Key, Size: kept.Size, SHA256: kept.SHA256}
	return b
}

// picture stores a page's picture: white, with each box in a shade of its own.
func (b *bench) picture(t *testing.T, name string, boxes ...image.Rectangle) {
	t.Helper()
	img := image.NewGray(image.Rect(0, 0, 600, 350))
	draw.Draw(img, img.Rect, image.White, image.Point{}, draw.Src)
	for i, box := range boxes {
		draw.Draw(img, box, image.NewUniform(color.Gray{Y: uint8(20 + 60*i)}), image.Point{}, draw.Src)
	}
	var buf bytes.Buffer
	if err := jpeg.Encode(&buf, img, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := b.store.Put(t.Context(), "in/"+name, &buf, -1, "image/jpeg"); err != nil {
		t.Fatal(err)
	}
}

func (b *bench) handler() *lineextraction.Extractor {
	return lineextraction.New(b.store, pages.NewReader(b.store, raster.Defaults(), 16<<20))
}

func (b *bench) task(t *testing.T, settings string) *stage.Task {
	t.Helper()
	spec, err := json.Marshal(b.spec)
	if err != nil {
		t.Fatal(err)
	}
	return &stage.Task{Run: 1, Pipeline: "volumes", Subject: "j", Stage: lineextraction.Name, Item: "W1-I1~1", Spec: spec, Settings: json.RawMessage(settings)}
}

func (b *bench) work(t *testing.T, settings string) (stage.Result, []table.LineImage) {
	t.Helper()
	result, err := b.handler().Handle(t.Context(), b.task(t, settings))
	if err != nil {
		t.Fatal(err)
	}
	o := result.Output.(civic.Pages).Lines
	data, err := b.store.ReadAll(t.Context(), o.Key, o.SHA256, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	rows, meta, err := table.ReadLineImages(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	if meta["model"] != "m" || meta["reading_order"] == "" {
		t.Errorf("footer %v", meta)
	}
	return result, rows
}

func failed(page int) table.Detection {
	return table.Detection{About: table.About{
		Page: int32(page), Image: fmt.Sprintf("%d.jpg", page), Source: civic.SourceFailed,
		ErrorStage: "line_detection", ErrorClass: "permanent", ErrorMessage: "cut short",
	}}
}

func TestHandle(t *testing.T) {
	t.Parallel()
	blank := table.Detection{About: table.About{Page: 3, Image: "3.jpg", Width: 1000, Height: 1400, OK: true, Source: civic.SourceBlank}}
	b := newBench(t, found(1, 0, line(100, 900, 300), line(100, 480, 100), line(496, 900, 100)), failed(2), blank, found(4, 0, line(100, 900, 100)))
	result, rows := b.work(t, "")
	if want := prefix + "/line_extraction/line_images.parquet/part-00001-00032.parquet"; result.Output.(civic.Pages).Lines.Key != want {
		t.Errorf("the table is at %s, not %s", result.Output.(civic.Pages).Lines.Key, want)
	}
	var got []string
	for _, r := range rows {
		got = append(got, fmt.Sprintf("%s %d at %d,%d", r.Image, r.Index, r.X, r.Y))
		if r.Path != "" {
			t.Errorf("line %d has an image nobody asked for", r.Index)
		}
	}
	if diff := cmp.Diff([]string{"1.jpg 0 at 100,100", "1.jpg 1 at 100,300", "4.jpg 0 at 100,100"}, got); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
	_, rows = b.work(t, `{"merge_lines": false, "version": 3}`)
	if len(rows) != 4 {
		t.Errorf("%d lines where fragments stay so, want 4", len(rows))
	}
}

// Line images are kept where they are asked for, under the lines' names; a page
// whose picture is gone keeps its lines.
func TestHandle_files(t *testing.T) {
	t.Parallel()
	first, second := line(100, 500, 100), line(100, 300, 300)
	b := newBench(t, found(1, 0, first, second), found(2, 0, first))
	b.picture(t, "1.jpg", first, second)
	result, rows := b.work(t, `{"line_images": "files"}`)
	if len(rows) != 3 || len(result.Artifacts) != 3 || result.Metrics["line_images"] != 2 {
		t.Fatalf("%d lines, %d artifacts", len(rows), len(result.Artifacts))
	}
	for i, want := range []string{prefix + "/line_extraction/lines/1.jpg_0.jpg", prefix + "/line_extraction/lines/1.jpg_1.jpg"} {
		if rows[i].Path != want || !rows[i].OK {
			t.Errorf("line %d is at %q, not %s", i, rows[i].Path, want)
		}
		data, err := b.store.ReadAll(t.Context(), want, "", 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		img, err := jpeg.Decode(bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		size := img.Bounds().Size()
		shade := color.GrayModel.Convert(img.At(size.X/2, size.Y/2)).(color.Gray).Y
		if size.Y < 20 || size.Y > 30 || size.X < int(rows[i].W) || int(shade)/60 != i {
			t.Errorf("image of line %d is %v with the shade %d", i, size, shade)
		}
	}
	if r := rows[2]; r.OK || r.Path != "" || r.ErrorStage != lineextraction.Name || !strings.Contains(r.ErrorMessage, "2.jpg") || len(r.Contour) != 4 {
		t.Errorf("line of a page that is gone: %+v", r)
	}
}

func TestHandle_wrong(t *testing.T) {
	t.Parallel()
	b := newBench(t, found(1, 0, line(100, 900, 100)))
	bare := &bench{b.store, b.spec}
	bare.spec.Detection = nil
	gone := &bench{b.store, b.spec}
	gone.spec.Detection = &civic.Object{Key: "in/nowhere"}
	uneven := found(1, 0, line(100, 900, 100))
	uneven.Scores = nil
	for _, tt := range []struct {
		name  string
		task  *stage.Task
		store *artifact.Store
		class fault.Class
		says  string
	}{
		{"no table", bare.task(t, ""), b.store, fault.ClassPermanent, "line_detection"},
		{"a missing table", gone.task(t, ""), b.store, fault.ClassTransient, "in/nowhere"},
		{"another way to keep images", b.task(t, `{"line_images": "gif"}`), b.store, fault.ClassPermanent, "gif"},
		{"an unknown profile", b.task(t, `{"profile": "best"}`), b.store, fault.ClassPermanent, "best"},
	} {
		_, err := b.handler().Handle(t.Context(), tt.task)
		if fault.Of(err) != tt.class || !strings.Contains(fmt.Sprint(err), tt.says) {
			t.Errorf("%s: error %v of class %q, want %q and class %q", tt.name, err, fault.Of(err), tt.says, tt.class)
		}
	}
	bad := newBench(t, uneven)
	if _, err := bad.handler().Handle(t.Context(), bad.task(t, "")); fault.Of(err) != fault.ClassPermanent {
		t.Errorf("lines without scores: %v", err)
	}
}

func TestHandle_contract(t *testing.T) {
	t.Parallel()
	boxes := []image.Rectangle{line(100, 500, 100), line(100, 300, 300)}
	open := func(t *testing.T) *bench {
		b := newBench(t, found(1, 0, boxes...), failed(2))
		b.picture(t, "1.jpg", boxes...)
		return b
	}
	b := open(t)
	stagetest.Check(t, func(t *testing.T) (stage.Handler, stagetest.Store) {
		b := open(t)
		return b.handler(), b.store
	}, stagetest.Fixture{
		Name: "lines alone", Task: *b.task(t, ""), Prefix: prefix + "/line_extraction/",
	}, stagetest.Fixture{
		Name: "with images", Task: *b.task(t, `{"line_images": "files"}`), Prefix: prefix + "/line_extraction/",
	}, stagetest.Fixture{
		Name: "no table", Task: *(&bench{b.store, civic.Pages{Prefix: prefix, Volume: "v", First: 1, Last: 1, Images: b.spec.Images[:1]}}).task(t, ""), Fails: fault.ClassPermanent,
	})
}
