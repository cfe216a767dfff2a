package httpapi

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/problem"
	"github.com/opsplane/opsplane/shared/protocol"
	"github.com/opsplane/opsplane/shared/record"
)

// upgrade admits a component.upgrade and returns its id.
func (p *plane) upgrade() string {
	p.t.Helper()
	objects, _ := fleet.Objects(p.cluster.ID, &protocol.Inventory{Components: []protocol.Component{{UID: "u", Name: "operator", Version: "v1.0.0", Revision: 1, Healthy: true}}}, time.Now())
	p.merge(objects)
	return p.do("operator", "POST", "/v1/operations", m{"type": "component.upgrade", "target": p.cluster.ID, "reason": "cve",
		"payload": m{"component": "operator", "version": "v1.2.3"}}).want(202).str("id")
}

func TestCommands(t *testing.T) {
	t.Parallel()
	p := setup(t)
	opID := p.create(p.node(p.cluster, "a"))
	for n := range 3 {
		var cmds []record.Command
		for i := range 4 {
			cmds = append(cmds, record.Command{ID: fmt.Sprintf("cmd_%d%d", n, i), Attempt: 1, Generation: 1, Name: "evict", StartedAt: time.Now()})
		}
		must(t, p.db.Commit(t.Context(), record.CommandWrite(opID, 1, int64(n+1), 0, cmds)))
		must(t, p.db.Commit(t.Context(), record.CommandWrite(opID, 1, int64(n+1), 0, cmds))) // a resend
	}
	var got []string
	for cursor := ""; ; {
		a := p.do("viewer", "GET", "/v1/operations/"+opID+"/commands?limit=5&cursor="+cursor, nil).want(200)
		got = append(got, a.ids()...)
		if cursor = a.str("next_cursor"); cursor == "" {
			break
		}
	}
	want := strings.Fields("cmd_00 cmd_01 cmd_02 cmd_03 cmd_10 cmd_11 cmd_12 cmd_13 cmd_20 cmd_21 cmd_22 cmd_23")
	if !slices.Equal(got, want) {
		t.Errorf("commands %v", got)
	}
}

func TestPlanChildren(t *testing.T) {
	t.Parallel()
	p := setup(t)
	var kids []m
	for i := range 3 {
		kids = append(kids, m{"type": "node.cordon", "target": p.node(p.cluster, fmt.Sprint("n", i)), "reason": "wave"})
	}
	a := p.do("operator", "POST", "/v1/operations", m{"type": "plan", "target": p.cluster.ID, "reason": "wave", "payload": m{"children": kids}}).want(202)
	if c := a.j["children"].(m); c["total"] != float64(3) || a.j["links"].(m)["children"] == nil {
		t.Error(a.raw)
	}
	list := p.do("viewer", "GET", "/v1/operations/"+a.str("id")+"/children?limit=2", nil).want(200)
	if got := list.items(); len(got) != 2 || got[0]["phase"] != "waiting" || got[0]["link"] != nil || list.str("next_cursor") == "" {
		t.Error(list.raw)
	}
	if rest := p.do("viewer", "GET", "/v1/operations/"+a.str("id")+"/children?limit=2&cursor="+list.str("next_cursor"), nil).items(); len(rest) != 1 {
		t.Error(rest)
	}
	if got := p.do("viewer", "GET", "/v1/operations?parent="+a.str("id"), nil).items(); len(got) != 0 {
		t.Errorf("children that were not admitted: %v", got)
	}
	// Admit one as the plan's runner would.
	ctx := context.Background()
	parent, err := p.store.Load(ctx, a.str("id"))
	must(t, err)
	c, err := p.store.Children(ctx, a.str("id"))
	must(t, err)
	c.Kids[1].Admitted = true
	_, err = p.api.cfg.Admission.AdmitChild(ctx, &parent, c.Kids[1], []ledger.Write{c.Write(1)})
	must(t, err)
	if got := p.do("viewer", "GET", "/v1/operations?parent="+a.str("id"), nil).ids(); !slices.Equal(got, []string{c.Kids[1].Operation}) {
		t.Errorf("children %v", got)
	}
	if got := p.do("viewer", "GET", "/v1/operations/"+a.str("id")+"/children", nil).items(); got[1]["phase"] != "pending" || got[1]["link"] == nil {
		t.Error(got)
	}
}

