package httpapi

import (
	"bytes"
	"encoding"
	"encoding/json"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/opsplane/opsplane/shared/problem"
)

// misfit is a value of a body that is not what it must be there, in words of JSON.
type misfit struct {
	pointer string
	must    string // what it must be; "": it is in no field
	is      string
}

// says is what the caller is told of it.
func (m misfit) says() string {
	if m.must == "" {
		return "is not a field of this object"
	}
	return "must be " + m.must + ", is " + m.is
}

// misfitOf finds the first value in the JSON that package encoding/json does not take
// for the type; strict: also what is in no field. What has a decoder of its own is
// tried whole.
func misfitOf(raw json.RawMessage, t reflect.Type, at string, strict bool) (m misfit, found bool) {
	raw = bytes.TrimSpace(raw)
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if len(raw) == 0 || string(raw) == "null" || t == reflect.TypeFor[json.RawMessage]() {
		return misfit{}, false
	}
	own := reflect.PointerTo(t)
	decodes := own.Implements(reflect.TypeFor[json.Unmarshaler]()) || own.Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
	k := t.Kind()
	object, array := k == reflect.Struct || k == reflect.Map, k == reflect.Array || k == reflect.Slice
	switch {
	case decodes || !object && !array:
		if json.Unmarshal(raw, reflect.New(t).Interface()) == nil {
			return misfit{}, false
		}
		return misfit{at, mustBe(t), written(raw)}, true
	case object != (raw[0] == '{') || array != (raw[0] == '['):
		return misfit{at, mustBe(t), written(raw)}, true
	case array:
		var items []json.RawMessage
		_ = json.Unmarshal(raw, &items) // it was read before
		for i, x := range items {
			if m, found = misfitOf(x, t.Elem(), at+problem.Pointer(strconv.Itoa(i)), strict); found {
				return m, true
			}
		}
		return misfit{}, false
	}
	return memberMisfit(raw, t, at, strict)
}

// memberMisfit looks through an object's members, in their order.
func memberMisfit(raw json.RawMessage, t reflect.Type, at string, strict bool) (misfit, bool) {
	d := json.NewDecoder(bytes.NewReader(raw))
	_, _ = d.Token() // the brace
	for d.More() {
		name, err := d.Token()
		key, _ := name.(string)
		var x json.RawMessage
		if err != nil || d.Decode(&x) != nil {
			return misfit{}, false // it was read before
		}
		inner, known := memberType(t, key)
		pointer := at + problem.Pointer(key)
		if !known {
			if strict {
				return misfit{pointer: pointer}, true
			}
			continue
		}
		if m, found := misfitOf(x, inner, pointer, strict); found {
			return m, true
		}
	}
	return misfit{}, false
}

// memberType is the type that an object's member is read into, as encoding/json
// chooses the field.
func memberType(t reflect.Type, key string) (reflect.Type, bool) {
	if t.Kind() == reflect.Map {
		return t.Elem(), true
	}
	fields := reflect.VisibleFields(t)
	named := func(same func(a, b string) bool) int {
		return slices.IndexFunc(fields, func(f reflect.StructField) bool {
			tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if tag == "" {
				tag = f.Name
			}
			return f.IsExported() && !f.Anonymous && tag != "-" && same(tag, key)
		})
	}
	i := named(func(a, b string) bool { return a == b })
	if i < 0 {
		i = named(strings.EqualFold)
	}
	if i < 0 {
		return nil, false
	}
	return fields[i].Type, true
}

// mustBe says what JSON a type is read from.
func mustBe(t reflect.Type) string {
	if t == reflect.TypeFor[time.Time]() {
		return "an RFC 3339 timestamp such as 2026-11-29T12:00:00Z"
	}
	switch t.Kind() {
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Array, reflect.Slice:
		return "an array"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return "a whole number that " + strconv.Itoa(t.Bits()) + " bits hold"
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "a whole number from 0 that " + strconv.Itoa(t.Bits()) + " bits hold"
	case reflect.Float32, reflect.Float64:
		return "a number"
	}
	return "a string"
}

// written says what a value is, and shows it where it is short.
func written(raw json.RawMessage) string {
	show := func(what string) string {
		const most = 40
		if len(raw) > most {
			return what
		}
		return what + " (" + strings.ToValidUTF8(string(raw), "?") + ")"
	}
	switch raw[0] {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return show("a string")
	case 't', 'f':
		return string(raw)
	}
	return show("a number")
}

// cutLevels is from which level on what a body nests deeper is cut, where
// encoding/json gives up on the whole body. It is deeper than anything that is taken.
const cutLevels = 64

// shallow writes null in the place of the objects and arrays of JSON that are nested
// deeper than the level most, so that what stands beside them can be read. It tells
// whether there were any.
func shallow(b []byte, most int) (out []byte, deep bool) {
	depth, text := 0, false
	for i := 0; i < len(b); i++ {
		c := b[i]
		switch {
		case text && c == '\\':
			if depth <= most && i+1 < len(b) {
				out = append(out, c, b[i+1])
			}
			i++
			continue
		case c == '"':
			text = !text
		case text:
		case c == '{' || c == '[':
			if depth++; depth == most+1 {
				out, deep = append(out, "null"...), true
			}
		case c == '}' || c == ']':
			if depth--; depth == most {
				continue
			}
		}
		if depth <= most {
			out = append(out, c)
		}
	}
	return out, deep
}
