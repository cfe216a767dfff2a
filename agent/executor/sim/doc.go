// Package sim is a simulated GPU cluster behind executor.Executor: it lets a
// whole Opsplane run, be tested and be measured without a cluster.
//
// Its world (nodes, pods, disruption budgets, GPUs, deployments, components)
// lives in a state folder:
//
//	world.json         the snapshot, replaced by rename
//	effects.jsonl      every change since, one line each, written before it is applied
//	effects-<n>.jsonl  older lines, kept as history
//	world.lock         the lock under which changes are made
//	holders.lock       held shared by each open executor
//
// The folder plays the part of the API server: several agent processes may open
// it at once and see one world. A change is made under the lock, after what
// others wrote has been read, so kill -9 at any point loses no accepted effect
// and repeats none. A world that is marked exclusive has one holder and skips
// the lock on each change.
//
// Each side effect is of one of two kinds (see the comments at the effects):
// conditional on something that carries the operation's generation, or harmless
// when repeated. The world itself refuses what is stale, as an API server and a
// host helper would; ReadEffects and CheckOnce prove it afterwards.
package sim
