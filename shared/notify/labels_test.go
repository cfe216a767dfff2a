package notify

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/opsplane/opsplane/shared/alert"
)

// TestLabels: nothing that an alert is labelled with hides anything else.
func TestLabels(t *testing.T) {
	t.Parallel()
	type set = map[string]string
	for name, tt := range map[string]struct{ receiver, rule, group, want set }{
		"plain":                        {set{"plane": "eu"}, set{"team": "infra"}, set{"node": "n1"}, set{"plane": "eu", "team": "infra", "node": "n1"}},
		"a key like a rule's label":    {nil, set{"d": "1"}, set{"d": "2"}, set{"d": "1", "group_d": "2"}},
		"and another like its name":    {nil, set{"d": "1"}, set{"d": "2", "group_d": "3"}, set{"d": "1", "group_d": "3", "group_group_d": "2"}},
		"and a rule's label like that": {nil, set{"d": "1", "group_d": "4"}, set{"d": "2", "group_d": "3"}, set{"d": "1", "group_d": "4", "group_group_d": "2", "group_group_group_d": "3"}},
		"keys like every alert's":      {nil, nil, set{"alertname": "1", "severity": "2", "cluster": "3", "folded": "4"}, set{"group_alertname": "1", "group_severity": "2", "group_cluster": "3", "group_folded": "4"}},
		"a rule's labels like those":   {nil, set{"alertname": "1", "severity": "2", "cluster": "3"}, nil, set{"rule_alertname": "1", "rule_severity": "2", "rule_cluster": "3"}},
		"a receiver's, kept from then": {set{"cluster": "c", "severity": "s"}, nil, nil, set{"receiver_cluster": "c", "receiver_severity": "s"}},
		"a receiver's like the others": {set{"a": "1", "b": "2"}, set{"a": "3"}, set{"b": "4"}, set{"a": "1", "b": "2", "rule_a": "3", "group_b": "4"}},
		"no value":                     {nil, set{"d": ""}, set{"d": "2", "e": ""}, set{"group_d": "2"}},
		"no name":                      {nil, nil, set{"": "1", "a-b": "2", "group_a_b": "3", "ä": "4"}, set{"group_": "1", "group_group_a_b": "2", "group_a_b": "3", "group__": "4"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := maps.Clone(tt.want)
			maps.Copy(want, set{"alertname": "hot", "severity": "error", "cluster": stream})
			for range 20 { // no order of maps
				got := labelsOf(&Receiver{Spec: Spec{Labels: tt.receiver}}, &alert.Alert{Rule: "hot", Severity: "error", Cluster: stream, Labels: tt.rule, Group: tt.group})
				if d := cmp.Diff(want, got); d != "" {
					t.Fatalf("labels (-want +got):\n%s", d)
				}
			}
		})
	}
}

