//go:build kubetest

package charttest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/cli"
	"helm.sh/helm/v4/pkg/kube"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
)

// installed is the chart as a release on a real API server, whose kubelets are
// simulated.
type installed struct {
	t      *testing.T
	client kubernetes.Interface
	cfg    *action.Configuration
	ns     string
}

// newInstalled is ready to install the chart in a namespace of its own.
func newInstalled(t *testing.T, r *kuberig.Rig) *installed {
	t.Helper()
	i := &installed{t: t, client: r.Client(kuberig.Admin), cfg: action.NewConfiguration(), ns: r.Namespace()}
	settings := cli.New()
	settings.KubeConfig = r.Kubeconfig(kuberig.Admin)
	settings.SetNamespace(i.ns)
	if err := i.cfg.Init(settings.RESTClientGetter(), i.ns, "secret"); err != nil {
		t.Fatal(err)
	}
	return i
}

// install installs the chart and waits until it is ready.
func (i *installed) install(vals map[string]any) {
	i.t.Helper()
	chart, err := loader.Load(chartPath)
	if err != nil {
		i.t.Fatal(err)
	}
	in := action.NewInstall(i.cfg)
	in.ReleaseName, in.Namespace, in.WaitStrategy, in.Timeout = name, i.ns, kube.StatusWatcherStrategy, 2*time.Minute
	if _, err := in.Run(chart, vals); err != nil {
		i.t.Fatal(err)
	}
}

// uninstall takes the release away, and waits until it is.
func (i *installed) uninstall() {
	i.t.Helper()
	un := action.NewUninstall(i.cfg)
	un.WaitStrategy, un.Timeout = kube.StatusWatcherStrategy, time.Minute
	if _, err := un.Run(name); err != nil {
		i.t.Fatal(err)
	}
}

// may asks whether the agent's account has a right; namespace "" is the whole
// cluster.
func (i *installed) may(verb, group, resource, namespace string) bool {
	i.t.Helper()
	resource, sub, _ := strings.Cut(resource, "/")
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: fmt.Sprintf("system:serviceaccount:%s:%s", i.ns, fullname), Groups: []string{"system:serviceaccounts", "system:authenticated"},
		ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: verb, Group: group, Resource: resource, Subresource: sub, Namespace: namespace},
	}}
	answer, err := i.client.AuthorizationV1().SubjectAccessReviews().Create(i.t.Context(), review, metav1.CreateOptions{})
	if err != nil {
		i.t.Fatal(err)
	}
	return answer.Status.Allowed
}

// TestInstall: Helm installs the chart and its two agents get ready on two GPU
// nodes, with what they may do and nothing else; what is turned on later comes
// with an upgrade; nothing is left afterwards.
func TestInstall(t *testing.T) {
	t.Parallel()
	r := kuberig.Shared(t)
	nodes := map[string]bool{r.Node("gpu").Name: true, r.Node("gpu").Name: true}
	rig := r.NodeNow(firstOf(nodes)).Labels[kuberig.LabelRig]
	i := newInstalled(t, r)
	chart, err := loader.Load(chartPath)
	if err != nil {
		t.Fatal(err)
	}
	vals := func(more string) map[string]any {
		return with(t, "token: {existingSecret: '', value: opt_test}\ngpuNodes: {affinity: required, matchExpressions: [{key: "+kuberig.LabelRig+", operator: In, values: ["+rig+"]}]}\n"+more)
	}
	i.install(vals(""))
	pods, err := i.client.CoreV1().Pods(i.ns).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pods.Items {
		if !nodes[p.Spec.NodeName] {
			t.Errorf("pod %s is on %s: two are on one node, or it is no GPU node of this test", p.Name, p.Spec.NodeName)
		}
		delete(nodes, p.Spec.NodeName)
	}
	if len(pods.Items) != 2 {
		t.Errorf("%d pods", len(pods.Items))
	}
	pdb, err := i.client.PolicyV1().PodDisruptionBudgets(i.ns).Get(t.Context(), fullname, metav1.GetOptions{})
	if err != nil || pdb.Spec.MaxUnavailable.IntValue() != 1 {
		t.Errorf("%+v, %v", pdb, err)
	}

	for _, rule := range readRights(t)["agent"].Cluster {
		for _, verb := range rule.Verbs {
			if !i.may(verb, rule.APIGroups[0], rule.Resources[0], "") {
				t.Errorf("may not %s %s", verb, rule.Resources[0])
			}
		}
	}
	for _, rule := range readRights(t)["agent"].Namespace {
		for _, verb := range rule.Verbs {
			if !i.may(verb, rule.APIGroups[0], rule.Resources[0], i.ns) || i.may(verb, rule.APIGroups[0], rule.Resources[0], "default") {
				t.Errorf("may not %s %s in its own namespace alone", verb, rule.Resources[0])
			}
		}
	}
	for _, not := range []struct{ verb, group, resource string }{
		{"get", "", "secrets"}, {"list", "", "secrets"}, {"create", "", "pods/exec"}, {"get", "", "pods/log"}, {"create", "", "pods"}, {"delete", "", "nodes"}, {"update", "", "nodes"},
		{"create", "batch", "jobs"}, {"create", "", "serviceaccounts/token"}, {"create", "rbac.authorization.k8s.io", "clusterrolebindings"}, {"get", "", "nodes/proxy"},
	} {
		if i.may(not.verb, not.group, not.resource, i.ns) {
			t.Errorf("may %s %s", not.verb, not.resource)
		}
	}

	i.keepsToItsTrade(r)

	up := action.NewUpgrade(i.cfg)
	up.Namespace, up.WaitStrategy, up.Timeout = i.ns, kube.StatusWatcherStrategy, 2*time.Minute
	if _, err := up.Run(name, chart, vals("deviceReset: {enabled: true}")); err != nil {
		t.Fatal(err)
	}
	if !i.may("create", "batch", "jobs", i.ns) || i.may("create", "batch", "jobs", "default") {
		t.Error("with device resets it makes Jobs in its own namespace, and there alone")
	}
	i.uninstall()
	if _, err := i.client.RbacV1().ClusterRoles().Get(t.Context(), "opsplane:"+i.ns+":"+fullname, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the role is left: %v", err)
	}
}

