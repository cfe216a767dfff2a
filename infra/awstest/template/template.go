// Package template reads template.yaml as the tests of it need it: resources with
// CloudFormation's short functions kept as what they are.
package template

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// Call is a CloudFormation function and what it is given: {"Ref", "Table"} for
// !Ref Table.
type Call struct {
	Name string
	Args any
}

// Resource is one resource, its properties as plain values and Calls.
type Resource struct {
	Type       string
	Condition  string
	Properties map[string]any
}

// Template is the file's parts that tests look at.
type Template struct {
	Globals   map[string]any
	Resources map[string]Resource
}

// Read reads a template.
func Read(file string) (*Template, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read template: %w", err)
	}
	f, err := parser.ParseBytes(b, 0)
	if err != nil {
		return nil, fmt.Errorf("parse template: %w", err)
	}
	if len(f.Docs) != 1 {
		return nil, fmt.Errorf("parse template: %d documents", len(f.Docs))
	}
	v, err := value(f.Docs[0].Body)
	if err != nil {
		return nil, fmt.Errorf("read template: %w", err)
	}
	root, _ := v.(map[string]any)
	resources, _ := root["Resources"].(map[string]any)
	if len(resources) == 0 {
		return nil, errors.New("read template: it has no resources")
	}
	t := &Template{Resources: map[string]Resource{}}
	t.Globals, _ = root["Globals"].(map[string]any)
	for name, v := range resources {
		m, ok := v.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("read template: resource %s is no mapping", name)
		}
		var r Resource
		r.Type, _ = m["Type"].(string)
		r.Condition, _ = m["Condition"].(string)
		r.Properties, _ = m["Properties"].(map[string]any)
		t.Resources[name] = r
	}
	return t, nil
}

// value turns a node into a plain value, with tags as Calls.
func value(n ast.Node) (any, error) {
	switch n := n.(type) {
	case nil:
		return nil, nil
	case *ast.TagNode:
		v, err := value(n.Value)
		return Call{Name: strings.TrimPrefix(n.Start.Value, "!"), Args: v}, err
	case *ast.MappingNode:
		return mapping(n.Values)
	case *ast.MappingValueNode:
		return mapping([]*ast.MappingValueNode{n})
	case *ast.SequenceNode:
		out := make([]any, len(n.Values))
		for i, e := range n.Values {
			var err error
			if out[i], err = value(e); err != nil {
				return nil, err
			}
		}
		return out, nil
	case *ast.LiteralNode:
		return n.Value.Value, nil
	case ast.ScalarNode:
		return n.GetValue(), nil
	}
	return nil, fmt.Errorf("line %d: unexpected %s", n.GetToken().Position.Line, n.Type())
}

func mapping(vs []*ast.MappingValueNode) (any, error) {
	out := map[string]any{}
	for _, v := range vs {
		key, ok := v.Key.(ast.ScalarNode)
		if !ok {
			return nil, fmt.Errorf("line %d: key %s", v.GetToken().Position.Line, v.Key)
		}
		var err error
		if out[fmt.Sprint(key.GetValue())], err = value(v.Value); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// List is a value that may be one or a list of them.
func List(v any) []any {
	switch v := v.(type) {
	case nil:
		return nil
	case []any:
		return v
	}
	return []any{v}
}
