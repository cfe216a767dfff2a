package executor

import "github.com/opsplane/opsplane/shared/operation"

// advice is what a person can do about a code.
type advice struct {
	retryable bool // a new run of the operation may succeed without other input
	act       string
	text      string
}

// advices is the one table of what executors say to their codes, so that the
// simulated fleet, Kubernetes and a host speak one language.
var advices = map[string]advice{
	"node_gone":             {false, operation.ActCorrectInput, "name a target that exists"},
	"node_replaced":         {false, operation.ActCorrectInput, "the node was made anew and has another id: ask again by its name"},
	"device_gone":           {false, operation.ActCorrectInput, "name a target that exists"},
	"deployment_gone":       {false, operation.ActCorrectInput, "name a target that exists"},
	"component_not_found":   {false, operation.ActCorrectInput, "ask for something that the cluster has and supports"},
	"upgrades_off":          {true, operation.ActRestoreDependency, "turn componentUpgrade on in the values of the agent's chart and name the component there, then retry"},
	"incompatible_version":  {false, operation.ActCorrectInput, "ask for something that the cluster has and supports"},
	"invalid_version":       {false, operation.ActCorrectInput, "ask for something that the cluster has and supports"},
	"invalid_payload":       {false, operation.ActCorrectInput, "ask for something that the cluster has and supports"},
	"not_supported":         {false, operation.ActCorrectInput, "ask for something that the cluster has and supports"},
	"chart_not_found":       {false, operation.ActCorrectInput, "name a version that the chart's repository has"},
	"release_not_found":     {false, operation.ActCorrectInput, "name a component that Helm installed"},
	"values_invalid":        {true, operation.ActRestoreDependency, "make the release's values fit the new chart's schema, then retry"},
	"release_pending":       {true, operation.ActRestoreDependency, "finish or roll back the Helm operation that is under way, then retry"},
	"upgrade_failed":        {true, operation.ActRestoreDependency, "find out why the release did not get ready, then retry"},
	"unmanaged_pod":         {false, operation.ActCorrectInput, "move the pod away, or drain with force: nothing will start it again"},
	"local_data":            {false, operation.ActCorrectInput, "move the data away, or drain with delete_emptydir_data: it is lost with the pod"},
	"cordon_not_owned":      {false, operation.ActCorrectInput, "ask its owner, or use take_over"},
	"two_pdbs":              {true, operation.ActRestoreDependency, "leave one disruption budget on the pod: Kubernetes evicts no pod that has two"},
	"uncordoned_externally": {true, operation.ActRetry, "find out who uncordoned the node, then retry"},
	"pdb_blocked":           {true, operation.ActRestoreDependency, "raise the disruption budget or add replicas, then drain again"},
	"eviction_refused":      {true, operation.ActRestoreDependency, "ask the owner of the admission policy that refuses the eviction, then drain again"},
	"eviction_unanswered":   {true, operation.ActRestoreDependency, "see that every admission webhook that the API server asks about evictions answers, or take it away, then drain again"},
	"deletion_unanswered":   {true, operation.ActRestoreDependency, "see that every admission webhook that the API server asks about deletions of pods answers, or take it away, then drain again"},
	"namespace_terminating": {true, operation.ActRestoreDependency, "find out what keeps the namespace from ending, then drain again"},
	"volume_attached":       {true, operation.ActRestoreDependency, "find out what keeps the volume attached, then drain again"},
	"admission_refused":     {true, operation.ActRestoreDependency, "ask the owner of the admission policy or webhook that refuses it, then retry"},
	"finalizer":             {true, operation.ActRestoreDependency, "remove the finalizer, then drain again"},
	"node_unreachable":      {true, operation.ActRestoreDependency, "bring the node back or delete it, then drain again"},
	"slow_stop":             {true, operation.ActRetry, "drain again with a later deadline or a shorter grace period"},
	"stopping":              {true, operation.ActRetry, "drain again with a later deadline or a shorter grace period"},
	"pods_left":             {true, operation.ActRetry, "drain again with a later deadline or a shorter grace period"},
	"rolling":               {true, operation.ActRestoreDependency, "find out what keeps the new replicas from getting ready, then roll again"},
	"terminating":           {true, operation.ActRetry, "ask again with a later deadline"},
	"stop_overdue":          {true, operation.ActRestoreDependency, "bring the pod's node back or delete the node, then roll again if need be"},
	"on_delete":             {true, operation.ActRestoreDependency, "set the update strategy back to RollingUpdate or delete the pods that are left, then roll again if need be"},
	"partition_raised":      {true, operation.ActRestoreDependency, "lower the partition to let the rest restart, then roll again if need be"},
	"scaled_down":           {true, operation.ActRestoreDependency, "scale it up again: its new pods are of the restarted template"},
	"not_ready":             {true, operation.ActRestoreDependency, "see in the pod that the detail names why its container or readiness gate does not get ready (kubectl describe, its log), then roll again"},
	"scheduling_gated":      {true, operation.ActRestoreDependency, "see to what keeps the scheduling gate that the detail names, as a queue that has no room (Kueue) or a controller that does not run, then roll again if need be"},
	"scheduler_silent":      {true, operation.ActRestoreDependency, "find out why the scheduler that the detail names does nothing, or name one that runs in the pod template, then roll again if need be"},
	"not_started":           {true, operation.ActRestoreDependency, "see on the node that the detail names why its kubelet does not start the pod (kubectl describe of both), then roll again if need be"},
	"undo_incomplete":       {true, operation.ActRestoreDependency, "find out what keeps the pods of before from getting ready"},
	"undo_differs":          {true, operation.ActRestoreDependency, "see to what changes the template, then take it back to the one of before"},
	"controller_silent":     {true, operation.ActRestoreDependency, "find out why the controller that the detail names does nothing, then roll again if need be"},
	"superseded":            {true, operation.ActRetry, "find out who changed the deployment, then roll again if need be"},
	"paused":                {true, operation.ActRestoreDependency, "resume the rollout, then roll again"},
	"in_progress":           {true, operation.ActRetry, "wait until what the detail names has ended, then retry"},
	"interrupted":           {true, operation.ActRetry, "ask again with a later deadline"},
	"device_busy":           {true, operation.ActRestoreDependency, "stop what holds the device, then reset again"},
	"mig_change_pending":    {false, operation.ActEscalate, "reboot the node"},
	"needs_reboot":          {false, operation.ActEscalate, "reboot the node"},
	"nvlink_peers":          {false, operation.ActEscalate, "reset the whole NVLink group together, on an idle node"},

	"eviction_without_effect":    {true, operation.ActRestoreDependency, "see that no mutating webhook or policy makes dry runs of evictions (pods/eviction), then drain again"},
	"progress_deadline_exceeded": {true, operation.ActRestoreDependency, "repair the deployment, then retry"},
	"image_pull_failed":          {true, operation.ActRestoreDependency, "repair the deployment, then retry"},
	"crash_loop":                 {true, operation.ActRestoreDependency, "repair the deployment, then retry"},
	"quota_exceeded":             {true, operation.ActRestoreDependency, "raise the namespace's quota or free some of it, then retry"},
	"unschedulable":              {true, operation.ActRestoreDependency, "make room for the pods, then retry"},
	"config_error":               {true, operation.ActRestoreDependency, "repair the deployment, then retry"},

	"device_pods_unknown":    {false, operation.ActCorrectInput, "install the host helper, or drain the node whole"},
	"orphaned_daemonset_pod": {false, operation.ActCorrectInput, "delete the pod, or drain with force: its DaemonSet is gone"},
	"cordoned_externally":    {true, operation.ActRetry, "find out who cordoned the node, then retry"},
	"create_refused":         {true, operation.ActRestoreDependency, "find out what refuses the pods, then retry"},
	"device_errors":          {false, operation.ActEscalate, "the device has errors after its reset: replace it"},
	"reset_unknown":          {true, operation.ActEscalate, "look at the host whether the device was reset, and settle the step"},
	"host_error":             {true, operation.ActRestoreDependency, "find out what is wrong with the host's side, then retry"},
	"job_refused":            {true, operation.ActRestoreDependency, "find out what refuses the Job's pod, then retry"},
	"job_evicted":            {true, operation.ActRetry, "retry"},
	"mark_newer":             {true, operation.ActRestoreDependency, "find out who wrote the node's annotation opsplane.io/mark, remove it, then retry"},
	"node_not_ready":         {true, operation.ActRestoreDependency, "find out why the node's kubelet is not ready, then drain again"},
	"job_late":               {true, operation.ActRetry, "ask again with a later deadline"},
	"no_pod":                 {true, operation.ActRestoreDependency, "find out why the Job got no pod, then retry"},

	"conversion_failed": {true, operation.ActRestoreDependency, "bring back what answers for the conversion webhook that the detail names (spec.conversion of its CustomResourceDefinition), then retry"},

	"forbidden":       {true, operation.ActRestoreDependency, "give the agent's role the right that the detail names, then retry"},
	"api_unavailable": {true, operation.ActRecoverAgent, "find out why the agent cannot reach its API server, then retry"},
}

// Advised tells whether Action has an advice of its own for a code.
func Advised(code string) bool {
	_, ok := advices[code]
	return ok
}

// Action says what a person can do about a code; one that is not known may be
// tried again.
func Action(code string) (retryable bool, act, text string) {
	a, ok := advices[code]
	if !ok {
		return true, operation.ActRetry, "retry"
	}
	return a.retryable, a.act, a.text
}
