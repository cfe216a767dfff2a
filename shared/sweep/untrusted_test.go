package sweep_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
	"github.com/opsplane/opsplane/shared/record"
)

func spanOf(n int) record.Span { return record.Span{Limit: n} }

func (a *agent) inventory(req protocol.InventoryRequest) protocol.InventoryAnswer {
	a.p.t.Helper()
	req.AgentID, req.Boot = a.id, a.boot
	ans, err := a.p.api.Inventory(context.Background(), a.cluster, req)
	a.p.no(err)
	return ans
}

func (a *agent) events(evs ...protocol.Event) protocol.EventsAnswer {
	a.p.t.Helper()
	ans, err := a.p.api.Events(context.Background(), a.cluster, protocol.EventsRequest{AgentID: a.id, Boot: a.boot, Events: evs})
	a.p.no(err)
	return ans
}

func ready(n int64) protocol.Event {
	return protocol.Event{N: n, Type: "node.ready", Subject: protocol.Subject{Kind: "node", UID: "uid-n0", Name: "n0"}, At: t0, Detail: json.RawMessage(fmt.Sprintf(`{"n":%d}`, n))}
}

func (p *plane) node(name string) (fleet.Object, bool) {
	p.t.Helper()
	o, _, err := p.store.Object(context.Background(), p.nodeID(name))
	if err != nil && !strings.Contains(err.Error(), ledger.ErrNotFound.Error()) {
		p.t.Fatal(err)
	}
	return o, err == nil
}

func TestReportedEvents(t *testing.T) {
	t.Parallel()
	p := setup(t)
	a := p.agent("a")
	if r := a.events(ready(1), ready(2), ready(3)); r.Through != 3 || len(r.Refused) != 0 {
		t.Errorf("answer %+v", r)
	}
	if r := a.events(ready(1), ready(2), ready(3)); r.Through != 3 { // resent
		t.Errorf("answer %+v", r)
	}
	if r := a.events(ready(2), ready(3), ready(4)); r.Through != 4 { // resent in part
		t.Errorf("answer %+v", r)
	}
	if r := a.events(ready(7)); r.Through != 7 { // 5 and 6 are lost
		t.Errorf("answer %+v", r)
	}
	bad := ready(9)
	bad.Type = "operation.succeeded"
	worse := ready(10)
	worse.Subject.UID = strings.Repeat("x", 10_000)
	if r := a.events(ready(8), bad, worse, ready(11)); r.Through != 11 || len(r.Refused) != 2 || r.Refused[0].N != 9 || r.Refused[1].N != 10 {
		t.Errorf("answer %+v", r)
	}
	if r := a.events(); r.Through != 11 {
		t.Errorf("answer %+v", r)
	}
	a.boot = "boot-2"
	p.no(a.beat())
	if r := a.events(ready(1)); r.Through != 1 { // a new process counts from 1
		t.Errorf("answer %+v", r)
	}
	evs := p.events("")
	want := "agent.online" + strings.Repeat(" node.ready", 4) + " stream.gap node.ready node.ready stream.gap stream.gap node.ready agent.restarted agent.online node.ready"
	if got := types(evs); got != want {
		t.Errorf("stream: %s\nwant    %s", got, want)
	}
	var gap struct{ From, Through int64 }
	if err := json.Unmarshal(evs[5].Detail, &gap); err != nil || gap.From != 5 || gap.Through != 6 {
		t.Errorf("gap %s", evs[5].Detail)
	}
	if _, err := p.api.Events(context.Background(), p.cl, protocol.EventsRequest{AgentID: a.id, Boot: a.boot, Events: make([]protocol.Event, protocol.MaxEvents+1)}); code(err) != "payload_too_large" {
		t.Errorf("too many: %v", err)
	}
	full := make([]protocol.Event, protocol.MaxEvents) // the largest batch, with the largest details
	for i := range full {
		full[i] = ready(int64(i + 2))
		full[i].Detail = json.RawMessage(`{"x":"` + strings.Repeat("y", protocol.MaxEventBytes-10) + `"}`)
	}
	if r := a.events(full...); r.Through != protocol.MaxEvents+1 || len(r.Refused) != 0 {
		t.Errorf("answer %d, refused %d", r.Through, len(r.Refused))
	}
	p.sound()
}

