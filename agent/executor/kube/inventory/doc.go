// Package inventory watches a cluster and tells what is in it: the nodes, GPUs,
// deployments and components that the plane lists, and what happens to them.
//
// The way of a fact: a source (one resource, listed and watched by a client-go
// reflector) hands each object to a feed, which strips it to the few fields that
// are reported before it is kept; the feed compares it with what it had and calls
// the model; the model marks what changed and writes down what happened. Watch
// takes both from the model, Snapshot all of it, under one lock, so they cannot
// contradict each other.
//
// Facts of a source's first list are no events: a thing has "joined" only if it
// came after. A list that is read again (the watch broke, the server restarted)
// is compared with what is known, so a transition is told once. While no Watch
// runs (another agent reports) events are kept for a short time only: whoever
// takes over from a reporter that died goes on from there, at the price that a
// fact of those seconds may be told by both.
//
// # Revisions
//
// What is reported of a node comes from several objects (the node, its pods, the
// disruption budgets), so no single resourceVersion is its revision. The model
// keeps one clock: the highest resourceVersion that any source has shown, times
// 1,024, plus a count of the changes since. An object's revision is the clock
// when it last changed, and at least the clock when this agent began to report: it
// then asks the API server for its version, which is newer than all that the agent
// before it can have read. So a revision only grows, also from one agent to the
// next. Resource versions are comparable integers
// within one resource since Kubernetes 1.35 (KEP-5504); that those of all
// resources of one API server come from one counter is how its storage works
// (etcd's revision), and older servers work alike. An etcd that is restored from
// a backup must have its revision bumped (etcdutl snapshot restore
// --bump-revision), which all caches of a cluster need.
//
// # Memory
//
// No pod or node object is kept, and lists are read in pages. What is kept of 5,000
// nodes with 40,000 GPUs and 40,000 pods is about 60 MB, and the heap stays under
// 120 MB while they are read, of the 300 MB that the agent may use; TestMemory
// measures both.
package inventory
