package event

import (
	"time"

	"github.com/opsplane/opsplane/shared/operation"
)

// What the details of the catalogue's types hold. The catalogue names one of
// these for each type; the schemas that people read are made from them, and the
// tests hold what the plane and the simulated agent tell to them. A detail may
// hold more than its type here says: newer agents tell more.
//
// What an agent may leave out is omitempty.

// OperationDetail is the detail of an operation's transition.
type OperationDetail struct {
	Operation  string           `json:"operation" doc:"The operation's id"`
	Type       string           `json:"type" doc:"The operation's type"`
	Phase      operation.Phase  `json:"phase,omitempty" doc:"The phase that it came into"`
	From       operation.Phase  `json:"from,omitempty" doc:"The phase that it left"`
	Reason     string           `json:"reason,omitempty" doc:"Of operation.waiting the code of what it waits for; else a code of why"`
	Text       string           `json:"detail,omitempty"`
	Generation int64            `json:"generation,omitempty" doc:"Of the lease; 0 before the first"`
	Seq        int64            `json:"journal_seq" doc:"The number of the journal entry that this event is"`
	Target     string           `json:"target" doc:"Id of what the operation acts on"`
	TargetName string           `json:"target_name,omitempty"`
	TargetUID  string           `json:"target_uid,omitempty" doc:"The target's UID in its cluster"`
	Node       string           `json:"node,omitempty" doc:"Name of the node that the target is on"`
	Resources  []string         `json:"resources" nullable:"false" doc:"Ids of all that the operation touches, at most 2,000"`
	LeftOff    int              `json:"resources_left_off,omitempty" doc:"How many more there are"`
	Parent     string           `json:"parent,omitempty" doc:"Id of the plan that it belongs to"`
	Cause      *operation.Cause `json:"cause,omitempty" doc:"The first causal failure"`
	ReportGen  int64            `json:"report_generation,omitempty" doc:"Of operation.late_report: the generation that was reported under"`
}

// NodeDetail is the detail of what happens to a node.
type NodeDetail struct {
	Ready       *bool  `json:"ready,omitempty"`
	Unreachable *bool  `json:"unreachable,omitempty" doc:"The kubelet cannot be reached, so that nothing is known of the node"`
	Reason      string `json:"reason,omitempty"`
}

// CordonDetail is the detail of node.cordoned and node.uncordoned. Owner, Operation,
// By and Reason are of whoever did what the event tells: placed the cordon, or lifted
// it.
type CordonDetail struct {
	Owner     string        `json:"owner,omitempty" doc:"opsplane, or external: somebody else"`
	Operation string        `json:"operation,omitempty" doc:"Id of the operation that placed the cordon, or of the one that lifted it"`
	By        string        `json:"by,omitempty" doc:"Who that was: whose operation it is; of an external cordon the field manager. Absent where nobody knows, as of an external lift on Kubernetes: its API server keeps that in its audit log alone"`
	Reason    string        `json:"reason,omitempty"`
	Was       *LiftedCordon `json:"was,omitempty" doc:"Of node.uncordoned: the cordon that was lifted, and who had placed it"`
}

// LiftedCordon is a cordon that is no more.
type LiftedCordon struct {
	Owner     string     `json:"owner,omitempty" doc:"Who had placed it: opsplane, or external"`
	Operation string     `json:"operation,omitempty" doc:"Id of the operation that had placed it"`
	By        string     `json:"by,omitempty"`
	Reason    string     `json:"reason,omitempty"`
	Since     *time.Time `json:"since,omitempty" doc:"When it was placed, by the clock of whoever did"`
}

// GPUsDetail is the detail of node.gpus_unallocatable and node.gpus_allocatable.
type GPUsDetail struct {
	Resources []GPUResource `json:"resources" nullable:"false" doc:"The resources of which the node gives pods fewer than it has; of node.gpus_allocatable those that were so"`
	Missing   int64         `json:"missing,omitempty" doc:"How many it keeps back in all"`
	Text      string        `json:"detail,omitempty" doc:"What is known of it, in words"`
	Standing  bool          `json:"standing,omitempty" doc:"Of node.gpus_unallocatable: an agent found it so when it started. When it began is not known, and an agent before it may have told of it already"`
}

// GPUResource is how a node offers its GPUs to pods.
type GPUResource struct {
	Resource    string `json:"resource" doc:"Its name in Kubernetes, such as nvidia.com/gpu"`
	Capacity    int64  `json:"capacity" doc:"How many there are, healthy or not"`
	Allocatable int64  `json:"allocatable" doc:"How many pods can be given"`
}

