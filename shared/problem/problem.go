// Package problem is how every error looks from outside: RFC 9457 problem
// details with the members that Opsplane adds.
//
// A domain error names its code through a method Code() string and never
// imports this package; the one table in code.go gives each code its status,
// title and what to do next. An error without a known code becomes "internal",
// and its text stays inside.
package problem

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"time"
)

// ContentType is the media type of a problem (RFC 9457, section 3).
const ContentType = "application/problem+json"

// TypeBase and a code make the problem's type URI.
const TypeBase = "https://opsplane.dev/problems/"

// Problem is one problem. It is an error and is not changed once shared; the
// With helpers change the value they are called on and return it.
type Problem struct {
	Type     string // URI, TypeBase and the code
	Title    string // the same for every problem of a code
	Status   int    // HTTP status
	Detail   string // what happened this time
	Instance string // path of the request

	ErrorCode  Code
	NextAction NextAction
	Retryable  bool // the same request may succeed later

	// What it is about; empty when it is about none.
	OperationID   string
	StepID        string
	CommandID     string
	CorrelationID string

	Errors []FieldError
	// Extra members are written beside the others ("holder", "limit", ...);
	// they never replace one of them.
	Extra map[string]any

	// RetryAfter is sent as a header in whole seconds when positive.
	RetryAfter time.Duration

	cause error
}

// FieldError is one fault of the input.
type FieldError struct {
	Pointer string // JSON pointer into the body (RFC 6901), "" for all of it
	Detail  string
	Code    string // of the fault: "required", "unknown_field", ...
}

// NextAction says what the caller, or a person, does next.
type NextAction struct {
	Code Action
	Text string
}

// New returns the problem of a code with its detail. A code that is not in the
// table is internal.
func New(code Code, format string, args ...any) *Problem {
	e, ok := table[code]
	if !ok {
		code, e = Internal, table[Internal]
	}
	return &Problem{
		Type:       TypeBase + string(code),
		Title:      e.title,
		Status:     e.status,
		Detail:     fmt.Sprintf(format, args...),
		ErrorCode:  code,
		NextAction: NextAction{Code: e.action, Text: cmp.Or(codeText[code], e.action.text())},
		Retryable:  e.retryable,
	}
}

// From returns the problem that err is, or the one its code names, or an
// internal one without its text. From(nil) is nil.
//
// A domain error takes part by a method Code() string. Its Error text, without
// the code before it, becomes the detail: it is written for outside. What wraps
// it stays inside. With Fields() map[string]any it also gives members of its
// own, with Pointer() string the part of the body that is at fault.
func From(err error) *Problem {
	if err == nil {
		return nil
	}
	if p, ok := errors.AsType[*Problem](err); ok {
		return p
	}
	coded, ok := errors.AsType[interface {
		error
		Code() string
	}](err)
	if !ok {
		return internal(err)
	}
	code := Code(coded.Code())
	if _, known := table[code]; !known || code == Internal {
		return internal(err)
	}
	p := New(code, "%s", strings.TrimPrefix(coded.Error(), string(code)+": "))
	p.cause = err
	if f, ok := coded.(interface{ Fields() map[string]any }); ok {
		p.Extra = maps.Clone(f.Fields())
	}
	if f, ok := coded.(interface{ Pointer() string }); ok {
		p.WithField(f.Pointer(), string(code), "%s", p.Detail)
	}
	return p
}

func internal(err error) *Problem {
	p := New(Internal, "The request failed for a reason inside the plane. Its log has the cause under this correlation id.")
	p.cause = err
	return p
}

// Error gives the code and the detail.
func (p *Problem) Error() string {
	if p.Detail == "" {
		return string(p.ErrorCode) + ": " + p.Title
	}
	return string(p.ErrorCode) + ": " + p.Detail
}

// Code gives the error code, as the domain's errors do.
func (p *Problem) Code() string { return string(p.ErrorCode) }

// Unwrap gives the error that the problem was made from, for the log.
func (p *Problem) Unwrap() error { return p.cause }

// Is matches any problem of the same code.
func (p *Problem) Is(target error) bool {
	t, ok := target.(*Problem)
	return ok && t.ErrorCode == p.ErrorCode
}

// WithCause keeps the error that led here; it is never sent.
func (p *Problem) WithCause(err error) *Problem { p.cause = err; return p }

// WithField adds one fault of the input.
func (p *Problem) WithField(pointer, code, format string, args ...any) *Problem {
	p.Errors = append(p.Errors, FieldError{Pointer: pointer, Code: code, Detail: fmt.Sprintf(format, args...)})
	return p
}

// WithFields adds faults of the input.
func (p *Problem) WithFields(fs ...FieldError) *Problem {
	p.Errors = append(p.Errors, fs...)
	return p
}

// WithExtra adds a member of the problem's own.
func (p *Problem) WithExtra(name string, value any) *Problem {
	if p.Extra == nil {
		p.Extra = map[string]any{}
	}
	p.Extra[name] = value
	return p
}

// WithOperation names the operation that it is about.
func (p *Problem) WithOperation(id string) *Problem { p.OperationID = id; return p }

// WithStep names the step and, when known, the command.
func (p *Problem) WithStep(step, command string) *Problem {
	p.StepID, p.CommandID = step, command
	return p
}

