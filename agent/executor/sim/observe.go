package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/protocol"
)

// stages is how long each step of an operation took in this process.
type stages struct {
	names []string
	spent map[string]time.Duration
}

// maxStages bounds how many operations' times are kept.
const maxStages = 1_000

// stage counts the time of one attempt of a step.
func (e *Executor) stage(t *executor.Task) func() {
	begin := time.Now()
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		s := e.stages[t.Assignment.Operation]
		if s == nil {
			s = &stages{spent: map[string]time.Duration{}}
			e.stages[t.Assignment.Operation] = s
			if e.order = append(e.order, t.Assignment.Operation); len(e.order) > maxStages {
				delete(e.stages, e.order[0])
				e.order = e.order[1:]
			}
		}
		if _, known := s.spent[t.Step.Name]; !known {
			s.names = append(s.names, t.Step.Name)
		}
		s.spent[t.Step.Name] += time.Since(begin)
	}
}

type stageTime struct {
	Step string `json:"step"`
	MS   int64  `json:"ms"`
}

// podOutcome is what became of one planned pod.
type podOutcome struct {
	Pod     string     `json:"pod"`
	UID     string     `json:"uid"`
	Outcome string     `json:"outcome"` // gone, gone_forced, stopping, left
	Evicted *time.Time `json:"evicted_at,omitempty"`
	Gone    *time.Time `json:"gone_at,omitempty"`
	Detail  string     `json:"detail,omitempty"`
}

type details struct {
	Pods   []podOutcome `json:"pods,omitempty"`
	Stages []stageTime  `json:"stages,omitempty"`
	Resets int          `json:"resets,omitempty"` // of the device, as its host remembers
	forced int
}

// Observe reads the target as it is at the end.
func (e *Executor) Observe(_ context.Context, a *protocol.Assignment) executor.Ending {
	t := &executor.Task{Assignment: a}
	end := executor.Ending{Observed: &protocol.Inventory{}}
	var d details
	e.mu.Lock()
	if s := e.stages[a.Operation]; s != nil {
		for _, name := range s.names {
			d.Stages = append(d.Stages, stageTime{name, s.spent[name].Milliseconds()})
		}
	}
	e.mu.Unlock()
	err := e.store.view(func(w *World, ix *index) {
		switch {
		case strings.HasPrefix(a.Type, "node."):
			e.observeNode(w, ix, t, &end, &d)
		case a.Type == "device.reset":
			e.observeDevice(w, ix, t, &end, &d)
		case a.Type == "deployment.roll":
			observeDeployment(w, ix, t, &end)
		case a.Type == "component.upgrade":
			observeComponent(w, t, &end)
		}
	})
	if err != nil {
		return executor.Ending{Message: "the cluster could not be read: " + err.Error()}
	}
	end.Details, _ = json.Marshal(d) // plain values always marshal
	if len(end.Details) > protocol.MaxDetailsBytes {
		d.Pods = nil
		end.Details, _ = json.Marshal(d)
	}
	return end
}

func (e *Executor) observeNode(w *World, ix *index, t *executor.Task, end *executor.Ending, d *details) {
	n, _, why := findNode(w, ix, t.Assignment.TargetUID, nodeName(t))
	if n == nil {
		end.Message = why
		return
	}
	end.Observed.Nodes = []protocol.Node{reportNode(w, ix, n)}
	left := e.plannedPods(w, n, t, end, d)
	cordon := "node is cordoned"
	if n.Schedulable {
		cordon = "node is schedulable"
	}
	if !executor.StepUnknown(t.Assignment, "cordon") && !executor.StepUnknown(t.Assignment, "uncordon") && !executor.StepUnknown(t.Assignment, "restore") {
		end.Verified = append(end.Verified, cordon)
	}
	end.Message = cordon
	if c := n.Cordon; !n.Schedulable && c != nil && c.Operation == t.Assignment.Operation && !executor.CameThrough(t.Assignment) {
		by := "cordon"
		if s := executor.StepNamed(t.Assignment, "restore"); s.ID != "" {
			by = s.Name // it was to lift the cordon
		}
		end.Leave(t.Assignment, by, fmt.Sprintf("node %s is left cordoned by this operation", n.Name))
	}
	if t.Assignment.Type != "node.drain" {
		return
	}
	end.NotVerified = []string{"application readiness"}
	if c := n.Cordon; !n.Schedulable && c != nil && c.Operation != t.Assignment.Operation {
		end.Verified = append(end.Verified, "the cordon is not this operation's: "+describe(c))
	}
	gone := planned{total: len(d.Pods), gone: len(d.Pods) - left, forced: d.forced}
	if gone.total > 0 {
		end.Message = fmt.Sprintf("%s, %d of %d planned pods gone%s", cordon, gone.gone, gone.total, countForced(gone.forced))
	} else {
		end.Message = cordon + ", " + executor.NoneEvicted(t.Assignment)
	}
}