func TestManualChanges(t *testing.T) {
	t.Parallel()
	p := setup(t)
	node := p.node(p.cluster, "a")
	body := m{"target": "node:a", "reason": "reseated the GPU", "runbook": "https://wiki/reseat"}
	a := p.do("operator", "POST", "/v1/manual-changes", body, "Idempotency-Key: c").want(201)
	if a.str("target") != node || a.str("target_name") != "node:a" || a.str("cluster") != p.cluster.ID {
		t.Error(a.raw)
	}
	if again := p.do("operator", "POST", "/v1/manual-changes", body, "Idempotency-Key: c").want(200); again.str("id") != a.str("id") || again.header.Get("Idempotency-Replayed") != "true" {
		t.Error(again.raw)
	}
	p.do("operator", "POST", "/v1/manual-changes", m{"target": node, "reason": "x"}, "Idempotency-Key: c").problem(422, problem.IdempotencyKeyReused)
	p.do("operator", "POST", "/v1/manual-changes", m{"target": "node:none", "reason": "x"}).problem(404, problem.NotFound).points("/target")
	p.do("operator", "POST", "/v1/manual-changes", m{"target": node, "reason": ""}).problem(422, problem.Invalid).points("/reason")
	p.do("operator", "POST", "/v1/manual-changes", m{"target": node, "reason": "token=abcdefgh12345"}).problem(422, problem.SecretInRequest)
	p.do("operator", "POST", "/v1/manual-changes", m{"target": node, "reason": "x", "y": 1}).problem(422, problem.Invalid).points("/y")
	second := p.do("operator", "POST", "/v1/manual-changes", m{"target": p.other.ID, "reason": "rack power"}).want(201).str("id")
	if got := p.do("viewer", "GET", "/v1/manual-changes", nil).ids(); !slices.Equal(got, []string{second, a.str("id")}) {
		t.Error(got)
	}
	if got := p.do("viewer", "GET", "/v1/manual-changes?target="+node, nil).ids(); !slices.Equal(got, []string{a.str("id")}) {
		t.Error(got)
	}
	if got := p.do("scoped", "GET", "/v1/manual-changes", nil).ids(); !slices.Equal(got, []string{a.str("id")}) {
		t.Error(got)
	}
	it, err := p.db.Get(t.Context(), record.ReporterKey(p.cluster.ID))
	must(t, err)
	if r, err := record.Decode[fleet.Reporter](it); err != nil || !r.Asked {
		t.Errorf("reporter %+v %v", r, err)
	}
	ev := p.do("viewer", "GET", "/v1/events?type=manual.change&subject="+node, nil).want(200).items()
	if len(ev) != 1 || ev[0]["cluster"] != p.cluster.ID || ev[0]["sequence"] != float64(1) {
		t.Error(ev)
	}
	if got := p.do("viewer", "GET", "/v1/operations?resource="+node, nil).items(); len(got) != 0 {
		t.Errorf("a manual change is no operation: %v", got)
	}
}

