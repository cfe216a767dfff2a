package charttest

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v4/pkg/action"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
)

func keys(o objects) string { return strings.Join(slices.Sorted(maps.Keys(o)), ", ") }

// everything turns all on.
const everything = `
plane: {caSecret: plane-ca}
deviceReset: {enabled: true}
hostHelper: {enabled: true}
componentUpgrade: {enabled: true, registrySecret: registry, components: {gpu-operator: {release: gpu-operator, namespace: gpu-operator, chart: gpu-operator, repository: "https://helm.ngc.nvidia.com/nvidia"}}}
metrics: {serviceMonitor: {enabled: true, labels: {release: prometheus}}}
priorityClassName: system-cluster-critical
imagePullSecrets: [{name: registry}]
awsRegion: eu-central-1
serviceAccount: {annotations: {eks.amazonaws.com/role-arn: "arn:aws:iam::123456789012:role/opsplane-agent"}}
extraEnv: [{name: HTTPS_PROXY, value: "http://proxy:3128"}]
networkPolicy: {apiServerCIDRs: [10.0.0.1/32], planeCIDRs: [192.0.2.0/24], metricsFrom: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}]}
`

// matrix is the values that the chart is looked at with.
func matrix() map[string]string {
	return map[string]string{
		"least":             "",
		"everything":        everything,
		"one replica":       "replicas: 1",
		"required":          "gpuNodes: {affinity: required}",
		"anywhere":          "gpuNodes: {affinity: none}\ntolerations: []",
		"token given":       "token: {existingSecret: '', value: opt_abc123}",
		"device reset":      "deviceReset: {enabled: true}",
		"host helper":       "hostHelper: {enabled: true}",
		"component upgrade": `componentUpgrade: {enabled: true, serviceAccountName: upgrader, components: {gpu-operator: {release: gpu-operator, namespace: gpu-operator, chart: gpu-operator, repository: "https://helm.ngc.nvidia.com/nvidia"}}}`,
		"no rbac":           "rbac: {create: false}",
		"no network policy": "networkPolicy: {enabled: false}",
		"http":              "plane: {url: 'http://10.0.0.9:8080', insecure: true}",
		"names":             "fullnameOverride: " + strings.Repeat("long-", 20) + "name",
		"digests":           "image: {digest: 'sha256:" + strings.Repeat("0a", 32) + "'}",
	}
}

func each(t *testing.T, f func(t *testing.T, vals map[string]any)) {
	t.Helper()
	for name, text := range matrix() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, with(t, text))
		})
	}
}

func TestLint(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, vals map[string]any) {
		l := action.NewLint()
		l.Strict, l.Namespace = true, namespace
		r := l.Run([]string{chartPath}, vals)
		for _, m := range r.Messages {
			if !strings.Contains(m.Error(), "icon is recommended") {
				t.Error(m)
			}
		}
		if len(r.Errors) > 0 {
			t.Error(r.Errors)
		}
	})
	t.Run("defaults alone", func(t *testing.T) {
		t.Parallel()
		if r := action.NewLint().Run([]string{chartPath}, nil); len(r.Errors) > 0 {
			t.Error(r.Errors)
		}
	})
}

