//go:build kubetest

package kubeflow

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	"github.com/opsplane/opsplane/shared/operation"
)

// moment is where an agent is killed: at its n-th change of the cluster, or at its
// n-th report to the plane, before or after the server did it.
type moment struct {
	server string // "cluster" or "plane"
	n      int
	at     place
}

func (m moment) String() string { return fmt.Sprintf("%s-%d-%s", m.server, m.n, m.at) }

// maxMoments bounds how many are looked for; a drain of three pods has fewer.
const maxMoments = 20

// TestKilledAtEveryBoundary kills the real agent at every one of its changes and
// reports in the course of a drain, and lets another one take over: the drain
// ends in time and is proven, no pod saw a second accepted eviction (one in flight
// at the kill excepted), and nothing stays locked.
func TestKilledAtEveryBoundary(t *testing.T) {
	t.Parallel()
	counts := map[string]int{}
	t.Run("counted", func(t *testing.T) {
		for _, server := range []string{"cluster", "plane"} {
			counts[server] = killedAt(t, moment{server: server, n: maxMoments + 1, at: before})
			if n := counts[server]; n < 4 || n > maxMoments {
				t.Fatalf("an undisturbed drain asked the %s %d times", server, n)
			}
			if server == "plane" { // two reports go as one when the agent is slow
				counts[server]--
			}
		}
	})
	slots := make(chan struct{}, 4)
	for server, n := range counts {
		for i := range n {
			for _, at := range []place{before, after} {
				m := moment{server: server, n: i + 1, at: at}
				t.Run(m.String(), func(t *testing.T) {
					t.Parallel()
					slots <- struct{}{}
					defer func() { <-slots }()
					killedAt(t, m)
				})
			}
		}
	}
}

// killedAt drains a node of three pods by an agent that is killed at the moment,
// and returns how often the moment's server was asked for a change.
func killedAt(t *testing.T, m moment) int {
	rig := kuberig.Shared(t)
	s := newSite(t, rig)
	node := rig.Node("gpu")
	ns := rig.Namespace()
	var planned []types.UID
	for i := range 3 {
		rig.StatefulSet(ns, fmt.Sprintf("s%d", i), 1, kuberig.OnNode(node.Name), kuberig.Shutdown(time.Second))
	}
	for _, p := range rig.PodsOn(node.Name) {
		planned = append(planned, p.UID)
	}

	toPlane := passageTo(t, s.url, http.DefaultTransport)
	toAPI, kubeconfig := toCluster(t, rig, s.user, s.dir)
	real := s.url
	s.url = toPlane.url
	first := s.agent(kubeconfig)
	s.url = real
	s.thing("nodes", node.Name)

	var mu sync.Mutex
	struck := ""
	var killed time.Time
	strike := func(server string) func(r *http.Request, n int, at place) bool {
		return func(r *http.Request, n int, at place) bool {
			mu.Lock()
			defer mu.Unlock()
			if struck == "" && server == m.server && n == m.n && at == m.at {
				first.kill()
				struck, killed = r.URL.Path, time.Now()
			}
			return struck != "" // whatever else was under way dies with it
		}
	}
	toAPI.on(changes, strike("cluster"))
	toPlane.on(func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "/v1/agent/reports") }, strike("plane"))

	asked := s.want("node.drain", "node:"+node.Name, nil, 2*time.Minute)
	undisturbed := m.n > maxMoments
	if !undisturbed {
		s.await("the moment comes", 20*time.Second, func() bool {
			mu.Lock()
			defer mu.Unlock()
			return struck != "" || s.look(asked.ID).Phase.Terminal()
		})
		mu.Lock()
		none := struck == ""
		mu.Unlock()
		if none {
			t.Fatalf("the drain ended before its moment %s: it had %d changes and %d reports", m, toAPI.count(), toPlane.count())
		}
		s.agent("")
	}
	o := s.ended(asked.ID, lease+callDeadline+30*time.Second)
	seen := map[string]int{"cluster": toAPI.count(), "plane": toPlane.count()}[m.server]
	if o.Phase != operation.Succeeded {
		t.Fatalf("killed at %s (%s): %s", m, struck, o)
	}
	if !undisturbed && o.FinishedAt.Sub(killed) > lease+callDeadline+15*time.Second {
		t.Errorf("killed at %s, the drain ended %s later", m, o.FinishedAt.Sub(killed))
	}
	for _, p := range rig.PodsOn(node.Name) {
		for _, uid := range planned {
			if p.UID == uid {
				t.Errorf("pod %s is still there", p.Name)
			}
		}
	}
	onceEach(t, rig, ns, struck)
	// No lock is left: what comes next on the node is taken.
	if o = s.ended(s.want("node.uncordon", "node:"+node.Name, nil, time.Minute).ID, 30*time.Second); o.Phase != operation.Succeeded {
		t.Errorf("the uncordon behind it: %s", o)
	}
	return seen
}

// onceEach reads the audit log: each pod's eviction was accepted once, but for the
// one that was in flight at the kill.
func onceEach(t *testing.T, rig *kuberig.Rig, ns, struck string) {
	t.Helper()
	accepted := map[types.UID]int{}
	for _, e := range rig.Audit() {
		if e.Subresource != "eviction" || e.Namespace != ns || e.Code >= 300 || e.Code == 0 || dry(e) {
			continue
		}
		uid := e.PreconditionUID()
		if uid == "" {
			t.Errorf("an eviction of %s names no UID", e.Name)
		}
		if accepted[uid]++; accepted[uid] > 1 && !strings.HasSuffix(struck, filepath.Join("pods", e.Name, "eviction")) {
			t.Errorf("pod %s (%s) was evicted %d times, killed at %q", e.Name, uid, accepted[uid], struck)
		}
	}
	if len(accepted) == 0 {
		t.Error("the audit log has no eviction")
	}
}

// dry tells whether a request was only to be judged.
func dry(e kuberig.AuditEvent) bool {
	return strings.Contains(e.URI, "dryRun=All") || strings.Contains(string(e.Request), `"dryRun":["All"]`)
}
