//go:build kubetest

package charttest

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/opsplane/opsplane/agent/executor/host/report"
	"github.com/opsplane/opsplane/agent/executor/host/serve"
	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
)

// helper is the host helper of one node, with the token of its own pod.
type helper struct {
	*hosts
	node   string
	uid    types.UID // the node's
	client kubernetes.Interface
}

// hosts are nodes on which the chart runs the host helper.
type hosts struct {
	*installed
	rig  *kuberig.Rig
	pods map[string]corev1.Pod // by node
}

// newHosts installs the chart with the host helper on nodes.
func newHosts(t *testing.T, r *kuberig.Rig, nodes ...*corev1.Node) *hosts {
	t.Helper()
	h := &hosts{installed: newInstalled(t, r), rig: r, pods: map[string]corev1.Pod{}}
	own := nodes[0].Labels[kuberig.LabelRig]
	here := "[{key: " + kuberig.LabelRig + ", operator: In, values: [" + own + "]}]"
	h.install(with(t, "gpuNodes: {affinity: required, matchExpressions: "+here+"}\nhostHelper: {enabled: true, matchExpressions: "+here+"}"))
	t.Cleanup(h.uninstall)
	r.Await("each node has a helper", func(ctx context.Context) (bool, error) {
		l, err := h.client.CoreV1().Pods(h.ns).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=host"})
		if err != nil {
			return false, err
		}
		for _, p := range l.Items {
			h.pods[p.Spec.NodeName] = p
		}
		delete(h.pods, "")
		return len(h.pods) == len(nodes), nil
	})
	return h
}

// as is a client with a token of the helpers' account, bound to a pod or to
// nothing: what a kubelet gets for a pod, the API server gives for the asking.
func (h *hosts) as(pod *corev1.Pod) kubernetes.Interface {
	h.t.Helper()
	want := &authenticationv1.TokenRequest{}
	if pod != nil {
		want.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}
	}
	got, err := h.client.CoreV1().ServiceAccounts(h.ns).CreateToken(h.t.Context(), fullname+"-host", want, metav1.CreateOptions{})
	if err != nil {
		h.t.Fatal(err)
	}
	cfg := rest.AnonymousClientConfig(h.rig.Config(kuberig.Admin))
	cfg.BearerToken = got.Status.Token
	c, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		h.t.Fatal(err)
	}
	return c
}

// of is the helper of a node.
func (h *hosts) of(node *corev1.Node) *helper {
	h.t.Helper()
	pod := h.pods[node.Name]
	return &helper{hosts: h, node: node.Name, uid: node.UID, client: h.as(&pod)}
}

// reports runs the helper until it has kept its report.
func (w *helper) reports() *corev1.ConfigMap {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan error, 1)
	go func() {
		done <- serve.Run(ctx, serve.Options{Client: w.client, Namespace: w.ns, Node: w.node, Every: time.Second, Least: time.Second, Alive: time.Minute,
			Log: slog.New(slog.DiscardHandler), Now: time.Now, Look: func(context.Context) (report.Host, bool) {
				return report.Host{Node: w.node, Source: report.SourceRecorded, At: time.Now().UTC(), Devices: []report.Device{}}, true
			}})
	}()
	var kept *corev1.ConfigMap
	w.rig.Await("the report of "+w.node, func(ctx context.Context) (ok bool, err error) {
		kept, err = w.hosts.client.CoreV1().ConfigMaps(w.ns).Get(ctx, report.Name(w.node), metav1.GetOptions{})
		return err == nil, err
	})
	cancel()
	if err := <-done; err != nil {
		w.t.Error(err)
	}
	return kept
}

