//go:build kubetest

package kubeflow

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	hostreport "github.com/opsplane/opsplane/agent/executor/host/report"
	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	"github.com/opsplane/opsplane/shared/operation"
)

// chartRights is what the chart grants, by what is turned on.
func chartRights(t testing.TB) map[string]struct{ Cluster, Namespace []rbacv1.PolicyRule } {
	t.Helper()
	text, err := os.ReadFile("../helm/opsplane-agent/files/rights.yaml")
	if err != nil {
		t.Fatal(err)
	}
	rights := map[string]struct{ Cluster, Namespace []rbacv1.PolicyRule }{}
	if err := yaml.Unmarshal(text, &rights); err != nil {
		t.Fatal(err)
	}
	return rights
}

// installed is a site whose agents have the chart's role, and its namespace.
type installed struct {
	*site
	namespace string
}

// install grants a user what the chart grants the agent's account, but for what
// without says.
func install(t testing.TB, rig *kuberig.Rig, without func(verb, resource string) bool) installed {
	t.Helper()
	s := newSite(t, rig, patient...)
	s.user = rig.User("agent")
	own := rig.Namespace()
	for ns, rules := range map[string][]rbacv1.PolicyRule{"": chartRights(t)["agent"].Cluster, own: chartRights(t)["agent"].Namespace} {
		var granted []rbacv1.PolicyRule
		for _, r := range rules {
			r.Verbs = slices.DeleteFunc(slices.Clone(r.Verbs), func(verb string) bool { return without != nil && without(verb, r.Resources[0]) })
			if len(r.Verbs) > 0 {
				granted = append(granted, r)
			}
		}
		rig.Grant(s.user, ns, granted...)
	}
	return installed{s, own}
}

// agent starts an agent as the chart does and returns where its health is.
func (s installed) agent(args ...string) (*process, string) {
	s.t.Helper()
	p := s.site.agent("", append([]string{"--namespace", s.namespace, "--listen", "127.0.0.1:0"}, args...)...)
	log, err := os.ReadFile(p.log)
	if err != nil {
		s.t.Fatal(err)
	}
	m := regexp.MustCompile(`"health and metrics are served".*"address":"([^"]+)"`).FindSubmatch(log)
	if m == nil {
		s.t.Fatalf("no health is served:\n%s", log)
	}
	return p, "http://" + string(m[1])
}

func (s installed) get(url string) (int, string) {
	s.t.Helper()
	res, err := http.Get(url)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// Rights that this scenario has no use for: each takes a fault or an API that is
// not served here. The packages' own TestRights shows what fails without it.
var rare = []string{
	"delete pods", // on_deadline: force, and the undo of a StatefulSet's rollout
	"get pods",    // an eviction whose answer was lost
	"get apps/daemonsets",
	"get persistentvolumeclaims", // a pod that stays on the node has a volume
	"get leaderworkerset.x-k8s.io/leaderworkersets", "list leaderworkerset.x-k8s.io/leaderworkersets", "patch leaderworkerset.x-k8s.io/leaderworkersets", "watch leaderworkerset.x-k8s.io/leaderworkersets",
	"get nvidia.com/dynamographdeployments", "list nvidia.com/dynamographdeployments", "patch nvidia.com/dynamographdeployments", "watch nvidia.com/dynamographdeployments",
}

// TestChartsRoleIsEnoughAndNoMore: agents with the chart's role report the
// inventory, preview, drain, roll and give back, nothing is forbidden to them, and
// they use all that they were given.
func TestChartsRoleIsEnoughAndNoMore(t *testing.T) {
	t.Parallel()
	rig := kuberig.Shared(t)
	s := install(t, rig, nil)
	node, other := rig.Node("gpu"), rig.Node("gpu")
	ns := rig.Namespace()
	rig.Deployment(ns, "serve", 2, kuberig.PreferNode(node.Name, other.Name), kuberig.Shutdown(2*time.Second))
	rig.StatefulSet(ns, "store", 1, kuberig.PreferNode(node.Name, other.Name))
	if _, err := rig.Client(kuberig.Admin).CoreV1().Services(ns).Create(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "serve"},
		Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "serve"}, Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	const gpu = "GPU-11111111-2222-3333-4444-555555555555"
	report(t, rig, s.namespace, other.Name, gpu)
	_, health := s.agent()
	s.thing("nodes", node.Name)
	s.thing("deployments", ns+"/serve")
	s.await("the agent is ready", time.Minute, func() bool {
		status, _ := s.get(health + "/readyz")
		return status == http.StatusOK
	})

	dry, body := s.call(http.MethodPost, "/v1/operations", map[string]any{"type": "node.drain", "target": "node:" + node.Name, "cluster": "rig", "reason": "test", "dry_run": true})
	if dry != http.StatusOK || !strings.Contains(string(body), `"live"`) {
		t.Errorf("the dry run: %d %s", dry, body)
	}
	for _, ask := range []struct {
		typ, target string
		payload     map[string]any
	}{
		{"node.drain", "node:" + node.Name, map[string]any{"await_volume_detach": true}},
		{"node.drain", "node:" + other.Name, map[string]any{"device": gpu}},
		{"node.uncordon", "node:" + node.Name, nil},
		{"deployment.roll", "deployment:" + ns + "/serve", nil},
		{"deployment.roll", "deployment:" + ns + "/store", nil},
	} {
		if o := s.ended(s.want(ask.typ, ask.target, ask.payload, 2*time.Minute).ID, 3*time.Minute); o.Phase != operation.Succeeded {
			t.Errorf("%s of %s: %s", ask.typ, ask.target, o)
		}
	}

	used := map[string]bool{}
	for _, e := range rig.Audit(s.user) {
		if e.Code == http.StatusForbidden {
			t.Errorf("forbidden: %s %s", e.Verb, e.URI)
		}
		resource := e.Resource
		if e.Subresource != "" {
			resource += "/" + e.Subresource
		}
		used[right(e.Verb, e.Group, resource)] = true
	}
	granted := map[string]bool{}
	for _, rules := range [][]rbacv1.PolicyRule{chartRights(t)["agent"].Cluster, chartRights(t)["agent"].Namespace} {
		for _, r := range rules {
			for _, verb := range r.Verbs {
				granted[right(verb, r.APIGroups[0], r.Resources[0])] = true
			}
		}
	}
	var idle []string
	for g := range granted {
		if !used[g] {
			idle = append(idle, g)
		}
	}
	slices.Sort(idle)
	if diff := cmp.Diff(slices.Sorted(slices.Values(rare)), idle); diff != "" {
		t.Errorf("granted and not used (-expected +found):\n%s", diff)
	}
	for u := range maps.Keys(used) {
		// What every user of a cluster may ask.
		if !granted[u] && !strings.Contains(u, "selfsubjectaccessreviews") && !strings.HasSuffix(u, " ") {
			t.Errorf("used and not granted: %s", u)
		}
	}

	// What it did is in its metrics.
	_, metrics := s.get(health + "/metrics")
	for _, want := range []string{`opsplane_agent_runs_ended_total{outcome="succeeded"} 5`, `opsplane_agent_effects_total{category="ok"}`, "opsplane_agent_reporter 1",
		"opsplane_agent_executor_up 1", `opsplane_agent_kube_requests_total{code="201",method="POST"}`, `opsplane_agent_kube_request_seconds_count{method="PATCH"}`} {
		if !strings.Contains(metrics, want) {
			t.Errorf("the metrics lack %s", want)
		}
	}
}

