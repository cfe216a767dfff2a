package protocol

import "github.com/opsplane/opsplane/shared/operation"

// RenewRequest is POST /v1/agent/renewals.
type RenewRequest struct {
	AgentID  string         `json:"agent_id"`
	Boot     string         `json:"boot"`
	Renewals []RenewalEntry `json:"renewals"`
}

// RenewalEntry asks for one lease to go on. Progress may ride along.
type RenewalEntry struct {
	Operation  string              `json:"operation"`
	Generation int64               `json:"generation"`
	Progress   *operation.Progress `json:"progress,omitempty"`
}

// RenewResult answers one RenewalEntry, in the same order.
type RenewResult struct {
	Operation  string `json:"operation"`
	OK         bool   `json:"ok"`
	ErrorCode  string `json:"error_code,omitempty"` // lease_lost
	LeaseMS    int64  `json:"lease_ms"`
	DeadlineMS int64  `json:"deadline_ms"`
	Cancel     bool   `json:"cancel"`
}

// RenewAnswer answers a RenewRequest.
type RenewAnswer struct {
	Results []RenewResult `json:"results"`
}
