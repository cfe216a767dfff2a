package inventory

import (
	"cmp"
	"encoding/json"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/protocol"
)

// subs is how many changes fit between two resourceVersions; see the package's
// doc. With it a revision stays an exact number in JSON up to a resourceVersion
// of 8.8e12.
const subs = 1024

// handover is how long events are kept while no Watch runs: the lease of the
// agent that reports, and some.
const (
	handover   = 20 * time.Second
	eventsMost = 10_000
	dirtyMost  = 100_000
)

// model is what is known, and what is yet to be told. All of it is under mu;
// apply functions are called with it held.
type model struct {
	opts   *Options
	now    func() time.Time
	server func() time.Time // the API server's clock
	log    *slog.Logger

	mu    sync.Mutex
	clock int64 // the newest revision
	base  int64 // the clock when the first lists were read
	quiet bool  // what is applied is no event

	nodes     map[string]*nodeState // by UID
	nodeNames map[string]*nodeState
	pods      map[string]map[*pod]struct{} // by node name
	budgets   map[string]map[*budget]struct{}
	slices    map[string]map[*slice]struct{} // by node name
	hosts     map[string]*host               // by node name
	devices   map[string]*deviceState        // by UID
	claimants map[string][]*nodeState        // of a device
	workloads map[string]*workload           // by kind and key
	byUIDs    map[string]*workload           // those that are reported
	parts     map[string]map[*workload]struct{}
	comps     map[string]*component // by name
	folds     map[foldKey]*fold

	watching bool
	dirty    map[object]struct{}
	events   []stamped

	unread map[string]bool // kinds of deployments; false: they were read once
	owed   bool            // a snapshot went without some of them
	whole  bool            // and they are read since

	ready chan struct{}
	ring  chan struct{}
}

// object is the key of something that is reported: operation's kind and a UID.
type object struct{ kind, uid string }

// stamped is an event and when it was seen.
type stamped struct {
	event protocol.Event
	at    time.Time
}

func newModel(o *Options, now func() time.Time) *model {
	if now == nil {
		now = time.Now
	}
	log := slog.New(slog.DiscardHandler)
	if o.Cluster != nil && o.Cluster.Log != nil {
		log = o.Cluster.Log
	}
	return &model{
		opts: o, now: now, server: now, log: log,
		nodes: map[string]*nodeState{}, nodeNames: map[string]*nodeState{},
		pods: map[string]map[*pod]struct{}{}, budgets: map[string]map[*budget]struct{}{},
		slices: map[string]map[*slice]struct{}{}, hosts: map[string]*host{}, devices: map[string]*deviceState{}, claimants: map[string][]*nodeState{},
		workloads: map[string]*workload{}, byUIDs: map[string]*workload{}, parts: map[string]map[*workload]struct{}{}, comps: map[string]*component{},
		folds: map[foldKey]*fold{}, dirty: map[object]struct{}{}, unread: map[string]bool{},
		ready: make(chan struct{}), ring: make(chan struct{}, 1),
	}
}

// tick moves the clock on for a change that was read at a resourceVersion.
func (m *model) tick(version int64) { m.clock = max(m.clock+1, version*subs) }

// signal wakes the Watch.
func (m *model) signal() {
	if len(m.dirty) == 0 && len(m.events) == 0 && !m.whole {
		return
	}
	select {
	case m.ring <- struct{}{}:
	default:
	}
}

// mark says that an object is to be told again. It returns its revision.
func (m *model) mark(kind, uid string) int64 {
	if !m.watching && len(m.dirty) > dirtyMost {
		clear(m.dirty) // the snapshot that goes with the next Watch has it all
	}
	m.dirty[object{kind, uid}] = struct{}{}
	return m.clock
}

// revision of an object that changed last at a clock.
func (m *model) revision(changed int64) int64 { return max(changed, m.base) }

// tell writes an event down, unless what it tells was so from the start.
func (m *model) tell(typ, kind, uid, name string, at time.Time, detail map[string]any) {
	if m.quiet {
		return
	}
	m.say(typ, kind, uid, name, at, detail)
}

