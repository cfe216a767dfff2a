package httpapi

import (
	"strings"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/notify"
	"github.com/opsplane/opsplane/shared/problem"
)

// warns wants the warnings of an answer to be as many as the texts, each with its text.
func (a answer) warns(texts ...string) answer {
	a.t.Helper()
	list, ok := a.j["warnings"].([]any)
	if !ok || len(list) != len(texts) {
		a.t.Fatalf("warnings %v, want %q", a.j["warnings"], texts)
	}
	for i, w := range list {
		if !strings.Contains(w.(string), texts[i]) {
			a.t.Errorf("warning %q does not say %q", w, texts[i])
		}
	}
	return a
}

// What is renamed, disabled or deleted is told by the answer and by what names it;
// what names it by an equals sign goes along with a new name.
func TestWarningsOfWhatNamesARule(t *testing.T) {
	t.Parallel()
	p := setup(t, func(c *Config) { c.Receivers = &notify.Service{Store: c.Store} })
	ends := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	const yaml = "Content-Type: application/yaml"
	high := "name: high\non: [node.left]\n"
	low := "name: low\non: [node.left]\ngroup_by: {g: event.subject.name}\ninhibited_by: [{rule: high}]\n"
	p.do("admin", "POST", "/v1/rules", high, yaml).want(201).warns()
	p.do("admin", "POST", "/v1/rules", low, yaml).want(201).warns()
	silence := func(ms []m) answer {
		return p.do("operator", "POST", "/v1/silences", m{"reason": "x", "ends_at": ends, "matchers": ms}).want(201)
	}
	exact := silence(matcher("rule", "=", "high")).warns().str("id")
	pattern := silence(matcher("rule", "=~", "hi.h")).warns().str("id")
	p.do("admin", "POST", "/v1/receivers", m{"name": "pager", "kind": "webhook", "url": "https://hooks.example.com/x", "matchers": matcher("rule", "=", "high")}).want(201)

	p.do("admin", "PUT", "/v1/rules/high", high+"description: more\n", yaml).want(200).warns()
	p.do("admin", "PUT", "/v1/rules/high", high+"enabled: false\n", yaml).want(200).warns("disabled, and named in inhibited_by of low")
	p.do("viewer", "GET", "/v1/rules/low", nil).want(200).warns("names rule high, which is disabled")
	p.do("admin", "PUT", "/v1/rules/high", strings.Replace(high, "high", "higher", 1), yaml).want(200).warns("silence " + pattern + ", receiver pager")
	if by := p.do("viewer", "GET", "/v1/rules/low", nil).want(200).warns().raw; !strings.Contains(by, `"higher"`) {
		t.Errorf("low is inhibited by another: %s", by)
	}
	if s := p.do("viewer", "GET", "/v1/silences/"+exact, nil).want(200).warns(); !strings.Contains(s.raw, `"higher"`) {
		t.Errorf("the silence has another name: %s", s.raw)
	}
	p.do("viewer", "GET", "/v1/silences/"+pattern, nil).want(200).warns(`no rule that there is has rule =~ "hi.h"`)
	low = strings.Replace(low, "rule: high", "rule: higher, equal: [g]", 1)
	p.do("admin", "PUT", "/v1/rules/low", low, yaml).want(200).warns("names rule higher, whose group_by has no key g")

	p.do("admin", "DELETE", "/v1/rules/higher", nil).want(200).warns("inhibited_by of low names higher", "silence "+exact)
	p.do("viewer", "GET", "/v1/rules/low", nil).want(200).warns("names rule higher, which there is not")
	p.do("viewer", "GET", "/v1/silences/"+exact, nil).want(200).warns("there is no rule higher")
	p.do("admin", "PUT", "/v1/rules/low", low, yaml).want(200).warns("names rule higher, which there is not")
	p.do("admin", "POST", "/v1/rules", strings.Replace(low, "name: low", "name: new", 1), yaml).problem(422, problem.Invalid).points("/inhibited_by/0/rule")
	body := "rule:\n  " + strings.ReplaceAll(strings.TrimSpace(low), "\n", "\n  ")
	p.do("viewer", "POST", "/v1/rules/test", body, yaml).want(200).warns("names rule higher, which there is not")
	p.do("admin", "DELETE", "/v1/rules/low", nil).want(204)
	p.do("viewer", "POST", "/v1/rules/test", body, yaml).problem(422, problem.Invalid).points("/rule/inhibited_by/0/rule")
	off := p.do("admin", "PUT", "/v1/rules/fatal-xid/override", `{"enabled":false}`).want(200)
	off.warns("disabled, and named in inhibited_by of device-degraded")
	p.do("viewer", "GET", "/v1/rules/device-degraded", nil).want(200).warns("names rule fatal-xid, which is disabled")
	p.do("admin", "DELETE", "/v1/rules/fatal-xid", nil).want(204) // the override is taken back: the rule stays, and inhibits
	p.do("viewer", "GET", "/v1/rules/device-degraded", nil).want(200).warns()
}

