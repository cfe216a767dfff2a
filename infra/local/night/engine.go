package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// night is a running engine with its agents, each in a process of its own, and
// what was told of alerts so far.
type night struct {
	program, dir string
	out          io.Writer
	began        time.Time
	url, token   string
	plane        *exec.Cmd
	clusters     map[string]cluster
	agents       []*exec.Cmd
	cursor       string
	waits        string              // for what
	open         map[string]string   // where each alert stands
	told         map[string][]string // of each alert, in order
}

type cluster struct {
	ID, Token string
	agent     *exec.Cmd
}

// failure ends the night.
type failure struct{ err error }

func must(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// start starts the engine and waits until it says where it listens.
func (n *night) start(ctx context.Context) {
	n.plane = exec.CommandContext(ctx, n.program, "up", "--addr", "127.0.0.1:0", "--data", filepath.Join(n.dir, "data"),
		"--lease", "3s", "--call-deadline", "1s", "--ring-after", "1s", "--agent-silent", "9s")
	n.plane.Cancel = func() error { return n.plane.Process.Signal(os.Interrupt) }
	n.plane.WaitDelay = 10 * time.Second
	log, err := os.Create(filepath.Join(n.dir, "plane.log"))
	must(err)
	n.plane.Stderr = log
	stdout, err := n.plane.StdoutPipe()
	must(err)
	must(n.plane.Start())
	for sc := bufio.NewScanner(stdout); n.token == ""; {
		if !sc.Scan() {
			must(fmt.Errorf("the engine did not start: see %s", log.Name()))
		}
		if f := strings.Fields(sc.Text()); len(f) == 2 && f[0] == "URL" {
			n.url = f[1]
		} else if len(f) == 2 && f[0] == "token" {
			n.token = f[1]
		}
	}
}

// end stops what was started.
func (n *night) end() {
	for _, c := range n.agents {
		_ = c.Process.Kill() // it may have ended
		_ = c.Wait()
	}
	if n.plane != nil && n.plane.Process != nil {
		_ = n.plane.Process.Signal(os.Interrupt)
		_ = n.plane.Wait() // how it ends is not what is looked at
	}
}

func (n *night) register(ctx context.Context, name string) {
	var c struct {
		Cluster struct{ ID string }
		ID      string
		Token   string
	}
	n.call(ctx, http.MethodPost, "/v1/clusters", map[string]any{"name": name}, &c)
	n.clusters[name] = cluster{ID: c.ID + c.Cluster.ID, Token: c.Token}
	must(os.WriteFile(filepath.Join(n.dir, name+".token"), []byte(c.Token), 0o600))
}

// agent starts a cluster's agent.
func (n *night) agent(ctx context.Context, name string) {
	in := func(what string) string { return filepath.Join(n.dir, name+what) }
	cmd := exec.CommandContext(ctx, n.program, "agent", "--plane", n.url, "--token-file", in(".token"), "--name", name+"-0", "--executor", "sim",
		"--sim-scenario", in(".yaml"), "--sim-state", in("-world"), "--state-dir", in("-agent"))
	log, err := os.OpenFile(in(".log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	must(err)
	cmd.Stdout, cmd.Stderr = log, log
	must(cmd.Start())
	c := n.clusters[name]
	c.agent = cmd
	n.clusters[name] = c
	n.agents = append(n.agents, cmd)
}

// kill ends a cluster's agent at once, as the loss of its machine would.
func (n *night) kill(name string) {
	must(n.clusters[name].agent.Process.Kill())
	n.say("(the agent of %s is killed)", name)
}

func (n *night) say(format string, args ...any) {
	fmt.Fprintf(n.out, "%6.1fs  "+format+"\n", append([]any{time.Since(n.began).Seconds()}, args...)...)
}

func (n *night) call(ctx context.Context, method, path string, body, out any) {
	n.send(ctx, n.token, method, path, body, out)
}

// as calls as a cluster's agent.
func (n *night) as(ctx context.Context, name, path string, body, out any) {
	n.send(ctx, n.clusters[name].Token, http.MethodPost, path, body, out)
}

func (n *night) send(ctx context.Context, token, method, path string, body, out any) {
	var r io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		must(err)
		r = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, n.url+path, r)
	must(err)
	req.Header.Set("Authorization", "Bearer "+token)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := http.DefaultClient.Do(req)
	must(err)
	b, err := io.ReadAll(resp.Body)
	must(errors.Join(err, resp.Body.Close()))
	if resp.StatusCode > 299 {
		must(fmt.Errorf("%s %s: %d %s", method, path, resp.StatusCode, b))
	}
	if out != nil {
		must(json.Unmarshal(b, out))
	}
}

// ask asks for an operation and returns its id; within is its deadline, 0 the
// type's.
func (n *night) ask(ctx context.Context, typ, target string, within time.Duration) string {
	body := map[string]any{"type": typ, "target": target, "reason": "a night in a minute"}
	if within > 0 {
		body["deadline"] = time.Now().Add(within).UTC()
	}
	var op struct{ ID string }
	n.call(ctx, http.MethodPost, "/v1/operations", body, &op)
	n.say("(%s of %s is asked for)", typ, target)
	return op.ID
}

// phase waits until an operation has come into a phase.
func (n *night) phase(ctx context.Context, op, want string) {
	n.until(ctx, op+" "+want, func() bool {
		var o struct{ Phase string }
		n.call(ctx, http.MethodGet, "/v1/operations/"+op, nil, &o)
		return o.Phase == want
	})
}

// found waits until a node is in the inventory.
func (n *night) found(ctx context.Context, name, node string) {
	n.until(ctx, node, func() bool {
		var l struct{ Items []any }
		n.call(ctx, http.MethodGet, "/v1/nodes?name="+node+"&cluster="+name, nil, &l)
		return len(l.Items) == 1
	})
}

// device is the name of a node's GPU.
func (n *night) device(ctx context.Context, node string, index int) string {
	var l struct {
		Items []struct {
			Name     string
			NodeName string `json:"node_name"`
			Index    int
		}
	}
	n.call(ctx, http.MethodGet, "/v1/devices?limit=200&cluster=north", nil, &l)
	for _, d := range l.Items {
		if d.NodeName == node && d.Index == index {
			return d.Name
		}
	}
	must(fmt.Errorf("node %s has no GPU %d", node, index))
	return ""
}

func (n *night) until(ctx context.Context, what string, done func() bool) {
	n.waits = what
	for !done() {
		n.read(ctx)
		select {
		case <-ctx.Done():
			must(ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
	n.waits = ""
}

// wait waits until an alert of a rule whose summary names what it is about stands
// as wanted.
func (n *night) wait(ctx context.Context, rule, about, want string) {
	n.until(ctx, rule+" of "+about+" "+want, func() bool {
		n.read(ctx)
		for k, state := range n.open {
			if strings.HasPrefix(k, rule+" ") && strings.Contains(k, about) && state == want {
				return true
			}
		}
		return false
	})
}

// read takes over what was told of alerts.
func (n *night) read(ctx context.Context) {
	for more := true; more; {
		var l struct {
			Items []struct {
				Type   string
				Detail struct {
					Rule, Summary, Reason, Cluster string
					Inhibited                      string `json:"inhibited_by"`
				}
			}
			Next string `json:"next_cursor"`
			More bool
		}
		n.call(ctx, http.MethodGet, "/v1/events?limit=200&type=alert.*&cursor="+url.QueryEscape(n.cursor), nil, &l)
		for _, e := range l.Items {
			d := e.Detail
			for name, c := range n.clusters {
				d.Summary = strings.ReplaceAll(d.Summary, c.ID, name)
			}
			key := d.Rule + " | " + d.Summary
			state := strings.TrimPrefix(e.Type, "alert.")
			line := state + " (" + d.Reason
			if d.Inhibited != "" {
				line += ", inhibited"
			}
			n.open[key] = state
			n.told[key] = append(n.told[key], line+")")
			n.say("%-9s %s  (%s)", state, d.Summary, d.Rule)
		}
		n.cursor, more = l.Next, l.More
	}
}

// lines are the alerts by rule, with what was told of each, in order.
func (n *night) lines() []string {
	var out []string
	for key, told := range n.told {
		rule, summary, _ := strings.Cut(key, " | ")
		out = append(out, rule+": "+summary+"\n    "+strings.Join(told, "\n    "))
	}
	slices.Sort(out)
	return out
}
