package alert

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/opsplane/opsplane/shared/operation"
)

// value is a parsed value with its place. YAML and JSON are both brought into
// this form, so that what is wrong is told alike.
type value struct {
	line, column int
	kind         string // map, list, string, number, bool, null
	text         string // of string, number and bool
	keys         []string
	at           map[string]place // of the keys
	fields       map[string]*value
	items        []*value
}

type place struct{ line, column int }

const maxDepth = 12

// tooNested is what is said of a value that is deeper.
var tooNested = fmt.Sprintf("is nested too deeply, the limit is %d levels", maxDepth)

// ParseRule reads a rule from YAML or JSON and validates it. What is wrong is
// Faults, with pointers and lines.
func ParseRule(data []byte) (*Rule, error) {
	var r Rule
	if err := Decode(data, &r); err != nil {
		return nil, err
	}
	return &r, r.Validate()
}

// Decode reads YAML or JSON of at most MaxRuleBytes into a struct with JSON tags,
// strictly: unknown fields, repeated keys, aliases and values of other types are
// Faults.
//
// A byte order mark, which editors put before a text, says nothing in UTF-8 (RFC
// 3629, section 6) and is passed over.
func Decode(data []byte, into any) error {
	if len(data) > MaxRuleBytes {
		return Faults{{Code: CodeRange, Detail: fmt.Sprintf("has %d bytes, the limit is %d", len(data), MaxRuleBytes)}}
	}
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	if !utf8.Valid(data) {
		return Faults{{Code: CodeSyntax, Detail: "is not UTF-8"}}
	}
	read := readYAML
	if t := bytes.TrimLeft(data, " \t\r\n"); len(t) > 0 && t[0] == '{' {
		read = readJSON
	}
	v, err := read(data)
	if err != nil {
		var faults Faults
		if errors.As(err, &faults) {
			return faults
		}
		return Faults{{Code: CodeSyntax, Detail: err.Error()}}
	}
	var f Faults
	fill(v, reflect.ValueOf(into).Elem(), "", &f)
	return f.orNil()
}

func readYAML(data []byte) (*value, error) {
	tokens := lexer.Tokenize(string(data))
	if p := tooDeep(tokens); p != nil {
		return nil, Faults{{Line: p.Line, Column: p.Column, Code: CodeSyntax, Detail: tooNested}}
	}
	file, err := parser.Parse(tokens, 0)
	if err != nil {
		var ye yaml.Error
		if errors.As(err, &ye) && ye.GetToken() != nil {
			p := ye.GetToken().Position
			return nil, Faults{{Line: p.Line, Column: p.Column, Code: CodeSyntax, Detail: ye.GetMessage()}}
		}
		return nil, err
	}
	if len(file.Docs) != 1 || file.Docs[0].Body == nil {
		return nil, Faults{{Code: CodeSyntax, Detail: "must be one document"}}
	}
	return fromYAML(file.Docs[0].Body, "", 0)
}

// tooDeep finds a place where flow collections, or lists on one line, are nested
// deeper than any rule has it: the parser takes time by the square of that.
func tooDeep(tokens token.Tokens) *token.Position {
	depth, entries, line := 0, 0, 0
	for _, t := range tokens {
		switch t.Type {
		case token.MappingStartType, token.SequenceStartType:
			depth++
		case token.MappingEndType, token.SequenceEndType:
			depth--
		case token.SequenceEntryType:
			if t.Position.Line != line {
				entries, line = 0, t.Position.Line
			}
			entries++
		}
		if depth > 2*maxDepth || entries > 2*maxDepth {
			return t.Position
		}
	}
	return nil
}

