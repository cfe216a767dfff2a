//go:build kubetest

package kubeflow

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor/kube/component/answer"
	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
)

// upgradeRig is a control plane whose Jobs of upgrades run, on whatever node they
// are placed.
func upgradeRig(t *testing.T) *kuberig.Rig {
	t.Helper()
	rig := kuberig.Start(t, kuberig.Options{Nodes: 2, Audit: true})
	rig.Kubelet(kuberig.KubeletOptions{Programs: map[string]string{"opsplane-upgrade": rig.Program("./agent/executor/helm/opsplane-upgrade")}})
	return rig
}

// install installs a chart by Helm's library.
func installChart(t *testing.T, rig *kuberig.Rig, namespace, release, chart, values string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), rig.Program("./agent/executor/helm/charttest/install"),
		"-kubeconfig", rig.Kubeconfig(kuberig.Admin), "-namespace", namespace, "-release", release, "-chart", chart, "-values", values)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// chartDir is where a version of a chart is written, for repository to serve.
func chartDir(dir, name, version string) string { return filepath.Join(dir, "charts", version, name) }

// demoChart writes a version of a chart of one Deployment and returns where.
func demoChart(t *testing.T, dir, name, version string) string {
	t.Helper()
	to := chartDir(dir, name, version)
	for file, text := range map[string]string{
		"Chart.yaml":  "apiVersion: v2\nname: " + name + "\nversion: " + version + "\nappVersion: v" + version + "\n",
		"values.yaml": "",
		"templates/deployment.yaml": `apiVersion: apps/v1
kind: Deployment
metadata: {name: {{ .Release.Name }}, labels: {app.kubernetes.io/instance: {{ .Release.Name }}, helm.sh/chart: "{{ .Chart.Name }}-{{ .Chart.Version }}"}}
spec:
  selector: {matchLabels: {app: {{ .Release.Name }}}}
  template:
    metadata: {labels: {app: {{ .Release.Name }}}}
    spec:
      containers: [{name: c, image: "demo:{{ .Chart.AppVersion }}"}]
`} {
		path := filepath.Join(to, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return to
}

// repository serves the versions of a chart that were written, and returns its URL.
func repository(t *testing.T, dir, name string, versions ...string) string {
	t.Helper()
	mux := http.NewServeMux()
	index := "apiVersion: v1\nentries:\n  " + name + ":\n"
	for _, v := range versions {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		w := tar.NewWriter(z)
		if err := errors.Join(w.AddFS(os.DirFS(filepath.Dir(chartDir(dir, name, v)))), w.Close(), z.Close()); err != nil {
			t.Fatal(err)
		}
		index += fmt.Sprintf("  - {apiVersion: v2, name: %s, version: %s, urls: [%s-%s.tgz], digest: %x}\n", name, v, name, v, sha256.Sum256(b.Bytes()))
		mux.HandleFunc("GET /"+name+"-"+v+".tgz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(b.Bytes()) })
	}
	mux.HandleFunc("GET /index.yaml", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, index) })
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	return srv.URL
}

// revision is one of a release's, as Helm keeps it.
type revision struct {
	number int
	status string
}

// revisions reads Helm's records of a release by their labels, the oldest first.
func revisions(t *testing.T, rig *kuberig.Rig, ns, release string) (all []revision) {
	t.Helper()
	list, err := rig.Client(kuberig.Admin).CoreV1().Secrets(ns).List(t.Context(), metav1.ListOptions{LabelSelector: "owner=helm,name=" + release})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range list.Items {
		n, err := strconv.Atoi(x.Labels["version"])
		if err != nil {
			t.Fatalf("revision %s: %v", x.Name, err)
		}
		all = append(all, revision{n, x.Labels["status"]})
	}
	slices.SortFunc(all, func(a, b revision) int { return a.number - b.number })
	return all
}

// upgradeScene is a release at 1.0.0, which goes to 1.1.0.
func upgradeScene(t *testing.T, s *site) *scene {
	ns, chart := s.rig.Namespace(), s.rig.Name("demo")
	installChart(t, s.rig, ns, "demo", demoChart(t, s.dir, chart, "1.0.0"), "")
	demoChart(t, s.dir, chart, "1.1.0")
	const account = "upgrader"
	if _, err := s.rig.Client(kuberig.Admin).CoreV1().ServiceAccounts(ns).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	helm := "system:serviceaccount:" + ns + ":" + account
	s.rig.Grant(helm, ns, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"get", "list", "watch", "create", "update", "delete"}},
		kuberig.Rule("", "pods", []string{"get", "list", "watch"}),
		kuberig.Rule("apps", "deployments", []string{"get", "list", "watch", "create", "patch", "delete"}),
		kuberig.Rule("apps", "replicasets", []string{"get", "list", "watch"}))
	text, err := json.Marshal(map[string]any{ // which is YAML too
		"inventory": map[string]any{"components": map[string]string{chart: chart}},
		"componentUpgrade": map[string]any{"image": "opsplane-upgrade:test", "serviceAccount": account, "timeout": "30s",
			"components": map[string]any{chart: map[string]string{"release": "demo", "namespace": ns, "chart": chart, "repository": repository(t, s.dir, chart, "1.1.0")}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(s.dir, "upgrade.yaml")
	if err := os.WriteFile(config, text, 0o600); err != nil {
		t.Fatal(err)
	}
	proof := func(t *testing.T, struck string) {
		if all := revisions(t, s.rig, ns, "demo"); len(all) != 2 || all[1] != (revision{2, "deployed"}) {
			t.Errorf("revisions %v, killed at %q", all, struck)
		}
		made := 0
		for _, e := range s.rig.Audit(helm) {
			if e.Verb == "create" && e.Resource == "secrets" && e.Code == http.StatusCreated {
				made++
			}
		}
		if made != 1 {
			t.Errorf("%d revisions were made, killed at %q", made, struck)
		}
	}
	again := ask{"component.upgrade", "cluster:rig", map[string]any{"component": chart, "version": "1.1.0"}}
	return &scene{
		ask: again, next: again, kind: "components", name: chart, changes: inEarnest,
		flags: []string{"--namespace", ns, "--kube-config-file", config},
		step:  "upgrade", effect: makesJob("opsplane-up-"),
		late: func(t *testing.T, e kuberig.AuditEvent) { // Helm's history refuses it
			a, err := answer.Decode(answered(t, s.rig, ns, jobIn(t, e)))
			if err != nil || a.Code != answer.StaleGeneration {
				t.Errorf("the answer to the upgrade that came late: %+v, %v", a, err)
			}
			proof(t, "")
		},
		proof: func(t *testing.T, struck string) {
			proof(t, struck)
			oneJob(t, s.rig, ns, answer.Upgrade, struck)
		},
	}
}
