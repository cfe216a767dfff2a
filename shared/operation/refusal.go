package operation

import "fmt"

// Refusal is a request that was not accepted, by one of the registered error
// codes (package problem maps codes to HTTP).
type Refusal struct {
	ErrorCode   string
	Detail      string
	Errors      []FieldError
	OperationID string
	// Extra members of the answer, such as holder, candidates, supported, limit.
	Extra map[string]any
}

func (e *Refusal) Error() string { return e.ErrorCode + ": " + e.Detail }

// Code returns the error code.
func (e *Refusal) Code() string { return e.ErrorCode }

// Refuse makes a Refusal.
func Refuse(code, format string, args ...any) *Refusal {
	return &Refusal{ErrorCode: code, Detail: fmt.Sprintf(format, args...)}
}

// With adds a member to the answer.
func (e *Refusal) With(name string, v any) *Refusal {
	if e.Extra == nil {
		e.Extra = map[string]any{}
	}
	e.Extra[name] = v
	return e
}

// maxFieldErrors bounds the errors of one refusal: a body of unknown fields must
// not be answered with a multiple of itself.
const maxFieldErrors = 100

// Invalid refuses a request for its fields, naming the first maxFieldErrors.
func Invalid(errs ...FieldError) *Refusal {
	detail := "the request has errors"
	if n := len(errs); n > maxFieldErrors {
		detail = fmt.Sprintf("the request has %d errors; the first %d are listed", n, maxFieldErrors)
		errs = errs[:maxFieldErrors]
	}
	if len(errs) == 1 {
		detail = errs[0].Pointer + ": " + errs[0].Detail
	}
	return &Refusal{ErrorCode: "invalid", Detail: detail, Errors: errs}
}