func (m *model) say(typ, kind, uid, name string, at time.Time, detail map[string]any) {
	now := m.now()
	if at.IsZero() {
		at = now
	}
	e := protocol.Event{Type: typ, Subject: protocol.Subject{Kind: kind, UID: uid, Name: name}, At: at.UTC()}
	if len(detail) > 0 {
		e.Detail, _ = json.Marshal(detail) // maps of plain values always marshal
	}
	m.events = append(m.events, stamped{event: e, at: now})
	m.bound(now)
}

// bound drops events that nobody asked for in time.
func (m *model) bound(now time.Time) {
	n := 0
	if !m.watching {
		for n < len(m.events) && now.Sub(m.events[n].at) > handover {
			n++
		}
	}
	if len(m.events)-n > eventsMost { // a tenth at once, or each event would cost a copy
		dropped := eventsMost / 10
		m.log.Warn("events were dropped: nobody took them in time", slog.Int("events", dropped))
		n += dropped
	}
	if n > 0 {
		m.events = append([]stamped(nil), m.events[n:]...)
	}
}

// settle ends the time of the first lists.
func (m *model) settle() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tick(0)
	m.base = m.clock
	close(m.ready)
}

// raise makes all that is told from here on newer than what any agent can have
// told of what it read up to a version. A snapshot follows, so what changed before
// need not be told by itself.
func (m *model) raise(version int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tick(version + ahead)
	m.base = m.clock
	clear(m.dirty)
}

// ahead is how far an agent's clock may have run ahead of the versions that it
// read, by changes that come from none.
const ahead = 8

// begin and end enclose a Watch.
func (m *model) begin() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.bound(m.now())
	m.watching = true
	m.signal()
}

// without says that there is an inventory without the deployments of a kind, unless they
// were read meanwhile: nobody converts them.
func (m *model) without(kind string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, read := m.unread[kind]; !read {
		m.unread[kind] = true
	}
}

// with says that the deployments of a kind are read, or that there can be none.
func (m *model) with(kind string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if was := m.unread[kind]; was && m.owed {
		m.whole = true
		m.signal()
	}
	m.unread[kind] = false
}

func (m *model) end() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.watching, m.owed, m.whole = false, false, false // the next one begins with a snapshot
}

// take removes up to most changed objects, with all events, and tells whether
// there is more. What an object is told as is what it is now, so it is in
// Objects or in Gone and never in both.
func (m *model) take(most int) (d executor.Delta, more bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.events {
		d.Events = append(d.Events, e.event)
	}
	m.events = nil
	d.Whole, m.whole = m.whole, false
	n := 0
	for o := range m.dirty {
		if n++; n > most {
			return d, true
		}
		delete(m.dirty, o)
		if !m.report(o, &d.Objects) {
			d.Gone = append(d.Gone, o.kind+"/"+o.uid)
		}
	}
	slices.Sort(d.Gone)
	return d, false
}

// snapshot lists everything.
func (m *model) snapshot() protocol.Inventory {
	inv := m.everything()
	slices.SortFunc(inv.Nodes, func(a, b protocol.Node) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID)) })
	slices.SortFunc(inv.Devices, func(a, b protocol.Device) int {
		return cmp.Or(cmp.Compare(a.NodeName, b.NodeName), cmp.Compare(a.Index, b.Index), cmp.Compare(a.UID, b.UID))
	})
	slices.SortFunc(inv.Deployments, func(a, b protocol.Deployment) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Kind, b.Kind))
	})
	slices.SortFunc(inv.Components, func(a, b protocol.Component) int { return cmp.Compare(a.Name, b.Name) })
	return inv
}

func (m *model) everything() protocol.Inventory {
	m.mu.Lock()
	defer m.mu.Unlock()
	var inv protocol.Inventory
	for uid := range m.nodes {
		m.report(object{kindNode, uid}, &inv)
	}
	for uid := range m.devices {
		m.report(object{kindDevice, uid}, &inv)
	}
	for uid := range m.byUIDs {
		m.report(object{kindDeployment, uid}, &inv)
	}
	for name := range m.comps {
		m.report(object{kindComponent, name}, &inv)
	}
	for kind, unread := range m.unread {
		if unread {
			inv.Unread = append(inv.Unread, kind)
		}
	}
	slices.Sort(inv.Unread)
	m.owed = len(inv.Unread) > 0
	return inv
}
