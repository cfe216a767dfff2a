package admission_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/admission"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
	"github.com/opsplane/opsplane/shared/record"
)

func TestTargets(t *testing.T) {
	t.Parallel()
	b := setup(t)
	node, dev := b.ids["alpha/node:gpu-node-2"], b.ids["alpha/device:"+gpu]
	for name, c := range map[string]struct {
		fields map[string]any
		want   string // target id, or the code
		faults string
	}{
		"id":                         {map[string]any{"target": node}, node, ""},
		"name":                       {nil, node, ""},
		"case counts":                {map[string]any{"target": "node:GPU-Node-2"}, b.ids["alpha/node:GPU-Node-2"], ""},
		"253 characters":             {map[string]any{"target": "node:" + longName}, b.ids["alpha/node:"+longName], ""},
		"dots":                       {map[string]any{"target": "node:a.b.c"}, b.ids["alpha/node:a.b.c"], ""},
		"slash":                      {map[string]any{"type": "deployment.roll", "target": "deployment:default/web"}, b.ids["alpha/deployment:default/web"], ""},
		"device":                     {map[string]any{"type": "device.reset", "target": "device:" + gpu}, dev, ""},
		"device, upper case":         {map[string]any{"type": "device.reset", "target": "device:" + strings.ToUpper(gpu)}, dev, ""},
		"device, no prefix":          {map[string]any{"type": "device.reset", "target": "device:" + strings.TrimPrefix(gpu, "GPU-")}, dev, ""},
		"device, by bus":             {map[string]any{"type": "device.reset", "target": "device:0000:18:00.0"}, dev, ""},
		"device, by node and index":  {map[string]any{"type": "device.reset", "target": "device:GPU-node-2/0", "cluster": "alpha"}, dev, ""},
		"device, no such bus":        {map[string]any{"type": "device.reset", "target": "device:0000:19:00.0"}, "not_found", "/target not_found"},
		"cluster by name":            {map[string]any{"target": "node:gpu-node-1", "cluster": "beta"}, b.ids["beta/node:gpu-node-1"], ""},
		"cluster by id":              {map[string]any{"target": "node:gpu-node-1", "cluster": b.ids["gamma"]}, b.ids["gamma/node:gpu-node-1"], ""},
		"id and its cluster":         {map[string]any{"target": node, "cluster": "alpha"}, node, ""},
		"in three clusters":          {map[string]any{"target": "node:gpu-node-1"}, "invalid", "/target ambiguous"},
		"id, other cluster":          {map[string]any{"target": node, "cluster": "beta"}, "not_found", "/target not_found"},
		"name, other cluster":        {map[string]any{"cluster": "beta"}, "not_found", "/target not_found"},
		"no such cluster":            {map[string]any{"cluster": "delta"}, "not_found", "/cluster not_found"},
		"no such name":               {map[string]any{"target": "node:nope"}, "not_found", "/target not_found"},
		"no such id":                 {map[string]any{"target": id.New(id.Node, t0)}, "not_found", "/target not_found"},
		"kind of the name":           {map[string]any{"target": "device:" + gpu}, "invalid", "/target kind"},
		"kind of the id":             {map[string]any{"target": dev}, "invalid", "/target kind"},
		"fleet":                      {map[string]any{"target": "fleet"}, "invalid", "/target kind"},
		"upper-case id":              {map[string]any{"target": "nod_" + strings.ToUpper(node[4:])}, "invalid", "/target format"},
		"kind alone":                 {map[string]any{"target": "node:"}, "invalid", "/target format"},
		"unknown kind":               {map[string]any{"target": "pod:web"}, "invalid", "/target format"},
		"bare name":                  {map[string]any{"target": "gpu-node-2"}, "invalid", "/target format"},
		"empty":                      {map[string]any{"target": ""}, "invalid", "/target required"},
		"600 bytes":                  {map[string]any{"target": "node:" + strings.Repeat("a", 595)}, "not_found", "/target not_found"},
		"601 bytes":                  {map[string]any{"target": "node:" + strings.Repeat("a", 596)}, "invalid", "/target max_length"},
		"control character":          {map[string]any{"target": "node:a\x00"}, "invalid", "/target characters"},
		"component of another":       {map[string]any{"type": "component.upgrade", "target": "cluster:beta", "payload": map[string]any{"component": "operator", "version": "1.2.3"}}, "invalid", "/payload/component not_found"},
		"cluster":                    {map[string]any{"type": "component.upgrade", "target": "cluster:alpha", "payload": map[string]any{"component": "operator", "version": "1.2.3"}}, b.ids["alpha"], ""},
		"cluster beside its cluster": {map[string]any{"type": "component.upgrade", "target": "cluster:alpha", "cluster": "beta", "payload": map[string]any{"component": "operator", "version": "1.2.3"}}, "not_found", "/target not_found"},
		"fleet and cluster":          {map[string]any{"type": "plan", "target": "fleet", "cluster": "alpha", "payload": map[string]any{"children": []any{map[string]any{}}}}, "invalid", "/cluster conflict"},
	} {
		fields := map[string]any{"dry_run": true}
		for k, v := range c.fields {
			fields[k] = v
		}
		a, err := b.admit(call(), body(fields))
		if err == nil {
			if a.Operation.Spec.TargetID != c.want {
				t.Errorf("%s: got %s, want %s", name, a.Operation.Spec.TargetID, c.want)
			}
			continue
		}
		var r *operation.Refusal
		if !errors.As(err, &r) || r.ErrorCode != c.want || faults(r) != c.faults {
			t.Errorf("%s: got %v (%v), want %s %s", name, err, r, c.want, c.faults)
		}
		if name == "in three clusters" {
			found := map[string]bool{}
			for _, x := range r.Extra["candidates"].([]admission.Candidate) {
				found[x.ClusterName+" "+x.Cluster+" "+x.ID] = true
			}
			for _, n := range []string{"alpha", "beta", "gamma"} {
				if !found[n+" "+b.ids[n]+" "+b.ids[n+"/node:gpu-node-1"]] {
					t.Errorf("candidates %v lack %s", found, n)
				}
			}
		}
	}
}

