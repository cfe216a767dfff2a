package event

import (
	"slices"
	"strings"

	"github.com/opsplane/opsplane/shared/operation"
)

// Severities, from the least.
const (
	Info     = "info"
	Warning  = "warning"
	Error    = "error"
	Critical = "critical"
)

// Severities lists the severities from the least.
var Severities = []string{Info, Warning, Error, Critical}

// Types that the plane itself makes.
const (
	TypeGap             = "stream.gap"
	TypeUnreadable      = "stream.unreadable"
	TypeClockSetBack    = "stream.clock_set_back"
	TypeRestored        = "stream.restored"
	TypeRepeated        = "stream.repeated"
	TypeManualChange    = "manual.change"
	TypeAgentOnline     = "agent.online"
	TypeAgentSilent     = "agent.silent"
	TypeAgentStopping   = "agent.stopping"
	TypeAgentRestarted  = "agent.restarted"
	TypeAgentRemoved    = "agent.removed"
	TypeClockSkewed     = "agent.clock_skewed"
	TypeClockOK         = "agent.clock_ok"
	TypeClusterCreated  = "cluster.created"
	TypeClusterDeleted  = "cluster.deleted"
	TypeDeadLetter      = "queue.dead_letter"
	TypeCancelRequested = "operation.cancel_requested"
	TypeWaiting         = "operation.waiting"
	TypeLateReport      = "operation.late_report"
	TypeNotifyFailed    = "notify.failed"
	TypeNotifyDisabled  = "notify.disabled"
	TypeNotifyFailing   = "notify.failing"
	TypeNotifyRecovered = "notify.recovered"
)

// Types of what agents tell of cordons, which belong to operations (ToldOperation).
const (
	TypeNodeCordoned   = "node.cordoned"
	TypeNodeUncordoned = "node.uncordoned"
)

// About is what the catalogue says of a type.
type About struct {
	Type        string
	Severity    string // the default
	Description string
	// Detail is an empty value of what the detail holds; nil: nothing is said of
	// it.
	Detail any
}

// By tells who tells events of the type: "plane" or "agent".
func (a About) By() string {
	if reserved(a.Type) {
		return "plane"
	}
	return "agent"
}

