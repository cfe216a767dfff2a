// Package component carries component.upgrade out on Kubernetes, by the program
// opsplane-upgrade (agent/executor/helm) in a Job.
//
// The agent itself can install nothing: the Job runs under a service account of
// its own, which the cluster's admin binds to what the charts need. Without
// components in its configuration the agent does not offer upgrades at all.
//
// # Once
//
// A Job is named by operation, run and generation, so that one lease makes one.
// Of two Jobs that two leases made one comes through: the program makes the new
// revision of the release only if it directly follows the one that it judged, and
// Helm stores each revision once. Each revision carries operation, run and
// generation, so what an earlier lease did is found there, and an older lease is
// refused.
//
// A Job of another operation may outlive that, while it is asked to stop or while nobody
// knows what became of it. While one may change the release yet, none is made beside it,
// whatever was probed or said before.
//
// # Answers
//
// The program answers in its container's termination message (package answer).
// The probe reads it. While the Job is under way the step is not done, and
// whoever executes it takes the Job up instead of making another; when it ended
// without an answer, a Job that only reads asks Helm's history.
//
// The Job lives on without the agent. An upgrade of the agent itself replaces the
// agent while the Job waits for it to get ready: the next agent finds the Job,
// and the operation ends by observing the new version.
package component
