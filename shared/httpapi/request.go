package httpapi

import (
	"context"
	"errors"
	"net/http"
	"regexp"

	"github.com/opsplane/opsplane/shared/admission"
	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/problem"
	"github.com/opsplane/opsplane/shared/record"
)

// request is what is known of one call beside its http.Request.
type request struct {
	api         *API
	http        *http.Request
	route       *route
	requestID   string
	correlation string
	principal   auth.Principal
	body        []byte // all of it
	// problem is what was answered, for audit and metrics.
	problem *problem.Problem
	denied  auth.Reason
}

type requestKey struct{}

func requestOf(ctx context.Context) *request {
	rq, _ := ctx.Value(requestKey{}).(*request)
	return rq
}

// fail notes the problem that the request is answered with.
func (rq *request) fail(p *problem.Problem) {
	p.Instance, p.CorrelationID = rq.http.URL.Path, rq.correlation
	rq.problem = p
}

// failed turns an error into the problem that is answered, and logs what has to
// stay inside.
func (rq *request) failed(err error) *problem.Problem {
	p := *problemOf(err) // some are shared
	rq.fail(&p)
	if p.Status >= http.StatusInternalServerError && rq.http.Context().Err() == nil {
		rq.api.log.ErrorContext(rq.http.Context(), "request failed", "err", err, "error_code", p.ErrorCode, "method", rq.http.Method, "route", rq.pattern(),
			"correlation_id", rq.correlation, "request_id", rq.requestID)
	}
	return &p
}

// stillAllowed is an error when the credential is no longer good, for who waited: a
// revoked one must not go on seeing what happens. When that cannot be told it is
// taken to be.
func (rq *request) stillAllowed(ctx context.Context) error {
	if _, err := rq.api.cfg.Auth.Authenticate(ctx, bearerOf(rq.http)); errors.Is(err, auth.ErrDenied) {
		return err // told as the answer to a new request would be
	}
	return nil
}

func (rq *request) pattern() string {
	if rq.route == nil {
		return "none"
	}
	return rq.route.pattern
}

func (rq *request) actor() operation.Actor {
	p := rq.principal
	if p.ID == "" {
		return operation.Actor{ID: "unauthenticated", Kind: "none"}
	}
	return operation.Actor{ID: p.ID, Kind: string(p.Kind), Name: p.Name}
}

// call is the request as the use cases take it.
func (rq *request) call() admission.Call {
	var clusters []string
	if len(rq.principal.Clusters) > 0 {
		clusters = rq.principal.Clusters
	}
	rule := "role"
	if len(rq.principal.Roles) > 0 {
		rule = "role " + string(rq.principal.Roles[0])
	}
	return admission.Call{
		Caller: admission.Caller{Actor: rq.actor(), Clusters: clusters, Force: rq.principal.Can(auth.Force, firstOf(clusters)), Rule: rule},
		Method: rq.http.Method, Path: rq.http.URL.Path, RequestID: rq.requestID, CorrelationID: rq.correlation, RemoteAddr: rq.http.RemoteAddr,
	}
}

func firstOf(s []string) string {
	if len(s) == 0 {
		return ""
	}
	return s[0]
}

// sees tells whether something of the cluster may be shown.
func (rq *request) sees(cluster string) bool { return rq.principal.Sees(cluster) }

// tooManyWaits refuses one more of what takes as long as a wait.
func tooManyWaits(what string, limit int) *problem.Problem {
	return problem.New(problem.TooManyWaits, "%s: there are %d already, the limit", what, limit).WithExtra("limit", limit)
}

// wait takes one of the principal's open waits.
func (rq *request) wait() (release func(), err error) {
	free, ok := rq.api.cfg.Limiter.AcquireWait(rq.principal.ID)
	if !ok {
		return nil, tooManyWaits("your requests that wait", rq.api.cfg.Limiter.MaxWaits()).WithRetryAfter(retryUnavailable)
	}
	rq.api.metrics.Waiting(1)
	return func() { free(); rq.api.metrics.Waiting(-1) }, nil
}

var correlationShape = regexp.MustCompile(`^[A-Za-z0-9._-]{1,128}$`)

const idempotencyHeader = "Idempotency-Key"

// idempotencyKey reads the header: 1 to 255 printable ASCII characters.
func (rq *request) idempotencyKey() (string, error) {
	vs, given := rq.http.Header[http.CanonicalHeaderKey(idempotencyHeader)]
	if !given {
		return "", nil
	}
	if len(vs) != 1 || len(vs[0]) < 1 || len(vs[0]) > 255 {
		return "", invalidParam("header", idempotencyHeader, "length", "must be given once, with 1 to 255 characters")
	}
	for i := range len(vs[0]) {
		if c := vs[0][i]; c < 0x20 || c > 0x7e {
			return "", invalidParam("header", idempotencyHeader, "characters", "must hold printable ASCII only")
		}
	}
	return vs[0], nil
}

// keyed is the call with its idempotency key.
func (rq *request) keyed() (admission.Call, error) {
	key, err := rq.idempotencyKey()
	call := rq.call()
	call.IdempotencyKey = key
	return call, err
}

// keyedFor is the call with its idempotency key and the fingerprint of what was
// read of the body.
func (rq *request) keyedFor(body any) (admission.Call, error) {
	call, err := rq.keyed()
	if err == nil && call.IdempotencyKey != "" {
		call.Fingerprint, err = admission.Fingerprint(body)
	}
	return call, err
}

// once makes something under the call's idempotency key, before which nothing is
// checked: what was made once is answered the same. again reads it for a repeat;
// what was deleted since is gone.
func once[T any](ctx context.Context, st *record.Store, call admission.Call, create func() (T, error), again func(id string) (T, error)) (made T, replayed bool, err error) {
	earlier, err := admission.Earlier(ctx, st, call, call.Fingerprint)
	if err != nil {
		return made, false, err
	}
	if earlier == "" {
		failed := error(nil)
		if made, failed = create(); failed == nil {
			return made, false, nil
		}
		// It may have failed because of what the same key made just now.
		if earlier, err = admission.Earlier(ctx, st, call, call.Fingerprint); err != nil || earlier == "" {
			return made, false, failed
		}
	}
	made, err = again(earlier)
	if r, ok := errors.AsType[*operation.Refusal](err); ok && r.ErrorCode == "not_found" {
		err = operation.Refuse("gone", "%s, which the Idempotency-Key made, was deleted", earlier)
	}
	return made, true, err
}

// created answers what was made, or was made before.
func created[T any](path, id string, was bool, body T) *createdOutput[T] {
	out := &createdOutput[T]{Status: http.StatusCreated, Location: path + "/" + id, Replayed: replayed(was), Body: body}
	if was {
		out.Status = http.StatusOK
	}
	return out
}
