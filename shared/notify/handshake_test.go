package notify

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/record"
)

// TestSlowHandshake: the receiver's timeout is for all of a try: how long its connection
// takes, and TLS, is among it, and bounded by nothing less.
func TestSlowHandshake(t *testing.T) {
	t.Parallel()
	cert := httptest.NewUnstartedServer(http.NotFoundHandler())
	cert.StartTLS()
	cert.Close()
	for name, c := range map[string]struct {
		dial, tls, timeout, took time.Duration
		err                      string
	}{
		"a handshake that takes long":      {0, 29 * time.Second, MaxTimeout, 29 * time.Second, ""},
		"a connection that takes long":     {28 * time.Second, time.Second, MaxTimeout, 29 * time.Second, ""},
		"both, and longer than the try":    {20 * time.Second, 20 * time.Second, MaxTimeout, MaxTimeout, "no answer in time"},
		"longer than a try that has less":  {0, 12 * time.Second, 10 * time.Second, 10 * time.Second, "no answer in time"},
		"as long as one of the usual time": {0, 12 * time.Second, 0, 12 * time.Second, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := &Service{Store: &record.Store{Now: time.Now}, roots: x509.NewCertPool()}
				s.roots.AddCert(cert.Certificate())
				tr := s.client(KindWebhook, "https").Transport.(*http.Transport)
				tr.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
					select {
					case <-time.After(c.dial):
					case <-ctx.Done():
						return nil, ctx.Err()
					}
					here, there := net.Pipe()
					go func() {
						defer func() { _ = there.Close() }()
						time.Sleep(c.tls)
						conn := tls.Server(there, &tls.Config{Certificates: cert.TLS.Certificates, MinVersion: tls.VersionTLS12})
						rq, err := http.ReadRequest(bufio.NewReader(conn))
						if err != nil {
							return // it was given up
						}
						if _, err := io.Copy(io.Discard, rq.Body); err == nil {
							_, _ = io.WriteString(conn, "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
						}
					}()
					return here, nil
				}
				began := time.Now()
				a := s.post(t.Context(), &Receiver{Spec: Spec{Kind: KindWebhook, Timeout: alert.Duration(c.timeout)}}, "https://example.com/", http.Header{}, []byte("{}"))
				if took := time.Since(began); a.err != c.err || took != c.took {
					t.Errorf("after %s: %+v", took, a)
				}
				time.Sleep(2 * MaxTimeout) // what was given up ends by itself
				tr.CloseIdleConnections()
			})
		})
	}
}