// DeviceDetail is the detail of what happens to a device.
type DeviceDetail struct {
	Node    string `json:"node,omitempty" doc:"Name of its node"`
	NodeUID string `json:"node_uid,omitempty"`
	Index   *int   `json:"index,omitempty" doc:"Its place on the node"`
	Health  string `json:"health,omitempty" doc:"ok, or what it is instead: degraded, unusable, or unknown"`
	Detail  string `json:"detail,omitempty"`
}

// XIDDetail is the detail of device.xid: one kind of error that the driver
// reported of a device (NVIDIA, "Xid Errors"), repeats folded.
type XIDDetail struct {
	Node     string     `json:"node,omitempty" doc:"Name of its node"`
	NodeUID  string     `json:"node_uid,omitempty"`
	XID      int        `json:"xid" doc:"The number"`
	Class    string     `json:"class,omitempty" doc:"What kind of error it is"`
	Text     string     `json:"text,omitempty" doc:"What the driver said, without secrets"`
	VictimOf int        `json:"victim_of,omitempty" doc:"The XID in whose wake it came; without one it is a cause"`
	Count    int        `json:"count,omitempty" doc:"How often, since first"`
	First    *time.Time `json:"first,omitempty"`
	Last     *time.Time `json:"last,omitempty"`
}

// DeploymentDetail is the detail of what becomes of a deployment.
type DeploymentDetail struct {
	Kind     string `json:"kind,omitempty" doc:"Its kind in Kubernetes"`
	Desired  *int   `json:"desired,omitempty" doc:"Replicas wanted"`
	Ready    *int   `json:"ready,omitempty" doc:"Replicas that are ready"`
	Updated  *int   `json:"updated,omitempty" doc:"Replicas of the newest revision"`
	Image    string `json:"image,omitempty"`
	Revision string `json:"revision,omitempty"`
	Reason   string `json:"reason,omitempty" doc:"Of deployment.rollout_stuck: the first cause"`
}

// ContainerDetail is the detail of what happens again and again to a deployment's
// containers: repeats within a minute or so are one event with their count.
type ContainerDetail struct {
	Count     int    `json:"count,omitempty" doc:"How often since it was last told"`
	Pod       string `json:"pod,omitempty" doc:"namespace/name of the last one"`
	PodUID    string `json:"pod_uid,omitempty"`
	Container string `json:"container,omitempty"`
	Restarts  *int   `json:"restarts,omitempty" doc:"Of that container"`
	Node      string `json:"node,omitempty" doc:"Name of the pod's node"`
	ExitCode  *int   `json:"exit_code,omitempty"`
}

// VersionDetail is the detail of component.version_changed.
type VersionDetail struct {
	From string `json:"from" doc:"Empty when it was not installed"`
	To   string `json:"to" doc:"Empty when it is no longer"`
}

// ComponentDetail is the detail of a component's health.
type ComponentDetail struct {
	Version     string   `json:"version,omitempty"`
	Unavailable []string `json:"unavailable,omitempty" nullable:"false" doc:"Its parts that do not work, at most 16"`
}

// AgentOnlineDetail is the detail of agent.online.
type AgentOnlineDetail struct {
	Version string `json:"version"`
	Boot    string `json:"boot" doc:"Names the run of the agent's process"`
}

// AgentStoppingDetail is the detail of agent.stopping.
type AgentStoppingDetail struct {
	Version string `json:"version"`
	Boot    string `json:"boot" doc:"Names the run of the agent's process"`
	Leases  int    `json:"leases" doc:"Operations that it held when it said so; it hands them back, or finishes them"`
}

// AgentRestartedDetail is the detail of agent.restarted.
type AgentRestartedDetail struct {
	Version  string    `json:"version"`
	Boot     string    `json:"boot" doc:"Names the run of the agent's process"`
	Before   string    `json:"before" doc:"The run that ended without a word"`
	LastSeen time.Time `json:"last_seen" doc:"When that one was heard of last"`
}

// AgentSilentDetail is the detail of agent.silent and agent.removed.
type AgentSilentDetail struct {
	LastSeen  time.Time `json:"last_seen"`
	Boot      string    `json:"boot"`
	SilentFor string    `json:"silent_for,omitempty" doc:"Of agent.removed: the age after which agents are forgotten"`
}

