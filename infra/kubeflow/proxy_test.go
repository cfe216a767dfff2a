//go:build kubetest

package kubeflow

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
)

// Where on a request's way a hook is called.
type place string

const (
	before place = "before" // the server has not seen the request
	after  place = "after"  // it has answered, and nobody has seen the answer
)

// errDropped: a hook ended the request's way.
var errDropped = errors.New("dropped")

// passage stands between an agent and a server. A hook that returns true ends the
// request there: before the server saw it, or after, with the answer lost.
type passage struct {
	url    string
	mu     sync.Mutex
	counts func(r *http.Request) bool
	hook   func(r *http.Request, n int, at place) bool
	seen   int
}

// number is the key of a request's number among those that count.
type number struct{}

// on has the hook called for the requests that count, numbered from 1 in the order
// in which they came.
func (p *passage) on(counts func(r *http.Request) bool, hook func(r *http.Request, n int, at place) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts, p.hook = counts, hook
}

// count is how many requests counted so far.
func (p *passage) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen
}

// numbered gives a request that counts its number, and others none.
func (p *passage) numbered(r *http.Request) *http.Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.counts == nil || !p.counts(r) {
		return r
	}
	p.seen++
	return r.WithContext(context.WithValue(r.Context(), number{}, p.seen))
}

func (p *passage) drops(r *http.Request, at place) bool {
	n, ok := r.Context().Value(number{}).(int)
	p.mu.Lock()
	hook := p.hook
	p.mu.Unlock()
	return ok && hook(r, n, at)
}

// passageTo opens a passage to a server that transport reaches.
func passageTo(t testing.TB, target string, transport http.RoundTripper) *passage {
	t.Helper()
	to, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	p := &passage{}
	through := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(to) },
		Transport:     transport,
		FlushInterval: -1, // a watch is told at once
		ModifyResponse: func(r *http.Response) error {
			if p.drops(r.Request, after) {
				return errDropped
			}
			return nil
		},
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r = p.numbered(r)
		if p.drops(r, before) {
			panic(http.ErrAbortHandler)
		}
		through.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.CloseClientConnections) // its watches would never end
	p.url = srv.URL
	return p
}

// toCluster opens a passage to the rig's API server, as one of its users, and
// returns the kubeconfig of whoever goes through it.
func toCluster(t testing.TB, rig *kuberig.Rig, user, dir string) (*passage, string) {
	t.Helper()
	cfg := rig.Config(user)
	transport, err := rest.TransportFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	p := passageTo(t, cfg.Host, transport)
	file := filepath.Join(dir, "passage.kubeconfig")
	text := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c","clusters":[{"name":"c","cluster":{"server":%q}}],
		"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],"users":[{"name":"u","user":{}}]}`, p.url)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return p, file
}

// changes tells whether a request is meant to change something.
func changes(r *http.Request) bool {
	return r.Method != http.MethodGet && r.Method != http.MethodHead
}
