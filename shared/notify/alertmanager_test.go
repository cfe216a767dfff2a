package notify

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/event"
)

// fake holds requests to what Alertmanager's openapi.yaml (API v2) says of
// postableAlerts, and to what its handler asks beyond that; it keeps alerts by
// their labels, as that does.
type fake struct {
	*site
	mu     sync.Mutex
	alerts map[string]push
	refuse string // alertname that it refuses
	broken bool
}

func newFake(t testing.TB, p *plane) *fake {
	t.Helper()
	f := &fake{alerts: map[string]push{}}
	f.site = newSite(t, p, nil)
	f.answer = func(w http.ResponseWriter, r *http.Request, n int) {
		if f.isBroken() {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		if err := f.take(r, f.all()[n-1].body); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
	}
	return f
}

func (f *fake) isBroken() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.broken
}

func (f *fake) breaks(b bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.broken = b
}

func (f *fake) take(r *http.Request, body []byte) error {
	if r.Method != http.MethodPost || r.URL.Path != "/api/v2/alerts" || r.Header.Get("Content-Type") != "application/json" {
		return fmt.Errorf("%s %s %s", r.Method, r.URL.Path, r.Header.Get("Content-Type"))
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	var list []push
	if err := dec.Decode(&list); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var refused error
	for _, a := range list {
		if len(a.Labels) == 0 || a.Labels["alertname"] == "" || a.StartsAt.IsZero() || a.EndsAt == nil || a.EndsAt.Before(a.StartsAt) {
			return fmt.Errorf("alert %+v", a)
		}
		if _, err := url.ParseRequestURI(a.GeneratorURL); a.GeneratorURL != "" && err != nil {
			return err
		}
		for _, set := range []map[string]string{a.Labels, a.Annotations} {
			for k, v := range set {
				if !labelForm.MatchString(k) || v == "" {
					return fmt.Errorf("label %q=%q", k, v)
				}
			}
		}
		if a.Labels["alertname"] == f.refuse { // the others of the batch are taken
			refused = fmt.Errorf("refused")
			continue
		}
		f.alerts[labelsKey(a.Labels)] = a
	}
	return refused
}

// labelsKey is what an Alertmanager tells alerts apart by.
func labelsKey(labels map[string]string) string {
	var id []string
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		id = append(id, k+"="+labels[k])
	}
	return strings.Join(id, ",")
}

// firing are the alerts that have not ended at the time.
func (f *fake) firing(at time.Time) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := []string{}
	for _, a := range f.alerts {
		if a.EndsAt.After(at) {
			out = append(out, a.Labels["alertname"])
		}
	}
	slices.Sort(out)
	return out
}

// TestAlertmanager: an alert that fires for an hour is known to the Alertmanager all
// the time, also across an outage of the plane shorter than its patience, and is over
// when it is over.
func TestAlertmanager(t *testing.T) {
	t.Parallel()
	p := setup(t)
	am := newFake(t, p)
	r, _ := p.receiver(Spec{Name: "am", Kind: KindAlertmanager, URLs: []string{am.URL + "/"}, Labels: map[string]string{"plane": "eu"}})
	a, b := p.alert("hot"), p.alert("cold")
	b.Group = map[string]string{"severity": "x", "team": "y"}
	p.tell(alert.TypeFiring, a, b)
	p.run()
	one := *p.deliveries(r, Active)[0].Push
	if one.Labels["alertname"] == "hot" {
		one = *p.deliveries(r, Active)[1].Push
	}
	want := push{
		Labels: map[string]string{"alertname": "cold", "severity": "error", "cluster": stream, "team": "infra", "group_team": "y", "group_severity": "x", "plane": "eu"},
		Annotations: map[string]string{"summary": "cold of n1", "runbook_url": "https://books.example/cold",
			"description": "3 matching events since 2076-07-01T12:00:00Z, the first about node n1 (" + b.ID + ")"},
		StartsAt: t0, GeneratorURL: "https://plane.example/v1/alerts/" + b.ID,
	}
	if diff := cmp.Diff(want, one); diff != "" {
		t.Error(diff)
	}
	for range 60 * 6 {
		p.advance(10 * time.Second)
		p.serve()
		if diff := cmp.Diff([]string{"cold", "hot"}, am.firing(p.clock())); diff != "" {
			t.Fatalf("after %s: %s", p.clock().Sub(t0), diff)
		}
	}
	if n := len(am.all()); n < 60 || n > 80 {
		t.Errorf("%d pushes in an hour", n)
	}
	p.advance(3 * time.Minute)
	p.serve()
	p.tell(alert.TypeResolved, a)
	am.breaks(true)
	p.run()
	am.breaks(false)
	p.advance(time.Minute)
	p.serve()
	if diff := cmp.Diff([]string{"cold"}, am.firing(p.clock())); diff != "" {
		t.Error(diff)
	}
	// What resolved while the receiver was disabled does not fire for ever.
	off := false
	sp := r.Spec
	sp.Enabled = &off
	if _, err := p.Update(t.Context(), call, r.ID, 0, sp); err != nil {
		t.Fatal(err)
	}
	p.tell(alert.TypeResolved, b)
	p.run()
	if _, err := p.Update(t.Context(), call, r.ID, 0, r.Spec); err != nil {
		t.Fatal(err)
	}
	p.advance(2 * time.Minute)
	p.run()
	if diff := cmp.Diff([]string{}, am.firing(p.clock())); diff != "" {
		t.Error(diff)
	}
	if n := len(p.deliveries(r, Delivered)); n != 2 {
		t.Errorf("%d of 2 are over", n)
	}
}

