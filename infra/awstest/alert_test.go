//go:build awstest

package awstest

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
)

// alertView is an alert as the API shows it.
type alertView struct {
	ID        string            `json:"id"`
	State     string            `json:"state"`
	Operation string            `json:"operation"`
	Group     map[string]string `json:"group"`
	Evidence  []struct {
		Type string `json:"type"`
	} `json:"evidence"`
}

// TestAlertFires: a rule is written, an operation sets it off after a pause, its
// alert is acknowledged, and resolves when it is quiet: through the deployed
// functions, by the table's stream and the sweep.
func TestAlertFires(t *testing.T) {
	t.Parallel()
	p := deployed(t)
	c := p.register("alerts")
	p.agent(c, world(t, 2, false))
	n := p.nodes(c.ID, 2)[0]
	rule := map[string]any{"name": "cordoned-" + strings.ToLower(c.ID[len(c.ID)-8:]), "on": []string{"operation.succeeded"}, "when": `operation.type == "node.cordon"`,
		"clusters": []string{c.ID}, "group_by": map[string]string{"node": "event.subject.name"}, "for": "3s", "resolve_after": "15s"}
	made := p.call(http.MethodPost, "/v1/rules", rule)
	if made.Status != http.StatusCreated {
		t.Fatalf("create rule: %d %s", made.Status, made.Body)
	}
	o := p.create(request{Type: "node.cordon", Target: n.ID, Reason: "an alert"})
	p.finish(o.ID, 40*time.Second)
	var a alertView
	is := func(state string) func() bool {
		return func() bool {
			got := list[alertView](p, "/v1/alerts?state="+state+"&rule="+url.QueryEscape(rule["name"].(string)))
			if len(got) > 1 {
				t.Fatalf("%d alerts: %+v", len(got), got)
			}
			if len(got) == 1 {
				a = got[0]
			}
			return len(got) == 1
		}
	}
	eventually(t, 30*time.Second, "the alert to fire", is("firing"))
	if a.Operation != o.ID || a.Group["node"] == "" || len(a.Evidence) != 1 || a.Evidence[0].Type != "operation.succeeded" {
		t.Errorf("it is %+v", a)
	}
	if got := p.call(http.MethodPost, "/v1/alerts/"+a.ID+"/acknowledge", map[string]any{"note": "seen"}); got.Status >= 300 {
		t.Errorf("acknowledge: %d %s", got.Status, got.Body)
	}
	eventually(t, 90*time.Second, "the alert to resolve", is("resolved"))
	if got := p.call(http.MethodDelete, "/v1/rules/"+rule["name"].(string), nil); got.Status != http.StatusNoContent {
		t.Errorf("delete rule: %d %s", got.Status, got.Body)
	}
}
