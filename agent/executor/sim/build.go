package sim

import (
	"fmt"
	"strings"
	"time"

	"github.com/opsplane/opsplane/shared/protocol"
)

// defaultGrace is the grace period of a pod that names none (Kubernetes:
// terminationGracePeriodSeconds).
const defaultGrace = 30 * time.Second

// fill makes the maps that are not there.
func (w *World) fill() {
	w.Nodes, w.Pods, w.PDBs = orEmpty(w.Nodes), orEmpty(w.Pods), orEmpty(w.PDBs)
	w.Devices, w.Deployments = orEmpty(w.Devices), orEmpty(w.Deployments)
	w.Components, w.Drains = orEmpty(w.Components), orEmpty(w.Drains)
}

func orEmpty[V any](m map[string]V) map[string]V {
	if m == nil {
		return map[string]V{}
	}
	return m
}

// build makes the world that a scenario describes.
func build(sc *Scenario, now time.Time) (*World, error) {
	w := &World{Cluster: sc.Cluster, Seq: 1, Born: now.UTC(), TimeScale: sc.TimeScale, Exclusive: sc.Exclusive, Speeds: sc.Speeds, Script: sc.Script}
	w.fill()
	x := &tx{w: w, now: now}
	for _, spec := range sc.Nodes {
		for _, name := range names(spec.Name, spec.Count, spec.From) {
			x.buildNode(sc, spec, name)
		}
	}
	for _, spec := range sc.PDBs {
		ns, name, _ := strings.Cut(spec.Name, "/")
		x.e.PDBs = append(x.e.PDBs, &PDB{Namespace: ns, Name: name, Selector: spec.Selector, MinAvailable: spec.MinAvailable, MaxUnavailable: spec.MaxUnavailable})
	}
	for _, spec := range sc.Components {
		x.component(Component{UID: uid("component", sc.Cluster, spec.Name), Name: spec.Name, Version: spec.Version, Min: spec.Min, Max: spec.Max,
			Healthy: true, Takes: or(spec.Takes, sc.Speeds.Upgrade), StaysBroken: spec.StaysBroken, Faults: Faults{spec.Transient, spec.AnswerLost}})
	}
	x.e.Seq, x.e.Time = 1, now.UTC()
	ix := newIndex(w)
	apply(w, ix, &x.e)

	// The deployments' pods are placed as the scheduler would, and are ready.
	for _, spec := range sc.Deployments {
		for _, name := range names(spec.Name, spec.Count, 0) {
			x := &tx{w: w, ix: ix, now: now, e: entry{Seq: 1, Time: now.UTC()}}
			x.buildDeployment(sc, spec, name)
			apply(w, ix, &x.e)
		}
	}
	return w, nil
}

func or(d *Duration, def Duration) time.Duration {
	if d != nil {
		return d.D()
	}
	return def.D()
}

// aliases lists the other spellings of a GPU: the upper-case UUID, and the bus
// id as NVML (eight digits, upper case) and as sysfs (four, lower case) write
// it. A bus id is only unique on its node, so it carries the node's name.
func aliases(id, node string, index int) []string {
	return []string{
		"GPU-" + strings.ToUpper(strings.TrimPrefix(id, "GPU-")),
		fmt.Sprintf("%s/00000000:%02X:00.0", node, 0x18+index*8),
		fmt.Sprintf("%s/0000:%02x:00.0", node, 0x18+index*8),
	}
}

