package sim

import (
	"strings"

	"github.com/opsplane/opsplane/shared/protocol"
)

// fact is what one change means to a watcher.
type fact struct {
	seq    int64
	events []protocol.Event
	gone   []string
}

// apply carries a written entry into the world and returns what it means. It
// depends on nothing but the world and the entry, so each process that reads
// the log comes to the same world.
func apply(w *World, ix *index, e *entry) fact {
	f := fact{seq: e.Seq}
	w.Seq = e.Seq
	if e.ScriptDone > 0 {
		w.ScriptDone = e.ScriptDone
		ix.scriptDue(w)
	}
	for _, key := range e.Gone {
		applyGone(w, ix, e, key, &f)
	}
	for _, n := range e.Nodes {
		n.Revision, n.Touched = e.Seq, e.Seq
		old := w.Nodes[n.UID]
		f.events = append(f.events, nodeEvents(old, n, e.Time)...)
		w.Nodes[n.UID] = n
		ix.addNode(n)
		if old != nil && old.Unreachable != n.Unreachable {
			for _, p := range ix.podsByNode[n.UID] {
				ix.podDue(w, p)
			}
		}
		if n.Schedulable && (old == nil || !old.Schedulable) {
			for _, p := range ix.podsByNode[""] { // what waits for a node may go now
				ix.dirty[p.OwnerUID] = true
			}
		}
	}
	for _, b := range e.PDBs {
		b.Revision = e.Seq
		w.PDBs[b.Key()] = b
		touchPDB(w, ix, b, e.Seq)
	}
	for _, p := range e.Pods {
		applyPod(w, ix, e, p)
	}
	for _, d := range e.Devices {
		d.Revision, d.Touched = e.Seq, e.Seq
		old := w.Devices[d.UID]
		f.events = append(f.events, deviceEvents(w, old, d, e.Time)...)
		if old != nil {
			ix.dropDevice(old)
		}
		w.Devices[d.UID] = d
		ix.addDevice(d)
		touchNode(w, d.NodeUID, e.Seq)
	}
	for _, d := range e.Deployments {
		d.Revision, d.Touched = e.Seq, e.Seq
		f.events = append(f.events, deploymentEvents(w.Deployments[d.UID], d, e.Time)...)
		w.Deployments[d.UID] = d
		ix.addDeployment(d)
	}
	for _, c := range e.Components {
		c.Revision = e.Seq
		f.events = append(f.events, componentEvents(w.Components[c.UID], c, e.Time)...)
		w.Components[c.UID] = c
		ix.addComponent(c)
	}
	for _, d := range e.Drains {
		d.Revision = e.Seq
		w.Drains[d.Operation] = d
		ix.addDrain(d)
		trimDrains(w)
	}
	return f
}

func applyGone(w *World, ix *index, e *entry, key string, f *fact) {
	kind, uid, _ := strings.Cut(key, "/")
	switch kind {
	case "node":
		n := w.Nodes[uid]
		if n == nil {
			return
		}
		f.events = append(f.events, nodeEvents(n, nil, e.Time)...)
		delete(w.Nodes, uid)
		ix.dropNode(n)
	case "device":
		d := w.Devices[uid]
		if d == nil {
			return
		}
		delete(w.Devices, uid)
		ix.dropDevice(d)
	case "pod":
		p := w.Pods[uid]
		if p == nil {
			return
		}
		delete(w.Pods, uid)
		ix.dropPod(p)
		touchPod(w, ix, p, e.Seq)
		releaseDevices(w, ix, p, e.Seq)
		at := e.Time
		for _, op := range ix.planned[uid] {
			markPlanned(w, op, uid, func(d *DrainPod) { d.Gone = &at; d.Forced = d.Forced || p.Forced })
		}
		delete(ix.planned, uid)
		return // pods are no part of the inventory
	case "pdb":
		delete(w.PDBs, uid)
		return
	case "deployment":
		delete(w.Deployments, uid)
		delete(ix.dirty, uid)
		ix.setDue("roll/"+uid, nil)
	case "component":
		delete(w.Components, uid)
		ix.setDue("upgrade/"+uid, nil)
	}
	f.gone = append(f.gone, key)
}

func applyPod(w *World, ix *index, e *entry, p *Pod) {
	p.Revision = e.Seq
	if old := w.Pods[p.UID]; old != nil {
		ix.dropPod(old)
		if old.NodeUID != p.NodeUID {
			touchNode(w, old.NodeUID, e.Seq)
		}
	}
	w.Pods[p.UID] = p
	ix.addPod(w, p)
	touchPod(w, ix, p, e.Seq)
	if p.DeletedAt != nil {
		for _, op := range ix.planned[p.UID] {
			markPlanned(w, op, p.UID, func(d *DrainPod) { d.Evicted = p.DeletedAt; d.Forced = d.Forced || p.Forced })
		}
	}
}

func markPlanned(w *World, op, uid string, f func(*DrainPod)) {
	d := w.Drains[op]
	if d == nil {
		return
	}
	for i := range d.Pods {
		if d.Pods[i].UID == uid {
			f(&d.Pods[i])
		}
	}
}

// releaseDevices frees the GPUs that a pod held: its processes ended with it.
func releaseDevices(w *World, ix *index, p *Pod, seq int64) {
	if p.GPUs == 0 {
		return
	}
	for uid := range ix.devByNode[p.NodeUID] {
		d := w.Devices[uid]
		if d == nil || !contains(d.Pods, p.UID) {
			continue
		}
		c := *d
		c.Pods = nil
		for _, x := range d.Pods {
			if x != p.UID {
				c.Pods = append(c.Pods, x)
			}
		}
		c.Revision, c.Touched = seq, seq
		w.Devices[uid] = &c
	}
}

// touch notes that what is reported of an object changed, though the object
// itself did not.
func touchNode(w *World, uid string, seq int64) {
	if n := w.Nodes[uid]; n != nil {
		n.Touched = seq
	}
}

func touchPod(w *World, ix *index, p *Pod, seq int64) {
	touchNode(w, p.NodeUID, seq)
	if d := w.Deployments[p.OwnerUID]; d != nil {
		d.Touched = seq
	}
	for _, b := range w.PDBs {
		if b.Namespace == p.Namespace && matchLabels(b.Selector, p.Labels) {
			touchPDB(w, ix, b, seq)
		}
	}
}

// touchPDB: a budget's allowance is part of what is said of each node that has
// one of its pods.
func touchPDB(w *World, ix *index, b *PDB, seq int64) {
	for _, p := range ix.podsBySpace[b.Namespace] {
		if matchLabels(b.Selector, p.Labels) {
			touchNode(w, p.NodeUID, seq)
		}
	}
}

func matchLabels(selector, labels map[string]string) bool {
	for k, v := range selector {
		if labels[k] != v {
			return false
		}
	}
	return len(selector) > 0
}

// maxDrains bounds how many operations' plans are remembered.
const maxDrains = 500

func trimDrains(w *World) {
	for len(w.Drains) > maxDrains {
		oldest := ""
		for op, d := range w.Drains {
			if oldest == "" || d.Revision < w.Drains[oldest].Revision ||
				(d.Revision == w.Drains[oldest].Revision && op < oldest) {
				oldest = op
			}
		}
		delete(w.Drains, oldest)
	}
}
