package protocol

import (
	"encoding/json"

	"github.com/opsplane/opsplane/shared/operation"
)

// ReportRequest is POST /v1/agent/reports.
type ReportRequest struct {
	AgentID string   `json:"agent_id"`
	Boot    string   `json:"boot"`
	Reports []Report `json:"reports"`
}

// Report tells what happened on one operation since the last one. N counts up
// from 1 under one lease: a resend carries the same N and is answered as
// before, changing nothing.
type Report struct {
	Operation  string              `json:"operation"`
	Generation int64               `json:"generation"`
	N          int64               `json:"n"`
	Steps      []StepReport        `json:"steps,omitempty"`
	Commands   []Command           `json:"commands,omitempty"`
	Notes      []Note              `json:"notes,omitempty"`
	Progress   *operation.Progress `json:"progress,omitempty"`
	// Settled: probing is over and every step's phase is known; the report's
	// Steps carry what the probes found.
	Settled bool   `json:"settled,omitempty"`
	Final   *Final `json:"final,omitempty"`
}

// StepReport tells where a step stands now. Reporting StepRunning opens an
// attempt; any other phase closes the open one with Outcome.
type StepReport struct {
	StepID    string              `json:"step_id"`
	Phase     operation.StepPhase `json:"phase"`
	Outcome   string              `json:"outcome,omitempty"` // operation.Outcome*
	ErrorCode string              `json:"error_code,omitempty"`
	Detail    string              `json:"detail,omitempty"`
	CommandID string              `json:"command_id,omitempty"`
	// AgoMS is how long before the sending it happened.
	AgoMS int64 `json:"ago_ms"`
}

// Command is one side effect issued within an attempt.
type Command struct {
	ID       string `json:"id"`
	StepID   string `json:"step_id"`
	Attempt  int    `json:"attempt"`
	Name     string `json:"name"`     // such as "evict pod default/web-0"
	Resource string `json:"resource"` // what it touched
	// Category of the response: ok, already, refused, conflict, throttled,
	// timeout, error.
	Category   string `json:"category"`
	Output     string `json:"output,omitempty"` // bounded and redacted
	StartAgoMS int64  `json:"start_ago_ms"`
	EndAgoMS   int64  `json:"end_ago_ms"` // 0 and Category "" while in flight
}

// Note is an observation for the journal.
type Note struct {
	Code   string `json:"code"`
	Detail string `json:"detail"`
	StepID string `json:"step_id,omitempty"`
}

// Final outcomes.
const (
	FinalSucceeded = "succeeded"
	FinalFailed    = "failed"
	FinalCancelled = "cancelled"
	FinalTimedOut  = "timed_out" // stopped at the deadline
	FinalAmbiguous = "ambiguous" // an issued step's outcome is unknown: reconcile
	FinalHandBack  = "hand_back" // nothing in flight; another agent may go on
)

// Final ends the lease with an outcome.
type Final struct {
	Outcome     string               `json:"outcome"`
	Message     string               `json:"message,omitempty"`
	Cause       *operation.Cause     `json:"cause,omitempty"`
	Retryable   bool                 `json:"retryable"`
	ActionCode  string               `json:"action_code,omitempty"`
	ActionText  string               `json:"action_text,omitempty"`
	Verified    []string             `json:"verified,omitempty"`
	NotVerified []string             `json:"not_verified,omitempty"`
	Residual    []operation.Residual `json:"residual,omitempty"`
	Cleanup     *operation.Cleanup   `json:"cleanup,omitempty"`
	Details     json.RawMessage      `json:"details,omitempty"`
	// Observed is the target's state as it was seen at the end, to be written
	// to the inventory in the same commit.
	Observed *Inventory `json:"observed,omitempty"`
}

// ResultNotBegun answers a report by which a step begins that no cancel interrupts, where
// one was accepted before. All else in the report is taken. It is an error, so that
// a holder that does not know it touches nothing either.
const ResultNotBegun = "cancel_requested"

// ReportResult answers one Report, in the same order.
type ReportResult struct {
	Operation string `json:"operation"`
	OK        bool   `json:"ok"`
	ErrorCode string `json:"error_code,omitempty"` // lease_lost, invalid, not_found, unavailable (resend it), ResultNotBegun
	Detail    string `json:"detail,omitempty"`
	Cancel    bool   `json:"cancel"` // a cancel is requested
}

// ReportAnswer answers a ReportRequest.
type ReportAnswer struct {
	Results []ReportResult `json:"results"`
}
