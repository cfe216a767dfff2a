//go:build alertmanagertest

package notify

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/alert"
)

// TestRealAlertmanager: an Alertmanager at OPSPLANE_ALERTMANAGER (a URL on loopback)
// knows what fires, with its labels and links, and that it is over. It keeps what it
// is told: each run has alerts of its own.
func TestRealAlertmanager(t *testing.T) {
	t.Parallel()
	base := os.Getenv("OPSPLANE_ALERTMANAGER")
	if base == "" {
		t.Fatal("OPSPLANE_ALERTMANAGER is not set: this test wants an Alertmanager")
	}
	p := setup(t)
	p.advance(time.Since(t0) - 10*time.Second) // it goes by the time
	p.receiver(Spec{Name: "am", Kind: KindAlertmanager, URLs: []string{base}, Labels: map[string]string{"run": time.Now().Format("150405.000000")}})
	a, b := p.alert("hot"), p.alert("cold")
	p.tell(alert.TypeFiring, a, b)
	p.run()
	type listed struct {
		Labels       map[string]string
		Annotations  map[string]string
		GeneratorURL string
		EndsAt       time.Time
		Status       struct{ State string }
	}
	list := func() map[string]listed {
		rs, err := http.Get(base + "/api/v2/alerts?filter=run%3D%22" + labelsOf(&must(p.Receivers(t.Context()))[0], a)["run"] + "%22")
		if err != nil {
			t.Fatal(err)
		}
		defer rs.Body.Close()
		var all []listed
		if err := json.NewDecoder(rs.Body).Decode(&all); err != nil {
			t.Fatal(err)
		}
		out := map[string]listed{}
		for _, x := range all {
			out[x.Labels["alertname"]] = x
		}
		return out
	}
	got := list()
	if len(got) != 2 || got["hot"].GeneratorURL != "https://plane.example/v1/alerts/"+a.ID || got["hot"].Annotations["runbook_url"] != a.Runbook ||
		got["hot"].Labels["severity"] != "error" || got["hot"].Labels["node"] != "n1" || time.Until(got["hot"].EndsAt) < 3*time.Minute {
		t.Errorf("it knows %+v", got)
	}
	p.advance(time.Second)
	p.tell(alert.TypeResolved, a)
	p.run()
	var left []string
	for name := range list() {
		left = append(left, name)
	}
	if diff := cmp.Diff([]string{"cold"}, left); diff != "" {
		t.Error(diff)
	}
	p.advance(2 * time.Minute)
	p.serve()
	if end := list()["cold"].EndsAt; time.Until(end) < 5*time.Minute {
		t.Errorf("told again, it ends at %s", end)
	}
	r := must(p.Test(t.Context(), call, "am"))
	if !r.Taken || r.Status != http.StatusOK {
		t.Errorf("a test came to %+v", r)
	}
}

// TestRealAlertmanagerTellsAlertsApart: it takes labels of all kinds, and the end of one
// alert leaves those whose labels are nearly the same.
func TestRealAlertmanagerTellsAlertsApart(t *testing.T) {
	t.Parallel()
	base := os.Getenv("OPSPLANE_ALERTMANAGER")
	if base == "" {
		t.Fatal("OPSPLANE_ALERTMANAGER is not set: this test wants an Alertmanager")
	}
	p := setup(t)
	p.advance(time.Since(t0) - 10*time.Second)
	run := time.Now().Format("150405.000000") + "-apart"
	r, _ := p.receiver(Spec{Name: "am", Kind: KindAlertmanager, URLs: []string{base}, Labels: map[string]string{"run": run}})
	var alerts []*alert.Alert
	for i, d := range []string{"1", "2", "", "(other)", "(other)", "\"\"", "ä\x00\n", "\u200b"} {
		a := p.alert(fmt.Sprint("hot", i))
		a.Rule, a.Labels = "hot", map[string]string{"d": "rule", "severity": "page"}
		a.Group, a.Folded = map[string]string{"d": d, "group_d": "x", "run": "y", "folded": "z"}, i == 4
		alerts = append(alerts, a)
	}
	p.tell(alert.TypeFiring, alerts...)
	p.run()
	for left := len(alerts); ; left-- {
		rs, err := http.Get(base + "/api/v2/alerts?filter=run%3D%22" + run + "%22")
		if err != nil {
			t.Fatal(err)
		}
		var all []struct{ Labels map[string]string }
		err = json.NewDecoder(rs.Body).Decode(&all)
		_ = rs.Body.Close()
		if err != nil || len(all) != left {
			t.Fatalf("it knows %d of %d, %v: %v", len(all), left, err, all)
		}
		if left == 0 {
			break
		}
		if l := all[0].Labels; l["severity"] != "error" || l["rule_severity"] != "page" || l["group_run"] != "y" || l["group_folded"] != "z" {
			t.Errorf("labels %v", l)
		}
		p.advance(10 * time.Millisecond)
		p.tell(alert.TypeResolved, alerts[left-1])
		p.run()
	}
	if n := len(p.deliveries(r, Delivered)); n != len(alerts) {
		t.Errorf("%d are over", n)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
