package awsclient

import (
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestLoadWithAndWithoutBundle: the client works whether or not the environment
// names a CA bundle.
func TestLoadWithAndWithoutBundle(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }))
	defer server.Close()
	bundle := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(bundle, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		bundle string
		works  bool
	}{{"", false}, {bundle, true}} {
		t.Setenv(EndpointEnv, server.URL)
		t.Setenv("AWS_CA_BUNDLE", tt.bundle)
		c, err := Load(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, strings.NewReader("hello"))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := c.HTTPClient.Do(r)
		if (err == nil) != tt.works {
			t.Errorf("bundle %q: %v", tt.bundle, err)
		}
		if err == nil {
			_ = resp.Body.Close()
		}
	}
}

type doer func(*http.Request) (*http.Response, error)

func (d doer) Do(r *http.Request) (*http.Response, error) { return d(r) }

// TestBufferedBodyOutlivesItsSource: what is sent does not depend on the body
// that the SDK may close, and can be sent again.
func TestBufferedBodyOutlivesItsSource(t *testing.T) {
	t.Parallel()
	var got []string
	c := Buffered(doer(func(r *http.Request) (*http.Response, error) {
		for range 2 {
			body, err := r.GetBody()
			if err != nil {
				return nil, err
			}
			b, err := io.ReadAll(body)
			if err != nil {
				return nil, err
			}
			got = append(got, string(b))
		}
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
	}))
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://127.0.0.1/", io.NopCloser(strings.NewReader("hello")))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || got[0] != "hello" || got[1] != "hello" {
		t.Errorf("sent %q", got)
	}
}
