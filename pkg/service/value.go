package service

import (
	"encoding"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// mask is what a secret prints as.
const mask = "***"

// Secret is a string that prints as *** wherever it is printed: by fmt, by
// zap, as JSON and in --print-config. An empty one prints as empty.
type Secret string

// Reveal returns the secret itself.
func (s Secret) Reveal() string { return string(s) }

// String returns the mask.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return mask
}

// Format writes the mask whatever the verb.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.String()) }

// MarshalText returns the mask.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Size is a number of bytes, written as 512, 64KiB, 64MiB or 2GiB in settings.
// KB, MB and GB are powers of ten.
type Size int64

var units = []struct {
	name  string
	bytes int64
}{
	{"TiB", 1 << 40},
	{"GiB", 1 << 30},
	{"MiB", 1 << 20},
	{"KiB", 1 << 10},
	{"TB", 1e12},
	{"GB", 1e9},
	{"MB", 1e6},
	{"KB", 1e3},
	{"B", 1},
}

// String writes the size in the largest binary unit that divides it.
func (s Size) String() string {
	for _, u := range units[:4] {
		if s != 0 && int64(s)%u.bytes == 0 {
			return strconv.FormatInt(int64(s)/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatInt(int64(s), 10)
}

// MarshalText writes the size as [Size.String] does.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads a whole number of bytes, with or without a unit.
func (s *Size) UnmarshalText(text []byte) error {
	number, factor := strings.TrimSpace(string(text)), int64(1)
	for _, u := range units {
		if cut := len(number) - len(u.name); cut > 0 && strings.EqualFold(number[cut:], u.name) {
			number, factor = strings.TrimSpace(number[:cut]), u.bytes
			break
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 0 || n > (1<<63-1)/factor {
		return fmt.Errorf("%q is not a size; write it like 512, 64KiB or 2GiB", text)
	}
	*s = Size(n * factor)
	return nil
}

// parse reads a value of any source into v. Text is read by v's type; lists
// are separated by commas, pairs of a map written as key=value.
func parse(v reflect.Value, raw any) error {
	if list, ok := raw.([]any); ok {
		if v.Kind() != reflect.Slice {
			return fmt.Errorf("%v is a list; one %s is wanted", list, kind(v.Type()))
		}
		return parseList(v, list)
	}
	if table, ok := raw.(map[string]any); ok {
		return parseMap(v, table)
	}
	text := fmt.Sprint(raw)
	if u, ok := reflect.TypeAssert[encoding.TextUnmarshaler](v.Addr()); ok {
		return u.UnmarshalText([]byte(text))
	}
	var err error
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Bool:
		var b bool
		b, err = strconv.ParseBool(text)
		v.SetBool(b)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		if v.Type() == reflect.TypeFor[time.Duration]() {
			var d time.Duration
			d, err = time.ParseDuration(text)
			v.SetInt(int64(d))
			break
		}
		var n int64
		n, err = strconv.ParseInt(text, 10, v.Type().Bits())
		v.SetInt(n)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		var n uint64
		n, err = strconv.ParseUint(text, 10, v.Type().Bits())
		v.SetUint(n)
	case reflect.Float32, reflect.Float64:
		var f float64
		f, err = strconv.ParseFloat(text, v.Type().Bits())
		v.SetFloat(f)
	case reflect.Slice:
		var list []any
		for part := range strings.SplitSeq(text, ",") {
			if part = strings.TrimSpace(part); part != "" {
				list = append(list, part)
			}
		}
		return parseList(v, list)
	case reflect.Map:
		table := map[string]any{}
		for pair := range strings.SplitSeq(text, ",") {
			key, value, ok := strings.Cut(strings.TrimSpace(pair), "=")
			if !ok && pair != "" {
				return fmt.Errorf("%q is not a pair; write key=value,key=value", pair)
			}
			if ok {
				table[key] = value
			}
		}
		return parseMap(v, table)
	default:
		return fmt.Errorf("a setting cannot be of type %s", v.Type())
	}
	if err != nil {
		return fmt.Errorf("%q is not %s", text, article(kind(v.Type())))
	}
	return nil
}

func parseList(v reflect.Value, list []any) error {
	out := reflect.MakeSlice(v.Type(), len(list), len(list))
	for i, raw := range list {
		if err := parse(out.Index(i), raw); err != nil {
			return err
		}
	}
	v.Set(out)
	return nil
}

func parseMap(v reflect.Value, table map[string]any) error {
	if v.Kind() != reflect.Map || v.Type().Key().Kind() != reflect.String {
		return fmt.Errorf("%v is a table; one %s is wanted", table, kind(v.Type()))
	}
	out := reflect.MakeMap(v.Type())
	for key, raw := range table {
		value := reflect.New(v.Type().Elem()).Elem()
		if err := parse(value, raw); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		out.SetMapIndex(reflect.ValueOf(key).Convert(v.Type().Key()), value)
	}
	v.Set(out)
	return nil
}

// format writes a value so that parse reads it back, and secrets masked.
func format(v reflect.Value) string {
	if m, ok := reflect.TypeAssert[encoding.TextMarshaler](v); ok {
		if text, err := m.MarshalText(); err == nil {
			return string(text)
		}
	}
	if d, ok := reflect.TypeAssert[time.Duration](v); ok {
		text := d.String()
		for _, zero := range []string{"m0s", "h0m"} { // 5m0s, 2h0m
			if strings.HasSuffix(text, zero) {
				text = text[:len(text)-2]
			}
		}
		return text
	}
	var parts []string
	switch v.Kind() {
	case reflect.Slice:
		for _, e := range v.Seq2() {
			parts = append(parts, format(e))
		}
	case reflect.Map:
		for k, e := range v.Seq2() {
			parts = append(parts, k.String()+"="+format(e))
		}
		slices.Sort(parts)
	default:
		return fmt.Sprint(v.Interface())
	}
	return strings.Join(parts, ",")
}

// kind names a setting's type in help and errors.
func kind(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[time.Duration]():
		return "duration"
	case t == reflect.TypeFor[Size]():
		return "size"
	case t == reflect.TypeFor[Secret]():
		return "secret"
	}
	switch t.Kind() {
	case reflect.Bool:
		return "bool"
	case reflect.Slice:
		return "list"
	case reflect.Map:
		return "pairs"
	case reflect.Float32, reflect.Float64:
		return "number"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "integer"
	default:
		return "string"
	}
}

// article describes a kind in an error, with an example where it helps.
func article(kind string) string {
	switch kind {
	case "bool":
		return "true or false"
	case "duration":
		return "a duration; write it like 500ms, 30s or 5m"
	case "integer":
		return "a whole number in range"
	default:
		return "a " + kind
	}
}
