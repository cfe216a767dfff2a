package record

import (
	"time"

	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
)

// Audit is the record of one mutating or refused call.
type Audit struct {
	ID            string          `json:"id"`
	At            time.Time       `json:"at"`
	Actor         operation.Actor `json:"actor"`
	Method        string          `json:"method"`
	Path          string          `json:"path"`
	Action        string          `json:"action"`
	Resource      string          `json:"resource,omitempty"`
	Status        int             `json:"status"`
	ErrorCode     string          `json:"error_code,omitempty"`
	Reason        string          `json:"reason,omitempty"`
	CorrelationID string          `json:"correlation_id"`
	RemoteAddr    string          `json:"remote_addr,omitempty"`
}

// The actions of the calls by which an operation comes to life: with its own id
// as the resource or, for AuditRedrive, its dead letter's.
const (
	AuditCreate  = "operation.create"
	AuditRetry   = "operation.retry"
	AuditRedrive = "dead_letter.redrive"
)

// AuditKept is how long audit records are kept.
const AuditKept = 400 * 24 * time.Hour

// AuditWrite is the write of an audit record, with its id filled in.
func AuditWrite(a Audit) ledger.Write {
	if a.ID == "" {
		a.ID = id.New(id.Audit, a.At)
	}
	return ledger.Write{Item: ledger.Item{Key: AuditKey(a.At, a.ID), Data: Encode(a), Expires: a.At.Add(AuditKept)}}
}
