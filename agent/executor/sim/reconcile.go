package sim

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// reconcile plays the controllers and the scheduler: each deployment gets the
// replicas that it lacks, on nodes that take pods, and what waited for a node is
// placed.
func (x *tx) reconcile() {
	keys := sortedKeys(x.ix.dirty)
	clear(x.ix.dirty)
	load := map[string]int{} // pods staged onto a node in this change
	for _, key := range keys {
		d := x.w.Deployments[key]
		if d == nil || d.Virtual || d.Kind == OwnerJob {
			continue
		}
		pods := sortedPods(x.ix.podsByOwner[key])
		live, avoid, names := 0, "", map[string]bool{}
		for _, p := range pods {
			if p.DeletedAt != nil {
				avoid = p.NodeUID
				names[p.Name] = true
				continue
			}
			live++
			names[p.Name] = true
			if p.NodeUID == "" {
				if n := x.place(d, load, avoid); n != nil {
					c := *p
					c.NodeUID, c.ReadyAt = n.UID, x.in(d.Start)
					x.pod(c)
					x.give(n, &c)
				}
			}
		}
		if live >= d.Desired {
			continue
		}
		c := *d
		for i := live; i < d.Desired; i++ {
			name := ""
			if d.Kind == OwnerStatefulSet {
				// A stateful replica comes back under its name, once the old one is gone.
				if name = freeOrdinal(d, names); name == "" {
					break
				}
				names[name] = true
			}
			p := x.newPod(&c, name)
			if n := x.place(d, load, avoid); n != nil {
				p.NodeUID, p.ReadyAt = n.UID, x.in(d.Start)
				x.give(n, &p)
			}
			x.pod(p)
		}
		if c.Made != d.Made {
			c.Updated = min(c.Updated, c.Desired)
			x.deployment(c)
		}
	}
}

func freeOrdinal(d *Deployment, taken map[string]bool) string {
	for i := range d.Desired {
		if name := fmt.Sprintf("%s-%d", d.Name, i); !taken[name] {
			return name
		}
	}
	return ""
}

// newPod makes a replica of a deployment; name is empty for one of its own.
func (x *tx) newPod(d *Deployment, name string) Pod {
	return makePod(x.w.Cluster, d, name)
}

func makePod(cluster string, d *Deployment, name string) Pod {
	d.Made++
	id := uid("pod", cluster, d.UID, fmt.Sprint(d.Made))
	if name == "" {
		name = fmt.Sprintf("%s-%s", d.Name, id[:5])
	}
	stop := d.Stop
	if d.StopJitter > 0 {
		h := fnv.New32a()
		h.Write([]byte(id))
		stop += d.StopJitter * time.Duration(h.Sum32()%101) / 100
	}
	return Pod{UID: id, Namespace: d.Namespace, Name: name, Owner: d.Kind, OwnerUID: d.UID, Labels: d.Labels,
		EmptyDir: d.EmptyDir, GPUs: d.GPUs, Template: d.Template, Stop: stop, Grace: d.Grace}
}

// place chooses the node with the fewest pods, and not the one that the pod
// comes from if there is another.
func (x *tx) place(d *Deployment, load map[string]int, avoid string) *Node {
	var best *Node
	bestLoad := 0
	for _, n := range x.w.Nodes {
		if !n.Schedulable || !n.Ready || (len(d.Nodes) > 0 && !contains(d.Nodes, n.Name)) {
			continue
		}
		if d.GPUs > 0 && len(x.freeDevices(n)) < d.GPUs {
			continue
		}
		l := len(x.ix.podsByNode[n.UID]) + load[n.UID]
		if n.UID == avoid {
			l += 1_000_000
		}
		if best == nil || l < bestLoad || (l == bestLoad && n.Name < best.Name) {
			best, bestLoad = n, l
		}
	}
	if best != nil {
		load[best.UID]++
	}
	return best
}

// freeDevices lists the node's GPUs that the device plugin would give out.
func (x *tx) freeDevices(n *Node) []*Device {
	var free []*Device
	for u := range x.ix.devByNode[n.UID] {
		d := x.w.Devices[u]
		for _, o := range x.e.Devices {
			if o.UID == u {
				d = o
			}
		}
		if d.Health != HealthOK || len(d.Pods) > 0 || len(d.Holders) > 0 ||
			(d.ReservedUntil != nil && d.ReservedUntil.After(x.now)) {
			continue
		}
		if r := d.lastReset(); r != nil && !r.Done {
			continue
		}
		free = append(free, d)
	}
	slices.SortFunc(free, func(a, b *Device) int { return cmp.Compare(a.Index, b.Index) })
	return free
}

// give lets a pod hold the GPUs that it asks for.
func (x *tx) give(n *Node, p *Pod) {
	if p.GPUs == 0 {
		return
	}
	for i, d := range x.freeDevices(n) {
		if i == p.GPUs {
			break
		}
		c := *d
		c.Pods = append(slices.Clone(d.Pods), p.UID)
		x.device(c)
	}
}

// rollStep replaces one replica that has the old template, and ends the rollout
// when none is left.
func (x *tx) rollStep(d *Deployment) {
	c := *d
	roll := *d.Roll
	c.Roll = &roll
	every := d.RollFor / time.Duration(max(d.Desired, 1))
	var old *Pod
	for _, p := range sortedPods(x.ix.podsByOwner[d.UID]) {
		if p.DeletedAt == nil && p.Template < d.Template {
			old = p
			break
		}
	}
	if d.Virtual || old == nil {
		c.Updated, c.Roll = c.Desired, nil
		x.deployment(c)
		return
	}
	x.gone("pod", old.UID)
	name := ""
	if d.Kind == OwnerStatefulSet {
		name = old.Name
	}
	p := x.newPod(&c, name)
	p.Ready = true
	if n := x.place(d, map[string]int{}, ""); n != nil {
		p.NodeUID = n.UID
		x.give(n, &p)
	} else {
		p.Ready = false
	}
	x.pod(p)
	c.Updated = min(c.Updated+1, c.Desired)
	roll.Next = *x.in(every)
	x.deployment(c)
}

// uid makes a UUID from names, the same each time: a scenario gives the same
// cluster on every machine.
func uid(parts ...string) string {
	return uuid.NewSHA1(uuid.NameSpaceOID, []byte(strings.Join(parts, "\x00"))).String()
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

func sortedPods(m map[string]*Pod) []*Pod {
	return slices.SortedFunc(maps.Values(m), func(a, b *Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
}

func sortedNodes(w *World) []*Node {
	return slices.SortedFunc(maps.Values(w.Nodes), func(a, b *Node) int { return cmp.Compare(a.Name, b.Name) })
}
