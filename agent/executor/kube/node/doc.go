// Package node carries out node.cordon, node.uncordon and node.drain on a real
// Kubernetes API server.
//
// # The way of a drain
//
//	preflight  one list of the node's pods, judged: what no drain with this payload
//	           gets past is refused before anything is touched; evictions are
//	           rehearsed, so that admission has its say before as well
//	cordon     a patch of the node, conditional on its resourceVersion, that leaves
//	           the cordon's owner, the mark of the lease and the plan on the node; a dry
//	           run of the drain rehearses it, the drain has its own answer at once
//	evict      evictions in parallel, each naming one planned pod by UID; one watch
//	wait       until each planned pod is gone, and what serves and detaches with it
//	confirm    node and pods read anew: gone by UID, node cordoned
//
// One function judges a pod (judge) and one says which disruption budget holds it
// (rule): preflight, the dry run and the evictions cannot disagree.
//
// Other operations evict chosen pods by the same engine (Drains, Chosen): they meet
// the same rules, in the same words, and share what the budgets allow.
//
// # Side effects
//
// Patches of the node are of kind (a): they carry a resourceVersion that was read
// before the fence and the mark of the lease, so an older lease is refused by the
// API server. A lease with a generation above 1 writes its mark on the node before
// it relies on a cordon that it found there, which ends the right of any patch
// that an older holder still has in flight. Evictions and deletions are of kind
// (b): each names the UID of one planned pod. One that lands after its lease does what
// the next lease would do, so an eviction that went unanswered may take longer than
// calls are given, until the deadline at most: webhooks may take 30 s. So may one after
// which there would be no time for a second, and a deletion in the force window.
//
// # What a successor knows
//
// The plan is kept on the node, in the annotation opsplane.io/drain, written by
// the same patch as the cordon: it costs no request. A successor needs it to tell
// planned pods from those that came after (a pod that tolerates the cordon may
// come at any time) and to count what is gone already; that an eviction was
// accepted is seen on the pod itself, in its deletionTimestamp. Where the
// annotation is lost, every pod that is on the node counts as planned: more is
// drained and never less.
//
// # Order
//
// By default pods go in waves, those of the lowest priority first, and a wave begins
// when the one before is gone: what others lean on stops last. So a low pod that its
// budget holds keeps the rest of the node at work, and a drain that cannot end
// disturbs as little as it can. The agent's own pod is a wave of its own, the last;
// when it is all that is left, the lease is handed back once, for another agent.
//
// # Pods that come back
//
// A pod that came after the plan is evicted as well: the scheduler may not have known of
// the cordon yet. Where more come of one controller than were there, or they name the
// node, evictions bring nothing to an end: they back off, and the cause is told (comeback).
//
// # Few requests
//
// A disruption budget's status says what an eviction would be answered, so one that
// would be refused is not asked for: the budgets are watched once for all drains,
// and what they allow is shared out among them. A 429 is left to races with others.
// Pods are listed once, judged, and watched from there; what takes long (the node's
// own fate, endpoints) is watched only when the drain does. Drains of eight pods
// take sixteen requests each, of which the rehearsal of eviction is one.
//
// # What nobody says
//
// A watch over a connection that is dead is as silent as one that has nothing to
// tell. So a drain that waits listens to the API server's pulse (package cluster):
// within some 10 s it says that it does not answer, instead of naming a kubelet that
// nobody can hear.
//
// # Why the judging is our own
//
// The filters of k8s.io/kubectl/pkg/drain judge well, and the order of judge is
// theirs. But they pull the whole of kubectl's command line in: a stripped agent
// grew from 27 to 64 MB. They also answer in one text for all pods, where an
// operation needs a code for each.
package node
