package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/notify"
	"github.com/opsplane/opsplane/shared/problem"
	"github.com/opsplane/opsplane/shared/record"
)

// TestReceivers: made, shown without its secret, tested, changed, rotated; its dead
// letters listed and sent again; deleted.
func TestReceivers(t *testing.T) {
	t.Parallel()
	status := http.StatusTeapot
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = w.Write([]byte("short and stout"))
	}))
	defer srv.Close()
	var receivers *notify.Service
	p := setup(t, func(c *Config) {
		receivers = &notify.Service{Store: c.Store, Logger: c.Logger, Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}
		c.Receivers = receivers
	})
	body := "name: pager\nkind: webhook\nurl: " + srv.URL + "\nmatchers: [{field: severity, op: '=', value: error}]\n"
	made := p.do("admin", "POST", "/v1/receivers", body, "Content-Type: application/yaml").want(201)
	secret, path := made.str("secret"), made.header.Get("Location")
	if !strings.HasPrefix(secret, "whsec_") || path != "/v1/receivers/"+made.str("id") {
		t.Fatalf("made %s", made.raw)
	}
	got := p.do("admin", "GET", path, nil).want(200)
	list := p.do("admin", "GET", "/v1/receivers?limit=1", nil).want(200)
	if len(list.items()) != 1 || strings.Contains(got.raw+list.raw, strings.TrimPrefix(secret, "whsec_")) || strings.Contains(got.raw, `"secret"`) {
		t.Errorf("shown: %s, %s", got.raw, list.raw)
	}
	tested := p.do("admin", "POST", path+"/test", nil).want(200)
	if tested.j["taken"] != false || tested.j["status"] != float64(418) || tested.str("body") != "short and stout" {
		t.Errorf("tested: %s", tested.raw)
	}
	p.do("admin", "PUT", path, body, "Content-Type: application/yaml", `If-Match: "99"`).problem(412, problem.PreconditionFailed)
	put := p.do("admin", "PUT", "/v1/receivers/pager", strings.Replace(body, "name: pager", "name: pager\ntimeout: 2s", 1), "Content-Type: application/yaml",
		"If-Match: "+got.header.Get("ETag")).want(200)
	if put.str("timeout") != "2s" || put.header.Get("ETag") == got.header.Get("ETag") {
		t.Errorf("changed: %s", put.raw)
	}
	same := p.do("admin", "PUT", path, strings.Replace(body, "name: pager", "name: pager\ntimeout: 2s\nenabled: true\nsend_resolved: true", 1), "Content-Type: application/yaml",
		"If-Match: "+put.header.Get("ETag")).want(200)
	if same.raw != put.raw || same.header.Get("ETag") != put.header.Get("ETag") {
		t.Errorf("put as it is: %s, at revision %s, not %s", same.raw, same.header.Get("ETag"), put.header.Get("ETag"))
	}
	rotated := p.do("admin", "POST", path+"/rotate", nil).want(200)
	if s := rotated.str("secret"); s == secret || !strings.HasPrefix(s, "whsec_") || len(rotated.j["secrets"].([]any)) != 2 {
		t.Errorf("rotated: %s", rotated.raw)
	}

	// 410 ends it at once: a dead letter.
	status = http.StatusGone
	ctx := context.Background()
	fires := func() event.Event {
		t.Helper()
		now := time.Now().UTC()
		a := alert.Alert{ID: id.New(id.Alert, now), Rule: "hot", Severity: event.Error, State: alert.Firing, Since: now, FiredAt: &now, Cluster: p.cluster.ID}
		e, err := event.New(alert.TypeFiring, p.cluster.ID, event.Subject{Kind: "node", ID: "nod_1", Name: "n1"}, now, notify.Actor, a, a.ID)
		must(t, err)
		_, err = event.Append(t.Context(), p.db, p.cluster.ID, []event.Event{e}, nil)
		must(t, err)
		must(t, receivers.Follow(ctx, p.cluster.ID))
		must(t, receivers.Deliver(ctx, record.LaneKey(made.str("id"))))
		return e
	}
	e := fires()
	dead := p.do("admin", "GET", path+"/deliveries?state=failed", nil).want(200).items()
	if len(dead) != 1 {
		t.Fatalf("%d dead letters", len(dead))
	}
	b, err := json.Marshal(dead[0])
	must(t, err)
	var d struct {
		ID         string `json:"id"`
		Event      string `json:"event"`
		Tries      int    `json:"tries"`
		LastStatus int    `json:"last_status"`
		LastError  string `json:"last_error"`
	}
	must(t, json.Unmarshal(b, &d))
	if d.Event != e.ID || d.LastStatus != 410 || d.Tries != 1 || d.LastError != "answered 410" {
		t.Errorf("dead letter %s", b)
	}
	// It is disabled, and shown so, until a PUT enables it; one with what was shown, or that changes something else, does not.
	is := func(when string, got answer, enabled bool) {
		t.Helper()
		if got.j["enabled"] != enabled || (got.j["disabled"] == nil) != enabled {
			t.Errorf("%s: %s", when, got.raw)
		}
	}
	is("gone", p.do("admin", "GET", path, nil).want(200), false)
	status = http.StatusOK
	again := p.do("admin", "POST", path+"/deliveries/"+d.ID+"/redeliver", nil).want(202)
	if again.j["tries"] != 0.0 || again.j["redelivered"] != 1.0 || again.j["state"] != "pending" {
		t.Errorf("redelivered: %s", again.raw)
	}
	is("put as it was shown", p.do("admin", "PUT", path, body+"enabled: false\n", "Content-Type: application/yaml").want(200), false)
	is("rotated", p.do("admin", "POST", path+"/rotate", nil).want(200), false)
	is("put without a word of it", p.do("admin", "PUT", path, body, "Content-Type: application/yaml").want(200), true)
	must(t, receivers.Deliver(ctx, record.LaneKey(made.str("id"))))
	// Where nothing is taken is shown, until it is.
	held := func(want int) {
		t.Helper()
		for _, got := range []m{p.do("admin", "GET", path, nil).want(200).j, p.do("admin", "GET", "/v1/receivers", nil).want(200).items()[0]} {
			all, _ := got["held"].([]any)
			if len(all) != want {
				t.Fatalf("held: %v, want %d", got["held"], want)
			}
			if want == 0 {
				continue
			}
			if is, _ := all[0].(m); is["url"] != srv.URL || is["error"] != "answered 502" || is["fails"] != 1.0 || is["until"] == nil {
				t.Errorf("held: %v", is)
			}
		}
	}
	held(0)
	status = http.StatusBadGateway
	fires()
	held(1)
	p.do("admin", "DELETE", path, nil).want(204)
	p.do("admin", "GET", path, nil).problem(404, problem.NotFound)
	p.do("admin", "GET", path+"/deliveries", nil).problem(404, problem.NotFound)
}