// TestSnapshot: a full inventory takes away what it does not name, and only when
// all its parts are in.
func TestSnapshot(t *testing.T) {
	t.Parallel()
	p := setup(t)
	a, b := p.agent("a"), p.agent("b")
	part := func(snapshot string, n int, last bool, names ...string) protocol.InventoryRequest {
		r := protocol.InventoryRequest{Snapshot: snapshot, Part: n, Last: last}
		for _, name := range names {
			r.Objects.Nodes = append(r.Objects.Nodes, node(name, 5))
		}
		return r
	}
	if r := b.inventory(part("s", 0, true)); r.Reporter { // a holds the reporter's lease
		t.Errorf("answer %+v", r)
	}
	a.inventory(part("s1", 1, true, "n1")) // part 0 is missing
	for _, n := range []string{"n0", "n1", "n2"} {
		if _, ok := p.node(n); !ok {
			t.Errorf("%s went by half an inventory", n)
		}
	}
	waiting := p.dispatched("n2")
	a.inventory(part("s2", 0, false, "n0"))
	if r := a.inventory(part("s2", 1, true, "n1", "n9")); !r.Reporter || r.FullInventory {
		t.Errorf("answer %+v", r)
	}
	for n, want := range map[string]bool{"n0": true, "n1": true, "n2": false, "n9": true} {
		if _, ok := p.node(n); ok != want {
			t.Errorf("%s is there: %v", n, ok)
		}
	}
	p.want(waiting, operation.Failed)

	// A node that breaks a limit exists all the same.
	big := node("n1", 9)
	big.Labels = map[string]string{"k": strings.Repeat("v", fleet.MaxLabelBytes+1)}
	a.inventory(protocol.InventoryRequest{Snapshot: "s3", Last: true, Objects: protocol.Inventory{Nodes: []protocol.Node{node("n0", 6), big, node("n9", 6)}}})
	if o, ok := p.node("n1"); !ok || o.Revision != 5 {
		t.Errorf("n1: %+v, %v", o, ok)
	}

	// An older state does not come back.
	a.inventory(protocol.InventoryRequest{Objects: protocol.Inventory{Nodes: []protocol.Node{node("n0", 2)}}})
	if o, _ := p.node("n0"); o.Revision != 6 {
		t.Errorf("n0 went back to revision %d", o.Revision)
	}

	// A node that is made again under its old name is another node: what waits
	// for the old one does not act on it.
	old := p.dispatched("n0")
	a.inventory(protocol.InventoryRequest{Gone: []string{"node/uid-n0"}, Objects: protocol.Inventory{Nodes: []protocol.Node{{UID: "uid-new", Name: "n0", Revision: 1}}}})
	p.want(old, operation.Failed)
	op := p.dispatched("n0")
	if as := a.granted(op); as.TargetUID != "uid-new" || as.TargetID == p.nodeID("n0") {
		t.Errorf("assignment %+v", as)
	}

	// The other agent takes over when the reporter is silent.
	p.pass(time.Minute)
	p.no(b.beat())
	if r := a.inventory(protocol.InventoryRequest{}); r.Reporter {
		t.Errorf("two report: %+v", r)
	}
	p.sound()
}

// TestInventoryWithoutWhatIsUnread: what an agent cannot read is not gone from a cluster
// since no part of a full inventory names it; what it could read, and does not name, is.
func TestInventoryWithoutWhatIsUnread(t *testing.T) {
	t.Parallel()
	p := setup(t)
	a := p.agent("a")
	set, graph := protocol.Deployment{UID: "set", Name: "ml/llm", Kind: "LeaderWorkerSet", Revision: 1}, protocol.Deployment{UID: "graph", Name: "ml/chat", Kind: "DynamoGraphDeployment", Revision: 1}
	nodes := []protocol.Node{node("n0", 1)}
	all := protocol.Inventory{Nodes: nodes, Deployments: []protocol.Deployment{set, graph}}
	for i, c := range []struct {
		full       protocol.Inventory
		set, graph bool // are there
	}{
		{all, true, true},
		{protocol.Inventory{Nodes: nodes, Unread: []string{"LeaderWorkerSet"}}, true, false},
		{protocol.Inventory{Nodes: nodes}, false, false},
	} {
		a.inventory(protocol.InventoryRequest{Snapshot: fmt.Sprint("u", i), Last: true, Objects: c.full})
		for uid, want := range map[string]bool{"set": c.set, "graph": c.graph} {
			if _, _, err := p.store.Object(t.Context(), fleet.DeploymentID(p.cl, uid)); (err == nil) != want {
				t.Errorf("after inventory %d %s: %v", i, uid, err)
			}
		}
	}
}

