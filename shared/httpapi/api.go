package httpapi

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/problem"
)

// route is one row of the table of what may be called.
type route struct {
	pattern string // the mux's
	public  bool   // needs no credential
	action  auth.Action
	// fleet: the action is over all clusters, so that a principal confined to
	// some may not do it.
	fleet   bool
	mutates bool
	// body is the most bytes that a body may have; 0: it takes none.
	body int64
	// several are the query parameters that may be given more than once.
	several []string
	// yaml: the body may be YAML as well as JSON; the handler reads it whole.
	yaml bool
	// bare: no huma before the handler, so that unknown parameters and media
	// types are refused here.
	bare bool
}

// Bodies of small requests.
const smallBody = 64 << 10

// access is what a route's registration says beside huma's own part.
type access struct {
	action  auth.Action
	fleet   bool
	body    int64
	several []string
	yaml    bool
	// also are statuses beside the default one and those that most routes have.
	also []int
}

// undocumented is a registry that draws up no schema of a route's answer, which nothing
// is validated by: a function that starts has half the work of its routes less. The
// document is drawn up apart from what serves.
type undocumented struct {
	huma.Registry
	answer reflect.Type
}

// Schema implements huma.Registry.
func (u *undocumented) Schema(t reflect.Type, allowRef bool, hint string) *huma.Schema {
	if t == u.answer {
		return &huma.Schema{}
	}
	return u.Registry.Schema(t, allowRef, hint)
}

// answering says whose answer is not to be drawn up from now on: a route's output, where
// its input has no such body.
func (u *undocumented) answering(in, out reflect.Type) {
	u.answer = nil
	answer, ok := out.FieldByName("Body")
	if !ok {
		return
	}
	if body, ok := in.FieldByName("Body"); !ok || body.Type != answer.Type {
		u.answer = answer.Type
	}
}

// newHuma makes the part that documents and validates. Its own pages are off:
// /docs is self-contained, /openapi.json is written here.
func newHuma(mux *http.ServeMux, version string, schemas huma.Registry) huma.API {
	if version == "" {
		version = "dev"
	}
	c := huma.Config{
		OpenAPI: &huma.OpenAPI{
			OpenAPI: "3.1.0",
			Info: &huma.Info{Title: "Opsplane", Version: version,
				Description: "The operations plane of a GPU fleet. Errors are RFC 9457 problems with an error_code; lists page with limit and cursor."},
			Components: &huma.Components{
				Schemas: schemas,
				SecuritySchemes: map[string]*huma.SecurityScheme{
					"bearer": {Type: "http", Scheme: "bearer", Description: "An API token (opt_...) or a token of the configured OpenID Connect issuer"},
				},
			},
			Security: []map[string][]string{{"bearer": {}}},
		},
		Formats:                      huma.DefaultFormats,
		DefaultFormat:                "application/json",
		RejectUnknownQueryParameters: true,
	}
	return humago.New(mux, c)
}

// schemaName drops the suffix that tells views from the domain's types.
func schemaName(t reflect.Type, hint string) string {
	name := huma.DefaultSchemaNamer(t, hint)
	if t == reflect.TypeFor[alert.Step]() {
		return "AlertStep" // an operation has steps, too
	}
	if strings.HasPrefix(name, "ListOf") {
		return strings.ReplaceAll(name, "View", "")
	}
	return strings.TrimSuffix(name, "View")
}

// register adds a route with its row in the table of access. The handler's
// errors become problems.
func register[I, O any](a *API, op huma.Operation, ac access, h func(context.Context, *request, *I) (*O, error)) {
	op.MaxBodyBytes, op.BodyReadTimeout = -1, -1 // the middleware has read it
	op.OperationID = operationID(op)
	if op.Errors == nil {
		op.Errors = []int{http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusUnprocessableEntity, http.StatusTooManyRequests,
			http.StatusInternalServerError, http.StatusServiceUnavailable}
		if op.Method != http.MethodGet {
			op.Errors = append(op.Errors, http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType)
		}
	}
	for _, status := range ac.also {
		if status >= http.StatusBadRequest {
			op.Errors = append(op.Errors, status)
		}
	}
	r := &route{pattern: op.Method + " " + op.Path, action: ac.action, fleet: ac.fleet, mutates: op.Method != http.MethodGet, body: ac.body, several: ac.several, yaml: ac.yaml}
	a.routes[r.pattern] = r
	if u, ok := a.huma.OpenAPI().Components.Schemas.(*undocumented); ok {
		u.answering(reflect.TypeFor[I](), reflect.TypeFor[O]())
	}
	huma.Register(a.huma, op, func(ctx context.Context, in *I) (*O, error) {
		rq := requestOf(ctx)
		out, err := h(ctx, rq, in)
		if err != nil {
			return nil, failure{rq.failed(err)}
		}
		return out, nil
	})
	a.documentAlso(op, ac.also)
}