// Values that make no sense are refused, and the answer names the field.
func TestBadValuesAreRefused(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ values, says string }{
		{"plane: {url: ''}", "plane.url is needed"},
		{"plane: {url: plane.example}", "/plane/url"},
		{"plane: {url: 'https://user:secret@plane.example'}", "/plane/url"},
		{"plane: {url: 'http://plane.example'}", "plane.insecure"},
		{"plane: {uri: x}", "uri"},
		{"token: {existingSecret: ''}", "token.existingSecret or token.value"},
		{"token: {value: opt_x}", "which is it"},
		{"token: {existingSecret: Upper_Case}", "/token/existingSecret"},
		{"token: {existingSecret: '', value: 'two words'}", "/token/value"},
		{"replicas: 0", "/replicas"},
		{"replicas: two", "/replicas"},
		{"replica: 2", "replica"},
		{"concurrency: 10001", "/concurrency"},
		{"stopGraceSeconds: 0", "/stopGraceSeconds"},
		{"awsRegion: Frankfurt", "/awsRegion"},
		{"image: {tag: 'a b'}", "/image/tag"},
		{"image: {digest: latest}", "/image/digest"},
		{"image: {pullPolicy: Sometimes}", "/image/pullPolicy"},
		{"gpuNodes: {affinity: maybe}", "/gpuNodes/affinity"},
		{"gpuNodes: {matchExpressions: []}", "/gpuNodes/matchExpressions"},
		{"kube: {qps: 0}", "/kube/qps"},
		{"kube: {burst: 1.5}", "/kube/burst"},
		{"metrics: {port: 80}", "/metrics/port"},
		{"metrics: {serviceMonitor: {interval: often}}", "/metrics/serviceMonitor/interval"},
		{"networkPolicy: {planeCIDRs: [plane.example]}", "/networkPolicy/planeCIDRs"},
		{"networkPolicy: {apiServerPorts: [0]}", "/networkPolicy/apiServerPorts"},
		{"deviceReset: {enable: true}", "enable"},
		{"deviceReset: {resetTimeoutSeconds: 1000}", "/deviceReset/resetTimeoutSeconds"},
		{"componentUpgrade: {enabled: true}", "componentUpgrade.components is empty"},
		{"componentUpgrade: {components: {a: {release: a, namespace: a}}}", "/componentUpgrade/components/a"},
		{"componentUpgrade: {components: {a: {release: a, namespace: a, chart: a, repository: 'https://me:pw@charts'}}}", "/componentUpgrade/components/a/repository"},
		{"componentUpgrade: {timeoutSeconds: 0}", "/componentUpgrade/timeoutSeconds"},
		{"host: {driverRoot: /}", "/host/driverRoot"},
		{"deviceReset: {enabled: 'yes'}", "/deviceReset/enabled"},
		{"tolerations: [{operator: Exists}]", "node.kubernetes.io/unschedulable"},
		{"tolerations: [{key: node.kubernetes.io/unschedulable, operator: Exists, effect: NoSchedule}]", "node.kubernetes.io/unschedulable"},
		{"resources: {limit: {memory: 1Gi}}", "limit"},
		{"inventory: {componentNamespaces: {gpu-operator: []}}", "/inventory/componentNamespaces/gpu-operator"},
		{"inventory: {componentNamespaces: {gpu-operator: [Not_One]}}", "/inventory/componentNamespaces/gpu-operator"},
	} {
		t.Run(tc.values, func(t *testing.T) {
			t.Parallel()
			_, err := install(t, with(t, tc.values))
			if err == nil {
				t.Fatal("it is installed")
			}
			// The schema's own words write the path with slashes or dots.
			if says := err.Error(); !strings.Contains(says, tc.says) {
				t.Errorf("says %s, want %s", says, tc.says)
			}
		})
	}
}