// A silence whose matchers no rule that there is can meet says so; one that could never
// hold is refused, of a receiver too.
func TestMatchersOfNothing(t *testing.T) {
	t.Parallel()
	p := setup(t, func(c *Config) { c.Receivers = &notify.Service{Store: c.Store} })
	ends := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	silence := func(ms ...m) answer {
		return p.do("operator", "POST", "/v1/silences", m{"reason": "x", "ends_at": ends, "matchers": ms})
	}
	one := func(field, op, value string) m { return matcher(field, op, value)[0] }
	for _, op := range []string{"=", "!=", "=~"} {
		silence(one("rule", op, "")).problem(422, problem.Invalid).points("/matchers/0/value")
		p.do("admin", "POST", "/v1/receivers", m{"name": "r", "kind": "webhook", "url": "https://hooks.example.com/x", "matchers": []m{one("rule", op, "")}}).
			problem(422, problem.Invalid).points("/matchers/0/value")
	}
	silence(one("rule", "=", "fatal-xidd")).want(201).warns("there is no rule fatal-xidd")
	silence(one("rule", "!=", "fatal-xidd")).want(201).warns("there is no rule fatal-xidd")
	silence(one("rule", "=~", "fatal-x")).want(201).warns(`has rule =~ "fatal-x"`)
	silence(one("group.devcie", "=", "x")).want(201).warns(`has group.devcie = "x"`)
	silence(one("labels.team", "=", "x")).want(201).warns(`has labels.team = "x"`)
	silence(one("rule", "=", "fatal-xid"), one("severity", "=", "warning")).want(201).warns("no rule that there is makes an alert for which all")
	silence(one("group.devcie", "=", "")).want(201).warns(`no rule that there is has group.devcie: = "" holds for every alert`)
	silence(one("labels.team", "!=", "x")).want(201).warns("no rule that there is has labels.team")
	silence(one("labels.team", "=~", "x?"), one("severity", "=", "critical")).want(201).warns("no rule that there is has labels.team")
	silence(one("group.device", "=~", ".*")).want(201).warns("holds for alerts that have none of what the matchers name")
	silence(one("group.device", "=", ""), one("rule", "!=", "fatal-xid")).want(201).warns()
	silence(one("rule", "=~", "fatal-.*"), one("severity", "=", "critical"), one("group.device", "=~", "dev_.*")).want(201).warns()
	made := p.do("viewer", "GET", "/v1/silences", nil).want(200).items()
	n := 0
	for _, x := range made {
		n += len(x["warnings"].([]any))
	}
	if n != 10 {
		t.Errorf("the list has %d warnings", n)
	}
	p.do("admin", "POST", "/v1/rules", `{"name":"fatal-xidd","on":["node.left"]}`).want(201)
	for _, x := range p.do("viewer", "GET", "/v1/silences", nil).want(200).items() {
		if ms := x["matchers"].([]any); ms[0].(map[string]any)["value"] == "fatal-xidd" && len(x["warnings"].([]any)) > 0 {
			t.Errorf("its rule was made since: %v", x)
		}
	}
}

// A test by who is confined to clusters tells nothing of rules for others: neither that
// they inhibit, nor in what circle they are.
func TestRulesThatATestDoesNotShow(t *testing.T) {
	t.Parallel()
	p := setup(t)
	p.do("admin", "POST", "/v1/rules", m{"name": "ours", "on": []string{"node.left"}}).want(201)
	p.do("admin", "POST", "/v1/rules", m{"name": "secret-west", "on": []string{"node.left"}, "clusters": []string{p.other.ID}, "inhibited_by": []m{{"rule": "ours"}}}).want(201)
	mine := m{"name": "mine", "on": []string{"node.left"}, "inhibited_by": []m{{"rule": "secret-west"}}}
	p.do("scoped", "POST", "/v1/rules/test", m{"rule": mine}).problem(422, problem.Invalid).points("/rule/inhibited_by/0/rule")
	p.do("admin", "POST", "/v1/rules", mine).want(201)
	a := p.do("scoped", "POST", "/v1/rules/test", m{"rule": mine}).want(200).warns("which there is not")
	if a.j["inhibitors"] != nil {
		t.Errorf("inhibitors %v", a.j["inhibitors"])
	}
	if all := p.do("viewer", "POST", "/v1/rules/test", m{"rule": mine}).want(200).warns(); all.j["inhibitors"] == nil {
		t.Errorf("to who sees all: %s", all.raw)
	}
	mine["name"] = "ours"
	p.do("scoped", "POST", "/v1/rules/test", m{"rule": mine}).problem(422, problem.Invalid).points("/rule/inhibited_by/0/rule")
	p.do("viewer", "POST", "/v1/rules/test", m{"rule": mine}).problem(422, problem.Invalid).points("/rule/inhibited_by")
}

