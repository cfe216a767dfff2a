package inventory

import (
	"errors"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor/host/report"
)

// host is what is kept of a host's own report.
type host struct {
	head
	node         string
	at           time.Time // when the host was looked at, by its clock
	gpus         []gpu
	code, detail string
	stale        string // why it is not believed any more
}

// reports selects the hosts' reports among the namespace's ConfigMaps.
func reports(o *metav1.ListOptions) { o.LabelSelector = report.Label }

// stripHost reads a host's report. A report is believed of the node alone under
// whose name it is kept.
func (m *model) stripHost(obj any) (*host, bool) {
	o, ok := obj.(*corev1.ConfigMap)
	if !ok {
		return nil, false
	}
	r, err := report.ParseHost([]byte(o.Data[report.Key]))
	if err == nil && (o.Name != report.Name(r.Node) || o.Labels[report.Label] != report.Hash(r.Node)) {
		err = errors.New("it is kept under another node's name")
	}
	if err != nil {
		m.log.Warn("a host's report is not believed", slog.String("configmap", o.Name), slog.Any("err", err))
		return nil, false
	}
	h := &host{head: headOf(o), node: intern(r.Node), code: intern(r.Code), detail: r.Detail, at: r.At, stale: r.Stale(m.now(), m.server())}
	for i := range r.Devices {
		d := &r.Devices[i]
		g := gpu{uuid: d.UUID, pci: intern(d.PCI), index: d.Index, product: intern(d.Product), health: intern(d.Health), detail: d.Detail, holders: holders(d), version: h.version}
		for _, x := range d.XIDs {
			g.xids = append(g.xids, xid{code: x.Code, count: x.Count, victimOf: x.VictimOf, class: intern(x.Class), text: intern(x.Text), last: x.Last})
		}
		h.gpus = append(h.gpus, g)
	}
	slices.SortFunc(h.gpus, func(a, b gpu) int { return a.index - b.index })
	return h, true
}

// holders counts who has a device open: pods, and processes of no pod.
func holders(d *report.Device) int {
	n := len(d.Pods())
	for _, h := range d.Holders {
		if h.Pod == nil {
			n += max(1, h.Count)
		}
	}
	return n
}

// reportOf is the report of the node's host, nil: it has none. One from before the
// node was there is of another machine that had its name: its GPUs are not here.
func (m *model) reportOf(s *nodeState) *host {
	h := m.hosts[s.name]
	if h == nil || h.at.Before(s.created) {
		return nil
	}
	return h
}

// believed are the GPUs as the report tells of them. What a report that is too old
// says is kept, for nothing newer is known, and none of it is called well.
func (h *host) believed() []gpu {
	out := slices.Clone(h.gpus)
	for i := range out {
		if h.stale != "" && rank(out[i].health) < rank(report.HealthDegraded) {
			out[i].health, out[i].detail = report.HealthDegraded, "its host is not heard of: "+h.stale
		}
	}
	return out
}

// age looks for reports that have become too old: their hosts say nothing that
// would tell of it. None grows younger, though a clock that is wrong may come past its
// time: only another report tells that the host lives.
func (m *model) age() {
	now, server := m.now(), m.server()
	for node, h := range m.hosts {
		if h.stale != "" {
			continue
		}
		if why := (&report.Host{At: h.at}).Stale(now, server); why != "" {
			h.stale = why
			m.tick(0)
			m.refreshDevices(node)
		}
	}
}

func (m *model) applyHost(was, is *host) {
	if was != nil && m.hosts[was.node] == was {
		delete(m.hosts, was.node)
		if is == nil || is.node != was.node {
			m.refreshDevices(was.node)
		}
	}
	if is != nil {
		m.hosts[is.node] = is
		m.refreshDevices(is.node)
	}
}
