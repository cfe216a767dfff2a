package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/opsplane/opsplane/shared/admission"
	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/control"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
)

const operationsPath = "/v1/operations"

func (a *API) operationRoutes() {
	register(a, huma.Operation{Method: http.MethodPost, Path: operationsPath, Summary: "Create operation", DefaultStatus: http.StatusAccepted,
		Tags: []string{"operations"}, SkipValidateBody: true,
		Description: "Admits an operation: 202. The same Idempotency-Key with the same body answers 200 with the first one; dry_run answers 200 with the plan and changes nothing."},
		access{action: auth.Operate, body: admission.MaxBodyBytes, also: []int{http.StatusOK, http.StatusGone}}, a.createOperation)
	if a.cfg.documents { // admission validates the body by itself
		schemas := a.huma.OpenAPI().Components.Schemas
		body := schemas.Schema(reflect.TypeFor[operationRequestView](), true, "")
		schemas.SchemaFromRef(body.Ref).Properties["payload"].Description = "By type:\n\n" + operation.PayloadTable()
		a.huma.OpenAPI().Paths[operationsPath].Post.RequestBody.Content["application/json"].Schema = body
	}
	register(a, huma.Operation{Method: http.MethodGet, Path: operationsPath, Summary: "List operations", Tags: []string{"operations"},
		Description: "Newest first. resource finds every operation that touched something."},
		access{action: auth.Read, several: []string{"phase", "type"}}, a.listOperations)
	register(a, huma.Operation{Method: http.MethodGet, Path: operationsPath + "/{id}", Summary: "Get operation", Tags: []string{"operations"},
		Description: "With wait it answers once the version moves past If-None-Match (or past the version at the call), the operation has ended, or time is up: always 200 with what is current."},
		access{action: auth.Read}, a.getOperation)
	register(a, huma.Operation{Method: http.MethodDelete, Path: operationsPath + "/{id}", Summary: "Cancel operation", Tags: []string{"operations"},
		Description: "200: it ended by this. 202: its holder was asked. 204: it had ended before. 409: a step cannot be interrupted."},
		access{action: auth.Operate, body: smallBody, also: []int{http.StatusAccepted, http.StatusNoContent, http.StatusPreconditionFailed}}, a.cancelOperation)
	register(a, huma.Operation{Method: http.MethodPost, Path: operationsPath + "/{id}/retry", Summary: "Retry operation", Tags: []string{"operations"},
		DefaultStatus: http.StatusAccepted}, access{action: auth.Operate, body: smallBody, also: []int{http.StatusOK}}, a.retryOperation)
	register(a, huma.Operation{Method: http.MethodPost, Path: operationsPath + "/{id}/resolve", Summary: "Resolve step", Tags: []string{"operations"},
		Description: "Settles by evidence a step whose outcome no probe could tell."},
		access{action: auth.Resolve, body: smallBody}, a.resolveOperation)
}

// operationRequestView documents the body of a create.
type operationRequestView struct {
	Type              string          `json:"type" doc:"Such as node.drain"`
	Target            string          `json:"target" doc:"An id, kind:name, or fleet"`
	Cluster           string          `json:"cluster,omitempty" doc:"Narrows a name to one cluster, by name or id"`
	Reason            string          `json:"reason" maxLength:"1024"`
	Deadline          *time.Time      `json:"deadline,omitempty" doc:"Default and maximum hang on the type"`
	Payload           json.RawMessage `json:"payload,omitempty" doc:"By type"`
	RequestedRevision *int64          `json:"requested_revision,omitempty" doc:"A stale one is 409 stale_revision"`
	DryRun            bool            `json:"dry_run,omitempty"`
}

// operationOutput answers with one operation.
type operationOutput struct {
	Status     int
	ETag       string `header:"ETag"`
	Location   string `header:"Location"`
	RetryAfter string `header:"Retry-After"`
	Replayed   string `header:"Idempotency-Replayed"`
	Body       operationView
}

func answerOperation(op *operation.Operation, status int) *operationOutput {
	return &operationOutput{Status: status, ETag: etag(op.State.Revision), Body: viewOperation(op)}
}