func TestClusters(t *testing.T) {
	t.Parallel()
	p := setup(t)
	for _, name := range []string{"", "A", "a_b", "-a", "a-", strings.Repeat("a", 64), "plane"} {
		p.do("admin", "POST", "/v1/clusters", m{"name": name}).problem(422, problem.Invalid).points("/name")
	}
	p.do("admin", "POST", "/v1/clusters", m{}).problem(422, problem.Invalid)
	a := p.do("admin", "POST", "/v1/clusters", m{"name": strings.Repeat("n", 63)}).want(201)
	cluster, token := a.str("id"), a.str("token")
	p.do("admin", "POST", "/v1/clusters", m{"name": strings.Repeat("n", 63)}).problem(409, problem.NameTaken)
	p.do(token, "POST", "/v1/agent/heartbeat", m{"name": "x"}).want(200)
	if p.agent.cluster != cluster {
		t.Errorf("the token is of %s", p.agent.cluster)
	}
	if got := p.do("viewer", "GET", "/v1/clusters/"+strings.Repeat("n", 63), nil).want(200); got.str("id") != cluster || strings.Contains(got.raw, token) {
		t.Error(got.raw)
	}
	fresh := p.do("admin", "POST", "/v1/clusters/"+cluster+"/token", nil).want(200).str("token")
	p.do(token, "POST", "/v1/agent/heartbeat", m{"name": "x"}).problem(401, problem.Unauthenticated)
	p.do(fresh, "POST", "/v1/agent/heartbeat", m{"name": "x"}).want(200)
	p.do("admin", "POST", "/v1/clusters/nope/token", nil).problem(404, problem.NotFound)
	list := p.do("viewer", "GET", "/v1/clusters?limit=2", nil).want(200)
	if rest := p.do("viewer", "GET", "/v1/clusters?limit=2&cursor="+list.str("next_cursor"), nil).want(200); len(list.items()) != 2 || len(rest.items()) != 1 || rest.str("next_cursor") != "" {
		t.Error(list.raw, rest.raw)
	}

	found := fleet.Cluster{ID: cluster, Name: "n"}
	node := p.node(found, "gone")
	opID := p.create(node)
	if r := p.do("admin", "DELETE", "/v1/clusters/"+cluster, nil).problem(409, problem.ClusterInUse); r.str("operation_id") != opID {
		t.Error(r.raw)
	}
	p.do("operator", "DELETE", "/v1/operations/"+opID, nil).want(200)
	p.do("admin", "DELETE", "/v1/clusters/"+cluster, nil).want(204)
	p.do("viewer", "GET", "/v1/clusters/"+cluster, nil).problem(404, problem.NotFound)
	p.do("viewer", "GET", "/v1/nodes/"+node, nil).problem(404, problem.NotFound)
	p.do(fresh, "POST", "/v1/agent/heartbeat", m{"name": "x"}).problem(401, problem.Unauthenticated)
	p.do("admin", "DELETE", "/v1/clusters/"+cluster, nil).problem(404, problem.NotFound)
	p.do("admin", "POST", "/v1/clusters", m{"name": strings.Repeat("n", 63)}).want(201)
	if got := p.do("viewer", "GET", "/v1/operations?cluster="+cluster, nil).want(200).ids(); !slices.Equal(got, []string{opID}) {
		t.Errorf("its history: %v", got)
	}
	types := ""
	for _, e := range p.do("viewer", "GET", "/v1/events?type=cluster.*", nil).items() {
		types += fmt.Sprint(e["type"], " ")
	}
	if types != "cluster.created cluster.created cluster.created cluster.deleted cluster.created " {
		t.Error(types)
	}
}

func TestAgents(t *testing.T) {
	t.Parallel()
	p := setup(t)
	for i, c := range []fleet.Cluster{p.cluster, p.other} {
		g := fleet.Agent{ID: fleet.AgentID(c.ID, "x"), Cluster: c.ID, Name: "x", Version: "v1", LastSeen: time.Now().Add(-time.Duration(i) * time.Hour), SkewMS: 12, ClockSkewed: i == 1, Leases: 3,
			Capabilities: []protocol.Capability{{Name: "node.drain", Version: 1}}}
		must(t, p.db.Commit(t.Context(), ledger.Write{Item: p.store.AgentItem(&g)}))
	}
	on, off := fleet.AgentID(p.cluster.ID, "x"), fleet.AgentID(p.other.ID, "x")
	if got := p.do("viewer", "GET", "/v1/agents", nil).want(200).ids(); len(got) != 2 {
		t.Error(got)
	}
	if got := p.do("viewer", "GET", "/v1/agents?online=true", nil).ids(); !slices.Equal(got, []string{on}) {
		t.Error(got)
	}
	if got := p.do("viewer", "GET", "/v1/agents?cluster=west", nil).ids(); !slices.Equal(got, []string{off}) {
		t.Error(got)
	}
	a := p.do("viewer", "GET", "/v1/agents/"+on, nil).want(200)
	if a.j["skew_ms"] != float64(12) || a.j["leases"] != float64(3) || a.j["online"] != true || a.j["clock_skewed"] != false || !strings.Contains(a.raw, "node.drain") {
		t.Error(a.raw)
	}
	if a := p.do("viewer", "GET", "/v1/agents/"+off, nil).want(200); a.j["clock_skewed"] != true {
		t.Error(a.raw)
	}
	p.do("scoped", "GET", "/v1/agents/"+off, nil).problem(404, problem.NotFound)
	p.do("viewer", "GET", "/v1/agents/x", nil).problem(404, problem.NotFound)
	if c := p.do("viewer", "GET", "/v1/clusters/east", nil); c.j["agents_online"] != float64(1) {
		t.Error(c.raw)
	}
}