// TestInventoryOfAnySize: the largest call, objects twice, one GPU under two
// spellings: all that fits is taken.
func TestInventoryOfAnySize(t *testing.T) {
	t.Parallel()
	p := setup(t)
	a := p.agent("a")
	labels := map[string]string{}
	for i := range 90 {
		labels[fmt.Sprint("example.com/label-", i)] = strings.Repeat(`"`, 200)
	}
	var req protocol.InventoryRequest
	for i := range 300 {
		n := node(fmt.Sprint("m", i), 1)
		n.Labels = labels
		req.Objects.Nodes = append(req.Objects.Nodes, n)
	}
	req.Objects.Nodes = append(req.Objects.Nodes, node("m0", 7), node("m0", 3))
	huge := node("huge", 1)
	huge.Blockers = []protocol.Blocker{{Code: "pdb", Detail: strings.Repeat("x", 1<<20)}}
	req.Objects.Nodes = append(req.Objects.Nodes, huge)
	gpu := "8F3C0000-0000-4000-8000-0000000000AA"
	req.Objects.Devices = []protocol.Device{{UID: "GPU-" + gpu, NodeUID: "uid-m0", Revision: 1}, {UID: strings.ToLower(gpu), NodeUID: "uid-m0", Revision: 2}}
	req.Objects.Deployments = []protocol.Deployment{{UID: "d", Name: "default/web", Image: strings.Repeat("x", 400_000)}, {UID: "e", Name: "default/ok"}}
	if r := a.inventory(req); !r.Reporter {
		t.Fatalf("answer %+v", r)
	}
	if o, ok := p.node("m0"); !ok || o.Revision != 7 {
		t.Errorf("m0: revision %d, %v", o.Revision, ok)
	}
	if _, ok := p.node("m299"); !ok {
		t.Error("m299 is missing")
	}
	if _, ok := p.node("huge"); ok {
		t.Error("a node of a megabyte was taken")
	}
	for kind, want := range map[string]int{operation.KindDevice: 1, operation.KindDeployment: 1} {
		if os, _, err := p.store.Objects(context.Background(), kind, p.cl, spanOf(10)); err != nil || len(os) != want {
			t.Errorf("%d of kind %s, %v", len(os), kind, err)
		}
	}
	r := protocol.InventoryRequest{AgentID: a.id, Boot: a.boot, Gone: make([]string, protocol.MaxInventory+1)}
	if _, err := p.api.Inventory(context.Background(), p.cl, r); code(err) != "payload_too_large" {
		t.Errorf("too many: %v", err)
	}
}

// TestReportsOfAnySize: the largest report that an agent may send is taken, and
// the operation ends.
func TestReportsOfAnySize(t *testing.T) {
	t.Parallel()
	p := setup(t)
	a := p.agent("a")
	op := p.dispatched("n0")
	as := a.granted(op)
	long := strings.Repeat(`"<&`, 100_000)
	r := success(as, 1, 2)
	for i := range r.Steps {
		r.Steps[i].Detail, r.Steps[i].ErrorCode = long, long
	}
	for range protocol.MaxCommands {
		r.Commands = append(r.Commands, protocol.Command{ID: id.New(id.Command, t0), StepID: as.Steps[2].ID, Name: long, Resource: long, Category: long, Output: long, StartAgoMS: 1 << 60, EndAgoMS: -5})
	}
	for range 50 {
		r.Notes = append(r.Notes, protocol.Note{Code: long, Detail: long, StepID: long})
		r.Final.Verified = append(r.Final.Verified, long)
		r.Final.NotVerified = append(r.Final.NotVerified, long)
		r.Final.Residual = append(r.Final.Residual, operation.Residual{StepID: as.Steps[2].ID, Step: long, Resource: p.nodeID("n0"), Detail: long})
	}
	r.Progress = &operation.Progress{Step: "evict", Done: -1, Total: 1 << 40, Unit: long, Message: long}
	r.Final.Message = long
	r.Final.Details = json.RawMessage(`"` + strings.Repeat("<", protocol.MaxDetailsBytes-2) + `"`)
	a.told(r)
	o := p.want(op, operation.Succeeded)
	if n := len(record.Encode(o.State)); n > ledger.MaxItemBytes {
		t.Errorf("the state takes %d bytes", n)
	}
	p.settle()
	cmds, err := p.store.Commands(context.Background(), op, "", 0, protocol.MaxCommands)
	if err != nil || len(cmds) != protocol.MaxCommands {
		t.Errorf("%d commands, %v", len(cmds), err)
	}
	p.sound()

	for name, mend := range map[string]func(r *protocol.Report){
		"n":        func(r *protocol.Report) { r.N = 0 },
		"steps":    func(r *protocol.Report) { r.Steps = make([]protocol.StepReport, 101) },
		"notes":    func(r *protocol.Report) { r.Notes = make([]protocol.Note, 51) },
		"commands": func(r *protocol.Report) { r.Commands = make([]protocol.Command, protocol.MaxCommands+1) },
		"details":  func(r *protocol.Report) { r.Final.Details = make(json.RawMessage, protocol.MaxDetailsBytes+1) },
		"no JSON":  func(r *protocol.Report) { r.Final.Details = json.RawMessage("{") },
		"outcome":  func(r *protocol.Report) { r.Final.Outcome = "exploded" },
		"foreign step": func(r *protocol.Report) {
			r.Steps = append(r.Steps, protocol.StepReport{StepID: id.New(id.Step, t0), Phase: operation.StepSucceeded})
		},
	} {
		op := p.create(drain("n1"))
		p.settle()
		r := success(a.granted(op), 1, 2)
		mend(&r)
		if res := a.report(r); res.OK || res.ErrorCode != "invalid" {
			t.Errorf("%s: %+v", name, res)
		}
		if st := p.want(op, operation.Running).State; st.Lease.LastReport != 0 {
			t.Errorf("%s: something was taken", name)
		}
		a.told(success(a.granted(op), 1, 2)) // it can still end well
	}
}

