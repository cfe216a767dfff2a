//go:build kubetest

package kubeflow

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/opsplane/opsplane/agent/executor/host/gpu"
	"github.com/opsplane/opsplane/agent/executor/host/recorded"
	hostreport "github.com/opsplane/opsplane/agent/executor/host/report"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
)

const resetUUID = "GPU-8f3c0a6e-1111-2222-3333-444455556666"

// gpuHost is a node with one recorded GPU, whose Jobs run as processes.
type gpuHost struct {
	s    *site
	t    *testing.T
	ns   string // of the agents and their Jobs
	node string
	root string // of the node's file system
}

func newGPUHost(t *testing.T, s *site) *gpuHost {
	t.Helper()
	h := &gpuHost{s: s, t: t, ns: s.rig.Namespace(), node: s.rig.Node("gpu").Name, root: filepath.Join(s.dir, "host")}
	for _, dir := range []string{"var/lib/recorded", "var/lib/opsplane-host", "var/log/pods", "var/lib/kubelet/pod-resources"} {
		if err := os.MkdirAll(filepath.Join(h.root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.record(nil); err != nil {
		t.Fatal(err)
	}
	s.rig.Kubelet(kuberig.KubeletOptions{Nodes: []string{h.node}, HostRoot: h.root,
		Programs: map[string]string{"opsplane-host": s.rig.Program("./agent/executor/host/opsplane-host")}})
	report(t, s.rig, h.ns, h.node, resetUUID)
	return h
}

func (h *gpuHost) recording() string {
	return filepath.Join(h.root, "var/lib/recorded", h.node+".json")
}

// record writes which pods hold the GPU.
func (h *gpuHost) record(holders map[types.UID]corev1.Pod) error {
	d := recorded.Device{Device: hostreport.Device{UUID: resetUUID, PCI: "0000:3b:00.0", Product: "NVIDIA H100 80GB HBM3", Architecture: "hopper"}}
	for _, p := range holders {
		d.Processes = append(d.Processes, gpu.Process{PID: 4000 + len(d.Processes), Name: "python3", Pod: &hostreport.Pod{Namespace: p.Namespace, Name: p.Name, UID: string(p.UID)}})
	}
	text, err := json.Marshal(recorded.File{Driver: "580.65.06", Devices: []recorded.Device{d}})
	if err != nil {
		return err
	}
	part := h.recording() + ".part"
	if err := os.WriteFile(part, text, 0o600); err != nil {
		return err
	}
	return os.Rename(part, h.recording())
}

// holds has the app's pods hold the GPU until they are gone; those that take their
// place do not.
func (h *gpuHost) holds(ns, app string) {
	h.t.Helper()
	pods := h.s.rig.Client(kuberig.Admin).CoreV1().Pods(ns)
	list, err := pods.List(h.t.Context(), metav1.ListOptions{LabelSelector: "app=" + app})
	if err != nil {
		h.t.Fatal(err)
	}
	holders := map[types.UID]corev1.Pod{}
	for _, p := range list.Items {
		holders[p.UID] = p
	}
	if err := h.record(holders); err != nil {
		h.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(h.t.Context()))
	w, err := pods.Watch(ctx, metav1.ListOptions{LabelSelector: "app=" + app, ResourceVersion: list.ResourceVersion})
	if err != nil {
		cancel()
		h.t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for e := range w.ResultChan() {
			if p, is := e.Object.(*corev1.Pod); is && e.Type == watch.Deleted {
				delete(holders, p.UID)
				if err := h.record(holders); err != nil {
					h.t.Error(err)
				}
			}
		}
	}()
	h.t.Cleanup(func() {
		cancel()
		w.Stop()
		<-ended
	})
}

func (h *gpuHost) resets(t *testing.T) int {
	t.Helper()
	n, err := recorded.Resets(h.recording(), resetUUID)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// jobs counts the Jobs of a verb that were made in a namespace by operation and
// generation: each lease makes one.
func jobs(t *testing.T, rig *kuberig.Rig, ns, verb string) map[string]int {
	t.Helper()
	made := map[string]int{}
	for _, e := range rig.Audit() {
		if e.Verb != "create" || e.Resource != "jobs" || e.Namespace != ns || e.Code != http.StatusCreated || dry(e) {
			continue
		}
		var j batchv1.Job
		if err := json.Unmarshal(e.Request, &j); err != nil {
			t.Fatalf("read a Job in the audit log: %v in %s", err, e.Request)
		}
		if j.Labels["opsplane.io/verb"] == verb {
			made[j.Labels[cluster.LabelOperation]+"/"+j.Labels[cluster.LabelGeneration]]++
		}
	}
	return made
}

// oneJob: one Job in all was made for what must be done once.
func oneJob(t *testing.T, rig *kuberig.Rig, ns, verb, struck string) {
	t.Helper()
	if made := jobs(t, rig, ns, verb); len(made) != 1 {
		t.Errorf("Jobs of %s by operation and generation: %v, want one, killed at %q", verb, made, struck)
	} else {
		for lease, n := range made {
			if n != 1 {
				t.Errorf("%d Jobs of %s under lease %s, killed at %q", n, verb, lease, struck)
			}
		}
	}
}

// answered waits for a Job's end and returns what its program said.
func answered(t *testing.T, rig *kuberig.Rig, ns, job string) (said string) {
	t.Helper()
	rig.Await("job "+job+" has ended", func(ctx context.Context) (bool, error) {
		list, err := rig.Client(kuberig.Admin).CoreV1().Pods(ns).List(ctx, metav1.ListOptions{LabelSelector: "batch.kubernetes.io/job-name=" + job})
		if err != nil {
			return false, err
		}
		for _, p := range list.Items {
			for _, c := range p.Status.ContainerStatuses {
				if c.State.Terminated != nil {
					said = c.State.Terminated.Message
					return true, nil
				}
			}
		}
		return false, nil
	})
	return said
}

// jobIn is the name of the Job that a request in the audit log made.
func jobIn(t *testing.T, e kuberig.AuditEvent) string {
	t.Helper()
	var j batchv1.Job
	if err := json.Unmarshal(e.Request, &j); err != nil || e.Code != http.StatusCreated {
		t.Fatalf("the Job that came late is answered %d: %v", e.Code, err)
	}
	return j.Name
}

// makesJob tells of a request that makes a Job whose name has the part, in earnest.
func makesJob(part string) func(r *http.Request, body []byte) bool {
	return func(r *http.Request, body []byte) bool {
		return r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/jobs") && r.URL.Query().Get("dryRun") == "" && bytes.Contains(body, []byte(part))
	}
}

// resetScene is a GPU, with drain one that two pods hold.
func resetScene(t *testing.T, s *site, drain bool) *scene {
	h := newGPUHost(t, s)
	config := filepath.Join(s.dir, "reset.yaml")
	text := "deviceReset: {image: 'opsplane-host:test', recorded: /var/lib/recorded, resetTimeout: 20s, lookTimeout: 60s}\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	apps := ""
	if drain {
		apps = s.rig.Namespace()
		s.rig.Deployment(apps, "decode", 2, kuberig.OnNode(h.node))
		h.holds(apps, "decode")
	}
	sc := &scene{
		ask:  ask{"device.reset", "device:" + resetUUID, map[string]any{"drain": drain}},
		kind: "devices", name: resetUUID, changes: inEarnest,
		flags: []string{"--namespace", h.ns, "--kube-config-file", config},
		step:  hostreport.VerbReset, effect: makesJob("-" + hostreport.VerbReset + "-a"),
		late: func(t *testing.T, e kuberig.AuditEvent) { // the host refuses it
			a, err := hostreport.ParseAnswer([]byte(answered(t, s.rig, h.ns, jobIn(t, e))))
			if err != nil || a.OK || a.Code != hostreport.CodeStale {
				t.Errorf("the host's answer to the reset that came late: %+v, %v", a, err)
			}
			if n := h.resets(t); n != 1 {
				t.Errorf("%d resets after the one that came late", n)
			}
		},
		proof: func(t *testing.T, struck string) {
			if n := h.resets(t); n != 1 {
				t.Errorf("%d resets, killed at %q", n, struck)
			}
			oneJob(t, s.rig, h.ns, hostreport.VerbReset, struck)
			if drain {
				onceEach(t, s.rig, apps, struck)
			}
		},
	}
	if drain { // what only looks at the device is the scene's without a drain
		sc.changes = func(r *http.Request) bool {
			return inEarnest(r) && (strings.HasSuffix(r.URL.Path, "/eviction") || sc.effect(r, body(r)))
		}
	}
	sc.next = ask{sc.typ, sc.target, nil}
	return sc
}