func (a *API) createOperation(ctx context.Context, rq *request, in *struct {
	Key     string `header:"Idempotency-Key" doc:"1 to 255 printable ASCII characters, kept for at least 24 h"`
	RawBody []byte `contentType:"application/json"`
}) (*operationOutput, error) {
	call, err := rq.keyed()
	if err != nil {
		return nil, err
	}
	admitted, err := a.cfg.Admission.Admit(ctx, call, in.RawBody)
	if err != nil {
		return nil, err
	}
	if admitted.DryRun {
		return &operationOutput{Status: http.StatusOK, Body: viewDryRun(admitted)}, nil
	}
	out := answerOperation(&admitted.Operation, http.StatusAccepted)
	out.Location = operationsPath + "/" + admitted.Operation.Spec.ID
	if admitted.Replayed {
		out.Status, out.Replayed = http.StatusOK, "true"
	} else {
		out.RetryAfter = "1"
	}
	return out, nil
}

// loadOperation reads an operation that the caller may see.
func (a *API) loadOperation(ctx context.Context, rq *request, opID string) (operation.Operation, error) {
	if !id.Valid(id.Operation, opID) {
		return operation.Operation{}, notFound("operation", opID)
	}
	op, err := a.cfg.Store.Load(ctx, opID)
	if err != nil {
		return op, missing(err, "operation", opID)
	}
	if !rq.sees(op.Spec.Cluster) {
		return op, notFound("operation", opID)
	}
	return op, nil
}

func (a *API) getOperation(ctx context.Context, rq *request, in *struct {
	ID          string `path:"id"`
	Wait        string `query:"wait" doc:"How long to wait for a change, such as 30s: at most 60s (on AWS it ends by 25s)"`
	IfNoneMatch string `header:"If-None-Match" doc:"The ETag of what is known: wait for a newer one"`
}) (*operationOutput, error) {
	wait, err := a.parseWait(ctx, in.Wait)
	if err != nil {
		return nil, err
	}
	known, err := parseETag("If-None-Match", in.IfNoneMatch)
	if err != nil { // nothing that this path answered: it matches nothing
		known = -1
	}
	if wait == 0 {
		op, err := a.loadOperation(ctx, rq, in.ID)
		if err != nil {
			return nil, err
		}
		return answerOperation(&op, http.StatusOK), nil
	}
	if !id.Valid(id.Operation, in.ID) {
		return nil, notFound("operation", in.ID)
	}
	// The watch begins before the read: no change is missed in between.
	bell, stop := watch(a.cfg.Store.Ledger, record.OperationPK(in.ID))
	defer stop()
	op, err := a.loadOperation(ctx, rq, in.ID)
	if err != nil {
		return nil, err
	}
	if known == 0 {
		known = op.State.Revision
	}
	if op.State.Revision > known || op.State.Phase.Terminal() {
		return answerOperation(&op, http.StatusOK), nil
	}
	release, err := rq.wait()
	if err != nil {
		return nil, err
	}
	defer release()
	timeout := time.NewTimer(wait)
	defer timeout.Stop()
	for {
		last := false
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-timeout.C:
			last = true
		case <-bell:
		}
		if op, err = a.loadOperation(ctx, rq, in.ID); err != nil {
			return nil, err
		}
		if last || op.State.Revision > known || op.State.Phase.Terminal() {
			if err := rq.stillAllowed(ctx); err != nil {
				return nil, err
			}
			return answerOperation(&op, http.StatusOK), nil
		}
	}
}

// How often a wait looks where the ledger gives no signal: soon at first, since
// most changes that are waited for come soon, then ever less often. That is 17
// looks in 25 s; the answer is late by pollMost at worst.
const (
	pollFirst = 250 * time.Millisecond
	pollMost  = 2 * time.Second
)

// watch rings after each write to a partition, or every so often when the engine
// cannot tell.
func watch(l ledger.Ledger, pk string) (<-chan struct{}, func()) {
	if w, ok := l.(ledger.Watcher); ok {
		return w.Watch(pk)
	}
	bell, done := make(chan struct{}, 1), make(chan struct{})
	go func() {
		t := time.NewTimer(pollFirst)
		defer t.Stop()
		for every := pollFirst; ; {
			select {
			case <-done:
				return
			case <-t.C:
				select {
				case bell <- struct{}{}:
				default:
				}
			}
			every = min(every*3/2, pollMost)
			t.Reset(every)
		}
	}()
	return bell, func() { close(done) }
}

