package crashtest

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/opsplane/opsplane/agent/executor/sim"
	"github.com/opsplane/opsplane/infra/local"
	"github.com/opsplane/opsplane/shared/operation"
)

// TestBackup copies the ledger under load, makes a folder of the copy and goes
// on with it: what was live at that instant comes to its end.
func TestBackup(t *testing.T) {
	t.Parallel()
	p := newPlane(t, append([]string{"--demo", "--log", "warn"}, short.flags()...)...)
	p.start()
	c := p.client()
	l := &load{c: c, targets: targets{nodes: c.things("nodes", 40), devices: c.things("devices", 320),
		deployments: c.things("deployments", 20)}}
	driving, stop := context.WithCancel(t.Context())
	defer stop()
	var drivers sync.WaitGroup
	for i := range clients {
		drivers.Go(func() { l.run(driving, 7, i) })
	}
	time.Sleep(1500 * time.Millisecond)
	file := filepath.Join(p.dir, "backup.db")
	if out, err := run("backup", file, "--data", p.data); err != nil {
		t.Fatalf("backup: %v\n%s", err, out)
	}
	taken := time.Now()
	if out, err := run("backup", file, "--data", p.data); err == nil {
		t.Errorf("a second backup wrote over the first:\n%s", out)
	}
	time.Sleep(300 * time.Millisecond)
	stop()
	drivers.Wait()
	for _, text := range l.problems {
		t.Error(text)
	}
	token := p.token()
	p.killGroup()

	p.verify(file)
	old := p.data
	p.data = filepath.Join(p.dir, "restored")
	if out, err := run("restore", file, "--data", p.data); err != nil {
		t.Fatalf("restore: %v\n%s", err, out)
	}
	if out, err := run("restore", file, "--data", p.data); err == nil {
		t.Errorf("a second restore wrote over the first:\n%s", out)
	}
	p.verify(p.data)
	// The cluster is where it was; it did not go back in time.
	if err := os.Rename(filepath.Join(old, "sim"), filepath.Join(p.data, "sim")); err != nil {
		t.Fatal(err)
	}
	restarted := time.Now()
	p.start()
	c.token = token // the copy has the token, its folder has no file of it
	before := list[op](c, "/v1/operations")
	if len(before) == 0 {
		t.Fatal("the restored ledger has no operations")
	}
	for _, o := range before {
		goesOn := o.Parent != nil && o.CreatedAt.After(restarted) // a plan of the copy makes its next child
		if o.CreatedAt.After(taken) && !goesOn {
			t.Errorf("operation %s was created after the backup", o.ID)
		}
	}
	c.idle(2 * time.Minute)
	nodes := c.things("nodes", 40)
	if o := c.finish(c.create(request{Type: "node.uncordon", Target: nodes[1].ID, Reason: "goes on", Payload: map[string]any{"take_over": true}}).ID, time.Minute); o.Phase != operation.Succeeded {
		t.Errorf("it is %s: %+v", o.Phase, o.Result)
	}
	// A copy goes back in time: what was live in it and was done since may be done
	// once more. Everything else was done once.
	again := map[string]bool{}
	for _, o := range list[op](c, "/v1/operations") {
		if o.FinishedAt == nil || o.FinishedAt.After(restarted) {
			again[o.ID] = true
		}
	}
	for _, cluster := range local.DemoClusters {
		effects, err := sim.ReadEffects(filepath.Join(p.data, "sim", cluster))
		if err != nil {
			t.Fatal(err)
		}
		if err := sim.CheckOnce(slices.DeleteFunc(effects, func(e sim.Effect) bool { return again[e.Operation] })); err != nil {
			t.Errorf("cluster %s: %v", cluster, err)
		}
	}
	p.verify(p.data)
	t.Logf("%d operations in the backup, %d went on after it", len(before), len(again))
}

// TestPlaneAway takes the plane away for far longer than a lease: the agent
// finishes or stops by itself, keeps what it has to say, and says it when the
// plane is back.
func TestPlaneAway(t *testing.T) {
	t.Parallel()
	p := newPlane(t, short.flags()...)
	p.start()
	c := p.client()
	_, token := p.cluster(c, "slow")
	scenario, state := filepath.Join(p.dir, "slow.yaml"), filepath.Join(p.dir, "sim")
	if err := os.WriteFile(scenario, []byte(slowWorld), 0o600); err != nil {
		t.Fatal(err)
	}
	p.startAgent("first", token, scenario, state)
	nodes := c.things("nodes", 2)
	long := c.create(drain(c)) // its pods take longer than the lease
	quick := c.create(request{Type: "node.cordon", Target: other(nodes).ID, Reason: "quick"})
	c.until(long.ID, time.Minute, "at the evictions", func(o op) bool {
		return o.step("evict") == operation.StepRunning || o.step("wait") == operation.StepRunning
	})
	p.kill()
	time.Sleep(4 * (short.lease + short.call))
	effects, err := sim.ReadEffects(state)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range effects {
		if late := e.Time.Sub(p.down[0].from); late > short.lease {
			t.Errorf("%s of %s was issued %s after the plane had gone, past the lease", e.What, e.Name, late)
		}
	}
	p.start()
	for _, id := range []string{long.ID, quick.ID} {
		if o := c.finish(id, 2*time.Minute); o.Phase != operation.Succeeded {
			t.Errorf("%s is %s: %+v", o.Type, o.Phase, o.Result)
		}
	}
	if effects, err = sim.ReadEffects(state); err != nil {
		t.Fatal(err)
	}
	if err := sim.CheckOnce(effects); err != nil {
		t.Error(err)
	}
	p.verify(p.data)
}

func other(nodes []thing) thing {
	for _, n := range nodes {
		if n.Name != "busy" {
			return n
		}
	}
	return thing{}
}