// TestLabelsTellAlertsApart: whatever a receiver, a rule and its keys are labelled
// with, two alerts have one set of labels only if they are of one group of one rule in
// one cluster, no value is lost, and an Alertmanager takes them.
func TestLabelsTellAlertsApart(t *testing.T) {
	t.Parallel()
	name := rapid.SampledFrom([]string{"d", "e", "group_d", "group_group_d", "rule_d", "rule_group_d", "receiver_d", "alertname", "severity", "cluster", "folded",
		"group_folded", "rule_severity", "a-b", "a_b", "", "ü"})
	value := rapid.OneOf(rapid.SampledFrom([]string{"", "1", "2", "(other)", "true", `""`}), rapid.String())
	rapid.Check(t, func(t *rapid.T) {
		labels := rapid.MapOfN(name, value, 0, 5)
		r := &Receiver{Spec: Spec{Labels: labels.Draw(t, "receiver's")}}
		type rule struct {
			name   string
			labels map[string]string
			keys   []string
		}
		var rules []rule
		for _, n := range []string{"hot", "cold"} {
			rules = append(rules, rule{n, labels.Draw(t, n+"'s"), rapid.SliceOfNDistinct(name, 0, 5, rapid.ID[string]).Draw(t, n+"'s keys")})
		}
		alertOf := func(label string) *alert.Alert {
			u := rapid.SampledFrom(rules).Draw(t, label+"'s rule")
			a := &alert.Alert{Rule: u.name, Severity: "error", Labels: u.labels, Group: map[string]string{}, Cluster: rapid.SampledFrom([]string{"", stream}).Draw(t, label+"'s cluster")}
			a.Folded = rapid.Bool().Draw(t, label+" is folded")
			for _, k := range u.keys {
				if a.Group[k] = "(other)"; !a.Folded {
					a.Group[k] = value.Draw(t, label+"'s "+k)
				}
			}
			return a
		}
		a, b := alertOf("a"), alertOf("b")
		la, lb := labelsOf(r, a), labelsOf(r, b)
		same := a.Rule == b.Rule && a.Cluster == b.Cluster && a.Folded == b.Folded && maps.Equal(a.Group, b.Group)
		if maps.Equal(la, lb) != same {
			t.Errorf("one alert: %t\n%v\n%v", same, la, lb)
		}
		if len(a.Group) == 0 {
			return
		}
		var want []string
		for _, m := range []map[string]string{r.Labels, a.Labels, a.Group} {
			want = slices.AppendSeq(want, maps.Values(m))
		}
		want = append(slices.DeleteFunc(want, func(v string) bool { return v == "" }), a.Rule, a.Severity, la["cluster"])
		if a.Folded {
			want = append(want, "true")
		}
		got := slices.Collect(maps.Values(la))
		slices.Sort(want)
		slices.Sort(got)
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("values (-want +got):\n%s", d)
		}
		for k := range la {
			if !labelForm.MatchString(k) {
				t.Errorf("label %q", k)
			}
		}
		var back map[string]string // as an Alertmanager reads them
		if data, err := json.Marshal(la); err != nil || json.Unmarshal(data, &back) != nil || !maps.Equal(la, back) {
			t.Errorf("read back: %v", back)
		}
	})
}

// TestOneResolveEndsOneAlert: of alerts whose labels and keys have one another's names,
// the end of one ends no other.
func TestOneResolveEndsOneAlert(t *testing.T) {
	t.Parallel()
	p := setup(t)
	am := newFake(t, p)
	p.receiver(Spec{Name: "am", Kind: KindAlertmanager, URLs: []string{am.URL}})
	var alerts []*alert.Alert
	for i, g := range []map[string]string{{"d": "1", "group_d": "x"}, {"d": "2", "group_d": "x"}, {"d": "", "group_d": "x"}, {"d": "(other)", "group_d": "(other)"}, {"d": "(other)", "group_d": "(other)"}} {
		a := p.alert("hot" + string(rune('a'+i)))
		a.Rule, a.Labels, a.Group, a.Folded = "hot", map[string]string{"d": "rule"}, g, i == 4
		alerts = append(alerts, a)
	}
	p.tell(alert.TypeFiring, alerts...)
	p.run()
	for left := len(alerts); ; left-- {
		if n := len(am.firing(p.clock())); n != left {
			t.Errorf("%d fire, want %d", n, left)
		}
		if left == 0 {
			break
		}
		p.advance(time.Second)
		p.tell(alert.TypeResolved, alerts[left-1])
		p.run()
	}
}

