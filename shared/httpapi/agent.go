package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"

	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/problem"
	"github.com/opsplane/opsplane/shared/protocol"
)

// AgentAPI carries out what agents call. The cluster is the token's: an agent
// reaches its own and nothing else.
type AgentAPI interface {
	Heartbeat(ctx context.Context, cluster string, in protocol.Heartbeat) (protocol.HeartbeatAnswer, error)
	Claim(ctx context.Context, cluster string, in protocol.ClaimRequest) (protocol.ClaimAnswer, error)
	Renew(ctx context.Context, cluster string, in protocol.RenewRequest) (protocol.RenewAnswer, error)
	Report(ctx context.Context, cluster string, in protocol.ReportRequest) (protocol.ReportAnswer, error)
	Inventory(ctx context.Context, cluster string, in protocol.InventoryRequest) (protocol.InventoryAnswer, error)
	Events(ctx context.Context, cluster string, in protocol.EventsRequest) (protocol.EventsAnswer, error)
	PreviewRequest(ctx context.Context, cluster, id string) (protocol.PreviewRequest, error)
	PreviewAnswer(ctx context.Context, cluster, id string, in protocol.PreviewAnswer) error
}

// agentRoutes are the hot ones: no huma before them, and not in the OpenAPI
// document, since agents speak package protocol.
func (a *API) agentRoutes() {
	agentCall(a, "heartbeat", a.cfg.Agent.Heartbeat)
	agentCall(a, "claims", a.cfg.Agent.Claim)
	agentCall(a, "renewals", a.cfg.Agent.Renew)
	agentCall(a, "reports", a.cfg.Agent.Report)
	agentCall(a, "inventory", a.cfg.Agent.Inventory)
	a.handle(route{pattern: "POST /v1/agent/events", action: auth.Serve, body: protocol.MaxBodyBytes}, a.agentEvents)
	a.handle(route{pattern: "GET /v1/agent/previews/{id}", action: auth.Serve}, a.previewRequest)
	a.handle(route{pattern: "POST /v1/agent/previews/{id}", action: auth.Serve, body: protocol.MaxPreviewBytes}, a.previewAnswer)
}

// agentCall registers one call that takes and answers JSON.
func agentCall[In, Out any](a *API, name string, call func(context.Context, string, In) (Out, error)) {
	a.handle(route{pattern: "POST /v1/agent/" + name, action: auth.Serve, body: protocol.MaxBodyBytes}, func(w http.ResponseWriter, r *http.Request) {
		rq := requestOf(r.Context())
		var in In
		if err := decode(r, &in); err != nil {
			a.refuse(w, rq, err)
			return
		}
		out, err := call(r.Context(), rq.agentCluster(), in)
		if err != nil {
			a.refuse(w, rq, err)
			return
		}
		a.write(w, http.StatusOK, out)
	})
}

// agentCluster is the one cluster of an agent's token.
func (rq *request) agentCluster() string { return firstOf(rq.principal.Clusters) }

// decode reads a body that is one JSON value without unknown fields.
func decode(r *http.Request, v any) error {
	b := requestOf(r.Context()).body
	if len(b) == 0 {
		return problem.New(problem.Malformed, "a body is required")
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return badJSON(err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return problem.New(problem.Malformed, "the body holds more than one JSON value")
	}
	return nil
}

// unknownField begins the text of encoding/json's error for which it has no type.
const unknownField = "json: unknown field "

func badJSON(err error) *problem.Problem {
	if t, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return problem.New(problem.Invalid, "%s has the wrong type", t.Field).
			WithField(problem.Pointer(strings.Split(t.Field, ".")...), "type", "must be %s, is %s", t.Type, t.Value)
	}
	if name, ok := strings.CutPrefix(err.Error(), unknownField); ok {
		name = strings.Trim(name, `"`)
		return problem.New(problem.Invalid, "%s is not a field of the body", name).WithField(problem.Pointer(name), "unknown_field", "is not a field of this object")
	}
	return problem.New(problem.Malformed, "the body is not JSON: %v", err)
}

func (a *API) previewRequest(w http.ResponseWriter, r *http.Request) {
	rq, previewID := requestOf(r.Context()), r.PathValue("id")
	if !id.Valid(id.Preview, previewID) {
		a.refuse(w, rq, notFound("preview", previewID))
		return
	}
	out, err := a.cfg.Agent.PreviewRequest(r.Context(), rq.agentCluster(), previewID)
	if err != nil {
		a.refuse(w, rq, err)
		return
	}
	a.write(w, http.StatusOK, out)
}

func (a *API) previewAnswer(w http.ResponseWriter, r *http.Request) {
	rq, previewID := requestOf(r.Context()), r.PathValue("id")
	var in protocol.PreviewAnswer
	err := decode(r, &in)
	switch {
	case !id.Valid(id.Preview, previewID):
		err = notFound("preview", previewID)
	case err == nil:
		err = a.cfg.Agent.PreviewAnswer(r.Context(), rq.agentCluster(), previewID, in)
	}
	if err != nil {
		a.refuse(w, rq, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
