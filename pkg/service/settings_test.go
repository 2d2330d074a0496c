package service_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/reeve-pipeline/reeve/pkg/service"
)

type nested struct {
	Depth int `koanf:"depth" help:"levels"`
}

type sample struct {
	Timeout time.Duration     `koanf:"timeout" help:"per request"`
	MaxSize service.Size      `koanf:"max_size" help:"largest document"`
	Token   service.Secret    `koanf:"token" help:"bearer token"`
	Hosts   []string          `koanf:"hosts" help:"allowed hosts"`
	Header  map[string]string `koanf:"header" help:"sent along"`
	Rate    float64           `koanf:"rate" help:"requests a second"`
	Dry     bool              `koanf:"dry" help:"touch nothing"`
	URL     string            `koanf:"url" help:"where"`
	Nested  nested            `koanf:"nested"`
	Ignored func()
}

func (s *sample) Validate() error {
	var errs []error
	if s.Timeout <= 0 {
		errs = append(errs, errors.New("timeout must be positive"))
	}
	if s.MaxSize > 1<<40 {
		errs = append(errs, errors.New("max_size must be at most 1TiB"))
	}
	return errors.Join(errs...)
}

func newEnv(t *testing.T, o service.Options) *service.Env {
	t.Helper()
	o.Log = zap.NewNop()
	env, err := service.New("sample", o)
	if err != nil {
		t.Fatal(err)
	}
	return env
}

func yamlFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "reeve.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLoad_EverySourceInItsTurn(t *testing.T) {
	t.Parallel()
	path := yamlFile(t, `
sample:
  timeout: 1s
  max_size: 1KiB
  rate: 1
  hosts: [a.example, b.example]
  header: {accept-language: de}
  nested: {depth: 1}
  url:
`)
	env := newEnv(t, service.Options{
		Args: []string{"--config", path, "--sample.rate=4", "--sample.dry", "--sample.nested.depth", "4"},
		Environ: []string{
			"HOME=/", "REEVE_SAMPLE_TIMEOUT=2s", "REEVE_SAMPLE_RATE=2", "REEVE_SAMPLE_TOKEN=hunter2", "REEVE_SAMPLE_NESTED_DEPTH=2",
		},
		Values: map[string]any{"sample.nested.depth": 5},
	})
	got := sample{URL: "default"}
	if err := env.Load("sample", &got); err != nil {
		t.Fatal(err)
	}
	want := sample{
		Timeout: 2 * time.Second, MaxSize: 1024, Token: "hunter2", Hosts: []string{"a.example", "b.example"},
		Header: map[string]string{"accept-language": "de"}, Rate: 4, Dry: true, URL: "default", Nested: nested{5},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if err := env.Unknown(); err != nil {
		t.Error(err)
	}
}

// A service's own settings may be written without its name.
func TestLoad_OwnFlagsWithoutPrefix(t *testing.T) {
	t.Parallel()
	env := newEnv(t, service.Options{Args: []string{"--max-size=7", "--dry", "--sample.timeout=3s", "--nested.depth=2"}})
	got := sample{Timeout: time.Second}
	if err := env.Load("sample", &got); err != nil {
		t.Fatal(err)
	}
	if got.MaxSize != 7 || !got.Dry || got.Timeout != 3*time.Second || got.Nested.Depth != 2 {
		t.Errorf("got %+v", got)
	}
	if err := env.Unknown(); err != nil {
		t.Error(err)
	}
}

