package rig

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"
)

// Client calls a plane's HTTP API with one token; an empty one sends no header.
type Client struct {
	URL   string
	Token string
}

// Answer is what the API said.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// Into decodes the answer's body.
func (a Answer) Into(out any) error {
	if err := json.Unmarshal(a.Body, out); err != nil {
		return fmt.Errorf("decode answer %d %.200q: %w", a.Status, a.Body, err)
	}
	return nil
}

// callTimeout is more than the gateway waits for a function.
const callTimeout = 40 * time.Second

// Do makes one call; body is sent as JSON unless nil. Headers come in pairs of
// name and value.
func (c Client) Do(ctx context.Context, method, path string, body any, headers ...string) (Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var send io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return Answer{}, fmt.Errorf("encode body: %w", err)
		}
		send = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.URL+path, send)
	if err != nil {
		return Answer{}, fmt.Errorf("call %s %s: %w", method, path, err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.Token != "" {
		req.Header.Set("Authorization", "Bearer "+c.Token)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return Answer{}, fmt.Errorf("call %s %s: %w", method, path, err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return Answer{}, fmt.Errorf("call %s %s: %w", method, path, err)
	}
	return Answer{Status: resp.StatusCode, Header: resp.Header, Body: b}, nil
}

// Cluster is a registered cluster.
type Cluster struct {
	ID    string `json:"id"`
	Name  string `json:"name"`
	Queue string `json:"queue"`
	Token string `json:"token"` // of its agents
}

// Register makes a cluster.
func (c Client) Register(ctx context.Context, name string) (Cluster, error) {
	var made Cluster
	a, err := c.Do(ctx, http.MethodPost, "/v1/clusters", map[string]string{"name": name})
	if err != nil {
		return made, err
	}
	if a.Status != http.StatusCreated {
		return made, fmt.Errorf("register cluster %s: answer %d %s", name, a.Status, a.Body)
	}
	return made, a.Into(&made)
}