// TestForeignObservations: what a report observed of other things than its own
// resources is not written.
func TestForeignObservations(t *testing.T) {
	t.Parallel()
	p := setup(t)
	a := p.agent("a")
	op := p.dispatched("n0")
	r := success(a.granted(op), 1, 5)
	r.Final.Observed.Nodes = append(r.Final.Observed.Nodes, node("n1", 99), node("n0", 4))
	r.Final.Verified = []string{"clean\x1b[31m", "\xff\xfe"}
	r.Commands = []protocol.Command{{ID: "nope", StepID: r.Steps[0].StepID}, {ID: id.New(id.Command, t0), StepID: "stp_x"}}
	a.told(r)
	if o, _ := p.node("n1"); o.Revision != 1 {
		t.Error("a report on n0 changed n1")
	}
	if o, _ := p.node("n0"); o.Revision != 5 {
		t.Errorf("n0 is at revision %d", o.Revision)
	}
	for _, v := range p.load(op).State.Result.Verified {
		if !operation.CleanText(v) {
			t.Errorf("verified %q", v)
		}
	}
	if cmds, err := p.store.Commands(context.Background(), op, "", 0, 10); err != nil || len(cmds) != 0 {
		t.Errorf("commands %+v, %v", cmds, err)
	}
}

// TestForeignAgents: an agent reaches its own cluster and its own leases.
func TestForeignAgents(t *testing.T) {
	t.Parallel()
	p := setup(t)
	ctx := context.Background()
	a, b := p.agent("a"), p.agent("b")
	op := p.dispatched("n0")
	as := a.granted(op)
	if r := b.renew(op, 1); r.OK || r.ErrorCode != "lease_lost" {
		t.Errorf("another's lease renewed: %+v", r)
	}
	before := p.load(op).Version
	if r := b.report(success(as, 1, 2)); r.OK || p.load(op).Version != before { // it never held it: not even a late report
		t.Errorf("another's lease reported: %+v", r)
	}
	x := &agent{p: p, cluster: p.other, name: "x", boot: "b", id: fleet.AgentID(p.other, "x")}
	p.no(x.beat())
	if r := x.report(success(as, 1, 2)); r.OK || r.ErrorCode != "not_found" {
		t.Errorf("reported from another cluster: %+v", r)
	}
	if r := x.renew(op, 1); r.OK {
		t.Errorf("renewed from another cluster: %+v", r)
	}
	stolen := *a
	stolen.cluster = p.other
	if _, err := p.api.Claim(ctx, p.other, protocol.ClaimRequest{AgentID: stolen.id, Boot: stolen.boot}); code(err) != "not_found" {
		t.Errorf("an agent of another cluster: %v", err)
	}
	for name, hb := range map[string]protocol.Heartbeat{
		"no name": {Boot: "b"}, "no boot": {Name: "n"}, "long name": {Name: strings.Repeat("n", 254), Boot: "b"}, "name": {Name: "a\x00", Boot: "b"}, "boot": {Name: "n", Boot: "a\nb\x1b"},
		"capabilities": {Name: "n", Boot: "b", Capabilities: make([]protocol.Capability, 65)},
		"capability":   {Name: "n", Boot: "b", Capabilities: []protocol.Capability{{Name: strings.Repeat("c", 400_000)}}},
	} {
		if _, err := p.api.Heartbeat(ctx, p.cl, hb); code(err) != "invalid" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := p.api.Claim(ctx, p.cl, protocol.ClaimRequest{AgentID: a.id, Boot: a.boot, Claims: make([]protocol.Claim, protocol.MaxBatch+1)}); code(err) != "payload_too_large" {
		t.Errorf("too many claims: %v", err)
	}
	if p.load(op).Version != before {
		t.Error("a stranger changed the operation")
	}
}
