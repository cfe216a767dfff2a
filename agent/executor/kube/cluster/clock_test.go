package cluster

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestServerNow: every answer of the API server tells its time. What it is by now is
// counted on from there, whatever the agent's own clock is set to.
func TestServerNow(t *testing.T) {
	t.Parallel()
	const ahead = 10 * time.Minute
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", time.Now().Add(ahead).UTC().Format(http.TimeFormat))
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"kind":"NodeList","apiVersion":"v1","items":[]}`))
	}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := "apiVersion: v1\nkind: Config\nclusters: [{name: a, cluster: {server: \"" + server.URL + "\"}}]\ncontexts: [{name: a, context: {cluster: a}}]\ncurrent-context: a\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	own := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	c, err := Open(Options{Kubeconfig: file, Now: func() time.Time { return own }})
	if err != nil {
		t.Fatal(err)
	}
	if got := c.ServerNow(); !got.Equal(own) {
		t.Errorf("before any answer: %s", got)
	}
	near := func(when string) {
		t.Helper()
		if off := time.Until(c.ServerNow()) - ahead; off.Abs() > 5*time.Second {
			t.Errorf("%s it is off by %s", when, off)
		}
	}
	if _, err := c.Client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	near("after an answer")
	c.NoteDate("")
	c.NoteDate("yesterday")
	near("after answers without a date")
}
