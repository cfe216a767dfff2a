//go:build kubetest

package kubeflow

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// moment is where an agent is killed: at its n-th change of the cluster, before or
// after the API server did it, or at its n-th report of a step, before the plane has
// it. (After it the agent is where it is before its next change, or its next report.)
type moment struct {
	server string // "cluster" or "plane"
	n      int
	at     place
}

func (m moment) String() string { return fmt.Sprintf("%s-%d-%s", m.server, m.n, m.at) }

// comes tells whether a request is the moment. How often an agent asks depends on how
// fast it is, so the report with which its work ends is that of every moment that has
// not come by then.
func (m moment) comes(server string, r *http.Request, n int, at place) bool {
	return server == m.server && at == m.at && n == m.n || m.n <= maxMoments && server == "plane" && at == before && ends(r)
}

// ends tells whether a call reports how the agent's work ended.
func ends(r *http.Request) bool {
	return slices.ContainsFunc(reported(r), func(x protocol.Report) bool { return x.Final != nil })
}

// maxMoments bounds how many are looked for; no operation here has as many.
const maxMoments = 20

// slots are how many times operations are carried out side by side: each has a
// plane and two agents.
var slots = make(chan struct{}, 6)

// taken waits for a slot, which ends with the test.
func taken(t *testing.T) {
	slots <- struct{}{}
	t.Cleanup(func() { <-slots })
}

// TestKilledAtEveryBoundary kills the real agent at every one of its changes and
// reports in the course of an operation, and lets another one take over: the
// operation ends in time and is proven, what it did was done once (an eviction in
// flight at the kill excepted), and nothing stays locked.
func TestKilledAtEveryBoundary(t *testing.T) {
	t.Parallel()
	for name, w := range works() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			killedAtEach(t, w)
		})
	}
}

// killedAtEach goes through the moments of an operation, of which it first counts
// how many there are.
func killedAtEach(t *testing.T, w work) {
	counts := map[string]int{}
	t.Run("counted", func(t *testing.T) {
		taken(t)
		counts = killedAt(t, w, moment{n: maxMoments + 1})
		t.Logf("moments: %v", counts)
	})
	var moments []moment
	for server, least := range map[string]int{"cluster": 1, "plane": 2} {
		n := counts[server]
		if n < least || n > maxMoments {
			t.Fatalf("undisturbed it asked the %s %d times", server, n)
		}
		for i := range n {
			moments = append(moments, moment{server, i + 1, before})
			if server == "cluster" {
				moments = append(moments, moment{server, i + 1, after})
			}
		}
	}
	for _, m := range moments {
		t.Run(m.String(), func(t *testing.T) {
			t.Parallel()
			taken(t)
			killedAt(t, w, m)
		})
	}
}

// killedAt has an operation carried out by an agent that is killed at the moment,
// and returns how often each server was asked for a change.
func killedAt(t *testing.T, w work, m moment) map[string]int {
	s := newSite(t, w.rig(t))
	sc := w.scene(t, s)
	toPlane := passageTo(t, s.url, http.DefaultTransport)
	toAPI, kubeconfig := toCluster(t, s.rig, s.user, s.dir)
	real := s.url
	s.url = toPlane.url
	first := s.agent(kubeconfig, sc.flags...)
	s.url = real
	s.thing(sc.kind, sc.name)

	var mu sync.Mutex
	struck := ""
	var killed time.Time
	strike := func(server string) func(r *http.Request, n int, at place) bool {
		return func(r *http.Request, n int, at place) bool {
			mu.Lock()
			defer mu.Unlock()
			if struck == "" && m.comes(server, r, n, at) {
				first.kill()
				struck, killed = r.URL.Path, time.Now()
			}
			return struck != "" // whatever else was under way dies with it
		}
	}
	toAPI.on(sc.changes, strike("cluster"))
	toPlane.on(boundaries, strike("plane"))

	asked := s.want(sc.typ, sc.target, sc.payload, 2*time.Minute)
	undisturbed := m.n > maxMoments
	if !undisturbed {
		s.await("the moment comes", time.Minute, func() bool {
			mu.Lock()
			defer mu.Unlock()
			return struck != "" || s.look(asked.ID).Phase.Terminal()
		})
		mu.Lock()
		none := struck == ""
		mu.Unlock()
		if none {
			t.Fatalf("the %s ended before its moment %s: it had %d changes and %d reports", sc.typ, m, toAPI.count(), toPlane.count())
		}
		s.agent("", sc.flags...)
	}
	o := s.ended(asked.ID, lease+callDeadline+90*time.Second)
	seen := map[string]int{"cluster": toAPI.count(), "plane": toPlane.count()}
	if o.Phase != operation.Succeeded || len(o.Result.Verified) == 0 {
		t.Fatalf("killed at %s (%s): %s", m, struck, o)
	}
	if !undisturbed && o.FinishedAt.Sub(killed) > lease+callDeadline+time.Minute {
		t.Errorf("killed at %s, the %s ended %s later", m, sc.typ, o.FinishedAt.Sub(killed))
	}
	sc.proof(t, struck)
	if o = s.ended(s.want(sc.next.typ, sc.next.target, sc.next.payload, 2*time.Minute).ID, 3*time.Minute); o.Phase != operation.Succeeded {
		t.Errorf("the %s behind it: %s", sc.next.typ, o)
	}
	return seen
}

// reports tells of the calls by which an agent reports to the plane.
func reports(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "/v1/agent/reports") }

// boundaries tells of those that say where a step stands, or that the work has ended.
func boundaries(r *http.Request) bool {
	return reports(r) && slices.ContainsFunc(reported(r), func(x protocol.Report) bool { return len(x.Steps) > 0 || x.Final != nil })
}

// reported reads what such a call reports, which the plane has not seen yet.
func reported(r *http.Request) []protocol.Report {
	var call struct{ Reports []protocol.Report }
	if json.Unmarshal(body(r), &call) != nil {
		return nil // its sender is gone
	}
	return call.Reports
}

// body reads a request's body on its way; it goes on as it is.
func body(r *http.Request) []byte {
	b, err := io.ReadAll(r.Body)
	_ = r.Body.Close()
	if err != nil {
		b = nil // its sender is gone
	}
	r.Body = io.NopCloser(bytes.NewReader(b))
	return b
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
