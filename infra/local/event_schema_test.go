package local

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opsplane/opsplane/agent/executor/sim"
	"github.com/opsplane/opsplane/agent/loop"
	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/control"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
	"github.com/opsplane/opsplane/shared/queue"
	"github.com/opsplane/opsplane/shared/react"
	"github.com/opsplane/opsplane/shared/record"
	"github.com/opsplane/opsplane/shared/retention"
	"github.com/opsplane/opsplane/shared/sweep"
)

// odd is a cluster in which everything happens that a simulated one can tell of.
const odd = `
cluster: odd
speeds: {stop: 20ms, start: 20ms, reset: 20ms, upgrade: 20ms}
nodes:
  - {name: n1, gpus: 2, devices: [{index: 1, reset_refused: needs_reboot}]}
  - {name: n2}
  - {name: n3}
deployments:
  - {name: d/x, replicas: 2}
components:
  - {name: operator, version: 1.0.0}
script:
  - {at: 100ms, do: device.degrade, node: n1, gpu: 0, detail: "ECC errors"}
  - {at: 200ms, do: deployment.oom, deployment: d/x}
  - {at: 300ms, do: deployment.crash_loop, deployment: d/x}
  - {at: 400ms, do: node.cordon, node: n2, by: someone}
  - {at: 500ms, do: node.unreachable, node: n1}
  - {at: 900ms, do: device.recover, node: n1, gpu: 0}
  - {at: 1s, do: node.uncordon, node: n2}
  - {at: 1100ms, do: node.reachable, node: n1}
  - {at: 1200ms, do: node.leave, node: n2}
  - {at: 1300ms, do: node.join, node: n2}
`

// TestEventsHoldToTheirSchemas: every event that the plane and the simulated agent
// tell has a type of the catalogue and a detail by its schema, with no member that
// the schema does not name.
func TestEventsHoldToTheirSchemas(t *testing.T) {
	t.Parallel()
	s := newSite(t, t.TempDir(), nil)
	ctx := t.Context()
	no := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	srv := httptest.NewServer(s.Handler())
	defer srv.Close()
	stopOdd := oddAgent(t, s, srv.URL)
	admit := func(typ, target string, more map[string]any) string {
		t.Helper()
		op, err := s.admit(typ, target, more)
		no(err)
		return op.Spec.ID
	}
	s.wait("the odd cluster has told all", time.Minute, func() bool { return len(told(t, s, "node.left")) > 0 && len(told(t, s, "node.ready")) > 0 })
	s.finish(admit("node.drain", "node:node-01", nil), admit("component.upgrade", "cluster:odd", map[string]any{"payload": map[string]any{"component": "operator", "version": "1.1.0"}}))
	devices, _, err := s.Store.Objects(ctx, operation.KindDevice, clusterID(t, s, "odd"), record.Span{Limit: 10})
	no(err)
	for _, d := range devices { // one of them refuses
		s.finish(admit("device.reset", d.ID, nil))
	}
	stopOdd()
	late := admit("node.cordon", "node:n3", map[string]any{"cluster": "odd", "deadline": time.Now().Add(3 * time.Second).UTC().Format(time.RFC3339Nano)})
	s.finish(late)

	_, _, err = s.Control.RecordChange(ctx, PlaneCall(), control.ChangeInput{Target: "node:node-02", Reason: "replaced a fan"})
	no(err)
	no(sweep.Keep(ctx, s.Store, queue.DeadLetter{Queue: "q", ID: "m1", Reason: "not understood", At: time.Now(), Body: []byte("?")}))
	hb, err := s.Agents.Heartbeat(ctx, s.cluster, protocol.Heartbeat{Name: "gapper", Boot: "b", SentAt: time.Now().Add(-time.Hour)})
	no(err)
	_, err = s.Agents.Events(ctx, s.cluster, protocol.EventsRequest{AgentID: hb.AgentID, Boot: "b", Events: []protocol.Event{
		{N: 5, Type: "node.left", Subject: protocol.Subject{Kind: "node", UID: "u"}, At: time.Now()}}})
	no(err)
	_, err = s.Agents.Heartbeat(ctx, s.cluster, protocol.Heartbeat{Name: "gapper", Boot: "another", SentAt: time.Now().Add(-time.Hour)})
	no(err)
	later := &record.Store{Ledger: s.Store.Ledger, Timing: fast, Now: func() time.Time { return time.Now().Add(10 * 24 * time.Hour) }} // as time goes by
	_, err = (&sweep.Sweep{Store: later, Relay: s.Relay, Queue: s.queue, Logger: quiet}).Run(ctx)
	no(err)
	_, err = retention.Pass(ctx, later, retention.Policy{Operations: 1000 * time.Hour, Events: 1000 * time.Hour, Agents: time.Hour})
	no(err)
	no(s.Registry.Delete(ctx, PlaneCall(), "odd"))

	tellOfAlerts(t, s)

	schemas := eventSchemas(t, s)
	seen := map[string]int{}
	for _, e := range told(t, s, "") {
		if strings.HasPrefix(e.Type, "test.") { // ours
			continue
		}
		seen[e.Type]++
		if e.Type == event.TypeAgentSilent && e.Subject.Name == "odd-0" {
			t.Error("an agent is called silent that said that it stops")
		}
		schema, ok := schemas[e.Type]
		if !ok {
			t.Errorf("%s is not in the catalogue", e.Type)
			continue
		}
		var detail any
		no(json.Unmarshal(e.Detail, &detail))
		if about, _ := event.Lookup(e.Type); about.Detail == nil {
			t.Errorf("nothing is said of the detail of %s", e.Type)
		}
		if err := holds(schema, schema, detail, "detail"); err != nil {
			t.Errorf("%s: %v in %s", e.Type, err, e.Detail)
		}
	}
	for _, typ := range []string{"operation.pending", "operation.dispatched", "operation.running", "operation.succeeded", "operation.failed", "operation.timed_out",
		"node.joined", "node.left", "node.ready", "node.not_ready", "node.cordoned", "node.uncordoned", "device.degraded", "device.recovered", "deployment.oom", "deployment.crash_loop",
		"component.version_changed", event.TypeAgentOnline, event.TypeAgentSilent, event.TypeAgentStopping, event.TypeAgentRestarted, event.TypeAgentRemoved, event.TypeClockSkewed, event.TypeClusterCreated, event.TypeClusterDeleted,
		event.TypeManualChange, event.TypeDeadLetter, event.TypeGap,
		alert.TypePending, alert.TypeFiring, alert.TypeFlapping, alert.TypeResolved, alert.TypeFolded, react.TypeAcknowledged} {
		if seen[typ] == 0 {
			t.Errorf("%s was not told, so not checked: %v", typ, slices.Sorted(maps.Keys(seen)))
		}
	}
}

