package rig

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

// AgentProgram is where Agents finds the agent's binary in the repository.
const AgentProgram = "bin/opsplane-agent"

// BuildAgent builds the agent's binary.
func (r *Rig) BuildAgent(ctx context.Context) error {
	return r.run(ctx, append(os.Environ(), "CGO_ENABLED=0"), "go", "build", "-trimpath", "-o", AgentProgram, "./agent")
}

// Agents starts a simulated agent for each cluster, with the builtin scenario of
// its name, and returns when each has reported its nodes. The agents poll their
// queues on the local AWS by themselves.
func (r *Rig) Agents(ctx context.Context, c Client, endpoint string, clusters []Cluster) error {
	for _, cl := range clusters {
		dir := filepath.Join(r.state, "agents", cl.Name)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("start agent of %s: %w", cl.Name, err)
		}
		token := filepath.Join(dir, "token")
		if err := os.WriteFile(token, []byte(cl.Token+"\n"), 0o600); err != nil {
			return fmt.Errorf("start agent of %s: %w", cl.Name, err)
		}
		if _, err := r.start("agent-"+cl.Name, r.root, Environment(endpoint), filepath.Join(r.root, AgentProgram),
			"--plane", c.URL, "--token-file", token, "--name", cl.Name+"-sim-0", "--executor", "sim",
			"--sim-scenario", "demo/"+cl.Name, "--sim-state", filepath.Join(dir, "sim"), "--state-dir", dir); err != nil {
			return err
		}
	}
	for _, cl := range clusters {
		if err := r.hasNodes(ctx, c, cl); err != nil {
			return err
		}
	}
	return nil
}

// hasNodes waits for a cluster's first inventory.
func (r *Rig) hasNodes(ctx context.Context, c Client, cl Cluster) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		var page struct {
			Items []struct{} `json:"items"`
		}
		a, err := c.Do(ctx, http.MethodGet, "/v1/nodes?limit=1&cluster="+cl.ID, nil)
		if err == nil && a.Status == http.StatusOK {
			err = a.Into(&page)
		}
		if err == nil && len(page.Items) > 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			log, _ := os.ReadFile(filepath.Join(r.state, "agent-"+cl.Name+".log"))
			return fmt.Errorf("no node of cluster %s was reported (last answer %d, %w)\n%s", cl.Name, a.Status, err, log[max(0, len(log)-2000):])
		case <-time.After(200 * time.Millisecond):
		}
	}
}
