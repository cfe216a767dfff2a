package record

import (
	"context"
	"sync"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
)

const (
	// recentKept bounds the operations whose last state is remembered, and
	// recentEntries the journal entries that are remembered with it.
	recentKept    = 4096
	recentEntries = 32
)

// recent is an operation's state as this process last wrote or decoded it, and
// the end of its journal. It saves decoding and reading again what was encoded
// a moment ago. It is never a guess: a state counts only beside an item of the
// same version, since an operation's id is never used again; an entry that was
// committed never changes. Values are shared and not written to.
type recent struct {
	version int64
	state   operation.State
	entries []operation.Entry // up to state.Journal.Seq, without a gap; may be none
}

// memory is what a Store keeps copies of.
type memory struct {
	once   sync.Once
	specs  generations[operation.Spec]
	recent generations[*recent]
}

func (st *Store) remember() *memory {
	st.memory.once.Do(func() { st.memory.specs.keep, st.memory.recent.keep = specsKept, recentKept })
	return &st.memory
}

func (st *Store) specs() *generations[operation.Spec] { return &st.remember().specs }
func (st *Store) recents() *generations[*recent]      { return &st.remember().recent }

// Created tells that an operation was committed as new, with its first entries.
func (st *Store) Created(op *operation.Operation, entries []operation.Entry) {
	st.specs().put(op.Spec.ID, op.Spec)
	st.committed(&op.State, op.Version, entries)
}

// committed tells that a state was committed, as the item's version, with its
// new journal entries.
func (st *Store) committed(s *operation.State, version int64, entries []operation.Entry) {
	r := &recent{version: version, state: *s, entries: entries}
	if was, ok := st.recents().get(s.ID); ok && was.version == version-1 && len(was.entries) > 0 {
		if len(entries) == 0 || was.entries[len(was.entries)-1].Seq == entries[0].Seq-1 {
			before := was.entries[min(max(len(was.entries)+len(entries)-recentEntries, 0), len(was.entries)):]
			r.entries = append(before[:len(before):len(before)], entries...)
		}
	}
	st.recents().put(s.ID, r)
}

// decodeState reads a state's item, or takes the copy of that version.
func (st *Store) decodeState(id string, it ledger.Item) (operation.State, error) {
	r, ok := st.recents().get(id)
	if ok && r.version == it.Version {
		return r.state, nil
	}
	s, err := Decode[operation.State](it)
	if err == nil && (!ok || r.version < it.Version) {
		st.recents().put(id, &recent{version: it.Version, state: s})
	}
	return s, err
}

// versioner is what an engine can add that knows versions without a read.
type versioner interface {
	// KnownVersion returns an item's version, as current as Get, 0 when there is
	// no item; ok is false when only a read can tell.
	KnownVersion(k ledger.Key) (version int64, ok bool)
}

// current returns what is remembered of an operation if the engine knows without
// a read that it is still so, else nil.
func (st *Store) current(id string) *recent {
	l, ok := st.Ledger.(versioner)
	if !ok {
		return nil
	}
	r, ok := st.recents().get(id)
	if !ok {
		return nil
	}
	if v, ok := l.KnownVersion(StateKey(id)); !ok || v != r.version {
		return nil
	}
	return r
}

// JournalBetween reads the entries from seq first to seq last, both included.
// The operation's journal must reach so far.
func (st *Store) JournalBetween(ctx context.Context, id string, first, last int64) ([]operation.Entry, error) {
	if r, ok := st.recents().get(id); ok && len(r.entries) > 0 {
		at := r.entries[0].Seq
		if at <= first && last < at+int64(len(r.entries)) {
			return r.entries[first-at : last-at+1], nil
		}
	}
	return st.Journal(ctx, id, first, int(last-first+1))
}
