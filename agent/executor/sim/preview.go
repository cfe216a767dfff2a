package sim

import (
	"context"
	"errors"
	"fmt"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/protocol"
)

// Preview tells what an operation would meet now.
func (e *Executor) Preview(_ context.Context, r protocol.PreviewRequest) ([]protocol.Blocker, error) {
	t := &executor.Task{Assignment: &protocol.Assignment{Type: r.Type, TargetUID: r.TargetUID, TargetName: r.TargetName, NodeName: r.NodeName, Payload: r.Payload}}
	blockers := []protocol.Blocker{}
	add := func(code, resource, why string) {
		if code != "" {
			blockers = append(blockers, protocol.Blocker{Code: code, Resource: resource, Detail: why})
		}
	}
	var bad error // in the payload
	known := true
	err := e.store.view(func(w *World, ix *index) {
		switch r.Type {
		case "node.cordon", "node.uncordon", "node.drain":
			n, code, why := findNode(w, ix, r.TargetUID, nodeName(t))
			add(code, "node/"+nodeName(t), why)
			if n == nil {
				return
			}
			var p struct {
				TakeOver bool `json:"take_over"`
			}
			if bad = decode(r.Payload, &p); bad != nil {
				return
			}
			if r.Type == "node.uncordon" && !p.TakeOver && !n.Schedulable && (n.Cordon == nil || n.Cordon.Owner != "opsplane") {
				add("cordon_not_owned", "node/"+n.Name, describe(n.Cordon))
			}
			if r.Type == "node.drain" {
				var plan drainPlan
				if plan, bad = readDrainPlan(t); bad == nil {
					blockers = append(blockers, plan.blockers(w, ix, n)...)
				}
			}
		case "device.reset":
			d := findDevice(w, ix, t)
			if d == nil {
				add("device_gone", r.TargetName, deviceGone(t))
				return
			}
			var p struct {
				Drain bool `json:"drain"`
			}
			if bad = decode(r.Payload, &p); bad != nil {
				return
			}
			g := lookAt(w, d)
			code, why := g.refusal()
			add(code, "device/"+d.UID, why)
			if code, why := g.busy(); !p.Drain || len(g.pods) < len(g.holders) {
				add(code, "device/"+d.UID, why)
			}
			for _, pod := range g.pods {
				if b := budgets(w, ix, pod); p.Drain && len(b) == 1 && b[0].allowed() == 0 {
					blockers = append(blockers, protocol.Blocker{Code: "pdb", Resource: "pod/" + pod.Key(), Rule: "pdb/" + b[0].pdb.Key(), Detail: b[0].String()})
				}
			}
		case "deployment.roll":
			if w.Deployments[r.TargetUID] == nil {
				add("deployment_gone", r.TargetName, deploymentGone(t))
			}
		case "component.upgrade":
			var p upgradePayload
			if bad = decode(r.Payload, &p); bad == nil {
				_, code, why := judgeUpgrade(w, p)
				add(code, "component/"+p.Component, why)
			}
		default:
			known = false
		}
	})
	if err == nil && !known {
		err = errors.New("the type is not known here")
	}
	if bad != nil { // the operation's preflight says the same
		add("invalid_payload", r.TargetName, bad.Error())
	}
	if err != nil {
		return nil, fmt.Errorf("preview %s: %w", r.Type, err)
	}
	return blockers, nil
}
