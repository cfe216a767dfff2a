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
	TypeManualChange    = "manual.change"
	TypeAgentOnline     = "agent.online"
	TypeAgentSilent     = "agent.silent"
	TypeAgentStopping   = "agent.stopping"
	TypeAgentRestarted  = "agent.restarted"
	TypeAgentRemoved    = "agent.removed"
	TypeClusterCreated  = "cluster.created"
	TypeClusterDeleted  = "cluster.deleted"
	TypeDeadLetter      = "queue.dead_letter"
	TypeCancelRequested = "operation.cancel_requested"
	TypeWaiting         = "operation.waiting"
	TypeLateReport      = "operation.late_report"
)

// About is what the catalogue says of a type.
type About struct {
	Type        string
	Severity    string // the default
	Description string
}

// catalogue is the one list of types. A type that is not in it is kept too, as
// Info.
var catalogue = []About{
	{OfPhase(operation.Pending), Info, "An operation was accepted, or a failed one was asked for again."},
	{OfPhase(operation.Dispatched), Info, "A doorbell for the operation is due to its cluster's queue."},
	{OfPhase(operation.Running), Info, "An agent (or the plane) holds the lease and works."},
	{OfPhase(operation.Reconciling), Warning, "What an issued step did is unknown; nothing is issued until it has been read."},
	{OfPhase(operation.Cancelling), Info, "A cancel was accepted and the work is being brought to a consistent end."},
	{OfPhase(operation.Succeeded), Info, "The wanted end state was observed."},
	{OfPhase(operation.Failed), Error, "The operation ended without; detail.cause names the first failure."},
	{OfPhase(operation.Cancelled), Info, "The operation was cancelled."},
	{OfPhase(operation.TimedOut), Error, "The deadline passed before the end state was observed."},
	{TypeCancelRequested, Info, "A person or program asked for the operation's end."},
	{TypeWaiting, Info, "The operation does not go on; detail.reason is the code of what it waits for."},
	{TypeLateReport, Warning, "An agent reported under a lease that it no longer held; nothing was changed."},

	{"node.joined", Info, "A node is in the cluster that was not."},
	{"node.left", Warning, "A node is no longer in the cluster."},
	{"node.ready", Info, "The node's kubelet reports ready."},
	{"node.not_ready", Error, "The node's kubelet is not ready, or cannot be reached."},
	{"node.cordoned", Info, "The node was closed to new pods; detail names the owner."},
	{"node.uncordoned", Info, "The node takes new pods again."},

	{"device.joined", Info, "A device is in the cluster that was not."},
	{"device.left", Warning, "A device is no longer reported."},
	{"device.degraded", Error, "The device works badly or not at all."},
	{"device.xid", Error, "The driver reported an XID of the device; detail has the number, what it means, and whether it is a cause or a victim."},
	{"device.recovered", Info, "The device is healthy again."},

	{"deployment.created", Info, "A deployment is in the cluster that was not."},
	{"deployment.deleted", Info, "A deployment is no longer in the cluster."},
	{"deployment.available", Info, "The deployment has the replicas that it needs."},
	{"deployment.unavailable", Error, "The deployment has fewer replicas than it needs."},
	{"deployment.rolled", Info, "A rollout of the deployment is complete."},
	{"deployment.rollout_stuck", Error, "A rollout of the deployment does not come to its end; detail names the first cause."},
	{"deployment.oom", Error, "A container of the deployment was killed for want of memory."},
	{"deployment.crash_loop", Error, "A container of the deployment keeps ending."},

	{"component.version_changed", Info, "An installed component has another version; detail says from and to."},
	{"component.unhealthy", Error, "An installed component does not work."},
	{"component.recovered", Info, "An installed component works again."},

	{TypeAgentOnline, Info, "The agent was heard of for the first time, or again."},
	{TypeAgentSilent, Error, "The agent was not heard of for longer than it may be."},
	{TypeAgentStopping, Info, "The agent said that it stops."},
	{TypeAgentRestarted, Info, "The agent's process started anew."},
	{TypeAgentRemoved, Info, "The agent was not heard of for so long that it is listed no more."},

	{TypeClusterCreated, Info, "A cluster was added to the fleet."},
	{TypeClusterDeleted, Warning, "A cluster was taken out of the fleet."},
	{TypeManualChange, Warning, "A person recorded a repair made by hand."},
	{TypeDeadLetter, Error, "A message was put aside after too many tries, or because nobody understands it."},
	{TypeGap, Warning, "Reported events were lost; detail has the agent and the numbers that are missing."},

	{"alert.pending", Info, "An alert rule's condition holds, but not for long enough yet."},
	{"alert.firing", Error, "An alert rule's condition holds."},
	{"alert.resolved", Info, "An alert rule's condition no longer holds."},
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
var reservedFamilies = []string{"operation", "stream", "alert", "manual", "queue"}

// reservedTypes are single types that no agent may report.
var reservedTypes = []string{TypeAgentOnline, TypeAgentSilent, TypeAgentStopping, TypeAgentRestarted, TypeAgentRemoved, TypeClusterCreated, TypeClusterDeleted}

// reserved tells whether only the plane tells the type: a report of it would
// pass for the plane's own word.
func reserved(typ string) bool {
	family, _, _ := strings.Cut(typ, ".")
	return slices.Contains(reservedFamilies, family) || slices.Contains(reservedTypes, typ)
}
