package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// clusterName is what the plane knows the demo's cluster by.
const clusterName = "kube"

// startWithin bounds how long a part of the demo may take to be of use.
const startWithin = time.Minute

// fleet is what the program fleet says when it has filled the control plane.
type fleet struct {
	Kubeconfig, Namespace, Config, Device string
	Nodes                                 int
}

// demo runs a control plane with GPU hosts, the plane and the agent until ctx ends
// or one of them does. data is the plane's folder; empty: one that is removed.
func (r *runner) demo(ctx context.Context, addr, data string) error {
	if data == "" {
		data = filepath.Join(r.state, "data")
	}
	data, err := filepath.Abs(data)
	if err != nil {
		return fmt.Errorf("find the data folder: %w", err)
	}
	var wg sync.WaitGroup
	var built error
	wg.Go(func() { built = r.buildPrograms(ctx) })
	p, err := r.shared(ctx)
	wg.Wait()
	if err := errors.Join(err, built); err != nil {
		return err
	}
	engine, api, err := r.startPlane(ctx, addr, data)
	if err != nil {
		return err
	}
	token := filepath.Join(r.state, "agent.token")
	if err := r.register(ctx, api, filepath.Join(data, "admin.token"), token); err != nil {
		return err
	}
	hosts, f, err := r.startFleet(ctx)
	if err != nil {
		return err
	}
	if err := r.installChart(ctx, p.Kubeconfig(), f.Namespace, api.url); err != nil {
		return err
	}
	agent, err := r.start("opsplane-agent", nil, false, r.path("bin", "opsplane-agent"), "--plane", api.url, "--token-file", token, "--name", clusterName+"-agent-0",
		"--executor", "kube", "--kubeconfig", f.Kubeconfig, "--namespace", f.Namespace, "--kube-config-file", f.Config, "--state-dir", filepath.Join(r.state, "agent"))
	if err != nil {
		return err
	}
	if err := agent.until(ctx, startWithin, func(ctx context.Context) error { return api.hasNodes(ctx, f.Nodes) }); err != nil {
		return err
	}
	if err := agent.until(ctx, startWithin, func(ctx context.Context) error { return api.hasComponent(ctx, "agent") }); err != nil {
		return err
	}
	r.say("the agent has reported %d nodes and its own chart", f.Nodes)
	greet(api.url, api.token, p.Kubeconfig(), r.bin, r.state, f)
	select {
	case <-ctx.Done():
		return nil
	case <-engine.done:
		return engine.ended()
	case <-hosts.done:
		return hosts.ended()
	case <-agent.done:
		return agent.ended()
	}
}

// buildPrograms builds what the demo runs.
func (r *runner) buildPrograms(ctx context.Context) error {
	for _, b := range []struct {
		module string // its folder
		args   []string
	}{
		{"", []string{"-trimpath", "-o", r.path("bin", "opsplane"), "./infra/local/opsplane"}},
		{"", []string{"-trimpath", "-o", r.path("bin", "opsplane-agent"), "./agent"}},
		{"", []string{"-o", filepath.Join(r.state, "opsplane-host"), "./agent/executor/host/opsplane-host"}},
		{"", []string{"-tags", tag, "-o", filepath.Join(r.state, "fleet"), "./agent/executor/kube/kuberig/fleet"}},
		{helmModule, []string{"-o", filepath.Join(r.state, "install"), "./charttest/install"}},
	} {
		cmd := exec.CommandContext(ctx, "go", append([]string{"build"}, b.args...)...)
		cmd.Dir = r.path(b.module)
		if b.args[0] == "-trimpath" { // as make build does, of which much is kept
			cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("go build %s: %w\n%s", b.args[len(b.args)-1], err, out)
		}
	}
	r.say("the plane, the agent and the host's program are built")
	return nil
}

// startPlane starts the plane and returns its API as the administrator.
func (r *runner) startPlane(ctx context.Context, addr, data string) (*child, *api, error) {
	c, err := r.start("opsplane", nil, false, r.path("bin", "opsplane"), "up", "--addr", addr, "--data", data)
	if err != nil {
		return nil, nil, err
	}
	a := &api{url: "http://" + addr}
	err = c.until(ctx, startWithin, func(ctx context.Context) error {
		b, err := os.ReadFile(filepath.Join(data, "admin.token"))
		if err != nil {
			return err
		}
		a.token = strings.TrimSpace(string(b))
		return a.get(ctx, "/v1/clusters?limit=1", nil)
	})
	if err != nil {
		return nil, nil, err
	}
	r.say("the plane is up at %s", a.url)
	return c, a, nil
}

// register makes the demo's cluster, or a new token for one that is in a data
// folder of before.
func (r *runner) register(ctx context.Context, a *api, admin, token string) error {
	var known struct{ Items []struct{ Name string } }
	if err := a.get(ctx, "/v1/clusters?limit=200", &known); err != nil {
		return err
	}
	verb := "create"
	for _, c := range known.Items {
		if c.Name == clusterName {
			verb = "rotate-token"
		}
	}
	cmd := exec.CommandContext(ctx, r.path("bin", "opsplane"), "cluster", verb, clusterName, "--api", a.url, "--token-file", admin, "--token-out", token)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("register the cluster: %w\n%s", err, out)
	}
	return nil
}