func TestScopedCaller(t *testing.T) {
	t.Parallel()
	b := setup(t)
	c := call()
	c.Caller.Clusters = []string{b.ids["beta"]}
	a, err := b.admit(c, body(map[string]any{"target": "node:gpu-node-1"})) // the others' are not candidates
	if err != nil || a.Operation.Spec.Cluster != b.ids["beta"] {
		t.Fatalf("%+v, %v", a, err)
	}
	_, err = b.admit(c, body(nil))
	refused(t, err, "not_found")
	_, err = b.admit(c, body(map[string]any{"target": b.ids["alpha/node:gpu-node-2"]}))
	refused(t, err, "forbidden")
	_, err = b.admit(c, body(map[string]any{"type": "plan", "target": "fleet", "payload": map[string]any{"children": children(1, nil)}}))
	refused(t, err, "forbidden")
}

func TestFieldsAllAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	_, err := b.admit(call(), []byte(`{"type":"node.drain","target":7,"reason":"","deadline":"tomorrow","requested_revision":-1,"dry_run":"yes",
		"payload":{"grace_period_seconds":"x","on_deadline":"never","extra":1},"who":"me"}`))
	want := "/deadline format,/dry_run type,/payload/extra unknown_field,/payload/grace_period_seconds type,/payload/on_deadline enum," +
		"/reason required,/requested_revision type,/target type,/who unknown_field"
	if got := faults(refused(t, err, "invalid")); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if b.tap.commits.Load() != 6 { // the setup's
		t.Error("a refusal wrote something")
	}
}

func TestBodies(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ok := string(body(map[string]any{"dry_run": true}))
	pad := func(n int) string { return ok + strings.Repeat(" ", n-len(ok)) }
	for raw, code := range map[string]string{
		"": "malformed", "{": "malformed", "nope": "malformed", ok + ok: "malformed", ok + "}": "malformed", ok + " x": "malformed",
		`{"a":` + strings.Repeat("[", 20000) + strings.Repeat("]", 20000) + `}`: "malformed",
		`[]`: "invalid", `null`: "invalid", `"x"`: "invalid", `7`: "invalid", `{"payload":` + strings.Repeat("[", 500) + strings.Repeat("]", 500) + `}`: "invalid",
		pad(admission.MaxBodyBytes + 1): "payload_too_large",
	} {
		_, err := b.admit(call(), []byte(raw))
		if r := refused(t, err, code); code == "payload_too_large" && r.Extra["limit"] != admission.MaxBodyBytes {
			t.Errorf("the limit is not in the answer: %v", r.Extra)
		}
	}
	if _, err := b.admit(call(), []byte(pad(admission.MaxBodyBytes))); err != nil {
		t.Errorf("at the limit: %v", err)
	}
}

