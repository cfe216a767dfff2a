package notify

import (
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/alert"
)

// TestUpgrades: a receiver that answers with another protocol, and keeps its connection, has
// answered: nobody waits for what it says in that, which no timeout would end.
func TestUpgrades(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{KindWebhook, KindAlertmanager} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			p := setup(t)
			over := make(chan struct{})
			s := newSite(t, p, func(w http.ResponseWriter, _ *http.Request, _ int) {
				conn, _, err := http.NewResponseController(w).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: other\r\n\r\n")
				<-over
				_ = conn.Close()
			})
			defer close(over)
			r, _ := p.receiver(Spec{Name: "r", Kind: kind, Timeout: alert.Duration(MinTimeout)}.at(s.URL))
			p.tell(alert.TypeFiring, p.alert("a"))
			if err := p.Follow(t.Context(), stream); err != nil {
				t.Fatal(err)
			}
			select {
			case err := <-p.delivering(r):
				if err != nil {
					t.Fatal(err)
				}
			case <-time.After(20 * time.Second):
				t.Fatal("it is waited for past its timeout")
			}
			if d := p.deliveries(r, Pending); len(d) != 1 || d[0].LastStatus != http.StatusSwitchingProtocols || d[0].LastError != "answered 101" {
				t.Errorf("%+v", p.deliveries(r, ""))
			}
		})
	}
}

// at is the spec with where its kind is told.
func (sp Spec) at(url string) Spec {
	if sp.URL = url; sp.Kind == KindAlertmanager {
		sp.URL, sp.URLs = "", []string{url}
	}
	return sp
}
