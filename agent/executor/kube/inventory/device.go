package inventory

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/opsplane/opsplane/agent/executor/host/report"
	gpus "github.com/opsplane/opsplane/agent/executor/kube/inventory/capacity"
	"github.com/opsplane/opsplane/shared/protocol"
)

// gpu is what one source says of one GPU.
type gpu struct {
	uuid    string // canonical, "" when it is not known
	pci     string // as sysfs writes it, "" when it is not known
	index   int
	product string
	health  string
	detail  string
	holders int
	xids    []xid
	version int64 // of the object that tells of it
}

// xid is one kind of driver error of a GPU, as last counted.
type xid struct {
	code, count, victimOf int
	class, text           string
	last                  time.Time
}

// deviceState is a device as it is reported.
type deviceState struct {
	*gpu
	uid     string
	node    *nodeState
	changed int64
	// ill: it was told to be degraded, or was so from the start, and not to have
	// recovered since.
	ill bool
}

// capacity is what a node's labels and capacity tell of its GPUs.
type capacity struct {
	count   int
	product string
}

func capacityOf(o *corev1.Node) capacity {
	n, product := gpus.Of(o)
	return capacity{count: n, product: intern(cut(product, 256))}
}

// refreshDevices brings a node's devices up to what its sources say now. The
// host's own report goes first; a ResourceSlice adds what the report does not
// name; with neither the capacity counts, and each device is one whose UUID is
// not known.
func (m *model) refreshDevices(nodeName string) {
	s := m.nodeNames[nodeName]
	if s == nil {
		return // it is looked at again when the node is there
	}
	h := m.reportOf(s)
	var found []gpu
	if h != nil {
		found = h.believed()
	}
	for _, sl := range m.currentSlices(nodeName) {
		for _, g := range sl.gpus {
			if i := slices.IndexFunc(found, func(x gpu) bool { return sameGPU(&x, &g) }); i >= 0 {
				found[i] = merge(found[i], g)
			} else {
				found = append(found, g)
			}
		}
	}
	if len(found) == 0 {
		for i := range s.gpus.count {
			g := gpu{index: i, product: s.gpus.product, health: report.HealthOK}
			switch {
			case h != nil && h.stale != "":
				g.health, g.detail = report.HealthDegraded, "its host is not heard of: "+h.stale
			case h != nil && h.code != "":
				g.health, g.detail = report.HealthDegraded, "its host says "+h.code+": "+h.detail
			default:
				s.doubted(&g)
			}
			found = append(found, g)
		}
	}
	now := map[string]*gpu{}
	for i := range found[:min(len(found), gpus.Most)] {
		conditioned(s, &found[i])
		now[deviceUID(s, &found[i])] = &found[i]
	}
	m.claim(s, now)
	m.weigh(s)
}