func TestReasons(t *testing.T) {
	t.Parallel()
	b := setup(t)
	raw := func(reason string) []byte {
		return []byte(`{"type":"node.cordon","target":"node:gpu-node-2","dry_run":true,"reason":` + reason + `}`)
	}
	for reason, want := range map[string]string{
		`"firmware"`: "", `"two\nlines\tand a tab"`: "", `"Grüße 👩‍🚀"`: "", `"\ud83d\ude80"`: "",
		`"` + strings.Repeat("a", 1024) + `"`: "", `"` + strings.Repeat("a", 1025) + `"`: "/reason max_length",
		`"` + strings.Repeat("🚀", 256) + `"`: "", `"` + strings.Repeat("🚀", 256) + `a"`: "/reason max_length", `"` + strings.Repeat("🚀", 257) + `"`: "/reason max_length",
		`"\u0000"`: "/reason characters", `"a\u001bb"`: "/reason characters", `"a\rb"`: "/reason characters", `"\u0085"`: "/reason characters", `"\u2028"`: "/reason characters",
		`"\ud800"`: "/reason characters", `"\udc00\ud800"`: "/reason characters", "\"\xff\"": "/reason characters",
		`" \n\t"`: "/reason required", `"a\u202eb"`: "/reason characters", `"\u2069"`: "/reason characters", `""`: "/reason required", `null`: "/reason required", `7`: "/reason type", `["x"]`: "/reason type",
	} {
		_, err := b.admit(call(), raw(reason))
		if want == "" {
			if err != nil {
				t.Errorf("%.60s: %v", reason, err)
			}
			continue
		}
		if got := faults(refused(t, err, "invalid")); got != want {
			t.Errorf("%.60s: got %s, want %s", reason, got, want)
		}
	}
}

func TestDeadlines(t *testing.T) {
	t.Parallel()
	b := setup(t)
	at := func(d time.Duration) string { return t0.Add(d).Format(time.RFC3339Nano) }
	for in, want := range map[string]string{
		at(time.Minute): "", at(time.Hour): "", at(time.Hour + time.Second): "/deadline range", at(0): "/deadline past", at(-time.Second): "/deadline past",
		"9999-12-31T23:59:59Z": "/deadline range", "0001-01-01T00:00:00Z": "/deadline past", "2026-07-01T14:30:00+02:00": "", "2026-07-01T12:30:60Z": "/deadline format",
		"in an hour": "/deadline format", "2026-07-01": "/deadline format", "9999-12-31T23:59:59-23:59": "/deadline format", strings.Repeat("9", 65): "/deadline max_length",
	} {
		a, err := b.admit(call(), body(map[string]any{"deadline": in, "dry_run": true}))
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: %v", in, err)
		case want == "":
			if d := a.Operation.State.Deadline; d.Location() != time.UTC || !d.After(t0) || d.After(t0.Add(time.Hour)) {
				t.Errorf("%s: %v", in, d)
			}
		default:
			if got := faults(refused(t, err, "invalid")); got != want {
				t.Errorf("%s: got %s, want %s", in, got, want)
			}
		}
	}
	if op := b.must(nil); !op.State.Deadline.Equal(t0.Add(5 * time.Minute)) {
		t.Errorf("the default is %v", op.State.Deadline)
	}
}

