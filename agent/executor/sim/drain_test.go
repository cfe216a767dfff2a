package sim

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// TestHandsOnDuringDrain: what people do to the node while it is drained.
func TestHandsOnDuringDrain(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		do   func(w *World, n *Node)
		code string
	}{
		"uncordoned": {func(_ *World, n *Node) { n.Schedulable, n.Cordon = true, nil }, "uncordoned_externally"},
		"deleted":    {func(w *World, n *Node) { delete(w.Nodes, n.UID) }, "node_gone"},
		"replaced": {func(w *World, n *Node) {
			delete(w.Nodes, n.UID)
			w.Nodes["other"] = &Node{UID: "other", Name: n.Name, Schedulable: true, Ready: true}
		}, "node_replaced"},
	}
	for name, tc := range tests {
		for _, node := range []string{"blocked-pdb", "slow-pod"} { // in evict, in wait
			t.Run(name+"/"+node, func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					r := open(t, "zoo", t.TempDir())
					n := r.node(t, node)
					j := newJob("op_hands", "node.drain", "node:"+node, n.UID, `{"on_cancel":"restore"}`)
					result := make(chan string)
					go func() {
						_, o := r.run(t.Context(), j)
						result <- o.ErrorCode + " " + o.Class
					}()
					for j.last() == "" {
						time.Sleep(5 * time.Millisecond)
					}
					if err := r.Mutate(func(w *World) { tc.do(w, w.Nodes[n.UID]) }); err != nil {
						t.Fatal(err)
					}
					if got := <-result; got != tc.code+" permanent" {
						t.Fatalf("the drain ended with %s", got)
					}
					before := len(r.effects(t))
					if f := r.Probe(t.Context(), j.task("restore")); f.Phase != operation.StepSucceeded || !f.Nothing {
						t.Fatalf("restore probed: %+v", f)
					}
					if o := r.Execute(t.Context(), j.task("restore")); o.Class != operation.OutcomeDone || !o.Nothing {
						t.Fatalf("restore: %+v", o)
					}
					if after := r.effects(t); len(after) != before {
						t.Fatalf("restore acted on a node that is not its own: %+v", after[before:])
					}
				})
			})
		}
	}
}

func TestCancelAndRestore(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := open(t, "zoo", t.TempDir())
		for _, node := range []string{"blocked-pdb", "cordoned-before"} {
			j := newJob("op_"+node, "node.drain", "node:"+node, "", `{"on_cancel":"restore"}`)
			for _, step := range []string{"preflight", "cordon"} {
				if o := r.Execute(t.Context(), j.task(step)); o.Class != operation.OutcomeDone {
					t.Fatal(o)
				}
			}
			close(j.cancelled)
			if o := r.Execute(t.Context(), j.task("evict")); o.Class != operation.OutcomeWaiting || o.ErrorCode != "cancelled" {
				t.Fatalf("cancelled evict: %+v", o)
			}
			for range 2 { // the second was not told of the first
				if o := r.Execute(t.Context(), j.task("restore")); o.Class != operation.OutcomeDone || o.Nothing != (node == "cordoned-before") {
					t.Fatalf("restore: %+v", o)
				}
				if f := r.Probe(t.Context(), j.task("restore")); f.Phase != operation.StepSucceeded || f.Nothing != (node == "cordoned-before") {
					t.Fatalf("restore probed: %+v", f)
				}
			}
			j = j.generation(2)
			j.Run = 2
			if f := r.Probe(t.Context(), j.task("restore")); f.Phase != operation.StepSucceeded || !f.Nothing {
				t.Fatalf("restore of the next run probed: %+v", f)
			}
		}
		if !r.node(t, "blocked-pdb").Schedulable {
			t.Error("the drain's own cordon was not lifted")
		}
		if r.node(t, "cordoned-before").Schedulable {
			t.Error("a person's cordon was lifted")
		}
	})
}

func TestUncordon(t *testing.T) {
	t.Parallel()
	r := open(t, "zoo", t.TempDir())
	j := newJob("op_1", "node.uncordon", "node:cordoned-before", "", `{}`)
	if step, o := r.run(t.Context(), j); step != "uncordon" || o.ErrorCode != "cordon_not_owned" || o.Class != operation.OutcomePermanent {
		t.Fatalf("at %s with %+v", step, o)
	}
	j = newJob("op_2", "node.uncordon", "node:cordoned-before", "", `{"take_over":true}`)
	if step, o := r.run(t.Context(), j); step != "" || !r.node(t, "cordoned-before").Schedulable {
		t.Fatalf("at %s with %+v", step, o)
	}
	if len(j.notes) != 1 || !strings.HasPrefix(j.notes[0], "cordon_taken_over: the cordon that was lifted: owner external, by alice, reason ") {
		t.Errorf("notes %q", j.notes)
	}
	d, _, err := r.since(1)
	if err != nil {
		t.Fatal(err)
	}
	var told []string
	for _, e := range d.Events {
		if e.Type == "node.uncordoned" {
			told = append(told, string(e.Detail))
		}
	}
	if len(told) != 1 || !strings.Contains(told[0], `"operation":"op_2","owner":"opsplane"`) || !strings.Contains(told[0], `"was":{"by":"alice","owner":"external"`) {
		t.Errorf("of the lift is told %s", told)
	}
}

