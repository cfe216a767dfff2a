package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/negotiation"

	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/problem"
)

func (a *API) eventRoutes() {
	list := &huma.Schema{}
	if view := reflect.TypeFor[eventListView](); a.cfg.documents {
		list = a.huma.OpenAPI().Components.Schemas.Schema(view, true, view.Name())
	}
	register(a, huma.Operation{Method: http.MethodGet, Path: "/v1/events", Summary: "List events", Tags: []string{"events"},
		Description: "Oldest first. next_cursor is always there: reading on with it misses nothing and repeats nothing. wait holds the answer until something matches. " +
			"One call looks at 20,000 events at most, of all streams together: when more are left and none of these matches, the answer is empty, with more: true, and comes without a wait: read on. " +
			"With Accept: text/event-stream the events come one by one as they happen, each with a cursor behind it as its id: a Last-Event-ID, or a cursor, goes on from there.",
		Responses: map[string]*huma.Response{"200": {Content: map[string]*huma.MediaType{
			mediaJSON:   {Schema: list},
			mediaStream: {Schema: &huma.Schema{Type: huma.TypeString, Description: "Per event: id (a cursor), data (an Event as JSON). A block with an id alone moves the cursor. An event named problem tells why the stream ends early."}},
		}}},
		Errors: []int{400, 401, 403, 410, 422, 429, 500, 503}},
		access{action: auth.Read, several: []string{"type", "severity"}}, a.listEvents)
}

// Media types of the list of events.
const (
	mediaJSON   = "application/json"
	mediaStream = "text/event-stream"
)

// eventItem is an event as package event writes it.
type eventItem event.Event

// MarshalJSON writes the event's own form.
func (e eventItem) MarshalJSON() ([]byte, error) { return json.Marshal(event.Event(e)) }

// Schema documents it.
func (eventItem) Schema(r huma.Registry) *huma.Schema {
	return r.Schema(reflect.TypeFor[eventView](), true, "Event")
}

// eventView is how an event is documented.
type eventView struct {
	ID            string           `json:"id"`
	Type          string           `json:"type"`
	Subject       event.Subject    `json:"subject"`
	Cluster       *string          `json:"cluster"`
	ClusterID     *string          `json:"cluster_id"`
	Timestamp     time.Time        `json:"timestamp" doc:"When it happened"`
	ReceivedAt    time.Time        `json:"received_at"`
	Stream        string           `json:"stream"`
	Sequence      int64            `json:"sequence" doc:"Without holes or repeats in its stream"`
	Detail        map[string]any   `json:"detail" nullable:"true" doc:"By the schema of its type at /v1/event-types; null when it has expired"`
	DetailExpired bool             `json:"detail_expired,omitempty" doc:"There was a detail, and retention has taken it"`
	OperationID   *string          `json:"operation_id"`
	CorrelationID *string          `json:"correlation_id"`
	Actor         *operation.Actor `json:"actor"`
	Severity      string           `json:"severity" enum:"info,warning,error,critical"`
}

type eventsInput struct {
	PageInput
	Type     []string `query:"type,explode" doc:"Exact, or a family such as operation.*; repeatable, or separated by commas"`
	Severity []string `query:"severity,explode" doc:"info, warning, error or critical; repeatable, or separated by commas"`
	Subject  string   `query:"subject" doc:"An id, kind:name, or an operation's id"`
	Cluster  string   `query:"cluster" doc:"Id or name; plane is the plane's own"`
	Since    string   `query:"since" doc:"RFC 3339, included"`
	Until    string   `query:"until" doc:"RFC 3339, excluded"`
	Wait     string   `query:"wait" doc:"How long to wait when nothing matches, such as 30s: at most 60s (on AWS it ends by 25s); with text/event-stream: how long the stream stays open, at most 1h"`
	// LastEventID is what a client of text/event-stream saw last; it counts before
	// the cursor, which is still in the URL that it was given.
	LastEventID string `header:"Last-Event-ID" doc:"With text/event-stream: the id of the last event that was seen, instead of cursor"`
}

// eventsOutput is a list or a stream.
type eventsOutput struct{ Body func(huma.Context) }

