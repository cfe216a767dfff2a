package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/shared/protocol"
)

const (
	daemonsFor  = time.Minute      // a DaemonSet that was seen counts as there
	admittedFor = 30 * time.Second // pods of one controller are admitted alike
	dryRunFor   = 3 * time.Second
	maxDryRuns  = 16 // of one look
)

// survey is a node's pods, judged.
type survey struct {
	listed   []runtime.Object
	version  string
	pods     []*corev1.Pod
	verdicts []verdict
	budgets  []*budget // of the verdicts' namespaces
}

// list reads the node's pods.
func (e *drainer) list(ctx context.Context, node string) ([]runtime.Object, string, error) {
	return podsOf(e.c, node).Once(ctx)
}

// narrow resolves a drain of a device to the pods on it: those that the run has
// planned, or that are on it now. code and why: it cannot be told, or there is no
// such device.
func (e *drainer) narrow(ctx context.Context, a *protocol.Assignment, p *payload, n *corev1.Node) (code, why string, err error) {
	if p.Device == "" || p.only != nil {
		return "", "", nil
	}
	if r := readRecord(n, a); r != nil && !r.Cut { // a pod that stopped is on no device any more
		p.only = make(map[types.UID]bool, len(r.Pods))
		for uid := range r.Pods {
			p.only[types.UID(uid)] = true
		}
		return "", "", nil
	}
	if e.o.PodsOn == nil {
		return "device_pods_unknown", fmt.Sprintf("which pods are on device %s cannot be told: the agent has nothing to ask on the host", p.Device), nil
	}
	ctx, cancel := e.c.Read(ctx)
	defer cancel()
	pods, reason, err := e.o.PodsOn(ctx, n.UID, p.Device)
	if err != nil {
		return "", "", fmt.Errorf("find the pods on device %s: %w", p.Device, err)
	}
	if reason != "" {
		return "device_pods_unknown", fmt.Sprintf("which pods are on device %s cannot be told: %s", p.Device, reason), nil
	}
	p.only = make(map[types.UID]bool, len(pods))
	for _, uid := range pods {
		p.only[uid] = true
	}
	return "", "", nil
}

// survey lists and judges the node's pods. It is what preflight, the dry run and
// the evictions go by.
func (e *drainer) survey(ctx context.Context, p payload, node string) (*survey, error) {
	items, version, err := e.list(ctx, node)
	if err != nil {
		return nil, err
	}
	s := &survey{listed: items, version: version, pods: asPods(items)}
	return s, e.judge(ctx, p, s)
}

func asPods(items []runtime.Object) []*corev1.Pod {
	pods := make([]*corev1.Pod, len(items))
	for i, o := range items {
		_, pods[i] = takePod(o)
	}
	return pods
}

func (e *drainer) judge(ctx context.Context, p payload, s *survey) error {
	orphans, err := e.orphans(ctx, p, s.pods)
	if err != nil {
		return err
	}
	s.verdicts = p.judge(s.pods, orphans)
	spaces := map[string]bool{}
	for _, v := range s.verdicts {
		if v.kind == toEvict {
			spaces[v.pod.Namespace] = true
		}
	}
	if len(spaces) == 0 {
		return nil
	}
	feed := e.budgets.Acquire()
	defer e.budgets.Release()
	rctx, cancel := e.c.Read(ctx)
	defer cancel()
	if err := feed.Ready(rctx); err != nil {
		return err
	}
	for ns := range spaces {
		in, _ := feed.In(ns)
		s.budgets = append(s.budgets, in...)
	}
	return nil
}

// orphans finds the DaemonSet pods whose DaemonSet is gone.
func (e *drainer) orphans(ctx context.Context, p payload, pods []*corev1.Pod) (map[types.UID]bool, error) {
	found := map[types.UID]bool{}
	for _, pod := range pods {
		owner := metav1.GetControllerOf(pod)
		if owner == nil || !isDaemonSet(owner) || hasFinished(pod) || !p.about(pod) {
			continue
		}
		if _, there := e.daemons.get(e.c.Now(), owner.UID); there {
			continue
		}
		rctx, cancel := e.c.Read(ctx)
		d, err := e.c.Client.AppsV1().DaemonSets(pod.Namespace).Get(rctx, owner.Name, metav1.GetOptions{})
		cancel()
		switch {
		case apierrors.IsNotFound(err), err == nil && d.UID != owner.UID:
			found[pod.UID] = true
		case err != nil:
			return nil, fmt.Errorf("read DaemonSet %s/%s: %w", pod.Namespace, owner.Name, err)
		default:
			e.daemons.put(e.c.Now(), owner.UID, true, daemonsFor)
		}
	}
	return found, nil
}