// tellOfAlerts has rules of its own make every kind of event of an alert.
func tellOfAlerts(t *testing.T, s *site) {
	t.Helper()
	for _, text := range []string{
		"name: slow\non: [test.begun]\nfor: 1h\nlabels: {team: x}\nresolve_when: {on: [test.over]}\n",
		"name: quick\non: [test.begun]\nsummary: now {subject}\nresolve_when: {on: [test.over]}\n",
		"name: flaps\non: [test.begun]\nresolve_when: {on: [test.over]}\nflap: {changes: 2, window: 1h}\n",
		"name: many\non: [test.many]\ngroup_by: {each: event.subject.name}\n",
	} {
		rule, err := alert.ParseRule([]byte(text))
		if err == nil {
			_, err = s.Alerts.CreateRule(t.Context(), PlaneCall(), *rule)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	happen := func(typ string, names ...string) {
		t.Helper()
		var evs []event.Event
		for _, name := range names {
			e, err := event.New(typ, s.cluster, event.Subject{Kind: "node", ID: "nod_" + name, Name: name}, time.Now(), operation.Plane, nil, name, fmt.Sprint(time.Now().UnixNano()))
			if err != nil {
				t.Fatal(err)
			}
			evs = append(evs, e)
		}
		if _, err := event.Append(t.Context(), s.Store.Ledger, event.StreamOf(s.cluster), evs, nil); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		happen("test.begun", "n1")
		happen("test.over", "n1")
	}
	for n := 0; n <= 1000; n += 100 { // a rule's groups in a stream are 1,000
		names := make([]string, 100)
		for i := range names {
			names[i] = fmt.Sprint("n", n+i)
		}
		happen("test.many", names...)
	}
	var firing []react.Listed
	s.wait("rules have told all kinds", time.Minute, func() bool {
		var err error
		if firing, _, err = s.Alerts.Alerts(t.Context(), react.Filter{Rule: "many"}, "", 1); err != nil {
			t.Fatal(err)
		}
		return len(firing) > 0 && len(told(t, s, alert.TypeFolded)) > 0 && len(told(t, s, alert.TypeFlapping)) > 0
	})
	if _, err := s.Alerts.Acknowledge(t.Context(), PlaneCall(), firing[0].Alert.ID, new("seen")); err != nil {
		t.Fatal(err)
	}
}

// oddAgent runs the odd cluster's agent until stop.
func oddAgent(t *testing.T, s *site, url string) (stop func()) {
	t.Helper()
	made, err := s.Registry.Create(t.Context(), PlaneCall(), "odd")
	if err != nil {
		t.Fatal(err)
	}
	scenario := filepath.Join(s.dir, "odd.yaml")
	if err := os.WriteFile(scenario, []byte(odd), 0o600); err != nil {
		t.Fatal(err)
	}
	exec, err := sim.Open(sim.Options{Scenario: scenario, StateDir: filepath.Join(s.dir, "odd")})
	if err != nil {
		t.Fatal(err)
	}
	a, err := loop.New(loop.Config{PlaneURL: url, Token: made.Secret, Name: "odd-0", Executor: exec, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	run, end := context.WithCancel(context.WithoutCancel(t.Context()))
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := a.Run(run); err != nil {
			t.Errorf("run agent: %v", err)
		}
	})
	stop = sync.OnceFunc(func() {
		end()
		wg.Wait()
		if err := exec.Close(); err != nil {
			t.Errorf("close simulated cluster: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func clusterID(t *testing.T, s *site, name string) string {
	t.Helper()
	c, err := s.Store.ClusterByName(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return c.ID
}

// told reads the events of a type, or all of them, from all streams.
func told(t *testing.T, s *site, typ string) (out []event.Event) {
	t.Helper()
	q := event.Query{Limit: event.MaxLimit}
	if typ != "" {
		q.Types = []string{typ}
	}
	f, err := (&event.Reader{Ledger: s.Store.Ledger, Streams: func(ctx context.Context) ([]string, error) { return event.Streams(ctx, s.Store) }}).Follow(t.Context(), q)
	for more := true; more && err == nil; {
		var steps []event.Step
		steps, more, err = f.Next(t.Context(), 0)
		for _, step := range steps {
			out = append(out, step.Event)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// eventSchemas reads the catalogue as a client does.
func eventSchemas(t *testing.T, s *site) map[string]map[string]any {
	t.Helper()
	_, token, err := s.Tokens.Create(t.Context(), auth.TokenSpec{Name: "reader", Role: auth.Viewer})
	if err != nil {
		t.Fatal(err)
	}
	req := httptest.NewRequestWithContext(t.Context(), "GET", "/v1/event-types?limit=200", nil)
	req.Header.Set("Authorization", "Bearer "+token)
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, req)
	var page struct {
		Items []struct {
			Type   string
			Schema map[string]any
		}
	}
	if err := json.Unmarshal(w.Body.Bytes(), &page); err != nil || w.Code != 200 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	out := map[string]map[string]any{}
	for _, v := range page.Items {
		out[v.Type] = v.Schema
	}
	return out
}

// holds validates a value by the part of JSON Schema that the catalogue uses, with
// two differences: members that a schema does not name are refused, and so is a
// schema with a keyword that is not known here.
func holds(root, schema map[string]any, v any, path string) error {
	for keyword, arg := range schema {
		switch keyword {
		case "$schema", "$defs", "title", "description", "additionalProperties", "format":
		case "$ref":
			defs, _ := root["$defs"].(map[string]any)
			def, ok := defs[strings.TrimPrefix(arg.(string), "#/$defs/")].(map[string]any)
			if !ok {
				return fmt.Errorf("%s: %v leads nowhere", path, arg)
			}
			if err := holds(root, def, v, path); err != nil {
				return err
			}
		case "type":
			if !slices.Contains(asList(arg), any(typeOf(v))) && !(typeOf(v) == "integer" && slices.Contains(asList(arg), any("number"))) {
				return fmt.Errorf("%s is %s, not %v", path, typeOf(v), arg)
			}
		case "required":
			for _, name := range arg.([]any) {
				if _, ok := v.(map[string]any)[name.(string)]; !ok {
					return fmt.Errorf("%s has no %v", path, name)
				}
			}
		case "properties":
			object, _ := v.(map[string]any)
			for name, member := range object {
				sub, ok := arg.(map[string]any)[name].(map[string]any)
				if !ok {
					return fmt.Errorf("%s.%s is not in the schema", path, name)
				}
				if err := holds(root, sub, member, path+"."+name); err != nil {
					return err
				}
			}
		case "items":
			list, _ := v.([]any)
			for i, x := range list {
				if err := holds(root, arg.(map[string]any), x, fmt.Sprintf("%s[%d]", path, i)); err != nil {
					return err
				}
			}
		default:
			return fmt.Errorf("%s: schema keyword %s is not known here", path, keyword)
		}
	}
	if s, ok := v.(string); ok && schema["format"] == "date-time" {
		if _, err := time.Parse(time.RFC3339Nano, s); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}

func asList(v any) []any {
	if l, ok := v.([]any); ok {
		return l
	}
	return []any{v}
}

func typeOf(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case string:
		return "string"
	case []any:
		return "array"
	case map[string]any:
		return "object"
	case float64:
		if v == math.Trunc(v) {
			return "integer"
		}
	}
	return "number"
}
