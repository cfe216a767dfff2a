//go:build kubetest

package kubeflow

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	"github.com/opsplane/opsplane/shared/operation"
)

// TestAPIServerHangs: an API server that takes connections and answers nothing
// makes an agent unready within 15 s, with the reason's name, and it is ready again
// soon after the server goes on. It is alive all the time.
func TestAPIServerHangs(t *testing.T) {
	t.Parallel()
	rig := kuberig.Start(t, kuberig.Options{Nodes: 1})
	s := installed{newSite(t, rig, patient...), rig.Namespace()}
	_, health := s.agent()
	type executor struct {
		OK           bool
		Code, Detail string
	}
	ready := func() (bool, executor) {
		status, body := s.get(health + "/readyz")
		var said struct{ Executor executor }
		if err := json.Unmarshal([]byte(body), &said); err != nil {
			t.Fatalf("%v in %s", err, body)
		}
		return status == http.StatusOK, said.Executor
	}
	s.await("the agent is ready", time.Minute, func() bool { ok, _ := ready(); return ok })
	for range 2 { // the second time it has been away before
		rig.Stop(kuberig.APIServer)
		at := time.Now()
		s.await("the agent is not ready", time.Minute, func() bool { ok, _ := ready(); return !ok })
		t.Logf("told after %s", time.Since(at).Round(100*time.Millisecond))
		if _, x := ready(); x.Code != "api_unavailable" || !strings.Contains(x.Detail, "the API server does not answer since") || !strings.Contains(x.Detail, "no answer within 3s") {
			t.Errorf("the reason: %+v", x)
		}
		if status, body := s.get(health + "/healthz"); status != http.StatusOK {
			t.Errorf("a server that hangs kills the agent: %d %s", status, body)
		}
		rig.Cont(kuberig.APIServer)
		s.await("the agent is ready again", time.Minute, func() bool { ok, _ := ready(); return ok })
	}
}

// TestDrainSaysWhatItEvicted: a drain that had nothing to evict says so, and one
// that ended before says where.
func TestDrainSaysWhatItEvicted(t *testing.T) {
	t.Parallel()
	rig := kuberig.Shared(t)
	s := newSite(t, rig, patient...)
	empty, refused := rig.Node("gpu"), rig.Node("gpu")
	rig.Pod(rig.Namespace(), "nobodys", kuberig.OnNode(refused.Name))
	s.agent("")
	for name, want := range map[string]struct {
		phase   operation.Phase
		message string
	}{
		empty.Name:   {operation.Succeeded, "node is cordoned, it had no pods to evict"},
		refused.Name: {operation.Failed, "node is schedulable, no pod was evicted: it did not get past its step preflight"},
	} {
		s.thing("nodes", name)
		if o := s.ended(s.want("node.drain", "node:"+name, nil, 2*time.Minute).ID, 3*time.Minute); o.Phase != want.phase || o.Result.Message != want.message {
			t.Errorf("%s: %s", name, o)
		}
	}
}
