package device

import (
	"context"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/host/report"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/node"
	"github.com/opsplane/opsplane/shared/protocol"
)

// preview tells what a reset would meet, from what the host last reported: no Job
// is made for a question, only rehearsed.
func (e *devices) preview(ctx context.Context, r protocol.PreviewRequest) ([]protocol.Blocker, error) {
	a := &protocol.Assignment{TargetUID: r.TargetUID, TargetName: r.TargetName, NodeName: r.NodeName}
	blockers := []protocol.Blocker{}
	add := func(code, why string) {
		blockers = append(blockers, protocol.Blocker{Code: code, Resource: "device/" + r.TargetUID, Detail: why})
	}
	p, err := readPayload(r.Payload)
	if err != nil {
		add("invalid_payload", err.Error())
		return blockers, nil
	}
	d, code, why := e.target(a)
	if code != "" {
		add(code, why)
		return blockers, nil
	}
	var soon []protocol.Blocker // what the deadline has to do with
	if r.DeadlineMS > 0 {
		if b := e.short(time.Duration(r.DeadlineMS)*time.Millisecond, d); b != nil {
			soon = append(soon, *b)
		}
	}
	n, away, err := e.readNode(ctx, d.node)
	if err != nil {
		return nil, fmt.Errorf("preview device.reset: %w", err)
	}
	if away != nil {
		add(away.code, away.why)
		return blockers, nil
	}
	if blockers, err = e.lacks(ctx, n, jobRights); err != nil {
		return nil, fmt.Errorf("preview device.reset: %w", err)
	}
	lacks := len(blockers) > 0
	if blockers = append(blockers, soon...); !lacks {
		refused, err := e.c.ForeseeJob(ctx, e.rehearsed(r, d))
		if err != nil {
			return nil, fmt.Errorf("preview device.reset: %w", err)
		}
		if refused != nil {
			blockers = append(blockers, *refused)
		}
	}
	h, err := e.host(ctx, d.node)
	if err != nil {
		return nil, fmt.Errorf("preview device.reset: %w", err)
	}
	for i := range h.Devices {
		dev := &h.Devices[i]
		if dev.UUID != d.uuid {
			continue
		}
		if code, why := dev.Refusal(h.Fabric); code != "" {
			add(code, why)
		}
		busy, held := dev.Busy(e.cfg.ReleasePersistence)
		if busy == "" {
			return blockers, nil
		}
		on, err := e.resolve(ctx, d, &report.Answer{Device: dev})
		if err != nil {
			return nil, fmt.Errorf("preview device.reset: %w", err)
		}
		if !p.Drain || !on.drainable() {
			add("holder", held)
		}
		if !p.Drain || len(on.pods) == 0 {
			return blockers, nil
		}
		met, err := e.previewDrain(ctx, n, on.pods, time.Duration(r.DeadlineMS)*time.Millisecond)
		if err != nil {
			return nil, fmt.Errorf("preview device.reset: %w", err)
		}
		return append(blockers, met...), nil
	}
	add(report.CodeGone, fmt.Sprintf("node %s reports no device %s", d.node, d.uuid))
	return blockers, nil
}

// rehearsed is the Job of the reset, for a question whether the cluster would take it.
func (e *devices) rehearsed(r protocol.PreviewRequest, d target) *batchv1.Job {
	t := &executor.Task{Attempt: 1, Assignment: &protocol.Assignment{Operation: r.ID, Run: 1, Generation: 1, Type: r.Type,
		TargetUID: r.TargetUID, TargetName: r.TargetName, NodeName: r.NodeName, Payload: r.Payload}}
	return e.job(t, d, report.VerbReset, looking(cluster.MarkOf(t), report.VerbReset))
}

// previewDrain tells what the drain of a device's pods would meet: what a drain of
// the node would of them, and the rights for it that the agent's role lacks.
func (e *devices) previewDrain(ctx context.Context, n *corev1.Node, pods []*corev1.Pod, left time.Duration) ([]protocol.Blocker, error) {
	list, err := e.lacks(ctx, n, node.EvictRights)
	if err != nil {
		return nil, err
	}
	met, err := e.drains.Meet(ctx, n, pods, left)
	if err == nil {
		return append(list, met.Blockers...), nil
	}
	denied := cluster.Denied("node/"+n.Name, err)
	switch {
	case denied == nil:
		return nil, err
	case len(list) == 0: // else the same, asked in another way
		list = append(list, *denied)
	}
	return list, nil
}

// lacks asks which of the rights to make something are missing: no read of a preview
// would meet that.
func (e *devices) lacks(ctx context.Context, n *corev1.Node, rights []cluster.Right) ([]protocol.Blocker, error) {
	list := []protocol.Blocker{}
	for _, right := range rights {
		if right.Verb != "create" {
			continue
		}
		what := right.Attributes()
		if right.Namespace == cluster.OwnNamespace {
			what.Namespace = e.c.Namespace
		}
		read, cancel := e.c.Read(ctx)
		has, err := e.c.Allowed(read, what)
		cancel()
		if err != nil {
			return nil, err
		}
		if !has {
			list = append(list, *right.Missing("node/" + n.Name))
		}
	}
	return list, nil
}
