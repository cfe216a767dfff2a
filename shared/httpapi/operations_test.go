package httpapi

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/admission"
	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/problem"
	"github.com/opsplane/opsplane/shared/record"
)

const noOperation = "op_00000000000000000000000000"

type m = map[string]any

func TestCreate(t *testing.T) {
	t.Parallel()
	p := setup(t)
	node := p.node(p.cluster, "a")
	body := m{"type": "node.drain", "target": node, "reason": "firmware"}
	a := p.do("operator", "POST", "/v1/operations", body, "Idempotency-Key: k1", "X-Correlation-ID: corr.1").want(202)
	opID := a.str("id")
	for name, value := range map[string]string{"Location": "/v1/operations/" + opID, "Retry-After": "1", "ETag": `"1"`, "X-Correlation-Id": "corr.1", "Idempotency-Replayed": ""} {
		if got := a.header.Get(name); got != value {
			t.Errorf("%s: %q, want %q", name, got, value)
		}
	}
	if a.str("correlation_id") != "corr.1" || !strings.HasPrefix(a.header.Get("X-Request-Id"), "req_") || a.str("request_id") != a.header.Get("X-Request-Id") {
		t.Errorf("ids: %s %v", a.raw, a.header)
	}
	again := p.do("operator", "POST", "/v1/operations", body, "Idempotency-Key: k1").want(200)
	if again.str("id") != opID || again.header.Get("Idempotency-Replayed") != "true" {
		t.Errorf("replay: %s %v", again.raw, again.header)
	}
	body["reason"] = "other"
	if r := p.do("operator", "POST", "/v1/operations", body, "Idempotency-Key: k1").problem(422, problem.IdempotencyKeyReused); r.str("operation_id") != opID {
		t.Errorf("reused: %s", r.raw)
	}
	c := p.do("operator", "POST", "/v1/operations", body).problem(409, problem.OperationConflict)
	if h, _ := c.j["holder"].(m); h["operation_id"] != opID || h["link"] != "/v1/operations/"+opID || h["phase"] != "pending" || c.str("operation_id") != opID {
		t.Errorf("conflict: %s", c.raw)
	}
	for _, key := range []string{strings.Repeat("k", 256), "k\u00e9", "", "a\tb"} {
		req := p.do("operator", "POST", "/v1/operations", body, "Idempotency-Key: "+key)
		req.problem(422, problem.Invalid).points("/header/Idempotency-Key")
	}
	p.do("admin", "POST", "/v1/operations", m{"type": "node.drain", "target": node, "reason": "x", "dry_run": true}).want(200)
}

func TestDryRun(t *testing.T) {
	t.Parallel()
	p := setup(t)
	node := p.node(p.cluster, "a")
	a := p.do("operator", "POST", "/v1/operations", m{"type": "node.drain", "target": node, "reason": "x", "dry_run": true}).want(200)
	if id, ok := a.j["id"]; !ok || id != nil || a.j["dry_run"] != true || len(a.j["plan"].([]any)) != 5 || a.str("blockers_status") != "unknown" || a.j["blockers_observed_at"] == nil {
		t.Error(a.raw)
	}
	if !strings.Contains(a.raw, "default/web") || a.header.Get("Location") != "" || a.header.Get("ETag") != "" {
		t.Error(a.raw, a.header)
	}
	if got := p.do("viewer", "GET", "/v1/operations", nil).items(); len(got) != 0 {
		t.Errorf("a dry run made %v", got)
	}
}

