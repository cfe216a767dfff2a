package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"text/tabwriter"
)

type clusterCmd struct {
	Create      clusterCreateCmd `cmd:"" help:"Register a cluster and print what its agents need."`
	List        clusterListCmd   `cmd:"" help:"List the clusters."`
	RotateToken clusterRotateCmd `cmd:"" help:"Give a cluster's agents a new token; the old one ends."`
}

// cluster is what the API tells of one. The queue's address and policy are there
// on AWS alone, the token once.
type cluster struct {
	ID           string          `json:"id"`
	Name         string          `json:"name"`
	Agents       int             `json:"agents"`
	AgentsOnline int             `json:"agents_online"`
	Token        string          `json:"token"`
	QueueURL     string          `json:"queue_url"`
	QueueARN     string          `json:"queue_arn"`
	AgentPolicy  json.RawMessage `json:"agent_policy"`
}

// tokenOutput says where the agents' token goes.
type tokenOutput struct {
	TokenOut string `help:"Write the agents' token to this new file instead of printing it." type:"path" placeholder:"FILE"`
	JSON     bool   `help:"Print the API's answer, without a token that goes to a file." name:"json"`
}

// file makes the token's file before the token is: one that cannot be kept must
// not be made.
func (o *tokenOutput) file() (*os.File, error) {
	if o.TokenOut == "" {
		return nil, nil
	}
	f, err := os.OpenFile(o.TokenOut, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("keep the token: %w", err)
	}
	return f, nil
}

type clusterCreateCmd struct {
	Name string `arg:"" help:"A DNS label, unique."`
	apiFlags
	tokenOutput
}

func (c *clusterCreateCmd) Run(ctx context.Context) error {
	return newToken(ctx, &c.apiFlags, &c.tokenOutput, http.MethodPost, "/v1/clusters", map[string]string{"name": c.Name}, startAgent, os.Stdout)
}

type clusterRotateCmd struct {
	Name string `arg:"" help:"Name or id."`
	apiFlags
	tokenOutput
}

func (c *clusterRotateCmd) Run(ctx context.Context) error { return c.rotate(ctx, os.Stdout) }

func (c *clusterRotateCmd) rotate(ctx context.Context, out io.Writer) error {
	return newToken(ctx, &c.apiFlags, &c.tokenOutput, http.MethodPost, "/v1/clusters/"+url.PathEscape(c.Name)+"/token", nil, giveToken, out)
}

// newToken makes a call that answers a cluster with a token, and prints it with what
// is to be done next.
func newToken(ctx context.Context, f *apiFlags, o *tokenOutput, method, path string, body any, next todo, out io.Writer) (err error) {
	api, err := f.open()
	if err != nil {
		return err
	}
	file, err := o.file()
	if err != nil {
		return err
	}
	if file != nil {
		defer func() {
			if cerr := file.Close(); err == nil && cerr != nil {
				err = fmt.Errorf("keep the token: %w", cerr)
			}
		}()
	}
	raw, err := api.call(ctx, method, path, body)
	if err != nil {
		if file != nil {
			_ = os.Remove(file.Name()) // it is empty
		}
		return err
	}
	var c cluster
	if err := json.Unmarshal(raw, &c); err != nil || c.Token == "" {
		return fmt.Errorf("the API's answer is no cluster with a token: %w", errors.Join(err))
	}
	if file != nil {
		if _, err := file.WriteString(c.Token + "\n"); err != nil {
			return fmt.Errorf("keep the token: %w", err)
		}
	}
	if o.JSON {
		return printJSON(out, raw, file != nil)
	}
	return show(out, f, o.TokenOut, &c, next)
}

// printJSON prints an answer, without the token when that is kept elsewhere.
func printJSON(out io.Writer, raw []byte, kept bool) error {
	var answer map[string]json.RawMessage
	if err := json.Unmarshal(raw, &answer); err != nil {
		return fmt.Errorf("the API's answer is no object: %w", err)
	}
	if kept {
		delete(answer, "token")
	}
	b, err := json.Marshal(answer)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, string(b))
	return err
}

// todo says what is to be done with a token.
type todo func(f *apiFlags, tokenFile string, c *cluster) string

