//go:build kubetest

package kuberig

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Proxy stands between clients and the API server, and makes what lies between
// them fail: see Inject.
type Proxy struct {
	r   *Rig
	url string

	mu      sync.Mutex // of what follows
	faults  []*Injected
	watches map[*http.Request]context.CancelFunc
}

// Fault is what happens to requests. Without any of its effects a request passes.
type Fault struct {
	// Match picks the requests: see On and Watches. None means all.
	Match func(*http.Request) bool
	// Times is how many requests it happens to; 0: all.
	Times int

	// Delay is for how long a request is held back from the API server.
	Delay time.Duration
	// Until, if set, holds a request back until it is closed.
	Until <-chan struct{}
	// Cut breaks the connection: the API server never hears of the request.
	Cut bool
	// Status answers in the API server's place, as it does: 429, 500, 503, ...
	Status int
	// RetryAfter is sent with Status, in whole seconds; 0: not sent.
	RetryAfter time.Duration
	// Then is called when the API server has done what was asked, before the answer
	// goes on its way.
	Then func()
	// Late is for how long the answer is held back: the API server has done what
	// was asked.
	Late time.Duration
	// Drop breaks the connection in place of the answer: the API server has done
	// what was asked, and nobody is told.
	Drop bool
}

// Injected is a fault in effect.
type Injected struct {
	Fault
	p    *Proxy
	hits int
	hit  chan struct{}
}

// On matches requests by their method and a part of their path: "POST" and
// "/eviction", "PATCH" and "/nodes/".
func On(method, part string) func(*http.Request) bool {
	return func(q *http.Request) bool { return q.Method == method && strings.Contains(q.URL.Path, part) }
}

// Watches matches watches.
func Watches(q *http.Request) bool {
	return q.URL.Query().Get("watch") == "true" || q.URL.Query().Get("watch") == "1"
}

// Proxy starts a proxy on loopback that passes requests on as the user, or as
// whoever a request's own bearer token says. It ends with the test.
func (r *Rig) Proxy(user string) *Proxy {
	r.t.Helper()
	p := &Proxy{r: r, watches: map[*http.Request]context.CancelFunc{}}
	config := r.Config(user)
	target, err := url.Parse(config.Host)
	if err != nil {
		r.t.Fatalf("start a proxy: %v", err)
	}
	asUser, err := rest.TransportFor(config)
	if err != nil {
		r.t.Fatalf("start a proxy: %v", err)
	}
	asToken, err := rest.TransportFor(rest.AnonymousClientConfig(config))
	if err != nil {
		r.t.Fatalf("start a proxy: %v", err)
	}
	cert, err := tls.LoadX509KeyPair(filepath.Join(r.dir, "pki", "apiserver.crt"), filepath.Join(r.dir, "pki", "apiserver.key"))
	if err != nil {
		r.t.Fatalf("start a proxy: %v", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.t.Fatalf("start a proxy: %v", err)
	}
	p.url = "https://" + l.Addr().String()
	pass := &httputil.ReverseProxy{
		Rewrite:       func(q *httputil.ProxyRequest) { q.SetURL(target) },
		FlushInterval: -1, // a watch's events go on at once
		Transport: roundTripper(func(q *http.Request) (*http.Response, error) {
			agent := q.UserAgent() // the user's transport would put its own only where there is none
			if agent == "" {
				q.Header.Set("User-Agent", "none")
			}
			if q.Header.Get("Authorization") != "" {
				return asToken.RoundTrip(q)
			}
			return asUser.RoundTrip(q)
		}),
		ModifyResponse: answered,
		ErrorHandler:   func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
		ErrorLog:       log.New(io.Discard, "", 0),
	}
	// HTTP/1.1: a request has a connection to be cut. Over HTTP/2 a cut would end
	// all others too.
	s := &http.Server{Handler: p.handler(pass), ErrorLog: log.New(io.Discard, "", 0), TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){}}
	tl := tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"http/1.1"}, MinVersion: tls.VersionTLS12})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(tl) // ends by Close
	}()
	r.t.Cleanup(func() {
		_ = s.Close()
		<-done
	})
	return p
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(q *http.Request) (*http.Response, error) { return f(q) }

// URL is the proxy's.
func (p *Proxy) URL() string { return p.url }

// Kubeconfig is the path of one for clients behind the proxy.
func (p *Proxy) Kubeconfig() string {
	p.r.t.Helper()
	ca, err := clientcmd.LoadFromFile(p.r.Kubeconfig(Admin))
	if err != nil {
		p.r.t.Fatalf("write kubeconfig of a proxy: %v", err)
	}
	var authority []byte
	for _, c := range ca.Clusters {
		authority = c.CertificateAuthorityData
	}
	path := filepath.Join(p.r.t.TempDir(), "kubeconfig")
	if err := writeKubeconfig(path, p.url, authority, clientcmdapi.AuthInfo{}); err != nil {
		p.r.t.Fatal(err)
	}
	return path
}

