package sim

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/protocol"
)

func reportNode(w *World, ix *index, n *Node) protocol.Node {
	r := protocol.Node{UID: n.UID, Name: n.Name, Revision: n.Touched, Schedulable: n.Schedulable, Ready: n.Ready, Cordon: n.Cordon,
		Labels: n.Labels, GPUs: len(ix.devByNode[n.UID]), Pods: len(ix.podsByNode[n.UID])}
	p := drainPlan{}
	r.Blockers = p.blockers(w, ix, n)
	return r
}

func reportDevice(w *World, d *Device) protocol.Device {
	r := protocol.Device{UID: d.UID, Aliases: d.Aliases, NodeUID: d.NodeUID, Index: d.Index, Product: d.Product, Revision: d.Touched,
		Health: d.Health, Detail: d.Detail, Holders: len(lookAt(w, d).holders)}
	if n := w.Nodes[d.NodeUID]; n != nil {
		r.NodeName = n.Name
	}
	return r
}

func reportDeployment(ix *index, d *Deployment) protocol.Deployment {
	ready := countReady(ix, d)
	return protocol.Deployment{UID: d.UID, Name: d.Key(), Kind: d.Kind, Revision: d.Touched, Desired: d.Desired, Ready: ready,
		Updated: d.Updated, Image: d.Image, Available: ready >= d.Desired}
}

func reportComponent(c *Component) protocol.Component {
	return protocol.Component{UID: c.UID, Name: c.Name, Version: c.Version, Revision: c.Revision, Healthy: c.Healthy && c.Upgrade == nil}
}

// report lists what changed after a change, in the order of names.
func report(w *World, ix *index, since int64) protocol.Inventory {
	var inv protocol.Inventory
	for _, n := range sortedNodes(w) {
		if n.Touched > since {
			inv.Nodes = append(inv.Nodes, reportNode(w, ix, n))
		}
	}
	for _, d := range w.Devices {
		if d.Touched > since {
			inv.Devices = append(inv.Devices, reportDevice(w, d))
		}
	}
	slices.SortFunc(inv.Devices, func(a, b protocol.Device) int {
		return cmp.Or(cmp.Compare(a.NodeName, b.NodeName), cmp.Compare(a.Index, b.Index))
	})
	for _, d := range slices.SortedFunc(maps.Values(w.Deployments), func(a, b *Deployment) int { return cmp.Compare(a.Key(), b.Key()) }) {
		if d.Touched > since {
			inv.Deployments = append(inv.Deployments, reportDeployment(ix, d))
		}
	}
	for _, c := range slices.SortedFunc(maps.Values(w.Components), func(a, b *Component) int { return cmp.Compare(a.Name, b.Name) }) {
		if c.Revision > since {
			inv.Components = append(inv.Components, reportComponent(c))
		}
	}
	return inv
}

// Snapshot returns the whole inventory.
func (e *Executor) Snapshot(context.Context) (inv protocol.Inventory, err error) {
	err = e.store.view(func(w *World, ix *index) { inv = report(w, ix, 0) })
	return inv, err
}

// watchEvery is how often Watch looks; it also bounds how late it sees what
// another process of the cluster changed.
const watchEvery = 200 * time.Millisecond

// Watch tells of changes and events until ctx ends. It goes on where the last
// Watch of this executor stopped; the first begins at Open.
func (e *Executor) Watch(ctx context.Context, f func(executor.Delta)) error {
	e.mu.Lock()
	at := e.watched
	e.mu.Unlock()
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	for {
		d, now, err := e.since(at)
		if err != nil {
			return err
		}
		if now > at {
			f(d)
			at = now
			e.mu.Lock()
			e.watched = max(e.watched, at)
			e.mu.Unlock()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}

// since gathers what happened after a change. After change 0 it is all that a
// fresh world brought with it.
func (e *Executor) since(at int64) (d executor.Delta, now int64, err error) {
	err = e.store.view(func(w *World, ix *index) {
		now = w.Seq
		if now == at {
			return
		}
		d.Objects = report(w, ix, at)
		for i, fact := range e.store.facts {
			if fact.seq > at {
				for _, f := range e.store.facts[i:] {
					d.Events = append(d.Events, f.events...)
					d.Gone = append(d.Gone, f.gone...)
				}
				break
			}
		}
	})
	return d, now, err
}