func TestCreateRefusals(t *testing.T) {
	t.Parallel()
	p := setup(t)
	node := p.node(p.cluster, "same")
	p.node(p.other, "same")
	ok := func(change m) m {
		b := m{"type": "node.cordon", "target": node, "reason": "x"}
		for k, v := range change {
			b[k] = v
		}
		return b
	}
	for name, tt := range map[string]struct {
		body    any
		status  int
		code    problem.Code
		pointer string
	}{
		"empty":            {nil, 400, problem.Malformed, ""},
		"not json":         {"{", 400, problem.Malformed, ""},
		"two values":       {`{} {}`, 400, problem.Malformed, ""},
		"not an object":    {`[]`, 422, problem.Invalid, ""},
		"too deep":         {strings.Repeat("[", 20000), 400, problem.Malformed, ""},
		"unknown field":    {ok(m{"x": 1}), 422, problem.Invalid, "/x"},
		"unknown payload":  {ok(m{"payload": m{"y": 1}}), 422, problem.Invalid, "/payload/y"},
		"wrong type":       {ok(m{"reason": 7}), 422, problem.Invalid, "/reason"},
		"no reason":        {ok(m{"reason": ""}), 422, problem.Invalid, "/reason"},
		"control":          {ok(m{"reason": "a\u0000b"}), 422, problem.Invalid, "/reason"},
		"lone surrogate":   {`{"type":"node.cordon","target":"` + node + `","reason":"\ud800"}`, 422, problem.Invalid, "/reason"},
		"reason in bytes":  {ok(m{"reason": strings.Repeat("\U0001F600", 257)}), 422, problem.Invalid, "/reason"},
		"secret":           {ok(m{"reason": "password: hunter2hunter2"}), 422, problem.SecretInRequest, "/reason"},
		"no such type":     {ok(m{"type": "node.explode"}), 422, problem.UnsupportedType, "/type"},
		"later type":       {ok(m{"type": "node.reboot"}), 422, problem.UnsupportedType, "/type"},
		"past deadline":    {ok(m{"deadline": "2020-01-01T00:00:00Z"}), 422, problem.Invalid, "/deadline"},
		"near-form":        {ok(m{"deadline": "2030-01-01 00:00:00Z"}), 422, problem.Invalid, "/deadline"},
		"no such target":   {ok(m{"target": "node:none"}), 404, problem.NotFound, "/target"},
		"ambiguous target": {ok(m{"target": "node:same"}), 422, problem.Invalid, "/target"},
		"wrong kind":       {ok(m{"target": p.cluster.ID}), 422, problem.Invalid, "/target"},
		"stale revision":   {ok(m{"requested_revision": 2}), 409, problem.StaleRevision, ""},
		"force":            {m{"type": "node.drain", "target": node, "reason": "x", "payload": m{"force": true}}, 403, problem.ForceNotAllowed, ""},
	} {
		t.Run(name, func(t *testing.T) {
			a := p.do("operator", "POST", "/v1/operations", tt.body).problem(tt.status, tt.code)
			if tt.pointer != "" {
				a.points(tt.pointer)
			}
		})
	}
	p.do("operator", "POST", "/v1/operations", ok(nil), "Content-Type: text/plain").problem(415, problem.UnsupportedMediaType)
	p.do("operator", "POST", "/v1/operations", ok(nil), "Content-Type: application/json; charset=latin1").problem(415, problem.UnsupportedMediaType)
	p.do("operator", "POST", "/v1/operations?x=1", ok(nil)).problem(422, problem.Invalid).points("/query/x")
	fit := `{"type":"node.cordon","target":"` + node + `","reason":"x"}`
	fit += strings.Repeat(" ", admission.MaxBodyBytes-len(fit))
	p.do("operator", "POST", "/v1/operations", fit).want(202)
	if a := p.do("operator", "POST", "/v1/operations", fit+" ").problem(413, problem.PayloadTooLarge); a.j["limit"] != float64(admission.MaxBodyBytes) {
		t.Error(a.raw)
	}
}