// claim takes what a node has now. Devices whose UUID comes to be known are those
// that were there: they neither leave nor join.
func (m *model) claim(s *nodeState, now map[string]*gpu) {
	was := s.claims
	s.claims = now
	renamed := 0
	for uid := range was {
		if now[uid] == nil && unidentified(uid) {
			renamed++
		}
	}
	renamedAll := len(now) >= len(was)
	for _, uid := range slices.Sorted(maps.Keys(was)) {
		if now[uid] == nil {
			m.claimants[uid] = slices.DeleteFunc(m.claimants[uid], func(x *nodeState) bool { return x == s })
			m.resolve(uid, renamedAll && unidentified(uid))
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(now)) {
		if was[uid] == nil {
			m.claimants[uid] = append(m.claimants[uid], s)
		}
		m.resolve(uid, renamed > 0 && !unidentified(uid))
	}
}

// resolve finds out where a device is. A GPU that was put into another machine
// may be claimed by two nodes for a while: the newest claim counts, so that every
// agent comes to the same.
func (m *model) resolve(uid string, renamed bool) {
	var s *nodeState
	for _, x := range m.claimants[uid] {
		if s == nil || x.claims[uid].version > s.claims[uid].version || x.claims[uid].version == s.claims[uid].version && x.uid > s.uid {
			s = x
		}
	}
	if s == nil {
		delete(m.claimants, uid)
		m.lose(uid, renamed)
		return
	}
	m.applyDevice(uid, s.claims[uid], s, renamed)
}

// sameGPU tells whether two sources mean one GPU of a node.
func sameGPU(a, b *gpu) bool {
	switch {
	case a.uuid != "" && b.uuid != "":
		return a.uuid == b.uuid
	case a.pci != "" && b.pci != "":
		return a.pci == b.pci
	}
	return a.index == b.index
}

// merge adds what a second source knows, and the worse health of both.
func merge(a, b gpu) gpu {
	for _, f := range []struct{ to, from *string }{{&a.uuid, &b.uuid}, {&a.pci, &b.pci}, {&a.product, &b.product}} {
		if *f.to == "" {
			*f.to = *f.from
		}
	}
	if rank(b.health) > rank(a.health) {
		a.health, a.detail = b.health, b.detail
	}
	a.holders, a.version = max(a.holders, b.holders), max(a.version, b.version)
	return a
}

// rank orders healths, the worst last. One that is not known is not known to be worse
// than ok.
func rank(health string) int {
	if health == report.HealthUnknown {
		health = report.HealthOK
	}
	return slices.Index([]string{report.HealthOK, report.HealthDegraded, report.HealthUnusable}, health)
}

const unknownPrefix = "unknown-"

func unidentified(uid string) bool { return strings.HasPrefix(uid, unknownPrefix) }

// deviceUID is the device's identity: its UUID, else its place on the node.
func deviceUID(s *nodeState, g *gpu) string {
	switch {
	case g.uuid != "":
		return g.uuid
	case g.pci != "":
		return unknownPrefix + s.uid + "-" + g.pci
	}
	return fmt.Sprintf("%s%s-%d", unknownPrefix, s.uid, g.index)
}

// gpuWords are what the conditions of node problem detectors that speak of GPUs
// have in their names: GpuXidError, NVLinkStatusInactive, AcceleratedHardwareReady.
var gpuWords = regexp.MustCompile(`(?i)gpu|xid|nvlink|nvswitch|nvidia|dcgm|accelerat|infiniband.*gpu`)

// gone are words for a GPU that nothing can run on.
var goneWords = regexp.MustCompile(`(?i)missing|lost|fallen|fell off|unusable|not found`)

var anyUUID = regexp.MustCompile(`(?i)gpu-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
var anyPCI = regexp.MustCompile(`(?i)\b(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?\b`)

// conditioned lowers a device's health by what the node's conditions say of GPUs:
// of the one that a message names, else of all.
func conditioned(s *nodeState, g *gpu) {
	for _, b := range s.bad {
		if !gpuWords.MatchString(b.typ) || !names(&b, g) {
			continue
		}
		health := report.HealthDegraded
		if goneWords.MatchString(b.typ) || goneWords.MatchString(b.reason) {
			health = report.HealthUnusable
		}
		if rank(health) > rank(g.health) {
			g.health, g.detail = health, cut(strings.Trim(b.typ+": "+b.reason+": "+b.message, ": "), 512)
		}
	}
}

// names tells whether the condition's message is about the GPU: it names it, or
// no GPU at all.
func names(b *badCondition, g *gpu) bool {
	uuids, pcis := anyUUID.FindAllString(b.message, 16), anyPCI.FindAllString(b.message, 16)
	if len(uuids)+len(pcis) == 0 {
		return true
	}
	for _, u := range uuids {
		if canonical, ok := report.UUID(u); ok && canonical == g.uuid {
			return true
		}
	}
	for _, p := range pcis {
		if canonical, ok := report.PCI(p); ok && canonical == g.pci {
			return true
		}
	}
	return false
}

func sameDevice(a, b *gpu) bool {
	return a.uuid == b.uuid && a.pci == b.pci && a.index == b.index && a.product == b.product && a.health == b.health && a.detail == b.detail && a.holders == b.holders
}

// applyDevice takes a device as it is now. known says that it was reported
// before, without its UUID.
func (m *model) applyDevice(uid string, is *gpu, s *nodeState, known bool) {
	was := m.devices[uid]
	d := &deviceState{gpu: is, uid: uid, node: s, ill: is.health != report.HealthOK && (rank(is.health) > rank(report.HealthOK) || was != nil && was.ill)}
	m.devices[uid] = d
	if was != nil && was.node == s && sameDevice(was.gpu, is) {
		d.changed = was.changed
		m.xids(was, d)
		return
	}
	d.changed = m.mark(kindDevice, uid)
	detail := map[string]any{"node": s.name, "node_uid": s.uid, "index": is.index, "product": is.product, "health": is.health, "detail": is.detail}
	if was == nil || was.node != s {
		s.owned++
		m.touchNode(s)
	}
	if was != nil && was.node != s {
		detail["from_node"] = was.node.name
		m.disown(was.node)
	}
	switch {
	case was == nil && known:
	case was == nil || was.node != s:
		m.tell("device.joined", kindDevice, uid, uid, time.Time{}, detail)
	case rank(is.health) > rank(was.health):
		m.tell("device.degraded", kindDevice, uid, uid, time.Time{}, detail)
	case was.ill && is.health == report.HealthOK:
		m.tell("device.recovered", kindDevice, uid, uid, time.Time{}, detail)
	}
	if was != nil {
		m.xids(was, d)
	}
}

// disown takes a device off a node that may be gone itself.
func (m *model) disown(s *nodeState) {
	s.owned--
	if m.nodes[s.uid] == s {
		m.touchNode(s)
	}
}

// xids tells what the driver reported of a device since it was last counted. The
// times tell what is new: the counts begin again when the host starts.
func (m *model) xids(was, is *deviceState) {
	for _, x := range is.xids {
		var old xid
		for _, o := range was.xids {
			if o.code == x.code && o.last.After(old.last) {
				old = o
			}
		}
		if !x.last.After(old.last) {
			continue
		}
		n := x.count
		if x.count > old.count {
			n = x.count - old.count
		}
		m.tell("device.xid", kindDevice, is.uid, is.uid, x.last, map[string]any{"xid": x.code, "class": x.class, "count": n,
			"victim_of": x.victimOf, "text": x.text, "node": is.node.name, "index": is.index})
	}
}

// lose takes a device that nobody tells of any more. renamed says that it is
// still there, under its UUID.
func (m *model) lose(uid string, renamed bool) {
	d := m.devices[uid]
	if d == nil {
		return
	}
	delete(m.devices, uid)
	m.mark(kindDevice, uid)
	m.disown(d.node)
	if !renamed {
		m.tell("device.left", kindDevice, uid, uid, time.Time{}, map[string]any{"node": d.node.name, "node_uid": d.node.uid, "index": d.index})
	}
}

func (m *model) reportDevice(d *deviceState) protocol.Device {
	return protocol.Device{UID: d.uid, Aliases: aliases(d), NodeUID: d.node.uid, NodeName: d.node.name, Index: d.index, Product: d.product,
		Revision: m.revision(d.changed), Health: d.health, Detail: d.detail, Holders: d.holders}
}

// aliases are the other names of a device: its place on the node, its UUID
// without the prefix, and its spellings by other tools. An index or a bus id is
// only unique on its node, so those carry the node's name.
func aliases(d *deviceState) []string {
	out := []string{d.node.name + "/" + strconv.Itoa(d.index)}
	if d.uuid != "" {
		out = append(out, strings.TrimPrefix(d.uuid, "GPU-"))
		x := report.Device{UUID: d.uuid, PCI: d.pci}
		return append(out, x.Spellings(d.node.name)...)
	}
	if d.pci != "" {
		out = append(out, d.node.name+"/"+d.pci, d.node.name+"/0000"+strings.ToUpper(d.pci))
	}
	return out
}
