package remote

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/problem"
	"github.com/opsplane/opsplane/shared/queue"
)

const token = "opt_test"

// plane is the fake server: it keeps what was asked and gives a fixed answer.
type plane struct {
	*httptest.Server
	path, body string
	header     http.Header
}

func setup(t *testing.T, answer http.HandlerFunc) (*plane, *Client) {
	t.Helper()
	p := &plane{}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		p.path, p.body, p.header = r.Method+" "+r.URL.Path, string(b), r.Header
		answer(w, r)
	}))
	t.Cleanup(p.Close)
	c, err := New(Options{Base: p.URL + "/", Token: token, Slack: 5 * time.Second, UserAgent: "opsplane-agent/test"})
	if err != nil {
		t.Fatal(err)
	}
	return p, c
}

func TestReceive(t *testing.T) {
	t.Parallel()
	p, c := setup(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"messages":[{"id":"m1","receipt":"m1.2","body":"{\"v\":1}","receives":2}],"more":true}`)
	})
	got, err := c.Receive(t.Context(), "ignored", 10, 20*time.Second, 30*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	want := []queue.Message{{ID: "m1", Receipt: "m1.2", Body: []byte(`{"v":1}`), Receives: 2}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if p.path != "POST /v1/agent/queue/receive" || p.body != `{"max":10,"wait_ms":20000,"visibility_ms":30000}` {
		t.Errorf("asked %s %s", p.path, p.body)
	}
	if p.header.Get("Authorization") != "Bearer "+token || p.header.Get("User-Agent") != "opsplane-agent/test" {
		t.Errorf("headers %v", p.header)
	}
}

func TestDeleteExtend(t *testing.T) {
	t.Parallel()
	p, c := setup(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	if err := c.Delete(t.Context(), "", "a", "b"); err != nil {
		t.Error(err)
	}
	if p.path != "POST /v1/agent/queue/delete" || p.body != `{"receipts":["a","b"]}` {
		t.Errorf("asked %s %s", p.path, p.body)
	}
	if err := c.Extend(t.Context(), "", "a", 1500*time.Millisecond); err != nil {
		t.Error(err)
	}
	if p.path != "POST /v1/agent/queue/extend" || p.body != `{"receipt":"a","visibility_ms":1500}` {
		t.Errorf("asked %s %s", p.path, p.body)
	}
}

func TestErrors(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		code problem.Code
		want error
	}{
		{problem.Unauthenticated, ErrRefused},
		{problem.Forbidden, ErrRefused},
		{problem.NotFound, queue.ErrNoQueue},
		{problem.Gone, queue.ErrStaleReceipt},
		{problem.RateLimited, queue.ErrUnavailable},
		{problem.Unavailable, queue.ErrUnavailable},
		{problem.Internal, queue.ErrUnavailable},
	} {
		t.Run(string(tt.code), func(t *testing.T) {
			t.Parallel()
			_, c := setup(t, func(w http.ResponseWriter, _ *http.Request) {
				problem.Write(w, problem.New(tt.code, "because").WithRetryAfter(3*time.Second))
			})
			err := c.Extend(t.Context(), "", "r", time.Second)
			e, ok := errors.AsType[*Error](err)
			if !errors.Is(err, tt.want) || !ok {
				t.Fatalf("%v, want %v", err, tt.want)
			}
			want := &Error{Status: problem.Status(tt.code), Code: string(tt.code), Detail: "because", RetryAfter: 3 * time.Second}
			if diff := cmp.Diff(want, e); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestBadAnswers(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]http.HandlerFunc{
		"not json":     func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") },
		"proxy's page": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "bad gateway", http.StatusBadGateway) },
		"redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://elsewhere.invalid/", http.StatusTemporaryRedirect)
		},
		"cut off": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "10")
			w.WriteHeader(200)
		},
		"closed":        func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"endless":       func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, maxAnswer+2)) },
		"too long wait": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, c := setup(t, answer)
			c.o.Slack = 300 * time.Millisecond
			if _, err := c.Receive(t.Context(), "", 1, 0, time.Second); !errors.Is(err, queue.ErrUnavailable) {
				t.Errorf("%v, want ErrUnavailable", err)
			}
		})
	}
}

func TestStaleDeleteIsNoError(t *testing.T) {
	t.Parallel()
	_, c := setup(t, func(w http.ResponseWriter, _ *http.Request) { problem.Write(w, problem.New(problem.Gone, "stale")) })
	if err := c.Delete(t.Context(), "", "r"); err != nil {
		t.Error(err)
	}
}

func TestContextEnds(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{})
	_, c := setup(t, func(_ http.ResponseWriter, r *http.Request) { close(asked); <-r.Context().Done() })
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-asked; cancel() }()
	_, err := c.Receive(ctx, "", 1, queue.MaxWait, time.Second)
	if !errors.Is(err, context.Canceled) || errors.Is(err, queue.ErrUnavailable) {
		t.Errorf("%v, want the context's error", err)
	}
}

func TestUnreachable(t *testing.T) {
	t.Parallel()
	p, c := setup(t, func(http.ResponseWriter, *http.Request) {})
	p.Close()
	if err := c.Delete(t.Context(), "", "r"); !errors.Is(err, queue.ErrUnavailable) {
		t.Errorf("%v, want ErrUnavailable", err)
	}
}

func TestNewAndLimits(t *testing.T) {
	t.Parallel()
	for _, o := range []Options{{}, {Base: "http://x"}, {Base: "ftp://x", Token: "t"}, {Base: "x", Token: "t"}, {Base: "http://u:p@x", Token: "t"}, {Base: "http://x?q=1", Token: "t"}} {
		if _, err := New(o); err == nil {
			t.Errorf("New(%+v) worked", o)
		}
	}
	_, c := setup(t, func(http.ResponseWriter, *http.Request) { t.Error("an invalid call was sent") })
	_, err := c.Receive(t.Context(), "", 11, 0, time.Second)
	for _, err := range []error{err, c.Delete(t.Context(), ""), c.Extend(t.Context(), "", "r", -1)} {
		if !errors.Is(err, queue.ErrInvalid) {
			t.Errorf("%v, want ErrInvalid", err)
		}
	}
}
