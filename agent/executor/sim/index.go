package sim

import (
	"strings"
	"time"
)

// index is what is derived from a World to find things fast. It is rebuilt at
// open and kept by apply.
type index struct {
	podsByNode  map[string]map[string]*Pod
	podsByOwner map[string]map[string]*Pod
	podsBySpace map[string]map[string]*Pod
	nodeByName  map[string]*Node
	devByAlias  map[string]string          // lower-case spelling -> UID
	devByNode   map[string]map[string]bool // node UID -> device UIDs
	planned     map[string][]string        // pod UID -> operations that planned it
	due         map[string]time.Time       // what the world does by itself, and when
	dirty       map[string]bool            // deployments whose replicas are to be counted
	next        time.Time                  // the earliest of due; zero: none
	stale       bool                       // next is to be found again
}

func newIndex(w *World) *index {
	ix := &index{
		podsByNode: map[string]map[string]*Pod{}, podsByOwner: map[string]map[string]*Pod{},
		podsBySpace: map[string]map[string]*Pod{},
		nodeByName:  map[string]*Node{}, devByAlias: map[string]string{}, devByNode: map[string]map[string]bool{},
		planned: map[string][]string{}, due: map[string]time.Time{}, dirty: map[string]bool{},
	}
	for _, n := range w.Nodes {
		ix.addNode(n)
	}
	for _, p := range w.Pods {
		ix.addPod(w, p)
	}
	for _, d := range w.Devices {
		ix.addDevice(d)
	}
	for _, d := range w.Deployments {
		ix.addDeployment(d)
	}
	for _, c := range w.Components {
		ix.addComponent(c)
	}
	for _, d := range w.Drains {
		ix.addDrain(d)
	}
	ix.scriptDue(w)
	return ix
}

func (ix *index) setDue(key string, at *time.Time) {
	if at == nil {
		if _, ok := ix.due[key]; ok {
			delete(ix.due, key)
			ix.stale = true
		}
		return
	}
	ix.due[key] = *at
	ix.stale = true
}

// earliest returns what is due first.
func (ix *index) earliest() (key string, at time.Time) {
	for k, t := range ix.due {
		if key == "" || t.Before(at) || (t.Equal(at) && k < key) {
			key, at = k, t
		}
	}
	ix.next, ix.stale = at, false
	return key, at
}

// anyDue tells whether the world has something to do by now.
func (ix *index) anyDue(now time.Time) bool {
	if len(ix.dirty) > 0 {
		return true
	}
	if ix.stale {
		ix.earliest()
	}
	return len(ix.due) > 0 && !ix.next.After(now)
}

func (ix *index) scriptDue(w *World) {
	if w.ScriptDone >= len(w.Script) {
		ix.setDue("script/", nil)
		return
	}
	at := w.Born.Add(scaled(w.Script[w.ScriptDone].At.D(), w.TimeScale))
	ix.setDue("script/", &at)
}

func (ix *index) addNode(n *Node) {
	ix.nodeByName[n.Name] = n
	ix.setDue("vanish/"+n.UID, n.VanishAt)
}

func (ix *index) dropNode(n *Node) {
	if ix.nodeByName[n.Name] != nil && ix.nodeByName[n.Name].UID == n.UID {
		delete(ix.nodeByName, n.Name)
	}
	ix.setDue("vanish/"+n.UID, nil)
}

func put(m map[string]map[string]*Pod, key string, p *Pod) {
	if m[key] == nil {
		m[key] = map[string]*Pod{}
	}
	m[key][p.UID] = p
}

func (ix *index) addPod(w *World, p *Pod) {
	put(ix.podsByNode, p.NodeUID, p)
	put(ix.podsBySpace, p.Namespace, p)
	if p.OwnerUID != "" {
		put(ix.podsByOwner, p.OwnerUID, p)
		ix.dirty[p.OwnerUID] = true
	}
	ix.podDue(w, p)
}

func (ix *index) podDue(w *World, p *Pod) {
	ix.setDue("gone/"+p.UID, nil)
	ix.setDue("ready/"+p.UID, nil)
	switch n := w.Nodes[p.NodeUID]; {
	case p.DeletedAt != nil:
		// A kubelet that cannot be reached never says that a pod has stopped.
		if p.Finalizer == "" && (p.Forced || n == nil || !n.Unreachable) {
			ix.setDue("gone/"+p.UID, p.StopAt)
		}
	case !p.Ready && !p.Completed && p.NodeUID != "":
		ix.setDue("ready/"+p.UID, p.ReadyAt)
	}
}

func (ix *index) dropPod(p *Pod) {
	delete(ix.podsByNode[p.NodeUID], p.UID)
	delete(ix.podsBySpace[p.Namespace], p.UID)
	if p.OwnerUID != "" {
		delete(ix.podsByOwner[p.OwnerUID], p.UID)
		ix.dirty[p.OwnerUID] = true
	}
	ix.setDue("gone/"+p.UID, nil)
	ix.setDue("ready/"+p.UID, nil)
}

func (ix *index) addDevice(d *Device) {
	ix.devByAlias[strings.ToLower(d.UID)] = d.UID
	for _, a := range d.Aliases {
		ix.devByAlias[strings.ToLower(a)] = d.UID
	}
	if ix.devByNode[d.NodeUID] == nil {
		ix.devByNode[d.NodeUID] = map[string]bool{}
	}
	ix.devByNode[d.NodeUID][d.UID] = true
	if r := d.lastReset(); r != nil && !r.Done {
		ix.setDue("reset/"+d.UID, &r.Ends)
	} else {
		ix.setDue("reset/"+d.UID, nil)
	}
}

func (ix *index) dropDevice(d *Device) {
	delete(ix.devByAlias, strings.ToLower(d.UID))
	for _, a := range d.Aliases {
		delete(ix.devByAlias, strings.ToLower(a))
	}
	delete(ix.devByNode[d.NodeUID], d.UID)
	ix.setDue("reset/"+d.UID, nil)
}

func (ix *index) addDeployment(d *Deployment) {
	ix.dirty[d.UID] = true
	if d.Roll != nil && d.RollFault == "" {
		ix.setDue("roll/"+d.UID, &d.Roll.Next)
	} else {
		ix.setDue("roll/"+d.UID, nil)
	}
}

func (ix *index) addComponent(c *Component) {
	if c.Upgrade != nil {
		ix.setDue("upgrade/"+c.UID, &c.Upgrade.Ends)
	} else {
		ix.setDue("upgrade/"+c.UID, nil)
	}
}

func (ix *index) addDrain(d *Drain) {
	for _, p := range d.Pods {
		if p.Gone == nil && !contains(ix.planned[p.UID], d.Operation) {
			ix.planned[p.UID] = append(ix.planned[p.UID], d.Operation)
		}
	}
}

func contains(l []string, s string) bool {
	for _, x := range l {
		if x == s {
			return true
		}
	}
	return false
}

func (d *Device) lastReset() *Reset {
	if len(d.Resets) == 0 {
		return nil
	}
	return &d.Resets[len(d.Resets)-1]
}

// resetOf finds the reset that the run of the operation made.
func (d *Device) resetOf(op string, run int) *Reset {
	for i := range d.Resets {
		if d.Resets[i].Operation == op && d.Resets[i].Run == run {
			return &d.Resets[i]
		}
	}
	return nil
}

// scaled turns a simulated duration into a real one.
func scaled(d time.Duration, scale float64) time.Duration {
	if scale <= 0 {
		return d
	}
	return time.Duration(float64(d) / scale)
}