func TestDeployment(t *testing.T) {
	t.Parallel()
	o, notes := render(t, with(t, everything))
	d := get[appsv1.Deployment](t, o, "Deployment/"+fullname)
	if n := *d.Spec.Replicas; n != 2 {
		t.Errorf("%d replicas", n)
	}
	pod := d.Spec.Template.Spec
	c := pod.Containers[0]
	for name, p := range map[string]struct {
		probe *corev1.Probe
		path  string
	}{"startup": {c.StartupProbe, "/healthz"}, "liveness": {c.LivenessProbe, "/healthz"}, "readiness": {c.ReadinessProbe, "/readyz"}} {
		if p.probe == nil || p.probe.HTTPGet == nil || p.probe.HTTPGet.Path != p.path || p.probe.HTTPGet.Port.String() != "metrics" {
			t.Errorf("%s probe %+v", name, p.probe)
		}
	}
	args := strings.Join(c.Args, "\n")
	for _, want := range []string{"--executor=kube", "--plane=https://plane.example:8443", "--token-file=/var/run/opsplane/token/token", "--ca-file=/var/run/opsplane/ca/ca.crt",
		"--name=$(POD_NAME)", "--state-dir=/var/lib/opsplane", "--listen=:9090", "--stop-grace=20s", "--aws-region=eu-central-1", "--kube-config-file=/etc/opsplane/kube.yaml"} {
		if !strings.Contains(args, want) {
			t.Errorf("args lack %s:\n%s", want, args)
		}
	}
	var fields []string
	for _, e := range c.Env {
		if e.ValueFrom != nil {
			fields = append(fields, e.Name+"="+e.ValueFrom.FieldRef.FieldPath)
		}
	}
	if diff := cmp.Diff([]string{"POD_NAME=metadata.name", "POD_UID=metadata.uid", "POD_NAMESPACE=metadata.namespace", "OPSPLANE_NODE_NAME=spec.nodeName"}, fields); diff != "" {
		t.Error(diff)
	}
	if got := *pod.TerminationGracePeriodSeconds; got < 20+15 {
		t.Errorf("the grace period of %d s ends before leases are handed back", got)
	}
	if c.Lifecycle != nil {
		t.Error("a preStop hook delays the hand-back")
	}
	if len(pod.TopologySpreadConstraints) != 2 || pod.TopologySpreadConstraints[0].TopologyKey != corev1.LabelHostname {
		t.Errorf("spread %+v", pod.TopologySpreadConstraints)
	}
	if pod.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution == nil {
		t.Error("GPU nodes are not preferred")
	}
	if pod.PriorityClassName != "system-cluster-critical" || len(c.Resources.Requests) == 0 || c.Resources.Limits.Memory().IsZero() {
		t.Errorf("priority %q, resources %+v", pod.PriorityClassName, c.Resources)
	}
	mounts := map[string]corev1.VolumeMount{}
	for _, m := range c.VolumeMounts {
		mounts[m.Name] = m
		if m.Name != "state" && !m.ReadOnly {
			t.Errorf("%s is mounted to be written", m.Name)
		}
		if m.SubPath != "" {
			t.Errorf("%s is mounted by subPath, which is never renewed", m.Name)
		}
	}
	scratch := strings.Split(d.Spec.Template.Annotations["cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"], ",")
	for _, v := range pod.Volumes {
		if v.EmptyDir != nil && !slices.Contains(scratch, v.Name) {
			t.Errorf("emptyDir %s keeps its node from being drained", v.Name)
		}
		if _, ok := mounts[v.Name]; !ok {
			t.Errorf("volume %s is not mounted", v.Name)
		}
		if v.HostPath != nil {
			t.Errorf("volume %s is of the host", v.Name)
		}
	}
	if !strings.Contains(notes, "2 agents in namespace gpu-ops work for https://plane.example:8443") {
		t.Errorf("notes:\n%s", notes)
	}
	required, _ := render(t, with(t, "gpuNodes: {affinity: required}"))
	if r := get[appsv1.Deployment](t, required, "Deployment/"+fullname).Spec.Template.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution; r == nil || r.NodeSelectorTerms[0].MatchExpressions[0].Key != "nvidia.com/gpu.present" {
		t.Errorf("required: %+v", r)
	}
	anywhere, _ := render(t, with(t, "gpuNodes: {affinity: none}"))
	if a := get[appsv1.Deployment](t, anywhere, "Deployment/"+fullname).Spec.Template.Spec.Affinity; a != nil {
		t.Errorf("none: %+v", a)
	}
}

// The token is in no argument, no environment and no ConfigMap.
func TestTokenIsNowhereElse(t *testing.T) {
	t.Parallel()
	o, notes := render(t, with(t, everything+"\ntoken: {existingSecret: '', value: opt_verysecret}"))
	if s := get[corev1.Secret](t, o, "Secret/"+fullname+"-token"); string(s.Data["token"]) != "opt_verysecret" {
		t.Errorf("the secret holds %q", s.Data)
	}
	delete(o, "Secret/"+fullname+"-token")
	for key, u := range o {
		text, err := yaml.Marshal(u.Object)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "opt_verysecret") {
			t.Errorf("the token is in %s", key)
		}
	}
	if strings.Contains(notes, "opt_verysecret") {
		t.Error("the token is in the notes")
	}
	existing, _ := render(t, with(t, ""))
	for key := range existing {
		if strings.HasPrefix(key, "Secret/") {
			t.Errorf("%s beside an existing one", key)
		}
	}
}

