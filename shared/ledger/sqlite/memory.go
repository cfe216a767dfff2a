package sqlite

import (
	"maps"
	"sync"

	"github.com/opsplane/opsplane/shared/ledger"
)

// memoryBytes bounds the copies of items that are kept, in bytes of keys and
// data: two generations of half as many.
const memoryBytes = 32 << 20

// entryOverhead is about what an entry takes beside keys and data, closed ones
// less.
const (
	entryOverhead  = 400
	closedOverhead = 100
)

// historyBytes tells histories, which are made once and seldom read, from what
// changes: a new item with more data that asks for no feed is not kept.
const historyBytes = 512

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
// Items go out as copies: what a reader does to its own is its own affair. What
// was committed stays as it came, which is the seam's rule.
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
	id     int64       // its row; 0: there is none
	read   bool        // by a reader, who sees neither the row nor one that has expired
	closed bool        // ask the file: it is being written, can expire, or is not kept
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
	if was := m.young[k]; was != nil {
		m.bytes -= was.size(k)
	}
	m.young[k] = e
	m.bytes += e.size(k)
}

func (e *entry) size(k ledger.Key) int {
	if e.closed {
		return closedOverhead + len(k.PK) + len(k.SK)
	}
	return entryOverhead + len(k.PK) + len(k.SK) + len(e.item.Data)
}

// get returns the items that exist of those asked for; all is false when one of
// them must be looked up in the file. turn goes into keep then.
func (m *memory) get(ks []ledger.Key) (found map[ledger.Key]ledger.Item, all bool, turn int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	entries := make([]*entry, len(ks)) // what is found may be forgotten before the last is
	for i, k := range ks {
		if entries[i] = m.find(k); entries[i] == nil || entries[i].closed {
			return nil, false, m.turns
		}
	}
	found = make(map[ledger.Key]ledger.Item, len(ks))
	for i, k := range ks {
		if e := entries[i]; e.item.Version > 0 {
			found[k] = copied(e.item)
		}
	}
	return found, true, m.turns
}

// version returns the version that a key has, 0 when there is no item; ok is
// false when that must be looked up in the file.
func (m *memory) version(k ledger.Key) (v int64, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.find(k)
	if e == nil || e.closed {
		return 0, false
	}
	return e.item.Version, true
}

// keep takes over what a read of the file found under the keys, if nobody wrote
// to them since get gave turn.
func (m *memory) keep(ks []ledger.Key, found map[ledger.Key]ledger.Item, turn int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, k := range ks {
		if m.turns != turn { // by what was kept before k, too
			return
		}
		if it := found[k]; m.young[k] == nil && m.old[k] == nil && it.Expires.IsZero() {
			m.put(k, &entry{item: copied(it), read: true})
		}
	}
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
	if e == nil || e.closed || e.read {
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
