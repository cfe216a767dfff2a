package crashtest

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/operation"
)

const stuck = 100 // operations of each kind that time out

// blockedWorld is a cluster of nodes that cannot be drained: the disruption
// budget of the pod on each allows nothing.
func blockedWorld(t *testing.T, p *plane, name string) string {
	t.Helper()
	var w strings.Builder
	fmt.Fprintf(&w, "cluster: %s\nspeeds: {stop: 100ms, start: 100ms}\nnodes:\n", name)
	for i := range stuck {
		fmt.Fprintf(&w, "  - {name: stuck-%02d, gpus: 1, pods: [{name: work/held-%02d, owner: Job, labels: {app: held-%02d}}]}\n", i, i, i)
	}
	w.WriteString("pdbs:\n")
	for i := range stuck {
		fmt.Fprintf(&w, "  - {name: work/pdb-%02d, selector: {app: held-%02d}, min_available: 1}\n", i, i)
	}
	file := filepath.Join(p.dir, name+".yaml")
	if err := os.WriteFile(file, []byte(w.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// pauses measures, until it is called, for how long at most the machine keeps one
// waiting that asks the plane for next to nothing every 10 ms: on one that is busy with
// other things the plane's own work waits no less.
func (c *client) pauses() (longest func() time.Duration) {
	stop, most := make(chan struct{}), make(chan time.Duration, 1)
	go func() {
		var worst time.Duration
		for {
			began := time.Now()
			c.call(http.MethodGet, "/v1/operations?limit=1", nil, "")
			select {
			case <-stop:
				most <- worst
				return
			case <-time.After(10 * time.Millisecond):
			}
			worst = max(worst, time.Since(began))
		}
	}()
	return sync.OnceValue(func() time.Duration { close(stop); return <-most })
}

// TestDeadlines lets 100 operations time out that nobody can take and 100 that an
// agent works on, and tells how late the latest of each was.
func TestDeadlines(t *testing.T) {
	p := newPlane(t, "--log", "warn")
	p.start()
	c := p.client()
	away, awayToken := p.cluster(c, "away")
	gone := p.startAgent("gone", awayToken, blockedWorld(t, p, "away"), filepath.Join(p.dir, "sim-away"))
	c.thingsOf("nodes", away, stuck)
	gone.in() // it told of its nodes, and stops
	_ = gone.cmd.Wait()
	here, hereToken := p.cluster(c, "here")
	p.startAgent("there", hereToken, blockedWorld(t, p, "here"), filepath.Join(p.dir, "sim-here"), "--concurrency", fmt.Sprint(stuck))
	waiting, running := c.thingsOf("nodes", away, stuck), c.thingsOf("nodes", here, stuck)

	paused := c.pauses()
	var idle, busy []op
	for i := range stuck {
		due := time.Duration(4000+rand.IntN(2000)) * time.Millisecond
		idle = append(idle, c.create(request{Type: "node.cordon", Target: waiting[i].ID, Reason: "nobody is there", Deadline: in(due)}))
		busy = append(busy, c.create(request{Type: "node.drain", Target: running[i].ID, Reason: "blocked", Deadline: in(due)}))
	}
	check := func(what string, ops []op, within time.Duration) {
		worst, sum, begun := time.Duration(0), time.Duration(0), 0
		for _, o := range ops {
			o = c.finish(o.ID, 2*time.Minute)
			if o.Phase != operation.TimedOut || o.Result == nil || o.Result.Cause == nil {
				t.Errorf("%s operation %s is %s: %+v", what, o.ID, o.Phase, o.Result)
				continue
			}
			late := o.FinishedAt.Sub(o.Deadline)
			if late < -2*time.Second {
				t.Errorf("%s operation %s timed out %s before its deadline", what, o.ID, -late)
			}
			worst, sum = max(worst, late), sum+late
			if step := o.step("evict"); what == "running" && step != operation.StepPending && step != operation.StepSkipped {
				begun++
				if !strings.Contains(o.Result.Cause.Detail, "pdb-") {
					t.Errorf("the cause of %s does not name the disruption budget: %+v", o.ID, o.Result.Cause)
				}
			}
			if what == "waiting" && !strings.Contains(o.Result.Cause.Detail, operation.WaitNoAgent) {
				t.Errorf("the cause of %s does not say that there was no agent: %+v", o.ID, o.Result.Cause)
			}
		}
		t.Logf("%d %s operations (%d evicting): latest %s after its deadline, %s on average; the longest pause was %s",
			len(ops), what, begun, worst.Round(time.Millisecond), (sum / stuck).Round(time.Millisecond), paused().Round(time.Millisecond))
		if what == "running" && begun == 0 {
			t.Error("none had begun to evict")
		}
		if within += 5 * paused(); worst > within { // what ends an operation waits several times
			t.Errorf("the latest %s operation ended %s after its deadline; the bound is %s", what, worst, within)
		}
	}
	check("waiting", idle, time.Second)
	check("running", busy, operation.OneMachine.CallDeadline+time.Second)
	p.verify(p.data)
}
