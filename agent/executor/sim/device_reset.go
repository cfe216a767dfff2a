package sim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
)

var resetSteps = map[string]step{
	"preflight":     {(*Executor).probeConfirm, (*Executor).resetPreflight},
	"drain_holders": {(*Executor).probeHolders, (*Executor).drainHolders},
	"reset":         {(*Executor).probeReset, (*Executor).reset},
	"verify":        {(*Executor).probeConfirm, (*Executor).resetVerify},
}

// maxResets bounds how many resets a GPU's host remembers.
const maxResets = 16

// findDevice finds the target GPU under any of its spellings.
func findDevice(w *World, ix *index, t *executor.Task) *Device {
	for _, name := range []string{t.Assignment.TargetUID, strings.TrimPrefix(t.Assignment.TargetName, "device:")} {
		if name == "" {
			continue
		}
		for _, spelled := range []string{name, t.Assignment.NodeName + "/" + name} {
			if d := w.Devices[ix.devByAlias[strings.ToLower(spelled)]]; d != nil {
				return d
			}
		}
	}
	return nil
}

// gpu is a copy of a GPU with what the world says around it.
type gpu struct {
	Device
	node    *Node // nil: gone
	pods    []*Pod
	holders []string // what holds it, in words
}

func (e *Executor) readDevice(t *executor.Task) (g *gpu, err error) {
	err = e.store.view(func(w *World, ix *index) {
		if d := findDevice(w, ix, t); d != nil {
			g = lookAt(w, d)
		}
	})
	return g, err
}

func lookAt(w *World, d *Device) *gpu {
	g := &gpu{Device: *d}
	if n := w.Nodes[d.NodeUID]; n != nil {
		c := *n
		g.node = &c
	}
	for _, u := range d.Pods {
		if p := w.Pods[u]; p != nil {
			c := *p
			g.pods = append(g.pods, &c)
			g.holders = append(g.holders, "pod "+p.Key())
		}
	}
	for _, h := range d.Holders {
		g.holders = append(g.holders, fmt.Sprintf("process %s (%d)", h.Name, h.PID))
	}
	if d.Persistence {
		g.holders = append(g.holders, "persistence mode")
	}
	return g
}

// refusal is what the driver would say to a reset, whatever holds the GPU.
func (g *gpu) refusal() (code, why string) {
	switch {
	case g.node != nil && g.node.Unreachable:
		return "node_unreachable", fmt.Sprintf("node %s is unreachable", g.node.Name)
	case g.InVM:
		return "not_supported", fmt.Sprintf("GPU %s is passed through to a VM, which cannot reset it", g.UID)
	case g.MIGPending:
		return "mig_change_pending", fmt.Sprintf("GPU %s has a MIG mode change pending", g.UID)
	case len(g.NVLinkPeers) > 0:
		return "nvlink_peers", fmt.Sprintf("GPU %s shares NVLink with %s, which would have to be reset with it", g.UID, strings.Join(g.NVLinkPeers, ", "))
	case g.NeedsReboot:
		return "needs_reboot", fmt.Sprintf("GPU %s cannot be reset before its node was rebooted", g.UID)
	case g.ResetRefused != "":
		return g.ResetRefused, fmt.Sprintf("the host refuses to reset GPU %s", g.UID)
	}
	return "", ""
}

func (g *gpu) busy() (code, why string) {
	if len(g.holders) == 0 {
		return "", ""
	}
	return "device_busy", fmt.Sprintf("GPU %s is held by %s", g.UID, strings.Join(g.holders, ", "))
}

// free says what a person can do about the holders. Only pods can be drained.
func (g *gpu) free(drain bool) string {
	if len(g.pods) == len(g.holders) && !drain {
		return "reset with drain, or move the pods away and reset again"
	}
	var acts []string
	if len(g.pods) > 0 && !drain {
		acts = append(acts, "move the pods away")
	}
	if len(g.Holders) > 0 {
		acts = append(acts, "stop the processes that hold the device")
	}
	if g.Persistence {
		acts = append(acts, "turn persistence mode off")
	}
	return strings.Join(append(acts, "reset again"), ", then ")
}

func deviceGone(t *executor.Task) string {
	return fmt.Sprintf("device %s is gone", t.Assignment.TargetUID)
}