// ClockDetail is the detail of agent.clock_skewed and agent.clock_ok.
type ClockDetail struct {
	SkewMS int64  `json:"skew_ms" doc:"How far the agent's wall clock is ahead of the plane's, in milliseconds"`
	Boot   string `json:"boot"`
}

// AlertDetail is the detail of an alert's transitions: the alert as it stood. Of
// alert.groups_folded it is one that stands for all groups over the limit and has
// no id, state and history.
type AlertDetail struct {
	ID           string            `json:"id"`
	Rule         string            `json:"rule"`
	RuleID       string            `json:"rule_id"`
	RuleVersion  int64             `json:"rule_version"`
	Cluster      string            `json:"cluster,omitempty" doc:"The cluster's id; absent: the plane"`
	Stream       string            `json:"stream"`
	Group        map[string]string `json:"group" doc:"The rule's keys with their values"`
	Folded       bool              `json:"folded,omitempty" doc:"It stands for all groups over the limit"`
	State        string            `json:"state" doc:"pending, firing or resolved"`
	Severity     string            `json:"severity"`
	Labels       map[string]string `json:"labels,omitempty"`
	Summary      string            `json:"summary,omitempty"`
	Runbook      string            `json:"runbook,omitempty"`
	Since        time.Time         `json:"since" doc:"When the condition began to hold"`
	FiredAt      *time.Time        `json:"fired_at,omitempty"`
	ResolvedAt   *time.Time        `json:"resolved_at,omitempty"`
	Reason       string            `json:"reason" doc:"Code of why it came into the state"`
	Last         time.Time         `json:"last" doc:"When the last match was received"`
	Count        int64             `json:"count" doc:"Matches"`
	Evidence     []AlertEvidence   `json:"evidence" doc:"The first events that matched and the last ones, at most five each"`
	Flapping     bool              `json:"flapping,omitempty"`
	InhibitedBy  string            `json:"inhibited_by,omitempty" doc:"Id of the alert that keeps it from being told"`
	SilencedBy   string            `json:"silenced_by,omitempty" doc:"Id of the silence that does"`
	Acknowledged *AlertAck         `json:"acknowledged,omitempty"`
	Subject      Subject           `json:"subject" doc:"What the event that set it off was about"`
	Operation    string            `json:"operation,omitempty" doc:"Id of that event's operation"`
	Node         string            `json:"node,omitempty" doc:"Name of the node that that event happened on, where it tells"`
	NodeUID      string            `json:"node_uid,omitempty" doc:"That node's own identity in its cluster, where the event tells"`
	LastSubject  Subject           `json:"last_subject" doc:"What the last event that matched was about"`
	LastOp       string            `json:"last_operation,omitempty" doc:"Id of that event's operation"`
	History      []AlertStep       `json:"history" doc:"How it came into its states, the first and the last ones"`
	GroupKey     string            `json:"group_key" doc:"Tells its group from the rule's others"`
	Silence      string            `json:"silence,omitempty" doc:"Of alert.silenced and alert.unsilenced: id of the silence"`
}

// GroupsFoldedDetail is the detail of alert.groups_folded.
type GroupsFoldedDetail struct {
	Rule        string            `json:"rule"`
	RuleID      string            `json:"rule_id"`
	RuleVersion int64             `json:"rule_version"`
	Cluster     string            `json:"cluster,omitempty" doc:"The cluster's id; absent: the plane"`
	Stream      string            `json:"stream"`
	Group       map[string]string `json:"group" doc:"The key of the one group that stands for those over the limit"`
	Groups      int64             `json:"groups" doc:"How many groups there are then, that one among them"`
}

// AlertEvidence is an event by which an alert came about.
type AlertEvidence struct {
	Event    string    `json:"event" doc:"Its id"`
	Type     string    `json:"type"`
	Sequence int64     `json:"sequence"`
	At       time.Time `json:"at" doc:"When it happened"`
}

// AlertStep is a line of an alert's history.
type AlertStep struct {
	At     time.Time        `json:"at"`
	State  string           `json:"state"`
	Reason string           `json:"reason"`
	By     *operation.Actor `json:"by,omitempty"`
	Note   string           `json:"note,omitempty"`
}

// AlertAck says who took an alert on.
type AlertAck struct {
	By   operation.Actor `json:"by"`
	At   time.Time       `json:"at"`
	Note string          `json:"note,omitempty"`
}

