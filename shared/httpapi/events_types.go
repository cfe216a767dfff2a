package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/danielgtaylor/huma/v2"

	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/event"
)

func (a *API) eventTypeRoutes() {
	register(a, huma.Operation{Method: http.MethodGet, Path: "/v1/event-types", Summary: "List event types", Tags: []string{"events"},
		Description: "The catalogue: what each type of event means and, as a JSON Schema, what its detail holds. Agents that are newer than the plane may tell other types; those are kept, as info.",
		Errors:      []int{400, 401, 403, 422, 429, 500, 503}},
		access{action: auth.Read}, a.listEventTypes)
	register(a, huma.Operation{Method: http.MethodGet, Path: "/v1/event-types/{type}", Summary: "Get event type", Tags: []string{"events"}},
		access{action: auth.Read}, a.getEventType)
}

// eventTypeView is a type of event as the catalogue has it.
type eventTypeView struct {
	Type        string `json:"type"`
	Severity    string `json:"severity" enum:"info,warning,error,critical" doc:"Of its events"`
	By          string `json:"by" enum:"plane,agent" doc:"Who tells it"`
	Description string `json:"description"`
	// Schema is written as package huma does.
	Schema detailSchema `json:"schema" doc:"JSON Schema (draft 2020-12) of the event's detail"`
}

// detailSchema is a JSON Schema as it is answered.
type detailSchema struct{ json.RawMessage }

// Schema documents it: an object like any schema.
func (detailSchema) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeObject, AdditionalProperties: true}
}

func (a *API) listEventTypes(_ context.Context, _ *request, in *PageInput) (*listOutput[eventTypeView], error) {
	key := listKey("event-types")
	after, err := decodeCursor(key, in.Cursor)
	if err != nil {
		return nil, err
	}
	all := eventTypes()
	i := 0
	if after != "" { // a type that a later version does not have: from where it would be is anyone's guess
		i = slices.IndexFunc(all, func(v eventTypeView) bool { return v.Type == after }) + 1
	}
	page, next := all[i:], ""
	if len(page) > in.Limit {
		page = page[:in.Limit]
		next = encodeCursor(key, page[in.Limit-1].Type)
	}
	return &listOutput[eventTypeView]{newList(page, next)}, nil
}

type eventTypeInput struct {
	Type string `path:"type" maxLength:"128"`
}

func (a *API) getEventType(_ context.Context, _ *request, in *eventTypeInput) (*bodyOutput[eventTypeView], error) {
	all := eventTypes()
	i := slices.IndexFunc(all, func(v eventTypeView) bool { return v.Type == in.Type })
	if i < 0 {
		return nil, notFound("event type", in.Type)
	}
	return &bodyOutput[eventTypeView]{all[i]}, nil
}

// eventTypes is the catalogue, which is the same for every process.
var eventTypes = sync.OnceValue(func() []eventTypeView {
	var out []eventTypeView
	for _, about := range event.Catalogue() {
		out = append(out, eventTypeView{about.Type, about.Severity, about.By(), about.Description, detailSchema{schemaOf(about)}})
	}
	return out
})

// schemaDialect is the JSON Schema version that OpenAPI 3.1, and so package huma,
// speaks.
const schemaDialect = "https://json-schema.org/draft/2020-12/schema"

// schemaOf makes the schema of a type's detail from the type that the catalogue
// names. Members that it does not name are allowed: newer agents tell more.
func schemaOf(about event.About) json.RawMessage {
	s := &huma.Schema{Type: huma.TypeObject}
	defs := huma.NewMapRegistry("#/$defs/", huma.DefaultSchemaNamer)
	if about.Detail != nil {
		s = huma.SchemaFromType(defs, reflect.TypeOf(about.Detail))
	}
	opened(s)
	for _, d := range defs.Map() {
		opened(d)
	}
	s.Title, s.Description = about.Type, "The detail of an event of this type. "+about.Description
	s.Extensions = map[string]any{"$schema": schemaDialect}
	if len(defs.Map()) > 0 {
		s.Extensions["$defs"] = defs.Map()
	}
	b, err := json.Marshal(s)
	if err != nil {
		panic(fmt.Sprintf("encode schema of %s: %v", about.Type, err)) // the types are ours
	}
	return b
}

// opened lets objects have members that the schema does not name.
func opened(s *huma.Schema) {
	if s.Type == huma.TypeObject {
		s.AdditionalProperties = true
	}
}

// EventTypesPage returns the generated part of infra/docs/events.md: a table of
// the catalogue, and what each kind of detail holds.
func EventTypesPage() string {
	var b strings.Builder
	b.WriteString("| type | severity | told by | what it says | detail |\n| --- | --- | --- | --- | --- |\n")
	var kinds []reflect.Type
	for _, about := range event.Catalogue() {
		detail := "-"
		if about.Detail != nil {
			t := reflect.TypeOf(about.Detail)
			if !slices.Contains(kinds, t) {
				kinds = append(kinds, t)
			}
			detail = kindOfDetail(t)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", about.Type, about.Severity, about.By(), about.Description, detail)
	}
	for _, t := range kinds {
		fmt.Fprintf(&b, "\n**%s detail**\n\n| member | type | |\n| --- | --- | --- |\n", kindOfDetail(t))
		for _, f := range reflect.VisibleFields(t) {
			name, rest, _ := strings.Cut(f.Tag.Get("json"), ",")
			text := f.Tag.Get("doc")
			if rest == "omitempty" {
				name += "?"
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", name, typeName(f.Type), text)
		}
	}
	return b.String()
}

// kindOfDetail names a kind of detail: AgentOnlineDetail is "agent online".
func kindOfDetail(t reflect.Type) string {
	var b strings.Builder
	name := strings.TrimSuffix(t.Name(), "Detail")
	for i, r := range name {
		if i > 0 && r >= 'A' && r <= 'Z' && name[i-1] >= 'a' {
			b.WriteByte(' ')
		}
		b.WriteRune(r)
	}
	if s := b.String(); strings.ToUpper(s) == s {
		return s
	}
	return strings.ToLower(b.String())
}

func typeName(t reflect.Type) string {
	s := huma.SchemaFromType(huma.NewMapRegistry("#", huma.DefaultSchemaNamer), t)
	switch {
	case s.Format == "date-time":
		return "RFC 3339 time"
	case s.Ref != "" || s.Type == huma.TypeObject:
		return "object"
	case s.Type == huma.TypeArray && (s.Items.Ref != "" || s.Items.Type == huma.TypeObject):
		return "array of objects"
	case s.Type == huma.TypeArray:
		return "array of " + s.Items.Type + "s"
	}
	return s.Type
}
