package host

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"reflect"
	"runtime"
	"time"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/host/report"
	"github.com/opsplane/opsplane/shared/protocol"
)

// next is a revision that only grows, over restarts too as long as the clock does.
func (e *Executor) next() int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.revision = max(e.revision+1, e.o.Now().UnixMicro())
	return e.revision
}

func (e *Executor) node(b cordonBook, gpus int, ready bool) protocol.Node {
	return protocol.Node{UID: e.uid, Name: e.o.Name, Revision: e.next(), Schedulable: b.Cordon == nil, Ready: ready, Cordon: b.Cordon, GPUs: gpus,
		Labels: map[string]string{"kubernetes.io/hostname": e.o.Name, "kubernetes.io/arch": runtime.GOARCH, "opsplane.io/standalone": "true"}}
}

func (e *Executor) device(d *report.Device) protocol.Device {
	return protocol.Device{UID: d.UUID, Aliases: d.Spellings(e.o.Name), NodeUID: e.uid, NodeName: e.o.Name, Index: d.Index, Product: d.Product,
		Revision: e.next(), Health: d.Health, Detail: d.Detail, Holders: len(d.Holders)}
}

// Snapshot implements executor.Executor. A host whose driver does not answer is a
// node without devices.
func (e *Executor) Snapshot(ctx context.Context) (protocol.Inventory, error) {
	h, err := e.report(ctx)
	if err != nil {
		return protocol.Inventory{}, fmt.Errorf("look at the host: %w", err)
	}
	b, err := e.readCordon()
	if err != nil {
		return protocol.Inventory{}, err
	}
	return e.inventory(&h, b), nil
}

func (e *Executor) inventory(h *report.Host, b cordonBook) protocol.Inventory {
	inv := protocol.Inventory{Nodes: []protocol.Node{e.node(b, len(h.Devices), true)}}
	for i := range h.Devices {
		inv.Devices = append(inv.Devices, e.device(&h.Devices[i]))
	}
	return inv
}

// Watch implements executor.Executor: the host is looked at again and again, and
// what changed is told.
func (e *Executor) Watch(ctx context.Context, f func(executor.Delta)) error {
	var was *seen
	tick := time.NewTicker(e.o.Every)
	defer tick.Stop()
	for {
		h, err := e.report(ctx)
		var b cordonBook
		if err == nil {
			b, err = e.readCordon()
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil: // what was told last stands
			e.o.Log.Warn("the host could not be looked at", slog.Any("err", err))
		default:
			now := &seen{inv: e.inventory(&h, b), lifted: b.Lifted, xids: counts(&h), host: h}
			if d := e.delta(was, now); was == nil || len(d.Events) > 0 || len(d.Gone) > 0 || len(d.Objects.Nodes)+len(d.Objects.Devices) > 0 {
				f(d)
			}
			was = now
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// seen is the host at one look.
type seen struct {
	inv    protocol.Inventory
	lifted *protocol.Cordon // by which operation, the last time; nil: by none
	xids   map[string]int   // by device and code
	host   report.Host
}

func xidKey(uuid string, code int) string { return fmt.Sprintf("%s/%d", uuid, code) }

func counts(h *report.Host) map[string]int {
	out := map[string]int{}
	for _, d := range h.Devices {
		for _, x := range d.XIDs {
			out[xidKey(d.UUID, x.Code)] = x.Count
		}
	}
	return out
}

// delta is what changed between two looks, and what that means. The first look
// tells of objects alone: what came before it is no news.
func (e *Executor) delta(was, now *seen) executor.Delta {
	if was == nil {
		return executor.Delta{Objects: now.inv}
	}
	var d executor.Delta
	event := func(typ, kind, uid, name string, detail map[string]any) {
		raw, _ := json.Marshal(detail) // maps of plain values always marshal
		d.Events = append(d.Events, protocol.Event{Type: typ, Subject: protocol.Subject{Kind: kind, UID: uid, Name: name}, At: now.host.At.UTC(), Detail: raw})
	}
	a, b := was.inv.Nodes[0], now.inv.Nodes[0]
	if !sameNode(a, b) {
		d.Objects.Nodes = []protocol.Node{b}
	}
	switch {
	case a.Schedulable && !b.Schedulable:
		event("node.cordoned", "node", b.UID, b.Name, executor.Cordoned(b.Cordon))
	case !a.Schedulable && b.Schedulable:
		by := now.lifted
		if reflect.DeepEqual(was.lifted, by) { // it is of an earlier time
			by = nil
		}
		event("node.uncordoned", "node", b.UID, b.Name, executor.Uncordoned(by, a.Cordon))
	}
	before := map[string]protocol.Device{}
	for _, x := range was.inv.Devices {
		before[x.UID] = x
	}
	for i, x := range now.inv.Devices {
		old, known := before[x.UID]
		delete(before, x.UID)
		old.Revision = x.Revision
		if !known || !reflect.DeepEqual(old, x) {
			d.Objects.Devices = append(d.Objects.Devices, x)
		}
		detail := map[string]any{"node": x.NodeName, "node_uid": x.NodeUID, "index": x.Index, "health": x.Health, "detail": x.Detail}
		switch {
		case !known:
			event("device.joined", "device", x.UID, x.UID, detail)
		case old.Health == report.HealthOK && x.Health != report.HealthOK:
			event("device.degraded", "device", x.UID, x.UID, detail)
		case old.Health != report.HealthOK && x.Health == report.HealthOK:
			event("device.recovered", "device", x.UID, x.UID, detail)
		}
		for _, xid := range now.host.Devices[i].XIDs {
			if n := xid.Count - was.xids[xidKey(x.UID, xid.Code)]; n > 0 {
				event("device.xid", "device", x.UID, x.UID, map[string]any{"node": x.NodeName, "xid": xid.Code, "name": report.LookUpXID(xid.Code).Name,
					"class": xid.Class, "cause": xid.Cause(), "victim_of": xid.VictimOf, "count": n})
			}
		}
	}
	for uid := range before {
		d.Gone = append(d.Gone, "device/"+uid)
		event("device.left", "device", uid, uid, map[string]any{"node": e.o.Name})
	}
	return d
}

func sameNode(a, b protocol.Node) bool {
	a.Revision = b.Revision
	return reflect.DeepEqual(a, b)
}
