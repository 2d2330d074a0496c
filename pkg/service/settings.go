package service

import (
	"encoding"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/env/v2"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/providers/posflag"
	"github.com/knadh/koanf/v2"
	"github.com/spf13/pflag"

	"github.com/reeve-pipeline/reeve/pkg/pipeline"
)

// ErrSettings is wrapped by every error that is about settings: a process
// that ends with it exits with 2.
var ErrSettings = errors.New("wrong settings")

// settingsError keeps the sentinel out of the text.
type settingsError struct{ error }

func (settingsError) Is(target error) bool { return target == ErrSettings }
func (e settingsError) Unwrap() error      { return e.error }

func wrong(errs ...error) error {
	if err := errors.Join(errs...); err != nil {
		return settingsError{err}
	}
	return nil
}

const envPrefix = "REEVE_"

// setting is one key that some part of the process reads.
type setting struct {
	key, help, kind string
	fallback        string // the default, as text
	value           string // in force, as text, masked
	origin          string // where the value came from
}

// settings holds what each source says, and every key that has been asked for.
// It is safe for concurrent use.
type settings struct {
	mu      sync.Mutex
	args    []string
	environ []string
	path    string // of the file, for messages
	file    *koanf.Koanf
	values  map[string]any
	flags   *pflag.FlagSet
	known   map[string]*setting
	loaded  map[string]bool // prefixes
}

func newSettings(name string, o Options) *settings {
	s := &settings{
		args: o.Args, environ: o.Environ, values: o.Values,
		file:   koanf.New("."),
		flags:  pflag.NewFlagSet(name, pflag.ContinueOnError),
		known:  map[string]*setting{},
		loaded: map[string]bool{},
	}
	s.flags.SortFlags = true
	s.flags.SetNormalizeFunc(s.flagName)
	s.flags.Usage = func() {}
	return s
}

// flagName is the key that a flag names. A service's own settings may be
// written without its name, and with dashes: --dry-run for --sweeper.dry_run.
func (s *settings) flagName(flags *pflag.FlagSet, name string) pflag.NormalizedName {
	key := strings.ReplaceAll(name, "-", "_")
	for _, known := range []string{name, key, flags.Name() + "." + key} {
		if s.known[known] != nil {
			return pflag.NormalizedName(known)
		}
	}
	return pflag.NormalizedName(name)
}

// readFile reads the YAML file that all later loads look into.
func (s *settings) readFile(path string) error {
	s.path = path
	err := s.file.Load(file.Provider(path), yaml.Parser())
	if pathErr, ok := errors.AsType[*os.PathError](err); ok {
		return wrong(fmt.Errorf("settings file %s: %w", path, pathErr.Err))
	}
	if err != nil {
		return wrong(fmt.Errorf("settings file %s: %w", path, err))
	}
	return nil
}

// load fills a struct and remembers its keys. See [Env.Load].
func (s *settings) load(prefix string, into any) error {
	target := reflect.ValueOf(into)
	if target.Kind() != reflect.Pointer || target.Elem().Kind() != reflect.Struct {
		return fmt.Errorf("settings %s: a pointer to a struct is wanted, not %T", prefix, into)
	}
	fields := map[string]reflect.Value{}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.learn(prefix, target.Elem(), fields); err != nil {
		return err
	}
	s.loaded[prefix] = true
	layers, err := s.layers()
	if err != nil {
		return err
	}

	var errs []error
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		at, known := fields[key], s.known[key]
		known.origin = "default"
		for _, l := range layers {
			raw, ok := l.get(key)
			if !ok {
				continue
			}
			known.origin = l.origin(key)
			if err := parse(at, raw); err != nil {
				errs = append(errs, fmt.Errorf("%s (%s): %w", key, known.origin, err))
			}
			break
		}
		known.value = redact(format(at))
	}
	if v, ok := into.(interface{ Validate() error }); ok && len(errs) == 0 {
		if err := v.Validate(); err != nil {
			errs = append(errs, section(prefix, err))
		}
	}
	return wrong(errs...)
}

