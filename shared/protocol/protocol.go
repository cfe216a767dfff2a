// Package protocol is the language that agents and the plane speak: doorbells
// on the cluster's queue, and the bodies of the agent's calls.
//
// Both sides treat what they read as untrusted: sizes, counts and values are
// checked by the receiver. Durations are in milliseconds and are counted by the
// agent on its monotonic clock from the moment it sent the request.
package protocol

import (
	"encoding/json"
	"time"

	"github.com/opsplane/opsplane/shared/operation"
)

// Version is the protocol's version.
const Version = 1

// Limits that the plane enforces and the agent keeps to.
const (
	MaxBatch        = 100       // claims, renewals or reports a call
	MaxBodyBytes    = 4 << 20   // one call
	MaxEvents       = 500       // events a call
	MaxEventBytes   = 32 << 10  // one event's detail
	MaxOutputBytes  = 4 << 10   // one command's output, redacted
	MaxDetailBytes  = 2 << 10   // one detail text
	MaxDetailsBytes = 64 << 10  // a report's Details
	MaxCommands     = 500       // commands a report
	MaxInventory    = 2_000     // objects a call
	MaxPreviewBytes = 128 << 10 // one preview's answer
)

// Doorbell kinds.
const (
	// KindOperation: operation X, generation G, is for you: claim it.
	KindOperation = "operation"
	// KindAttention: something changed on an operation that you may hold (a
	// cancel): renew now.
	KindAttention = "attention"
	// KindPreview: a preview request waits; it is no operation.
	KindPreview = "preview"
)

// Doorbell is a queue message. Unknown kinds and versions are put aside.
type Doorbell struct {
	Version    int       `json:"version"`
	Kind       string    `json:"kind"`
	Operation  string    `json:"operation,omitempty"` // or the preview's id in Preview
	Preview    string    `json:"preview,omitempty"`
	Cluster    string    `json:"cluster"`
	Generation int64     `json:"generation"`
	SentAt     time.Time `json:"sent_at"`
}

// Capability is something the agent can do, and how new its way of doing it is.
type Capability struct {
	Name    string `json:"name"`
	Version int    `json:"version"`
}

// Heartbeat is POST /v1/agent/heartbeat: sent at the start and every 5 s.
type Heartbeat struct {
	Name         string       `json:"name"` // this agent process's stable name in its cluster
	Boot         string       `json:"boot"` // new at each start
	Version      string       `json:"version"`
	Capabilities []Capability `json:"capabilities"`
	SentAt       time.Time    `json:"sent_at"` // the agent's wall clock, to measure skew
	Leases       int          `json:"leases"`
	Capacity     int          `json:"capacity"`
	Stopping     bool         `json:"stopping,omitempty"`
}

// HeartbeatAnswer configures the agent.
type HeartbeatAnswer struct {
	AgentID string `json:"agent_id"`
	Cluster string `json:"cluster"`
	// ServerTime is the plane's clock at the answer.
	ServerTime     time.Time `json:"server_time"`
	LeaseMS        int64     `json:"lease_ms"`
	CallDeadlineMS int64     `json:"call_deadline_ms"`
	// Reporter: this agent holds the reporter lease and sends inventory.
	Reporter bool `json:"reporter"`
	// FullInventory: the plane asks for a full resend.
	FullInventory bool `json:"full_inventory"`
	// QueueURL is where to poll on AWS; empty: the plane's own long poll.
	QueueURL string `json:"queue_url,omitempty"`
}

// ClaimRequest is POST /v1/agent/claims.
type ClaimRequest struct {
	AgentID string  `json:"agent_id"`
	Boot    string  `json:"boot"`
	Claims  []Claim `json:"claims"`
}

// Claim asks for one operation. Generation is the doorbell's.
type Claim struct {
	Operation  string `json:"operation"`
	Generation int64  `json:"generation"`
}

// Claim results.
const (
	ClaimGranted      = "granted"
	ClaimRetry        = "retry"        // not yet: leave the doorbell, try after RetryMS
	ClaimGone         = "gone"         // ended, unknown, another cluster's, or a stale doorbell: delete the doorbell
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
	// Probe: the generation is not the first of this run, or an earlier
	// operation left a resource unsettled: every unfinished step is probed
	// before anything is issued, and Settled is reported.
	Probe bool `json:"probe"`
	// Cancel is set when a cancel was requested already.
	Cancel bool `json:"cancel"`
	// ClaimedOutcome: the claim itself told the plane that the first unfinished
	// step is started (unless Probe), so it may be executed at once.
	StartedStep string `json:"started_step,omitempty"`
}

// Step is one step of an assignment with where it stands.
type Step struct {
	operation.PlanStep
	Phase    operation.StepPhase `json:"phase"`
	Attempts int                 `json:"attempts"`
}

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

// ReportResult answers one Report, in the same order.
type ReportResult struct {
	Operation string `json:"operation"`
	OK        bool   `json:"ok"`
	ErrorCode string `json:"error_code,omitempty"` // lease_lost, invalid, not_found, unavailable (resend it)
	Detail    string `json:"detail,omitempty"`
	Cancel    bool   `json:"cancel"` // a cancel is requested
}

// ReportAnswer answers a ReportRequest.
type ReportAnswer struct {
	Results []ReportResult `json:"results"`
}

