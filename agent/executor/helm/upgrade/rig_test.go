//go:build kubetest

package upgrade

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/kube"
	release "helm.sh/helm/v4/pkg/release/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/opsplane/opsplane/agent/executor/kube/component/answer"
	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
)

// charts are versions of one chart.
//
//	1.0.0, 1.1.0   come through
//	1.2.0          its pods never get ready
//	1.3.0          needs another Kubernetes
//	1.4.0          its schema refuses the values
//	1.5.0          its template fails
//	1.6.0          adds a ConfigMap, and changes crds/
//	1.7.0          an object that the API server finds invalid
//	1.8.0          takes some seconds to get ready
var charts = map[string]map[string]string{
	"1.0.0": {}, "1.1.0": {},
	"1.2.0": {"templates/deployment.yaml": deployment(`rig.opsplane.io/ready: never`)},
	"1.3.0": {"Chart.yaml": "apiVersion: v2\nname: demo\nversion: 1.3.0\nappVersion: v1.3.0\nkubeVersion: \">=9.0.0\"\n"},
	"1.4.0": {"values.schema.json": `{"type":"object","properties":{"password":{"type":"integer"}}}`},
	"1.5.0": {"templates/bad.yaml": `{{ fail (printf "no such thing: %s" .Values.password) }}`},
	"1.6.0": {"templates/config.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: {{ .Release.Name }}}\n", "crds/things.yaml": "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: things.example.com}\n"},
	"1.8.0": {"templates/deployment.yaml": strings.Replace(deployment(`a: b`), "metadata: {labels: {app: {{ .Release.Name }}, v", "metadata: {annotations: {rig.opsplane.io/ready-delay: 4s}, labels: {app: {{ .Release.Name }}, v", 1)},
	"1.7.0": {"templates/config.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: {{ .Release.Name }}, labels: {x: {{ .Values.password | quote }}}}\n"},
}

// secret is in the release's values and in no answer.
const secret = "hunter2 is my password"

func deployment(label string) string {
	return `apiVersion: apps/v1
kind: Deployment
metadata: {name: {{ .Release.Name }}, labels: {app.kubernetes.io/instance: {{ .Release.Name }}, helm.sh/chart: "{{ .Chart.Name }}-{{ .Chart.Version }}"}}
spec:
  replicas: {{ .Values.replicas }}
  selector: {matchLabels: {app: {{ .Release.Name }}}}
  template:
    metadata: {labels: {app: {{ .Release.Name }}, version: "{{ .Chart.Version }}", ` + label + `}}
    spec:
      nodeSelector: {` + kuberig.LabelRig + `: {{ .Values.rig }}}
      containers: [{name: c, image: "demo:{{ .Chart.AppVersion }}"}]
`
}

// folder writes a version of the chart and returns where.
func folder(t *testing.T, version string) string {
	t.Helper()
	files := map[string]string{
		"Chart.yaml":                fmt.Sprintf("apiVersion: v2\nname: demo\nversion: %s\nappVersion: v%s\n", version, version),
		"values.yaml":               "replicas: 1\nrig: none\npassword: \"\"\n",
		"templates/deployment.yaml": deployment(`a: b`),
	}
	for name, text := range charts[version] {
		files[name] = text
	}
	dir := filepath.Join(t.TempDir(), "demo")
	for name, text := range files {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// archive is a version of the chart as repositories serve it.
func archive(t *testing.T, version string) []byte {
	t.Helper()
	dir := folder(t, version)
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(filepath.Dir(dir), path)
		if err != nil {
			return err
		}
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text))}); err != nil {
			return err
		}
		_, err = w.Write(text)
		return err
	})
	if err == nil {
		err = w.Close()
	}
	if err == nil {
		err = z.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// site is a namespace with the release demo at version 1.0.0.
type site struct {
	t     *testing.T
	rig   *kuberig.Rig
	admin kubernetes.Interface
	ns    string
	helm  *action.Configuration
}

func setup(t *testing.T) *site {
	t.Helper()
	return setupOn(t, kuberig.Shared(t))
}

func setupOn(t *testing.T, r *kuberig.Rig) *site {
	t.Helper()
	s := &site{t: t, rig: r, admin: r.Client(kuberig.Admin), ns: r.Namespace()}
	node := r.Node("")
	j, err := open(s.options("1.0.0"), t.TempDir(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	s.helm = j.cfg
	c, err := loader.Load(folder(t, "1.0.0"))
	if err != nil {
		t.Fatal(err)
	}
	in := action.NewInstall(s.helm)
	in.ReleaseName, in.Namespace, in.WaitStrategy, in.Timeout = "demo", s.ns, kube.StatusWatcherStrategy, time.Minute
	if _, err := in.Run(c, map[string]any{"rig": node.Labels[kuberig.LabelRig], "password": secret}); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *site) options(version string) Options {
	return Options{Release: "demo", Namespace: s.ns, Version: version, Mark: Mark{"op_1", 1, 1}, Correlation: "cor-1",
		Rollback: true, Timeout: 20 * time.Second, Kubeconfig: s.rig.Kubeconfig(kuberig.Admin)}
}

// run carries a verb out, with the chart from a folder unless one is named.
func (s *site) run(verb string, o Options) answer.Answer {
	s.t.Helper()
	if o.Chart == "" {
		o.Chart = folder(s.t, o.Version)
	}
	if err := o.Check(verb); err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	a := Run(ctx, verb, o, slog.New(slog.NewTextHandler(s.t.Output(), &slog.HandlerOptions{Level: slog.LevelError})))
	if bytes.Contains(a.Encode(), []byte("hunter2")) {
		s.t.Errorf("the answer tells a value: %s", a.Encode())
	}
	return a
}

// revisions are the release's revisions as Helm has them.
func (s *site) revisions() history {
	s.t.Helper()
	h, err := (&job{Options: s.options("1.0.0"), cfg: s.helm}).history()
	if err != nil {
		s.t.Fatal(err)
	}
	return h
}

func (s *site) store(change func(*release.Release)) {
	s.t.Helper()
	l := s.revisions().last()
	change(l)
	if err := s.helm.Releases.Update(l); err != nil {
		s.t.Fatal(err)
	}
}