func (x *tx) buildNode(sc *Scenario, spec NodeSpec, name string) {
	n := Node{UID: uid("node", sc.Cluster, name), Name: name, Schedulable: true, Ready: !spec.Unreachable, Unreachable: spec.Unreachable,
		Labels: spec.Labels, Faults: Faults{spec.Transient, spec.AnswerLost}, VanishAfter: spec.VanishAfter.D(), Reborn: spec.Reborn}
	if c := spec.Cordoned; c != nil {
		n.Schedulable = false
		n.Cordon = &protocol.Cordon{Owner: "external", By: c.By, Reason: c.Reason, Since: x.now.UTC()}
	}
	x.node(n)
	gpus := 8
	if spec.GPUs != nil {
		gpus = *spec.GPUs
	}
	product := spec.Product
	if product == "" {
		product = "NVIDIA H100 80GB HBM3"
	}
	devices := make([]*Device, gpus)
	for i := range devices {
		id := "GPU-" + uid("device", sc.Cluster, name, fmt.Sprint(i))
		devices[i] = &Device{UID: id, NodeUID: n.UID, Index: i, Product: product, Health: HealthOK, InVM: spec.VM}
	}
	for _, d := range spec.Devices {
		if d.UID != "" {
			devices[d.Index].UID = "GPU-" + strings.ToLower(strings.TrimPrefix(d.UID, "GPU-"))
		}
	}
	for _, d := range spec.Devices {
		g := devices[d.Index]
		g.Aliases = d.Aliases
		if d.Health != "" {
			g.Health = d.Health
		}
		g.Detail, g.Persistence, g.MIGPending, g.NeedsReboot = d.Detail, d.Persistence, d.MIGPending, d.NeedsReboot
		g.ResetRefused, g.StaysBroken, g.ProbeUnknown, g.Faults = d.ResetRefused, d.StaysBroken, d.ProbeUnknown, Faults{d.Transient, d.AnswerLost}
		for i, h := range d.Holders {
			g.Holders = append(g.Holders, Holder{Name: h, PID: 4000 + i})
		}
		for _, p := range d.NVLinkPeers {
			g.NVLinkPeers = append(g.NVLinkPeers, devices[p].UID)
		}
	}
	for _, g := range devices {
		g.Aliases = append(aliases(g.UID, name, g.Index), g.Aliases...)
		x.device(*g)
	}
	for _, ds := range sc.DaemonSets {
		ns, dn, _ := strings.Cut(ds, "/")
		id := uid("pod", sc.Cluster, name, ds)
		x.pod(Pod{UID: id, Namespace: ns, Name: dn + "-" + id[:5], NodeUID: n.UID, Owner: OwnerDaemonSet,
			Labels: map[string]string{"app": dn}, Ready: true, Grace: defaultGrace})
	}
	for _, spec := range spec.Pods {
		ns, pn, _ := strings.Cut(spec.Name, "/")
		owner := spec.Owner
		if owner == "" {
			owner = OwnerDeployment
		}
		p := Pod{UID: uid("pod", sc.Cluster, name, spec.Name), Namespace: ns, Name: pn, NodeUID: n.UID, Owner: owner, Labels: spec.Labels,
			EmptyDir: spec.EmptyDir, Completed: spec.Completed, Finalizer: spec.Finalizer, GPUs: spec.GPUs, Ready: !spec.Completed,
			Stop: or(spec.Stop, sc.Speeds.Stop), Grace: or(spec.Grace, Duration(defaultGrace)), Faults: Faults{spec.Transient, spec.AnswerLost}}
		x.pod(p)
		if p.GPUs > 0 { // the node's first GPUs that are free
			left := p.GPUs
			for _, g := range devices {
				if left > 0 && len(g.Pods) == 0 {
					g.Pods = append(g.Pods, p.UID)
					x.device(*g)
					left--
				}
			}
		}
	}
}

func (x *tx) buildDeployment(sc *Scenario, spec DeploymentSpec, full string) {
	ns, name, _ := strings.Cut(full, "/")
	kind := spec.Kind
	if kind == "" {
		kind = OwnerDeployment
	}
	sp := sc.Speeds
	d := Deployment{UID: uid("deployment", sc.Cluster, full), Namespace: ns, Name: name, Kind: kind, Desired: spec.Replicas, Updated: spec.Replicas,
		Template: 1, Image: spec.Image, Labels: map[string]string{"app": name}, GPUs: spec.GPUs, EmptyDir: spec.EmptyDir, Nodes: spec.Nodes,
		Stop: or(spec.Stop, sp.Stop), StopJitter: or(spec.StopJitter, sp.StopJitter), Start: or(spec.Start, sp.Start),
		Grace: or(spec.Grace, Duration(defaultGrace)), RollFor: or(spec.Roll, sp.Roll), Virtual: spec.Virtual, RollFault: spec.RollFault,
		Faults: Faults{spec.Transient, spec.AnswerLost}}
	if !d.Virtual {
		load := map[string]int{}
		for i := range d.Desired {
			name := ""
			if kind == OwnerStatefulSet {
				name = fmt.Sprintf("%s-%d", d.Name, i)
			}
			p := x.newPod(&d, name)
			p.Ready = true
			if n := x.place(&d, load, ""); n != nil {
				p.NodeUID = n.UID
				x.give(n, &p)
			} else {
				p.Ready = false
			}
			x.pod(p)
		}
	}
	x.deployment(d)
}
