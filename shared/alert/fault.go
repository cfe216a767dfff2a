package alert

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrInvalid: the rule, silence or filter breaks a rule. The error is Faults.
var ErrInvalid = errors.New("invalid")

// Fault is one thing that is wrong, and where.
type Fault struct {
	// Pointer is the field (RFC 6901), "" for the whole.
	Pointer string `json:"pointer"`
	// Line and Column are the place in the text that was parsed, or, of an
	// expression, that in the expression; from 1, 0 where there is none.
	Line   int    `json:"line,omitempty"`
	Column int    `json:"column,omitempty"`
	Code   string `json:"code"`
	Detail string `json:"detail"`
}

// Codes of faults.
const (
	CodeSyntax   = "syntax"
	CodeUnknown  = "unknown_field"
	CodeType     = "type"
	CodeRequired = "required"
	CodeRange    = "range"
	CodeFormat   = "format"
	CodeCost     = "cost"
	CodeCycle    = "cycle"
	CodeConflict = "conflict"
	CodeSecret   = "secret_in_request" // it looks like a credential
)

// Faults are all things that are wrong, in the order of the fields.
type Faults []Fault

func (f Faults) Error() string {
	parts := make([]string, len(f))
	for i, x := range f {
		parts[i] = strings.TrimSpace(x.Pointer + " " + x.Detail)
		if x.Line > 0 {
			parts[i] = fmt.Sprintf("%s (line %d, column %d)", parts[i], x.Line, x.Column)
		}
	}
	return "invalid: " + strings.Join(parts, "; ")
}

// Is makes errors.Is(err, ErrInvalid) true.
func (f Faults) Is(target error) bool { return target == ErrInvalid }

// orNil is an error where there is a fault.
func (f Faults) orNil() error {
	if len(f) == 0 {
		return nil
	}
	return f
}

func (f *Faults) add(pointer, code, format string, args ...any) {
	*f = append(*f, Fault{Pointer: pointer, Code: code, Detail: fmt.Sprintf(format, args...)})
}

// Code is the error code of the answer: CodeSecret where one of them is that.
func (f Faults) Code() string {
	if slices.ContainsFunc(f, func(x Fault) bool { return x.Code == CodeSecret }) {
		return CodeSecret
	}
	return "invalid"
}
