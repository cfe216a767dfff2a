package crashtest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/operation"
)

// client calls the API with an administrator's token.
type client struct {
	t     *testing.T
	url   string
	token string
	http  *http.Client
}

func (p *plane) client() *client {
	p.t.Helper()
	tr := &http.Transport{MaxIdleConnsPerHost: 64}
	p.t.Cleanup(tr.CloseIdleConnections)
	return &client{t: p.t, url: p.url(), token: p.token(), http: &http.Client{Transport: tr}}
}

// answer is what came back; status 0 means that nothing did.
type answer struct {
	status int
	header http.Header
	body   []byte
	err    error
}

func (a answer) String() string { return fmt.Sprintf("%d %.400s %v", a.status, a.body, a.err) }

// code is the problem's error code.
func (a answer) code() string {
	var p struct {
		ErrorCode string `json:"error_code"`
	}
	_ = json.Unmarshal(a.body, &p)
	return p.ErrorCode
}

// call sends one request. key, if given, is its idempotency key.
func (c *client) call(method, path string, body any, key string) answer {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var rd io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return answer{err: err}
		}
		rd = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.url+path, rd)
	if err != nil {
		return answer{err: err}
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return answer{err: err}
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return answer{err: err} // half an answer is none
	}
	return answer{status: res.StatusCode, header: res.Header, body: b}
}

// get reads what must be there.
func get[T any](c *client, path string) T {
	c.t.Helper()
	a := c.call(http.MethodGet, path, nil, "")
	var v T
	if a.status != http.StatusOK {
		c.t.Fatalf("GET %s: %s", path, a)
	}
	if err := json.Unmarshal(a.body, &v); err != nil {
		c.t.Fatalf("GET %s: %v in %.400s", path, err, a.body)
	}
	return v
}

type page[T any] struct {
	Items      []T     `json:"items"`
	NextCursor *string `json:"next_cursor"`
}

// list reads all pages of a list.
func list[T any](c *client, path string) []T {
	c.t.Helper()
	var out []T
	u, err := url.Parse(path)
	if err != nil {
		c.t.Fatal(err)
	}
	q := u.Query()
	q.Set("limit", "200")
	for {
		u.RawQuery = q.Encode()
		p := get[page[T]](c, u.String())
		out = append(out, p.Items...)
		if p.NextCursor == nil {
			return out
		}
		q.Set("cursor", *p.NextCursor)
	}
}

// op is an operation as the API shows it.
type op struct {
	ID          string                 `json:"id"`
	Type        string                 `json:"type"`
	Target      string                 `json:"target"`
	Cluster     *string                `json:"cluster"`
	Reason      string                 `json:"reason"`
	Phase       operation.Phase        `json:"phase"`
	Deadline    time.Time              `json:"deadline"`
	CreatedAt   time.Time              `json:"created_at"`
	FinishedAt  *time.Time             `json:"finished_at"`
	Parent      *string                `json:"parent"`
	Generation  int64                  `json:"generation"`
	Waiting     *operation.Waiting     `json:"waiting"`
	Progress    *operation.Progress    `json:"progress"`
	Assignments []operation.Assignment `json:"assignments"`
	Result      *operation.Result      `json:"result"`
	Plan        []struct {
		Name  string              `json:"name"`
		Phase operation.StepPhase `json:"phase"`
	} `json:"plan"`
}

func (o op) step(name string) operation.StepPhase {
	for _, s := range o.Plan {
		if s.Name == name {
			return s.Phase
		}
	}
	return ""
}

func (c *client) operation(id string) op {
	c.t.Helper()
	return get[op](c, "/v1/operations/"+id)
}

func (c *client) journal(id string) []operation.Entry {
	c.t.Helper()
	return list[operation.Entry](c, "/v1/operations/"+id+"/journal")
}

type request struct {
	Type     string         `json:"type"`
	Target   string         `json:"target"`
	Cluster  string         `json:"cluster,omitempty"`
	Reason   string         `json:"reason"`
	Deadline *time.Time     `json:"deadline,omitempty"`
	Payload  map[string]any `json:"payload,omitempty"`
}

