// Package device carries out device.reset on Kubernetes.
//
// # The way of a reset
//
//	preflight      a Job on the device's node looks at it: who holds it, MIG, NVLink
//	drain_holders  the pods that hold it are evicted, by the engine that drains of
//	               nodes have (package node), and it is looked at again
//	reset          a Job on the node resets it, once for the run
//	verify         a Job on the node proves it usable
//
// Each Job runs opsplane-host (agent/executor/host) and answers through its
// container's termination message: no right to read logs is needed, and the
// answer is at most 4,096 bytes. It is untrusted: bounded, checked, and believed
// only of the node and the device that were asked about.
//
// # Why the Jobs are privileged
//
// They see the host's processes (hostPID), open its device files, read /dev/kmsg
// and run nvidia-smi as root: a reset is refused to anything less. They get no
// token of the API server. All of it is off unless Config.Enabled.
//
// # Side effects
//
// The reset's Job is of kind (a): it is named by operation, run, generation and
// attempt, so that one lease makes it once, and the host's high-water mark
// refuses an older generation and a second reset in one run, whatever Jobs there
// are. It is rehearsed by a dry run, so that nothing is begun while admission says
// nothing. Evictions are of kind (b), each of one pod's UID. The Jobs that only look
// are harmless when repeated; they carry a random ending, for an old answer is
// none.
//
// A reset whose answer is lost is ambiguous. Its probe reads the answer from the
// Job's pod, of whatever generation of the run; where that is gone a Job that
// changes nothing asks the host's mark. A probe is shorter than such a Job may
// take, so the next one, of whatever generation, reads its answer before it asks
// for another. While the Job of another operation's reset of the device, or of an
// earlier run's, has not ended, it is not known that nothing is under way: the
// preflight and the reset itself wait for it, whatever was probed or said before.
package device