// The agent's pods keep to the restricted pod security standard.
// https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted
func TestRestricted(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, vals map[string]any) {
		o, _ := render(t, vals)
		for key := range o {
			if !strings.HasPrefix(key, "Deployment/") {
				continue
			}
			pod := get[appsv1.Deployment](t, o, key).Spec.Template.Spec
			if pod.HostNetwork || pod.HostPID || pod.HostIPC {
				t.Error("a namespace of the host")
			}
			s := pod.SecurityContext
			if s == nil || s.RunAsNonRoot == nil || !*s.RunAsNonRoot || s.SeccompProfile == nil || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault || s.RunAsUser == nil || *s.RunAsUser == 0 {
				t.Errorf("pod %+v", s)
			}
			for _, c := range append(pod.InitContainers, pod.Containers...) {
				s := c.SecurityContext
				if s == nil || s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation || s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem ||
					s.Privileged != nil && *s.Privileged || s.Capabilities == nil || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) || len(s.Capabilities.Add) > 0 {
					t.Errorf("container %s %+v", c.Name, s)
				}
				for _, p := range c.Ports {
					if p.HostPort != 0 {
						t.Errorf("container %s has a host port", c.Name)
					}
				}
			}
		}
	})
}

func TestDisruptionBudget(t *testing.T) {
	t.Parallel()
	o, _ := render(t, with(t, ""))
	p := get[policyv1.PodDisruptionBudget](t, o, "PodDisruptionBudget/"+fullname)
	if p.Spec.MaxUnavailable.IntValue() != 1 || *p.Spec.UnhealthyPodEvictionPolicy != policyv1.AlwaysAllow {
		t.Errorf("%+v", p.Spec)
	}
	d := get[appsv1.Deployment](t, o, "Deployment/"+fullname)
	if diff := cmp.Diff(d.Spec.Selector, p.Spec.Selector); diff != "" {
		t.Error(diff)
	}
	// A budget of one pod would hold up the drain of its node for ever.
	one, _ := render(t, with(t, "replicas: 1"))
	if one["PodDisruptionBudget/"+fullname] != nil {
		t.Error("a single agent has a budget")
	}
}

func TestNetworkPolicy(t *testing.T) {
	t.Parallel()
	o, _ := render(t, with(t, ""))
	p := get[networkingv1.NetworkPolicy](t, o, "NetworkPolicy/"+fullname)
	if !slices.Contains(p.Spec.PolicyTypes, networkingv1.PolicyTypeEgress) || !slices.Contains(p.Spec.PolicyTypes, networkingv1.PolicyTypeIngress) {
		t.Errorf("types %v", p.Spec.PolicyTypes)
	}
	ports := func(p *networkingv1.NetworkPolicy) string {
		var out []string
		for _, e := range p.Spec.Egress {
			for _, port := range e.Ports {
				out = append(out, fmt.Sprintf("%s/%s", port.Port, *port.Protocol))
			}
		}
		return strings.Join(out, " ")
	}
	if got := ports(p); got != "53/UDP 53/TCP 443/TCP 6443/TCP 8443/TCP 443/TCP" {
		t.Errorf("egress to %s", got)
	}
	for url, port := range map[string]string{"https://plane.example": "443/TCP", "https://[2001:db8::1]:9443/base": "9443/TCP", "http://127.0.0.1": "80/TCP"} {
		o, _ := render(t, with(t, "plane: {url: '"+url+"', insecure: true}"))
		p := get[networkingv1.NetworkPolicy](t, o, "NetworkPolicy/"+fullname)
		if got := ports(p); !strings.Contains(got, "6443/TCP "+port) {
			t.Errorf("%s: egress to %s", url, got)
		}
	}
	all, _ := render(t, with(t, everything))
	p = get[networkingv1.NetworkPolicy](t, all, "NetworkPolicy/"+fullname)
	if to := p.Spec.Egress[1].To; len(to) != 1 || to[0].IPBlock.CIDR != "10.0.0.1/32" {
		t.Errorf("the API server is at %+v", to)
	}
	if to := p.Spec.Egress[2].To; len(to) != 1 || to[0].IPBlock.CIDR != "192.0.2.0/24" {
		t.Errorf("the plane is at %+v", to)
	}
	host := get[networkingv1.NetworkPolicy](t, all, "NetworkPolicy/"+fullname+"-host")
	if len(host.Spec.Ingress) != 0 || len(host.Spec.Egress) != 2 {
		t.Errorf("the host helper: %+v", host.Spec)
	}
}

