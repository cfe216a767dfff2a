package sim

import (
	"encoding/json"
	"time"

	"github.com/opsplane/opsplane/agent/executor"
	hostreport "github.com/opsplane/opsplane/agent/executor/host/report"
	"github.com/opsplane/opsplane/shared/protocol"
)

func newEvent(typ, kind, uid, name string, at time.Time, detail map[string]any) protocol.Event {
	e := protocol.Event{Type: typ, Subject: protocol.Subject{Kind: kind, UID: uid, Name: name}, At: at.UTC()}
	if len(detail) > 0 {
		e.Detail, _ = json.Marshal(detail) // maps of plain values always marshal
	}
	return e
}

func nodeEvents(old, n *Node, at time.Time) []protocol.Event {
	if n == nil {
		return []protocol.Event{newEvent("node.left", "node", old.UID, old.Name, at, nil)}
	}
	var events []protocol.Event
	add := func(typ string, detail map[string]any) {
		events = append(events, newEvent(typ, "node", n.UID, n.Name, at, detail))
	}
	if old == nil {
		add("node.joined", nil)
		return events
	}
	if old.Ready && !n.Ready {
		add("node.not_ready", map[string]any{"unreachable": n.Unreachable})
	}
	if !old.Ready && n.Ready {
		add("node.ready", nil)
	}
	if old.Schedulable && !n.Schedulable {
		add("node.cordoned", executor.Cordoned(n.Cordon))
	}
	if !old.Schedulable && n.Schedulable {
		add("node.uncordoned", executor.Uncordoned(n.Lifted, old.Cordon))
	}
	return events
}

func deviceEvents(w *World, old, d *Device, at time.Time) []protocol.Event {
	if old == nil {
		return nil
	}
	node := ""
	if n := w.Nodes[d.NodeUID]; n != nil {
		node = n.Name
	}
	detail := map[string]any{"node": node, "node_uid": d.NodeUID, "index": d.Index, "health": d.Health, "detail": d.Detail}
	var events []protocol.Event
	if d.XIDs > old.XIDs {
		kind := hostreport.LookUpXID(d.XID)
		events = append(events, newEvent("device.xid", "device", d.UID, d.UID, at,
			map[string]any{"node": node, "node_uid": d.NodeUID, "xid": d.XID, "class": kind.Class, "text": kind.Name, "count": d.XIDs - old.XIDs}))
	}
	switch {
	case old.Health == HealthOK && d.Health != HealthOK:
		events = append(events, newEvent("device.degraded", "device", d.UID, d.UID, at, detail))
	case old.Health != HealthOK && d.Health == HealthOK:
		events = append(events, newEvent("device.recovered", "device", d.UID, d.UID, at, detail))
	}
	return events
}

func deploymentEvents(old, d *Deployment, at time.Time) []protocol.Event {
	if old == nil {
		return nil
	}
	var events []protocol.Event
	if d.OOMs > old.OOMs {
		events = append(events, newEvent("deployment.oom", "deployment", d.UID, d.Key(), at, map[string]any{"count": d.OOMs}))
	}
	if d.Crashes > old.Crashes {
		events = append(events, newEvent("deployment.crash_loop", "deployment", d.UID, d.Key(), at, map[string]any{"count": d.Crashes}))
	}
	return events
}

func componentEvents(old, c *Component, at time.Time) []protocol.Event {
	if old == nil || old.Version == c.Version {
		return nil
	}
	return []protocol.Event{newEvent("component.version_changed", "component", c.UID, c.Name, at,
		map[string]any{"from": old.Version, "to": c.Version})}
}
