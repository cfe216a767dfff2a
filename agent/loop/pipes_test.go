package loop

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"testing"
)

// serve runs h on connections in memory, so that a test's clock may be the
// bubble's, and returns a client that reaches it.
func serve(t *testing.T, h http.Handler) *http.Client {
	t.Helper()
	l := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
	srv := &http.Server{Handler: h, ErrorLog: nil}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		_ = srv.Serve(l)
	}()
	tr := &http.Transport{DialContext: l.dial, MaxIdleConnsPerHost: 32}
	t.Cleanup(func() {
		tr.CloseIdleConnections()
		_ = srv.Close()
		<-stopped
	})
	return &http.Client{Transport: tr}
}

type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (l *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	c, s := net.Pipe()
	select {
	case l.conns <- s:
		return c, nil
	case <-l.done:
	case <-ctx.Done():
	}
	return nil, errors.New("connection refused")
}

func (l *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *pipes) Close() error   { l.once.Do(func() { close(l.done) }); return nil }
func (l *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }
