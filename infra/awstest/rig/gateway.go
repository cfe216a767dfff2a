package rig

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"time"
)

// Serve gives the stack's API a plain URL on loopback until ctx ends, and returns
// it. The local AWS tells its APIs apart by the Host header, which few clients
// can be made to send.
func (s Stack) Serve(ctx context.Context, addr string) (string, error) {
	target, err := url.Parse(s.Endpoint)
	if err != nil {
		return "", fmt.Errorf("serve the API: %w", err)
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return "", fmt.Errorf("serve the API: %w", err)
	}
	if a, ok := l.Addr().(*net.TCPAddr); !ok || !a.IP.IsLoopback() {
		return "", errors.Join(fmt.Errorf("serve the API: %s is not loopback: the local AWS takes any credentials", l.Addr()), l.Close())
	}
	host := s.APIID + ".execute-api.localhost:" + target.Port()
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 100
	proxy := &httputil.ReverseProxy{
		Transport: transport,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = target.Scheme, target.Host, host
		},
		ErrorLog: log.New(io.Discard, "", 0), // a client that leaves is no news
	}
	srv := &http.Server{Handler: proxy, ReadHeaderTimeout: 10 * time.Second}
	context.AfterFunc(ctx, func() { _ = srv.Close() })
	go func() { _ = srv.Serve(l) }() // until closed
	return "http://" + l.Addr().String(), nil
}