// report is what the host helper of a node says: it has one GPU that nobody holds.
func report(t testing.TB, rig *kuberig.Rig, namespace, node, gpu string) {
	t.Helper()
	h := hostreport.Host{Version: hostreport.Version, Node: node, Source: hostreport.SourceRecorded, At: time.Now(),
		Devices: []hostreport.Device{{UUID: gpu, PCI: "0000:3b:00.0", Health: hostreport.HealthOK}}}
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: hostreport.Name(node), Labels: map[string]string{hostreport.Label: hostreport.Hash(node)}},
		Data: map[string]string{hostreport.Key: string(h.Data())}}
	if _, err := rig.Client(kuberig.Admin).CoreV1().ConfigMaps(namespace).Create(t.Context(), m, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func right(verb, group, resource string) string {
	if group != "" {
		resource = group + "/" + resource
	}
	return fmt.Sprintf("%s %s", verb, resource)
}

// TestMissingRightIsNamed: an agent whose role lacks a right says which, in the
// operation or in its health, and goes on when it is granted.
func TestMissingRightIsNamed(t *testing.T) {
	t.Parallel()
	t.Run("of an operation", func(t *testing.T) {
		t.Parallel()
		rig := kuberig.Shared(t)
		s := install(t, rig, func(verb, resource string) bool { return resource == "pods/eviction" })
		node := rig.Node("gpu")
		rig.Deployment(rig.Namespace(), "serve", 1, kuberig.OnNode(node.Name))
		s.agent()
		s.thing("nodes", node.Name)
		o := s.ended(s.want("node.drain", "node:"+node.Name, nil, 2*time.Minute).ID, 3*time.Minute)
		if c := o.Result.Cause; o.Phase != operation.Failed || c.ErrorCode != "forbidden" || !strings.Contains(c.Detail, "create") || !strings.Contains(c.Detail, "pods/eviction") {
			t.Fatalf("without the right: %s", o)
		}
		rig.Grant(s.user, "", kuberig.Rule("", "pods/eviction", []string{"create"}))
		var again op
		s.post("/v1/operations/"+o.ID+"/retry", map[string]any{"reason": "granted"}, http.StatusAccepted, &again)
		if o = s.ended(o.ID, 30*time.Second); o.Phase != operation.Succeeded {
			t.Errorf("with the right: %s", o)
		}
	})
	t.Run("of the inventory", func(t *testing.T) {
		t.Parallel()
		rig := kuberig.Shared(t)
		s := install(t, rig, func(verb, resource string) bool { return resource == "statefulsets" && verb == "list" })
		node := rig.Node("gpu")
		_, health := s.agent()
		s.await("the agent's health names the right", time.Minute, func() bool {
			status, body := s.get(health + "/readyz")
			var said struct{ Executor struct{ Detail string } }
			if err := json.Unmarshal([]byte(body), &said); err != nil {
				t.Fatalf("%v in %s", err, body)
			}
			return status == http.StatusServiceUnavailable && strings.Contains(said.Executor.Detail, "lacks the right") && strings.Contains(said.Executor.Detail, "statefulsets")
		})
		if status, body := s.get(health + "/healthz"); status != http.StatusOK {
			t.Errorf("a missing right kills the agent: %d %s", status, body)
		}
		rig.Grant(s.user, "", kuberig.Rule("apps", "statefulsets", []string{"list"}))
		s.await("the agent is ready", time.Minute, func() bool {
			status, _ := s.get(health + "/readyz")
			return status == http.StatusOK
		})
		s.thing("nodes", node.Name)
	})
}
