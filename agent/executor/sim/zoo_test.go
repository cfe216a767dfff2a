package sim

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/operation"
)

func TestZooDrains(t *testing.T) {
	t.Parallel()
	done := operation.OutcomeDone
	tests := []struct {
		node, payload string
		within        time.Duration // ctx; 0: 20 s
		step, class   string
		code          string
		detail        string // part of it
		untouched     bool   // nothing may have been tried
	}{
		{node: "plain", class: done},
		{node: "slow-pod", within: time.Second, step: "wait", class: operation.OutcomeWaiting, code: "slow_stop", detail: "0 of 1 pods gone, waiting for pod zoo/slow-0"},
		{node: "blocked-pdb", within: time.Second, step: "evict", class: operation.OutcomeWaiting, code: "pdb_blocked",
			detail: "PDB zoo/blocked-pdb allows 0 disruptions (healthy 1, needed 1)"},
		{node: "two-pdbs", step: "preflight", class: operation.OutcomePermanent, code: "two_pdbs", detail: "zoo/twice-a and zoo/twice-b", untouched: true},
		{node: "stuck-finalizer", within: time.Second, step: "wait", class: operation.OutcomeWaiting, code: "finalizer", detail: "zoo.example.com/hold"},
		{node: "unmanaged-pod", step: "preflight", class: operation.OutcomePermanent, code: "unmanaged_pod", detail: "zoo/alone", untouched: true},
		{node: "local-data", step: "preflight", class: operation.OutcomePermanent, code: "local_data", detail: "zoo/scratch-0", untouched: true},
		{node: "plain", payload: `{"pod_selector":"!!"}`, step: "preflight", class: operation.OutcomePermanent, code: "invalid_payload", detail: "!!", untouched: true},
		{node: "completed-pods", class: done},
		{node: "left-alone", class: done},
		{node: "unreachable", within: time.Second, step: "wait", class: operation.OutcomeWaiting, code: "node_unreachable", detail: "zoo/unseen-0"},
		{node: "vanishes", step: "wait", class: operation.OutcomePermanent, code: "node_gone"},
		{node: "reborn", step: "wait", class: operation.OutcomePermanent, code: "node_replaced"},
		{node: "cordoned-before", class: done},
		{node: "transient", class: done},
		{node: "answer-lost", step: "cordon", class: operation.OutcomeAmbiguous, code: "answer_lost"},
	}
	for _, tc := range tests {
		t.Run(tc.node, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := open(t, "zoo", t.TempDir())
				if tc.payload == "" {
					tc.payload = `{}`
				}
				if tc.within == 0 {
					tc.within = 20 * time.Second
				}
				ctx, cancel := context.WithTimeout(t.Context(), tc.within)
				defer cancel()
				n := r.node(t, tc.node)
				j := newJob("op_"+tc.node, "node.drain", "node:"+tc.node, n.UID, tc.payload)
				begin := time.Now()
				step, o := r.run(ctx, j)
				if step != tc.step || o.Class != tc.class || o.ErrorCode != tc.code || !strings.Contains(o.Detail, tc.detail) {
					t.Fatalf("drain of %s ended at %q with %+v", tc.node, step, o)
				}
				if over := time.Since(begin) - tc.within; over > time.Second {
					t.Errorf("it returned %s after its context ended", over)
				}
				for _, e := range r.effects(t) {
					if e.Operation == j.Operation && tc.untouched {
						t.Errorf("refused up front, and yet it tried %+v", e)
					}
				}
				if tc.class != done {
					return
				}
				end := r.Observe(ctx, &j.Assignment)
				if !contains(end.Verified, "node is cordoned") || !contains(end.NotVerified, "application readiness") || len(end.Observed.Nodes) != 1 ||
					!strings.Contains(strings.Join(end.Verified, ";"), "planned pods gone by UID") {
					t.Errorf("it ended with %+v", end)
				}
				left := r.node(t, tc.node)
				if tc.node == "cordoned-before" && (left.Cordon.Owner != "external" || left.Cordon.By != "alice") {
					t.Errorf("the cordon of a person became %+v", left.Cordon)
				}
				if tc.node == "left-alone" {
					if p := end.Observed.Nodes[0].Pods; p != 2 {
						t.Errorf("%d pods are left of a mirror pod and one of a DaemonSet", p)
					}
				}
			})
		})
	}
}

