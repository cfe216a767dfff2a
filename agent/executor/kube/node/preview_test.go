package node

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"

	"github.com/opsplane/opsplane/shared/protocol"
)

// permit lets the fake grant every right but some, named VERB RESOURCE: in access
// reviews, and for reads.
func permit(client *fake.Clientset, but ...string) {
	rehearsals(client, nil)
	lacks := func(verb, resource, sub string) bool {
		for _, b := range but {
			if b == strings.TrimSuffix(verb+" "+resource+"/"+sub, "/") {
				return true
			}
		}
		return false
	}
	client.PrependReactor("create", "selfsubjectaccessreviews", func(a ktesting.Action) (bool, runtime.Object, error) {
		r := a.(ktesting.CreateAction).GetObject().(*authorizationv1.SelfSubjectAccessReview).DeepCopy()
		r.Status.Allowed = !lacks(r.Spec.ResourceAttributes.Verb, r.Spec.ResourceAttributes.Resource, r.Spec.ResourceAttributes.Subresource)
		return true, r, nil
	})
	client.PrependReactor("*", "*", func(a ktesting.Action) (bool, runtime.Object, error) {
		r := a.GetResource()
		if !lacks(a.GetVerb(), r.Resource, a.GetSubresource()) {
			return false, nil, nil
		}
		return true, nil, denied(a.GetVerb(), r.Resource)
	})
}

func denied(verb, resource string) error {
	return apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "", errors.New(`User "agent" cannot `+verb+` resource "`+resource+`"`))
}

// A dry run shows what the operation would meet for certain: rights that its role
// lacks, and what keeps the API server from taking any eviction.
func TestPreviewTellsWhatTheRunMeets(t *testing.T) {
	t.Parallel()
	dead := apierrors.NewInternalError(errors.New(`failed calling webhook "guard.example.com": failed to call webhook: Post "https://10.0.0.1:1/": connection refused`))
	for name, tt := range map[string]struct {
		typ, payload string // node.drain unless said
		lacks        []string
		eviction     error // the answer to its rehearsal
		hangs        bool
		left         time.Duration // to the deadline; 0: not told
		want         []string      // code and rule of each blocker
		says         string        // in the first one's detail
	}{
		"nothing":                        {},
		"a webhook that cannot be asked": {eviction: dead, want: []string{"eviction_refused webhook/guard.example.com"}, says: "connection refused"},
		"an error of the API server":     {eviction: apierrors.NewInternalError(errors.New("etcd is sad")), want: []string{"api_error api_server"}, says: "etcd is sad"},
		"an eviction that hangs":         {hangs: true, want: []string{"api_error api_server"}, says: "did not say within 3s"},
		"an API server that is busy":     {eviction: apierrors.NewTooManyRequests("busy", 1)},
		"a webhook that knows no dry run": {eviction: apierrors.NewBadRequest(`admission webhook "guard.example.com" does not support dry run`),
			want: []string{"not_rehearsed webhook/guard.example.com"}, says: "cannot be told beforehand"},
		"a webhook that denies": {eviction: apierrors.NewBadRequest(`admission webhook "guard.example.com" denied the request: no`),
			want: []string{"eviction_refused webhook/guard.example.com"}, says: "denied the request: no"},
		"a policy that denies": {eviction: apierrors.NewBadRequest(`pods "a" is forbidden: ValidatingAdmissionPolicy 'guard' with binding 'b' denied request: no`),
			want: []string{"eviction_refused policy/guard"}, says: "denied request: no"},
		"a request that is wrong": {eviction: apierrors.NewBadRequest("name in URL does not match name in Eviction object")},
		"no right to evict": {lacks: []string{"create pods/eviction"}, eviction: denied("create", "pods/eviction"),
			want: []string{"forbidden rbac"}, says: "lacks the right to create pods/eviction"},
		"no right to patch":                  {lacks: []string{"patch nodes"}, want: []string{"forbidden rbac"}, says: "lacks the right to patch nodes, which it needs to cordon"},
		"no right to patch, for a cordon":    {typ: "node.cordon", lacks: []string{"patch nodes"}, want: []string{"forbidden rbac"}, says: "patch nodes"},
		"no right to patch, for an uncordon": {typ: "node.uncordon", lacks: []string{"patch nodes"}, want: []string{"forbidden rbac"}, says: "patch nodes"},
		"no right to delete":                 {lacks: []string{"delete pods"}},
		"no right to delete, which it needs": {payload: `{"on_deadline":"force"}`, lacks: []string{"delete pods"}, want: []string{"forbidden rbac"}, says: "delete pods"},
		"no right to list pods":              {lacks: []string{"list pods"}, want: []string{"forbidden rbac"}, says: `cannot list resource "pods"`},
		"no right to read the node":          {typ: "node.cordon", lacks: []string{"get nodes"}, want: []string{"forbidden rbac"}, says: `cannot get resource "nodes"`},
		"none of two":                        {lacks: []string{"patch nodes", "create pods/eviction"}, want: []string{"forbidden rbac", "forbidden rbac"}, says: "patch nodes"},
		"a right beside what else is met": {payload: `{"on_deadline":"force"}`, lacks: []string{"delete pods"}, eviction: dead,
			want: []string{"forbidden rbac", "eviction_refused webhook/guard.example.com"}},
		"time enough":                      {left: time.Hour},
		"a deadline before the grace":      {left: 20 * time.Second, want: []string{"deadline_short grace_period"}, says: "grace period of 30s to stop, and the deadline is in 20s: the drain is timed out"},
		"the payload's grace is shorter":   {payload: `{"grace_period_seconds":10}`, left: 20 * time.Second},
		"a force window before the end":    {payload: `{"on_deadline":"force","force_window_seconds":60}`, left: 5 * time.Minute},
		"a force window that is all of it": {payload: `{"on_deadline":"force","force_window_seconds":60}`, left: time.Minute, want: []string{"forces_at_once force_window_seconds"}, says: "at once"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				client := fake.NewClientset(theNode(false), aPod("a", func(p *corev1.Pod) { p.Spec.NodeName = "n" }))
				permit(client, tt.lacks...)
				e := newDrainer(openFake(t, client), Options{})
				e.send = func(ctx context.Context, _ *policyv1.Eviction) error {
					if tt.hangs {
						<-ctx.Done()
						return ctx.Err()
					}
					return tt.eviction
				}
				ask, typ := e.previewDrain, "node.drain"
				if tt.typ != "" {
					ask, typ = e.nodes.preview, tt.typ
				}
				list, err := ask(t.Context(), protocol.PreviewRequest{Type: typ, TargetName: "node:n", NodeName: "n", Payload: []byte(tt.payload), DeadlineMS: tt.left.Milliseconds()})
				if err != nil || list == nil {
					t.Fatalf("%+v, %v", list, err)
				}
				var got []string
				for _, b := range list {
					got = append(got, b.Code+" "+b.Rule)
				}
				if strings.Join(got, ", ") != strings.Join(tt.want, ", ") || len(list) > 0 && !strings.Contains(list[0].Detail, tt.says) {
					t.Errorf("shown %+v", list)
				}
				time.Sleep(2 * linger)
			})
		})
	}
}
