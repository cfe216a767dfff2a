package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Against the real API: a cluster is registered, listed, and its token rotated;
// tokens that go to a file are nowhere else.
func TestClusters(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	f := apiFlags{API: s.url, TokenFile: s.tokenFile}
	create := func(name string, o tokenOutput) (string, error) {
		var out bytes.Buffer
		err := newToken(t.Context(), &f, &o, http.MethodPost, "/v1/clusters", map[string]string{"name": name}, startAgent, &out)
		return out.String(), err
	}
	out, err := create("alpha", tokenOutput{})
	no(t, err)
	if !strings.Contains(out, "opsplane agent --plane "+s.url) || strings.Count(out, "opt_") != 3 || !strings.Contains(out, "--set plane.url="+s.url) || strings.Contains(out, "queue ") {
		t.Errorf("create printed:\n%s", out)
	}
	if _, err := create("alpha", tokenOutput{}); err == nil || !strings.Contains(err.Error(), "409: name_taken") {
		t.Errorf("a name twice: %v", err)
	}
	if _, err := create("Alpha!", tokenOutput{}); err == nil || !strings.Contains(err.Error(), "/name") {
		t.Errorf("a bad name: %v", err)
	}

	file := filepath.Join(t.TempDir(), "it's a token")
	out, err = create("beta", tokenOutput{TokenOut: file})
	no(t, err)
	token, err := os.ReadFile(file)
	no(t, err)
	if !strings.HasPrefix(string(token), "opt_") || strings.Contains(out, "opt_") || !strings.Contains(out, `--token-file '`+strings.ReplaceAll(file, "'", `'\''`)+`'`) ||
		!strings.Contains(out, `--from-file=token='`+strings.ReplaceAll(file, "'", `'\''`)+`'`) {
		t.Errorf("create with a file printed:\n%s", out)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file: %v, %v", info.Mode(), err)
	}
	// A token that could not be kept is not made.
	if _, err := create("gamma", tokenOutput{TokenOut: file}); err == nil {
		t.Error("the file was written over")
	}
	// A call that fails leaves no file.
	none := filepath.Join(t.TempDir(), "none")
	if _, err := create("beta", tokenOutput{TokenOut: none}); err == nil {
		t.Error("a name twice")
	}
	if _, err := os.Stat(none); err == nil {
		t.Error("a failed call left a file")
	}

	var rotated bytes.Buffer
	next := filepath.Join(t.TempDir(), "next")
	no(t, newToken(t.Context(), &f, &tokenOutput{TokenOut: next, JSON: true}, http.MethodPost, "/v1/clusters/beta/token", nil, giveToken, &rotated))
	fresh, err := os.ReadFile(next)
	no(t, err)
	var answer cluster
	if err := json.Unmarshal(rotated.Bytes(), &answer); err != nil || answer.Name != "beta" || answer.Token != "" || bytes.Equal(fresh, token) {
		t.Errorf("rotate printed %s (%v)", rotated.String(), err)
	}

	// Its agents are there already, started with an executor that the plane does not know.
	rotated.Reset()
	no(t, (&clusterRotateCmd{Name: "beta", apiFlags: f}).rotate(t.Context(), &rotated))
	if out := rotated.String(); strings.Count(out, "opt_") != 1 || strings.Contains(out, "--executor") || !strings.Contains(out, "other settings stay") {
		t.Errorf("rotate printed:\n%s", out)
	}

	var listed bytes.Buffer
	no(t, (&clusterListCmd{apiFlags: f}).list(t.Context(), &listed))
	for _, name := range []string{"alpha", "beta", "small"} {
		if strings.Count(listed.String(), "\n"+name+" ") != 1 {
			t.Errorf("list has no %s once:\n%s", name, listed.String())
		}
	}
	if strings.Contains(listed.String(), "gamma") {
		t.Error("a cluster was made whose token could not be kept")
	}
	listed.Reset()
	no(t, (&clusterListCmd{apiFlags: f, JSON: true}).list(t.Context(), &listed))
	if n := strings.Count(listed.String(), "\n"); n != 3 {
		t.Errorf("%d lines of JSON:\n%s", n, listed.String())
	}
}

