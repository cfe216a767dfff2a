package problem

import (
	"maps"
	"slices"
)

// Code names a kind of problem, the same everywhere: in HTTP answers, in
// results, in the journal.
type Code string

// The codes; table says what each means over HTTP.
const (
	Malformed            Code = "malformed"
	Unauthenticated      Code = "unauthenticated"
	Forbidden            Code = "forbidden"
	ForceNotAllowed      Code = "force_not_allowed"
	NotFound             Code = "not_found"
	MethodNotAllowed     Code = "method_not_allowed"
	NotAcceptable        Code = "not_acceptable"
	OperationConflict    Code = "operation_conflict"
	LeaseLost            Code = "lease_lost"
	NotCancelable        Code = "not_cancelable"
	CordonNotOwned       Code = "cordon_not_owned"
	StaleRevision        Code = "stale_revision"
	AlreadyTerminal      Code = "already_terminal"
	AlertResolved        Code = "alert_resolved"
	NotRetryable         Code = "not_retryable"
	NotResolvable        Code = "not_resolvable"
	ClusterInUse         Code = "cluster_in_use"
	NameTaken            Code = "name_taken"
	CursorExpired        Code = "cursor_expired"
	Gone                 Code = "gone"
	PreconditionFailed   Code = "precondition_failed"
	PayloadTooLarge      Code = "payload_too_large"
	UnsupportedMediaType Code = "unsupported_media_type"
	Invalid              Code = "invalid"
	InvalidCursor        Code = "invalid_cursor"
	IdempotencyKeyReused Code = "idempotency_key_reused"
	UnsupportedType      Code = "unsupported_type"
	SecretInRequest      Code = "secret_in_request"
	PreconditionRequired Code = "precondition_required"
	RateLimited          Code = "rate_limited"
	TooManyWaits         Code = "too_many_waits"
	Internal             Code = "internal"
	Unavailable          Code = "unavailable"
	Timeout              Code = "timeout"
)

// Action is what to do next about a problem or a failed operation.
type Action string

// The actions.
const (
	CorrectInput      Action = "correct_input"
	RestoreDependency Action = "restore_dependency"
	RecoverAgent      Action = "recover_agent"
	Retry             Action = "retry"
	Cancel            Action = "cancel"
	Escalate          Action = "escalate"
)

func (a Action) text() string { return actionText[a] }

var actionText = map[Action]string{
	CorrectInput:      "Correct the request and send it again.",
	RestoreDependency: "Restore what the request depends on, then send it again.",
	RecoverAgent:      "Bring the cluster's agent back, then send the request again.",
	Retry:             "Read the current state, then send the request again.",
	Cancel:            "Cancel the operation in the way, or wait for its end.",
	Escalate:          "Ask somebody with the right or the knowledge to do this.",
}

// codeText is what to do next about a code, where that says more than its action.
var codeText = map[Code]string{
	Unauthenticated: "Send the request with a credential that is in force.",
}

type entry struct {
	status    int
	title     string
	action    Action
	retryable bool // the same request may succeed later
}

// table is the one place where a code gets its meaning.
var table = map[Code]entry{
	Malformed:            {400, "The request cannot be read", CorrectInput, false},
	Unauthenticated:      {401, "The credential was not accepted", CorrectInput, false},
	Forbidden:            {403, "The principal may not do this", Escalate, false},
	ForceNotAllowed:      {403, "The principal may not use force", Escalate, false},
	NotFound:             {404, "No such thing", CorrectInput, false},
	MethodNotAllowed:     {405, "The path does not take this method", CorrectInput, false},
	NotAcceptable:        {406, "No acceptable media type", CorrectInput, false},
	OperationConflict:    {409, "Another operation holds a resource", Cancel, true},
	LeaseLost:            {409, "The lease is no longer held", Retry, false},
	NotCancelable:        {409, "The operation cannot be cancelled now", Retry, true},
	CordonNotOwned:       {409, "The cordon was placed outside Opsplane", CorrectInput, false},
	StaleRevision:        {409, "The requested revision is not the current one", CorrectInput, false},
	AlreadyTerminal:      {409, "The operation has ended", CorrectInput, false},
	AlertResolved:        {409, "The alert is resolved", CorrectInput, false},
	NotRetryable:         {409, "The operation cannot be retried", CorrectInput, false},
	NotResolvable:        {409, "The step cannot be resolved", CorrectInput, false},
	ClusterInUse:         {409, "The cluster is still in use", Cancel, true},
	NameTaken:            {409, "The name is taken", CorrectInput, false},
	CursorExpired:        {410, "The cursor points before what is kept", CorrectInput, false},
	Gone:                 {410, "It was there and is no more", CorrectInput, false},
	PreconditionFailed:   {412, "The resource has changed", Retry, false},
	PayloadTooLarge:      {413, "The request is too large", CorrectInput, false},
	UnsupportedMediaType: {415, "The media type is not supported", CorrectInput, false},
	Invalid:              {422, "The request is not valid", CorrectInput, false},
	InvalidCursor:        {422, "The cursor is not valid", CorrectInput, false},
	IdempotencyKeyReused: {422, "The idempotency key belongs to another request", CorrectInput, false},
	UnsupportedType:      {422, "The operation type is not supported", CorrectInput, false},
	SecretInRequest:      {422, "The request carries a secret", CorrectInput, false},
	PreconditionRequired: {428, "The request must be conditional", CorrectInput, false},
	RateLimited:          {429, "Too many requests", Retry, true},
	TooManyWaits:         {429, "Too many waiting requests", Retry, true},
	Internal:             {500, "Something failed inside the plane", Escalate, false},
	Unavailable:          {503, "The plane cannot take the request now", RestoreDependency, true},
	Timeout:              {504, "The answer did not come in time", Retry, true},
}

// Codes lists all codes, sorted.
func Codes() []Code { return slices.Sorted(maps.Keys(table)) }

// Status gives a code's HTTP status; an unknown code is internal.
func Status(c Code) int {
	if e, ok := table[c]; ok {
		return e.status
	}
	return table[Internal].status
}

// Title gives a code's title; an unknown code is internal.
func Title(c Code) string {
	if e, ok := table[c]; ok {
		return e.title
	}
	return table[Internal].title
}
