package record

import (
	"sync"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
)

// recentKept bounds the operations whose last state is remembered.
const recentKept = 4096

// recent is an operation's state as this process last wrote or decoded it. It
// saves decoding and reading again what was encoded a moment ago. It is never a
// guess: a state counts only beside an item of the same version, since an
// operation's id is never used again. Values are shared and not written to.
type recent struct {
	version int64
	state   operation.State
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

// Created tells that an operation was committed as new.
func (st *Store) Created(op *operation.Operation) {
	st.specs().put(op.Spec.ID, op.Spec)
	st.committed(&op.State, op.Version)
}

// committed tells that a state was committed, as the item's version.
func (st *Store) committed(s *operation.State, version int64) {
	st.recents().put(s.ID, &recent{version: version, state: *s})
}

// Recall gives what a glance would see of an operation as this process wrote it,
// if that is what it remembers of it.
func (st *Store) Recall(id string, version int64) (Glance, bool) {
	r, ok := st.recents().get(id)
	if !ok || r.version != version {
		return Glance{}, false
	}
	return glanceOf(&r.state), true
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