// catalogue is the one list of types. A type that is not in it is kept too, as
// Info.
var catalogue = []About{
	{OfPhase(operation.Pending), Info, "An operation was accepted, or a failed one was asked for again.", OperationDetail{}},
	{OfPhase(operation.Dispatched), Info, "A doorbell for the operation is due to its cluster's queue.", OperationDetail{}},
	{OfPhase(operation.Running), Info, "An agent (or the plane) holds the lease and works.", OperationDetail{}},
	{OfPhase(operation.Reconciling), Warning, "What an issued step did is unknown; nothing is issued until it has been read.", OperationDetail{}},
	{OfPhase(operation.Cancelling), Info, "A cancel was accepted and the work is being brought to a consistent end.", OperationDetail{}},
	{OfPhase(operation.Succeeded), Info, "The wanted end state was observed.", OperationDetail{}},
	{OfPhase(operation.Failed), Error, "The operation ended without; detail.cause names the first failure.", OperationDetail{}},
	{OfPhase(operation.Cancelled), Info, "The operation was cancelled.", OperationDetail{}},
	{OfPhase(operation.TimedOut), Error, "The deadline passed before the end state was observed.", OperationDetail{}},
	{TypeCancelRequested, Info, "A person or program asked for the operation's end.", OperationDetail{}},
	{TypeWaiting, Info, "The operation does not go on; detail.reason is the code of what it waits for.", OperationDetail{}},
	{TypeLateReport, Warning, "An agent reported under a lease that it no longer held; nothing was changed.", OperationDetail{}},

	{"node.joined", Info, "A node is in the cluster that was not.", NodeDetail{}},
	{"node.left", Warning, "A node is no longer in the cluster.", NodeDetail{}},
	{"node.ready", Info, "The node's kubelet reports ready.", NodeDetail{}},
	{"node.not_ready", Error, "The node's kubelet is not ready, or cannot be reached.", NodeDetail{}},
	{TypeNodeCordoned, Info, "The node was closed to new pods; detail names the owner.", CordonDetail{}},
	{TypeNodeUncordoned, Info, "The node takes new pods again; detail names who lifted the cordon, and whose it was.", CordonDetail{}},
	{"node.gpus_unallocatable", Error, "The node has GPUs that it gives to no pod, for a minute now, and nobody tells which.", GPUsDetail{}},
	{"node.gpus_allocatable", Info, "The node gives pods all of its GPUs again, or which ones it keeps back is known.", GPUsDetail{}},

	{"device.joined", Info, "A device is in the cluster that was not.", DeviceDetail{}},
	{"device.left", Warning, "A device is no longer reported.", DeviceDetail{}},
	{"device.degraded", Error, "The device works badly or not at all.", DeviceDetail{}},
	{"device.xid", Error, "The driver reported an XID of the device; detail has the number, what it means, and whether it is a cause or a victim.", XIDDetail{}},
	{"device.recovered", Info, "The device is healthy again.", DeviceDetail{}},

	{"deployment.created", Info, "A deployment is in the cluster that was not.", DeploymentDetail{}},
	{"deployment.deleted", Info, "A deployment is no longer in the cluster.", DeploymentDetail{}},
	{"deployment.available", Info, "The deployment has the replicas that it needs.", DeploymentDetail{}},
	{"deployment.unavailable", Error, "The deployment has fewer replicas than it needs.", DeploymentDetail{}},
	{"deployment.rolled", Info, "A rollout of the deployment is complete.", DeploymentDetail{}},
	{"deployment.rollout_stuck", Error, "A rollout of the deployment does not come to its end; detail names the first cause.", DeploymentDetail{}},
	{"deployment.oom", Error, "A container of the deployment was killed for want of memory.", ContainerDetail{}},
	{"deployment.crash_loop", Error, "A container of the deployment keeps ending.", ContainerDetail{}},

	{"component.version_changed", Info, "An installed component has another version; detail says from and to.", VersionDetail{}},
	{"component.unhealthy", Error, "An installed component does not work.", ComponentDetail{}},
	{"component.recovered", Info, "An installed component works again.", ComponentDetail{}},

	{TypeAgentOnline, Info, "The agent was heard of for the first time, or again.", AgentOnlineDetail{}},
	{TypeAgentSilent, Error, "The agent was not heard of for longer than it may be.", AgentSilentDetail{}},
	{TypeAgentStopping, Info, "The agent said that it stops; it will not be called silent.", AgentStoppingDetail{}},
	{TypeAgentRestarted, Info, "The agent's process is another one, and the one before did not say that it stops.", AgentRestartedDetail{}},
	{TypeClockSkewed, Warning, "The agent's wall clock is far from the plane's: the times of its events are wrong.", ClockDetail{}},
	{TypeClockOK, Info, "The agent's wall clock is near the plane's again.", ClockDetail{}},
	{TypeAgentRemoved, Info, "The agent was not heard of for so long that it is listed no more.", AgentSilentDetail{}},

	{TypeClusterCreated, Info, "A cluster was added to the fleet.", ClusterDetail{}},
	{TypeClusterDeleted, Warning, "A cluster was taken out of the fleet.", ClusterDetail{}},
	{TypeManualChange, Warning, "A person recorded a repair made by hand.", ManualChangeDetail{}},
	{TypeDeadLetter, Error, "A message was put aside after too many tries, or because nobody understands it.", DeadLetterDetail{}},
	{TypeGap, Warning, "Reported events were lost, or refused; detail has the agent and the numbers that are missing.", GapDetail{}},
	{TypeUnreadable, Error, "Stored events cannot be read; this stands in their place, and detail has their sequences.", UnreadableDetail{}},
	{TypeClockSetBack, Error, "A clock of the plane was ahead and had pushed the stream's there, which goes on from the plane's again.", SetBackDetail{}},
	{TypeRestored, Warning, "The plane goes on from a backup: events that were told behind it are in the record no more; this stands for their sequences.", RestoredDetail{}},
	{TypeRepeated, Warning, "An event stood here that was in the streams already; a restore or an export left it out, as it was told to.", RepeatedDetail{}},

	{"alert.pending", Info, "An alert rule's condition holds, but not for long enough yet.", AlertDetail{}},
	{"alert.firing", Error, "An alert rule's condition holds.", AlertDetail{}},
	{"alert.flapping", Error, "An alert fires and resolves again and again; it is told no more until it is steady.", AlertDetail{}},
	{"alert.resolved", Info, "An alert rule's condition no longer holds.", AlertDetail{}},
	{"alert.silenced", Info, "A silence began for an alert that fires; it is told no more.", AlertDetail{}},
	{"alert.unsilenced", Info, "No silence is in force any more for an alert that fires; that it fires is told again.", AlertDetail{}},
	{"alert.inhibited", Info, "An alert that keeps this one, which fires, from being told began to fire; it is told no more.", AlertDetail{}},
	{"alert.acknowledged", Info, "A person took an alert on.", AlertAcknowledgedDetail{}},
	{"alert.groups_folded", Warning, "A rule has so many groups in a stream that those over the limit are one.", GroupsFoldedDetail{}},
	{TypeNotifyFailed, Error, "A receiver could not be told of an alert, and nothing more is tried; detail names the delivery.", NotifyFailedDetail{}},
	{TypeNotifyDisabled, Error, "A receiver answered that it is gone, and is told no more until it is enabled.", NotifyDisabledDetail{}},
	{TypeNotifyFailing, Error, "A receiver has taken nothing for ten minutes, by any of its URLs, and is tried on.", NotifyFailingDetail{}},
	{TypeNotifyRecovered, Info, "A receiver that had taken nothing for ten minutes answers again.", NotifyRecoveredDetail{}},
}

var byType = func() map[string]About {
	m := make(map[string]About, len(catalogue))
	for _, a := range catalogue {
		m[a.Type] = a
	}
	return m
}()

// OfPhase is the type of the event that an operation came into the phase.
func OfPhase(p operation.Phase) string { return "operation." + string(p) }

// Catalogue returns the known types, in the order of the docs.
func Catalogue() []About { return slices.Clone(catalogue) }

// Lookup returns what the catalogue says of a type.
func Lookup(typ string) (About, bool) {
	a, ok := byType[typ]
	return a, ok
}

// SeverityOf returns a type's default severity.
func SeverityOf(typ string) string {
	if a, ok := byType[typ]; ok {
		return a.Severity
	}
	return Info
}

// reservedFamilies are the first words of types that no agent may report.
var reservedFamilies = []string{"operation", "stream", "alert", "rule", "manual", "queue", "notify"}

// reservedTypes are single types that no agent may report.
var reservedTypes = []string{TypeAgentOnline, TypeAgentSilent, TypeAgentStopping, TypeAgentRestarted, TypeAgentRemoved, TypeClockSkewed, TypeClockOK, TypeClusterCreated, TypeClusterDeleted}

// reserved tells whether only the plane tells the type: a report of it would
// pass for the plane's own word.
func reserved(typ string) bool {
	family, _, _ := strings.Cut(typ, ".")
	return slices.Contains(reservedFamilies, family) || slices.Contains(reservedTypes, typ)
}