// AlertAcknowledgedDetail is the detail of alert.acknowledged; the event's actor
// took the alert on.
type AlertAcknowledgedDetail struct {
	ID    string            `json:"id" doc:"The alert's id"`
	Rule  string            `json:"rule"`
	Group map[string]string `json:"group" doc:"The rule's keys with their values"`
	Note  string            `json:"note"`
}

// ClusterDetail is the detail of cluster.created and cluster.deleted.
type ClusterDetail struct {
	Cluster string `json:"cluster" doc:"The cluster's id"`
	Name    string `json:"name"`
}

// ManualChangeDetail is the detail of manual.change.
type ManualChangeDetail struct {
	Change     string `json:"change" doc:"Id of the record"`
	Target     string `json:"target" doc:"Id of what was changed"`
	TargetName string `json:"target_name"`
	Reason     string `json:"reason"`
	Runbook    string `json:"runbook"`
}

// DeadLetterDetail is the detail of queue.dead_letter.
type DeadLetterDetail struct {
	DeadLetter string `json:"dead_letter" doc:"Id, at /v1/dead-letters"`
	Reason     string `json:"reason"`
	Operation  string `json:"operation" doc:"Id of the operation that it was about; empty: of none"`
}

// NotifyFailedDetail is the detail of notify.failed.
type NotifyFailedDetail struct {
	Delivery string `json:"delivery" doc:"Id, at /v1/receivers/RECEIVER/deliveries"`
	Event    string `json:"event" doc:"Id of the event that was to be told"`
	Alert    string `json:"alert" doc:"Id of its alert"`
	Rule     string `json:"rule"`
	Status   int    `json:"status" doc:"HTTP status of the last try; 0: there was no answer"`
	Error    string `json:"error" doc:"Of the last try"`
	Tries    int    `json:"tries"`
}

// NotifyDisabledDetail is the detail of notify.disabled.
type NotifyDisabledDetail struct {
	Reason string `json:"reason"`
}

// NotifyFailingDetail is the detail of notify.failing.
type NotifyFailingDetail struct {
	Since time.Time `json:"since" doc:"When the first try failed, since it last took anything"`
	Error string    `json:"error" doc:"Of the last try"`
}

// NotifyRecoveredDetail is the detail of notify.recovered.
type NotifyRecoveredDetail struct {
	Since    time.Time `json:"since" doc:"That of notify.failing"`
	FailedMS int64     `json:"failed_ms" doc:"For how long it took nothing, in milliseconds"`
}

// GapDetail is the detail of stream.gap.
type GapDetail struct {
	Agent   string `json:"agent" doc:"Id of the agent that reported"`
	Boot    string `json:"boot" doc:"The run of its process that the numbers are of"`
	From    int64  `json:"from" doc:"The first number that is missing"`
	Through int64  `json:"through" doc:"The last one"`
	Refused string `json:"refused,omitempty" doc:"Why the plane did not take them; absent: they were lost on the way"`
}

// UnreadableDetail is the detail of stream.unreadable.
type UnreadableDetail struct {
	From    int64  `json:"from" doc:"The sequence of the first event that cannot be read"`
	Through int64  `json:"through" doc:"That of the last one, which is this event's own"`
	Reason  string `json:"reason"`
}

// SetBackDetail is the detail of stream.clock_set_back.
type SetBackDetail struct {
	From  time.Time `json:"from" doc:"Where the stream's clock was"`
	To    time.Time `json:"to" doc:"Where it goes on, by the plane's clock"`
	Ahead int64     `json:"ahead_ms" doc:"How far it was ahead, in milliseconds"`
	// Judged is not From where only alerts, which are not judged, were told ahead.
	Judged time.Time `json:"judged" doc:"How far rules had judged it by then: timers that were due later have not come"`
}

// RepeatedDetail is the detail of stream.repeated.
type RepeatedDetail struct {
	Event    string `json:"event" doc:"Id of the event that stood here"`
	Type     string `json:"event_type" doc:"Its type"`
	Stream   string `json:"first_stream" doc:"The stream that has it"`
	Sequence int64  `json:"first_sequence" doc:"Where it is there"`
}

// RestoredDetail is the detail of stream.restored.
type RestoredDetail struct {
	From    int64 `json:"from" doc:"The first sequence behind the backup: what was told by it, and on, is no more"`
	Through int64 `json:"through" doc:"The last that this stands for, which is its own"`
}
