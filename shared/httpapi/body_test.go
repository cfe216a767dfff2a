package httpapi

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/problem"
)

// TestBodiesThatNeverEnd sends the head of a request and a part of its body; the
// answer has to come, and the connection to end, without the rest.
func TestBodiesThatNeverEnd(t *testing.T) {
	t.Parallel()
	p := setup(t, func(c *Config) { c.BodyTimeout = 200 * time.Millisecond })
	srv := httptest.NewServer(p.api)
	t.Cleanup(srv.Close)
	const length, chunked = "Content-Length: 5000\r\n\r\n{", "Transfer-Encoding: chunked\r\n\r\n"
	for name, tt := range map[string]struct {
		role, line, rest string
		status           int
	}{
		"create":             {"operator", "POST /v1/operations", length, 400},
		"cancel":             {"operator", "DELETE /v1/operations/" + noOperation, length, 400},
		"agent":              {"agent", "POST /v1/agent/heartbeat", length, 400},
		"no body is taken":   {"viewer", "GET /v1/nodes", length, 400},
		"public":             {"viewer", "GET /healthz", length, 400},
		"nobody":             {"nobody", "POST /v1/operations", length, 401},
		"no right":           {"viewer", "POST /v1/operations", length, 403},
		"no path":            {"viewer", "POST /v1/nothing", length, 404},
		"too long":           {"operator", "POST /v1/operations", "Content-Length: 2000000\r\n\r\n{", 413},
		"chunks, unfinished": {"operator", "POST /v1/operations", chunked + "1\r\n{\r\n", 400},
		"chunks, too long":   {"operator", "POST /v1/manual-changes", chunked + fmt.Sprintf("%x\r\n%s\r\n", smallBody+1, strings.Repeat(" ", smallBody+1)), 413},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, err := net.Dial("tcp", srv.Listener.Addr().String())
			must(t, err)
			defer func() { _ = c.Close() }()
			must(t, c.SetDeadline(time.Now().Add(20*time.Second)))
			bearer := p.bearer[tt.role]
			_, err = fmt.Fprintf(c, "%s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n%s", tt.line, bearer, tt.rest)
			must(t, err)
			r, err := http.ReadResponse(bufio.NewReader(c), nil)
			must(t, err)
			b, _ := io.ReadAll(r.Body)
			if r.StatusCode != tt.status || !r.Close {
				t.Errorf("status %d, close %v: %s", r.StatusCode, r.Close, b)
			}
			if _, err := io.ReadAll(c); err != nil && strings.Contains(err.Error(), "timeout") {
				t.Error("the connection stays open")
			}
		})
	}
}

// TestRefusedBodiesOverHTTP2 answers them too, and keeps the connection for the
// other streams.
func TestRefusedBodiesOverHTTP2(t *testing.T) {
	t.Parallel()
	p := setup(t, func(c *Config) { c.BodyTimeout = 200 * time.Millisecond })
	srv := httptest.NewUnstartedServer(p.api)
	srv.EnableHTTP2 = true
	srv.StartTLS()
	t.Cleanup(srv.Close)
	stalled, end := io.Pipe()
	t.Cleanup(func() { _ = end.Close() })
	for want, body := range map[int]io.Reader{413: strings.NewReader(strings.Repeat(" ", 2<<20)), 400: stalled} {
		r, err := http.NewRequestWithContext(t.Context(), "POST", srv.URL+"/v1/operations", body)
		must(t, err)
		r.Header.Set("Authorization", "Bearer "+p.bearer["operator"])
		a, err := srv.Client().Do(r)
		must(t, err)
		b, err := io.ReadAll(a.Body)
		must(t, err)
		must(t, a.Body.Close())
		if a.StatusCode != want || a.ProtoMajor != 2 || !strings.Contains(string(b), "error_code") {
			t.Errorf("%s %d, want %d: %s", a.Proto, a.StatusCode, want, b)
		}
	}
}

func TestBodiesThatReadersDifferAbout(t *testing.T) {
	t.Parallel()
	p := setup(t)
	node := p.node(p.cluster, "a")
	body := func(more string) string {
		return fmt.Sprintf(`{"type":"node.drain","target":%q,"reason":"x"%s}`, node, more)
	}
	for more, pointer := range map[string]string{`,"reason":"y"`: "/reason", `,"payload":{"force":false,"force":true}`: "/payload/force",
		`,"payload":{"a":[{},{"b/c":[1],"b/c":2}]}`: "/payload/a/1/b~1c"} {
		p.do("operator", "POST", "/v1/operations", body(more)).problem(400, problem.Malformed).points(pointer)
	}
	p.do("operator", "POST", "/v1/manual-changes", `{"target":"x","target":"y"}`).problem(400, problem.Malformed).points("/target")
	p.do("operator", "POST", "/v1/operations", body(`,"reason":"y"`), "Content-Encoding: gzip").problem(415, problem.UnsupportedMediaType)
	for more, pointer := range map[string]string{`,"dry_run":null`: "/dry_run", `,"deadline":""`: "/deadline", `,"cluster":""`: "/cluster"} {
		p.do("operator", "POST", "/v1/operations", body(more)).problem(422, problem.Invalid).points(pointer)
	}
	for _, reason := range []string{" \t", "a\u202eb", "a\u2066b", "a\ufffdb", ""} {
		a := p.do("operator", "POST", "/v1/operations", m{"type": "node.cordon", "target": node, "reason": reason}).problem(422, problem.Invalid).points("/reason")
		if strings.Contains(reason, "\ufffd") != strings.Contains(a.raw, "replacement") {
			t.Error(a.raw)
		}
	}
	p.do("operator", "POST", "/v1/operations", body(`,"dry_run":true`), "Content-Encoding: identity").want(200)
}

func TestParametersThatNameNothing(t *testing.T) {
	t.Parallel()
	p := setup(t)
	node := p.node(p.cluster, "a")
	p.node(p.cluster, "twin")
	p.node(p.other, "twin")
	op := p.create(node)
	for _, q := range []string{"resource=" + node, "resource=node:a", "resource=node:a&cluster=east", "target=node:a", "target=" + node} {
		if got := p.do("viewer", "GET", "/v1/operations?"+q, nil).want(200).ids(); len(got) != 1 || got[0] != op {
			t.Errorf("%s: %v", q, got)
		}
	}
	p.do("viewer", "GET", "/v1/operations?resource=fleet", nil).want(200)
	p.do("viewer", "GET", "/v1/operations?resource=node:twin&cluster=west", nil).want(200)
	for q, pointer := range map[string]string{"target=bogus": "/query/target", "target=bogus:x": "/query/target", "resource=bogus": "/query/resource",
		"resource=node:nothing": "/query/resource", "resource=node:twin": "/query/resource", "cluster=": "/query/cluster", "target=": "/query/target"} {
		p.do("viewer", "GET", "/v1/operations?"+q, nil).problem(422, problem.Invalid).points(pointer)
	}
	for _, tag := range []string{`"x"`, `"1", "2"`, "x"} {
		begin := time.Now()
		p.do("viewer", "GET", "/v1/operations/"+op+"?wait=20s", nil, "If-None-Match: "+tag).want(200)
		if time.Since(begin) > 10*time.Second {
			t.Errorf("%s: was taken for a match", tag)
		}
	}
	token := p.bearer["viewer"]
	if got := p.do("viewer", "GET", "/v1/nodes", nil, "X-Correlation-ID: "+token).want(200).header.Get("X-Correlation-ID"); got == token || got == "" {
		t.Errorf("correlation id %q", got)
	}
}