func TestInventory(t *testing.T) {
	t.Parallel()
	p := setup(t)
	node := p.node(p.cluster, "a")
	twin := p.node(p.other, "a")
	objects, _ := fleet.Objects(p.cluster.ID, &protocol.Inventory{
		Devices: []protocol.Device{{UID: "GPU-8F3C0000-0000-0000-0000-000000000001", NodeUID: "uid-easta", NodeName: "a", Health: "degraded", Revision: 1},
			{UID: "GPU-8f3c0000-0000-0000-0000-000000000002", NodeUID: "uid-eastb", NodeName: "b", Health: "ok", Revision: 1}},
		Deployments: []protocol.Deployment{{UID: "d1", Name: "default/web", Kind: "Deployment", Revision: 1, Desired: 2, Ready: 1}},
		Components:  []protocol.Component{{UID: "c1", Name: "operator", Version: "v1", Revision: 1}},
	}, time.Now())
	p.merge(objects)
	byKind := map[string]string{}
	for _, o := range objects {
		byKind[o.Kind] = o.ID
	}
	for path, want := range map[string]int{
		"nodes": 2, "nodes?name=a": 2, "nodes?name=a&cluster=east": 1, "nodes?schedulable=false": 0, "nodes?ready=true": 2, "nodes?cluster=" + p.other.ID: 1,
		"devices": 2, "devices?health=degraded": 1, "devices?node=b": 1, "devices?node=" + node: 1, "devices?name=8F3C0000-0000-0000-0000-000000000001": 1,
		"deployments?name=default/web": 1, "deployments?limit=5": 1, "components": 1,
	} {
		if got := p.do("viewer", "GET", "/v1/"+path, nil).want(200).items(); len(got) != want {
			t.Errorf("%s: %d, want %d", path, len(got), want)
		}
	}
	p.do("viewer", "GET", "/v1/nodes?schedulable=perhaps", nil).problem(422, problem.Invalid).points("/query/schedulable")
	p.do("viewer", "GET", "/v1/nodes?cluster=nope", nil).problem(422, problem.Invalid).points("/query/cluster")
	opID := p.create(node)
	a := p.do("viewer", "GET", "/v1/nodes/"+node, nil).want(200)
	if a.str("active_operation") != opID || a.j["links"].(m)["history"] != "/v1/operations?resource="+node || a.j["schedulable"] != true || a.j["pods"] != float64(4) {
		t.Error(a.raw)
	}
	if got := p.do("viewer", "GET", "/v1/nodes/"+twin, nil); got.j["active_operation"] != nil {
		t.Error(got.raw)
	}
	for kind, path := range map[string]string{operation.KindDevice: "devices", operation.KindDeployment: "deployments", operation.KindComponent: "components"} {
		p.do("viewer", "GET", "/v1/"+path+"/"+byKind[kind], nil).want(200)
		p.do("viewer", "GET", "/v1/"+path+"/"+node, nil).problem(404, problem.NotFound)
		p.do("viewer", "GET", "/v1/"+path+"/"+byKind[kind][:4]+strings.Repeat("0", 26), nil).problem(404, problem.NotFound)
	}
	// What an operation left unsettled shows on its resource.
	op := p.claim(opID)
	p.apply(opID, operation.LoseLease{})
	p.apply(opID, operation.Expire{})
	if got := p.do("viewer", "GET", "/v1/nodes/"+node, nil); fmt.Sprint(got.j["unsettled_by"]) != fmt.Sprint([]any{op.Spec.ID}) {
		t.Error(got.raw)
	}
}