// A rule whose expressions fail says so, how often, and of which event; to whom it may.
func TestRulesThatFail(t *testing.T) {
	t.Parallel()
	p := setup(t)
	p.do("admin", "POST", "/v1/rules", "name: by-rack\non: [node.not_ready]\ngroup_by: {rack: event.detail.rack}\n", "Content-Type: application/yaml").want(201)
	p.happen(p.cluster.ID, "node.ready", 1)
	p.judge() // begins here
	p.happen(p.cluster.ID, "node.not_ready", 2, 3)
	p.judge()
	a := p.do("viewer", "GET", "/v1/rules/by-rack", nil).want(200).warns("/group_by/rack could not be evaluated for event evt_")
	f, _ := a.j["failing"].(map[string]any)
	if f == nil || f["count"] != 2.0 || f["cluster"] != p.cluster.ID || !strings.Contains(a.raw, "rack") {
		t.Errorf("failing %v", a.j["failing"])
	}
	if list := p.do("viewer", "GET", "/v1/rules?shipped=false", nil).want(200).items(); len(list) != 1 || list[0]["failing"] == nil {
		t.Errorf("listed %v", list)
	}
	if alerts := p.do("viewer", "GET", "/v1/alerts?rule=by-rack", nil).want(200).items(); len(alerts) != 1 || alerts[0]["group"].(map[string]any)["rack"] != "" {
		t.Errorf("alerts %v", alerts)
	}
}

// Matchers of a rule and of a cluster that it does not look at choose nothing.
func TestMatchersOfOtherClusters(t *testing.T) {
	t.Parallel()
	p := setup(t, func(c *Config) { c.Receivers = &notify.Service{Store: c.Store} })
	ends := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	p.do("admin", "POST", "/v1/rules", `{"name":"own","on":["node.left"],"clusters":["`+p.cluster.ID+`"]}`).want(201)
	for _, c := range []struct {
		op, cluster string
		nothing     bool
	}{{"=", p.cluster.ID, false}, {"=", p.other.ID, true}, {"=", "plane", true}, {"!=", p.cluster.ID, true}, {"!=", p.other.ID, false}, {"=~", "clu_.*", false}} {
		ms := append(matcher("rule", "=", "own"), matcher("cluster", c.op, c.cluster)...)
		var want []string
		if c.nothing {
			want = []string{"no rule that there is makes an alert for which all"}
		}
		p.do("operator", "POST", "/v1/silences", m{"reason": "x", "ends_at": ends, "matchers": ms}).want(201).warns(want...)
		p.do("admin", "POST", "/v1/receivers", m{"name": "r", "kind": "webhook", "url": "https://hooks.example.com/x", "matchers": ms}).want(201).warns(want...)
		p.do("admin", "DELETE", "/v1/receivers/r", nil).want(204)
	}
}

// A test says what retention took of the time that it judged.
func TestWarningsOfWhatRetentionTook(t *testing.T) {
	t.Parallel()
	p := setup(t)
	ctx := t.Context()
	at := time.Now().Add(-2 * time.Hour).Truncate(time.Millisecond).UTC()
	for i := range 3 {
		e := event.Event{ID: id.New(id.Event, at), Type: "node.left", Subject: event.Subject{Kind: "node", ID: "nod_1", Name: "n1"}, Severity: event.Info,
			Timestamp: at.Add(time.Duration(i) * time.Minute), ReceivedAt: at.Add(time.Duration(i) * time.Minute), Detail: []byte(`{"i":1}`)}
		if _, err := event.Append(ctx, p.db, p.cluster.ID, []event.Event{e}, nil); err != nil {
			t.Fatal(err)
		}
	}
	body := m{"since": stamp(at), "rule": m{"name": "a", "on": []string{"node.left"}, "when": "event.detail.?i.orValue(0) == 1"}}
	test := func() answer { return p.do("viewer", "POST", "/v1/rules/test", body).want(200) }
	if a := test().warns(); a.j["details_expired"] != 0.0 || a.j["matched"] != 3.0 {
		t.Errorf("nothing was taken: %s", a.raw)
	}
	if _, err := event.ExpireDetails(ctx, p.db, p.cluster.ID, "node.*", time.Now(), 100); err != nil {
		t.Fatal(err)
	}
	if a := test().warns("retention has taken the detail, which the rule reads, of 3 of the"); a.j["details_expired"] != 3.0 || a.j["matched"] != 0.0 {
		t.Errorf("details were taken: %s", a.raw)
	}
	if _, _, err := event.Trim(ctx, p.db, p.cluster.ID, at.Add(30*time.Second)); err != nil {
		t.Fatal(err)
	}
	from := stamp(at.Add(time.Minute))
	if a := test().warns("of 2 of the", "from "+from+" on nothing is missing"); !strings.Contains(a.raw, `{"stream":"`+p.cluster.ID+`","at":"`+from+`","expired":true}`) {
		t.Errorf("events were taken: %s", a.raw)
	}
}