func TestRevisions(t *testing.T) {
	t.Parallel()
	b := setup(t)
	_, err := b.admit(call(), body(map[string]any{"requested_revision": 6}))
	if r := refused(t, err, "stale_revision"); r.Extra["current_revision"] != int64(7) {
		t.Errorf("extra %v", r.Extra)
	}
	for _, bad := range []any{-1, 1.5, "7"} {
		_, err := b.admit(call(), body(map[string]any{"requested_revision": bad}))
		if got := faults(refused(t, err, "invalid")); got != "/requested_revision type" {
			t.Errorf("%v: %s", bad, got)
		}
	}
	if op := b.must(map[string]any{"requested_revision": 7}); *op.Spec.Request.RequestedRevision != 7 {
		t.Error("the revision is not on the operation")
	}
}

func TestTypesNotSupported(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, typ := range []string{"node.reboot", "workload.scale", "node.explode", strings.Repeat("x", 500_000)} {
		_, err := b.admit(call(), body(map[string]any{"type": typ, "reason": nil}))
		r := refused(t, err, "unsupported_type")
		if !slices.Equal(r.Extra["supported"].([]string), operation.Types()) || !strings.Contains(faults(r), "/reason required") || len(r.Detail) > 300 {
			t.Errorf("%.40s: %.200s %v", typ, r.Detail, r.Extra)
		}
	}
}

func TestSecrets(t *testing.T) {
	t.Parallel()
	b := setup(t)
	secret := "ghp_" + strings.Repeat("a", 36)
	for want, fields := range map[string]map[string]any{
		"/reason secret_in_request":               {"reason": "use " + secret},
		"/payload/pod_selector secret_in_request": {"type": "node.drain", "payload": map[string]any{"pod_selector": "k=" + secret}},
	} {
		_, err := b.admit(call(), body(fields))
		r := refused(t, err, "secret_in_request")
		if faults(r) != want || strings.Contains(fmt.Sprint(r, r.Errors), secret) {
			t.Errorf("got %s: %v", faults(r), r)
		}
	}
}

func TestForce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, p := range []map[string]any{{"force": true}, {"on_deadline": "force"}} {
		_, err := b.admit(call(), body(map[string]any{"type": "node.drain", "payload": p}))
		refused(t, err, "force_not_allowed")
	}
	_, err := b.admit(call(), body(map[string]any{"type": "plan", "target": "fleet", "payload": map[string]any{"children": []any{
		map[string]any{"type": "node.drain", "target": "node:gpu-node-2", "payload": map[string]any{"force": true}}}}}))
	refused(t, err, "force_not_allowed")
	c := call()
	c.Caller.Force = true
	a, err := b.admit(c, body(map[string]any{"type": "node.drain", "payload": map[string]any{"force": true}}))
	if err != nil || !slices.ContainsFunc(a.Operation.Spec.Decisions, func(d operation.Decision) bool { return d.Gate == "force" && d.Result == "allowed" }) {
		t.Errorf("%+v, %v", a.Operation.Spec.Decisions, err)
	}
}