func TestTokens(t *testing.T) {
	t.Parallel()
	p := setup(t)
	a := p.do("admin", "POST", "/v1/tokens", m{"name": "ci", "role": "operator", "clusters": []string{"east"}, "expires_at": "2090-01-01T00:00:00Z"}).want(201)
	if a.str("token") == "" || fmt.Sprint(a.j["clusters"]) != fmt.Sprint([]any{p.cluster.ID}) || a.j["active"] != true {
		t.Error(a.raw)
	}
	for name, body := range map[string]m{
		"name": {"name": "", "role": "viewer"}, "role": {"name": "x", "role": "root"}, "force": {"name": "x", "role": "viewer", "force": true},
		"clusters/0": {"name": "x", "role": "viewer", "clusters": []string{"nope"}}, "expires_at": {"name": "x", "role": "viewer", "expires_at": "soon"},
		"clusters": {"name": "x", "role": "agent"}, "extra": {"name": "x", "role": "viewer", "extra": 1},
	} {
		p.do("admin", "POST", "/v1/tokens", body).problem(422, problem.Invalid).points("/" + name)
	}
	agent := p.do("admin", "POST", "/v1/tokens", m{"name": "a2", "role": "agent", "clusters": []string{"west"}}).want(201)
	p.do(agent.str("token"), "POST", "/v1/agent/heartbeat", m{}).want(200)
	seen := 0
	for cursor := ""; ; {
		l := p.do("admin", "GET", "/v1/tokens?limit=3&cursor="+cursor, nil).want(200)
		if strings.Contains(l.raw, "opt_") || strings.Contains(l.raw, "hash") {
			t.Fatal("a list of tokens shows secrets", l.raw)
		}
		seen += len(l.items())
		if cursor = l.str("next_cursor"); cursor == "" {
			break
		}
	}
	if seen != 8 {
		t.Errorf("%d tokens", seen)
	}
	p.do("admin", "GET", "/v1/tokens/"+a.str("id"), nil).want(200)
	p.do("admin", "GET", "/v1/tokens/tok_x", nil).problem(404, problem.NotFound)
	p.do("admin", "DELETE", "/v1/tokens/tok_x", nil).problem(404, problem.NotFound)
	for range 2 {
		p.do("admin", "DELETE", "/v1/tokens/"+a.str("id"), nil).want(204)
	}
	if got := p.do("admin", "GET", "/v1/tokens/"+a.str("id"), nil); got.j["active"] != false || got.j["revoked_at"] == nil {
		t.Error(got.raw)
	}
}

