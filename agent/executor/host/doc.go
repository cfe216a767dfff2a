// Package host is the executor of one GPU host without Kubernetes: the agent runs
// there as a service (infra/systemd), polls the same queue and carries out what
// makes sense on a single host.
//
//	device.reset           as on Kubernetes, but that nothing is drained: there are
//	                       no pods, and who runs the processes is not known here
//	node.cordon, uncordon  a file on the host that says that nobody should place
//	                       work here. The inventory shows it; nothing enforces it,
//	                       and results say so
//	node.drain             refused: processes are not evicted
//
// What asks the driver is a program of its own, opsplane-host, which the agent
// starts for each question: the agent stays free of C, and a driver call that
// hangs does not hang it. The program's high-water mark fences resets (see package
// mark), and the cordon's file carries the mark of the lease that wrote it: both
// are effects of kind (a).
//
// A host is a cluster of its own to the plane: one queue, one agent. Where several
// hosts' agents shared one, an operation could reach the wrong host; it would be
// refused there.
package host