func writeKubeconfig(path, server string, authority []byte, who clientcmdapi.AuthInfo) error {
	const name = "kubetest"
	c := clientcmdapi.NewConfig()
	c.Clusters[name] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: authority}
	c.AuthInfos[name] = &who
	c.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	c.CurrentContext = name
	if err := clientcmd.WriteToFile(*c, path); err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	return nil
}

// Client is a client behind the proxy.
func (p *Proxy) Client() kubernetes.Interface {
	p.r.t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", p.Kubeconfig())
	if err != nil {
		p.r.t.Fatalf("make client of a proxy: %v", err)
	}
	config.QPS, config.Burst = -1, -1
	c, err := kubernetes.NewForConfig(config)
	if err != nil {
		p.r.t.Fatalf("make client of a proxy: %v", err)
	}
	return c
}

// Inject puts a fault into effect. Of several that match a request the one that
// was injected first happens.
func (p *Proxy) Inject(f Fault) *Injected {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := &Injected{Fault: f, p: p, hit: make(chan struct{})}
	p.faults = append(p.faults, i)
	return i
}

// Remove ends a fault.
func (i *Injected) Remove() {
	i.p.mu.Lock()
	defer i.p.mu.Unlock()
	i.p.faults = slices.DeleteFunc(i.p.faults, func(f *Injected) bool { return f == i })
}

// Hits is how many requests it has happened to.
func (i *Injected) Hits() int {
	i.p.mu.Lock()
	defer i.p.mu.Unlock()
	return i.hits
}

// Hit is closed when it happens first.
func (i *Injected) Hit() <-chan struct{} { return i.hit }

// CutWatches breaks the watches that run now; new ones pass.
func (p *Proxy) CutWatches() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, cut := range p.watches {
		cut()
	}
	return len(p.watches)
}

// fault finds what happens to a request.
func (p *Proxy) fault(q *http.Request) *Injected {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range p.faults {
		if f.Times > 0 && f.hits >= f.Times || f.Match != nil && !f.Match(q) {
			continue
		}
		if f.hits++; f.hits == 1 {
			close(f.hit)
		}
		return f
	}
	return nil
}

// faultKey is under which a request's fault is kept in its context.
type faultKey struct{}

func (p *Proxy) handler(pass http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		ctx, cancel := context.WithCancel(q.Context())
		defer cancel()
		if Watches(q) {
			p.mu.Lock()
			p.watches[q] = cancel
			p.mu.Unlock()
			defer func() {
				p.mu.Lock()
				defer p.mu.Unlock()
				delete(p.watches, q)
			}()
		}
		f := p.fault(q)
		if f == nil {
			pass.ServeHTTP(w, q.WithContext(ctx))
			return
		}
		hold(ctx, f.Delay, f.Until)
		switch {
		case f.Cut:
			panic(http.ErrAbortHandler)
		case f.Status != 0:
			refuse(w, f.Status, f.RetryAfter)
			return
		}
		pass.ServeHTTP(w, q.WithContext(context.WithValue(ctx, faultKey{}, f)))
	})
}

// answered is called when the API server has answered.
func answered(a *http.Response) error {
	f, ok := a.Request.Context().Value(faultKey{}).(*Injected)
	if !ok {
		return nil
	}
	if f.Then != nil {
		f.Then()
	}
	hold(a.Request.Context(), f.Late, nil)
	if f.Drop {
		return http.ErrAbortHandler
	}
	return nil
}

func hold(ctx context.Context, d time.Duration, until <-chan struct{}) {
	if until != nil {
		select {
		case <-until:
		case <-ctx.Done():
		}
	}
	if d > 0 {
		select {
		case <-time.After(d):
		case <-ctx.Done():
		}
	}
}

// refuse answers as the API server does.
func refuse(w http.ResponseWriter, code int, after time.Duration) {
	status := metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: int32(code),
		Message: "injected by the test", Reason: map[int]metav1.StatusReason{
			http.StatusTooManyRequests: metav1.StatusReasonTooManyRequests, http.StatusInternalServerError: metav1.StatusReasonInternalError,
			http.StatusServiceUnavailable: metav1.StatusReasonServiceUnavailable, http.StatusGatewayTimeout: metav1.StatusReasonTimeout,
			http.StatusConflict: metav1.StatusReasonConflict, http.StatusForbidden: metav1.StatusReasonForbidden, http.StatusUnauthorized: metav1.StatusReasonUnauthorized,
			http.StatusNotFound: metav1.StatusReasonNotFound,
		}[code],
	}
	if after > 0 {
		status.Details = &metav1.StatusDetails{RetryAfterSeconds: int32(after / time.Second)}
		w.Header().Set("Retry-After", strconv.Itoa(int(after/time.Second)))
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(status) // the client may have gone
}
