package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/validation"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/problem"
	"github.com/opsplane/opsplane/shared/queue"
	"github.com/opsplane/opsplane/shared/record"
)

// retryUnavailable is when to come back after "unavailable".
const retryUnavailable = time.Second

// domainCodes maps the errors of the domain and the seams that have no code of
// their own. The first match counts.
var domainCodes = []struct {
	err  error
	code problem.Code
}{
	{operation.ErrNotCancelable, problem.NotCancelable},
	{operation.ErrTerminal, problem.AlreadyTerminal},
	{operation.ErrNotReplaySafe, problem.NotRetryable},
	{operation.ErrNotRetryable, problem.NotRetryable},
	{operation.ErrLeaseLost, problem.LeaseLost},
	{operation.ErrInvalidReport, problem.Invalid},
	{operation.ErrIllegal, problem.AlreadyTerminal},
	{queue.ErrNoQueue, problem.NotFound},
	{queue.ErrStaleReceipt, problem.Gone},
	{queue.ErrInvalid, problem.Invalid},
	{event.ErrInvalidQuery, problem.Invalid},
	{event.ErrInvalidCursor, problem.InvalidCursor},
}

// problemOf turns any error into the problem that the caller sees.
func problemOf(err error) *problem.Problem {
	if p, ok := errors.AsType[*problem.Problem](err); ok {
		return p
	}
	if r, ok := errors.AsType[*operation.Refusal](err); ok {
		return refusal(r)
	}
	if l, ok := errors.AsType[*operation.LockedError](err); ok {
		return problem.New(problem.OperationConflict, "%s", l.Error()).WithOperation(l.Holder.Operation).
			WithExtra("holder", map[string]any{"operation_id": l.Holder.Operation, "type": l.Holder.Type, "actor": l.Holder.Actor,
				"resource": l.Resource, "mode": l.Holder.Mode, "since": l.Holder.Since, "link": "/v1/operations/" + l.Holder.Operation})
	}
	if f, ok := errors.AsType[alert.Faults](err); ok {
		return faulty(f)
	}
	if e, ok := errors.AsType[*event.ExpiredError](err); ok {
		p := problem.New(problem.CursorExpired, "%s", e.Error()).WithExtra("cursor", e.Cursor).WithExtra("streams", e.Streams)
		p.NextAction.Text = "Go on with the cursor of this answer, the first one that is left: what lies before it is gone."
		if !e.Restored.IsZero() {
			p.NextAction.Text = "Go on with the cursor of this answer: it begins with what each stream told of the restore. Where you had not read up to the backup, begin with since instead."
		}
		return p
	}
	if q, ok := errors.AsType[*event.QueryError](err); ok {
		return invalidParam("query", q.Part, "invalid", "%s", q.Detail).WithCause(err)
	}
	for _, d := range domainCodes {
		if errors.Is(err, d.err) {
			return problem.New(d.code, "%s", innermost(err, d.err)).WithCause(err)
		}
	}
	switch {
	case errors.Is(err, ledger.ErrNotFound):
		return problem.New(problem.NotFound, "there is no such thing").WithCause(err)
	case errors.Is(err, ledger.ErrUnavailable), errors.Is(err, queue.ErrUnavailable):
		return problem.New(problem.Unavailable, "the plane's store cannot take the request now").WithCause(err).WithRetryAfter(retryUnavailable)
	case errors.Is(err, record.ErrNewer): // the part of the plane that answers next may be as new
		return problem.New(problem.Unavailable, "a record is %s; it cannot be used by the one that answered", record.ErrNewer).WithCause(err).WithRetryAfter(retryUnavailable)
	case errors.Is(err, ledger.ErrConflict):
		return problem.New(problem.Unavailable, "others kept writing the same thing; try again").WithCause(err).WithRetryAfter(retryUnavailable)
	case errors.Is(err, ledger.ErrUnknown):
		return problem.New(problem.Timeout, "the plane cannot tell whether the request was carried out; look, or send it again under the same Idempotency-Key").WithCause(err)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return problem.New(problem.Timeout, "the request ended before its answer was there").WithCause(err)
	}
	p := problem.From(err)
	if p.ErrorCode == problem.Unavailable && p.RetryAfter == 0 {
		p.RetryAfter = retryUnavailable
	}
	return p
}

// faulty is the problem of a rule, an override or a silence that is refused, with
// the place of each fault.
func faulty(faults alert.Faults) *problem.Problem {
	p := problem.New(problem.Code(faults.Code()), "%s", strings.TrimPrefix(faults.Error(), "invalid: "))
	for _, f := range faults {
		detail := f.Detail
		if f.Line > 0 {
			detail = fmt.Sprintf("line %d, column %d: %s", f.Line, f.Column, detail)
		}
		p.WithField(f.Pointer, f.Code, "%s", detail)
	}
	return p
}

// innermost is the text of a domain error without what adapters wrapped around
// it.
func innermost(err, target error) string {
	text := err.Error()
	if i := strings.Index(text, target.Error()); i >= 0 {
		return text[i:]
	}
	return target.Error()
}

func refusal(r *operation.Refusal) *problem.Problem {
	p := problem.New(problem.Code(r.ErrorCode), "%s", r.Detail).WithCause(r)
	if p.ErrorCode == problem.Internal { // a code that the table does not have
		return problem.From(r)
	}
	for _, e := range r.Errors {
		p.WithField(e.Pointer, e.Code, "%s", e.Detail)
	}
	p.OperationID = r.OperationID
	for name, v := range r.Extra {
		if name == "step_id" {
			p.StepID, _ = v.(string)
			continue
		}
		p.WithExtra(name, v)
	}
	return p
}