// startFleet fills the control plane and plays the hosts.
func (r *runner) startFleet(ctx context.Context) (*child, *fleet, error) {
	env, err := r.environment()
	if err != nil {
		return nil, nil, err
	}
	c, err := r.start("fleet", env, true, filepath.Join(r.state, "fleet"), "--plane", filepath.Join(r.state, "shared"), "--dir", r.state,
		"--host", filepath.Join(r.state, "opsplane-host"), "--rights", r.path("infra", "helm", "opsplane-agent", "files", "rights.yaml"))
	if err != nil {
		return nil, nil, err
	}
	f := &fleet{}
	read := make(chan error, 1)
	go func() { read <- json.NewDecoder(c.stdout).Decode(f) }()
	select {
	case err = <-read:
	case <-ctx.Done():
		err = ctx.Err()
	case <-time.After(startWithin):
		err = fmt.Errorf("not within %s", startWithin)
	}
	c.wait()
	if err != nil {
		return nil, nil, fmt.Errorf("fill the control plane: %w\n%s", err, c.tail())
	}
	r.say("%d GPU hosts and their workloads are there", f.Nodes)
	return c, f, nil
}

// helmModule is the folder of the module that knows Helm.
const helmModule = "agent/executor/helm"

// installChart installs the agent's own chart, so that the cluster has a component:
// a release of Helm's, with the host helper on every node. Its pods are simulated;
// the agent that works is a process beside it.
func (r *runner) installChart(ctx context.Context, kubeconfig, namespace, plane string) error {
	values := filepath.Join(r.state, "values.yaml")
	text := fmt.Sprintf("plane: {url: %q, insecure: true}\ntoken: {existingSecret: plane-token}\nhostHelper: {enabled: true}\n", plane)
	if err := os.WriteFile(values, []byte(text), 0o600); err != nil {
		return fmt.Errorf("write the chart's values: %w", err)
	}
	cmd := exec.CommandContext(ctx, filepath.Join(r.state, "install"), "-kubeconfig", kubeconfig, "-namespace", namespace,
		"-release", "opsplane-agent", "-chart", r.path("infra", "helm", "opsplane-agent"), "-values", values)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("install the agent's chart: %w\n%s", err, out)
	}
	r.say("the chart opsplane-agent is installed in namespace %s", namespace)
	return nil
}

// api is the plane's, as the administrator.
type api struct{ url, token string }

func (a *api) get(ctx context.Context, path string, into any) (err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.url+path, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+a.token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	var b bytes.Buffer
	if _, err := b.ReadFrom(resp.Body); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s: %s", path, resp.Status, b.String())
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(b.Bytes(), into)
}

// hasNodes returns nil once the cluster's nodes are reported.
func (a *api) hasNodes(ctx context.Context, n int) error {
	var page struct{ Items []struct{} }
	if err := a.get(ctx, "/v1/nodes?limit=200", &page); err != nil {
		return err
	}
	if len(page.Items) < n {
		return fmt.Errorf("%d of %d nodes are reported", len(page.Items), n)
	}
	return nil
}

// hasComponent returns nil once the component is reported.
func (a *api) hasComponent(ctx context.Context, name string) error {
	var page struct{ Items []struct{ Name string } }
	if err := a.get(ctx, "/v1/components?limit=200", &page); err != nil {
		return err
	}
	for _, c := range page.Items {
		if c.Name == name {
			return nil
		}
	}
	return fmt.Errorf("component %s is not among the %d that are reported", name, len(page.Items))
}

// greet prints what a person needs next.
func greet(url, token, kubeconfig, bin, logs string, f *fleet) {
	post := func(title, body string) {
		fmt.Printf("\n%s:\n  curl -s %s/v1/operations -H \"Authorization: Bearer %s\" -H 'Content-Type: application/json' \\\n    -d '%s'\n", title, url, token, body)
	}
	fmt.Printf("\nOpsplane is up with a real Kubernetes control plane: %d nodes of 8 GPUs, no kubelets.\n\n  URL         %s\n  token       %s\n              (an administrator's)\n  logs        %s\n\nThe cluster, for kubectl:\n  export KUBECONFIG=%s PATH=%s:$PATH\n",
		f.Nodes, url, token, logs, kubeconfig, bin)
	post("Drain a node", `{"type":"node.drain","target":"node:gpu-node-01","reason":"firmware update"}`)
	post("Drain one that a disruption budget holds up (see progress.blockers)", `{"type":"node.drain","target":"node:gpu-node-03","reason":"firmware update"}`)
	post("Uncordon a node", `{"type":"node.uncordon","target":"node:gpu-node-01","reason":"firmware is new"}`)
	post("Restart a deployment", `{"type":"deployment.roll","target":"deployment:inference/embeddings","reason":"new weights"}`)
	post("Reset a GPU (by recorded answers: there is no GPU here)", `{"type":"device.reset","target":"device:`+f.Device+`","reason":"a page is to be remapped"}`)
	fmt.Printf("\nWhat is installed (the agent's chart; its pods are simulated, as all are):\n  curl -s %[1]s/v1/components -H \"Authorization: Bearer %[2]s\"\n\nWatch an operation (with the id from the answer):\n  curl -s \"%[1]s/v1/operations/OP_ID?wait=30s\" -H \"Authorization: Bearer %[2]s\"\n\nCtrl-C ends all of it.\n", url, token)
}
