//go:build kubetest

package upgrade

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/opsplane/opsplane/agent/executor/kube/component/answer"
)

// repository serves versions of the chart as a chart repository does.
// https://helm.sh/docs/topics/chart_repository/
func repository(t *testing.T, versions ...string) string {
	t.Helper()
	mux := http.NewServeMux()
	index := "apiVersion: v1\nentries:\n  demo:\n"
	for _, v := range versions {
		tgz := archive(t, v)
		index += fmt.Sprintf("  - {apiVersion: v2, name: demo, version: %s, urls: [demo-%s.tgz], digest: %x}\n", v, v, sha256.Sum256(tgz))
		mux.HandleFunc("GET /demo-"+v+".tgz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(tgz) })
	}
	mux.HandleFunc("GET /index.yaml", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(index)) })
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s.URL
}

// ociRegistry serves versions of the chart as an OCI registry does, for pulling.
// https://github.com/opencontainers/distribution-spec/blob/main/spec.md#pull
func ociRegistry(t *testing.T, versions ...string) string {
	t.Helper()
	blobs, manifests := map[string][]byte{}, map[string][]byte{}
	put := func(b []byte) string {
		d := fmt.Sprintf("sha256:%x", sha256.Sum256(b))
		blobs[d] = b
		return d
	}
	for _, v := range versions {
		tgz, config := archive(t, v), fmt.Appendf(nil, `{"name":"demo","version":%q,"apiVersion":"v2"}`, v)
		m := fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json",
			"config":{"mediaType":"application/vnd.cncf.helm.config.v1+json","digest":%q,"size":%d},
			"layers":[{"mediaType":"application/vnd.cncf.helm.chart.content.v1.tar+gzip","digest":%q,"size":%d}]}`, put(config), len(config), put(tgz), len(tgz))
		manifests[v], manifests[fmt.Sprintf("sha256:%x", sha256.Sum256(m))] = m, m
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		part := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
		var b []byte
		kind := "application/octet-stream"
		switch {
		case r.URL.Path == "/v2/":
			return
		case len(part) == 5 && part[3] == "manifests":
			b, kind = manifests[part[4]], "application/vnd.oci.image.manifest.v1+json"
		case len(part) == 5 && part[3] == "blobs":
			b = blobs[part[4]]
		}
		if b == nil {
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte(`{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}`))
			return
		}
		w.Header().Set("Content-Type", kind)
		w.Header().Set("Docker-Content-Digest", fmt.Sprintf("sha256:%x", sha256.Sum256(b)))
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(b))
	}))
	t.Cleanup(s.Close)
	return "oci://" + strings.TrimPrefix(s.URL, "http://") + "/charts/demo"
}

func TestChartsFromARepositoryAndARegistry(t *testing.T) {
	t.Parallel()
	s := setup(t)
	repo, oci := repository(t, "1.0.0", "1.1.0"), ociRegistry(t, "1.0.0", "1.1.0")
	tests := []struct {
		name, chart, repository, version, code, detail string
	}{
		{"repository", "demo", repo, "v1.1.0", "", "from version 1.0.0 to 1.1.0"},
		{"repository without the version", "demo", repo, "1.1.1", answer.ChartNotFound, "no version 1.1.1"},
		{"repository without the chart", "other", repo, "1.1.0", answer.ChartNotFound, "other"},
		{"no repository", "demo", repo + "/nothing", "1.1.0", answer.ChartUnavailable, "404 Not Found"},
		{"nobody there", "demo", "http://127.0.0.1:1", "1.1.0", answer.ChartUnavailable, "no connection to 127.0.0.1:1"},
		{"registry", oci, "", "v1.1.0", "", "from version 1.0.0 to 1.1.0"},
		{"registry without the version", oci, "", "1.1.1", answer.ChartNotFound, "no version 1.1.1"},
		{"no registry", "oci://127.0.0.1:1/charts/demo", "", "1.1.0", answer.ChartUnavailable, "no connection to 127.0.0.1:1"},
	}
	for _, tt := range tests {
		o := s.options(tt.version)
		o.Chart, o.Repository, o.PlainHTTP = tt.chart, tt.repository, true
		if a := s.run(answer.Preflight, o); a.Code != tt.code || !strings.Contains(a.Detail, tt.detail) {
			t.Errorf("%s: %q %s", tt.name, a.Code, a.Detail)
		}
	}
	o := s.options("1.1.0")
	o.Chart, o.PlainHTTP = oci, true
	if a := s.run(answer.Upgrade, o); a.Code != "" || a.To != "1.1.0" {
		t.Errorf("upgrade from a registry: %+v", a)
	}
}