func in(d time.Duration) *time.Time {
	t := time.Now().Add(d).UTC().Truncate(time.Millisecond)
	return &t
}

// create makes an operation that must be accepted.
func (c *client) create(r request) op {
	c.t.Helper()
	a := c.call(http.MethodPost, "/v1/operations", r, "")
	if a.status != http.StatusAccepted {
		c.t.Fatalf("create %s of %s: %s", r.Type, r.Target, a)
	}
	var o op
	if err := json.Unmarshal(a.body, &o); err != nil {
		c.t.Fatal(err)
	}
	return o
}

// until reads the operation until it is as wanted.
func (c *client) until(id string, within time.Duration, what string, want func(op) bool) op {
	c.t.Helper()
	end := time.Now().Add(within)
	for {
		o := c.operation(id)
		if want(o) {
			return o
		}
		if time.Now().After(end) {
			b, _ := json.MarshalIndent(o, "", " ")
			j, _ := json.MarshalIndent(c.journal(id), "", " ")
			c.t.Fatalf("operation %s is not %s after %s:\n%s\n%s", id, what, within, b, j)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (c *client) finish(id string, within time.Duration) op {
	c.t.Helper()
	return c.until(id, within, "terminal", func(o op) bool { return o.Phase.Terminal() })
}

// thing is a node, device, deployment or cluster.
type thing struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

// things waits until at least n of a kind were reported.
func (c *client) things(kind string, n int) []thing {
	c.t.Helper()
	return c.thingsOf(kind, "", n)
}

// thingsOf does so in one cluster.
func (c *client) thingsOf(kind, cluster string, n int) []thing {
	c.t.Helper()
	end := time.Now().Add(time.Minute)
	path := "/v1/" + kind
	if cluster != "" {
		path += "?cluster=" + cluster
	}
	for {
		all := list[thing](c, path)
		if len(all) >= n {
			return all
		}
		if time.Now().After(end) {
			c.t.Fatalf("%d %s after a minute, want %d", len(all), kind, n)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// idle waits until no operation is live.
func (c *client) idle(within time.Duration) {
	c.t.Helper()
	end := time.Now().Add(within)
	for {
		live := get[page[op]](c, "/v1/operations?active=true&limit=20").Items
		if len(live) == 0 {
			return
		}
		if time.Now().After(end) {
			b, _ := json.MarshalIndent(live, "", " ")
			c.t.Fatalf("operations are live after %s:\n%s", within, b)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// cluster registers a cluster and returns its id and the file of its agents'
// token.
func (p *plane) cluster(c *client, name string) (id, tokenFile string) {
	p.t.Helper()
	a := c.call(http.MethodPost, "/v1/clusters", map[string]any{"name": name}, "")
	if a.status != http.StatusCreated {
		p.t.Fatalf("register cluster %s: %s", name, a)
	}
	var out struct {
		ID    string `json:"id"`
		Token string `json:"token"`
	}
	if err := json.Unmarshal(a.body, &out); err != nil || out.Token == "" {
		p.t.Fatalf("register cluster %s: %v in %s", name, err, a)
	}
	tokenFile = filepath.Join(p.dir, name+".token")
	if err := os.WriteFile(tokenFile, []byte(out.Token), 0o600); err != nil {
		p.t.Fatal(err)
	}
	return out.ID, tokenFile
}

func decode[T any](a answer) (v T, err error) {
	if a.err != nil {
		return v, a.err
	}
	err = json.Unmarshal(a.body, &v)
	return v, err
}

// decodePage reads a list that fits one page.
func decodePage[T any](a answer) ([]T, error) {
	p, err := decode[page[T]](a)
	switch {
	case err != nil:
		return nil, err
	case a.status != http.StatusOK:
		return nil, fmt.Errorf("%s", a)
	case p.NextCursor != nil:
		return nil, fmt.Errorf("a list of more than %d", len(p.Items))
	}
	return p.Items, nil
}