// TestHostsSpeakForThemselves: with the token of its own pod a node's helper keeps
// its own report, which its node owns, and can write nothing else: not another
// node's, whether it is there or not, and no other ConfigMap of the namespace. A
// token that names no node writes nothing at all. A report goes with its node.
func TestHostsSpeakForThemselves(t *testing.T) {
	t.Parallel()
	r := kuberig.Shared(t)
	// As long as a node's name may be with the ending that the rig gives it, which
	// leaves no room for a prefix.
	long := "rrrrr" + strings.Repeat("rack-7.", 34) + "n"
	nodes := []*corev1.Node{r.Node("mine"), r.Node("other"), r.Node(long, kuberig.NodeLabel(corev1.LabelHostname, "long"))}
	if len(nodes[2].Name) != report.MaxNameBytes || report.Name(nodes[2].Name) != nodes[2].Name {
		t.Fatalf("a node's name of %d bytes", len(nodes[2].Name))
	}
	h := newHosts(t, r, nodes...)
	mine, other, far := h.of(nodes[0]), h.of(nodes[1]), h.of(nodes[2])
	maps := func(c kubernetes.Interface) func(o *corev1.ConfigMap) error {
		return func(o *corev1.ConfigMap) error {
			o = o.DeepCopy()
			if o.ResourceVersion != "" {
				_, err := c.CoreV1().ConfigMaps(h.ns).Update(t.Context(), o, metav1.UpdateOptions{})
				return err
			}
			_, err := c.CoreV1().ConfigMaps(h.ns).Create(t.Context(), o, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return err
		}
	}
	named := func(name string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{report.Label: report.Hash("x")}}}
	}
	r.Await("the policy is in force", func(context.Context) (bool, error) {
		return apierrors.IsForbidden(maps(mine.client)(named("anything"))) || apierrors.IsInvalid(maps(mine.client)(named("anything"))), nil
	})
	if err := maps(mine.client)(named(report.Name(other.node))); err == nil {
		t.Error("a node may make another's report before that does")
	}

	reports := map[*helper]*corev1.ConfigMap{}
	for _, w := range []*helper{mine, other, far} {
		kept := w.reports()
		reports[w] = kept
		if o := kept.OwnerReferences; len(o) != 1 || o[0].Kind != "Node" || o[0].Name != w.node || o[0].UID != w.uid {
			t.Errorf("the report of %s is owned by %+v", w.node, o)
		}
	}
	root, err := h.client.CoreV1().ConfigMaps(h.ns).Get(t.Context(), "kube-root-ca.crt", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	owned := reports[mine].DeepCopy()
	owned.OwnerReferences = reports[other].OwnerReferences
	waits := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "waits"}, Spec: corev1.PodSpec{ServiceAccountName: fullname + "-host",
		NodeSelector: map[string]string{"no-such-node": "here"}, Containers: []corev1.Container{{Name: "main", Image: "x"}}}}
	waits, err = h.client.CoreV1().Pods(h.ns).Create(t.Context(), waits, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const alone, nobody = "alone", "names no node"
	for name, c := range map[string]struct {
		by    kubernetes.Interface
		what  *corev1.ConfigMap
		wrong string // "": it may
	}{
		"its own":                          {mine.client, reports[mine], ""},
		"another's":                        {mine.client, reports[other], alone},
		"that of the long name":            {mine.client, reports[far], alone},
		"another's, by the long name":      {far.client, reports[other], alone},
		"one of a node that is not there":  {mine.client, named(report.Name("gone")), alone},
		"by the node's bare name":          {mine.client, named(mine.node), alone},
		"by a longer name":                 {mine.client, named(report.Name(mine.node) + "-x"), alone},
		"what all pods trust":              {mine.client, root, alone},
		"given to another node":            {mine.client, owned, "its own node alone"},
		"a token that is bound to nothing": {h.as(nil), reports[mine], nobody},
		"a token of a pod on no node":      {h.as(waits), reports[mine], nobody},
		"an administrator":                 {h.client, named(report.Name("gone")), ""},
	} {
		err := maps(c.by)(c.what)
		if (err == nil) != (c.wrong == "") || err != nil && !strings.Contains(err.Error(), c.wrong) {
			t.Errorf("%s: %v, want %q", name, err, c.wrong)
		}
	}

	if err := h.client.CoreV1().Nodes().Delete(t.Context(), mine.node, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.Await("the report went with its node", func(ctx context.Context) (bool, error) {
		_, err := h.client.CoreV1().ConfigMaps(h.ns).Get(ctx, report.Name(mine.node), metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	})
	if _, err := h.client.CoreV1().ConfigMaps(h.ns).Get(t.Context(), report.Name(other.node), metav1.GetOptions{}); err != nil {
		t.Errorf("another's went with it: %v", err)
	}
}