// WithRequest names the request: its path and correlation id.
func (p *Problem) WithRequest(instance, correlation string) *Problem {
	p.Instance, p.CorrelationID = instance, correlation
	return p
}

// WithNextAction replaces what the code says to do next.
func (p *Problem) WithNextAction(a Action, format string, args ...any) *Problem {
	p.NextAction = NextAction{Code: a, Text: fmt.Sprintf(format, args...)}
	return p
}

// WithRetryAfter says when the same request may succeed.
func (p *Problem) WithRetryAfter(d time.Duration) *Problem { p.RetryAfter = d; return p }

// Pointer makes a JSON pointer of its parts (RFC 6901).
func Pointer(parts ...string) string {
	var b strings.Builder
	for _, part := range parts {
		b.WriteByte('/')
		b.WriteString(pointerEscape.Replace(part))
	}
	return b.String()
}

var pointerEscape = strings.NewReplacer("~", "~0", "/", "~1")

type wireAction struct {
	Code Action `json:"code"`
	Text string `json:"text"`
}

type wireField struct {
	Pointer string `json:"pointer"`
	Detail  string `json:"detail"`
	Code    string `json:"code,omitempty"`
}

// wire is the JSON form.
type wire struct {
	Type          string      `json:"type"`
	Title         string      `json:"title"`
	Status        int         `json:"status"`
	Detail        string      `json:"detail,omitempty"`
	Instance      string      `json:"instance,omitempty"`
	ErrorCode     Code        `json:"error_code"`
	NextAction    wireAction  `json:"next_action"`
	Retryable     bool        `json:"retryable"`
	OperationID   string      `json:"operation_id,omitempty"`
	StepID        string      `json:"step_id,omitempty"`
	CommandID     string      `json:"command_id,omitempty"`
	CorrelationID string      `json:"correlation_id,omitempty"`
	Errors        []wireField `json:"errors,omitempty"`
}

// members are the names that Extra cannot take.
var members = map[string]bool{"type": true, "title": true, "status": true, "detail": true, "instance": true, "error_code": true,
	"next_action": true, "retryable": true, "operation_id": true, "step_id": true, "command_id": true, "correlation_id": true, "errors": true}

// MarshalJSON writes the problem with its extra members.
func (p *Problem) MarshalJSON() ([]byte, error) {
	w := wire{
		Type: p.Type, Title: p.Title, Status: p.Status, Detail: p.Detail, Instance: p.Instance,
		ErrorCode: p.ErrorCode, NextAction: wireAction(p.NextAction), Retryable: p.Retryable,
		OperationID: p.OperationID, StepID: p.StepID, CommandID: p.CommandID, CorrelationID: p.CorrelationID,
	}
	for _, e := range p.Errors {
		w.Errors = append(w.Errors, wireField(e))
	}
	b, err := json.Marshal(w)
	if err != nil {
		return nil, err
	}
	extra := map[string]any{}
	for name, value := range p.Extra {
		if !members[name] {
			extra[name] = value
		}
	}
	if len(extra) == 0 {
		return b, nil
	}
	more, err := json.Marshal(extra)
	if err != nil {
		return nil, fmt.Errorf("problem %s: extra members: %w", p.ErrorCode, err)
	}
	b[len(b)-1] = ','
	return append(b, more[1:]...), nil
}

// UnmarshalJSON reads a problem as a client gets it. Members that it does not
// know go to Extra.
func (p *Problem) UnmarshalJSON(b []byte) error {
	var w wire
	if err := json.Unmarshal(b, &w); err != nil {
		return err
	}
	var all map[string]any
	if err := json.Unmarshal(b, &all); err != nil {
		return err
	}
	maps.DeleteFunc(all, func(name string, _ any) bool { return members[name] })
	*p = Problem{
		Type: w.Type, Title: w.Title, Status: w.Status, Detail: w.Detail, Instance: w.Instance,
		ErrorCode: w.ErrorCode, NextAction: NextAction(w.NextAction), Retryable: w.Retryable,
		OperationID: w.OperationID, StepID: w.StepID, CommandID: w.CommandID, CorrelationID: w.CorrelationID,
	}
	for _, e := range w.Errors {
		p.Errors = append(p.Errors, FieldError(e))
	}
	if len(all) > 0 {
		p.Extra = all
	}
	return nil
}

// Write answers a request with the problem.
func Write(w http.ResponseWriter, p *Problem) {
	b, err := json.Marshal(p)
	if err != nil { // an extra member that is no JSON
		bare := *p
		bare.Extra = nil
		b, _ = json.Marshal(&bare) // nothing left that can fail
	}
	h := w.Header()
	h.Set("Content-Type", ContentType)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Del("Content-Length")
	h.Del("ETag")
	if p.RetryAfter > 0 {
		h.Set("Retry-After", fmt.Sprint(int64((p.RetryAfter+time.Second-1)/time.Second)))
	}
	if p.Status == http.StatusUnauthorized && h.Get("WWW-Authenticate") == "" {
		h.Set("WWW-Authenticate", `Bearer realm="opsplane"`) // RFC 9110, 15.5.2
	}
	status := p.Status
	if status < 400 || status > 599 {
		status = http.StatusInternalServerError
	}
	w.WriteHeader(status)
	_, _ = w.Write(append(b, '\n')) // the client is gone: nobody is left to tell
}