// granted is files/rights.yaml, which a test beside the executors holds to what
// they ask for (agent/agentcmd/kubecmd).
type granted map[string]struct{ Cluster, Namespace []rbacv1.PolicyRule }

func readRights(t *testing.T) granted {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(chartPath, "files", "rights.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var g granted
	if err := yaml.UnmarshalStrict(text, &g); err != nil {
		t.Fatal(err)
	}
	return g
}

// The roles are exactly the rights of what is turned on.
func TestRoles(t *testing.T) {
	t.Parallel()
	rights := readRights(t)
	for _, tc := range []struct {
		values   string
		features []string
	}{
		{"", []string{"agent"}},
		{"deviceReset: {enabled: true}", []string{"agent", "deviceReset"}},
		{`componentUpgrade: {enabled: true, components: {gpu-operator: {release: gpu-operator, namespace: gpu-operator, chart: gpu-operator, repository: "https://helm.ngc.nvidia.com/nvidia"}}}`, []string{"agent", "componentUpgrade"}},
		{everything, []string{"agent", "deviceReset", "componentUpgrade"}},
	} {
		t.Run(tc.values, func(t *testing.T) {
			t.Parallel()
			o, _ := render(t, with(t, tc.values))
			var wide, own []rbacv1.PolicyRule
			for _, f := range tc.features {
				wide = append(wide, rights[f].Cluster...)
				own = append(own, rights[f].Namespace...)
			}
			if len(wide) == 0 {
				t.Fatal("no rights at all")
			}
			clusterName := "opsplane:" + namespace + ":" + fullname
			if diff := cmp.Diff(wide, get[rbacv1.ClusterRole](t, o, "ClusterRole/"+clusterName).Rules); diff != "" {
				t.Error(diff)
			}
			subject := []rbacv1.Subject{{Kind: "ServiceAccount", Name: fullname, Namespace: namespace}}
			b := get[rbacv1.ClusterRoleBinding](t, o, "ClusterRoleBinding/"+clusterName)
			if b.RoleRef.Name != clusterName || !cmp.Equal(b.Subjects, subject) {
				t.Errorf("bound: %+v", b)
			}
			if len(own) > 0 {
				if diff := cmp.Diff(own, get[rbacv1.Role](t, o, "Role/"+fullname).Rules); diff != "" {
					t.Error(diff)
				}
				if rb := get[rbacv1.RoleBinding](t, o, "RoleBinding/"+fullname); rb.RoleRef.Name != fullname || !cmp.Equal(rb.Subjects, subject) {
					t.Errorf("bound: %+v", rb)
				}
			} else if o["Role/"+fullname] != nil {
				t.Error("a role without rules")
			}
			d := get[appsv1.Deployment](t, o, "Deployment/"+fullname)
			if d.Spec.Template.Spec.ServiceAccountName != fullname || o["ServiceAccount/"+fullname] == nil {
				t.Errorf("runs as %s", d.Spec.Template.Spec.ServiceAccountName)
			}
		})
	}
}

// No role of the chart has a wildcard, reads Secrets, or can give rights away.
func TestNoRoleIsWide(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, vals map[string]any) {
		o, _ := render(t, vals)
		for key := range o {
			var rules []rbacv1.PolicyRule
			switch {
			case strings.HasPrefix(key, "ClusterRole/"):
				rules = get[rbacv1.ClusterRole](t, o, key).Rules
			case strings.HasPrefix(key, "Role/"):
				rules = get[rbacv1.Role](t, o, key).Rules
			default:
				continue
			}
			for _, r := range rules {
				for _, s := range slices.Concat(r.APIGroups, r.Resources, r.Verbs) {
					if strings.Contains(s, "*") || slices.Contains([]string{"secrets", "escalate", "bind", "impersonate", "serviceaccounts/token", "nodes/proxy", "pods/exec", "deletecollection"}, s) || s == "rbac.authorization.k8s.io" {
						t.Errorf("%s grants %q: %+v", key, s, r)
					}
				}
				if len(r.NonResourceURLs) > 0 {
					t.Errorf("%s grants %v", key, r.NonResourceURLs)
				}
			}
		}
	})
}

