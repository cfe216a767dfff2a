//go:build awstest

package awstest

import (
	"slices"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/operation"
)

// timed is how many operations of each kind time out.
const timed = 100

// The published bounds of how late an operation may end after its deadline
// (DESIGN: "Phases"): at once where nobody may act any more, else when the
// agent's lease and one call have run out, of operation.AWS.
var (
	lateWaiting = 2 * time.Second
	lateRunning = operation.AWS.Lease + operation.AWS.CallDeadline
	// An agent counts the time left from when it sent its claim: it may stop before
	// the plane's clock says so, by as long as the answer was under way.
	early = operation.AWS.CallDeadline
)

// apart is the time between two deadlines. The local AWS is one process: closer
// together they would measure it.
const apart = 300 * time.Millisecond

// making is the time in which the operations are made, on a busy machine too.
const making = 75 * time.Second

// TestDeadlines lets 100 operations time out that nobody has claimed and 100 that
// an agent works on, in pairs, and tells how late the latest was.
func TestDeadlines(t *testing.T) {
	p := deployed(t)
	idle := p.idleNodes("away", timed)
	c := p.register("here")
	p.agent(c, world(t, timed, true))
	held := p.nodes(c.ID, timed)
	type made struct{ waiting, running []string }
	var ops made
	// They are made one after the other, some hundred milliseconds each: the
	// deadlines lie behind the last.
	due := time.Now().Add(making)
	for i := range timed {
		at := due.Add(time.Duration(i) * apart).UTC().Truncate(time.Millisecond)
		ops.waiting = append(ops.waiting, p.create(request{Type: "node.cordon", Target: idle[i].ID, Reason: "nobody is there", Deadline: &at}).ID)
		ops.running = append(ops.running, p.create(request{Type: "node.drain", Target: held[i].ID, Reason: "blocked", Deadline: &at}).ID)
	}
	if now := time.Now(); now.After(due) {
		t.Fatalf("200 operations took %s to make: their deadlines are over", now.Sub(due)+making)
	}
	t.Logf("200 operations made %s before the first deadline", time.Until(due).Round(time.Second))
	p.until(ops.running[timed-1], 40*time.Second, "running", func(o op) bool { return o.Phase == operation.Running })
	check := func(what string, ids []string, bound time.Duration) {
		var late []time.Duration
		for _, id := range ids {
			o := p.finish(id, time.Until(due)+timed*apart+bound+30*time.Second)
			if o.Phase != operation.TimedOut {
				t.Errorf("%s operation %s ended as %s", what, id, o.Phase)
				continue
			}
			if held := len(o.Assignments) > 0; held != (what == "running") {
				t.Errorf("%s operation %s had %d assignments", what, id, len(o.Assignments))
			}
			late = append(late, o.FinishedAt.Sub(o.Deadline))
		}
		slices.Sort(late)
		if len(late) == 0 {
			t.Fatalf("no %s operation timed out", what)
		}
		worst := late[len(late)-1]
		t.Logf("%d %s operations: the first %s, median %s, worst %s late (bound %s)", len(late), what, late[0], late[len(late)/2], worst, bound)
		if worst > bound || late[0] < -early {
			t.Errorf("%s operations ended %s to %s after their deadlines, the bound is %s", what, late[0], worst, bound)
		}
	}
	check("waiting", ops.waiting, lateWaiting)
	check("running", ops.running, lateRunning)
}
