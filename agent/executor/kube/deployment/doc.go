// Package deployment carries deployment.roll out on Kubernetes: Deployment,
// StatefulSet, LeaderWorkerSet and DynamoGraphDeployment.
//
// # Restart
//
// A restart is asked for as kubectl does, by an annotation in the pod template,
// so the controller rolls even if nothing else changed. The same patch writes the
// operation's mark into the template and onto the object, and is conditional on
// the resourceVersion: an older generation reads the newer mark or loses. A
// DynamoGraphDeployment has no template of its own; its operator restarts it when
// spec.restart.id changes.
//
// The rights that a roll of the object needs to its end are asked for before it, also
// those that only its wait or its undo use: a restart is not left alone for want of one.
//
// # Waiting
//
// One watch on the object and one on its pods (of a Deployment also one on its
// ReplicaSets, of the two kinds that have no condition for it one on the StatefulSet's
// events) drive the wait. What
// keeps new pods from getting ready is a blocker while the rollout may still come
// through, and the cause when it has failed:
//
//   - a Deployment has failed when its controller says ProgressDeadlineExceeded;
//   - the other kinds have no such deadline: they have failed when no new pod was
//     made or got ready for Bounds.Stall, or for what the object's annotation
//     opsplane.io/progress-deadline-seconds says;
//   - with undo asked for, a cause that no waiting mends (the image cannot be
//     pulled, a container crashes or cannot be configured) fails it after
//     Bounds.Patience, and before the operation's deadline, while there is time to
//     take it back, anything that stands in the way: nothing may be issued later.
//
// A pod whose containers run and that is not ready is a cause where nothing else is
// known, once it had its time to start: see fair and unready.
//
// An API server that answers nothing is a blocker as well, which its pulse tells
// (package cluster): the watches are as silent as those that have nothing to tell.
// Nothing is judged meanwhile.
//
// A restart records its goal: the replicas and the partition that it found. Whoever
// changes them, or the strategy, so that less is renewed holds the rollout (a cause
// as well), and it is not rolled before that is taken back. So it is under a record of an
// older agent that kept no goal, as far as a raised partition shows by itself. A
// controller that does not observe the restart, or leaves something undone while no pod
// stops or gets ready, is a cause after Bounds.Silence.
//
// Pods are told by UIDs: a Deployment's by the ReplicaSets that it controls, a
// StatefulSet's by itself. What is said at the end is counted from them: which are
// restarted, which of before a partition keeps, which have not gone.
//
// # Undo
//
// The undo step of a failed or cancelled operation looks whether the rollout is
// failing. If it is, and nobody else changed the template since, it takes the
// restart's annotations back, and what admission made of the template with them, which
// the record keeps: the controller returns to the pods of the revision before. That the
// template is that of before is observed, by a digest that the record keeps; where
// admission changes the undo as well, it is said. A rollout that was
// merely under way when it was cancelled is left to its controller. A StatefulSet
// that starts its pods in order never leaves a broken pod by itself, so the undo
// deletes the new pods that are not ready, by UID.
// https://kubernetes.io/docs/concepts/workloads/controllers/statefulset/#forced-rollback
//
// Disruption budgets do not count: controllers delete pods of a rollout without
// asking for an eviction.
package deployment