func fromYAML(n ast.Node, pointer string, depth int) (*value, error) {
	v := &value{}
	if t := n.GetToken(); t != nil && t.Position != nil {
		v.line, v.column = t.Position.Line, t.Position.Column
	}
	if depth > maxDepth {
		return nil, Faults{{pointer, v.line, v.column, CodeSyntax, tooNested}}
	}
	switch n := n.(type) {
	case *ast.MappingNode:
		v.kind, v.fields, v.at = "map", map[string]*value{}, map[string]place{}
		for _, kv := range n.Values {
			if err := v.addYAML(kv, pointer, depth); err != nil {
				return nil, err
			}
		}
	case *ast.MappingValueNode: // a map of one key
		v.kind, v.fields, v.at = "map", map[string]*value{}, map[string]place{}
		if err := v.addYAML(n, pointer, depth); err != nil {
			return nil, err
		}
	case *ast.SequenceNode:
		v.kind = "list"
		for i, it := range n.Values {
			x, err := fromYAML(it, fmt.Sprintf("%s/%d", pointer, i), depth+1)
			if err != nil {
				return nil, err
			}
			v.items = append(v.items, x)
		}
	case *ast.StringNode:
		v.kind, v.text = "string", n.Value
	case *ast.LiteralNode:
		v.kind, v.text = "string", n.Value.Value
	case *ast.IntegerNode:
		v.kind, v.text = "number", fmt.Sprint(n.Value)
	case *ast.FloatNode:
		v.kind, v.text = "number", n.GetToken().Value
	case *ast.BoolNode:
		v.kind, v.text = "bool", strconv.FormatBool(n.Value)
	case *ast.NullNode:
		v.kind = "null"
	default:
		return nil, Faults{{pointer, v.line, v.column, CodeSyntax, "anchors, aliases, tags and merges are not taken"}}
	}
	return v, nil
}

func (v *value) addYAML(kv *ast.MappingValueNode, pointer string, depth int) error {
	t := kv.Key.GetToken()
	key, ok := kv.Key.(*ast.StringNode)
	if !ok {
		return Faults{{pointer, t.Position.Line, t.Position.Column, CodeSyntax, "a key must be a plain string"}}
	}
	x, err := fromYAML(kv.Value, pointer+"/"+operation.EscapePointer(key.Value), depth+1)
	if err != nil {
		return err
	}
	return v.set(key.Value, x, place{t.Position.Line, t.Position.Column}, pointer)
}

func (v *value) set(key string, x *value, at place, pointer string) error {
	if _, twice := v.fields[key]; twice {
		return Faults{{pointer + "/" + operation.EscapePointer(key), at.line, at.column, CodeSyntax, "is there twice"}}
	}
	v.keys, v.fields[key], v.at[key] = append(v.keys, key), x, at
	return nil
}

func readJSON(data []byte) (*value, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	v, err := fromJSON(d, data, "", 0)
	if err == nil {
		if _, err = d.Token(); err == io.EOF {
			return v, nil
		}
		err = errors.New("something stands behind the value")
	}
	var faults Faults
	if errors.As(err, &faults) {
		return nil, err
	}
	p := placeOf(data, d.InputOffset())
	return nil, Faults{{Line: p.line, Column: p.column, Code: CodeSyntax, Detail: err.Error()}}
}

// begins is where the value behind the offset begins, at which what was read last ends.
func begins(data []byte, offset int64) int {
	for int(offset) < len(data) && strings.IndexByte(" \t\r\n:,", data[offset]) >= 0 {
		offset++
	}
	return min(int(offset), len(data))
}

func placeOf(data []byte, offset int64) place {
	before := data[:begins(data, offset)]
	return place{1 + bytes.Count(before, []byte("\n")), len(before) - bytes.LastIndexByte(before, '\n')}
}

func fromJSON(d *json.Decoder, data []byte, pointer string, depth int) (*value, error) {
	p, begin := placeOf(data, d.InputOffset()), begins(data, d.InputOffset())
	v := &value{line: p.line, column: p.column}
	if depth > maxDepth {
		return nil, Faults{{pointer, v.line, v.column, CodeSyntax, tooNested}}
	}
	t, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch t := t.(type) {
	case json.Delim:
		if t == '[' {
			v.kind = "list"
			for i := 0; d.More(); i++ {
				x, err := fromJSON(d, data, fmt.Sprintf("%s/%d", pointer, i), depth+1)
				if err != nil {
					return nil, err
				}
				v.items = append(v.items, x)
			}
			_, err = d.Token()
			return v, err
		}
		v.kind, v.fields, v.at = "map", map[string]*value{}, map[string]place{}
		for d.More() {
			at := placeOf(data, d.InputOffset())
			k, err := d.Token()
			if err != nil {
				return nil, err
			}
			key, _ := k.(string)
			x, err := fromJSON(d, data, pointer+"/"+operation.EscapePointer(key), depth+1)
			if err != nil {
				return nil, err
			}
			if err := v.set(key, x, at, pointer); err != nil {
				return nil, err
			}
		}
		_, err = d.Token()
		return v, err
	case string:
		v.kind, v.text = "string", t
		// The decoder takes half of a surrogate pair for U+FFFD.
		if je, ok := errors.AsType[*operation.JSONError](operation.CheckJSON("", data[begin:d.InputOffset()])); ok {
			return nil, Faults{{pointer, v.line, v.column, CodeFormat, je.Detail}}
		}
	case json.Number:
		v.kind, v.text = "number", t.String()
	case bool:
		v.kind, v.text = "bool", strconv.FormatBool(t)
	default:
		v.kind = "null"
	}
	return v, nil
}