func (e *Executor) resetPreflight(_ context.Context, t *executor.Task) executor.Outcome {
	var p struct {
		Drain bool `json:"drain"`
	}
	if err := decode(t.Assignment.Payload, &p); err != nil {
		return executor.Permanent("invalid_payload", err.Error())
	}
	g, err := e.readDevice(t)
	switch {
	case err != nil:
		return e.broken(err)
	case g == nil:
		return executor.Permanent("device_gone", deviceGone(t))
	}
	if code, why := g.refusal(); code != "" {
		return executor.Permanent(code, why)
	}
	if code, why := g.busy(); code != "" && (!p.Drain || len(g.pods) < len(g.holders)) {
		o := executor.Permanent(code, why) // pods can be drained away, processes cannot
		o.ActionText = g.free(p.Drain)
		return o
	}
	return executor.Done(fmt.Sprintf("GPU %s can be reset, %d pods hold it", g.UID, len(g.pods)))
}

func (e *Executor) probeHolders(_ context.Context, t *executor.Task) executor.Finding {
	g, err := e.readDevice(t)
	switch {
	case err != nil:
		return unread(err)
	case g == nil:
		return executor.Lost("device_gone", deviceGone(t))
	case len(g.pods) == 0:
		return executor.Found("no pod holds the device")
	}
	return executor.ToRun(fmt.Sprintf("%d pods hold the device", len(g.pods)))
}

// drainHolders evicts the pods that hold the GPU, within their budgets, and
// waits until they are gone.
func (e *Executor) drainHolders(ctx context.Context, t *executor.Task) executor.Outcome {
	total := 0
	for {
		g, err := e.readDevice(t)
		switch {
		case err != nil:
			return e.broken(err)
		case g == nil:
			return executor.Permanent("device_gone", deviceGone(t))
		}
		total = max(total, len(g.pods))
		message := fmt.Sprintf("%d of %d pods gone", total-len(g.pods), total)
		if len(g.pods) == 0 {
			t.Progress(total, total, "pods", message)
			return executor.Done(message)
		}
		if g.node != nil {
			if err := e.plan(t, round{planned: planned{node: *g.node, left: g.pods}}); err != nil {
				return e.broken(err)
			}
		}
		why, code, act := "it is stopping", "stopping", "reset again with a later deadline"
		for _, pod := range g.pods {
			if pod.DeletedAt != nil {
				continue
			}
			if s := executor.Halted(ctx, t); s != "" {
				return executor.Waiting(s, message)
			}
			if pod.Owner == OwnerNone {
				return executor.Permanent("unmanaged_pod", fmt.Sprintf("pod %s holds the device and has no controller: nothing would start it again", pod.Key()))
			}
			blocked := ""
			if err := e.store.view(func(w *World, ix *index) {
				if b := budgets(w, ix, pod); len(b) == 1 && b[0].allowed() == 0 {
					blocked, code = b[0].String(), "pdb_blocked"
					act = fmt.Sprintf("raise the budget of PDB %s or add replicas, then reset again", b[0].pdb.Key())
				}
			}); err != nil {
				return e.broken(err)
			}
			if blocked != "" {
				why = blocked
				continue
			}
			r, stop := e.removePod(ctx, t, DidEvict, pod, -1, &g.Device)
			if stop != nil {
				return *stop
			}
			if r.code == "pdb_blocked" {
				why, code = r.why, r.code
				_, _, act = executor.Action(code)
			}
		}
		message += fmt.Sprintf(", waiting for pod %s: %s", g.pods[0].Key(), why)
		t.Progress(total-len(g.pods), total, "pods", message)
		if s := wait(ctx, t, pollMost/2); s != "" {
			if s == "interrupted" {
				s = code
			}
			o := executor.Waiting(s, message)
			o.ActionText = act
			return o
		}
	}
}

