// Package protocol is the language that agents and the plane speak: doorbells
// on the cluster's queue, and the bodies of the agent's calls, one file a call.
// The queue calls of the one-machine engine (POST /v1/agent/queue/receive,
// delete, extend) are in package queue/remote.
//
// Both sides treat what they read as untrusted: sizes, counts and values are
// checked by the receiver. Durations are in milliseconds and are counted by the
// agent on its monotonic clock from the moment it sent the request.
package protocol

// Version is the protocol's version.
const Version = 1

// Limits that the plane enforces and the agent keeps to.
const (
	MaxBatch        = 100       // claims, renewals or reports a call
	MaxBodyBytes    = 4 << 20   // one call
	MaxEvents       = 500       // events a call
	MaxEventBytes   = 32 << 10  // one event's detail
	MaxOutputBytes  = 4 << 10   // one command's output, redacted
	MaxDetailBytes  = 2 << 10   // one detail text
	MaxDetailsBytes = 64 << 10  // a report's Details
	MaxCommands     = 500       // commands a report
	MaxInventory    = 2_000     // objects a call
	MaxPreviewBytes = 128 << 10 // one preview's answer
)
