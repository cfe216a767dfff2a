//go:build kubetest

package kubeflow

import (
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// TestPausedPastItsLease stops the agent's process (SIGSTOP) before or after it has
// made sure that its lease holds, right before an effect that must not come twice,
// for longer than the lease. Another agent carries the operation out; what the first
// one does when it goes on is refused.
func TestPausedPastItsLease(t *testing.T) {
	t.Parallel()
	for name, w := range works() {
		// A drain has many effects and none that must not come twice:
		// TestStoppedAgentComesBackTooLate.
		if name != "drain" {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				pausedAtBoth(t, w)
			})
		}
	}
}

func pausedAtBoth(t *testing.T, w work) {
	t.Run("before the check", func(t *testing.T) {
		t.Parallel()
		taken(t)
		pausedBefore(t, w)
	})
	t.Run("after the check", func(t *testing.T) {
		t.Parallel()
		taken(t)
		pausedAfter(t, w)
	})
}

// pause is an operation under an agent that is stopped, with passages to both
// servers. The agents are users of their own.
type pause struct {
	*site
	*scene
	first         *process
	early, later  string // users of the first and the second agent
	toPlane       *passage
	toAPI         *passage
	asked         op
	stopped, gone chan struct{} // closed when the first agent was stopped, and when it may go on
	once          sync.Once
	woken, told   atomic.Bool // the first agent went on, and told how its work ended
}

func newPause(t *testing.T, w work) *pause {
	s := newSite(t, w.rig(t))
	p := &pause{site: s, scene: w.scene(t, s), early: s.rig.User("early", "system:masters"), later: s.rig.User("later", "system:masters"),
		stopped: make(chan struct{}), gone: make(chan struct{})}
	var kubeconfig string
	p.toPlane = passageTo(t, s.url, http.DefaultTransport)
	p.toAPI, kubeconfig = toCluster(t, s.rig, p.early, s.dir)
	real := s.url
	s.url = p.toPlane.url
	p.first = s.agent(kubeconfig, p.flags...)
	s.url = real
	s.thing(p.kind, p.scene.name)
	s.user = p.later
	return p
}

// stop stops the first agent, once, and tells whether this was it.
func (p *pause) stop() (now bool) {
	p.once.Do(func() {
		p.first.signal(syscall.SIGSTOP)
		close(p.stopped)
		now = true
	})
	return now
}

// takeOver has another agent see the operation through while the first is stopped.
func (p *pause) takeOver(t *testing.T) {
	t.Helper()
	select {
	case <-p.stopped:
	case <-time.After(30 * time.Second):
		t.Fatalf("the first agent did not come to %s: %s", p.step, p.look(p.asked.ID))
	}
	p.agent("", p.flags...)
	o := p.ended(p.asked.ID, lease+callDeadline+90*time.Second)
	if o.Phase != operation.Succeeded || o.Generation < 2 {
		t.Fatalf("by the second agent: %s", o)
	}
	p.proof(t, "")
}

// goOn lets the first agent go on, and waits until it has told the plane how its
// work under the lease ended: it does nothing more for it.
func (p *pause) goOn() {
	p.woken.Store(true)
	p.first.signal(syscall.SIGCONT)
	p.await("the first agent's word on its lease", time.Minute, p.told.Load)
}

// effects are the requests of the first agent that have the step's effect, as the
// audit log has them.
func (p *pause) effects() (all []kuberig.AuditEvent) {
	methods := map[string]string{"create": http.MethodPost, "patch": http.MethodPatch}
	for _, e := range p.rig.Audit(p.early) {
		if methods[e.Verb] == "" {
			continue
		}
		r, err := http.NewRequest(methods[e.Verb], e.URI, nil)
		if err != nil {
			p.t.Fatal(err)
		}
		if p.effect(r, e.Request) {
			all = append(all, e)
		}
	}
	return all
}

// heard looks at what the first agent reports.
func (p *pause) heard(r *http.Request) []protocol.Report {
	all := reported(r)
	for _, x := range all {
		if x.Final != nil && p.woken.Load() {
			p.told.Store(true)
		}
	}
	return all
}

// pausedBefore stops the agent when the plane knows that the step begins.
func pausedBefore(t *testing.T, w work) {
	p := newPause(t, w)
	known := make(chan struct{}) // closed once the step's id is known
	step := ""
	var begins atomic.Int64 // number of the report that the step begins
	p.toPlane.on(reports, func(r *http.Request, n int, at place) bool {
		<-known
		switch {
		case at == before && running(p.heard(r), step):
			begins.Store(int64(n))
		case at == after && begins.Load() == int64(n):
			p.stop()
		}
		return false
	})
	p.asked = p.want(p.typ, p.target, p.payload, 2*time.Minute)
	step = stepID(p.site, p.asked.ID, p.step)
	close(known)
	p.takeOver(t)
	p.goOn()
	if late := p.effects(); len(late) > 0 {
		t.Errorf("the agent that came back asked to %s %s", late[0].Verb, late[0].URI)
	}
	p.proof(t, "")
}

// pausedAfter stops the agent when it has sent the effect, and keeps that from the
// API server until another has had it.
func pausedAfter(t *testing.T, w work) {
	p := newPause(t, w)
	p.toAPI.on(p.changes, func(r *http.Request, _ int, at place) bool {
		if at == before && p.effect(r, body(r)) && p.stop() {
			<-p.gone
		}
		return false
	})
	p.toPlane.on(reports, func(r *http.Request, _ int, at place) bool {
		if at == before {
			p.heard(r)
		}
		return false
	})
	p.asked = p.want(p.typ, p.target, p.payload, 2*time.Minute)
	p.takeOver(t)
	close(p.gone)
	var late []kuberig.AuditEvent
	p.await("the effect that was held up reaches the API server", time.Minute, func() bool {
		late = p.effects()
		return len(late) > 0 && !late[0].Done.IsZero()
	})
	p.late(t, late[0])
	p.goOn()
	if late = p.effects(); len(late) != 1 {
		t.Errorf("the agent that came back asked for its effect %d times", len(late))
	}
}

// stepID is the id of an operation's step.
func stepID(s *site, operation, name string) string {
	s.t.Helper()
	status, b := s.call(http.MethodGet, "/v1/operations/"+operation, nil)
	o := decode[struct{ Plan []struct{ ID, Name string } }](s, status, b)
	for _, x := range o.Plan {
		if x.Name == name {
			return x.ID
		}
	}
	s.t.Fatalf("the %s has no step %s", operation, name)
	return ""
}

// running tells whether reports say that a step runs.
func running(all []protocol.Report, step string) bool {
	for _, r := range all {
		for _, s := range r.Steps {
			if s.StepID == step && s.Phase == operation.StepRunning {
				return true
			}
		}
	}
	return false
}