// Inventory is a set of objects as the agent saw them. Revision of an object
// only grows; the plane keeps the newest it has seen.
type Inventory struct {
	Nodes       []Node       `json:"nodes,omitempty"`
	Devices     []Device     `json:"devices,omitempty"`
	Deployments []Deployment `json:"deployments,omitempty"`
	Components  []Component  `json:"components,omitempty"`
}

// InventoryRequest is POST /v1/agent/inventory. A full resend is a run of
// requests with one Snapshot id and Part counted from 0; the one with Last set
// ends it, and what the run did not name is gone.
type InventoryRequest struct {
	AgentID  string    `json:"agent_id"`
	Boot     string    `json:"boot"`
	Snapshot string    `json:"snapshot,omitempty"`
	Part     int       `json:"part,omitempty"`
	Last     bool      `json:"last,omitempty"`
	Objects  Inventory `json:"objects"`
	// Gone names objects that went: "node/UID", "device/UID", ...
	Gone []string `json:"gone,omitempty"`
}

// InventoryAnswer answers an InventoryRequest.
type InventoryAnswer struct {
	Reporter      bool `json:"reporter"` // false: another agent reports; nothing was taken
	FullInventory bool `json:"full_inventory"`
}

// Cordon says who closed a node to new pods.
type Cordon struct {
	// Owner is "opsplane" or "external".
	Owner     string    `json:"owner"`
	Operation string    `json:"operation,omitempty"`
	By        string    `json:"by,omitempty"`
	Reason    string    `json:"reason,omitempty"`
	Since     time.Time `json:"since"`
}

// Node is a node as reported.
type Node struct {
	UID         string            `json:"uid"`
	Name        string            `json:"name"`
	Revision    int64             `json:"revision"`
	Schedulable bool              `json:"schedulable"`
	Ready       bool              `json:"ready"`
	Cordon      *Cordon           `json:"cordon,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	GPUs        int               `json:"gpus"`
	Pods        int               `json:"pods"`
	// Blockers are what a drain would meet, as last seen.
	Blockers []Blocker `json:"blockers,omitempty"`
}

// Device is a GPU as reported.
type Device struct {
	UID      string   `json:"uid"` // canonical: GPU-<lower-case uuid>
	Aliases  []string `json:"aliases,omitempty"`
	NodeUID  string   `json:"node_uid"`
	NodeName string   `json:"node_name"`
	Index    int      `json:"index"`
	Product  string   `json:"product"`
	Revision int64    `json:"revision"`
	Health   string   `json:"health"` // ok, degraded, unusable
	Detail   string   `json:"detail,omitempty"`
	Holders  int      `json:"holders"`
}

// Deployment is a deployment as reported.
type Deployment struct {
	UID       string `json:"uid"`
	Name      string `json:"name"` // namespace/name
	Kind      string `json:"kind"`
	Revision  int64  `json:"revision"`
	Desired   int    `json:"desired"`
	Ready     int    `json:"ready"`
	Updated   int    `json:"updated"`
	Image     string `json:"image,omitempty"`
	Available bool   `json:"available"`
}

// Component is an installed component of the cluster as reported.
type Component struct {
	UID      string `json:"uid"`
	Name     string `json:"name"` // operator, agent, platform, ...
	Version  string `json:"version"`
	Revision int64  `json:"revision"`
	Healthy  bool   `json:"healthy"`
}

// Blocker is something that stands in the way of an operation.
type Blocker struct {
	Code     string `json:"code"` // pdb, unmanaged_pod, local_data, finalizer, node_unreachable, holder, ...
	Resource string `json:"resource"`
	Rule     string `json:"rule"`
	Detail   string `json:"detail"`
}

// EventsRequest is POST /v1/agent/events. N counts up from 1 within a boot
// without holes; a resend is dropped, a hole is recorded.
type EventsRequest struct {
	AgentID string  `json:"agent_id"`
	Boot    string  `json:"boot"`
	Events  []Event `json:"events"`
}

// Event is a fact that the fleet reports.
type Event struct {
	N       int64           `json:"n"`
	Type    string          `json:"type"`
	Subject Subject         `json:"subject"`
	At      time.Time       `json:"at"`
	Detail  json.RawMessage `json:"detail,omitempty"`
}

// Subject is what an event is about.
type Subject struct {
	Kind string `json:"kind"` // node, device, deployment, component, agent, cluster
	UID  string `json:"uid"`
	Name string `json:"name"`
}

// EventsAnswer answers an EventsRequest: the highest N that is stored, and
// which events were refused and why.
type EventsAnswer struct {
	Through int64          `json:"through"`
	Refused []RefusedEvent `json:"refused"`
}

// RefusedEvent names an event that was not taken; its number is used up.
type RefusedEvent struct {
	N      int64  `json:"n"`
	Detail string `json:"detail"`
}

// PreviewRequest is GET /v1/agent/previews/{id}: what a dry run asks.
type PreviewRequest struct {
	ID         string          `json:"id"`
	Type       string          `json:"type"`
	TargetUID  string          `json:"target_uid"`
	TargetName string          `json:"target_name"`
	NodeName   string          `json:"node_name,omitempty"`
	Payload    json.RawMessage `json:"payload"`
}

// PreviewAnswer is POST /v1/agent/previews/{id}.
type PreviewAnswer struct {
	Blockers   []Blocker `json:"blockers"`
	ObservedAt time.Time `json:"observed_at"`
}

// Queue calls of the one-machine engine: POST /v1/agent/queue/receive, delete,
// extend. See package queue/remote.
