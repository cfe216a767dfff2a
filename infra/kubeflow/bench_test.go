//go:build kubetest

package kubeflow

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	"github.com/opsplane/opsplane/shared/operation"
)

// drainer drains one node and returns when it is empty.
type drainer func(ctx context.Context, node string) error

// BenchmarkDrain is one drain of 8 pods, by us and by kubectl, with and without a
// disruption budget that lets one pod go at a time: how long, and how many
// requests by the audit log.
func BenchmarkDrain(b *testing.B) {
	for _, pdb := range []bool{false, true} {
		name := "pods=8"
		if pdb {
			name += "/max-unavailable=1"
		}
		b.Run(name, func(b *testing.B) {
			rig := kuberig.Start(b, kuberig.Options{Audit: true})
			s := newSite(b, rig)
			one, two := rig.Node("one"), rig.Node("two")
			ns := rig.Namespace()
			rig.Deployment(ns, "web", podsEach, kuberig.PreferNode(one.Name, two.Name), kuberig.WantsGPUs(1))
			if pdb {
				rig.PDB(ns, "one-at-a-time", "web", kuberig.MaxUnavailable("1"))
			}
			user := rig.User("opsplane-agent", "system:masters")
			s.user = user
			s.agent("")
			s.thing("nodes", one.Name)
			kubectlUser := rig.User("kubectl", "system:masters")
			settle := func() {
				rig.AwaitNode(one.Name, "is back", func(*corev1.Node) bool {
					if len(rig.PodsOn(one.Name)) == podsEach {
						return true
					}
					for _, p := range rig.PodsOn(two.Name) { // the scheduler likes the first node better
						_ = rig.Client(kuberig.Admin).CoreV1().Pods(ns).Delete(b.Context(), p.Name, metav1.DeleteOptions{})
					}
					return false
				})
			}
			for _, by := range []string{"opsplane", "kubectl"} {
				settle()
				rig.MarkAudit()
				began := time.Now()
				who := user
				if by == "opsplane" {
					o := s.ended(s.want("node.drain", "node:"+one.Name, nil, 10*time.Minute).ID, 5*time.Minute)
					if o.Phase != operation.Succeeded {
						b.Fatal(o)
					}
				} else {
					who = kubectlUser
					if err := kubectl(rig, who)(b.Context(), one.Name); err != nil {
						b.Fatal(err)
					}
				}
				took, requests := time.Since(began), 0
				for _, e := range rig.Audit(who) {
					if by == "kubectl" || strings.Contains(e.UserAgent, "operation/") {
						requests++
					}
				}
				b.ReportMetric(took.Seconds(), by+"-s")
				b.ReportMetric(float64(requests), by+"-requests")
				if by == "opsplane" {
					s.ended(s.want("node.uncordon", "node:"+one.Name, nil, 2*time.Minute).ID, 3*time.Minute)
				}
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkWave drains many nodes of 8 pods, 20 at once: by a plan of drains, by a
// loop that does no more than evict, and by kubectl.
func BenchmarkWave(b *testing.B) {
	n := waveNodes(b)
	for _, again := range []bool{false, true} {
		name, spare := fmt.Sprintf("nodes=%d", n), 0
		if again {
			name, spare = name+"/replaced", n
		}
		b.Run(name, func(b *testing.B) {
			rig := kuberig.Start(b, kuberig.Options{})
			f := newFleet(b, rig, n, spare)
			s := newSite(b, rig, []string{}...)
			agent := s.agent("", "--concurrency", "256", "--kube-qps", "1000", "--kube-burst", "2000")
			s.thing("nodes", f.nodes[len(f.nodes)-1])
			refill := f.fill
			if again {
				refill = f.deploy
			}
			loop, err := kubernetes.NewForConfig(unlimited(rig))
			if err != nil {
				b.Fatal(err)
			}

			refill()
			f.wave(func() []time.Duration { return f.drain(evictLoop(loop)) }) // warms the control plane up
			var ours, bare, ratios []float64
			var times []time.Duration
			for round := range waveRounds(b) {
				var cpu time.Duration
				us := func() float64 {
					refill()
					before := usage(b, agent)
					rate, took := f.wave(func() []time.Duration { return s.plan(f.nodes) })
					cpu, times = usage(b, agent).cpu-before.cpu, took
					return rate
				}
				them := func() float64 {
					refill()
					rate, _ := f.wave(func() []time.Duration { return f.drain(evictLoop(loop)) })
					return rate
				}
				// Who goes first changes, as a control plane is not the same after a wave.
				var a, c float64
				if round%2 == 0 {
					a = us()
					c = them()
				} else {
					c = them()
					a = us()
				}
				b.Logf("round %d: opsplane %.2f, loop %.2f nodes/s, ratio %.2f, agent %v of CPU a node", round, a, c, a/c, cpu/time.Duration(n))
				ours, bare, ratios = append(ours, a), append(bare, c), append(ratios, a/c)
				b.ReportMetric(cpu.Seconds()/float64(n), "agent-cpu-s/node")
			}
			refill()
			theirs, _ := f.wave(func() []time.Duration { return f.drain(kubectl(rig, kuberig.Admin)) })

			b.ReportMetric(median(ours), "opsplane-nodes/s")
			b.ReportMetric(quantile(times, 0.5).Seconds(), "opsplane-p50-s")
			b.ReportMetric(quantile(times, 0.99).Seconds(), "opsplane-p99-s")
			b.ReportMetric(float64(usage(b, agent).rss)/(1<<20), "agent-MB")
			b.ReportMetric(median(bare), "loop-nodes/s")
			b.ReportMetric(median(ratios), "opsplane/loop")
			b.ReportMetric(theirs, "kubectl-nodes/s")
			b.ReportMetric(median(ours)/theirs, "opsplane/kubectl")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkFirstEffect is how long after its creation a drain has cordoned its
// node, and evicted its first pod, by the API server's clock.
func BenchmarkFirstEffect(b *testing.B) {
	const rounds = 20
	rig := kuberig.Start(b, kuberig.Options{Audit: true})
	f := newFleet(b, rig, rounds, 0)
	s := newSite(b, rig, []string{}...)
	s.agent("")
	s.thing("nodes", f.nodes[rounds-1])
	f.fill()
	var cordoned, evicted []time.Duration
	for _, node := range f.nodes {
		o := s.ended(s.want("node.drain", "node:"+node, nil, 2*time.Minute).ID, 3*time.Minute)
		first := map[string]time.Time{}
		for _, e := range rig.Audit() {
			what := e.Resource + "/" + e.Subresource
			if strings.Contains(e.UserAgent, o.ID) && e.Verb != "get" && e.Verb != "list" && e.Verb != "watch" && !dry(e) {
				if at, ok := first[what]; !ok || e.Done.Before(at) {
					first[what] = e.Done
				}
			}
		}
		cordoned = append(cordoned, first["nodes/"].Sub(o.CreatedAt))
		evicted = append(evicted, first["pods/eviction"].Sub(o.CreatedAt))
	}
	b.ReportMetric(quantile(cordoned, 0.5).Seconds()*1000, "cordoned-p50-ms")
	b.ReportMetric(quantile(cordoned, 0.99).Seconds()*1000, "cordoned-p99-ms")
	b.ReportMetric(quantile(evicted, 0.5).Seconds()*1000, "evicted-p50-ms")
	b.ReportMetric(quantile(evicted, 0.99).Seconds()*1000, "evicted-p99-ms")
	b.ReportMetric(0, "ns/op")
}

// wave times what drains the whole fleet and returns nodes a second.
func (f *fleet) wave(do func() []time.Duration) (float64, []time.Duration) {
	began := time.Now()
	times := do()
	rate := float64(len(f.nodes)) / time.Since(began).Seconds()
	for _, node := range f.nodes {
		if left := f.rig.PodsOn(node); len(left) > 0 {
			f.b.Errorf("%d pods are left on node %s", len(left), node)
		}
	}
	return rate, times
}

// drain drains every node, as many at once as everybody.
func (f *fleet) drain(do drainer) []time.Duration {
	var wg sync.WaitGroup
	work := make(chan string)
	var mu sync.Mutex
	var times []time.Duration
	for range parallel {
		wg.Go(func() {
			for node := range work {
				began := time.Now()
				if err := do(f.b.Context(), node); err != nil {
					f.b.Errorf("drain %s: %v", node, err)
				}
				mu.Lock()
				times = append(times, time.Since(began))
				mu.Unlock()
			}
		})
	}
	for _, node := range f.nodes {
		work <- node
	}
	close(work)
	wg.Wait()
	return times
}

// plan drains every node by a plan of drains and returns how long each took.
func (s *site) plan(nodes []string) []time.Duration {
	s.t.Helper()
	var children []map[string]any
	for _, n := range nodes {
		children = append(children, map[string]any{"type": "node.drain", "target": "node:" + n, "cluster": "rig", "reason": "wave"})
	}
	var o op
	s.post("/v1/operations", map[string]any{"type": "plan", "target": "cluster:rig", "reason": "wave",
		"payload": map[string]any{"children": children, "max_in_flight": parallel}}, http.StatusAccepted, &o)
	// Asked for now and then: the loop is watched by nobody either.
	for end := time.Now().Add(20 * time.Minute); !o.Phase.Terminal(); time.Sleep(200 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("the wave has not ended: %v", o)
		}
		o = s.look(o.ID)
	}
	if o.Phase != operation.Succeeded {
		s.t.Fatal(o)
	}
	var times []time.Duration
	for _, c := range list[op](s, "/v1/operations?type=node.drain&limit=200") {
		if c.FinishedAt != nil && c.StartedAt != nil {
			times = append(times, c.FinishedAt.Sub(*c.StartedAt))
		}
	}
	return times
}

// kubectl drains as people do.
func kubectl(rig *kuberig.Rig, user string) drainer {
	file := rig.Kubeconfig(user)
	return func(ctx context.Context, node string) error {
		out, err := exec.CommandContext(ctx, filepath.Join(os.Getenv("KUBETEST_BIN"), "kubectl"), "--kubeconfig", file,
			"drain", node, "--ignore-daemonsets", "--delete-emptydir-data").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
}

// evictLoop is the least that empties a node: cordon, list, evict at once, wait by
// one watch. It judges nothing, records nothing and asks nobody.
func evictLoop(client kubernetes.Interface) drainer {
	return func(ctx context.Context, node string) error {
		if _, err := client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, []byte(`{"spec":{"unschedulable":true}}`), metav1.PatchOptions{}); err != nil {
			return err
		}
		of := metav1.ListOptions{FieldSelector: "spec.nodeName=" + node}
		l, err := client.CoreV1().Pods("").List(ctx, of)
		if err != nil {
			return err
		}
		of.ResourceVersion = l.ResourceVersion
		w, err := client.CoreV1().Pods("").Watch(ctx, of)
		if err != nil {
			return err
		}
		defer func() { w.Stop() }()
		left := map[types.UID]bool{}
		for i := range l.Items {
			left[l.Items[i].UID] = true
		}
		for i := range l.Items {
			go func() {
				p := &l.Items[i]
				for ctx.Err() == nil {
					err := client.PolicyV1().Evictions(p.Namespace).Evict(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace}})
					if !apierrors.IsTooManyRequests(err) {
						return
					}
					time.Sleep(250 * time.Millisecond)
				}
			}()
		}
		for len(left) > 0 {
			e, ok := <-w.ResultChan()
			if !ok { // the server ends a watch when it likes
				now, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: of.FieldSelector})
				if err != nil {
					return err
				}
				maps.DeleteFunc(left, func(uid types.UID, _ bool) bool {
					return !slices.ContainsFunc(now.Items, func(p corev1.Pod) bool { return p.UID == uid })
				})
				of.ResourceVersion = now.ResourceVersion
				if w, err = client.CoreV1().Pods("").Watch(ctx, of); err != nil {
					return err
				}
				continue
			}
			if e.Type == watch.Deleted {
				delete(left, e.Object.(*corev1.Pod).UID)
			}
		}
		return nil
	}
}

// used is what a process has used.
type used struct {
	cpu time.Duration
	rss int64 // bytes, the most so far
}

// usage reads /proc (proc(5)).
func usage(b *testing.B, p *process) (u used) {
	b.Helper()
	p.mu.Lock()
	pid := p.cmd.Process.Pid
	p.mu.Unlock()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	for _, at := range []int{11, 12} { // utime, stime in hundredths of a second
		ticks, err := strconv.ParseInt(fields[at], 10, 64)
		if err != nil {
			b.Fatal(err)
		}
		u.cpu += time.Duration(ticks) * 10 * time.Millisecond
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if kb, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(kb), "kB")), 10, 64)
			if err != nil {
				b.Fatal(err)
			}
			u.rss = n << 10
		}
	}
	return u
}

// median is the middle one, of an even number the mean of the two.
func median(x []float64) float64 {
	slices.Sort(x)
	return (x[(len(x)-1)/2] + x[len(x)/2]) / 2
}

func quantile(d []time.Duration, q float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	slices.Sort(d)
	return d[min(int(q*float64(len(d))), len(d)-1)]
}