// fill puts the value into a Go value, field by field.
func fill(v *value, to reflect.Value, pointer string, f *Faults) {
	wrong := func(want string) {
		*f = append(*f, Fault{pointer, v.line, v.column, CodeType, fmt.Sprintf("must be %s, is %s", want, article(v.kind))})
	}
	if v.kind == "null" {
		return // as if it were not there
	}
	if t, ok := to.Addr().Interface().(*time.Time); ok { // its own text is of Go's layouts
		if v.kind != "string" {
			wrong("an RFC 3339 timestamp such as 2026-11-29T12:00:00Z")
		} else if at, err := operation.ParseTime(v.text); err != nil {
			*f = append(*f, Fault{pointer, v.line, v.column, CodeFormat, err.Error()})
		} else {
			*t = at
		}
		return
	}
	if t, ok := to.Addr().Interface().(encoding.TextUnmarshaler); ok {
		if v.kind != "string" {
			wrong("a string such as 5m")
		} else if err := t.UnmarshalText([]byte(v.text)); err != nil {
			*f = append(*f, Fault{pointer, v.line, v.column, CodeFormat, err.Error()})
		}
		return
	}
	switch to.Kind() {
	case reflect.Pointer:
		to.Set(reflect.New(to.Type().Elem()))
		fill(v, to.Elem(), pointer, f)
	case reflect.String:
		if v.kind != "string" {
			wrong("a string")
			return
		}
		to.SetString(v.text)
	case reflect.Bool:
		if v.kind != "bool" {
			wrong("true or false")
			return
		}
		to.SetBool(v.text == "true")
	case reflect.Int:
		n, err := strconv.Atoi(v.text)
		if v.kind != "number" || err != nil {
			wrong("a whole number")
			return
		}
		to.SetInt(int64(n))
	case reflect.Slice:
		if v.kind != "list" {
			wrong("a list")
			return
		}
		to.Set(reflect.MakeSlice(to.Type(), len(v.items), len(v.items)))
		for i, it := range v.items {
			fill(it, to.Index(i), fmt.Sprintf("%s/%d", pointer, i), f)
		}
	case reflect.Map:
		if v.kind != "map" {
			wrong("a map")
			return
		}
		to.Set(reflect.MakeMap(to.Type()))
		for _, k := range v.keys {
			x := reflect.New(to.Type().Elem()).Elem()
			fill(v.fields[k], x, pointer+"/"+operation.EscapePointer(k), f)
			to.SetMapIndex(reflect.ValueOf(k), x)
		}
	case reflect.Struct:
		if v.kind != "map" {
			wrong("a map")
			return
		}
		known := map[string]int{}
		for i := range to.NumField() {
			name, _, _ := strings.Cut(to.Type().Field(i).Tag.Get("json"), ",")
			known[name] = i
		}
		for _, k := range v.keys {
			i, ok := known[k]
			if !ok {
				*f = append(*f, Fault{pointer + "/" + operation.EscapePointer(k), v.at[k].line, v.at[k].column, CodeUnknown, "is not a field of this object"})
				continue
			}
			fill(v.fields[k], to.Field(i), pointer+"/"+operation.EscapePointer(k), f)
			if least := to.Type().Field(i).Tag.Get("minimum"); least != "" && v.fields[k].text == "0" {
				*f = append(*f, Fault{pointer + "/" + operation.EscapePointer(k), v.fields[k].line, v.fields[k].column, CodeRange, "must be at least " + least})
			}
		}
	}
}

func article(kind string) string {
	if kind == "null" {
		return "null"
	}
	return "a " + kind
}