// probeReset reads the host's high-water mark. A reset that is under way is
// waited for, for a moment: it ends by itself.
func (e *Executor) probeReset(ctx context.Context, t *executor.Task) executor.Finding {
	for range 50 {
		g, err := e.readDevice(t)
		switch {
		case err != nil:
			return unread(err)
		case g == nil:
			return executor.Lost("device_gone", deviceGone(t))
		case g.ProbeUnknown:
			return executor.Finding{Phase: operation.StepUnknown, ErrorCode: "unreadable", Detail: "the host does not say whether the GPU was reset"}
		}
		r := g.resetOf(t.Assignment.Operation, t.Assignment.Run)
		switch {
		case r == nil:
			return executor.ToRun("the host has no reset of this operation on record")
		case r.Done:
			return executor.Found(fmt.Sprintf("the host's record says that the GPU was reset by generation %d", r.Generation))
		}
		if !sleep(ctx, pollMost) {
			break
		}
	}
	return executor.Finding{Phase: operation.StepUnknown, ErrorCode: "in_progress", Detail: "the reset is still under way on the host"}
}

// reset is an effect of kind (a): the host helper keys it by operation, run and
// generation and keeps a high-water mark, so the run resets once and an older
// generation is refused.
func (e *Executor) reset(ctx context.Context, t *executor.Task) executor.Outcome {
	g, err := e.readDevice(t)
	switch {
	case err != nil:
		return e.broken(err)
	case g == nil:
		return executor.Permanent("device_gone", deviceGone(t))
	}
	if s := executor.Halted(ctx, t); s == "interrupted" { // the step is not interruptible
		return executor.Waiting(s, "the reset was not begun")
	}
	t.Progress(0, 1, "devices", "resetting GPU "+g.UID)
	r, stop := e.effect(ctx, t, DidReset, "device/"+g.UID, g.UID, func(x *tx) reply {
		d := x.w.Devices[g.UID]
		if d == nil {
			return refused("device_gone", "device %s is gone", g.UID)
		}
		by := mark(t)
		if last := d.resetOf(by.Operation, by.Run); last != nil {
			if r, is := stale(&last.Mark, by); is {
				return r
			}
			return already(fmt.Sprintf("generation %d of this run reset the GPU at %s", last.Generation, last.At.Format(time.RFC3339)))
		}
		if last := d.lastReset(); last != nil {
			if r, is := stale(&last.Mark, by); is {
				return r
			}
			if !last.Done {
				return refused("device_busy", "GPU %s is being reset by %s", d.UID, last.Operation)
			}
		}
		now := lookAt(x.w, d)
		if code, why := now.refusal(); code != "" {
			return refused(code, "%s", why)
		}
		if code, why := now.busy(); code != "" {
			return refused(code, "%s", why)
		}
		c := *d
		r, failed, lost := fault(&c.Faults)
		if !failed {
			c.Resets = append(slices.Clone(d.Resets), Reset{Mark: by, At: x.now.UTC(), Ends: *x.in(x.w.Speeds.Reset.D())})
			if len(c.Resets) > maxResets {
				c.Resets = slices.Clone(c.Resets[len(c.Resets)-maxResets:])
			}
			c.ReservedUntil = nil
			r = ok("")
			r.lost = lost
		}
		x.device(c)
		return r
	})
	if stop != nil {
		return *stop
	}
	if r.category != "ok" && r.category != "already" {
		return executor.Transient(r.code, r.why)
	}
	for { // the call answers when the GPU is back
		g, err := e.readDevice(t)
		switch {
		case err != nil:
			return executor.Ambiguous(err.Error())
		case g == nil:
			return executor.Permanent("device_gone", deviceGone(t))
		}
		if last := g.resetOf(t.Assignment.Operation, t.Assignment.Run); last != nil && last.Done {
			t.Progress(1, 1, "devices", "GPU "+g.UID+" was reset")
			return executor.Done("the host reset GPU " + g.UID)
		}
		if !sleep(ctx, 20*time.Millisecond) {
			return executor.Ambiguous("the reset of GPU " + g.UID + " was begun and had not ended when its time was up")
		}
	}
}

// resetVerify reads the GPU as usable: that a reset was carried out is not yet
// success.
func (e *Executor) resetVerify(_ context.Context, t *executor.Task) executor.Outcome {
	g, err := e.readDevice(t)
	switch {
	case err != nil:
		return e.broken(err)
	case g == nil:
		return executor.Permanent("device_gone", deviceGone(t))
	case g.Health != HealthOK:
		return executor.Permanent("needs_reboot", fmt.Sprintf("GPU %s is %s after the reset: %s", g.UID, g.Health, g.Detail))
	}
	return executor.Done(fmt.Sprintf("GPU %s is usable", g.UID))
}