func TestDeadLetters(t *testing.T) {
	t.Parallel()
	p := setup(t)
	opID := p.create(p.node(p.cluster, "a"))
	p.failed(opID)
	letter := record.DeadLetter{ID: id.New(id.DeadLetter, time.Now()), Queue: p.cluster.Queue, Cluster: p.cluster.ID, Operation: opID, Body: "{}", Reason: "max_receives", At: time.Now()}
	junk := letter
	junk.ID, junk.Operation, junk.Cluster, junk.At = id.New(id.DeadLetter, time.Now()), "", p.other.ID, letter.At.Add(time.Second)
	must(t, p.db.Commit(t.Context(), ledger.Write{Item: record.DeadLetterItem(letter)}, ledger.Write{Item: record.DeadLetterItem(junk)}))
	if got := p.do("viewer", "GET", "/v1/dead-letters", nil).want(200).ids(); !slices.Equal(got, []string{junk.ID, letter.ID}) {
		t.Error(got)
	}
	if got := p.do("scoped", "GET", "/v1/dead-letters", nil).want(200).ids(); !slices.Equal(got, []string{letter.ID}) {
		t.Error(got)
	}
	p.do("viewer", "GET", "/v1/dead-letters/"+letter.ID, nil).want(200)
	p.do("viewer", "GET", "/v1/dead-letters/x", nil).problem(404, problem.NotFound)
	p.do("admin", "POST", "/v1/dead-letters/"+junk.ID+"/redrive", nil).problem(409, problem.NotRetryable)
	a := p.do("admin", "POST", "/v1/dead-letters/"+letter.ID+"/redrive", m{"reason": "agent is back"}, "Idempotency-Key: d").want(202)
	if a.j["operation"].(m)["phase"] != "pending" || a.j["dead_letter"].(m)["redriven_at"] == nil {
		t.Error(a.raw)
	}
	p.do("admin", "POST", "/v1/dead-letters/"+letter.ID+"/redrive", m{"reason": "agent is back"}, "Idempotency-Key: d").want(200)
	p.do("admin", "POST", "/v1/dead-letters/"+letter.ID+"/redrive", nil).problem(409, problem.NotRetryable)
	if got := p.do("viewer", "GET", "/v1/dead-letters?redriven=true", nil).ids(); !slices.Equal(got, []string{letter.ID}) {
		t.Error(got)
	}
	p.do("admin", "POST", "/v1/dead-letters/dlq_00000000000000000000000000/redrive", nil).problem(404, problem.NotFound)
}

func TestAudit(t *testing.T) {
	t.Parallel()
	p := setup(t)
	node := p.node(p.cluster, "a")
	opID := p.do("operator", "POST", "/v1/operations", m{"type": "node.cordon", "target": node, "reason": "why not"}, "X-Correlation-ID: c-1").want(202).str("id")
	p.do("operator", "DELETE", "/v1/operations/"+opID, m{"reason": "oh"}).want(200)
	p.do("operator", "DELETE", "/v1/operations/"+opID, nil).want(204)
	p.do("viewer", "POST", "/v1/operations", m{}).problem(403, problem.Forbidden)
	p.do("", "GET", "/v1/nodes", nil).problem(401, problem.Unauthenticated)
	p.do("operator", "POST", "/v1/operations", m{"type": "x"}).want(422)
	p.do("viewer", "GET", "/v1/nodes?x=1", nil).want(422) // no change was asked for
	var all []m
	until(t, "the refusals are written", func() bool {
		all = p.do("admin", "GET", "/v1/audit?limit=200", nil).want(200).items()
		return len(all) >= 8
	})
	var got []string
	for _, r := range all {
		got = append(got, fmt.Sprint(r["action"], " ", r["status"]))
	}
	slices.Sort(got)
	want := []string{"GET /v1/nodes 401", "POST /v1/operations 403", "POST /v1/operations 422", "cluster.create 201", "cluster.create 201",
		"operation.cancel 200", "operation.cancel 204", "operation.create 202"}
	if !slices.Equal(got, want) {
		t.Errorf("audit %q", got)
	}
	paged := 0
	for cursor := ""; ; {
		a := p.do("admin", "GET", "/v1/audit?limit=3&cursor="+cursor, nil).want(200)
		paged += len(a.items())
		if cursor = a.str("next_cursor"); cursor == "" {
			break
		}
	}
	if paged != len(all) {
		t.Errorf("%d in pages, %d at once", paged, len(all))
	}
	if r := p.do("admin", "GET", "/v1/audit?resource="+opID+"&action=operation.create", nil).items(); len(r) != 1 || r[0]["correlation_id"] != "c-1" || r[0]["reason"] != "why not" {
		t.Error(r)
	}
	if r := p.do("admin", "GET", "/v1/audit?refused=true&since=2026-01-01T00:00:00Z", nil).items(); len(r) != 3 {
		t.Error(r)
	}
	p.do("admin", "GET", "/v1/audit?since=yesterday", nil).problem(422, problem.Invalid).points("/query/since")
}