// TestReceiversThatAreRefused names the field.
func TestReceiversThatAreRefused(t *testing.T) {
	t.Parallel()
	p := setup(t)
	for body, pointer := range map[string]string{
		`{"name":"a","kind":"webhook","url":"https://169.254.169.254/"}`:                                 "/url",
		`{"name":"a","kind":"webhook","url":"http://hook.example"}`:                                      "/url",
		`{"name":"a","kind":"webhook","url":"https://hook.example","timeout":"1m"}`:                      "/timeout",
		`{"name":"a","kind":"webhook","url":"https://hook.example","secret":"whsec_aGk="}`:               "/secret",
		`{"name":"a","kind":"webhook","url":"https://hook.example","matchers":[{"field":"x","op":"="}]}`: "/matchers/0/field",
		`{"name":"a","kind":"alertmanager","urls":[]}`:                                                   "/urls",
		`{"name":"a","kind":"alertmanager","urls":["https://a.example"],"labels":{"b-c":"d"}}`:           "/labels/b-c",
		`{"name":"a","kind":"alertmanager","urls":["https://a.example"],"labels":{"severity":"d"}}`:      "/labels/severity",
		`{"name":"a","kind":"webhook","url":"https://hook.example","surprise":1}`:                        "/surprise",
		`{"name":"a","kind":"alertmanager","urls":["https://a.example","https://a.example"]}`:            "/urls/1",
		`{"name":"a","kind":"alertmanager","urls":["https://a.example/","https://A.example:443//"]}`:     "/urls/1",
		`{"name":"a","kind":"alertmanager","urls":["https://a.example/API/v2/alerts"]}`:                  "/urls/0",
		`{"name":"a","kind":"alertmanager","urls":["https://a.example/am/api/v2/"]}`:                     "/urls/0",
	} {
		p.do("admin", "POST", "/v1/receivers", body).problem(422, problem.Invalid).points(pointer)
	}
	p.do("admin", "POST", "/v1/receivers", `{"name":"a","kind":"alertmanager","urls":["https://a.example"],"labels":{"key":"AKIAIOSFODNN7EXAMPLE"}}`).
		problem(422, problem.SecretInRequest).points("/labels/key")
}

