package protocol

import (
	"encoding/json"
	"time"

	"github.com/opsplane/opsplane/shared/operation"
)

// ClaimRequest is POST /v1/agent/claims.
type ClaimRequest struct {
	AgentID string  `json:"agent_id"`
	Boot    string  `json:"boot"`
	Claims  []Claim `json:"claims"`
}

// Claim asks for one operation.
type Claim struct {
	Operation string `json:"operation"`
	// Generation is the doorbell's, for information: the plane decides by its
	// record, and the assignment carries the generation that was granted.
	Generation int64 `json:"generation"`
}

// Claim results.
const (
	ClaimGranted      = "granted"
	ClaimRetry        = "retry"        // not yet: leave the doorbell, try after RetryMS
	ClaimGone         = "gone"         // ended, unknown or another cluster's: delete the doorbell
	ClaimHeld         = "held"         // another agent (or you) holds it: delete the doorbell
	ClaimIncompatible = "incompatible" // you lack a capability: leave the doorbell to others
)

// ClaimResult answers one Claim, in the same order.
type ClaimResult struct {
	Operation  string      `json:"operation"`
	Result     string      `json:"result"`
	RetryMS    int64       `json:"retry_ms,omitempty"`
	Detail     string      `json:"detail,omitempty"`
	Assignment *Assignment `json:"assignment,omitempty"`
}

// ClaimAnswer answers a ClaimRequest.
type ClaimAnswer struct {
	Results []ClaimResult `json:"results"`
}

// Assignment is everything an agent needs to carry an operation out.
type Assignment struct {
	Operation     string          `json:"operation"`
	Generation    int64           `json:"generation"`
	Run           int             `json:"run"`
	LeaseMS       int64           `json:"lease_ms"`
	DeadlineMS    int64           `json:"deadline_ms"`
	Deadline      time.Time       `json:"deadline"`
	Type          string          `json:"type"`
	TargetID      string          `json:"target_id"`
	TargetName    string          `json:"target_name"`
	TargetUID     string          `json:"target_uid"`
	NodeName      string          `json:"node_name,omitempty"`
	Payload       json.RawMessage `json:"payload"`
	Reason        string          `json:"reason"`
	Actor         operation.Actor `json:"actor"`
	CorrelationID string          `json:"correlation_id"`
	Steps         []Step          `json:"steps"`
	// Probe: another lease or another run of this operation came before
	// (Generation or Run is above 1), or an earlier operation left a resource
	// unsettled: every unfinished step is probed before anything is issued, and
	// Settled is reported. The rule is operation.NeedsProbe.
	Probe bool `json:"probe"`
	// Cancel is set when a cancel was requested already.
	Cancel bool `json:"cancel"`
	// StartedStep is the step that the claim itself started, the first
	// unfinished one: the plane knows of it, so it may be executed at once.
	// Empty with Probe.
	StartedStep string `json:"started_step,omitempty"`
}

// Step is one step of an assignment with where it stands.
type Step struct {
	operation.PlanStep
	Phase operation.StepPhase `json:"phase"`
	// Attempts is how many were opened so far, in every run and whatever they
	// came to, the one of StartedStep included.
	Attempts int `json:"attempts"`
	// ErrorCode and Detail say why a step failed under an earlier lease.
	ErrorCode string `json:"error_code,omitempty"`
	Detail    string `json:"detail,omitempty"`
	// Failure is the last attempt of it that failed, in whatever run: the cause where
	// no attempt is left. The rule is operation.StepState.LastFailure.
	Failure *operation.Attempt `json:"failure,omitempty"`
	// Resolved: a person settled that the step never took effect; it is not
	// probed, since no probe could tell.
	Resolved bool `json:"resolved,omitempty"`
}
