package plane

import (
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// api asks an API server whether something is there: all that starting it takes.
type api struct {
	url    string
	client *http.Client
}

// newAPI is an administrator's.
func newAPI(pki, url string) (*api, error) {
	ca, err := readAuthority(pki)
	if err != nil {
		return nil, err
	}
	crt, key, err := ca.issue(pkix.Name{CommonName: admin, Organization: []string{masters}}, x509.ExtKeyUsageClientAuth)
	if err != nil {
		return nil, err
	}
	return &api{url: url, client: &http.Client{
		Timeout:   5 * time.Second,
		Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: clientTLS(ca, crt, key)},
	}}, nil
}

func clientTLS(ca *authority, crt []byte, key *ecdsa.PrivateKey) *tls.Config {
	roots := x509.NewCertPool()
	roots.AddCert(ca.crt)
	return &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{{Certificate: [][]byte{crt}, PrivateKey: key}}, MinVersion: tls.VersionTLS13}
}

// ok returns nil when a GET of the path is answered 200.
func (a *api) ok(ctx context.Context, path string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.url+path, nil)
	if err != nil {
		return err
	}
	resp, err := a.client.Do(req)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", path, resp.Status)
	}
	return nil
}