// TestWarningsOfReceivers: what a receiver's matchers name that there is not is told by
// each answer that shows it, until there is; so is what a change would be refused for.
func TestWarningsOfReceivers(t *testing.T) {
	t.Parallel()
	p := setup(t, func(c *Config) { c.Receivers = &notify.Service{Store: c.Store, Logger: c.Logger} })
	body := func(name string, ms []m) m {
		return m{"name": name, "kind": "alertmanager", "urls": []string{"https://" + name + ".example.com"}, "labels": m{"plane": "eu"}, "matchers": ms}
	}
	p.do("admin", "POST", "/v1/receivers", body("xid", matcher("rule", "=", "fatal-xidd"))).want(201).warns("there is no rule fatal-xidd")
	p.do("admin", "POST", "/v1/receivers", body("team", matcher("labels.team", "=", "nosuch"))).want(201).warns(`has labels.team = "nosuch"`)
	p.do("admin", "POST", "/v1/receivers", body("all", nil)).want(201).warns()
	p.do("admin", "GET", "/v1/receivers/xid", nil).want(200).warns("there is no rule fatal-xidd")
	n := 0
	for _, x := range p.do("admin", "GET", "/v1/receivers", nil).want(200).items() {
		n += len(x["warnings"].([]any))
	}
	if n != 2 {
		t.Errorf("the list has %d warnings", n)
	}
	p.do("admin", "PUT", "/v1/receivers/xid", body("xid", matcher("rule", "=", "fatal-xid"))).want(200).warns()
	p.do("admin", "PUT", "/v1/receivers/xid", body("xid", matcher("rule", "=", "mine"))).want(200).warns("there is no rule mine")
	p.do("admin", "POST", "/v1/rules", `{"name":"mine","on":["node.left"]}`).want(201)
	p.do("admin", "GET", "/v1/receivers/xid", nil).want(200).warns()
	p.do("admin", "PUT", "/v1/rules/mine", `{"name":"ours","on":["node.left"]}`).want(200)
	p.do("admin", "GET", "/v1/receivers/xid", nil).want(200).warns("there is no rule mine")

	// Two that are one to an Alertmanager.
	same := body("same", nil)
	same["urls"] = []string{"https://ALL.example.com/"}
	p.do("admin", "POST", "/v1/receivers", same).want(201).warns("receiver all tells the same Alertmanager")
	p.do("admin", "GET", "/v1/receivers/all", nil).want(200).warns("receiver same tells the same Alertmanager")
	if got := p.do("admin", "GET", "/v1/receivers", nil).want(200); strings.Count(got.raw, "the same Alertmanager") != 2 {
		t.Errorf("the list: %s", got.raw)
	}
	same["labels"] = m{"plane": "us"}
	p.do("admin", "PUT", "/v1/receivers/same", same).want(200).warns()
	p.do("admin", "GET", "/v1/receivers/all", nil).want(200).warns()

	// One of a cluster that is deleted.
	p.do("admin", "POST", "/v1/receivers", body("west", matcher("cluster", "=", p.other.ID))).want(201).warns()
	must(t, p.reg.Delete(t.Context(), root, "west"))
	p.do("admin", "GET", "/v1/receivers/west", nil).want(200).warns("there is no cluster " + p.other.ID)
	p.do("admin", "PUT", "/v1/receivers/west", body("west", matcher("cluster", "=", p.other.ID))).want(200).warns("there is no cluster " + p.other.ID)
	p.do("admin", "PUT", "/v1/receivers/xid", body("xid", matcher("cluster", "=", p.other.ID))).problem(422, problem.Invalid).points("/matchers/0/value")

	// One that an earlier plane took.
	it, err := p.db.Get(t.Context(), record.ReceiverKey(p.do("admin", "GET", "/v1/receivers/all", nil).want(200).str("id")))
	must(t, err)
	it.Data = []byte(strings.Replace(string(it.Data), `"plane":"eu"`, `"cluster":"eu"`, 1))
	must(t, p.db.Commit(t.Context(), ledger.Write{Expect: it.Version, Item: ledger.Item{Key: it.Key, Data: it.Data}}))
	p.do("admin", "GET", "/v1/receivers/all", nil).want(200).warns("a change is refused that leaves /labels/cluster: each alert has a label of this name")
}
