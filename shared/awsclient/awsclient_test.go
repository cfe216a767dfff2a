package awsclient

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

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
