package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"reflect"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/operation"
)

func (a *API) eventRoutes() {
	register(a, huma.Operation{Method: http.MethodGet, Path: "/v1/events", Summary: "List events", Tags: []string{"events"},
		Description: "Oldest first. next_cursor is always there: reading on with it misses nothing and repeats nothing. wait holds the answer until something matches.",
		Errors:      []int{400, 401, 403, 410, 422, 429, 500, 503}},
		access{action: auth.Read, several: []string{"type"}}, a.listEvents)
}

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
	Detail        map[string]any   `json:"detail"`
	OperationID   *string          `json:"operation_id"`
	CorrelationID *string          `json:"correlation_id"`
	Actor         *operation.Actor `json:"actor"`
	Severity      string           `json:"severity" enum:"info,warning,error,critical"`
}

type eventsInput struct {
	PageInput
	Type    []string `query:"type,explode" doc:"Exact, or a family such as operation.*; repeatable, or separated by commas"`
	Subject string   `query:"subject" doc:"An id, kind:name, or an operation's id"`
	Cluster string   `query:"cluster" doc:"Id or name"`
	Since   string   `query:"since" doc:"RFC 3339, included"`
	Until   string   `query:"until" doc:"RFC 3339, excluded"`
	Wait    string   `query:"wait" doc:"How long to wait when nothing matches, such as 30s"`
}

type eventListView struct {
	Items      []eventItem `json:"items" nullable:"false"`
	NextCursor string      `json:"next_cursor"`
	More       bool        `json:"more" doc:"There is more to read now"`
	Low        *int64      `json:"low" doc:"The first sequence left, of a list of one stream"`
}

func (a *API) listEvents(ctx context.Context, rq *request, in *eventsInput) (*bodyOutput[eventListView], error) {
	q := event.Query{Types: words(in.Type), Subject: in.Subject, Limit: in.Limit, Cursor: in.Cursor}
	var err error
	if q.Cluster, err = a.clusterParam(ctx, rq, in.Cluster); err != nil {
		return nil, err
	}
	if q.Since, err = parseTime("since", in.Since); err != nil {
		return nil, err
	}
	if q.Until, err = parseTime("until", in.Until); err != nil {
		return nil, err
	}
	if q.Wait, err = a.parseWait(ctx, in.Wait); err != nil {
		return nil, err
	}
	if clusters := rq.principal.Clusters; len(clusters) > 0 && q.Cluster == "" {
		for _, c := range clusters {
			q.Streams = append(q.Streams, event.StreamOf(c))
		}
		slices.Sort(q.Streams)
	}
	q.Wait = min(q.Wait, event.MaxWait)
	if q.Wait > 0 {
		release, err := rq.wait()
		if err != nil {
			return nil, err
		}
		defer release()
	}
	p, err := a.cfg.Events.Read(ctx, q)
	if errors.Is(err, event.ErrInvalidCursor) {
		return nil, problemOf(err).WithField("/query/cursor", "invalid_cursor", "is no cursor of this list with these parameters")
	}
	if err != nil {
		return nil, err
	}
	out := eventListView{Items: make([]eventItem, len(p.Events)), NextCursor: p.NextCursor, More: p.More}
	for i, e := range p.Events {
		out.Items[i] = eventItem(e)
	}
	if p.Low > 0 {
		out.Low = &p.Low
	}
	return &bodyOutput[eventListView]{Body: out}, nil
}