func section(prefix string, err error) error {
	if prefix == "" {
		return err
	}
	return fmt.Errorf("settings %s: %w", prefix, err)
}

// learn walks a struct and registers each field as a setting and as a flag.
func (s *settings) learn(prefix string, v reflect.Value, fields map[string]reflect.Value) error {
	for field, at := range v.Fields() {
		tag := field.Tag.Get("koanf")
		name, opts, _ := strings.Cut(tag, ",")
		if tag == "" || name == "-" {
			continue
		}
		key := strings.TrimPrefix(prefix+"."+name, ".")
		if opts == "squash" {
			key = prefix
		}
		if at.Kind() == reflect.Struct && !reflect.PointerTo(field.Type).Implements(textUnmarshaler) {
			s.loaded[key] = true
			if err := s.learn(key, at, fields); err != nil {
				return err
			}
			continue
		}
		if !keyForm.MatchString(key) {
			return fmt.Errorf("setting %q of %s: a key is lower-case words joined by dots and underscores", key, v.Type())
		}
		fields[key] = at
		if s.known[key] == nil {
			s.known[key] = &setting{key: key, help: field.Tag.Get("help"), kind: kind(field.Type), fallback: redact(format(at))}
			s.flags.AddFlag(s.flag(s.known[key]))
		}
	}
	return nil
}

var textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()

var keyForm = regexp.MustCompile(`^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*$`)

// text is a flag's value; it is parsed by the setting's type later.
type text struct{ value, kind string }

func (t *text) String() string     { return t.value }
func (t *text) Set(v string) error { t.value = v; return nil }
func (t *text) Type() string       { return t.kind }

func (s *settings) flag(k *setting) *pflag.Flag {
	f := &pflag.Flag{Name: k.key, Usage: k.help, Value: &text{k.fallback, k.kind}, DefValue: k.fallback}
	if k.kind == "bool" {
		f.NoOptDefVal = "true"
	}
	return f
}

// layer is one source, of those that can set a key.
type layer struct {
	get    func(key string) (any, bool)
	origin func(key string) string
}

// layers returns the sources, the strongest first.
func (s *settings) layers() ([]layer, error) {
	s.flags.ParseErrorsAllowlist.UnknownFlags = true // parts loaded later may know them
	if err := s.flags.Parse(s.args); err != nil && !errors.Is(err, pflag.ErrHelp) {
		return nil, wrong(err)
	}
	flags, environ := koanf.New("."), koanf.New(".")
	byName := map[string]string{}
	for key := range s.known {
		byName[envName(key)] = key
	}
	err := errors.Join(
		flags.Load(posflag.ProviderWithFlag(s.flags, ".", nil, func(f *pflag.Flag) (string, any) {
			return f.Name, f.Value.String()
		}), nil),
		environ.Load(env.Provider(".", env.Opt{
			Prefix:        envPrefix,
			EnvironFunc:   func() []string { return s.environ },
			TransformFunc: func(name, value string) (string, any) { return byName[name], value },
		}), nil),
	)
	if err != nil {
		return nil, wrong(err)
	}
	from := func(k *koanf.Koanf) func(string) (any, bool) {
		return func(key string) (any, bool) { v := k.Get(key); return v, v != nil }
	}
	return []layer{
		{func(key string) (any, bool) { v, ok := s.values[key]; return v, ok }, func(string) string { return "set by the program" }},
		{from(flags), func(key string) string { return "flag --" + key }},
		{from(environ), func(key string) string { return "environment " + envName(key) }},
		{from(s.file), func(string) string { return "file " + s.path }},
	}, nil
}

func envName(key string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(key, ".", "_"))
}

// elsewhere lists the sections that other processes of Reeve read, so that one
// file and one environment can serve them all. Keys in them are checked by
// the process that reads them.
func elsewhere() []string {
	names := []string{
		"bus", "fanin", "gateway", "ledger", "onnx", "pdf", "postgres", "reeve", "s3", "s3d", "stage", "sweeper", "webhook", "worker",
		"api", "data", "token", // of the command reeve
		"test",
	}
	for _, s := range pipeline.Stages() {
		names = append(names, s.Name, s.Service)
	}
	return names
}

