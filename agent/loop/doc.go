// Package loop is the agent's engine: it takes doorbells off its cluster's
// queue, claims the operations behind them, carries their steps out through an
// executor, and tells the plane what happened.
//
// One loop per file: heartbeat.go, poll.go, claim.go, renew.go, report.go,
// redeliver.go, inventory.go, events.go. run.go and step.go are the life of one
// assignment, lease.go its right to act, outbox.go what it still has to tell.
//
// The rules that everything here serves:
//
//   - Nothing is issued past the lease or the deadline, both counted on a clock
//     that only runs forward, from the moment the request was sent.
//   - A step with an effect is executed only after the plane acknowledged that
//     it starts.
//   - What happened is told until the plane has it: resent under its number
//     while the lease lives, kept on disk when it does not.
package loop
