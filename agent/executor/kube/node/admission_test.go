package node

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster/clustertest"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

var nodeResource = schema.GroupResource{Resource: "nodes"}

// admissions are what admission may answer to a patch of a node.
var admissions = map[string]struct {
	answer error
	lacks  []string
	code   string // of the blocker and of the operation, which fails
	rule   string
	says   string
	act    string // what there is to do
	open   bool   // it is told and stands in nobody's way
}{
	"nothing": {},
	"a policy": {answer: apierrors.NewForbidden(nodeResource, "n", errors.New("ValidatingAdmissionPolicy 'freeze' with binding 'freeze' denied request: not on a Monday")),
		code: "admission_refused", rule: "policy/freeze", says: "not on a Monday", act: "ask the owner of admission policy freeze, which refuses it, then retry"},
	"a policy that calls it invalid": {answer: status(422, "ValidatingAdmissionPolicy 'freeze' with binding 'b' denied request: no"), code: "admission_refused", rule: "policy/freeze", says: "no", act: "policy freeze"},
	"a policy that calls it unknown": {answer: apierrors.NewUnauthorized("ValidatingAdmissionPolicy 'freeze' with binding 'b' denied request: no"), code: "admission_refused", rule: "policy/freeze", says: "no", act: "policy freeze"},
	"a webhook":                      {answer: status(400, `admission webhook "guard.example.com" denied the request: no`), code: "admission_refused", rule: "webhook/guard.example.com", says: "denied the request: no", act: "ask the owner of admission webhook guard.example.com"},
	"a webhook with a conflict":      {answer: status(409, `admission webhook "guard.example.com" denied the request: no`), code: "admission_refused", rule: "webhook/guard.example.com", says: "no", act: "guard.example.com"},
	"a webhook with a 429":           {answer: apierrors.NewTooManyRequests(`admission webhook "guard.example.com" denied the request: later`, 1), code: "admission_refused", rule: "webhook/guard.example.com", says: "later", act: "guard.example.com"},
	"a webhook with a 503":           {answer: apierrors.NewServiceUnavailable(`admission webhook "guard.example.com" denied the request: later`), code: "admission_refused", rule: "webhook/guard.example.com", says: "later", act: "guard.example.com"},
	"a webhook that cannot be asked": {answer: apierrors.NewInternalError(errors.New(`failed calling webhook "guard.example.com": failed to call webhook: connection refused`)), code: "admission_refused",
		rule: "webhook/guard.example.com", says: "connection refused", act: "bring back what answers for admission webhook guard.example.com, or take it away, then retry"},
	"a plugin that is not named": {answer: apierrors.NewForbidden(nodeResource, "n", errors.New("is frozen")), code: "admission_refused", rule: "admission", says: "is frozen", act: "ask the owner"},
	"what cannot be stored":      {answer: apierrors.NewInvalid(schema.GroupKind{Kind: "Node"}, "n", nil), code: "admission_refused", rule: "admission", says: "is invalid", act: "ask the owner"},
	"a missing right":            {answer: denied("patch", "nodes"), lacks: []string{"patch nodes"}, code: "forbidden", rule: "rbac", says: "patch", act: "give the agent's role the right"},
	"a webhook that knows no dry run": {answer: apierrors.NewBadRequest(`admission webhook "old.example.com" does not support dry run`), code: "not_rehearsed", rule: "webhook/old.example.com",
		says: "cannot be told beforehand", open: true},
	"an error of the server": {answer: status(500, "etcd is sad"), code: "api_error", rule: "api_server", says: "etcd is sad", open: true},
	"a server that is busy":  {answer: status(429, "busy"), open: true},
	"a change meanwhile":     {answer: apierrors.NewConflict(nodeResource, "n", errors.New("the object has been modified")), open: true},
	"a node that went":       {answer: apierrors.NewNotFound(nodeResource, "n"), open: true},
}