// refusal finds what no drain with this payload gets past: nothing is touched. It
// names every rule of the first pod, and how many others there are.
func (s *survey) refusal(p payload) (code, why string) {
	others := 0
	for _, v := range s.verdicts {
		c, w := v.refuses()
		if h := rule(s.budgets, v.pod); v.kind == toEvict && h != nil && h.code == "two_pdbs" && p.OnDeadline != onDeadlineForce {
			if c == "" {
				c, w = h.code, h.why
			} else {
				w += "; " + strings.TrimPrefix(h.why, "pod "+key(v.pod)+" ")
			}
		}
		switch {
		case c == "":
		case code == "" || code == "two_pdbs" && c != code: // what a payload can allow comes first
			if code != "" {
				others++
			}
			code, why = c, w
		default:
			others++
		}
	}
	if others > 0 {
		why += fmt.Sprintf("; and %d more pods are refused", others)
	}
	return code, why
}

// rehearse asks the API server for evictions that it only judges: what a disruption
// budget's status does not tell (admission, a namespace that ends) it tells. Pods of
// one controller behind the same budgets are alike, so one speaks for all.
// https://kubernetes.io/docs/reference/using-api/api-concepts/#dry-run
func (e *drainer) rehearse(ctx context.Context, p payload, s *survey) (map[types.UID]*refusal, error) {
	groups := map[string][]*corev1.Pod{}
	var order []string
	for _, v := range s.verdicts {
		if v.kind != toEvict {
			continue
		}
		k := alike(v.pod, s.budgets)
		if groups[k] == nil {
			order = append(order, k)
		}
		groups[k] = append(groups[k], v.pod)
	}
	found := map[types.UID]*refusal{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	var failed error
	for _, k := range order[:min(len(order), maxDryRuns)] {
		group := groups[k]
		guarded := len(selecting(s.budgets, group[0])) > 0
		note := func(r *refusal) {
			mu.Lock()
			defer mu.Unlock()
			for _, pod := range group {
				if r != nil {
					found[pod.UID] = r
				}
			}
		}
		if r, known := e.admitted.get(e.c.Now(), k); known && !guarded {
			note(r)
			continue
		}
		wg.Go(func() {
			r, err := e.dryRun(ctx, p, group[0], s.budgets)
			if err != nil {
				mu.Lock()
				failed = err
				mu.Unlock()
				return
			}
			if !guarded {
				e.admitted.put(e.c.Now(), k, r, admittedFor)
			}
			note(r)
		})
	}
	wg.Wait()
	return found, failed
}

func alike(p *corev1.Pod, budgets []*budget) string {
	k := []string{p.Namespace, string(p.UID), fmt.Sprint(isReady(p))}
	if o := metav1.GetControllerOf(p); o != nil {
		k[1] = string(o.UID)
	}
	for _, b := range selecting(budgets, p) {
		k = append(k, b.name)
	}
	return strings.Join(k, "/")
}

// dryRun asks for one eviction that the API server does not carry out; nil: it
// would take it, or cannot say. The error is of a call that was not answered, or
// of a missing right.
func (e *drainer) dryRun(ctx context.Context, p payload, pod *corev1.Pod, budgets []*budget) (*refusal, error) {
	asked := ctx
	ctx, cancel := context.WithTimeout(ctx, dryRunFor)
	defer cancel()
	ev := eviction(pod.Namespace, pod.Name, pod.UID, p.GracePeriodSeconds)
	ev.DeleteOptions.DryRun = []string{metav1.DryRunAll}
	err := e.send(ctx, ev)
	switch {
	case err == nil, apierrors.IsNotFound(err), apierrors.IsConflict(err): // it would go, or is gone
		return nil, nil
	case apierrors.IsBadRequest(err):
		if m := withoutDryRun.FindStringSubmatch(err.Error()); m != nil {
			return &refusal{code: codeUntold, rule: "webhook/" + m[1],
				why: fmt.Sprintf("whether webhook %s takes the evictions cannot be told beforehand: it declares side effects, and so is asked by no dry run", m[1])}, nil
		}
		if cluster.AdmissionDenied(err) {
			return refusalOf(err, pod, budgets), nil
		}
		return nil, nil
	case asked.Err() != nil:
		return nil, nil
	case apierrors.IsTimeout(err), apierrors.IsServerTimeout(err), ctx.Err() != nil:
		return &refusal{code: "api_error", rule: "api_server", why: fmt.Sprintf("the API server did not say within %s whether it takes an eviction of pod %s: a webhook may hang", dryRunFor, key(pod))}, nil
	}
	r := refusalOf(err, pod, budgets)
	if r.code == "eviction_refused" && r.rule == "admission" && apierrors.IsForbidden(err) { // nobody is named: the authorizer said it
		return nil, fmt.Errorf("rehearse the eviction of pod %s: %w", key(pod), err)
	}
	var status apierrors.APIStatus
	if r.code == "throttled" || apierrors.IsServiceUnavailable(err) || !errors.As(err, &status) { // it says nothing of this eviction
		return nil, nil
	}
	return r, nil
}

// eviction names one planned pod by UID: a repeat or a late call finds it stopping
// or gone and does nothing.
func eviction(namespace, name string, uid types.UID, grace int) *policyv1.Eviction {
	e := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}}
	if grace >= 0 {
		e.DeleteOptions.GracePeriodSeconds = ptr.To(int64(grace))
	}
	return e
}