func TestOneKeyTwoBodiesAtOnce(t *testing.T) {
	t.Parallel()
	p := setup(t)
	node := p.node(p.cluster, "a")
	var mu sync.Mutex
	ids, wg := map[string]int{}, sync.WaitGroup{}
	for i := range 16 {
		wg.Go(func() {
			a := p.do("operator", "POST", "/v1/operations", m{"type": "node.cordon", "target": node, "reason": fmt.Sprint(i % 2)}, "Idempotency-Key: k")
			mu.Lock()
			defer mu.Unlock()
			switch a.status {
			case 200, 202:
				ids[a.str("id")]++
			case 422:
			default:
				t.Errorf("%d %s", a.status, a.raw)
			}
		})
	}
	wg.Wait()
	if len(ids) != 1 {
		t.Errorf("operations: %v", ids)
	}
}

func TestCancel(t *testing.T) {
	t.Parallel()
	p := setup(t)
	opID := p.create(p.node(p.cluster, "a"))
	path := "/v1/operations/" + opID
	p.do("operator", "DELETE", path, nil, `If-Match: "7"`).problem(412, problem.PreconditionFailed)
	p.do("operator", "DELETE", path, nil, `If-Match: seven`).problem(422, problem.Invalid).points("/header/If-Match")
	p.do("operator", "DELETE", path, m{"reason": "x", "why": "y"}).problem(422, problem.Invalid).points("/why")
	p.do("operator", "DELETE", path+"?reason=a", m{"reason": "b"}).problem(422, problem.Invalid)
	p.do("operator", "DELETE", path, m{"reason": strings.Repeat("x", 1025)}).problem(422, problem.Invalid).points("/reason")
	a := p.do("operator", "DELETE", path+"?reason=not+needed", nil, `If-Match: "1"`).want(200)
	if a.str("phase") != "cancelled" || a.j["cancel"].(m)["reason"] != "not needed" {
		t.Error(a.raw)
	}
	if a := p.do("operator", "DELETE", path, nil).want(204); a.raw != "" {
		t.Errorf("body of a 204: %s", a.raw)
	}
	p.do("viewer", "GET", path, nil).want(200)
	running := p.create(p.node(p.cluster, "b"))
	p.claim(running)
	for range 2 {
		if a := p.do("operator", "DELETE", "/v1/operations/"+running, m{"reason": "stop"}).want(202); a.str("phase") != "cancelling" {
			t.Error(a.raw)
		}
	}
	lost := p.create(p.node(p.cluster, "c"))
	p.claim(lost)
	p.apply(lost, operation.LoseLease{})
	if a := p.do("operator", "DELETE", "/v1/operations/"+lost, nil).want(202); a.str("phase") != "reconciling" || a.j["cancel"] == nil {
		t.Error(a.raw)
	}
	p.do("operator", "DELETE", "/v1/operations/"+noOperation, nil).problem(404, problem.NotFound)
	p.do("operator", "DELETE", "/v1/operations/x", nil).problem(404, problem.NotFound)
}

func TestCancelOfWhatCannotBeInterrupted(t *testing.T) {
	t.Parallel()
	p := setup(t)
	opID := p.upgrade()
	op := p.claim(opID)
	report := func(n int64, step int, phase operation.StepPhase) {
		p.apply(opID, operation.Report{Agent: "agt_x", Generation: op.State.Generation, N: n,
			Steps: []operation.StepReport{{StepID: op.Spec.Steps[step].ID, Phase: phase, Outcome: map[bool]string{true: operation.OutcomeDone}[phase.Settled()]}}})
	}
	report(1, 0, operation.StepSucceeded)
	report(2, 1, operation.StepRunning)
	if a := p.do("viewer", "GET", "/v1/operations/"+opID, nil); a.j["cancelable"] != false {
		t.Error(a.raw)
	}
	a := p.do("operator", "DELETE", "/v1/operations/"+opID, nil).problem(409, problem.NotCancelable)
	if a.str("step_id") != op.Spec.Steps[1].ID || a.str("operation_id") != opID {
		t.Error(a.raw)
	}
}

