// Package queue is the seam for doorbells and wake-ups: small messages that
// arrive at least once, in no promised order, some of them late.
//
// Engines: SQLite, with goqite's table, on one machine (with package remote as the agent's
// long-poll client of it) and SQS on AWS. The record in the ledger is always
// the truth; a message only rings.
package queue

import (
	"context"
	"errors"
	"time"
)

// Limits of the seam, the smaller of what the engines allow.
const (
	MaxBodyBytes = 64 << 10         // SQS allows 1 MiB; doorbells are under 1 KiB
	MaxBatch     = 10               // messages a send, receive, delete or extend
	MaxDelay     = 15 * time.Minute // SQS DelaySeconds: 900, whole seconds
	MaxWait      = 20 * time.Second // SQS WaitTimeSeconds
	// MaxVisibility bounds how long a message can be hidden (SQS
	// VisibilityTimeout: 43,200 s).
	MaxVisibility = 12 * time.Hour
	// MaxNameBytes bounds a queue's name (SQS: 80 characters).
	MaxNameBytes = 80
	// MaxReceives is how often a message is handed out before it is a dead
	// letter.
	MaxReceives = 5
)

// Errors of the seam; match with errors.Is.
var (
	// ErrNoQueue: the queue does not exist (never made, or deleted).
	ErrNoQueue = errors.New("queue does not exist")
	// ErrInvalid: the call breaks a limit of the seam.
	ErrInvalid = errors.New("invalid queue call")
	// ErrStaleReceipt: the message is gone or was handed out again since. A
	// delete with a stale receipt is no error on every engine: treat it as done.
	ErrStaleReceipt = errors.New("stale receipt")
	// ErrUnavailable: the engine cannot be reached now.
	ErrUnavailable = errors.New("queue unavailable")
)

// Message is one received message.
type Message struct {
	ID string
	// Receipt is the right to delete or extend this delivery.
	Receipt string
	Body    []byte
	// Receives counts deliveries, this one included.
	Receives int
}

// Outgoing is a message to be sent: text, see CheckText. Delay is rounded up to
// whole seconds.
type Outgoing struct {
	Body  []byte
	Delay time.Duration
}

// Sender puts messages on a queue.
type Sender interface {
	// Send puts 1 to MaxBatch messages on the named queue; either all are
	// accepted or an error is returned (and some may have been).
	Send(ctx context.Context, queue string, ms ...Outgoing) error
}

// Receiver takes messages off one queue.
type Receiver interface {
	// Receive returns up to max messages, waiting up to wait for the first.
	// Each is hidden from other receivers for the visibility time.
	Receive(ctx context.Context, queue string, max int, wait, visibility time.Duration) ([]Message, error)
	// Delete ends the messages; stale receipts are ignored.
	Delete(ctx context.Context, queue string, receipts ...string) error
	// Extend hides a message for d from now (0 makes it visible at once).
	Extend(ctx context.Context, queue, receipt string, d time.Duration) error
}

// DeadLetter is a message that was received MaxReceives times and never
// deleted, or was put aside as unreadable.
type DeadLetter struct {
	ID     string
	Queue  string
	Body   []byte
	Reason string // "max_receives", or why a reader put it aside
	At     time.Time
}

// Admin makes and deletes queues and reads their dead letters.
type Admin interface {
	// Ensure makes the queue; making one that exists does nothing.
	Ensure(ctx context.Context, queue string) error
	// Remove deletes the queue with its messages; no such queue is no error.
	Remove(ctx context.Context, queue string) error
	// Bury puts a received message aside as a dead letter, with the reason.
	Bury(ctx context.Context, queue string, m Message, reason string) error
	// TakeDead hands over up to max dead letters: they stay in the engine until
	// DropDead, and may be handed over again.
	TakeDead(ctx context.Context, max int) ([]DeadLetter, error)
	DropDead(ctx context.Context, ids ...string) error
	// Depth counts a queue's waiting and in-flight messages, about.
	Depth(ctx context.Context, queue string) (int, error)
}

// Queue is an engine.
type Queue interface {
	Sender
	Receiver
	Admin
}
