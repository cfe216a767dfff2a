package notify

import (
	"encoding/json"
	"net/url"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/alert"
)

// TestLinks: what is told outside has links that lead somewhere from there, or none; a
// webhook's are paths where the plane does not know its own URL.
func TestLinks(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		base, runbook      string
		annotated, webhook string
	}{
		"a shipped rule's":         {"https://plane.example/ops", "/docs/runbooks/x.md", "https://plane.example/ops/docs/runbooks/x.md", "https://plane.example/ops/docs/runbooks/x.md"},
		"with no URL of the plane": {"", "/docs/runbooks/x.md", "", "/docs/runbooks/x.md"},
		"somebody's own":           {"https://plane.example", "https://books.example/x", "https://books.example/x", "https://books.example/x"},
		"and no URL of the plane":  {"", "https://books.example/x", "https://books.example/x", "https://books.example/x"},
		"none":                     {"https://plane.example", "", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := setup(t)
			p.Base = tt.base
			am, hook := newFake(t, p), newSite(t, p, nil)
			p.receiver(Spec{Name: "am", Kind: KindAlertmanager, URLs: []string{am.URL}})
			p.receiver(Spec{Name: "hook", Kind: KindWebhook, URL: hook.URL})
			a := p.alert("hot")
			a.Runbook, a.Operation = tt.runbook, "op_1"
			p.tell(alert.TypeFiring, a)
			p.run()
			for _, got := range am.alerts {
				if got.Annotations["runbook_url"] != tt.annotated || (got.GeneratorURL == "") != (tt.base == "") {
					t.Errorf("pushed %+v", got)
				}
				for _, link := range []string{got.Annotations["runbook_url"], got.GeneratorURL} {
					if u, err := url.Parse(link); link != "" && (err != nil || !u.IsAbs()) {
						t.Errorf("link %q", link)
					}
				}
			}
			var m struct {
				Data struct {
					Runbook string
					Links   map[string]string
				}
			}
			if err := json.Unmarshal(hook.all()[0].body, &m); err != nil {
				t.Fatal(err)
			}
			want := map[string]string{"alert": tt.base + "/v1/alerts/" + a.ID, "rule": tt.base + "/v1/rules/rul_1", "operation": tt.base + "/v1/operations/op_1"}
			if tt.webhook != "" {
				want["runbook"] = tt.webhook
			}
			if d := cmp.Diff(want, m.Data.Links); d != "" || m.Data.Runbook != tt.runbook {
				t.Errorf("runbook %s, links (-want +got):\n%s", m.Data.Runbook, d)
			}
		})
	}
}