// plannedPods tells what became of each pod that the operation planned.
func (e *Executor) plannedPods(w *World, n *Node, t *executor.Task, end *executor.Ending, d *details) (left int) {
	plan := w.Drains[t.Assignment.Operation]
	if plan == nil {
		if t.Assignment.Type == "node.drain" && executor.CameThrough(t.Assignment) {
			end.Verified = append(end.Verified, "0 planned pods gone by UID")
		}
		return 0
	}
	evict, wait := "evict", "wait"
	if t.Assignment.Type == "device.reset" {
		evict, wait = "drain_holders", ""
	}
	var kept, stopping []string
	for _, p := range plan.Pods {
		if p.wasForced() {
			d.forced++
		}
		o := podOutcome{Pod: p.Name, UID: p.UID, Outcome: "gone", Evicted: p.Evicted, Gone: p.Gone}
		switch pod := w.Pods[p.UID]; {
		case pod == nil && p.Forced:
			o.Outcome = "gone_forced"
		case pod == nil:
		case pod.DeletedAt != nil:
			o.Outcome = "stopping"
			_, o.Detail = e.staying(pod, *n)
			left++
			stopping = append(stopping, fmt.Sprintf("pod %s (%s)", p.Name, o.Detail))
		default:
			o.Outcome = "left"
			left++
			kept = append(kept, "pod "+p.Name)
		}
		d.Pods = append(d.Pods, o)
	}
	if gone := len(plan.Pods) - left; gone > 0 || left == 0 {
		end.Verified = append(end.Verified, fmt.Sprintf("%d planned pods gone by UID", gone))
	}
	if wait == "" {
		end.LeavePods(t.Assignment, evict, "still on the node", append(kept, stopping...))
		return left
	}
	end.LeavePods(t.Assignment, evict, "not evicted", kept)
	end.LeavePods(t.Assignment, wait, "evicted and still there", stopping)
	return left
}

func (e *Executor) observeDevice(w *World, ix *index, t *executor.Task, end *executor.Ending, d *details) {
	g := findDevice(w, ix, t)
	if g == nil {
		end.Message = deviceGone(t)
		return
	}
	end.Observed.Devices = []protocol.Device{reportDevice(w, g)}
	d.Resets = len(g.Resets)
	if n := w.Nodes[g.NodeUID]; n != nil {
		e.plannedPods(w, n, t, end, d)
	}
	switch r := g.resetOf(t.Assignment.Operation, t.Assignment.Run); {
	case executor.StepUnknown(t.Assignment, "reset"): // whatever is read now may still change
	case r != nil && !r.Done:
		end.Leave(t.Assignment, "reset", fmt.Sprintf("the reset of GPU %s has not ended", g.UID))
	default:
		if r != nil && !g.ProbeUnknown {
			end.Verified = append(end.Verified, fmt.Sprintf("the host reset the GPU at %s", r.Ends.UTC().Format(time.RFC3339)))
		}
		if g.Health == HealthOK {
			end.Verified = append(end.Verified, "GPU is usable")
		} else if r != nil {
			end.Leave(t.Assignment, "verify", strings.TrimSuffix(fmt.Sprintf("GPU %s is %s after the reset: %s", g.UID, g.Health, g.Detail), ": "))
		}
	}
	end.NotVerified = []string{"application readiness"}
	end.Message = fmt.Sprintf("GPU %s is %s", g.UID, g.Health)
}

func observeDeployment(w *World, ix *index, t *executor.Task, end *executor.Ending) {
	var d *Deployment
	for _, x := range w.Deployments {
		if x.UID == t.Assignment.TargetUID || (t.Assignment.TargetUID == "" && x.Key() == strings.TrimPrefix(t.Assignment.TargetName, "deployment:")) {
			d = x
		}
	}
	if d == nil {
		end.Message = deploymentGone(t)
		return
	}
	r := reportDeployment(ix, d)
	end.Observed.Deployments = []protocol.Deployment{r}
	end.NotVerified = []string{"application readiness"}
	if !d.restarted(t) { // what its pods are is nothing that this operation did
		end.Message = fmt.Sprintf("%s does not carry a restart of this operation, %d of %d replicas ready", d.Key(), r.Ready, r.Desired)
		return
	}
	if !executor.StepUnknown(t.Assignment, "restart") {
		end.Verified = append(end.Verified, "the pod template carries this restart")
		if done, _, why := rolled(&replicas{*d, r.Ready}); !done {
			if why == "" {
				why = fmt.Sprintf("%d of %d replicas updated, %d ready", r.Updated, r.Desired, r.Ready)
			}
			end.Leave(t.Assignment, "wait", "the rollout is incomplete: "+why)
		}
	}
	end.Verified = append(end.Verified, fmt.Sprintf("%d of %d replicas updated", r.Updated, r.Desired), fmt.Sprintf("%d of %d replicas ready", r.Ready, r.Desired))
	end.Message = fmt.Sprintf("%d of %d replicas updated, %d ready", r.Updated, r.Desired, r.Ready)
}

func observeComponent(w *World, t *executor.Task, end *executor.Ending) {
	var p upgradePayload
	_ = decode(t.Assignment.Payload, &p) // a bad one has failed in preflight
	c := w.componentNamed(p.Component)
	if c == nil {
		end.Message = fmt.Sprintf("the cluster has no component %q", p.Component)
		return
	}
	end.Observed.Components = []protocol.Component{reportComponent(c)}
	touched := c.Mark != nil && c.Mark.Operation == t.Assignment.Operation
	if !executor.StepUnknown(t.Assignment, "upgrade") {
		end.Verified = []string{fmt.Sprintf("%s reports version %s", c.Name, c.Version)}
		if c.Healthy {
			end.Verified = append(end.Verified, c.Name+" is healthy")
		}
	}
	if touched && c.Upgrade != nil {
		end.Leave(t.Assignment, "upgrade", fmt.Sprintf("the upgrade of %s to %s has not ended", c.Name, c.Upgrade.To))
	} else if touched && !sameVersion(c.Version, p.Version) {
		end.Leave(t.Assignment, "upgrade", fmt.Sprintf("%s is %s, not %s", c.Name, c.Version, p.Version))
	}
	if touched && !c.Healthy {
		end.Leave(t.Assignment, "verify", fmt.Sprintf("%s %s is not healthy", c.Name, c.Version))
	}
	end.NotVerified = []string{"application readiness"}
	end.Message = fmt.Sprintf("%s is %s", c.Name, c.Version)
}