// On AWS the answer says where the queue is and what its agents' role needs.
func TestClusterOnAWS(t *testing.T) {
	t.Parallel()
	token := filepath.Join(t.TempDir(), "token")
	no(t, os.WriteFile(token, []byte("opt_admin\n"), 0o600))
	const policy = `{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":["sqs:ReceiveMessage"],"Resource":"arn:aws:sqs:us-east-1:1:q"}]}`
	asText, err := json.Marshal(policy)
	no(t, err)
	for _, given := range []string{policy, string(asText)} {
		api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "Bearer opt_admin" || r.Header.Get("Content-Type") != "application/json" {
				t.Errorf("called with %v", r.Header)
			}
			w.WriteHeader(http.StatusCreated)
			fmt.Fprintf(w, `{"id":"clu_1","name":"alpha","token":"opt_agent","queue_url":"https://sqs.us-east-1.amazonaws.com/1/q","queue_arn":"arn:aws:sqs:us-east-1:1:q","agent_policy":%s}`, given)
		}))
		defer api.Close()
		var out bytes.Buffer
		no(t, newToken(t.Context(), &apiFlags{API: api.URL, TokenFile: token}, &tokenOutput{}, http.MethodPost, "/v1/clusters", map[string]string{"name": "alpha"}, startAgent, &out))
		for _, want := range []string{"queue    https://sqs.us-east-1.amazonaws.com/1/q\n", `"Action": [`, `"Resource": "arn:aws:sqs:us-east-1:1:q"`, "OPSPLANE_TOKEN=opt_agent opsplane agent", "AWS credentials of that role"} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("no %q in:\n%s", want, out.String())
			}
		}
	}
}

func TestAPIFlags(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	token, two, empty := filepath.Join(dir, "token"), filepath.Join(dir, "two"), filepath.Join(dir, "empty")
	no(t, os.WriteFile(token, []byte("opt_admin\n"), 0o600))
	no(t, os.WriteFile(two, []byte("opt_a opt_b"), 0o600))
	no(t, os.WriteFile(empty, nil, 0o600))
	for _, c := range []struct {
		f    apiFlags
		says string
	}{
		{apiFlags{API: "http://plane.example", TokenFile: token}, "--insecure"},
		{apiFlags{API: "http://10.0.0.1:80", TokenFile: token}, "--insecure"},
		{apiFlags{API: "ftp://plane.example", TokenFile: token}, "--api must be"},
		{apiFlags{API: "https://u:p@plane.example", TokenFile: token}, "--api must be"},
		{apiFlags{API: "plane.example", TokenFile: token}, "--api must be"},
		{apiFlags{API: "https://plane.example", TokenFile: two}, "one token"},
		{apiFlags{API: "https://plane.example", TokenFile: empty}, "one token"},
		{apiFlags{API: "https://plane.example", TokenFile: filepath.Join(dir, "none")}, "read token"},
		{apiFlags{API: "https://plane.example", TokenFile: token, CAFile: token}, "no certificate"},
	} {
		if _, err := c.f.open(); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v, want %q", c.f, err, c.says)
		}
	}
	for _, good := range []apiFlags{
		{API: "http://plane.example", TokenFile: token, Insecure: true}, {API: "http://[::1]:1", TokenFile: token}, {API: "https://plane.example/", TokenFile: token},
	} {
		if _, err := good.open(); err != nil {
			t.Errorf("%+v: %v", good, err)
		}
	}
}

// What the API says is said; the token goes nowhere else, and answers are bounded.
func TestAPIAnswers(t *testing.T) {
	t.Parallel()
	token := filepath.Join(t.TempDir(), "token")
	no(t, os.WriteFile(token, []byte("opt_admin\n"), 0o600))
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the redirect was followed") }))
	defer elsewhere.Close()
	mux := http.NewServeMux()
	mux.HandleFunc("/problem", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusUnprocessableEntity)
		_, _ = io.WriteString(w, `{"error_code":"invalid","detail":"some fields are invalid","errors":[{"pointer":"/name","detail":"must be short"}]}`)
	})
	mux.HandleFunc("/gateway", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, `{"message":"Forbidden by the gateway"}`)
	})
	mux.HandleFunc("/bare", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })
	mux.HandleFunc("/redirect", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, elsewhere.URL, http.StatusFound) })
	mux.HandleFunc("/endless", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, maxAPIAnswer+1)) })
	srv := httptest.NewServer(mux)
	defer srv.Close()
	f := apiFlags{API: srv.URL, TokenFile: token}
	api, err := f.open()
	no(t, err)
	for path, want := range map[string]string{
		"/problem": "422: invalid some fields are invalid; /name: must be short", "/gateway": "403: Forbidden by the gateway",
		"/bare": "502: Bad Gateway", "/redirect": "302: Found", "/endless": "more than", "/none": "404: Not Found",
	} {
		if _, err := api.call(t.Context(), http.MethodGet, path, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}