// What upgrades charts has an account without a single right of this chart, and
// what resets devices has none and no token.
func TestAccountsOfJobs(t *testing.T) {
	t.Parallel()
	o, notes := render(t, with(t, everything))
	for _, account := range []string{fullname + "-upgrade", fullname + "-reset"} {
		if sa := get[corev1.ServiceAccount](t, o, "ServiceAccount/"+account); sa.AutomountServiceAccountToken == nil || *sa.AutomountServiceAccountToken {
			t.Errorf("%s is mounted everywhere", account)
		}
		for key := range o {
			if strings.HasSuffix(strings.SplitN(key, "/", 2)[0], "RoleBinding") {
				text, err := yaml.Marshal(o[key].Object["subjects"])
				if err != nil {
					t.Fatal(err)
				}
				if strings.Contains(string(text), account) {
					t.Errorf("%s is bound by %s", account, key)
				}
			}
		}
	}
	if !strings.Contains(notes, "pod-security.kubernetes.io/enforce=privileged") || !strings.Contains(notes, fullname+"-upgrade") {
		t.Errorf("notes:\n%s", notes)
	}
	named, _ := render(t, with(t, `componentUpgrade: {enabled: true, serviceAccountName: upgrader, components: {gpu-operator: {release: gpu-operator, namespace: gpu-operator, chart: gpu-operator, repository: "https://helm.ngc.nvidia.com/nvidia"}}}`))
	if named["ServiceAccount/upgrader"] != nil {
		t.Error("an account that the admin made is made again")
	}
}

// A change of the configuration reaches the agents: it has another name, and the
// pods that use it are new.
func TestConfigurationRollsThePods(t *testing.T) {
	t.Parallel()
	config := func(text string) (string, *corev1.ConfigMap) {
		o, _ := render(t, with(t, text))
		for _, v := range get[appsv1.Deployment](t, o, "Deployment/"+fullname).Spec.Template.Spec.Volumes {
			if v.Name == "config" {
				return v.ConfigMap.Name, get[corev1.ConfigMap](t, o, "ConfigMap/"+v.ConfigMap.Name)
			}
		}
		t.Fatal("no configuration is mounted")
		return "", nil
	}
	a, first := config("")
	b, second := config("inventory: {excludeNamespaces: [kube-system, monitoring]}")
	if a == b {
		t.Errorf("both are %s", a)
	}
	if first.Immutable == nil || !*first.Immutable {
		t.Error("it can be changed under the agents")
	}
	if strings.Contains(first.Data["kube.yaml"], "deviceReset") || !strings.Contains(second.Data["kube.yaml"], "monitoring") {
		t.Errorf("%s\n%s", first.Data, second.Data)
	}
}

