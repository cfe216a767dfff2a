package sim

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// crowd is a cluster of busy nodes for the tests that kill and compete.
const crowd = `
cluster: crowd
time_scale: 20
speeds: {stop: 400ms, stop_jitter: 1s, start: 300ms, reset: 1s, roll: 2s, upgrade: 1s}
nodes: [{name: "n-%02d", count: 8, gpus: 2}]
deployments: [{name: default/web, replicas: 32}, {name: default/gpu, replicas: 4, gpus: 1}]
pdbs: [{name: default/web-pdb, selector: {app: web}, max_unavailable: 6}]
components: [{name: operator, version: v1.0.0}]
`

// crowdJobs are operations on every part of the crowd. They are named by
// round, so that each round is other operations.
func crowdJobs(r *rig, round int) (jobs []*job, err error) {
	err = r.View(func(w *World) {
		for i, n := range sortedNodes(w)[:4] {
			jobs = append(jobs, newJob(fmt.Sprintf("op_%d_drain%d", round, i), "node.drain", "node:"+n.Name, n.UID, `{}`))
		}
		n := sortedNodes(w)[7]
		for _, d := range w.Devices {
			if d.NodeUID == n.UID && d.Index == 1 {
				jobs = append(jobs, newJob(fmt.Sprintf("op_%d_reset", round), "device.reset", "device:"+d.UID, d.UID, `{"drain":true}`))
			}
		}
		jobs = append(jobs, newJob(fmt.Sprintf("op_%d_roll", round), "deployment.roll", "deployment:default/web", "", `{}`),
			newJob(fmt.Sprintf("op_%d_up", round), "component.upgrade", "cluster:crowd", "", fmt.Sprintf(`{"component":"operator","version":"v1.0.%d"}`, round)))
	})
	return jobs, err
}