// TestWhereADeviceIs: an Alertmanager is told the node of a device by an annotation, so
// that the alert stays the same one wherever the device goes.
func TestWhereADeviceIs(t *testing.T) {
	t.Parallel()
	p := setup(t)
	am := newFake(t, p)
	r, _ := p.receiver(Spec{Name: "am", Kind: KindAlertmanager, URLs: []string{am.URL}})
	a := p.alert("fatal-xid")
	a.Group, a.Subject, a.Node, a.NodeUID = map[string]string{"device": "dev_1"}, event.Subject{Kind: "device", ID: "dev_1", Name: "GPU-1"}, "gpu-17", "u-17"
	p.tell(alert.TypeFiring, a)
	p.run()
	got := p.deliveries(r, Active)[0].Push
	if got.Annotations["node"] != "gpu-17" || !strings.Contains(got.Annotations["description"], "about device GPU-1 on node gpu-17 (") {
		t.Errorf("annotations %v", got.Annotations)
	}
	labels := map[string]string{"alertname": "fatal-xid", "severity": "error", "cluster": stream, "team": "infra", "device": "dev_1"}
	if diff := cmp.Diff(labels, got.Labels); diff != "" {
		t.Error(diff)
	}
}

// TestRefusedAlert: one alert that an Alertmanager refuses takes none with it.
func TestRefusedAlert(t *testing.T) {
	t.Parallel()
	p := setup(t)
	am := newFake(t, p)
	am.refuse = "bad"
	r, _ := p.receiver(Spec{Name: "am", Kind: KindAlertmanager, URLs: []string{am.URL}})
	p.tell(alert.TypeFiring, p.alert("good"), p.alert("bad"), p.alert("better"))
	p.run()
	if diff := cmp.Diff([]string{"better", "good"}, am.firing(p.clock())); diff != "" {
		t.Error(diff)
	}
	if n, m := len(p.deliveries(r, Active)), len(p.deliveries(r, Pending)); n != 2 || m != 1 {
		t.Errorf("%d are known, %d wait", n, m)
	}
}

// TestClocks: a clock that is set back, or ahead, neither loses a message nor sends it for
// ever. What failed before is sent with what is new, or at the next start: no pause outlasts
// the clock that it was made by.
func TestClocks(t *testing.T) {
	t.Parallel()
	for name, jump := range map[string]time.Duration{"back an hour": -time.Hour, "back a year": -365 * 24 * time.Hour, "ahead a week": 7 * 24 * time.Hour} {
		for _, kind := range []string{KindWebhook, KindAlertmanager} {
			t.Run(name+", "+kind, func(t *testing.T) {
				t.Parallel()
				p := setup(t)
				fails := true
				s := newSite(t, p, func(w http.ResponseWriter, _ *http.Request, _ int) {
					if fails {
						w.WriteHeader(500)
					}
				})
				r, _ := p.receiver(Spec{Name: "r", Kind: kind}.at(s.URL))
				taken := func() {
					t.Helper()
					if d := p.deliveries(r, Pending); len(d) != 0 {
						t.Fatalf("they wait still: %+v", d)
					}
				}
				p.advance(time.Minute)
				p.serve()
				p.tell(alert.TypeFiring, p.alert("before"))
				p.run()
				p.advance(jump)
				p.tell(alert.TypeFiring, p.alert("after"))
				p.run()
				fails = false
				p.advance(pauses[1] * 2) // by then what failed again is due
				p.run()
				taken()
				for range 4 * 60 {
					p.advance(time.Minute)
					p.run()
				}
				if n := len(s.all()); kind == KindWebhook && n > 5 {
					t.Errorf("they came %d times", n)
				}
				fails = true
				p.advance(time.Minute)
				p.tell(alert.TypeFiring, p.alert("last"))
				p.run()
				p.advance(jump)
				fails = false
				if err := p.Release(t.Context()); err != nil {
					t.Fatal(err)
				}
				p.serve()
				taken()
			})
		}
	}
}
