package sqlite

import (
	"maps"
	"sync"

	"github.com/opsplane/opsplane/shared/ledger"
)

// memoryBytes bounds the copies of items that are kept, in bytes of keys and
// data: two generations of half as many.
const memoryBytes = 64 << 20

// entryOverhead is about what an entry takes beside keys and data.
const entryOverhead = 400

// memory holds copies of items as the last commits left them, so that what is
// written over and over is read without the file: every commit makes the
// readers' page caches worthless, and an operation is read between all of its.
//
// It is exact because this process is the only one that writes. The writer
// closes the keys of a group before the group's commit, so that who reads them
// meanwhile asks the file, and opens them with their new items afterwards,
// before it answers: no read goes back behind what another read has shown, by
// a query or the feed, and none shows what is not durable. What a read of the
// file brings is kept only when no group wrote to that key since it began.
//
// Items go in and out as copies: what a caller does to its own is its own affair.
type memory struct {
	mu         sync.Mutex
	young, old map[ledger.Key]*entry
	bytes      int // of young
	// turns counts how often old was forgotten. While it stands, a key that was
	// written is in one of the maps.
	turns int64
}

// entry is what is known of one key. Entries are never changed but by replacing
// them.
type entry struct {
	item   ledger.Item // Version 0: there is no item
	id     int64       // its row; 0: not known
	closed bool        // ask the file: it is being written, or can expire
}

func newMemory() *memory { return &memory{young: map[ledger.Key]*entry{}} }

// find returns what is known of a key; nil: nothing. The caller holds the lock.
func (m *memory) find(k ledger.Key) *entry {
	if e := m.young[k]; e != nil {
		return e
	}
	e := m.old[k]
	if e != nil {
		m.put(k, e)
	}
	return e
}

// put keeps an entry; the caller holds the lock.
func (m *memory) put(k ledger.Key, e *entry) {
	if m.bytes >= memoryBytes/2 {
		m.old, m.young, m.bytes = m.young, make(map[ledger.Key]*entry, len(m.young)), 0
		m.turns++
	}
	m.young[k] = e
	m.bytes += entryOverhead + len(k.PK) + len(k.SK) + len(e.item.Data)
}

// get returns the items that exist of those asked for; ok is false when one of
// them must be looked up in the file. turn goes into keep then.
func (m *memory) get(ks ...ledger.Key) (items []ledger.Item, ok bool, turn int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, k := range ks {
		if e := m.find(k); e == nil || e.closed {
			return nil, false, m.turns
		}
	}
	items = make([]ledger.Item, 0, len(ks))
	for _, k := range ks {
		if e := m.find(k); e != nil && e.item.Version > 0 {
			items = append(items, copied(e.item))
		}
	}
	return items, true, m.turns
}

// keep takes over what a read of the file brought, if nobody wrote to the key
// since get gave turn.
func (m *memory) keep(it ledger.Item, turn int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.turns != turn || m.young[it.Key] != nil || m.old[it.Key] != nil || !it.Expires.IsZero() {
		return
	}
	m.put(it.Key, &entry{item: copied(it)})
}

func copied(it ledger.Item) ledger.Item {
	it.Data = append([]byte(nil), it.Data...)
	it.Index = maps.Clone(it.Index)
	return it
}

// known returns the entry that tells the writer a key's row; nil: it has to
// look.
func (m *memory) known(k ledger.Key) *entry {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.find(k)
	if e == nil || e.closed || e.item.Version > 0 && e.id == 0 {
		return nil
	}
	return e
}

// shut closes the keys that a group is about to write.
func (m *memory) shut(staged map[ledger.Key]*entry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for k := range staged {
		m.put(k, shutEntry)
	}
}

var shutEntry = &entry{closed: true}

// open shows what a group has written.
func (m *memory) open(staged map[ledger.Key]*entry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for k, e := range staged {
		m.put(k, e)
	}
}