// TestMain is also the child that TestKilled kills.
func TestMain(m *testing.M) {
	if dir := os.Getenv("SIM_CHILD_DIR"); dir != "" {
		if err := child(dir, os.Getenv("SIM_CHILD_SCENARIO")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// child works through the operations of a round until it is killed. Each life
// is a generation of its own: it probes, then executes.
func child(dir, scenario string) error {
	var generation int64
	var round int
	fmt.Sscan(os.Getenv("SIM_CHILD_GENERATION"), &generation)
	fmt.Sscan(os.Getenv("SIM_CHILD_ROUND"), &round)
	e, err := Open(Options{Scenario: scenario, StateDir: dir})
	if err != nil {
		return err
	}
	defer e.Close()
	fmt.Println("ready")
	r := &rig{e, dir}
	jobs, err := crowdJobs(r, round)
	if err != nil {
		return err
	}
	return r.all(jobs, generation)
}

// all carries jobs out at once as a generation, until each is done.
func (r *rig) all(jobs []*job, generation int64) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	errs := make([]error, len(jobs))
	for i, j := range jobs {
		wg.Go(func() {
			for range 50 {
				step, o := r.takeOver(ctx, j.generation(generation))
				if step == "" || o.ErrorCode == "fenced" {
					return
				}
				errs[i] = fmt.Errorf("%s at %s: %+v", j.Operation, step, o)
				if o.Class == operation.OutcomePermanent {
					return
				}
				time.Sleep(10 * time.Millisecond)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// TestKilled kills a process at random points of its work, again and again on
// one state folder, and then lets the last generation end the operations: each
// side effect was accepted once, whatever was lost.
func TestKilled(t *testing.T) {
	t.Parallel()
	for _, exclusive := range []bool{false, true} {
		t.Run(fmt.Sprintf("exclusive=%v", exclusive), func(t *testing.T) {
			t.Parallel()
			scenario := written(t, fmt.Sprintf("exclusive: %v\n", exclusive)+crowd)
			dir := t.TempDir()
			kills := 12
			for round := 1; round <= 2; round++ {
				generation := 0
				for range kills / 2 {
					generation++
					cmd := exec.Command(os.Args[0])
					cmd.Env = append(os.Environ(), "SIM_CHILD_DIR="+dir, "SIM_CHILD_SCENARIO="+scenario,
						fmt.Sprintf("SIM_CHILD_GENERATION=%d", generation), fmt.Sprintf("SIM_CHILD_ROUND=%d", round))
					cmd.Stderr = os.Stderr
					out, err := cmd.StdoutPipe()
					if err != nil {
						t.Fatal(err)
					}
					if err := cmd.Start(); err != nil {
						t.Fatal(err)
					}
					if !bufio.NewScanner(out).Scan() {
						t.Fatal("the child did not get ready")
					}
					time.Sleep(time.Duration(rand.IntN(120)) * time.Millisecond)
					_ = cmd.Process.Kill()
					_ = cmd.Wait()
				}
				r := open(t, scenario, dir)
				jobs, err := crowdJobs(r, round)
				if err != nil {
					t.Fatal(err)
				}
				if err := r.all(jobs, int64(generation+1)); err != nil {
					t.Error(err)
				}
				r.effects(t)
				for _, j := range jobs { // leave the nodes as they were
					if j.Type == "node.drain" {
						u := newJob("un_"+j.Operation, "node.uncordon", j.TargetName, j.TargetUID, `{}`)
						if step, o := r.run(t.Context(), u); step != "" {
							t.Error(step, o)
						}
					}
				}
				same(t, r)
				r.Close()
			}
			effects, err := ReadEffects(dir)
			if err != nil || CheckOnce(effects) != nil {
				t.Fatal(err, CheckOnce(effects))
			}
			if accepted(effects, DidReset) != 2 || accepted(effects, DidRestart) != 2 || accepted(effects, DidUpgrade) != 2 || accepted(effects, DidCordon) != 8 {
				t.Errorf("resets %d, restarts %d, upgrades %d, cordons %d", accepted(effects, DidReset), accepted(effects, DidRestart),
					accepted(effects, DidUpgrade), accepted(effects, DidCordon))
			}
		})
	}
}

// same checks that the world in memory is what the folder holds.
func same(t *testing.T, r *rig) {
	t.Helper()
	s := r.store
	s.mu.Lock()
	defer s.mu.Unlock()
	unlock, err := s.acquire()
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	c := &store{dir: s.dir, now: s.now, log: s.log}
	if _, err := c.load(nil); err != nil {
		t.Fatal(err)
	}
	defer c.file.Close()
	if c.w.Seq != s.w.Seq || len(c.w.Pods) != len(s.w.Pods) {
		t.Errorf("the folder holds change %d and %d pods, memory %d and %d", c.w.Seq, len(c.w.Pods), s.w.Seq, len(s.w.Pods))
	}
	for u, p := range s.w.Pods {
		if q := c.w.Pods[u]; q == nil || q.Revision != p.Revision || q.NodeUID != p.NodeUID {
			t.Errorf("pod %s is %+v in memory and %+v in the folder", p.Key(), p, q)
		}
	}
	for u, d := range s.w.Devices {
		if q := c.w.Devices[u]; q == nil || len(q.Pods) != len(d.Pods) || len(q.Resets) != len(d.Resets) || q.Touched != d.Touched {
			t.Errorf("device %s is %+v in memory and %+v in the folder", u, d, q)
		}
	}
	for u, n := range s.w.Nodes {
		if q := c.w.Nodes[u]; q == nil || q.Touched != n.Touched || q.Schedulable != n.Schedulable {
			t.Errorf("node %s is %+v in memory and %+v in the folder", n.Name, n, q)
		}
	}
}

// TestTwoAtOnce gives the same operations to two executors of one folder at the
// same time, as two agents that got one doorbell each.
func TestTwoAtOnce(t *testing.T) {
	t.Parallel()
	scenario, dir := written(t, crowd), t.TempDir()
	a, b := open(t, scenario, dir), open(t, scenario, dir)
	jobs, err := crowdJobs(a, 1)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	errs := make([]error, 2)
	for i, r := range []*rig{a, b} {
		wg.Go(func() { errs[i] = r.all(jobs, int64(i+1)) })
	}
	wg.Wait()
	if errs[1] != nil {
		t.Error("the newer generation:", errs[1])
	}
	effects := a.effects(t)
	if accepted(effects, DidReset) != 1 || accepted(effects, DidRestart) != 1 || accepted(effects, DidUpgrade) != 1 || accepted(effects, DidCordon) != 4 {
		t.Errorf("resets %d, restarts %d, upgrades %d, cordons %d", accepted(effects, DidReset), accepted(effects, DidRestart),
			accepted(effects, DidUpgrade), accepted(effects, DidCordon))
	}
	same(t, a)
	same(t, b)
}

func TestExclusiveHasOneHolder(t *testing.T) {
	bubble(t, func(t *testing.T) {
		dir := t.TempDir()
		r := open(t, "bench", dir)
		if _, err := Open(Options{Scenario: "bench", StateDir: dir}); err == nil || !strings.Contains(err.Error(), "exclusive") {
			t.Fatalf("a second holder got %v", err)
		}
		r.Close()
		open(t, "bench", dir)
	})
}

// TestTornLine: a writer that died inside its write was never answered.
func TestTornLine(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := open(t, "zoo", dir)
	if step, o := r.run(t.Context(), newJob("op_1", "node.cordon", "node:plain", "", `{}`)); step != "" {
		t.Fatal(o)
	}
	path := filepath.Join(dir, logName)
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.WriteString(`{"seq":99,"effect":{"opera`)
	f.Close()
	if step, o := r.run(t.Context(), newJob("op_2", "node.cordon", "node:spare-0", "", `{}`)); step != "" {
		t.Fatal(o)
	}
	r.Close()
	r = open(t, "zoo", dir) // folds the log into the snapshot
	if n := accepted(r.effects(t), DidCordon); n != 2 || r.node(t, "plain").Schedulable || r.node(t, "spare-0").Schedulable {
		t.Fatalf("%d cordons", n)
	}
	if _, err := os.Stat(filepath.Join(dir, "effects-1.jsonl")); err != nil {
		t.Fatal(err)
	}
}

// TestWatch: a watcher hears of what its own and another process change, once,
// and a fresh world's nodes join once.
func TestWatch(t *testing.T) {
	bubble(t, func(t *testing.T) {
		dir := t.TempDir()
		a := open(t, "zoo", dir)
		b := open(t, "zoo", dir)
		type seen struct {
			mu sync.Mutex
			n  map[string]int
		}
		watch := func(r *rig, d time.Duration) *seen {
			s := &seen{n: map[string]int{}}
			ctx, cancel := context.WithTimeout(t.Context(), d)
			t.Cleanup(cancel)
			go func() {
				_ = r.Watch(ctx, func(d executor.Delta) {
					s.mu.Lock()
					defer s.mu.Unlock()
					for _, e := range d.Events {
						s.n[e.Type+" "+e.Subject.Name]++
					}
					for _, n := range d.Objects.Nodes {
						s.n["node "+n.Name]++
					}
					for _, g := range d.Gone {
						s.n["gone "+strings.Split(g, "/")[0]]++
					}
				})
			}()
			return s
		}
		sa, sb := watch(a, 10*time.Second), watch(b, 10*time.Second)
		if step, o := b.run(t.Context(), newJob("op_w", "node.cordon", "node:plain", "", `{}`)); step != "" {
			t.Fatal(o)
		}
		d := a.gpu(t, "gpus", 0)
		if err := a.Mutate(func(w *World) {
			w.Devices[d.UID].Health = HealthDegraded
			for u, n := range w.Nodes {
				switch n.Name {
				case "spare-1":
					delete(w.Nodes, u)
				case "vm":
					n.Ready = false
				}
			}
			for _, dep := range w.Deployments {
				if dep.Name == "fine" {
					dep.OOMs++
					dep.Crashes++
				}
			}
		}); err != nil {
			t.Fatal(err)
		}
		if step, o := a.run(t.Context(), newJob("op_u", "component.upgrade", "cluster:zoo", "", `{"component":"operator","version":"v1.2.3"}`)); step != "" {
			t.Fatal(o)
		}
		want := []string{"node.cordoned plain", "device.degraded " + d.UID, "node.left spare-1", "node.not_ready vm", "deployment.oom zoo/fine",
			"deployment.crash_loop zoo/fine", "component.version_changed operator", "node plain", "gone node"}
		end := time.Now().Add(5 * time.Second)
		for name, s := range map[string]*seen{"a": sa, "b": sb} {
			for _, w := range want {
				for {
					s.mu.Lock()
					n := s.n[w]
					s.mu.Unlock()
					if n > 0 || time.Now().After(end) {
						if n == 0 || (strings.Contains(w, ".") && n > 1) {
							t.Errorf("watcher %s saw %q %d times", name, w, n)
						}
						break
					}
					time.Sleep(10 * time.Millisecond)
				}
			}
			s.mu.Lock()
			if n, wantN := s.n["node.joined plain"], map[string]int{"a": 1, "b": 0}[name]; n != wantN {
				t.Errorf("watcher %s saw the node join %d times", name, n)
			}
			s.mu.Unlock()
		}
		var inv protocol.Inventory
		inv, err := a.Snapshot(t.Context())
		if err != nil || len(inv.Nodes) == 0 || len(inv.Devices) == 0 || len(inv.Deployments) == 0 || len(inv.Components) != 3 {
			t.Fatal(err)
		}
	})
}