func TestForceAndData(t *testing.T) {
	t.Parallel()
	tests := []struct {
		node, payload string
		remaining     time.Duration
		forced        bool
	}{
		{"unmanaged-pod", `{"force":true}`, time.Hour, false},
		{"local-data", `{"delete_emptydir_data":true}`, time.Hour, false},
		{"slow-pod", `{"grace_period_seconds":1}`, time.Hour, false},
		{"blocked-pdb", `{"on_deadline":"force","force_window_seconds":10}`, 11 * time.Second, true},
		{"two-pdbs", `{"on_deadline":"force","force_window_seconds":10}`, 11 * time.Second, true},
		{"slow-pod", `{"on_deadline":"force","force_window_seconds":10}`, 11 * time.Second, true},
		{"unreachable", `{"on_deadline":"force","force_window_seconds":10}`, 11 * time.Second, true},
	}
	for _, tc := range tests {
		t.Run(tc.node+tc.payload, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := open(t, "zoo", t.TempDir())
				j := newJob("op_force", "node.drain", "node:"+tc.node, r.node(t, tc.node).UID, tc.payload)
				j.remaining = tc.remaining
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				if step, o := r.run(ctx, j); step != "" {
					t.Fatalf("ended at %s with %+v", step, o)
				}
				if got := accepted(r.effects(t), DidDelete) > 0; got != tc.forced {
					t.Errorf("deleted without grace: %v", got)
				}
			})
		})
	}
}

func TestProgressIsWorded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := open(t, written(t, `
cluster: words
nodes: [{name: a, gpus: 0}, {name: b, gpus: 0, cordoned: {by: bob}}]
deployments:
  - {name: default/api, replicas: 5, nodes: [a]}
  - {name: default/web, kind: StatefulSet, replicas: 1, nodes: [a]}
pdbs: [{name: default/web-pdb, selector: {app: web}, min_available: 1}]
`), t.TempDir())
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		j := newJob("op_words", "node.drain", "node:a", r.node(t, "a").UID, `{}`)
		step, o := r.run(ctx, j)
		want := "5 of 6 pods gone, waiting for pod default/web-0: PDB default/web-pdb allows 0 disruptions (healthy 1, needed 1)"
		if step != "evict" || o.Detail != want || j.last() != want {
			t.Fatalf("at %s: outcome %q, progress %q", step, o.Detail, j.last())
		}
	})
}

func TestZooResets(t *testing.T) {
	bubble(t, func(t *testing.T) {
		done, permanent := operation.OutcomeDone, operation.OutcomePermanent
		tests := []struct {
			node          string
			gpu           int
			payload       string
			step, class   string
			code, detail  string
			afterTakeOver string // class, once a later generation probed
		}{
			{node: "gpus", gpu: 0, class: done},
			{node: "gpus", gpu: 1, payload: `{"drain":true}`, step: "preflight", class: permanent, code: "device_busy", detail: "process nvidia-smi (4000)"},
			{node: "gpus", gpu: 2, step: "preflight", class: permanent, code: "device_busy", detail: "persistence mode"},
			{node: "gpus", gpu: 3, step: "preflight", class: permanent, code: "mig_change_pending"},
			{node: "gpus", gpu: 4, step: "preflight", class: permanent, code: "nvlink_peers", detail: "GPU-"},
			{node: "gpus", gpu: 6, step: "preflight", class: permanent, code: "needs_reboot"},
			{node: "gpus", gpu: 7, step: "verify", class: permanent, code: "needs_reboot", detail: "unusable"},
			{node: "vm", gpu: 0, step: "preflight", class: permanent, code: "not_supported"},
			{node: "gpu-answers", gpu: 0, step: "preflight", class: permanent, code: "device_busy", detail: "pod zoo/holder-0"},
			{node: "gpu-answers", gpu: 0, payload: `{"drain":true}`, class: done},
			{node: "gpu-answers", gpu: 1, step: "reset", class: operation.OutcomeAmbiguous, code: "answer_lost", afterTakeOver: done},
			{node: "gpu-answers", gpu: 2, step: "reset", class: operation.OutcomeAmbiguous, code: "answer_lost", afterTakeOver: "unknown"},
			{node: "gpu-answers", gpu: 3, class: done},
			{node: "gpu-answers", gpu: 4, step: "preflight", class: permanent, code: "needs_reboot"},
		}
		r := open(t, "zoo", t.TempDir())
		for _, tc := range tests { // in order: two of them share a GPU
			d := r.gpu(t, tc.node, tc.gpu)
			j := newJob("op_"+d.UID+tc.payload, "device.reset", "device:"+d.UID, d.UID, tc.payload)
			step, o := r.run(t.Context(), j)
			if step != tc.step || o.Class != tc.class || o.ErrorCode != tc.code || !strings.Contains(o.Detail, tc.detail) {
				t.Errorf("reset of GPU %d of %s ended at %q with %+v", tc.gpu, tc.node, step, o)
			}
			if tc.afterTakeOver != "" {
				if _, o := r.takeOver(t.Context(), j.generation(2)); o.Class != tc.afterTakeOver {
					t.Errorf("the next generation found GPU %d of %s: %+v", tc.gpu, tc.node, o)
				}
			}
			if tc.class == done {
				end := r.Observe(t.Context(), &j.Assignment)
				if !contains(end.Verified, "GPU is usable") || len(end.Observed.Devices) != 1 {
					t.Errorf("it ended with %+v", end)
				}
			}
		}
		r.effects(t)
	})
}

