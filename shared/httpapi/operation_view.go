package httpapi

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/opsplane/opsplane/shared/admission"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// operationView is one operation as everyone sees it. What is not there is null.
type operationView struct {
	ID                *string                  `json:"id" doc:"null in a dry run"`
	Type              string                   `json:"type"`
	Target            string                   `json:"target"`
	TargetName        string                   `json:"target_name"`
	Cluster           *string                  `json:"cluster"`
	Resources         []string                 `json:"resources" nullable:"false" doc:"Everything that it locks or touches"`
	Actor             operation.Actor          `json:"actor"`
	Reason            string                   `json:"reason"`
	Phase             operation.Phase          `json:"phase" enum:"pending,dispatched,running,reconciling,cancelling,succeeded,failed,cancelled,timed_out"`
	PhaseSince        time.Time                `json:"phase_since"`
	Waiting           *operation.Waiting       `json:"waiting"`
	Cancelable        bool                     `json:"cancelable"`
	Cancel            *operation.CancelRequest `json:"cancel"`
	Deadline          time.Time                `json:"deadline"`
	CreatedAt         time.Time                `json:"created_at"`
	UpdatedAt         time.Time                `json:"updated_at"`
	StartedAt         *time.Time               `json:"started_at"`
	FinishedAt        *time.Time               `json:"finished_at"`
	Progress          *operation.Progress      `json:"progress"`
	Payload           json.RawMessage          `json:"payload"`
	Plan              []stepView               `json:"plan" nullable:"false"`
	Assignments       []operation.Assignment   `json:"assignments" nullable:"false" doc:"Every lease there was, the current one last"`
	Parent            *string                  `json:"parent"`
	Children          *operation.ChildCounts   `json:"children" doc:"Of a plan: how its children stand"`
	RequestID         string                   `json:"request_id"`
	CorrelationID     string                   `json:"correlation_id"`
	RequestedRevision *int64                   `json:"requested_revision"`
	Result            *operation.Result        `json:"result"`
	Links             linksView                `json:"links"`

	Request         operation.Request    `json:"request" doc:"As it was accepted, with the defaults filled in"`
	ContractVersion string               `json:"contract_version"`
	Decisions       []operation.Decision `json:"decisions" nullable:"false"`
	Generation      int64                `json:"generation"`
	Run             int                  `json:"run" doc:"1, and one more for each retry"`
	Locks           []operation.Lock     `json:"locks" nullable:"false"`
	Unsettled       []string             `json:"unsettled" nullable:"false" doc:"Operations that left a resource of this one unsettled"`
	Version         int64                `json:"version" doc:"Grows with each change that can be seen here or in the journal; the ETag"`

	*DryRunView
}

// DryRunView is what a dry run adds. It is exported because JSON's rules for
// embedded fields ask for it.
type DryRunView struct {
	DryRun             bool               `json:"dry_run" required:"false"`
	Blockers           []protocol.Blocker `json:"blockers" required:"false" nullable:"false" doc:"What it would meet"`
	BlockersStatus     string             `json:"blockers_status" required:"false" enum:"live,reported,unknown"`
	BlockersObservedAt *time.Time         `json:"blockers_observed_at" required:"false"`
}

// linksView says where the rest is.
type linksView struct {
	Self     string  `json:"self,omitempty"`
	Journal  string  `json:"journal,omitempty"`
	Steps    string  `json:"steps,omitempty"`
	Commands string  `json:"commands,omitempty"`
	Events   string  `json:"events,omitempty"`
	Children *string `json:"children,omitempty"`
	Parent   *string `json:"parent,omitempty"`
}

// stepView is a step: its plan and where it stands.
type stepView struct {
	ID            string              `json:"id"`
	Name          string              `json:"name"`
	Title         string              `json:"title"`
	Phase         operation.StepPhase `json:"phase" enum:"pending,running,succeeded,failed,skipped,unknown"`
	Resources     []string            `json:"resources" nullable:"false"`
	Required      bool                `json:"required"`
	Interruptible bool                `json:"interruptible"`
	ReplaySafe    bool                `json:"replay_safe"`
	Effect        bool                `json:"effect"`
	Cleanup       bool                `json:"cleanup"`
	Capability    string              `json:"capability"`
	MinVersion    int                 `json:"min_version"`
	Risk          string              `json:"risk"`
	MaxAttempts   int                 `json:"max_attempts"`
	StartedAt     *time.Time          `json:"started_at"`
	FinishedAt    *time.Time          `json:"finished_at"`
	Attempts      []operation.Attempt `json:"attempts" nullable:"false"`
	Progress      *operation.Progress `json:"progress"`
	ErrorCode     *string             `json:"error_code"`
	Detail        *string             `json:"detail"`
	CommandID     *string             `json:"command_id"`
}

func orNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// orEmpty makes a list of nothing an empty one: null means something else.
func orEmpty[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

func viewSteps(op *operation.Operation) []stepView {
	out := make([]stepView, len(op.Spec.Steps))
	for i, p := range op.Spec.Steps {
		var s operation.StepState
		if i < len(op.State.Steps) {
			s = op.State.Steps[i]
		}
		out[i] = stepView{
			ID: p.ID, Name: p.Name, Title: p.Title, Phase: s.Phase, Resources: orEmpty(p.Resources), Required: p.Required,
			Interruptible: p.Interruptible, ReplaySafe: p.ReplaySafe, Effect: p.Effect, Cleanup: p.Cleanup, Capability: p.Capability,
			MinVersion: p.MinVersion, Risk: p.Risk, MaxAttempts: p.MaxAttempts, StartedAt: s.StartedAt, FinishedAt: s.FinishedAt,
			Attempts: orEmpty(s.Attempts), Progress: s.Progress, ErrorCode: orNull(s.ErrorCode), Detail: orNull(s.Detail), CommandID: orNull(s.CommandID),
		}
	}
	return out
}

func viewOperation(op *operation.Operation) operationView {
	sp, s := &op.Spec, &op.State
	self := "/v1/operations/" + sp.ID
	v := operationView{
		ID: orNull(sp.ID), Type: sp.Request.Type, Target: sp.TargetID, TargetName: sp.TargetName, Cluster: orNull(sp.Cluster),
		Resources: orEmpty(sp.Resources), Actor: sp.Actor, Reason: sp.Request.Reason, Phase: s.Phase, PhaseSince: s.PhaseSince,
		Waiting: s.Waiting, Cancelable: operation.Cancelable(sp, s), Cancel: s.Cancel, Deadline: s.Deadline, CreatedAt: sp.CreatedAt,
		UpdatedAt: s.UpdatedAt, StartedAt: s.StartedAt, FinishedAt: s.FinishedAt, Progress: s.Progress, Payload: sp.Request.Payload,
		Plan: viewSteps(op), Assignments: orEmpty(s.Assignments), Parent: orNull(sp.Parent), Children: s.Children,
		RequestID: sp.RequestID, CorrelationID: sp.CorrelationID, RequestedRevision: sp.Request.RequestedRevision, Result: s.Result,
		Links: linksView{Self: self, Journal: self + "/journal", Steps: self + "/steps", Commands: self + "/commands", Events: "/v1/events?subject=" + sp.ID},

		Request: sp.Request, ContractVersion: sp.ContractVersion, Decisions: orEmpty(sp.Decisions), Generation: s.Generation, Run: s.Run,
		Locks: orEmpty(sp.Locks), Unsettled: orEmpty(sp.Unsettled), Version: s.Revision,
	}
	if len(v.Payload) == 0 {
		v.Payload = json.RawMessage("{}")
	}
	if r := s.Result; r != nil && len(r.Details) > 0 { // of before they were checked
		mended := *r
		mended.Details = operation.MendJSON(r.Details)
		v.Result = &mended
	}
	if s.Children != nil {
		v.Links.Children = orNull(self + "/children")
	}
	if sp.Parent != "" {
		v.Links.Parent = orNull("/v1/operations/" + sp.Parent)
	}
	return v
}

// viewDryRun is what an operation would be. It has no id and nothing to link to.
func viewDryRun(a admission.Admitted) operationView {
	op := a.Operation
	op.State.ID, op.State.Run = op.Spec.ID, 1
	op.State.CreatedAt, op.State.UpdatedAt, op.State.PhaseSince = op.Spec.CreatedAt, op.Spec.CreatedAt, op.Spec.CreatedAt
	v := viewOperation(&op)
	v.ID, v.Links = nil, linksView{}
	v.DryRunView = &DryRunView{DryRun: true, Blockers: orEmpty(a.Blockers.Items), BlockersStatus: a.Blockers.Status, BlockersObservedAt: a.Blockers.ObservedAt}
	return v
}

// etag is an operation's revision as an entity tag: what is shown as its version.
func etag(revision int64) string { return fmt.Sprintf("%q", fmt.Sprint(revision)) }