func TestRetry(t *testing.T) {
	t.Parallel()
	p := setup(t)
	node := p.node(p.cluster, "a")
	opID := p.create(node)
	path := "/v1/operations/" + opID + "/retry"
	p.do("operator", "POST", path, m{"reason": "x"}).problem(409, problem.NotRetryable)
	p.failed(opID)
	p.do("operator", "POST", path, m{}).problem(422, problem.Invalid).points("/reason")
	p.do("operator", "POST", path, nil).problem(400, problem.Malformed)
	p.do("operator", "POST", path, m{"reason": "x", "deadline": "2020-01-01T00:00:00Z"}).problem(422, problem.Invalid).points("/deadline")
	p.do("operator", "POST", path, m{"reason": "x", "deadline": "2090-01-01T00:00:00Z"}).problem(422, problem.Invalid).points("/deadline")
	holder := p.create(node)
	if c := p.do("operator", "POST", path, m{"reason": "x"}).problem(409, problem.OperationConflict); c.str("operation_id") != holder {
		t.Error(c.raw)
	}
	p.do("operator", "DELETE", "/v1/operations/"+holder, nil).want(200)
	a := p.do("operator", "POST", path, m{"reason": "mended"}, "Idempotency-Key: r1").want(202)
	if a.str("phase") != "pending" || a.j["run"] != float64(2) || a.j["result"] != nil {
		t.Error(a.raw)
	}
	if again := p.do("operator", "POST", path, m{"reason": "mended"}, "Idempotency-Key: r1").want(200); again.header.Get("Idempotency-Replayed") != "true" {
		t.Error(again.header)
	}
	p.do("operator", "POST", path, m{"reason": "other"}, "Idempotency-Key: r1").problem(422, problem.IdempotencyKeyReused)
	if c := p.do("operator", "POST", "/v1/operations", m{"type": "node.cordon", "target": node, "reason": "x"}).problem(409, problem.OperationConflict); c.str("operation_id") != opID {
		t.Error("the retry holds no lock", c.raw)
	}
	p.do("operator", "POST", "/v1/operations/"+noOperation+"/retry", m{"reason": "x"}).problem(404, problem.NotFound)
}

func TestResolve(t *testing.T) {
	t.Parallel()
	p := setup(t)
	opID := p.create(p.node(p.cluster, "a"))
	path := "/v1/operations/" + opID + "/resolve"
	body := m{"step": "cordon", "outcome": "succeeded", "evidence": "kubectl get node", "reason": "agent gone"}
	p.do("admin", "POST", path, body).problem(409, problem.NotResolvable)
	p.claim(opID)
	p.apply(opID, operation.LoseLease{}, operation.Claim{Agent: "agt_y", Boot: "b", Until: time.Now().Add(time.Minute)})
	p.do("admin", "POST", path, body).problem(409, problem.NotResolvable) // a lease is live
	p.apply(opID, operation.LoseLease{})
	p.do("admin", "POST", path, m{"step": "nope", "outcome": "succeeded", "evidence": "e", "reason": "r"}).problem(422, problem.Invalid).points("/step")
	p.do("admin", "POST", path, m{"step": "cordon", "outcome": "maybe", "evidence": "e", "reason": "r"}).problem(422, problem.Invalid).points("/outcome")
	p.do("admin", "POST", path, m{"step": "cordon", "outcome": "failed", "reason": "r"}).problem(422, problem.Invalid)
	a := p.do("admin", "POST", path, body, "Idempotency-Key: s").want(200)
	if a.str("phase") != "dispatched" {
		t.Error(a.raw)
	}
	p.do("admin", "POST", path, body, "Idempotency-Key: s").want(200)
	p.do("admin", "POST", path, body).problem(409, problem.NotResolvable)
}

