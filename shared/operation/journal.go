package operation

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"
)

// Entry is one line of an operation's journal. Entries are append-only and
// hash-chained: Hash covers the entry and the hash of the one before it.
type Entry struct {
	Seq        int64           `json:"seq"`
	At         time.Time       `json:"at"`
	Kind       string          `json:"kind"`
	From       Phase           `json:"from,omitempty"`
	To         Phase           `json:"to,omitempty"`
	By         Actor           `json:"by"`
	Reason     string          `json:"reason,omitempty"`
	Detail     string          `json:"detail,omitempty"`
	Generation int64           `json:"generation,omitempty"`
	StepID     string          `json:"step_id,omitempty"`
	Step       string          `json:"step,omitempty"`
	Before     json.RawMessage `json:"before,omitempty"`
	After      json.RawMessage `json:"after,omitempty"`
	Prev       string          `json:"prev,omitempty"`
	Hash       string          `json:"hash,omitempty"`
}

// The kinds of entry.
const (
	EntryTransition    = "transition"
	EntryStep          = "step"
	EntryWaiting       = "waiting"
	EntryCancelRequest = "cancel_requested"
	EntryLeaseClaimed  = "lease_claimed"
	EntryLeaseEnded    = "lease_ended"
	EntryResolve       = "resolve"
	EntryNote          = "note"
	EntryLateReport    = "late_report"
	EntryChild         = "child"
)

// sum returns the hash of the entry behind prev.
func (e Entry) sum(prev string) (string, error) {
	e.Prev, e.Hash = prev, ""
	b, err := json.Marshal(e)
	if err != nil {
		return "", fmt.Errorf("hash journal entry %d: %w", e.Seq, err)
	}
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:]), nil
}

// Seal numbers the entries behind head, chains them, and returns the new head.
func Seal(head JournalHead, entries []Entry) (JournalHead, error) {
	for i := range entries {
		e := &entries[i]
		e.Seq = head.Seq + 1
		h, err := e.sum(head.Hash)
		if err != nil {
			return head, err
		}
		e.Prev, e.Hash = head.Hash, h
		head = JournalHead{Seq: e.Seq, Hash: h}
	}
	return head, nil
}

// VerifyChain walks a whole journal and tells the first entry that does not
// follow from the one before, or that the last is not the head.
func VerifyChain(entries []Entry, head JournalHead) error {
	at := JournalHead{}
	for _, e := range entries {
		if e.Seq != at.Seq+1 {
			return fmt.Errorf("journal entry %d follows %d", e.Seq, at.Seq)
		}
		h, err := e.sum(at.Hash)
		if err != nil {
			return err
		}
		if e.Prev != at.Hash || e.Hash != h {
			return fmt.Errorf("journal entry %d: hash does not match", e.Seq)
		}
		at = JournalHead{Seq: e.Seq, Hash: h}
	}
	if at != head {
		return fmt.Errorf("journal ends at entry %d, the operation says %d", at.Seq, head.Seq)
	}
	return nil
}

// EventType returns the type of the event that the entry is, or "" when it is
// none.
func (e Entry) EventType() string {
	switch {
	case e.Kind == EntryTransition && e.To != "":
		return "operation." + string(e.To)
	case e.Kind == EntryCancelRequest:
		return "operation.cancel_requested"
	case e.Kind == EntryWaiting && e.Reason != "":
		return "operation.waiting"
	case e.Kind == EntryLateReport:
		return "operation.late_report"
	}
	return ""
}