// documentAlso adds statuses of success to a route's documentation: the default
// one's answer, or none with 204.
func (a *API) documentAlso(op huma.Operation, statuses []int) {
	item := a.huma.OpenAPI().Paths[op.Path]
	doc := map[string]*huma.Operation{http.MethodGet: item.Get, http.MethodPost: item.Post, http.MethodPut: item.Put, http.MethodDelete: item.Delete}[op.Method]
	def := doc.Responses[strconv.Itoa(cmp.Or(doc.DefaultStatus, http.StatusOK))]
	for _, status := range statuses {
		if status >= http.StatusBadRequest {
			continue
		}
		r := &huma.Response{Description: http.StatusText(status), Headers: def.Headers}
		if status != http.StatusNoContent {
			r.Content = def.Content
		}
		doc.Responses[strconv.Itoa(status)] = r
	}
}

// operationID makes ids such as "list-operations" of the summary.
func operationID(op huma.Operation) string {
	return strings.ReplaceAll(strings.ToLower(op.Summary), " ", "-")
}

// handle adds a route without huma.
func (a *API) handle(r route, h http.HandlerFunc) {
	r.bare = true
	a.routes[r.pattern] = &r
	a.mux.HandleFunc(r.pattern, h)
}

// OpenAPI returns the OpenAPI 3.1 document, which is the same for every process
// of this version.
func OpenAPI() ([]byte, error) { return openAPI("") }

func openAPI(version string) ([]byte, error) {
	a := documented(version)
	b, err := json.MarshalIndent(a.huma.OpenAPI(), "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write OpenAPI document: %w", err)
	}
	return append(b, '\n'), nil
}

// documented are the routes with all that is documented of them. They serve nothing.
func documented(version string) *API {
	a := newAPI(Config{Version: version, Logger: slog.New(slog.DiscardHandler), documents: true}, (*API).userRoutes)
	a.nullable()
	return a
}

// nullable documents that fields which point to an object may be null, which
// huma leaves out.
func (a *API) nullable() {
	reg := a.huma.OpenAPI().Components.Schemas
	for name, s := range reg.Map() {
		t := reg.TypeFromRef("#/components/schemas/" + name)
		if t == nil || t.Kind() != reflect.Struct {
			continue
		}
		for _, f := range reflect.VisibleFields(t) {
			field, rest, _ := strings.Cut(f.Tag.Get("json"), ",")
			if p := s.Properties[field]; p != nil && p.Ref != "" && f.Type.Kind() == reflect.Pointer && rest == "" {
				s.Properties[field] = &huma.Schema{AnyOf: []*huma.Schema{{Ref: p.Ref}, {Type: "null"}}, Description: p.Description}
			}
		}
	}
}

// ListOf is a page of a list.
type ListOf[T any] struct {
	Items      []T     `json:"items" nullable:"false"`
	NextCursor *string `json:"next_cursor" doc:"Reads on behind what was looked at; null at the end. A page of a filtered list may be short, even empty, and have one"`
}

func newList[T any](items []T, next string) ListOf[T] {
	if items == nil {
		items = []T{}
	}
	l := ListOf[T]{Items: items}
	if next != "" {
		l.NextCursor = &next
	}
	return l
}

type listOutput[T any] struct{ Body ListOf[T] }

type bodyOutput[T any] struct{ Body T }

// createdOutput answers what was made.
type createdOutput[T any] struct {
	Status   int
	Location string `header:"Location"`
	Replayed string `header:"Idempotency-Replayed" doc:"true when an earlier request under the same key made it"`
	Body     T
}

func replayed(was bool) string {
	if was {
		return "true"
	}
	return ""
}

// write answers a plain handler's request with JSON.
func (a *API) write(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("encode answer %T: %v", v, err))
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(b) // the client is gone: nobody is left to tell
}

// refuse answers a plain handler's request with the problem of an error.
func (a *API) refuse(w http.ResponseWriter, rq *request, err error) {
	problem.Write(w, rq.failed(err))
}
