// Package registry keeps what the plane knows by being told: clusters with
// their queues and agents' tokens, and the tokens of people and programs.
//
// Each change is one commit with its audit record. Refusals are
// *operation.Refusal or carry a code of package problem themselves.
package registry

import (
	"time"

	"github.com/opsplane/opsplane/shared/admission"
	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/queue"
	"github.com/opsplane/opsplane/shared/record"
)

// Service carries the calls out. It holds no state of its own.
type Service struct {
	Store  *record.Store
	Tokens *auth.Store
	Queues queue.Admin
}

func (s *Service) now() time.Time { return s.Store.Now().UTC().Truncate(time.Millisecond) }

func (s *Service) audit(call admission.Call, action, resource string, status int, reason string) ledger.Write {
	return record.AuditWrite(record.Audit{At: s.now(), Actor: call.Caller.Actor, Method: call.Method, Path: call.Path, Action: action,
		Resource: resource, Status: status, Reason: reason, CorrelationID: call.CorrelationID, RemoteAddr: call.RemoteAddr})
}

func noCluster(name string) error {
	return operation.Refuse("not_found", "there is no cluster %s", name)
}