// invalidParam refuses one parameter of the query, the path or a header.
func invalidParam(in, name, code, format string, args ...any) *problem.Problem {
	detail := fmt.Sprintf(format, args...)
	return problem.New(problem.Invalid, "%s %s", name, detail).WithField(problem.Pointer(in, name), code, "%s %s", name, detail)
}

func notFound(what, name string) *problem.Problem {
	return problem.New(problem.NotFound, "there is no %s %.128q", what, name)
}

// failure is a problem as huma sends it.
type failure struct{ *problem.Problem }

var (
	_ huma.StatusError       = failure{}
	_ huma.HeadersError      = failure{}
	_ huma.ContentTypeFilter = failure{}
	_ huma.SchemaProvider    = failure{}
)

// GetStatus is the HTTP status.
func (f failure) GetStatus() int { return f.Status }

// GetHeaders are the headers that problem.Write would send.
func (f failure) GetHeaders() http.Header {
	h := http.Header{}
	if f.RetryAfter > 0 {
		h.Set("Retry-After", fmt.Sprint(int64((f.RetryAfter+time.Second-1)/time.Second)))
	}
	return h
}

// ContentType makes it a problem document.
func (failure) ContentType(string) string { return problem.ContentType }

// Schema documents the problem.
func (failure) Schema(r huma.Registry) *huma.Schema {
	return r.Schema(reflect.TypeFor[problemView](), true, "Problem")
}

// problemView is how a problem is documented; package problem writes it.
type problemView struct {
	_             struct{}           `additionalProperties:"true"`
	Type          string             `json:"type" format:"uri" doc:"Names the kind of problem; ends in error_code"`
	Title         string             `json:"title" doc:"The same for every problem of the kind"`
	Status        int                `json:"status"`
	Detail        string             `json:"detail,omitempty" doc:"What happened this time"`
	Instance      string             `json:"instance,omitempty" doc:"Path of the request"`
	ErrorCode     string             `json:"error_code" doc:"Stable code to branch on"`
	NextAction    problemActionView  `json:"next_action"`
	Retryable     bool               `json:"retryable" doc:"The same request may succeed later"`
	OperationID   string             `json:"operation_id,omitempty"`
	StepID        string             `json:"step_id,omitempty"`
	CommandID     string             `json:"command_id,omitempty"`
	CorrelationID string             `json:"correlation_id,omitempty"`
	Errors        []problemFieldView `json:"errors,omitempty"`
}

type problemActionView struct {
	Code string `json:"code" doc:"correct_input, restore_dependency, recover_agent, retry, cancel, escalate"`
	Text string `json:"text"`
}

type problemFieldView struct {
	Pointer string `json:"pointer" doc:"JSON pointer into the body (RFC 6901); /query/NAME and /header/NAME for parameters"`
	Detail  string `json:"detail"`
	Code    string `json:"code,omitempty"`
}

// huma makes its own errors through two package variables; they are set once,
// here, since every API of the process is this one.
func init() {
	huma.NewError = func(status int, msg string, errs ...error) huma.StatusError {
		return failure{fromHuma(status, msg, errs)}
	}
	huma.NewErrorWithContext = func(c huma.Context, status int, msg string, errs ...error) huma.StatusError {
		p := fromHuma(status, msg, errs)
		if rq, ok := c.Context().Value(requestKey{}).(*request); ok {
			rq.fail(p)
		}
		return failure{p}
	}
}

// fromHuma is the problem of what huma found while it read a request.
func fromHuma(status int, msg string, errs []error) *problem.Problem {
	codes := map[int]problem.Code{http.StatusBadRequest: problem.Malformed, http.StatusUnprocessableEntity: problem.Invalid,
		http.StatusRequestEntityTooLarge: problem.PayloadTooLarge, http.StatusUnsupportedMediaType: problem.UnsupportedMediaType,
		http.StatusNotAcceptable: problem.NotAcceptable, http.StatusRequestTimeout: problem.Malformed, http.StatusNotFound: problem.NotFound}
	code, ok := codes[status]
	if !ok {
		return problem.From(errors.Join(append([]error{errors.New(msg)}, errs...)...))
	}
	p := problem.New(code, "%s", msg)
	for _, err := range errs {
		if d, ok := errors.AsType[*huma.ErrorDetail](err); ok {
			pointer := pointerOf(d.Location)
			var name string
			if _, err := fmt.Sscanf(d.Message, validation.MsgExpectedRequiredProperty, &name); err == nil {
				pointer += problem.Pointer(name) // huma names the object that lacks it
			}
			p.WithField(pointer, codeOf(d.Message), "%s", d.Message)
		}
	}
	if len(p.Errors) == 1 {
		name := strings.TrimPrefix(p.Errors[0].Pointer, "/query/")
		p.Detail = strings.TrimPrefix(name+": ", ": ") + p.Errors[0].Detail
	}
	return p
}

// pointerOf turns a location such as body.children[0].type into a pointer.
func pointerOf(location string) string {
	parts := strings.FieldsFunc(location, func(r rune) bool { return r == '.' || r == '[' || r == ']' })
	if len(parts) > 0 && parts[0] == "body" {
		parts = parts[1:]
	}
	return problem.Pointer(parts...)
}

func codeOf(message string) string {
	switch {
	case strings.HasPrefix(message, "unexpected property"):
		return "unknown_field"
	case strings.HasPrefix(message, "unknown query parameter"):
		return "unknown_parameter"
	case strings.Contains(message, "required"):
		return "required"
	}
	return "invalid"
}