// TestLateResolve: that an alert is over, taken late, does not end what fires under its
// labels by then: the next alert of its group, one of a rule made anew under its name,
// or itself under labels that it had before.
func TestLateResolve(t *testing.T) {
	t.Parallel()
	for name, next := range map[string]func(p *plane, a *alert.Alert) *alert.Alert{
		"the next of its group": func(p *plane, a *alert.Alert) *alert.Alert {
			p.tell(alert.TypeResolved, a)
			b := p.alert("hot")
			b.ID = p.alert("next").ID
			return b
		},
		"a rule of its name": func(p *plane, a *alert.Alert) *alert.Alert {
			p.tell(alert.TypeResolved, a)
			b := p.alert("hot")
			b.ID, b.RuleID, b.GroupKey = p.alert("next").ID, "rul_2", "rul_2#k"
			return b
		},
		"itself": func(p *plane, a *alert.Alert) *alert.Alert {
			a.Severity = "critical"
			p.tell(alert.TypeFiring, a)
			p.run()
			p.advance(time.Second)
			a.Severity = "error"
			return a
		},
		"itself, told in one go": func(p *plane, a *alert.Alert) *alert.Alert {
			a.Severity = "critical"
			p.tell(alert.TypeFiring, a)
			a.Severity = "error"
			return a
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := setup(t)
			up, down := newFake(t, p), newFake(t, p)
			r, _ := p.receiver(Spec{Name: "am", Kind: KindAlertmanager, URLs: []string{up.URL, down.URL}})
			a := p.alert("hot")
			p.tell(alert.TypeFiring, a)
			p.run()
			down.breaks(true)
			p.advance(20 * time.Second)
			b := next(p, a)
			p.run()
			p.advance(3 * time.Second)
			p.tell(alert.TypeFiring, b)
			p.run()
			known := map[*fake]bool{}
			for i := range 120 { // from when it is known there, it stays so
				if i == 4 {
					down.breaks(false)
				}
				p.advance(time.Second)
				p.serve()
				for who, am := range map[string]*fake{"up": up, "was down": down} {
					got := cmp.Equal(am.severities(p.clock()), []string{"error"})
					if known[am] = known[am] || got && (am == up || i > 4); !got && known[am] || i > 90 && !known[am] {
						t.Fatalf("after %s the one that %s has %v", p.clock().Sub(t0), who, am.severities(p.clock()))
					}
				}
			}
			p.tell(alert.TypeResolved, b)
			p.run()
			for who, am := range map[string]*fake{"up": up, "was down": down} {
				if got := am.firing(p.clock()); len(got) != 0 {
					t.Errorf("over, and the one that %s has %v", who, got)
				}
			}
			if n := len(p.deliveries(r, Active)) + len(p.deliveries(r, Pending)); n != 0 {
				t.Errorf("%d are left to send", n)
			}
		})
	}
}

// TestDoubles: two receivers that tell one Alertmanager under the same labels know of each
// other, while both are told of alerts.
func TestDoubles(t *testing.T) {
	t.Parallel()
	off := false
	r := Receiver{ID: "rcv_1", Spec: Spec{Name: "r", Kind: KindAlertmanager, URLs: []string{"https://am.example/x", "https://b.example"}, Labels: map[string]string{"plane": "eu"}}}
	for name, c := range map[string]struct {
		with func(o *Receiver)
		is   bool
	}{
		"same":           {func(*Receiver) {}, true},
		"itself":         {func(o *Receiver) { o.ID = r.ID }, false},
		"written other":  {func(o *Receiver) { o.URLs = []string{"HTTPS://AM.example:443/x/"} }, true},
		"another path":   {func(o *Receiver) { o.URLs = []string{"https://am.example/y"} }, false},
		"one of several": {func(o *Receiver) { o.URLs = []string{"https://c.example", "https://b.example/"} }, true},
		"other labels":   {func(o *Receiver) { o.Labels = map[string]string{"plane": "us"} }, false},
		"no labels":      {func(o *Receiver) { o.Labels = nil }, false},
		"not enabled":    {func(o *Receiver) { o.Enabled = &off }, false},
		"disabled":       {func(o *Receiver) { o.Disabled = &Disabled{} }, false},
		"a webhook":      {func(o *Receiver) { o.Kind, o.URL = KindWebhook, r.URLs[0] }, false},
	} {
		o := r
		o.ID, o.Name = "rcv_2", "o"
		c.with(&o)
		all := []Receiver{r, o}
		if got := r.Doubles(all); slices.Equal(got, []string{"o"}) != c.is {
			t.Errorf("%s: %v", name, got)
		}
		if got := o.Doubles(all); slices.Equal(got, []string{"r"}) != c.is {
			t.Errorf("%s, of the other: %v", name, got)
		}
	}
}