// TestProbesReadTheTruth: at each step boundary of a drain.
func TestProbesReadTheTruth(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := open(t, "zoo", t.TempDir())
		j := newJob("op_p", "node.drain", "node:plain", "", `{}`)
		probe := func() (done []string) {
			for _, step := range []string{"cordon", "evict", "wait"} {
				if r.Probe(t.Context(), j.task(step)).Phase == operation.StepSucceeded {
					done = append(done, step)
				}
			}
			return done
		}
		for i, step := range append(j.plan(), "") {
			want := []string{"cordon", "evict", "wait"}[:min(max(i-1, 0), 3)]
			got := probe()
			if i == 3 && len(got) == 3 { // the pods may be gone already
				got = got[:2]
			}
			if !slices.Equal(got, want) {
				t.Errorf("before %q the probes find %v done, not %v", step, got, want)
			}
			if step != "" {
				if o := r.Execute(t.Context(), j.task(step)); o.Class != operation.OutcomeDone {
					t.Fatal(o)
				}
			}
		}
		end := r.Observe(t.Context(), &j.Assignment)
		var d details
		if err := json.Unmarshal(end.Details, &d); err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(end.Verified, "2 planned pods gone by UID") || len(d.Pods) != 2 || d.Pods[0].Outcome != "gone" || d.Pods[0].Gone == nil ||
			d.Pods[0].Evicted == nil || len(d.Stages) != 5 {
			t.Fatalf("observed %+v with details %s", end, end.Details)
		}
	})
}

func TestPreview(t *testing.T) {
	t.Parallel()
	r := open(t, "zoo", t.TempDir())
	tests := []struct{ typ, node, payload, code string }{
		{"node.drain", "blocked-pdb", `{}`, "pdb"},
		{"node.drain", "two-pdbs", `{}`, "two_pdbs"},
		{"node.drain", "unmanaged-pod", `{}`, "unmanaged_pod"},
		{"node.drain", "unmanaged-pod", `{"force":true}`, ""},
		{"node.drain", "local-data", `{}`, "local_data"},
		{"node.drain", "stuck-finalizer", `{}`, "finalizer"},
		{"node.drain", "unreachable", `{}`, "node_unreachable"},
		{"node.drain", "plain", `{"pod_selector":"!!"}`, "invalid_payload"},
		{"node.drain", "blocked-pdb", `{"pod_selector":"app in (nothing)"}`, ""},
		{"node.uncordon", "cordoned-before", `{}`, "cordon_not_owned"},
		{"node.cordon", "nowhere", `{}`, "node_gone"},
		{"component.upgrade", "", `{"component":"operator","version":"v9.0.0"}`, "incompatible_version"},
	}
	for _, tc := range tests {
		b, err := r.Preview(t.Context(), protocol.PreviewRequest{Type: tc.typ, TargetName: "node:" + tc.node, Payload: json.RawMessage(tc.payload)})
		got := ""
		if len(b) > 0 {
			got = b[0].Code
		}
		if err != nil {
			got = "error"
		}
		if got != tc.code {
			t.Errorf("%s of %s %s meets %q (%v), not %q", tc.typ, tc.node, tc.payload, got, err, tc.code)
		}
	}
	if n := len(r.effects(t)); n != 0 {
		t.Errorf("previews left %d effects", n)
	}
}

// TestDemoFleet holds the promises of the demo: names, sizes and speeds.
func TestDemoFleet(t *testing.T) {
	bubble(t, func(t *testing.T) {
		names, gpus := map[string]int{}, 0
		var wg sync.WaitGroup
		defer wg.Wait()
		for _, cluster := range []string{"alpha", "beta", "gamma"} {
			r := open(t, "demo/"+cluster, t.TempDir())
			inv, err := r.Snapshot(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			pods := 0
			for _, n := range inv.Nodes {
				names[n.Name]++
				gpus += n.GPUs
				pods += n.Pods
			}
			if avg := float64(pods) / float64(len(inv.Nodes)); avg < 7 || avg > 9 {
				t.Errorf("%s has %.1f pods a node", cluster, avg)
			}
			var jobs []*job
			for _, n := range inv.Nodes[:2] {
				jobs = append(jobs, newJob("op_"+n.Name, "node.drain", "node:"+n.Name, n.UID, `{}`))
			}
			for _, d := range inv.Deployments {
				if d.Name == "training/licence-server" { // its one node is being drained below
					continue
				}
				jobs = append(jobs, newJob("op_"+d.Name, "deployment.roll", "deployment:"+d.Name, d.UID, `{}`))
			}
			for _, d := range inv.Devices[30:60] {
				jobs = append(jobs, newJob("op_"+d.UID, "device.reset", "device:"+d.UID, d.UID, `{"drain":true}`))
			}
			jobs = append(jobs, newJob("op_up", "component.upgrade", "cluster:"+cluster, "", `{"component":"operator","version":"v1.2.3"}`))
			for _, j := range jobs {
				wg.Go(func() {
					begin := time.Now()
					ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
					defer cancel()
					if step, o := r.run(ctx, j); step != "" {
						t.Errorf("%s in %s ended at %s with %+v", j.Operation, cluster, step, o)
					}
					if took := time.Since(begin); took > 5*time.Second {
						t.Errorf("%s in %s took %s", j.Operation, cluster, took)
					}
				})
			}
			if cluster == "alpha" {
				wg.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
					defer cancel()
					step, o := r.run(ctx, newJob("op_blocked", "node.drain", "node:gpu-node-blocked", "", `{}`))
					if step != "evict" || o.ErrorCode != "pdb_blocked" ||
						!strings.Contains(o.Detail, "PDB training/licence-server-pdb allows 0 disruptions (healthy 1, needed 1)") {
						t.Errorf("ended at %s with %+v", step, o)
					}
				})
			}
		}
		if gpus != 320 || len(names) != 39 || names["gpu-node-shared"] != 2 || names["gpu-node-blocked"] != 1 {
			t.Errorf("%d GPUs on nodes %v", gpus, names)
		}
	})
}