func TestOneGPUUnderItsSpellings(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := open(t, "zoo", t.TempDir())
		d := r.gpu(t, "gpu-answers", 4)
		for _, name := range append([]string{d.UID, "00000000:38:00.0", "dev-4"}, d.Aliases...) {
			j := newJob("op_x", "device.reset", "device:"+name, "", "")
			j.NodeName = "gpu-answers"
			if g, err := r.readDevice(j.task("preflight")); err != nil || g == nil || g.UID != d.UID {
				t.Errorf("%q found %v, %v", name, g, err)
			}
		}
	})
}

func TestZooRollsAndUpgrades(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := open(t, "zoo", t.TempDir())
		done, permanent := operation.OutcomeDone, operation.OutcomePermanent
		roll := func(name string) *job { return newJob("op_"+name, "deployment.roll", "deployment:zoo/"+name, "", `{}`) }
		upgrade := func(name, to string) *job {
			return newJob("op_"+name+to, "component.upgrade", "cluster:zoo", "", `{"component":"`+name+`","version":"`+to+`"}`)
		}
		tests := []struct {
			*job
			step, class, code string
			afterTakeOver     string
		}{
			{job: roll("fine"), class: done},
			{job: roll("progress-deadline"), step: "wait", class: permanent, code: "progress_deadline_exceeded"},
			{job: roll("image-pull"), step: "wait", class: permanent, code: "image_pull_failed"},
			{job: roll("stuck"), step: "wait", class: operation.OutcomeWaiting, code: "interrupted"},
			{job: roll("answer-lost"), step: "restart", class: operation.OutcomeAmbiguous, code: "answer_lost", afterTakeOver: done},
			{job: roll("nothing"), step: "preflight", class: permanent, code: "deployment_gone"},
			{job: upgrade("operator", "v1.2.3"), class: done},
			{job: upgrade("operator", "v1.3.0"), step: "preflight", class: permanent, code: "incompatible_version"},
			{job: upgrade("nothing", "v1.0.0"), step: "preflight", class: permanent, code: "component_not_found"},
			{job: upgrade("agent", "v0.9.4"), class: done},
			{job: upgrade("agent", "v0.9.5"), step: "upgrade", class: operation.OutcomeAmbiguous, code: "answer_lost", afterTakeOver: done},
			{job: upgrade("platform", "v2.0.2"), step: "verify", class: permanent, code: "unhealthy"},
		}
		for _, tc := range tests {
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			step, o := r.run(ctx, tc.job)
			if step != tc.step || o.Class != tc.class || o.ErrorCode != tc.code {
				t.Errorf("%s ended at %q with %+v", tc.Operation, step, o)
			}
			if tc.afterTakeOver != "" {
				if _, o := r.takeOver(ctx, tc.generation(2)); o.Class != tc.afterTakeOver {
					t.Errorf("the next generation of %s found %+v", tc.Operation, o)
				}
			}
			cancel()
		}
		if n := accepted(r.effects(t), DidUpgrade); n != 3 {
			t.Errorf("%d upgrades for three changes of version", n)
		}
	})
}
