package crashtest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/opsplane/opsplane/agent/executor/sim"
	"github.com/opsplane/opsplane/shared/operation"
)

// slowWorld has a node with pods that are evicted one by one, each call taking a
// while, and GPUs that take their time to reset.
const slowWorld = `
cluster: slow
speeds: {call: 250ms, stop: 400ms, start: 200ms, reset: 4s}
nodes:
  - name: busy
    gpus: 2
    pods:
      - {name: work/p-0, owner: Job, stop: 4s, grace: 30s}
      - {name: work/p-1, owner: Job}
      - {name: work/p-2, owner: Job, stop: 2s, grace: 30s}
      - {name: work/p-3, owner: Job}
      - {name: work/p-4, owner: Job, stop: 4s, grace: 30s}
      - {name: work/p-5, owner: Job}
      - {name: work/p-6, owner: Job}
      - {name: work/p-7, owner: Job}
  - {name: other, gpus: 2}
`

// TestPausedAgent stops an agent (SIGSTOP) for longer than its lease in the
// middle of its work, lets a second one of the same cluster take over, and wakes
// the first: nothing that it says or does may count any more.
func TestPausedAgent(t *testing.T) {
	evicting := func(_ op, done []sim.Effect) bool { return len(done) >= 3 } // the cordon and two pods
	resetting := func(o op, _ []sim.Effect) bool { return o.step("reset") == operation.StepRunning }
	for _, tc := range []struct {
		name    string
		request func(c *client) request
		mid     func(o op, done []sim.Effect) bool // when the first is stopped
		wakeMid bool                               // it wakes while the second works, not when all is over
	}{
		{"drain, woken at once", drain, evicting, true},
		{"drain, woken late", drain, evicting, false},
		{"reset, woken at once", reset, resetting, true},
		{"reset, woken late", reset, resetting, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			p := newPlane(t, steady.flags()...)
			p.start()
			c := p.client()
			_, token := p.cluster(c, "slow")
			scenario, state := filepath.Join(p.dir, "slow.yaml"), filepath.Join(p.dir, "sim")
			if err := os.WriteFile(scenario, []byte(slowWorld), 0o600); err != nil {
				t.Fatal(err)
			}
			first := p.startAgent("first", token, scenario, state)
			c.things("nodes", 2)
			c.things("devices", 4)
			o := c.create(tc.request(c))
			c.until(o.ID, time.Minute, "in the middle", func(o op) bool {
				effects, err := sim.ReadEffects(state)
				return err == nil && tc.mid(o, effects)
			})
			stopUnlocked(first, filepath.Join(state, "world.lock"))
			stopped := time.Now()
			second := p.startAgent("second", token, scenario, state)
			taken := func(o op) bool { return o.Phase.Terminal() || len(o.Assignments) > 1 }
			o = c.until(o.ID, time.Minute, "taken over", taken)
			if o.Phase.Terminal() && len(o.Assignments) == 1 {
				t.Fatalf("it ended under the first agent: %+v", o.Result)
			}
			if at := o.Assignments[1].From; at.Sub(stopped) < steady.call {
				t.Errorf("the second agent took over %s after the first was stopped", at.Sub(stopped))
			}
			if !tc.wakeMid {
				c.finish(o.ID, 2*time.Minute)
			}
			first.signal(syscall.SIGCONT)
			o = c.finish(o.ID, 2*time.Minute)
			if o.Phase != operation.Succeeded {
				t.Errorf("it is %s: %+v", o.Phase, o.Result)
			}
			time.Sleep(2 * time.Second) // for what the first has left to say
			o = c.operation(o.ID)
			if n := len(o.Assignments); n < 2 || o.Assignments[0].Ended != "lease_lost" || o.Assignments[n-1].Ended != "reported" {
				t.Errorf("assignments: %+v", o.Assignments)
			}
			checkTakeover(t, c, o, state)
			second.in() // asks it to stop
			first.in()
			p.verify(p.data)
		})
	}
}

func drain(c *client) request {
	for _, n := range c.things("nodes", 2) {
		if n.Name == "busy" {
			return request{Type: "node.drain", Target: n.ID, Reason: "firmware", Payload: map[string]any{"force": true}}
		}
	}
	c.t.Fatal("no node busy")
	return request{}
}

func reset(c *client) request {
	return request{Type: "device.reset", Target: c.things("devices", 4)[0].ID, Reason: "XID 79", Payload: map[string]any{"drain": true}}
}

// stopUnlocked stops the agent at a moment when it does not hold the simulated
// cluster's lock: an API server would not stop with it.
func stopUnlocked(a *agent, lock string) {
	a.t.Helper()
	for range 200 {
		a.signal(syscall.SIGSTOP)
		f, err := os.Open(lock)
		if err != nil {
			a.t.Fatal(err)
		}
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		_ = f.Close()
		if err == nil {
			return
		}
		a.signal(syscall.SIGCONT)
		time.Sleep(3 * time.Millisecond)
	}
	a.t.Fatal("the agent always holds the simulated cluster's lock")
}

// checkTakeover: each effect once, none of the first generation after the second
// one's first, and nothing but late reports from the first in the journal.
func checkTakeover(t *testing.T, c *client, o op, state string) {
	t.Helper()
	effects, err := sim.ReadEffects(state)
	if err != nil {
		t.Fatal(err)
	}
	if err := sim.CheckOnce(effects); err != nil {
		t.Error(err)
	}
	newest := int64(0)
	for _, e := range effects {
		if e.Accepted && e.Generation < newest {
			t.Errorf("%s of %s by generation %d was accepted after generation %d's", e.What, e.Name, e.Generation, newest)
		}
		newest = max(newest, e.Generation)
		if from := o.Assignments[1].From; e.Accepted && e.Generation == 1 && e.Time.After(from) {
			t.Errorf("%s of %s by the first agent was accepted %s after the second had taken over", e.What, e.Name, e.Time.Sub(from))
		}
	}
	agents := map[string]bool{}
	for i, e := range c.journal(o.ID) {
		if e.By.Kind != "agent" {
			continue
		}
		agents[e.By.ID] = true
		if e.By.ID == o.Assignments[0].Agent && e.Generation > 1 && e.Kind != operation.EntryLateReport {
			b, _ := json.Marshal(e)
			t.Errorf("entry %d is of the first agent: %s", i+1, b)
		}
	}
	if len(agents) != 2 {
		t.Errorf("the journal names %d agents", len(agents))
	}
	kinds := []string{}
	for _, e := range c.journal(o.ID) {
		kinds = append(kinds, e.Kind)
	}
	if !slices.Contains(kinds, operation.EntryLeaseEnded) {
		t.Errorf("the journal does not tell that the lease ended: %v", kinds)
	}
}
