package sqlite

import (
	"sync"

	"github.com/opsplane/opsplane/shared/ledger"
)

// watchers are the channels to signal, by partition.
type watchers struct {
	mu sync.RWMutex
	by map[string]map[chan struct{}]struct{}
}

// Watch implements ledger.Watcher. Only commits of this process signal.
func (db *DB) Watch(pk string) (<-chan struct{}, func()) {
	ch := make(chan struct{}, 1)
	w := &db.watch
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.by == nil {
		w.by = map[string]map[chan struct{}]struct{}{}
	}
	if w.by[pk] == nil {
		w.by[pk] = map[chan struct{}]struct{}{}
	}
	w.by[pk][ch] = struct{}{}
	return ch, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.by[pk], ch)
		if len(w.by[pk]) == 0 {
			delete(w.by, pk)
		}
	}
}

// signal tells everyone who watches a partition that the group wrote to. It
// runs after the commit: who begins to watch later reads what was committed.
func (w *watchers) signal(batch []*request, answers []error) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	if len(w.by) == 0 {
		return
	}
	for i, r := range batch {
		if answers[i] != nil {
			continue
		}
		for j := range r.writes {
			if r.writes[j].Kind == ledger.Check {
				continue
			}
			for ch := range w.by[r.writes[j].Item.PK] {
				select {
				case ch <- struct{}{}:
				default: // one signal waits there already
				}
			}
		}
	}
}