// Every object is named for this release, and no name or label is too long.
func TestNames(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, vals map[string]any) {
		o, _ := render(t, vals)
		for key, u := range o {
			wide := slices.Contains([]string{"ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}, u.GetKind())
			if len(u.GetName()) > 63 && !wide {
				t.Errorf("%s has %d bytes", key, len(u.GetName()))
			}
			if u.GetLabels()["app.kubernetes.io/instance"] != name {
				t.Errorf("%s does not say whose it is", key)
			}
			if !wide && u.GetNamespace() != namespace {
				t.Errorf("%s is in namespace %q", key, u.GetNamespace())
			}
		}
	})
}

// The host helper runs on GPU nodes, cordoned or not, as nobody but itself.
func TestHostHelper(t *testing.T) {
	t.Parallel()
	o, _ := render(t, with(t, "hostHelper: {enabled: true}\nhost: {driverRoot: /run/nvidia/driver, runtimeClassName: nvidia}"))
	d := get[appsv1.DaemonSet](t, o, "DaemonSet/"+fullname+"-host")
	pod := d.Spec.Template.Spec
	if pod.ServiceAccountName != fullname+"-host" || o["ServiceAccount/"+fullname+"-host"] == nil || !pod.HostPID || *pod.RuntimeClassName != "nvidia" {
		t.Errorf("runs as %s: %+v", pod.ServiceAccountName, pod)
	}
	if !cmp.Equal(pod.Tolerations, []corev1.Toleration{{Operator: corev1.TolerationOpExists}}) {
		t.Errorf("tolerates %+v", pod.Tolerations)
	}
	if terms := pod.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms; terms[0].MatchExpressions[0].Key != "nvidia.com/gpu.present" {
		t.Errorf("runs on %+v", terms)
	}
	c := pod.Containers[0]
	if diff := cmp.Diff([]string{"serve", "--driver-root=/run/nvidia/driver"}, c.Args); diff != "" {
		t.Error(diff)
	}
	paths := map[string]string{}
	for _, v := range pod.Volumes {
		paths[v.Name] = v.HostPath.Path
	}
	want := map[string]string{"pod-logs": "/var/log/pods", "pod-resources": "/var/lib/kubelet/pod-resources", "state": "/var/lib/opsplane-host", "driver": "/run/nvidia/driver"}
	if diff := cmp.Diff(want, paths); diff != "" {
		t.Error(diff)
	}
	for _, m := range c.VolumeMounts {
		if !m.ReadOnly {
			t.Errorf("%s is mounted to be written", m.Name)
		}
	}
	r := get[rbacv1.Role](t, o, "Role/"+fullname+"-host")
	if diff := cmp.Diff([]rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get", "create", "update"}}}, r.Rules); diff != "" {
		t.Error(diff)
	}
	for key := range o {
		if strings.HasPrefix(key, "ClusterRoleBinding/") {
			for _, s := range get[rbacv1.ClusterRoleBinding](t, o, key).Subjects {
				if s.Name == fullname+"-host" {
					t.Errorf("%s is bound in the whole cluster", s.Name)
				}
			}
		}
	}
	off, _ := render(t, with(t, ""))
	for key := range off {
		if strings.HasSuffix(key, "-host") {
			t.Errorf("%s without the host helper", key)
		}
	}
}

// configFile is what the agent's own test reads (agent/agentcmd/kubecmd).
const configFile = "../../../agentcmd/kubecmd/testdata/chart.yaml"

// The configuration that the chart writes is the one that the agent is tested
// with. OPSPLANE_WRITE=1 writes it.
func TestConfigurationIsTheAgents(t *testing.T) {
	t.Parallel()
	o, _ := render(t, with(t, everything))
	var text string
	for key := range o {
		if strings.HasPrefix(key, "ConfigMap/") {
			text = get[corev1.ConfigMap](t, o, key).Data["kube.yaml"]
		}
	}
	if os.Getenv("OPSPLANE_WRITE") != "" {
		if err := os.MkdirAll(filepath.Dir(configFile), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(configFile, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	was, err := os.ReadFile(configFile)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(was), text); diff != "" {
		t.Error(diff)
	}
}
