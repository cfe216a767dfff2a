package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/opsplane/opsplane/shared/protocol"
)

// advance carries out what the world does by itself until now: pods stop and
// start, resets and upgrades end, rollouts go on, the script happens, and
// controllers make up the replicas that are missing. It is called under the
// lock, so each happening is written by one process only.
func (s *store) advance(now time.Time) error {
	for range 100_000 { // an end, should a scenario ever feed itself
		if !s.ix.anyDue(now) {
			return nil
		}
		x := &tx{w: s.w, ix: s.ix, now: now}
		if len(s.ix.dirty) > 0 {
			x.reconcile()
		} else {
			key, _ := s.ix.earliest()
			x.happen(key)
			if x.e.empty() { // it came to nothing: do not come again
				s.ix.setDue(key, nil)
			}
		}
		if err := s.commit(x); err != nil {
			return err
		}
	}
	return fmt.Errorf("advance world: it does not come to rest")
}

// happen stages one thing that is due.
func (x *tx) happen(key string) {
	kind, uid, _ := strings.Cut(key, "/")
	switch kind {
	case "gone":
		x.gone("pod", uid)
	case "ready":
		if p := x.w.Pods[uid]; p != nil {
			c := *p
			c.Ready, c.ReadyAt = true, nil
			x.pod(c)
		}
	case "reset":
		if d := x.w.Devices[uid]; d != nil {
			x.resetEnds(d)
		}
	case "upgrade":
		if c := x.w.Components[uid]; c != nil && c.Upgrade != nil {
			u := *c
			u.Version, u.Upgrade, u.Healthy = c.Upgrade.To, nil, !c.StaysBroken
			x.component(u)
		}
	case "roll":
		if d := x.w.Deployments[uid]; d != nil && d.Roll != nil {
			x.rollStep(d)
		}
	case "vanish":
		if n := x.w.Nodes[uid]; n != nil {
			x.nodeLeaves(n)
			if n.Reborn {
				x.nodeReborn(n)
			}
		}
	case "script":
		x.e.ScriptDone = x.w.ScriptDone + 1
		x.script(x.w.Script[x.w.ScriptDone])
	}
}

func (x *tx) resetEnds(d *Device) {
	c := *d
	c.Resets = slices.Clone(d.Resets)
	c.Resets[len(c.Resets)-1].Done = true
	c.ReservedUntil = nil
	switch {
	case d.StaysBroken:
		c.Health, c.Detail = HealthUnusable, "the GPU did not come back after the reset"
	default:
		c.Health, c.Detail = HealthOK, ""
	}
	x.device(c)
}

// nodeLeaves takes a node away with everything on it.
func (x *tx) nodeLeaves(n *Node) {
	for _, p := range sortedPods(x.ix.podsByNode[n.UID]) {
		x.gone("pod", p.UID)
	}
	for _, uid := range sortedKeys(x.ix.devByNode[n.UID]) {
		x.gone("device", uid)
	}
	x.gone("node", n.UID)
}

// nodeReborn makes a node of the same name that is another one: other UIDs,
// schedulable, with GPUs and the pods of the node's own.
func (x *tx) nodeReborn(n *Node) {
	c := Node{UID: uid("node", n.UID, "reborn"), Name: n.Name, Schedulable: true, Ready: true, Labels: n.Labels}
	x.node(c)
	for _, old := range sortedKeys(x.ix.devByNode[n.UID]) {
		d := x.w.Devices[old]
		id := uid("device", old, "reborn")
		x.device(Device{UID: "GPU-" + id, Aliases: aliases("GPU-"+id, c.Name, d.Index), NodeUID: c.UID,
			Index: d.Index, Product: d.Product, Health: HealthOK})
	}
	for _, p := range sortedPods(x.ix.podsByNode[n.UID]) {
		if p.Owner == OwnerDaemonSet || p.Owner == OwnerMirror {
			q := *p
			q.UID, q.NodeUID, q.DeletedAt, q.StopAt, q.Forced = uid("pod", p.UID, "reborn"), c.UID, nil, nil, false
			x.pod(q)
		}
	}
}

// byHand is a cordon, or its lift, that a script has somebody else do.
func byHand(h Happening, now time.Time) *protocol.Cordon {
	return &protocol.Cordon{Owner: "external", By: h.By, Reason: h.Detail, Since: now.UTC()}
}

// script stages one happening of the scenario.
func (x *tx) script(h Happening) {
	switch h.Do {
	case "device.degrade", "device.recover", "device.xid":
		n := x.ix.nodeByName[h.Node]
		if n == nil {
			return
		}
		for u := range x.ix.devByNode[n.UID] {
			d := x.w.Devices[u]
			if d.Index != h.GPU {
				continue
			}
			c := *d
			switch h.Do {
			case "device.degrade":
				c.Health, c.Detail = HealthDegraded, h.Detail
			case "device.recover":
				c.Health, c.Detail = HealthOK, ""
			case "device.xid": // says nothing of whether the device goes on
				c.XID, c.XIDs = h.XID, d.XIDs+1
			}
			x.device(c)
		}
	case "deployment.oom", "deployment.crash_loop":
		for _, d := range x.w.Deployments {
			if d.Key() != h.Deployment {
				continue
			}
			c := *d
			if h.Do == "deployment.oom" {
				c.OOMs++
			} else {
				c.Crashes++
			}
			x.deployment(c)
		}
	case "node.join":
		if x.ix.nodeByName[h.Node] == nil {
			x.node(Node{UID: uid("node", x.w.Cluster, h.Node, fmt.Sprint(x.w.Seq)), Name: h.Node, Schedulable: true, Ready: true})
		}
	case "node.leave":
		if n := x.ix.nodeByName[h.Node]; n != nil {
			x.nodeLeaves(n)
		}
	case "node.cordon", "node.uncordon", "node.unreachable", "node.reachable":
		n := x.ix.nodeByName[h.Node]
		if n == nil {
			return
		}
		c := *n
		switch h.Do {
		case "node.cordon":
			if n.Schedulable {
				c.Schedulable = false
				c.Cordon = byHand(h, x.now)
			}
		case "node.uncordon":
			if !n.Schedulable {
				c.Schedulable, c.Cordon, c.Lifted = true, nil, byHand(h, x.now)
			}
		case "node.unreachable":
			c.Ready, c.Unreachable = false, true
		case "node.reachable":
			c.Ready, c.Unreachable = true, false
		}
		x.node(c)
	}
}