// unknown reports every key that is set and that nobody reads, with the
// nearest one that somebody does. With early set it looks only under prefixes
// that have been loaded, for others may still come.
func (s *settings) unknown(early bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	mine := func(key string) bool {
		for prefix := range s.loaded {
			if prefix != "" && strings.HasPrefix(key, prefix+".") {
				return true
			}
		}
		return false
	}
	foreign := elsewhere()
	report := func(key string) bool {
		top, _, _ := strings.Cut(key, ".")
		return mine(key) || !early && !slices.Contains(foreign, top)
	}
	keys := slices.Sorted(maps.Keys(s.known))
	var errs []error
	add := func(where, shown string, candidates []string) {
		errs = append(errs, fmt.Errorf("%s%s is not a setting%s", where, shown, meant(shown, candidates)))
	}

	var asFlags, asNames []string
	for _, key := range keys {
		asFlags = append(asFlags, "--"+key)
		asNames = append(asNames, envName(key))
	}
	for _, arg := range s.args {
		name, _, _ := strings.Cut(arg, "=")
		key, ok := strings.CutPrefix(name, "--")
		if ok && key != "" && s.flags.Lookup(key) == nil && (mine(key) || !early) {
			add("", name, asFlags)
		}
	}
	for _, arg := range s.flags.Args() {
		errs = append(errs, fmt.Errorf("%s takes no argument %q; settings are written --name=value", s.flags.Name(), arg))
	}
	for _, pair := range s.environ {
		name, _, _ := strings.Cut(pair, "=")
		if !strings.HasPrefix(name, envPrefix) || slices.Contains(asNames, name) {
			continue
		}
		// An underscore may stand for a dot: the key is ours if any loaded
		// prefix, written as a variable, is the name's beginning.
		inOurs := false
		for prefix := range s.loaded {
			inOurs = inOurs || prefix != "" && strings.HasPrefix(name, envName(prefix)+"_")
		}
		inTheirs := slices.ContainsFunc(foreign, func(f string) bool { return name == envName(f) || strings.HasPrefix(name, envName(f)+"_") })
		if inOurs || !early && !inTheirs {
			add("", name, asNames)
		}
	}
	isKnown := func(key string) bool {
		for at := key; at != ""; at = parent(at) {
			if k := s.known[at]; k != nil && (at == key || k.kind == "pairs") {
				return true
			}
		}
		return false
	}
	for _, key := range s.file.Keys() {
		if s.file.Get(key) != nil && !isKnown(key) && report(key) {
			add(filepath.Base(s.path)+": ", key, keys)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(s.values)) {
		if !isKnown(key) && report(key) {
			add("", key, keys)
		}
	}
	return wrong(errs...)
}

func parent(key string) string {
	if i := strings.LastIndexByte(key, '.'); i > 0 {
		return key[:i]
	}
	return ""
}

// meant names the candidate nearest to a misspelt name, if one is near.
func meant(name string, candidates []string) string {
	best, least := "", len(name)/2+1
	for _, c := range candidates {
		if d := distance(name, c); d < least {
			best, least = c, d
		}
	}
	if best == "" {
		return ""
	}
	return "; did you mean " + best + "?"
}

// distance is the number of edits that turn a into b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(diagonal+cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// redact hides the passwords of a value that is a URL, or several.
func redact(value string) string {
	if !strings.Contains(value, "@") {
		return value
	}
	parts := strings.Split(value, ",")
	for i, part := range parts {
		u, err := url.Parse(part)
		switch {
		case err != nil:
			parts[i] = userinfo.ReplaceAllString(part, "://")
		case u.User != nil:
			parts[i] = u.Redacted()
		}
	}
	return strings.Join(parts, ",")
}

var userinfo = regexp.MustCompile(`://.*@`)