func firstOf(m map[string]bool) string {
	for k := range m {
		return k
	}
	return ""
}

// keepsToItsTrade tries what the agent's account may patch: what a rollout and a
// cordon change, and nothing that RBAC would let it change besides.
func (i *installed) keepsToItsTrade(r *kuberig.Rig) {
	i.t.Helper()
	cfg := rest.CopyConfig(r.Config(kuberig.Admin))
	cfg.Impersonate = rest.ImpersonationConfig{UserName: fmt.Sprintf("system:serviceaccount:%s:%s", i.ns, fullname), Groups: []string{"system:serviceaccounts", "system:authenticated"}}
	agent, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		i.t.Fatal(err)
	}
	node, ns := r.Node("cordoned").Name, r.Namespace()
	r.Deployment(ns, "web", 1, kuberig.OnNode(node), kuberig.Spec(func(meta *metav1.ObjectMeta, _ *corev1.PodSpec) {
		metav1.SetMetaDataAnnotation(meta, "prometheus.io/scrape", "true")
	}))
	r.StatefulSet(ns, "db", 1, kuberig.OnNode(node))
	ctx := i.t.Context()
	deployment := func(patch string) error {
		_, err := agent.AppsV1().Deployments(ns).Patch(ctx, "web", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
		return err
	}
	set := func(patch string) error {
		_, err := agent.AppsV1().StatefulSets(ns).Patch(ctx, "db", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
		return err
	}
	nodes := func(patch string) error {
		_, err := agent.CoreV1().Nodes().Patch(ctx, node, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
		return err
	}
	rehearsal := func(patch string) error {
		_, err := agent.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, []byte(patch), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	// The garbage collector deletes what has one.
	const deadOwner = `[{"apiVersion":"v1","kind":"ConfigMap","name":"gone","uid":"00000000-0000-4000-8000-000000000000"}]`
	const image = `{"spec":{"template":{"spec":{"containers":[{"name":"main","image":"evil"}]}}}}`
	r.Await("the policy is in force", func(context.Context) (bool, error) {
		_, err := agent.AppsV1().Deployments(ns).Patch(ctx, "web", types.StrategicMergePatchType, []byte(image), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		return err != nil, nil
	})
	r.Await("the policies' expressions are checked against the types", func(ctx context.Context) (bool, error) {
		all, err := i.client.AdmissionregistrationV1().ValidatingAdmissionPolicies().List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		for _, p := range all.Items {
			if !strings.HasPrefix(p.Name, "opsplane."+i.ns+".") {
				continue
			}
			if p.Status.TypeChecking == nil {
				return false, nil
			}
			for _, w := range p.Status.TypeChecking.ExpressionWarnings {
				i.t.Errorf("%s: %s: %s", p.Name, w.FieldRef, w.Warning)
			}
		}
		return true, nil
	})
	for name, c := range map[string]struct {
		do    func(patch string) error
		patch string
		may   bool
	}{
		"restart":            {deployment, `{"metadata":{"annotations":{"opsplane.io/mark":"x"}},"spec":{"template":{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":"2026-01-01T00:00:00Z","opsplane.io/mark":"x"}}}}}`, true},
		"undo a restart":     {deployment, `{"spec":{"template":{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":null,"opsplane.io/mark":null}}}}}`, true},
		"another image":      {deployment, image, false},
		"another account":    {deployment, `{"spec":{"template":{"spec":{"serviceAccountName":"admin"}}}}`, false},
		"a privileged pod":   {deployment, `{"spec":{"template":{"spec":{"hostPID":true}}}}`, false},
		"other labels":       {deployment, `{"spec":{"template":{"metadata":{"labels":{"team":"x"}}}}}`, false},
		"scale":              {deployment, `{"spec":{"replicas":0}}`, false},
		"another proxy":      {deployment, `{"spec":{"template":{"metadata":{"annotations":{"sidecar.istio.io/proxyImage":"evil"}}}}}`, false},
		"an injector":        {deployment, `{"spec":{"template":{"metadata":{"annotations":{"vault.hashicorp.com/agent-inject":"true"}}}}}`, false},
		"no AppArmor":        {deployment, `{"spec":{"template":{"metadata":{"annotations":{"container.apparmor.security.beta.kubernetes.io/main":"unconfined"}}}}}`, false},
		"drop an injector":   {deployment, `{"spec":{"template":{"metadata":{"annotations":{"prometheus.io/scrape":null}}}}}`, false},
		"change an injector": {deployment, `{"spec":{"template":{"metadata":{"annotations":{"prometheus.io/scrape":"false"}}}}}`, false},
		"pods that stay":     {deployment, `{"spec":{"template":{"metadata":{"finalizers":["example.com/x"]}}}}`, false},
		"a dead owner":       {deployment, `{"metadata":{"ownerReferences":` + deadOwner + `}}`, false},
		"a finalizer":        {deployment, `{"metadata":{"finalizers":["example.com/x"]}}`, false},
		"label a workload":   {deployment, `{"metadata":{"labels":{"app.kubernetes.io/instance":"x"}}}`, false},
		"annotate it":        {deployment, `{"metadata":{"annotations":{"argocd.argoproj.io/tracking-id":"x"}}}`, false},
		"pause":              {deployment, `{"spec":{"paused":true}}`, false},
		"all at once":        {deployment, `{"spec":{"strategy":{"rollingUpdate":{"maxUnavailable":"100%"}}}}`, false},
		"another strategy":   {deployment, `{"spec":{"strategy":{"$retainKeys":["type"],"type":"Recreate"}}}`, false},
		"never available":    {deployment, `{"spec":{"minReadySeconds":500}}`, false},
		"no way back":        {deployment, `{"spec":{"revisionHistoryLimit":0}}`, false},
		"no deadline":        {deployment, `{"spec":{"progressDeadlineSeconds":9999}}`, false},
		"restart a set":      {set, `{"spec":{"template":{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":"2026-01-01T00:00:00Z","opsplane.io/mark":"x"}}}}}`, true},
		"an owner of a set":  {set, `{"metadata":{"ownerReferences":` + deadOwner + `}}`, false},
		"lose its volumes":   {set, `{"spec":{"persistentVolumeClaimRetentionPolicy":{"whenDeleted":"Delete"}}}`, false},
		"on delete alone":    {set, `{"spec":{"updateStrategy":{"$retainKeys":["type"],"type":"OnDelete"}}}`, false},
		"renumber":           {set, `{"spec":{"ordinals":{"start":5}}}`, false},
		"an owner of a node": {nodes, `{"metadata":{"ownerReferences":` + deadOwner + `}}`, false},
		"a node that stays":  {nodes, `{"metadata":{"finalizers":["example.com/x"]}}`, false},
		"cordon":             {nodes, `{"metadata":{"annotations":{"opsplane.io/cordon":"{}","opsplane.io/mark":"x"}},"spec":{"unschedulable":true}}`, true},
		"rehearse a cordon":  {rehearsal, `{"metadata":{"annotations":{"opsplane.io/cordon":"{}","opsplane.io/drain":"{}","opsplane.io/mark":"x"}},"spec":{"unschedulable":true}}`, true},
		"rehearse a taint":   {rehearsal, `{"spec":{"taints":[{"key":"x","effect":"NoExecute"}]}}`, false},
		"label a node":       {nodes, `{"metadata":{"labels":{"node-role.kubernetes.io/control-plane":""}}}`, false},
		"taint a node":       {nodes, `{"spec":{"taints":[{"key":"x","effect":"NoExecute"}]}}`, false},
		"annotate a node":    {nodes, `{"metadata":{"annotations":{"cluster-autoscaler.kubernetes.io/scale-down-disabled":"true"}}}`, false},
		"uncordon the node":  {nodes, `{"metadata":{"annotations":{"opsplane.io/cordon":null}},"spec":{"unschedulable":null}}`, true},
	} {
		if err := c.do(c.patch); (err == nil) != c.may {
			i.t.Errorf("%s: %v, may: %v", name, err, c.may)
		} else if err != nil && !strings.Contains(err.Error(), "the Opsplane agent may") {
			i.t.Errorf("%s is refused for another reason: %v", name, err)
		}
	}
}