// What admission says to a patch of the node a dry run says in the words and with the
// code of the operation.
func TestAdmissionIsToldBefore(t *testing.T) {
	t.Parallel()
	for name, tt := range admissions {
		for _, typ := range []string{"node.cordon", "node.uncordon", "node.drain"} {
			t.Run(typ+"/"+name, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					defer time.Sleep(2 * linger) // what it watched lingers
					n := theNode(typ == "node.uncordon")
					client := fake.NewClientset(n, aPod("a", func(p *corev1.Pod) { p.Spec.NodeName = "n" }))
					permit(client, tt.lacks...)
					e, touched := newDrainer(openFake(t, client), Options{}), 0
					e.send = func(context.Context, *policyv1.Eviction) error { return nil }
					client.PrependReactor("patch", "nodes", func(a ktesting.Action) (bool, runtime.Object, error) {
						if !dryRuns(a) {
							touched++
						}
						return tt.answer != nil, nil, tt.answer
					})
					ask := e.nodes.preview
					if typ == "node.drain" {
						ask = e.previewDrain
					}
					payload := `{}`
					if typ == "node.uncordon" {
						payload = `{"take_over":true}`
					}
					list, err := ask(t.Context(), protocol.PreviewRequest{Type: typ, TargetName: "node:n", NodeName: "n", Payload: []byte(payload)})
					if err != nil || touched > 0 || (tt.code == "") != (len(list) == 0) || tt.code != "" && (len(list) != 1 || list[0].Code != tt.code || list[0].Rule != tt.rule || list[0].Resource != "node/n" || !strings.Contains(list[0].Detail, tt.says)) {
						t.Fatalf("the dry run shows %+v, %v; %d patches", list, err, touched)
					}
					var told []protocol.Blocker
					task := stuckTask(lease("op_1"), &told)
					task.Assignment.Type, task.Assignment.Payload = typ, []byte(payload)
					var o executor.Outcome
					switch typ {
					case "node.cordon":
						o = e.cordon(t.Context(), task, &placing{})
					case "node.uncordon":
						o = e.uncordon(t.Context(), task)
					default:
						s := e.session(task.Assignment, true)
						if o = e.preflight(t.Context(), task, s); o.Class != operation.OutcomeDone || touched > 0 {
							t.Errorf("the preflight: %+v, %d patches", o, touched)
						}
						task.Step = executor.StepNamed(task.Assignment, "cordon")
						o = e.cordonPlanned(t.Context(), task, s)
					}
					switch {
					case tt.open: // what the patch itself comes to is told elsewhere
					case tt.rule == "admission" && apierrors.IsForbidden(tt.answer): // the fake has no request whose right could be asked for
					case tt.code == "":
						if o.Class != operation.OutcomeDone {
							t.Errorf("the operation: %+v", o)
						}
					case o.ErrorCode != tt.code || !strings.Contains(o.Detail, tt.says) || !strings.Contains(o.ActionText, tt.act) || o.ActionCode != operation.ActRestoreDependency ||
						(o.Class == operation.OutcomePermanent) == strings.Contains(name, "cannot be asked"):
						t.Errorf("the operation: %+v", o)
					}
				})
			})
		}
	}
}

// Policies may ask for a reason, a ticket say: a rehearsal carries it as the operation
// does.
func TestRehearsalCarriesTheReason(t *testing.T) {
	t.Parallel()
	for _, typ := range []string{"node.cordon", "node.drain"} {
		client := fake.NewClientset(theNode(false))
		permit(client)
		patch := ""
		client.PrependReactor("patch", "nodes", func(a ktesting.Action) (bool, runtime.Object, error) {
			patch = string(a.(ktesting.PatchAction).GetPatch())
			return false, nil, nil
		})
		e := newDrainer(openFake(t, client), Options{})
		ask := e.nodes.preview
		if typ == "node.drain" {
			ask = e.previewDrain
		}
		if _, err := ask(t.Context(), protocol.PreviewRequest{Type: typ, NodeName: "n", Payload: []byte(`{}`), Reason: "TICKET-1", By: "tok_1"}); err != nil || !strings.Contains(patch, "TICKET-1") || !strings.Contains(patch, "tok_1") {
			t.Errorf("%s: %v, rehearsed %s", typ, err, patch)
		}
	}
}

// A webhook that hangs: what it says is not known in time, and the dry run says so.
func TestRehearsalThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(theNode(false))
		permit(client)
		c := openFake(t, client)
		c.Client = clustertest.BeforeNodes(client, func(_ context.Context, verb string) error {
			if verb == "get" {
				return nil
			}
			time.Sleep(2 * dryRunFor)
			return context.DeadlineExceeded
		})
		e := newDrainer(c, Options{})
		told, err := e.previewDrain(t.Context(), protocol.PreviewRequest{Type: "node.drain", NodeName: "n", Payload: []byte(`{}`)})
		if err != nil || len(told) != 1 || told[0].Code != "api_error" || !strings.Contains(told[0].Detail, "a webhook may hang") {
			t.Errorf("told %+v, %v", told, err)
		}
	})
}

// A right that only the force window needs is named before anything is touched.
func TestForceLacksARight(t *testing.T) {
	t.Parallel()
	client := fake.NewClientset(theNode(false))
	permit(client, "delete pods")
	e := newDrainer(openFake(t, client), Options{})
	var told []protocol.Blocker
	task := stuckTask(lease("op_1"), &told)
	task.Assignment.Payload = []byte(`{"on_deadline":"force"}`)
	if o := e.preflight(t.Context(), task, e.session(task.Assignment, true)); o.ErrorCode != "forbidden" || !strings.Contains(o.Detail, "delete pods") {
		t.Errorf("%+v", o)
	}
}

// A patch that no try brings through says what kept it: an answer that never came is
// no conflict.
func TestPatchThatNeverComesThrough(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		answer      error
		class, code string
	}{
		"conflicts":     {apierrors.NewConflict(nodeResource, "n", errors.New("modified")), operation.OutcomeTransient, "conflict"},
		"busy":          {status(429, "busy"), operation.OutcomeWaiting, "throttled"},
		"never answers": {apierrors.NewTimeoutError("the answer was lost", 1), operation.OutcomeAmbiguous, "answer_lost"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				client := fake.NewClientset(theNode(false))
				client.PrependReactor("patch", "nodes", func(ktesting.Action) (bool, runtime.Object, error) { return true, nil, tt.answer })
				e := newDrainer(openFake(t, client), Options{})
				var told []protocol.Blocker
				if o := e.cordon(t.Context(), stuckTask(lease("op_1"), &told), &placing{}); o.Class != tt.class || o.ErrorCode != tt.code {
					t.Errorf("%+v", o)
				}
			})
		})
	}
}
