package httpapi

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/problem"
)

func TestEventTypes(t *testing.T) {
	t.Parallel()
	p := setup(t)
	var got []string
	for cursor, pages := "", 0; ; pages++ {
		a := p.do("scoped", "GET", "/v1/event-types?limit=20&cursor="+cursor, nil).want(200)
		for _, v := range a.items() {
			schema, _ := v["schema"].(map[string]any)
			if schema["$schema"] != schemaDialect || schema["type"] != "object" || schema["title"] != v["type"] || v["severity"] != event.SeverityOf(v["type"].(string)) || v["description"] == "" {
				t.Errorf("%v", v)
			}
			got = append(got, v["type"].(string))
		}
		if cursor = a.str("next_cursor"); cursor == "" {
			break
		}
		if pages > 10 {
			t.Fatal("no end")
		}
	}
	var want []string
	for _, about := range event.Catalogue() {
		want = append(want, about.Type)
	}
	if !slices.Equal(got, want) || slices.Contains(got, "") {
		t.Errorf("got %v, want %v", got, want)
	}
	a := p.do("viewer", "GET", "/v1/event-types/operation.failed", nil).want(200)
	schema := a.j["schema"].(map[string]any)
	cause := schema["properties"].(map[string]any)["cause"].(map[string]any)
	name := strings.TrimPrefix(cause["$ref"].(string), "#/$defs/")
	if def, ok := schema["$defs"].(map[string]any)[name].(map[string]any); !ok || def["type"] != "object" || a.j["by"] != "plane" {
		t.Errorf("%s", a.raw)
	}
	if a := p.do("viewer", "GET", "/v1/event-types/device.xid", nil).want(200); a.j["by"] != "agent" || a.j["severity"] != "error" {
		t.Errorf("%s", a.raw)
	}
	p.do("viewer", "GET", "/v1/event-types/node.unheard_of", nil).problem(404, problem.NotFound)
	p.do("viewer", "GET", "/v1/event-types?cursor=x", nil).problem(422, problem.InvalidCursor)
	p.do("", "GET", "/v1/event-types", nil).problem(401, problem.Unauthenticated)
	p.do("agent", "GET", "/v1/event-types", nil).problem(403, problem.Forbidden)
}

// TestSchemasAreWhole: every schema is JSON whose references lead somewhere.
func TestSchemasAreWhole(t *testing.T) {
	t.Parallel()
	for _, v := range eventTypes() {
		var schema struct {
			Defs map[string]json.RawMessage `json:"$defs"`
		}
		must(t, json.Unmarshal(v.Schema.RawMessage, &schema))
		for _, part := range strings.Split(string(v.Schema.RawMessage), `"$ref":"`)[1:] {
			ref, _, _ := strings.Cut(part, `"`)
			if name, ok := strings.CutPrefix(ref, "#/$defs/"); !ok || schema.Defs[name] == nil {
				t.Errorf("%s: %s leads nowhere", v.Type, ref)
			}
		}
		if strings.Contains(string(v.Schema.RawMessage), "nullable") {
			t.Errorf("%s: %s", v.Type, v.Schema.RawMessage)
		}
	}
}

// TestKindsOfMembersAreNamed: the page says of each member what it is, and of a list
// what it is of.
func TestKindsOfMembersAreNamed(t *testing.T) {
	t.Parallel()
	page := EventTypesPage()
	for _, bad := range []string{"array of s ", "|  |  |", "` |  |"} {
		if at := strings.Index(page, bad); at >= 0 {
			line, _, _ := strings.Cut(page[strings.LastIndex(page[:at], "\n")+1:], "\n")
			t.Errorf("it does not say of what kind: %s", line)
		}
	}
	if !strings.Contains(page, "| `evidence` | array of objects |") || !strings.Contains(page, "array of strings") {
		t.Error("lists are not told apart")
	}
}

// TestDiagramOfEventTypes compares the page of events with the catalogue;
// OPSPLANE_WRITE=1 writes it.
func TestDiagramOfEventTypes(t *testing.T) {
	t.Parallel()
	file := filepath.Join("..", "..", "infra", "docs", "events.md")
	const mark = "do not edit below. -->\n"
	raw, err := os.ReadFile(file)
	must(t, err)
	text, generated, ok := strings.Cut(string(raw), mark)
	if !ok {
		t.Fatalf("%s has no mark where the generated part begins", file)
	}
	want := "\n" + EventTypesPage()
	if os.Getenv("OPSPLANE_WRITE") != "" {
		must(t, os.WriteFile(file, []byte(text+mark+want), 0o644))
	} else if generated != want {
		t.Errorf("%s is not what the code says: run `make diagrams`", file)
	}
}