// post sends an eviction once: client-go's own repeats after a Retry-After are off. The
// API server is told how long it has: it would go on after an agent that was stopped.
// https://kubernetes.io/docs/reference/using-api/api-concepts/#timeouts
//
// A dry run is told in the query as well: admission goes by that, and by the eviction's
// own options alone what carries it out.
// https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#side-effects
func (e *drainer) post(ctx context.Context, ev *policyv1.Eviction) error {
	r := e.c.Client.PolicyV1().RESTClient().Post().AbsPath("/api/v1").Namespace(ev.Namespace).Resource("pods").Name(ev.Name).SubResource("eviction").
		VersionedParams(&metav1.CreateOptions{DryRun: ev.DeleteOptions.DryRun}, scheme.ParameterCodec)
	if end, bounded := ctx.Deadline(); bounded {
		r.Timeout(max(time.Until(end), time.Millisecond))
	}
	return r.MaxRetries(0).Body(ev).Do(ctx).Error()
}

// ailing tells what is wrong with a node that matters to its pods; an empty code:
// nothing. Of a node whose kubelet does not report nobody can see the pods stop. One
// whose kubelet says that it is not ready is there, and stops pods in its own time. It is
// said at once, also of a kubelet that has just started: whoever waits wants to know.
// https://kubernetes.io/docs/reference/node/node-status/#condition
func ailing(n *corev1.Node) (code, why string) {
	c := cluster.Readiness(n)
	if c == nil {
		return "", ""
	}
	switch c.Status {
	case corev1.ConditionUnknown:
		return "node_unreachable", fmt.Sprintf("node %s is unreachable%s, so nobody can see its pods stop", n.Name, since(c))
	case corev1.ConditionFalse:
		return "node_not_ready", fmt.Sprintf("node %s is not ready%s, so its pods may be slow to stop%s", n.Name, since(c), inItsWords(c))
	}
	return "", ""
}

// since words when a condition came to be so, if whoever writes it says.
func since(c *corev1.NodeCondition) string {
	if c.LastTransitionTime.IsZero() {
		return ""
	}
	return " since " + c.LastTransitionTime.UTC().Format(time.RFC3339)
}

// inItsWords is what a condition itself says of why, to follow on what is said of it.
func inItsWords(c *corev1.NodeCondition) string {
	if words := cmp.Or(c.Message, c.Reason); words != "" {
		return ": " + words
	}
	return ""
}

// readySince is since when the node has been ready, or not; nil: nobody tells.
func readySince(n *corev1.Node) *time.Time {
	c := cluster.Readiness(n)
	if c == nil {
		return nil
	}
	return moment(c.LastTransitionTime.Time)
}

// unsurveyed words why the survey could not be made.
func unsurveyed(err error) *executor.Outcome {
	o := broken(err)
	return &o
}