func TestWait(t *testing.T) {
	t.Parallel()
	p := setup(t, func(c *Config) { c.Limiter = &auth.Limiter{Waits: 1}; c.MaxWait = 5 * time.Second })
	opID := p.create(p.node(p.cluster, "a"))
	path := "/v1/operations/" + opID
	if a := p.do("viewer", "GET", path+"?wait=10ms", nil).want(200); a.header.Get("ETag") != `"1"` {
		t.Error(a.header)
	}
	p.do("viewer", "GET", path, nil, `If-None-Match: "1"`).want(200)
	p.do("viewer", "GET", path+"?wait=5s", nil, `If-None-Match: nope`).want(200) // it matches nothing
	for _, w := range []string{"-1s", "5", "x"} {
		p.do("viewer", "GET", path+"?wait="+w, nil).problem(422, problem.Invalid).points("/query/wait")
	}
	p.do("viewer", "GET", "/v1/operations/"+noOperation+"?wait=5s", nil).problem(404, problem.NotFound)
	done := make(chan answer)
	go func() {
		for { // the probes below may take the only wait first
			if a := p.do("viewer", "GET", path+"?wait=60s", nil, `If-None-Match: W/"1"`); a.status != 429 {
				done <- a
				return
			}
		}
	}()
	until(t, "a second wait is one too many", func() bool {
		a := p.do("viewer", "GET", path+"?wait=1ms", nil)
		if a.status == 429 {
			a.problem(429, problem.TooManyWaits)
			return a.header.Get("Retry-After") == "1"
		}
		return false
	})
	p.apply(opID, operation.Dispatch{})
	if a := <-done; a.status != 200 || a.str("phase") != "dispatched" || a.header.Get("ETag") != `"2"` {
		t.Error(a.status, a.raw)
	}
	start := time.Now()
	p.do("viewer", "GET", path+"?wait=60s", nil, `If-None-Match: "1"`).want(200)
	p.do("operator", "DELETE", path, nil).want(200)
	p.do("viewer", "GET", path+"?wait=60s", nil).want(200)
	if took := time.Since(start); took >= 60*time.Second { // one that waited took no less
		t.Errorf("took %s for what was there", took)
	}
}

// unwatched is a ledger that gives no signals, as one of another process.
type unwatched struct{ ledger.Ledger }

func TestWaitWithoutSignals(t *testing.T) {
	t.Parallel()
	p := setup(t, func(c *Config) {
		c.Store = &record.Store{Ledger: unwatched{c.Store.Ledger}, Now: c.Store.Now, Timing: c.Store.Timing}
	})
	opID := p.create(p.node(p.cluster, "a"))
	done := make(chan answer)
	go func() { done <- p.do("viewer", "GET", "/v1/operations/"+opID+"?wait=30s", nil, `If-None-Match: "1"`) }()
	p.apply(opID, operation.Dispatch{})
	if a := <-done; a.status != 200 || a.str("phase") != "dispatched" {
		t.Error(a.status, a.raw)
	}
}

func TestHistory(t *testing.T) {
	t.Parallel()
	p := setup(t)
	opID := p.create(p.node(p.cluster, "a"))
	p.failed(opID)
	path := "/v1/operations/" + opID
	var seqs []any
	for cursor := ""; ; {
		a := p.do("viewer", "GET", path+"/journal?limit=2&cursor="+cursor, nil).want(200)
		for _, e := range a.items() {
			seqs = append(seqs, e["seq"])
		}
		if cursor = a.str("next_cursor"); cursor == "" {
			break
		}
	}
	for i, s := range seqs {
		if s != float64(i+1) {
			t.Fatalf("journal %v", seqs)
		}
	}
	if len(seqs) < 5 {
		t.Errorf("journal %v", seqs)
	}
	if s := p.do("viewer", "GET", path+"/steps", nil).want(200).items(); len(s) != 2 || s[0]["phase"] != "failed" || s[0]["error_code"] != "boom" {
		t.Error(s)
	}
	p.do("viewer", "GET", path+"/children", nil).want(200)
	for _, what := range []string{"journal", "steps", "commands", "children"} {
		p.do("viewer", "GET", "/v1/operations/"+noOperation+"/"+what, nil).problem(404, problem.NotFound)
	}
}