func TestLoad_ListsAndPairsFromTheEnvironment(t *testing.T) {
	t.Parallel()
	env := newEnv(t, service.Options{Environ: []string{
		"REEVE_SAMPLE_HOSTS=a.example, b.example", "REEVE_SAMPLE_HEADER=a=1,b=x=y", "REEVE_SAMPLE_TIMEOUT=1m",
	}})
	var got sample
	if err := env.Load("sample", &got); err != nil {
		t.Fatal(err)
	}
	want := sample{
		Timeout: time.Minute, Hosts: []string{"a.example", "b.example"}, Header: map[string]string{"a": "1", "b": "x=y"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// All that is wrong is said at once, with the setting and where it was set.
func TestLoad_WrongValues(t *testing.T) {
	t.Parallel()
	env := newEnv(t, service.Options{
		Args:    []string{"--sample.rate=fast"},
		Environ: []string{"REEVE_SAMPLE_TIMEOUT=30"},
		Values:  map[string]any{"sample.max_size": "64MiBs", "sample.nested.depth": 1.5, "sample.url": []any{"a", "b"}},
	})
	err := env.Load("sample", &sample{})
	if !errors.Is(err, service.ErrSettings) {
		t.Fatalf("%v is not about settings", err)
	}
	want := strings.Join([]string{
		`sample.max_size (set by the program): "64MiBs" is not a size; write it like 512, 64KiB or 2GiB`,
		`sample.nested.depth (set by the program): "1.5" is not a whole number in range`,
		`sample.rate (flag --sample.rate): "fast" is not a number`,
		`sample.timeout (environment REEVE_SAMPLE_TIMEOUT): "30" is not a duration; write it like 500ms, 30s or 5m`,
		`sample.url (set by the program): [a b] is a list; one string is wanted`,
	}, "\n")
	if diff := cmp.Diff(want, err.Error()); diff != "" {
		t.Error(diff)
	}
}

func TestLoad_Validates(t *testing.T) {
	t.Parallel()
	env := newEnv(t, service.Options{Values: map[string]any{"sample.max_size": "2TiB"}})
	err := env.Load("sample", &sample{})
	if err == nil || !errors.Is(err, service.ErrSettings) {
		t.Fatalf("%v is not about settings", err)
	}
	for _, want := range []string{"settings sample:", "timeout must be positive", "max_size must be at most"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
}

func TestUnknown(t *testing.T) {
	t.Parallel()
	path := yamlFile(t, `
log: {level: debug}
sample: {tiemout: 1s, header: {x-any: "1"}}
smaple: {timeout: 1s}
fetch: {whatever: of another service}
grase: 3s
`)
	env := newEnv(t, service.Options{
		Args: []string{"--config=" + path, "--sample.max_siz=3", "now"},
		Environ: []string{
			"REEVE_SAMPLE_TIMEUOT=1s", "REEVE_SAMPEL_URL=x", "REEVE_NATS_ULR=x", "REEVE_FETCH_TIMEOUT=1s", "REEVE_SAMPLE_URL=x", "OTHER=1",
		},
		Values: map[string]any{"sample.nested.deep": 1},
	})
	if err := env.Load("sample", &sample{Timeout: 1}); err != nil {
		t.Fatal(err)
	}
	err := env.Unknown()
	if !errors.Is(err, service.ErrSettings) {
		t.Fatalf("%v is not about settings", err)
	}
	want := strings.Join([]string{
		`--sample.max_siz is not a setting; did you mean --sample.max_size?`,
		`sample takes no argument "now"; settings are written --name=value`,
		`REEVE_SAMPLE_TIMEUOT is not a setting; did you mean REEVE_SAMPLE_TIMEOUT?`,
		`REEVE_SAMPEL_URL is not a setting; did you mean REEVE_SAMPLE_URL?`,
		`REEVE_NATS_ULR is not a setting; did you mean REEVE_NATS_URL?`,
		`reeve.yaml: grase is not a setting; did you mean grace?`,
		`reeve.yaml: sample.tiemout is not a setting; did you mean sample.timeout?`,
		`reeve.yaml: smaple.timeout is not a setting; did you mean sample.timeout?`,
		`sample.nested.deep is not a setting; did you mean sample.nested.depth?`,
	}, "\n")
	if diff := cmp.Diff(want, err.Error()); diff != "" {
		t.Error(diff)
	}
}

func TestNew_WrongSettings(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		o    service.Options
		want string
	}{
		{"no such file", service.Options{Args: []string{"--config=/no/such.yaml"}}, "settings file /no/such.yaml: no such file or directory"},
		{"not YAML", service.Options{Environ: []string{"REEVE_CONFIG=" + yamlFile(t, "a: [")}}, "settings file "},
		{"level", service.Options{Values: map[string]any{"log.level": "loud"}}, `log.level: "loud" is not one of debug, info, warn, error`},
		{"format", service.Options{Values: map[string]any{"log.format": "xml"}}, `log.format must be json or console, not "xml"`},
		{"no value", service.Options{Args: []string{"--log.level"}}, "flag needs an argument: --log.level"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := service.New("sample", tt.o)
			if err == nil || !errors.Is(err, service.ErrSettings) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %s", err, tt.want)
			}
		})
	}
}

func TestSecret_IsMaskedEverywhere(t *testing.T) {
	t.Parallel()
	type holder struct {
		Token service.Secret
		Ptr   *service.Secret
	}
	s := service.Secret("hunter2")
	h := holder{s, &s}
	enc := zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig())
	line, err := enc.EncodeEntry(zapcore.Entry{}, []zapcore.Field{
		zap.Any("a", s), zap.Any("b", h), zap.Stringer("c", s), zap.Any("d", []service.Secret{s}), zap.Reflect("e", map[string]any{"s": s}),
	})
	if err != nil {
		t.Fatal(err)
	}
	asJSON, err := json.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	for _, shown := range []string{
		line.String(), string(asJSON), s.String(), fmt.Sprint(s, h),
		fmt.Sprintf("%s %v %+v %#v %q %x %d %t", s, s, s, s, s, s, s, s),
		fmt.Sprintf("%v %+v %#v", h, h, h),
		fmt.Errorf("login with %v", s).Error(),
	} {
		if strings.Contains(shown, "hunter2") || strings.Contains(shown, "68756e746572") {
			t.Errorf("%s tells the secret", shown)
		}
	}
	if s.Reveal() != "hunter2" || service.Secret("").String() != "" {
		t.Error("the secret is lost, or nothing is taken for one")
	}
}

func TestSize(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		in   string
		want service.Size
		out  string
	}{
		{"0", 0, "0"},
		{"512", 512, "512"},
		{"512B", 512, "512"},
		{"64KiB", 64 << 10, "64KiB"},
		{"64 mib", 64 << 20, "64MiB"},
		{"1536MiB", 1536 << 20, "1536MiB"},
		{"2GiB", 2 << 30, "2GiB"},
		{"1MB", 1e6, "1000000"},
		{"8TiB", 8 << 40, "8TiB"},
	} {
		var got service.Size
		if err := got.UnmarshalText([]byte(tt.in)); err != nil || got != tt.want || got.String() != tt.out {
			t.Errorf("%q is %d (%s), %v; want %d (%s)", tt.in, got, got, err, tt.want, tt.out)
		}
	}
	for _, in := range []string{"", "MiB", "-1", "1.5GiB", "1PiB", "9999999TiB", "ten"} {
		if err := new(service.Size).UnmarshalText([]byte(in)); err == nil {
			t.Errorf("%q is taken for a size", in)
		}
	}
}
