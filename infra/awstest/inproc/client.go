package inproc

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"testing"
)

// Call makes one call of the API as the administrator, decodes a good answer
// into into (nil: not), and returns its status; 0 when there was none.
func (d *Deployment) Call(t testing.TB, method, path string, body, into any) int {
	t.Helper()
	var rd io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		rd = bytes.NewReader(b)
	}
	r, err := http.NewRequestWithContext(t.Context(), method, d.URL+path, rd)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+d.Token)
	r.Header.Set("Content-Type", "application/json")
	resp, err := d.client.Do(r)
	if err != nil {
		t.Log(err)
		return 0
	}
	b, err := io.ReadAll(resp.Body)
	if cerr := resp.Body.Close(); err != nil || cerr != nil {
		t.Log(err, cerr)
		return 0
	}
	if into != nil && resp.StatusCode < http.StatusMultipleChoices {
		if err := json.Unmarshal(b, into); err != nil {
			t.Errorf("%s %s: %v in %s", method, path, err, b)
		}
	} else if resp.StatusCode >= http.StatusBadRequest {
		t.Logf("%s %s: %d %s", method, path, resp.StatusCode, b)
	}
	return resp.StatusCode
}
