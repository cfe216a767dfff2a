package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"reflect"
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

// decode reads a body that is one JSON value without unknown fields. encoding/json
// gives up on a body that is nested 10,000 levels deep somewhere; that is cut, so that
// what is nested so is refused by itself, and the rest is not.
func decode(r *http.Request, v any) error {
	b := requestOf(r.Context()).body
	if len(b) == 0 {
		return problem.New(problem.Malformed, "a body is required")
	}
	err := decodeStrict(b, v)
	if err != nil {
		if cut, deep := shallow(b, cutLevels); deep {
			err = decodeStrict(cut, v)
		}
	}
	return err
}

func decodeStrict(b []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return badJSON(b, reflect.TypeOf(v), err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return problem.New(problem.Malformed, "the body holds more than one JSON value")
	}
	return nil
}

// badJSON is the problem of a body that could not be read into the type for err.
func badJSON(b []byte, t reflect.Type, err error) *problem.Problem {
	var value json.RawMessage
	if json.NewDecoder(bytes.NewReader(b)).Decode(&value) == nil {
		if m, found := misfitOf(value, t, "", true); found {
			code := "type"
			if m.must == "" {
				code = "unknown_field"
			}
			return problem.New(problem.Invalid, "%s", strings.TrimPrefix(m.pointer+" ", " ")+m.says()).WithField(m.pointer, code, "%s", m.says())
		}
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
