package kubecmd

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/agent/executor/kube"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/component"
	"github.com/opsplane/opsplane/agent/executor/kube/deployment"
	"github.com/opsplane/opsplane/agent/executor/kube/device"
	"github.com/opsplane/opsplane/agent/executor/kube/inventory"
	"github.com/opsplane/opsplane/agent/executor/kube/node"
)

const (
	rightsFile = "../../../infra/helm/opsplane-agent/files/rights.yaml"
	docFile    = "../../../infra/docs/kubernetes.md"
)

// feature is what the chart can turn on, with the rights that it adds.
type feature struct {
	name   string // in the chart's values
	rights []cluster.Right
}

// features are the agent's rights by what is turned on. What every agent has is
// not granted once more with a feature; two features may grant the same.
func features() []feature {
	all := []feature{
		{"agent", slices.Concat(node.Rights, device.PodsRights, inventory.Rights, deployment.Rights)},
		{"deviceReset", device.Rights},
		{"componentUpgrade", component.Rights},
	}
	granted := map[cluster.Right]bool{}
	for _, r := range all[0].rights {
		granted[key(r)] = true
	}
	for i := range all {
		all[i].rights = slices.DeleteFunc(slices.Clone(all[i].rights), func(r cluster.Right) bool {
			wide := key(r)
			wide.Namespace = ""
			return r.Namespace != "" && granted[wide] || i > 0 && granted[key(r)]
		})
	}
	return all
}

// The executor as it is opened asks for the same rights.
func TestRightsOfTheExecutor(t *testing.T) {
	t.Parallel()
	all := features()
	for _, tc := range []struct {
		name     string
		options  kube.Options
		features []feature
	}{
		{"alone", kube.Options{}, all[:1]},
		{"device reset", kube.Options{Device: device.Config{Enabled: true}}, all[:2]},
		{"component upgrade", kube.Options{Component: component.Config{Components: map[string]component.Component{"a": {}}}}, []feature{all[0], all[2]}},
	} {
		want, got := map[cluster.Right]bool{}, map[cluster.Right]bool{}
		for _, r := range kube.Rights(tc.options) {
			want[key(r)] = true
		}
		for _, f := range tc.features {
			for _, r := range f.rights {
				got[key(r)] = true
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-executor +chart):\n%s", tc.name, diff)
		}
	}
}

// key is a right without its reason.
func key(r cluster.Right) cluster.Right {
	r.Why = ""
	return r
}

// rule is an RBAC rule: verbs on one resource.
type rule struct {
	group, resource string
	verbs, whys     []string
}

// rules gathers the rights of one scope by their resource, in a fixed order.
func rules(rights []cluster.Right, namespace string) []rule {
	var out []rule
	for _, r := range rights {
		if r.Namespace != namespace {
			continue
		}
		i := slices.IndexFunc(out, func(x rule) bool { return x.group == r.Group && x.resource == r.Resource })
		if i < 0 {
			i = len(out)
			out = append(out, rule{group: r.Group, resource: r.Resource})
		}
		if !slices.Contains(out[i].verbs, r.Verb) {
			out[i].verbs = append(out[i].verbs, r.Verb)
		}
		if why := strings.TrimPrefix(r.Why, "to "); !slices.Contains(out[i].whys, why) {
			out[i].whys = append(out[i].whys, why)
		}
	}
	order := []string{"get", "list", "watch", "create", "update", "patch", "delete"}
	for i := range out {
		slices.SortFunc(out[i].verbs, func(a, b string) int {
			return slices.Index(order, a) - slices.Index(order, b)
		})
	}
	slices.SortFunc(out, func(a, b rule) int {
		return strings.Compare(a.group+" "+a.resource, b.group+" "+b.resource)
	})
	return out
}

// chartRights is what files/rights.yaml of the chart holds.
func chartRights(features []feature) string {
	var b strings.Builder
	b.WriteString(`# What the agent may do, and why. Generated from the Rights of agent/executor/kube:
# OPSPLANE_WRITE=1 go test -run TestRights ./agent/agentcmd/kubecmd
# The host helper's are at the end and written by hand.
`)
	for _, f := range features {
		fmt.Fprintf(&b, "%s:\n", f.name)
		for _, scope := range []struct{ name, namespace string }{{"cluster", ""}, {"namespace", cluster.OwnNamespace}} {
			found := rules(f.rights, scope.namespace)
			if len(found) == 0 {
				fmt.Fprintf(&b, "  %s: []\n", scope.name)
				continue
			}
			fmt.Fprintf(&b, "  %s:\n", scope.name)
			for _, r := range found {
				for _, why := range r.whys {
					fmt.Fprintf(&b, "    # %s\n", why)
				}
				fmt.Fprintf(&b, "    - apiGroups: [%q]\n      resources: [%q]\n      verbs: [%s]\n", r.group, r.resource, strings.Join(r.verbs, ", "))
			}
		}
	}
	b.WriteString(`hostHelper:
  namespace:
    # keep its node's report, one ConfigMap (an admission policy sees to that)
    - apiGroups: [""]
      resources: ["configmaps"]
      verbs: [get, create, update]
`)
	return b.String()
}

// docRights is the table of infra/docs/kubernetes.md.
func docRights(features []feature) string {
	var b strings.Builder
	b.WriteString("| value | where | resource | verbs | why |\n| --- | --- | --- | --- | --- |\n")
	for _, f := range features {
		for _, scope := range []struct{ words, namespace string }{{"cluster", ""}, {"own namespace", cluster.OwnNamespace}} {
			for _, r := range rules(f.rights, scope.namespace) {
				name := r.resource
				if r.group != "" {
					name += " (" + r.group + ")"
				}
				fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", f.name, scope.words, name, strings.Join(r.verbs, ", "), strings.Join(r.whys, "; "))
			}
		}
	}
	return b.String()
}

// TestRights: the chart grants the rights that the packages name, and the docs
// tell the same. With OPSPLANE_WRITE=1 it writes both.
func TestRights(t *testing.T) {
	t.Parallel()
	all := features()
	for _, f := range all {
		for _, r := range f.rights {
			if r.Verb == "*" || r.Resource == "*" || r.Group == "*" || r.Resource == "secrets" || r.Why == "" {
				t.Errorf("%s: %+v is no right to ask for", f.name, r)
			}
			if r.Namespace != "" && r.Namespace != cluster.OwnNamespace {
				t.Errorf("%s: %+v is of a namespace that the chart does not know", f.name, r)
			}
		}
	}
	compare(t, rightsFile, func(string) (string, bool) { return chartRights(all), true })
	compare(t, docFile, func(doc string) (string, bool) {
		const begin, end = "<!-- rights: generated, see agent/agentcmd/kubecmd -->\n", "<!-- end of rights -->"
		head, rest, ok := strings.Cut(doc, begin)
		_, tail, ok2 := strings.Cut(rest, end)
		return head + begin + docRights(all) + end + tail, ok && ok2
	})
}

// compare holds a file to what it should be, or writes it.
func compare(t *testing.T, file string, want func(was string) (string, bool)) {
	t.Helper()
	was, err := os.ReadFile(file)
	if err != nil && os.Getenv("OPSPLANE_WRITE") == "" {
		t.Fatal(err)
	}
	is, ok := want(string(was))
	switch {
	case !ok:
		t.Errorf("%s has no place for the rights", file)
	case is == string(was):
	case os.Getenv("OPSPLANE_WRITE") != "":
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(is), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s is not what the packages' Rights say; OPSPLANE_WRITE=1 go test -run TestRights ./agent/agentcmd/kubecmd writes it", file)
	}
}
