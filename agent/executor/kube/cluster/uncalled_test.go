package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// An API server that cannot call a webhook answers: that is told as the webhook's, by its
// name. What is no answer, or none of a server that can serve, is told as such.
func TestUncalledIsNoSilence(t *testing.T) {
	t.Parallel()
	pods := schema.GroupResource{Resource: "pods"}
	internal := func(code int32, message string) error {
		return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: metav1.StatusReasonInternalError, Message: message}}
	}
	for name, tt := range map[string]struct {
		err  error
		code string
		hook string
	}{
		"nobody listens there":     {apierrors.NewInternalError(errors.New(`failed calling webhook "x.example.com": failed to call webhook: Post "https://10.0.0.1/": connect: connection refused`)), "admission_refused", "x.example.com"},
		"it does not answer":       {apierrors.NewInternalError(errors.New(`failed calling webhook "x.example.com": failed to call webhook: Post "https://10.0.0.1/?timeout=10s": context deadline exceeded`)), "admission_refused", "x.example.com"},
		"wrapped":                  {fmt.Errorf("restart: %w", apierrors.NewInternalError(errors.New(`failed calling webhook "y.example.com": EOF`))), "admission_refused", "y.example.com"},
		"etcd is slow":             {internal(500, "etcdserver: request timed out"), "api_unavailable", ""},
		"etcd has a new leader":    {internal(500, "etcdserver: leader changed"), "api_unavailable", ""},
		"it cannot serve":          {apierrors.NewServiceUnavailable("starting"), "api_unavailable", ""},
		"it gave up":               {apierrors.NewTimeoutError("request did not complete within 34s", 0), "api_unavailable", ""},
		"a balancer's words":       {apierrors.NewGenericServerResponse(500, "patch", pods, "web", `failed calling webhook "x.example.com"`, 0, true), "api_unavailable", ""},
		"no answer":                {context.DeadlineExceeded, "api_unavailable", ""},
		"no answer that quotes it": {errors.New(`Internal error occurred: failed calling webhook "x.example.com": EOF`), "api_unavailable", ""},
		"it denied":                {apierrors.NewBadRequest(`admission webhook "x.example.com" denied the request: no`), "api_error", ""},
	} {
		o, f := Broken(tt.err), Unread(tt.err)
		if o.ErrorCode != tt.code || f.ErrorCode != tt.code || f.Phase != operation.StepUnknown {
			t.Errorf("%s: %+v, %+v", name, o, f)
		}
		if u := UncalledBy(tt.err); (u == nil) != (tt.hook == "") || u != nil && u.Webhook != tt.hook {
			t.Errorf("%s: by %+v", name, u)
		}
		if tt.hook == "" {
			continue
		}
		if o.Class != operation.OutcomeWaiting || o.After != uncalledPause || o.ActionCode != operation.ActRestoreDependency ||
			!strings.Contains(o.ActionText, "what answers for admission webhook "+tt.hook) || !strings.HasPrefix(o.Detail, "the API server cannot call admission webhook "+tt.hook+": ") {
			t.Errorf("%s: %+v", name, o)
		}
		if f.Blocker == nil || f.Blocker.Rule != "webhook/"+tt.hook || f.Blocker.Code != tt.code {
			t.Errorf("%s: found %+v", name, f.Blocker)
		}
	}
}

// The step that met it shows it, and is told of the command.
func TestReplyOfAnUncalledWebhook(t *testing.T) {
	t.Parallel()
	s, c := setup(t)
	s.answer = func(w http.ResponseWriter, _ *http.Request) {
		status(w, 500, metav1.StatusReasonInternalError, `Internal error occurred: failed calling webhook "no.example.com": EOF`)
	}
	tk := task(&record{})
	var shown []protocol.Blocker
	tk.Blocked = func(now []protocol.Blocker) { shown = now }
	r, stop := c.Effect(t.Context(), tk, "evict", "pod/uid", "web/web-0", evict(c))
	o := r.Uncalled(tk, "pod/web/web-0")
	if stop != nil || o == nil || o.CommandID != "cmd_1" || len(shown) != 1 || shown[0].Resource != "pod/web/web-0" || shown[0].Rule != "webhook/no.example.com" {
		t.Errorf("%+v, %+v, shown %+v", stop, o, shown)
	}
	s.answer = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) }
	if r, _ := c.Effect(t.Context(), tk, "evict", "pod/uid", "web/web-0", evict(c)); r.Uncalled(tk, "pod/web/web-0") != nil {
		t.Errorf("once it is back: %+v", r)
	}
}
