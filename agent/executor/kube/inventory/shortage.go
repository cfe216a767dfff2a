package inventory

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/opsplane/opsplane/agent/executor/host/report"
	gpus "github.com/opsplane/opsplane/agent/executor/kube/inventory/capacity"
	"github.com/opsplane/opsplane/shared/protocol"
)

// shortage is that a node gives fewer of its GPUs to pods than it has, while nobody
// tells which of them it keeps back: Kubernetes has the number alone.
type shortage struct {
	told  []gpus.Offer // the resources that are short, as was told; none: all is well
	since time.Time    // of told
	begun time.Time    // when it began to differ from what was told; zero: it does not
	// found is when told was found at the start: whether it was ever an event is not
	// known. Zero: it was, or there is nothing to tell.
	found time.Time
}

// shortNow lists the resources of which the node gives fewer than it has, but for
// what the devices' own sources explain. A resource that was short and is gone
// altogether, as five minutes after its device plugin, is not well for that, unless
// GPUs are offered in another way now.
func (m *model) shortNow(s *nodeState) []gpus.Offer {
	var out []gpus.Offer
	for _, f := range s.offers {
		if f.Allocatable < f.Capacity && !m.explained(s, f) {
			out = append(out, f)
		}
	}
	if len(s.offers) == 0 && len(m.slices[s.name]) == 0 {
		for _, f := range s.short.told {
			f.Allocatable = 0
			out = append(out, f)
		}
	}
	return out
}

// explained tells whether sources that know devices by name call as many of them ill
// as are kept back. How many shares or parts of a GPU one that is ill takes away is
// not known: there one is enough.
func (m *model) explained(s *nodeState, f gpus.Offer) bool {
	if h := m.reportOf(s); h != nil && h.stale != "" { // which calls them all ill
		return false
	}
	ill := int64(0)
	for _, g := range s.claims {
		if (g.uuid != "" || g.pci != "") && rank(g.health) > rank(report.HealthOK) {
			ill++
		}
	}
	if f.Cards(s.gpus.count) {
		return ill >= f.Capacity-f.Allocatable
	}
	return ill > 0
}

// weigh looks whether what the node gives to pods is what was told of it. That all is
// well again is told at once.
func (m *model) weigh(s *nodeState) {
	now := m.shortNow(s)
	switch {
	case slices.Equal(now, s.short.told):
		s.short.begun = time.Time{}
	case len(now) == 0:
		m.settleShortage(s, now)
	case m.quiet: // the inventory has it at once, and an event of it comes if it holds
		m.settleShortage(s, now)
		s.short.found = m.now()
	case s.short.begun.IsZero():
		s.short.begun = m.now()
	}
}

// ripen tells of shortages that have held. One that was there at the start may have
// begun while no agent ran, or too shortly before for the last one to tell of it: it is
// told as standing, for that one may have told of it too. Whoever follows both
// halves loses none, and an alert of it that is firing stays as it is.
func (m *model) ripen() {
	now := m.now()
	for _, s := range m.nodes {
		if !s.short.found.IsZero() && s.short.begun.IsZero() && now.Sub(s.short.found) >= m.opts.ShortageHold {
			m.tellShortage(s, s.short.found, true)
			s.short.found = time.Time{}
		}
		if !s.short.begun.IsZero() && now.Sub(s.short.begun) >= m.opts.ShortageHold {
			m.tick(0)
			m.settleShortage(s, m.shortNow(s))
		}
	}
}

// settleShortage makes a shortage, or its end, what is told of the node.
func (m *model) settleShortage(s *nodeState, now []gpus.Offer) {
	was, at := s.short, s.short.begun
	if at.IsZero() {
		at = m.now()
	}
	s.short = shortage{told: now, since: at}
	m.touchNode(s)
	if len(now) == 0 {
		m.tell("node.gpus_allocatable", kindNode, s.uid, s.name, at, map[string]any{"resources": offeredOf(was.told, s.offers)})
	} else {
		m.tellShortage(s, at, false)
		if len(was.told) > 0 { // of other numbers
			s.short.since = was.since
		}
	}
	m.refreshDevices(s.name) // their health follows it
}

// tellShortage tells of what the node is short of since a time.
func (m *model) tellShortage(s *nodeState, at time.Time, standing bool) {
	detail := map[string]any{"resources": s.short.told, "missing": missing(s.short.told), "detail": inWords(s.short.told)}
	if standing {
		detail["standing"] = true
	}
	m.tell("node.gpus_unallocatable", kindNode, s.uid, s.name, at, detail)
}

// offeredOf is what the node gives now of what was short.
func offeredOf(was, now []gpus.Offer) []gpus.Offer {
	out := []gpus.Offer{}
	for _, f := range now {
		if slices.ContainsFunc(was, func(w gpus.Offer) bool { return w.Resource == f.Resource }) {
			out = append(out, f)
		}
	}
	return out
}

func missing(short []gpus.Offer) (n int64) {
	for _, f := range short {
		n += f.Capacity - f.Allocatable
	}
	return n
}

// inWords says what is known and what is not.
func inWords(short []gpus.Offer) string {
	var parts []string
	for _, f := range short {
		parts = append(parts, fmt.Sprintf("%d of its %d %s", f.Allocatable, f.Capacity, f.Resource))
	}
	return "the node gives pods " + strings.Join(parts, ", ") + "; which GPUs it keeps back, and why, only its device plugin knows"
}

// doubted says of a device that only its node's capacity tells of that it may be one
// of those that are kept back.
func (s *nodeState) doubted(g *gpu) {
	if len(s.short.told) > 0 && g.health == report.HealthOK {
		g.health, g.detail = report.HealthUnknown, inWords(s.short.told)
	}
}

// conditionGPUs is the condition that a node has in the inventory for a shortage. It
// is none of Kubernetes'.
const conditionGPUs = "GPUsAllocatable"

func (s *nodeState) shortageCondition() []protocol.Condition {
	if len(s.short.told) == 0 {
		return nil
	}
	return []protocol.Condition{{Type: conditionGPUs, Status: "False", Reason: "FewerThanCapacity", Message: inWords(s.short.told), Since: s.short.since.UTC()}}
}