// parseETag reads a version from an entity tag, weak or not; 0 for none or "*".
func parseETag(header, s string) (int64, error) {
	if s == "" || s == "*" {
		return 0, nil
	}
	t := strings.TrimPrefix(s, "W/")
	if len(t) > 2 && t[0] == '"' && t[len(t)-1] == '"' {
		if n, err := strconv.ParseInt(t[1:len(t)-1], 10, 64); err == nil && n > 0 {
			return n, nil
		}
	}
	return 0, invalidParam("header", header, "format", "must be one ETag that this path answered")
}

type cancelBodyView struct {
	Reason string `json:"reason,omitempty" maxLength:"1024"`
}

func (a *API) cancelOperation(ctx context.Context, rq *request, in *struct {
	ID      string `path:"id"`
	Reason  string `query:"reason" doc:"Why; may also come in the body"`
	IfMatch string `header:"If-Match" doc:"Cancel only this version"`
	Body    *cancelBodyView
}) (*operationOutput, error) {
	if !id.Valid(id.Operation, in.ID) {
		return nil, notFound("operation", in.ID)
	}
	version, err := parseETag("If-Match", in.IfMatch)
	if err != nil {
		return nil, err
	}
	reason := in.Reason
	if in.Body != nil && in.Body.Reason != "" {
		if reason != "" && reason != in.Body.Reason {
			return nil, invalidParam("query", "reason", "conflict", "differs from the one in the body")
		}
		reason = in.Body.Reason
	}
	op, status, err := a.cfg.Control.Cancel(ctx, rq.call(), in.ID, control.CancelInput{Reason: reason, IfVersion: version})
	if err != nil {
		return nil, err
	}
	return answerOperation(&op, status), nil
}

type retryBodyView struct {
	Reason   string `json:"reason" maxLength:"1024"`
	Deadline string `json:"deadline,omitempty" doc:"RFC 3339; the type's default from now when absent"`
}

func (a *API) retryOperation(ctx context.Context, rq *request, in *struct {
	ID   string `path:"id"`
	Key  string `header:"Idempotency-Key"`
	Body retryBodyView
}) (*operationOutput, error) {
	if !id.Valid(id.Operation, in.ID) {
		return nil, notFound("operation", in.ID)
	}
	call, err := rq.keyed()
	if err != nil {
		return nil, err
	}
	changed, err := a.cfg.Control.Retry(ctx, call, in.ID, control.RetryInput(in.Body))
	if err != nil {
		return nil, err
	}
	return answerChanged(changed, http.StatusAccepted), nil
}

func answerChanged(c control.Changed, status int) *operationOutput {
	out := answerOperation(&c.Operation, status)
	out.Location = operationsPath + "/" + c.Operation.Spec.ID
	if c.Replayed {
		out.Status, out.Replayed = http.StatusOK, "true"
	}
	return out
}

type resolveBodyView struct {
	Step     string `json:"step" doc:"Its id or name"`
	Outcome  string `json:"outcome" enum:"succeeded,failed,not_done"`
	Evidence string `json:"evidence" doc:"What was seen, and where"`
	Reason   string `json:"reason" maxLength:"1024"`
}

func (a *API) resolveOperation(ctx context.Context, rq *request, in *struct {
	ID   string `path:"id"`
	Key  string `header:"Idempotency-Key"`
	Body resolveBodyView
}) (*operationOutput, error) {
	if !id.Valid(id.Operation, in.ID) {
		return nil, notFound("operation", in.ID)
	}
	call, err := rq.keyed()
	if err != nil {
		return nil, err
	}
	changed, err := a.cfg.Control.Resolve(ctx, call, in.ID, control.ResolveInput(in.Body))
	if err != nil {
		return nil, err
	}
	return answerChanged(changed, http.StatusOK), nil
}
