package sim

import (
	"fmt"
	"time"
)

// tx is one change under construction. The world is only read through it; what
// is put must be a copy.
type tx struct {
	w   *World
	ix  *index
	now time.Time
	e   entry
}

// reply is the world's answer to an effect.
type reply struct {
	category string // ok, already, refused, conflict, throttled
	code     string // of a refusal
	why      string
	lost     bool // it was carried out and the answer is not to be known
}

func ok(why string) reply      { return reply{category: "ok", why: why} }
func already(why string) reply { return reply{category: "already", why: why} }
func refused(code, format string, args ...any) reply {
	return reply{category: "refused", code: code, why: fmt.Sprintf(format, args...)}
}
func conflict(format string, args ...any) reply {
	return reply{category: "conflict", code: "conflict", why: fmt.Sprintf(format, args...)}
}

// stale is the world's fence: it refuses an older generation of the operation
// that wrote the object last.
func stale(on *Mark, by Mark) (reply, bool) {
	if on == nil || on.Operation != by.Operation || on.Generation <= by.Generation {
		return reply{}, false
	}
	return reply{category: "refused", code: "stale_generation",
		why: fmt.Sprintf("generation %d of %s is newer than %d", on.Generation, on.Operation, by.Generation)}, true
}

// fault uses up a knob: a transient failure answers at once; a lost answer is
// noted for after the effect.
func fault(f *Faults) (r reply, failed, lost bool) {
	if f.Transient > 0 {
		f.Transient--
		return reply{category: "throttled", code: "throttled", why: "the simulated API server is overloaded"}, true, false
	}
	if f.AnswerLost > 0 {
		f.AnswerLost--
		return reply{}, false, true
	}
	return reply{}, false, false
}

func (x *tx) scale(d time.Duration) time.Duration { return scaled(d, x.w.TimeScale) }

func (x *tx) in(d time.Duration) *time.Time {
	t := x.now.Add(x.scale(d)).UTC()
	return &t
}

func (x *tx) stamp() *time.Time {
	t := x.now.UTC()
	return &t
}

func (x *tx) node(n Node) { x.e.Nodes = append(x.e.Nodes, &n) }
func (x *tx) pod(p Pod)   { x.e.Pods = append(x.e.Pods, &p) }
func (x *tx) device(d Device) {
	for i, o := range x.e.Devices { // the scheduler may give out one device twice in a change
		if o.UID == d.UID {
			x.e.Devices[i] = &d
			return
		}
	}
	x.e.Devices = append(x.e.Devices, &d)
}
func (x *tx) deployment(d Deployment) { x.e.Deployments = append(x.e.Deployments, &d) }
func (x *tx) component(c Component)   { x.e.Components = append(x.e.Components, &c) }
func (x *tx) gone(kind, uid string)   { x.e.Gone = append(x.e.Gone, kind+"/"+uid) }

// findNode finds the node that an operation was admitted for: by UID where one
// is known. The reply says why it cannot be acted on.
func findNode(w *World, ix *index, uid, name string) (*Node, string, string) {
	if n := w.Nodes[uid]; n != nil {
		return n, "", ""
	}
	byName := ix.nodeByName[name]
	switch {
	case uid == "" && byName != nil:
		return byName, "", ""
	case byName != nil:
		return nil, "node_replaced", fmt.Sprintf("node %s is another one now: it was admitted as %s and is %s", name, uid, byName.UID)
	default:
		return nil, "node_gone", fmt.Sprintf("node %s (%s) is gone", name, uid)
	}
}