func TestIdempotency(t *testing.T) {
	t.Parallel()
	b := setup(t)
	c := call()
	c.IdempotencyKey = "k"
	first, err := b.admit(c, body(nil))
	if err != nil || first.Replayed {
		t.Fatal(first, err)
	}
	for name, raw := range map[string]string{
		"same":       string(body(nil)),
		"key order":  `{"reason":"firmware","target":"node:gpu-node-2","type":"node.cordon"}`,
		"whitespace": "\n{ \"type\" : \"node.cordon\",\t\"target\":\"node:gpu-node-2\", \"reason\":\"firmware\" }\n",
		"escapes":    `{"type":"node.cordon","target":"node:gpu-node-2","reason":"\u0066irmware"}`,
	} {
		a, err := b.admit(c, []byte(raw))
		if err != nil || !a.Replayed || a.Operation.Spec.ID != first.Operation.Spec.ID {
			t.Errorf("%s: %v, %v", name, a, err)
		}
	}
	for name, fields := range map[string]map[string]any{"other reason": {"reason": "x"}, "other target": {"target": "node:a.b.c"}, "not valid": {"target": 7}, "dry run": {"dry_run": true}} {
		_, err := b.admit(c, body(fields))
		if r := refused(t, err, "idempotency_key_reused"); r.OperationID != first.Operation.Spec.ID {
			t.Errorf("%s: %v", name, r)
		}
	}
	for name, mend := range map[string]func(*admission.Call){
		"path": func(c *admission.Call) { c.Path = "/v1/other" }, "method": func(c *admission.Call) { c.Method = "PUT" },
		"principal": func(c *admission.Call) { c.Caller.Actor.ID = "tok_bob" },
	} {
		other := c
		mend(&other)
		if _, err := b.admit(other, body(map[string]any{"dry_run": true})); err != nil { // another scope: a request of its own
			t.Errorf("other %s: %v", name, err)
		}
	}

	// It is the first operation still, after it has ended, when its target is
	// gone, and 24 hours later.
	_, err = b.store.Update(context.Background(), first.Operation.Spec.ID, func(*operation.Operation) (operation.Change, []ledger.Write, error) {
		return operation.RequestCancel{By: operation.Plane}, nil, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.store.RemoveObject(context.Background(), first.Operation.Spec.TargetID); err != nil {
		t.Fatal(err)
	}
	day := t0.Add(24 * time.Hour)
	b.now.Store(&day)
	a, err := b.admit(c, body(nil))
	if err != nil || !a.Replayed || a.Operation.State.Phase != operation.Cancelled {
		t.Errorf("after the end: %+v, %v", a, err)
	}
	// Past retention of the operation the key still names it.
	if err := b.store.DeleteOperation(context.Background(), first.Operation.Spec.ID); err != nil {
		t.Fatal(err)
	}
	_, err = b.admit(c, body(nil))
	refused(t, err, "gone")
}

func TestIdempotencyInFlight(t *testing.T) {
	t.Parallel()
	b := setup(t)
	c := call()
	c.IdempotencyKey = "k"
	var fresh atomic.Int64
	var ids [16]string
	atOnce(16, func(i int) {
		a, err := b.admit(c, body(nil))
		if err != nil {
			t.Errorf("call %d: %v", i, err)
			return
		}
		if !a.Replayed {
			fresh.Add(1)
		}
		ids[i] = a.Operation.Spec.ID
	})
	if fresh.Load() != 1 || len(slices.Compact(ids[:])) != 1 {
		t.Errorf("%d were the first, ids %v", fresh.Load(), ids)
	}
}

func TestDryRunChangesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.many(3)
	held := b.must(nil)
	before := b.tap.commits.Load()
	c := call()
	c.IdempotencyKey = "k"
	for name, fields := range map[string]map[string]any{
		"free": {"target": "node:a.b.c"}, "held": nil, "drain": {"type": "node.drain", "target": "node:a.b.c"},
		"plan": {"type": "plan", "target": "fleet", "payload": map[string]any{"children": children(3, nil)}},
	} {
		f := map[string]any{"dry_run": true}
		for k, v := range fields {
			f[k] = v
		}
		a, err := b.admit(c, body(f))
		if err != nil || !a.DryRun {
			t.Fatalf("%s: %+v, %v", name, a, err)
		}
		conflict := slices.ContainsFunc(a.Blockers.Items, func(x protocol.Blocker) bool {
			return x.Code == "operation_conflict" && strings.Contains(x.Detail, held.Spec.ID)
		})
		if conflict != (name == "held") {
			t.Errorf("%s: blockers %+v", name, a.Blockers)
		}
		if _, err := b.store.Load(context.Background(), a.Operation.Spec.ID); !errors.Is(err, ledger.ErrNotFound) {
			t.Errorf("%s: the operation is there: %v", name, err)
		}
	}
	if n := b.tap.commits.Load(); n != before {
		t.Errorf("%d commits by dry runs", n-before)
	}
}

func TestOneWinsTheLock(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var won atomic.Pointer[string]
	var lost atomic.Int64
	holders := make([]string, 32)
	atOnce(32, func(i int) {
		a, err := b.admit(call(), body(map[string]any{"reason": fmt.Sprint("try ", i)}))
		if err == nil {
			if won.Swap(&a.Operation.Spec.ID) != nil {
				t.Error("two won")
			}
			return
		}
		r := refused(t, err, "operation_conflict")
		holder := r.Extra["holder"].(map[string]any)
		if holder["operation_id"] != r.OperationID || holder["phase"] != operation.Pending || holder["link"] != "/v1/operations/"+r.OperationID {
			t.Errorf("holder %v", holder)
		}
		holders[i] = r.OperationID
		lost.Add(1)
	})
	if won.Load() == nil || lost.Load() != 31 {
		t.Fatalf("%d lost, won %v", lost.Load(), won.Load())
	}
	for i, h := range holders {
		if h != "" && h != *won.Load() {
			t.Errorf("call %d was told of %s, %s won", i, h, *won.Load())
		}
	}
}

func TestResetSharesTheNode(t *testing.T) {
	t.Parallel()
	b := setup(t)
	other := "GPU-8f3c0000-0000-4000-8000-0000000000bb"
	b.inventory("alpha", protocol.Inventory{Devices: []protocol.Device{{UID: other, NodeUID: "uid-gpu-node-2", NodeName: "gpu-node-2", Revision: 1}}})
	reset := map[string]any{"type": "device.reset", "target": "device:" + gpu}
	first := b.must(reset)
	b.must(map[string]any{"type": "device.reset", "target": "device:" + other}) // shares the node
	_, err := b.admit(call(), body(reset))
	refused(t, err, "operation_conflict")
	_, err = b.admit(call(), body(nil)) // the node itself
	if r := refused(t, err, "operation_conflict"); r.OperationID != first.Spec.ID {
		t.Errorf("the holder is %s", r.OperationID)
	}
}

// TestOneCommit: an admission whose commit fails leaves nothing at all, and is
// as it would have been when it is asked for again.
func TestOneCommit(t *testing.T) {
	t.Parallel()
	for _, failure := range []error{ledger.ErrUnavailable, &ledger.ConflictError{Keys: []ledger.Key{{PK: "x", SK: "y"}}}} {
		b := setup(t)
		b.many(40)
		for _, fields := range []map[string]any{nil, {"type": "plan", "target": "cluster:alpha", "payload": map[string]any{"children": children(40, nil)}}} {
			c := call()
			c.IdempotencyKey = fmt.Sprint(fields)
			before := b.tap.commits.Load()
			b.tap.fail.Store(&failure)
			a, err := b.admit(c, body(fields))
			if errors.Is(failure, ledger.ErrConflict) { // tried again at once
				if err != nil || a.Replayed || b.tap.commits.Load() != before+1 {
					t.Fatalf("%+v, %v, %d commits", a, err, b.tap.commits.Load()-before)
				}
				continue
			}
			if !errors.Is(err, failure) || b.tap.commits.Load() != before {
				t.Fatalf("got %v, %d commits", err, b.tap.commits.Load()-before)
			}
			a, err = b.admit(c, body(fields))
			if err != nil || a.Replayed || b.tap.commits.Load() != before+1 {
				t.Fatalf("again: %+v, %v, %d commits", a, err, b.tap.commits.Load()-before)
			}
		}
	}
}

func TestWhatAnAdmissionKeeps(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := context.Background()
	op := b.must(map[string]any{"type": "device.reset", "target": "device:" + gpu})
	got, err := b.store.Load(ctx, op.Spec.ID)
	if err != nil || got.State.Phase != operation.Pending || got.Spec.CorrelationID != "cor_1" || got.Spec.NodeName != "gpu-node-2" {
		t.Fatalf("%+v, %v", got, err)
	}
	locks, err := b.store.Locks(ctx, got.Spec.Resources)
	if err != nil || len(locks) != 2 {
		t.Fatalf("locks %v, %v", locks, err)
	}
	entries, err := b.store.Journal(ctx, op.Spec.ID, 1, 0)
	if err != nil || operation.VerifyChain(entries, got.State.Journal) != nil {
		t.Fatalf("journal %v, %v", entries, err)
	}
	for _, r := range got.Spec.Resources {
		found, _, err := b.store.Operations(ctx, record.OperationsBy{Resource: r}, record.Span{Limit: 10})
		if err != nil || len(found) != 1 || found[0].ID != op.Spec.ID {
			t.Errorf("resource %s: %v, %v", r, found, err)
		}
	}
	audits, _, err := b.store.Audits(ctx, "", t0.Add(time.Second), t0.Add(-time.Hour), 10)
	if err != nil || len(audits) != 1 || audits[0].Resource != op.Spec.ID {
		t.Errorf("audit %v, %v", audits, err)
	}
}

func TestPlanChildrenAllAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.many(5)
	plan := func(target string, kids []any) error {
		_, err := b.admit(call(), body(map[string]any{"type": "plan", "target": target, "payload": map[string]any{"children": kids}}))
		return err
	}
	err := plan("cluster:alpha", []any{
		map[string]any{"type": "node.cordon", "target": "node:n0"},
		map[string]any{"type": "node.cordon", "target": "node:nope"},
		map[string]any{"type": "plan", "target": "fleet"},
		map[string]any{"type": "node.reboot", "target": "node:n1"},
		map[string]any{"type": "node.drain", "target": "node:n1", "payload": map[string]any{"on_deadline": "x"}, "deadline": "soon", "who": 1},
		map[string]any{"type": "node.cordon", "target": "node:gpu-node-1", "cluster": "beta"},
		map[string]any{"type": "node.cordon", "target": "node:gpu-node-1"},
		map[string]any{"type": "component.upgrade", "target": "cluster:alpha", "payload": map[string]any{"component": "nope", "version": "1.2.3"}},
		map[string]any{"type": "node.cordon", "target": "node:n2", "dry_run": true},
		7,
	})
	got := faults(refused(t, err, "invalid"))
	for _, want := range []string{"/payload/children/1/target not_found", "/payload/children/2/type enum", "/payload/children/3/type enum",
		"/payload/children/4/payload/on_deadline enum", "/payload/children/4/deadline format", "/payload/children/4/who unknown_field",
		"/payload/children/5/target cluster", "/payload/children/6/target ambiguous", "/payload/children/7/payload/component not_found",
		"/payload/children/8/dry_run unknown_field", "/payload/children/9 type"} {
		if !slices.Contains(strings.Split(got, ","), want) {
			t.Errorf("no %s in %s", want, got)
		}
	}
	if strings.Contains(got, "/children/0") {
		t.Errorf("a good child is refused: %s", got)
	}

	// What does not fit in a child's item is not read.
	raw := `{"type":"plan","target":"fleet","reason":"r","payload":{"children":[{"type":"node.cordon","target":"node:n0"` +
		`,"reason":"` + strings.Repeat(`\u0061`, 3000) + `"}]}}`
	_, err = b.admit(call(), []byte(raw))
	if got := faults(refused(t, err, "invalid")); got != "/payload/children/0 max_length" {
		t.Error(got)
	}
}

