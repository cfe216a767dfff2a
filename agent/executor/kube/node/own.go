package node

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// handOver tells whether the lease is to be handed back because this agent's own
// pod is what is left: once, since a lone agent gets it back and has to go itself.
func (d *drive) handOver() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	k := d.handedKey()
	now := d.c.Now()
	for op, at := range d.handed {
		if now.Sub(at) > time.Hour {
			delete(d.handed, op)
		}
	}
	if _, before := d.handed[k]; before {
		return false
	}
	d.handed[k] = now
	return true
}

// isOwn tells whether the pod is the agent's own.
func (e *drainer) isOwn(p *corev1.Pod) bool { return e.c.PodUID != "" && string(p.UID) == e.c.PodUID }

// wasHanded tells whether this agent has handed the operation back before.
func (d *drive) wasHanded() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, was := d.handed[d.handedKey()]
	return was
}

func (d *drive) handedKey() string {
	return fmt.Sprintf("%s/%d", d.t.Assignment.Operation, d.t.Assignment.Run)
}
