//go:build kubetest

package kubeflow

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	"github.com/opsplane/opsplane/shared/operation"
)

// TestAskedWhileTheAPIServerIsSilent: operations that are asked for while the API
// server takes connections and answers nothing say so soon, whatever type they are of.
// They outlast more than any budget of attempts, and come through when it goes on.
func TestAskedWhileTheAPIServerIsSilent(t *testing.T) {
	t.Parallel()
	rig := kuberig.Start(t, kuberig.Options{Nodes: 1})
	s := newSite(t, rig, patient...)
	reset := resetScene(t, s, false)
	cordoned, drained, closed, rolled := rig.Node("cordoned"), rig.Node("drained"), rig.Node("closed"), rig.Node("rolled")
	ns := rig.Namespace()
	rig.Deployment(ns, "web", 2, kuberig.OnNode(rolled.Name))
	s.agent("", reset.flags...)
	for _, n := range []string{cordoned.Name, drained.Name, closed.Name} {
		s.thing("nodes", n)
	}
	s.thing(reset.kind, reset.name)
	s.thing("deployments", ns+"/web")
	if o := s.ended(s.want("node.cordon", "node:"+closed.Name, nil, 2*time.Minute).ID, 3*time.Minute); o.Phase != operation.Succeeded {
		t.Fatal(o)
	}
	rig.Stop(kuberig.APIServer)
	silent := time.Now()
	asked := map[string]op{}
	for _, a := range []ask{reset.ask, {"deployment.roll", "deployment:" + ns + "/web", nil}, {"node.cordon", "node:" + cordoned.Name, nil}, {"node.drain", "node:" + drained.Name, nil}, {"node.uncordon", "node:" + closed.Name, nil}} {
		asked[a.typ] = s.want(a.typ, a.target, a.payload, 30*time.Minute)
	}
	for typ, o := range asked {
		o = s.until(o.ID, "what does not answer is told", time.Until(silent.Add(40*time.Second)), func(o op) bool { return o.Progress != nil && len(o.Progress.Blockers) > 0 })
		if b := o.Progress.Blockers[0]; b.Code != "api_unavailable" || b.Since == nil || b.Since.Sub(silent) > 20*time.Second {
			t.Errorf("%s: blocker %+v, silent since %s", typ, b, silent.UTC())
		}
		t.Logf("%s is told after %s", typ, time.Since(silent).Round(100*time.Millisecond))
	}
	time.Sleep(time.Until(silent.Add(55 * time.Second))) // five attempts of eight seconds, and what is between them
	rig.Cont(kuberig.APIServer)
	for typ, o := range asked {
		if o = s.ended(o.ID, 2*time.Minute); o.Phase != operation.Succeeded {
			t.Errorf("%s: %s", typ, o)
		}
	}
}

// TestWaitsWhileTheAPIServerFallsSilent: operations that wait on their watches say
// soon that the API server answers nothing, and no longer once it goes on.
func TestWaitsWhileTheAPIServerFallsSilent(t *testing.T) {
	t.Parallel()
	rig := kuberig.Start(t, kuberig.Options{Nodes: 1})
	s := newSite(t, rig, patient...)
	drained, rolled := rig.Node("drained"), rig.Node("rolled")
	ns := rig.Namespace()
	slow := []kuberig.PodOption{kuberig.Grace(90), kuberig.Shutdown(45 * time.Second)}
	rig.Deployment(ns, "served", 1, append(slow, kuberig.OnNode(drained.Name))...)
	rig.Deployment(ns, "web", 2, append(slow, kuberig.OnNode(rolled.Name))...)
	s.agent("")
	s.thing("nodes", drained.Name)
	s.thing("deployments", ns+"/web")
	asked := map[string]op{}
	for _, a := range []ask{{"deployment.roll", "deployment:" + ns + "/web", nil}, {"node.drain", "node:" + drained.Name, nil}} {
		asked[a.typ] = s.want(a.typ, a.target, a.payload, 10*time.Minute)
	}
	held := func(code string) func(o op) bool {
		return func(o op) bool {
			return o.Progress != nil && slices.ContainsFunc(o.Progress.Blockers, func(b operation.Blocker) bool { return b.Code == code })
		}
	}
	away := held(cluster.CodeUnavailable)
	for _, o := range asked {
		s.until(o.ID, "waiting for pods to stop", time.Minute, held("terminating"))
	}
	rig.Stop(kuberig.APIServer)
	silent := time.Now()
	for typ, o := range asked {
		o = s.until(o.ID, "that nothing answers is told", time.Until(silent.Add(40*time.Second)), away)
		i := slices.IndexFunc(o.Progress.Blockers, func(b operation.Blocker) bool { return b.Code == cluster.CodeUnavailable })
		b := o.Progress.Blockers[i]
		pulse := strings.Contains(b.Detail, "does not answer: ") && strings.Contains(b.Detail, "no answer within 3s")
		if b.Since == nil || b.Since.Sub(silent) > 20*time.Second || !pulse {
			t.Errorf("%s: blocker %+v, silent since %s", typ, b, silent.UTC())
		}
		t.Logf("%s tells it after %s", typ, time.Since(silent).Round(100*time.Millisecond))
	}
	rig.Cont(kuberig.APIServer)
	for typ, o := range asked {
		s.until(o.ID, "that it answers again is told", time.Minute, func(o op) bool { return o.Phase.Terminal() || !away(o) })
		if o = s.ended(o.ID, 2*time.Minute); o.Phase != operation.Succeeded {
			t.Errorf("%s: %s", typ, o)
		}
	}
}