type eventListView struct {
	Items      []eventItem `json:"items" nullable:"false"`
	NextCursor string      `json:"next_cursor"`
	More       bool        `json:"more" doc:"There is more to read now"`
	Low        *int64      `json:"low" doc:"The first sequence left, of a list of one stream"`
}

func (a *API) listEvents(ctx context.Context, rq *request, in *eventsInput) (*eventsOutput, error) {
	q, err := a.eventsQuery(ctx, rq, in)
	if err != nil {
		return nil, err
	}
	if negotiation.SelectQValue(rq.http.Header.Get("Accept"), []string{mediaJSON, mediaStream}) == mediaStream {
		return a.streamEvents(ctx, rq, in, q)
	}
	if q.Wait, err = a.parseWait(ctx, in.Wait); err != nil {
		return nil, err
	}
	if q.Wait > 0 {
		release, err := rq.wait()
		if err != nil {
			return nil, err
		}
		defer release()
	}
	p, err := a.cfg.Events.Read(ctx, q)
	if err != nil {
		return nil, cursorProblem(err, "query", "cursor")
	}
	if q.Wait > 0 {
		if err := rq.stillAllowed(ctx); err != nil {
			return nil, err
		}
	}
	out := eventListView{Items: make([]eventItem, len(p.Events)), NextCursor: p.NextCursor, More: p.More}
	for i, e := range p.Events {
		out.Items[i] = eventItem(e)
	}
	if p.Low > 0 {
		out.Low = &p.Low
	}
	return &eventsOutput{func(c huma.Context) {
		c.SetHeader("Content-Type", mediaJSON)
		c.SetStatus(http.StatusOK)
		if err := a.huma.Marshal(c.BodyWriter(), mediaJSON, out); err != nil && ctx.Err() == nil {
			panic(fmt.Sprintf("write events: %v", err)) // as for every other answer
		}
	}}, nil
}

// eventsQuery reads what says which events are asked for, and from where; how
// long to wait is the caller's.
func (a *API) eventsQuery(ctx context.Context, rq *request, in *eventsInput) (event.Query, error) {
	q := event.Query{Subject: in.Subject, Limit: in.Limit, Cursor: in.Cursor}
	var err error
	if q.Types, err = words("type", in.Type); err != nil {
		return q, err
	}
	if q.Severities, err = oneOf("severity", in.Severity, event.Severities); err != nil {
		return q, err
	}
	if q.Cluster, err = a.streamParam(ctx, rq, in.Cluster); err != nil {
		return q, err
	}
	if q.Since, err = parseTime("since", in.Since); err != nil {
		return q, err
	}
	if q.Until, err = parseTime("until", in.Until); err != nil {
		return q, err
	}
	if err = between("since", q.Since, "until", q.Until); err != nil {
		return q, err
	}
	if clusters := rq.principal.Clusters; len(clusters) > 0 && q.Cluster == "" {
		for _, c := range clusters {
			q.Streams = append(q.Streams, event.StreamOf(c))
		}
		slices.Sort(q.Streams)
	}
	return q, nil
}

// streamParam reads the parameter that names a cluster, or the plane, whose events or
// alerts are asked for.
func (a *API) streamParam(ctx context.Context, rq *request, name string) (string, error) {
	if name == event.PlaneStream && rq.sees("") {
		return name, nil
	}
	return a.clusterParam(ctx, rq, name)
}

// oneOf reads a parameter of a list that names some of the known words.
func oneOf[T ~string](name string, in []string, known []T) ([]T, error) {
	ws, err := words(name, in)
	if err != nil {
		return nil, err
	}
	var out []T
	for _, w := range ws {
		if !slices.Contains(known, T(w)) {
			all := make([]string, len(known))
			for i, k := range known {
				all[i] = string(k)
			}
			return nil, invalidParam("query", name, "enum", "%.32q is none of %s", w, strings.Join(all, ", "))
		}
		out = append(out, T(w))
	}
	return out, nil
}

// cursorProblem names the parameter that a cursor which is none came in.
func cursorProblem(err error, in, name string) error {
	if !errors.Is(err, event.ErrInvalidCursor) {
		return err
	}
	return problemOf(err).WithField(problem.Pointer(in, name), "invalid_cursor", "is no cursor of this list with these parameters")
}
