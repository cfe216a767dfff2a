package record

import "sync"

// generations keeps copies by id, as many as two generations of half of keep
// hold: what is not asked for while one fills is forgotten with the next.
type generations[V any] struct {
	keep       int
	mu         sync.Mutex
	young, old map[string]V
}

func (g *generations[V]) get(id string) (V, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if v, ok := g.young[id]; ok {
		return v, true
	}
	v, ok := g.old[id]
	if ok {
		g.add(id, v)
	}
	return v, ok
}

func (g *generations[V]) put(id string, v V) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.add(id, v)
}

// add keeps v; the caller holds the lock.
func (g *generations[V]) add(id string, v V) {
	if g.young == nil || len(g.young) >= g.keep/2 {
		g.old, g.young = g.young, make(map[string]V, g.keep/2)
	}
	g.young[id] = v
}
