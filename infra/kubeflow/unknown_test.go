//go:build kubetest

package kubeflow

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	"github.com/opsplane/opsplane/shared/operation"
)

// silentOver tells whether an operation shows, under a later lease, that the API
// server does not answer.
func silentOver(o op) bool {
	return o.Generation > 1 && o.Progress != nil && len(o.Progress.Blockers) > 0 && o.Progress.Blockers[0].Code == cluster.CodeUnavailable
}

// phaseOf is where a step of an operation stands.
func phaseOf(o op, step string) operation.StepPhase {
	for _, s := range o.Plan {
		if s.Name == step {
			return s.Phase
		}
	}
	return ""
}

// TestUnknownWhileTheAPIServerIsSilent: an agent dies with the answer to its cordon,
// and the API server falls silent. The operation says so; the lease over what is
// unknown goes round, and what the agent had not begun stays pending. Once the API
// server goes on the step is settled within seconds, and the drain comes through.
func TestUnknownWhileTheAPIServerIsSilent(t *testing.T) {
	t.Parallel()
	rig := kuberig.Start(t, kuberig.Options{Nodes: 1, Audit: true})
	s := newSite(t, rig)
	node := rig.Node("gpu")
	ns := rig.Namespace()
	rig.Deployment(ns, "web", 2, kuberig.OnNode(node.Name))
	toAPI, kubeconfig := toCluster(t, rig, s.user, s.dir)
	first := s.agent(kubeconfig)
	s.thing("nodes", node.Name)
	var struck atomic.Bool
	toAPI.on(func(r *http.Request) bool {
		return r.Method == http.MethodPatch && strings.HasSuffix(r.URL.Path, "/nodes/"+node.Name)
	}, func(_ *http.Request, _ int, at place) bool {
		if at == after && struck.CompareAndSwap(false, true) {
			first.kill()
		}
		return struck.Load()
	})
	asked := s.want("node.drain", "node:"+node.Name, nil, 10*time.Minute)
	s.await("its agent dies", time.Minute, struck.Load)
	rig.Stop(kuberig.APIServer)
	silent := time.Now()
	s.agent("")

	o := s.until(asked.ID, "said to wait for the API server", lease+callDeadline+90*time.Second, silentOver)
	if b := o.Progress.Blockers[0]; o.Phase != operation.Reconciling || b.Since == nil || b.Since.Before(silent) || !strings.Contains(b.Detail, "does not answer") {
		t.Errorf("%s, blocker %+v, silent since %s", o.Phase, b, silent.UTC())
	}
	// A machine that stalls may cost leases, and so generations: they say nothing here.
	o = s.until(asked.ID, "given back", 3*time.Minute, func(o op) bool { return o.Assignments[len(o.Assignments)-1].Ended == "handed_back" })
	t.Logf("given back %s after the API server fell silent", time.Since(silent).Round(time.Second))
	if phaseOf(o, "cordon") != operation.StepUnknown || phaseOf(o, "evict") != operation.StepPending || phaseOf(o, "wait") != operation.StepPending {
		t.Errorf("%s", o)
	}
	given := o.Generation
	o = s.until(asked.ID, "taken up again", time.Minute, func(o op) bool { return o.Generation > given })
	rig.Cont(kuberig.APIServer)
	back := time.Now()
	o = s.until(asked.ID, "settled", time.Minute, func(o op) bool { return phaseOf(o, "cordon") == operation.StepSucceeded })
	t.Logf("settled %s after the API server went on, under generation %d", time.Since(back).Round(100*time.Millisecond), o.Generation)
	if o = s.ended(asked.ID, 3*time.Minute); o.Phase != operation.Succeeded || len(o.Progress.Blockers) > 0 {
		t.Errorf("the drain: %s", o)
	}
	onceEach(t, rig, ns, "")
}

// TestNothingBegunWhileTheAPIServerIsSilent: an agent dies before it has begun
// anything, while the API server is silent. Nothing is unknown then, nor ever becomes so
// while the leases of its successor go round.
func TestNothingBegunWhileTheAPIServerIsSilent(t *testing.T) {
	t.Parallel()
	rig := kuberig.Start(t, kuberig.Options{Nodes: 1, Audit: true})
	s := newSite(t, rig)
	node := rig.Node("gpu")
	ns := rig.Namespace()
	rig.Deployment(ns, "web", 2, kuberig.OnNode(node.Name))
	first := s.agent("")
	s.thing("nodes", node.Name)
	rig.Stop(kuberig.APIServer)
	asked := s.want("node.drain", "node:"+node.Name, nil, 10*time.Minute)
	s.until(asked.ID, "said to wait for the API server", time.Minute, func(o op) bool { return o.Progress != nil && len(o.Progress.Blockers) > 0 })
	first.kill()
	s.agent("")
	s.until(asked.ID, "said to wait for it by another agent", lease+callDeadline+90*time.Second, func(o op) bool { return silentOver(o) && o.Phase == operation.Running })
	// A machine that stalls may cost leases, and so generations: they say nothing here.
	o := s.until(asked.ID, "given back", 2*time.Minute, func(o op) bool { return o.Assignments[len(o.Assignments)-1].Ended == "handed_back" })
	given := o.Generation
	o = s.until(asked.ID, "taken up again", time.Minute, func(o op) bool { return o.Generation > given })
	for _, step := range []string{"cordon", "evict", "wait", "confirm"} {
		if phaseOf(o, step) != operation.StepPending {
			t.Errorf("step %s is %s", step, phaseOf(o, step))
		}
	}
	rig.Cont(kuberig.APIServer)
	if o = s.ended(asked.ID, 3*time.Minute); o.Phase != operation.Succeeded {
		t.Errorf("the drain: %s", o)
	}
	onceEach(t, rig, ns, "")
}