func TestPlanOfAThousand(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.many(1000)
	before := b.tap.commits.Load()
	a, err := b.admit(call(), body(map[string]any{"type": "plan", "target": "cluster:alpha", "payload": map[string]any{"children": children(1000, nil), "max_in_flight": 50}}))
	if err != nil {
		t.Fatal(err)
	}
	if n := b.tap.commits.Load() - before; n != 1 {
		t.Errorf("%d commits", n)
	}
	kids, err := b.store.Children(context.Background(), a.Operation.Spec.ID)
	if err != nil || len(kids.Kids) != 1000 {
		t.Fatalf("%d children, %v", len(kids.Kids), err)
	}
	seen := map[string]bool{}
	for i, k := range kids.Kids {
		if k.Index != i || k.TargetID != b.ids[fmt.Sprintf("alpha/node:n%d", i)] || !id.Valid(id.Operation, k.Operation) || seen[k.Operation] || k.Admitted {
			t.Fatalf("child %d: %+v", i, k)
		}
		seen[k.Operation] = true
	}
	if c := a.Operation.State.Children; c == nil || c.Total != 1000 || c.Waiting != 1000 {
		t.Errorf("counts %+v", c)
	}
	got := decode[operation.PlanPayload](t, a.Operation.Spec.Request.Payload)
	if got.Children != 1000 || got.MaxInFlight != 50 {
		t.Errorf("payload %+v", got)
	}
	_, err = b.admit(call(), body(map[string]any{"type": "plan", "target": "cluster:alpha", "payload": map[string]any{"children": children(1001, func(i int, c map[string]any) { c["target"] = "node:n0" })}}))
	if got := faults(refused(t, err, "invalid")); got != "/payload/children max_items" {
		t.Error(got)
	}
}