// show prints what an agent of the cluster needs.
func show(w io.Writer, f *apiFlags, tokenFile string, c *cluster, next todo) error {
	fmt.Fprintf(w, "cluster  %s (%s)\nAPI      %s\n", c.Name, c.ID, f.API)
	if tokenFile == "" {
		fmt.Fprintf(w, "token    %s\n         (for its agents; printed this once)\n", c.Token)
	} else {
		fmt.Fprintf(w, "token    in %s\n", tokenFile)
	}
	if c.QueueURL != "" {
		fmt.Fprintf(w, "queue    %s\n", c.QueueURL)
	}
	policy, err := policyText(c.AgentPolicy)
	if err != nil {
		return err
	}
	if policy != "" {
		fmt.Fprintf(w, "\nThe agents' AWS role needs this policy, and nothing else:\n\n%s\n", policy)
	}
	_, err = fmt.Fprintf(w, "\n%s\n", next(f, tokenFile, c))
	return err
}

// startAgent is for a new cluster, which has no agents yet: in Kubernetes, on a host, and
// with a simulated fleet to try it out.
func startAgent(f *apiFlags, tokenFile string, c *cluster) string {
	start, secret, chart := "opsplane agent --plane "+f.API, "--from-literal=token="+c.Token, "--set plane.url="+f.API
	if tokenFile != "" {
		start += " --token-file " + quote(tokenFile)
		secret = "--from-file=token=" + quote(tokenFile)
	} else {
		start = "OPSPLANE_TOKEN=" + c.Token + " " + start
	}
	also := ""
	if f.CAFile != "" {
		start += " --ca-file " + quote(f.CAFile)
		chart += " --set plane.caSecret=plane-ca"
		also = "\n  kubectl -n opsplane create secret generic plane-ca --from-file=ca.crt=" + quote(f.CAFile)
	}
	if f.Insecure {
		start += " --insecure"
		chart += " --set plane.insecure=true"
	}
	with := ""
	if c.QueueURL != "" {
		with = ", with AWS credentials of that role"
	}
	return fmt.Sprintf(`In Kubernetes, install the agent%s (infra/docs/kubernetes.md):

  kubectl create namespace opsplane
  kubectl -n opsplane create secret generic plane-token %s%s
  helm install opsplane-agent infra/helm/opsplane-agent -n opsplane --set token.existingSecret=plane-token %s

On a GPU host without Kubernetes: infra/docs/host.md. To try it out, with a simulated fleet:

  %s --name %s-agent-0 --executor sim --sim-scenario zoo --sim-state %s-sim`, with, secret, also, chart, start, c.Name, c.Name)
}

// giveToken is for a cluster whose agents run as whoever set them up started them: the
// plane knows neither their executors nor their other settings, which stay as they are.
func giveToken(_ *apiFlags, _ string, _ *cluster) string {
	return `The old token has ended. Give the new one to the cluster's agents, whose other settings stay as they are:
write it to where their --token-file is, in Kubernetes into the Secret that holds it, and start those again
that have stopped (exit code 3), or that have it from OPSPLANE_TOKEN.`
}

// policyText indents a policy, which the API gives as an object or as its text.
func policyText(raw json.RawMessage) (string, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return "", nil
	}
	var s string
	if json.Unmarshal(raw, &s) == nil {
		raw = json.RawMessage(s)
	}
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		return "", fmt.Errorf("the API's answer has a policy that is no JSON: %w", err)
	}
	b, err := json.MarshalIndent(v, "", "  ")
	return string(b), err
}

// quote makes one word of a path for a shell.
func quote(s string) string {
	if s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-", r))
	}) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

type clusterListCmd struct {
	apiFlags
	JSON bool `help:"Print one JSON document a cluster." name:"json"`
}

func (c *clusterListCmd) Run(ctx context.Context) error { return c.list(ctx, os.Stdout) }

func (c *clusterListCmd) list(ctx context.Context, out io.Writer) error {
	api, err := c.open()
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if !c.JSON {
		fmt.Fprintln(w, "NAME\tID\tAGENTS\tONLINE")
	}
	for cursor := ""; ; {
		raw, err := api.call(ctx, http.MethodGet, "/v1/clusters?limit=200&cursor="+url.QueryEscape(cursor), nil)
		if err != nil {
			return err
		}
		var page struct {
			Items      []json.RawMessage `json:"items"`
			NextCursor string            `json:"next_cursor"`
		}
		if err := json.Unmarshal(raw, &page); err != nil {
			return fmt.Errorf("the API's answer is no list: %w", err)
		}
		for _, item := range page.Items {
			if c.JSON {
				fmt.Fprintln(out, string(item))
				continue
			}
			var one cluster
			if err := json.Unmarshal(item, &one); err != nil {
				return fmt.Errorf("the API's answer is no list of clusters: %w", err)
			}
			fmt.Fprintf(w, "%s\t%s\t%d\t%d\n", one.Name, one.ID, one.Agents, one.AgentsOnline)
		}
		if cursor = page.NextCursor; cursor == "" {
			return w.Flush()
		}
	}
}
