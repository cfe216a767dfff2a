package device

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ktesting "k8s.io/client-go/testing"

	"github.com/opsplane/opsplane/agent/executor/host/report"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster/clustertest"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// saidOf is what the Job controller says of a Job.
func saidOf(j *batchv1.Job, name, message string, at time.Time) *corev1.Event {
	return &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: j.Namespace, Name: name}, Type: corev1.EventTypeWarning, Reason: cluster.FailedCreate, Message: message,
		InvolvedObject: corev1.ObjectReference{Kind: "Job", Namespace: j.Namespace, Name: j.Name, UID: j.UID},
		FirstTimestamp: metav1.NewTime(at), LastTimestamp: metav1.NewTime(at)}
}

// TestWhyThereIsNoPod: the Job's own events say why it got no pod, and the operation with
// them, while it waits and in its end.
func TestWhyThereIsNoPod(t *testing.T) {
	t.Parallel()
	const forbidden = `Error creating: pods "opsplane-x" is forbidden: `
	for name, c := range map[string]struct{ message, code, rule string }{
		"quota of pods":   {forbidden + "exceeded quota: none, requested: pods=1, used: pods=0, limited: pods=0", "quota_exceeded", "quota none"},
		"quota of limits": {forbidden + "failed quota: cpu: must specify limits.cpu for: host", "quota_exceeded", "quota cpu"},
		"limit range":     {forbidden + "maximum memory usage per Container is 1Mi, but limit is 256Mi", "create_refused", "admission"},
		"pod security":    {forbidden + `violates PodSecurity "restricted:latest": privileged`, "create_refused", "PodSecurity restricted:latest"},
		"policy":          {forbidden + `ValidatingAdmissionPolicy 'frozen' with binding 'frozen' denied request: no`, "create_refused", "policy/frozen"},
		"webhook":         {`Error creating: admission webhook "gate.example" denied the request: ` + strings.Repeat("no ", 500), "create_refused", "webhook/gate.example"},
		"nothing":         {"", codeNoPod, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				e, client, _ := fakes(t)
				task := stepTask("op_a", 1, 1)
				b := new(blockers).of(task)
				client.PrependReactor("create", "jobs", func(a ktesting.Action) (bool, runtime.Object, error) {
					j := a.(ktesting.CreateAction).GetObject().(*batchv1.Job)
					j.UID = "uid-job"
					other := j.DeepCopy()
					other.UID = "uid-before"
					for _, ev := range []*corev1.Event{saidOf(j, "a", "older words", time.Now().Add(-time.Minute)), saidOf(j, "b", c.message, time.Now()), saidOf(other, "c", "of another", time.Now().Add(time.Minute))} {
						if c.message == "" && ev.InvolvedObject.UID == j.UID {
							continue
						}
						if err := client.Tracker().Add(ev); err != nil {
							t.Error(err)
						}
					}
					return false, nil, nil
				})
				o := e.step(e.preflight)(t.Context(), task)
				if o.Class != operation.OutcomePermanent || o.ErrorCode != c.code || !o.Retryable || len(o.Detail) > 1000 || !strings.HasSuffix(o.ActionText, "then reset again") {
					t.Errorf("%+v", o)
				}
				if words := strings.TrimPrefix(c.message, "Error creating: "); !strings.Contains(o.Detail, words[:min(len(words), 90)]) {
					t.Errorf("it does not say why: %s", o.Detail)
				}
				if !b.has(c.code) {
					t.Errorf("shown: %+v", b.all)
				}
				if last := b.all[len(b.all)-1]; last.Rule != c.rule || c.rule != "" && last.Since == nil {
					t.Errorf("shown last: %+v", last)
				}
			})
		})
	}
}

// TestPreviewRehearsesTheJob: what refuses a reset's Job is told by a dry run, and
// nothing is made.
func TestPreviewRehearsesTheJob(t *testing.T) {
	t.Parallel()
	jobs := schema.GroupResource{Group: "batch", Resource: "jobs"}
	for name, c := range map[string]struct {
		answer     error
		code, rule string
	}{
		"taken":       {nil, "", ""},
		"quota":       {apierrors.NewForbidden(jobs, "x", errors.New("exceeded quota: none, requested: count/jobs.batch=1, used: count/jobs.batch=0, limited: count/jobs.batch=0")), "job_refused", "quota none"},
		"terminating": {apierrors.NewForbidden(jobs, "x", errors.New("unable to create new content in namespace ops because it is being terminated")), "job_refused", "admission"},
		"policy":      {apierrors.NewForbidden(jobs, "x", errors.New("ValidatingAdmissionPolicy 'frozen' with binding 'frozen' denied request: no")), "job_refused", "policy/frozen"},
		"no dry run":  {apierrors.NewBadRequest(`admission webhook "gate.example" does not support dry run`), "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, client, _ := fakes(t, hostReport(t, report.Device{UUID: fakeUUID, Health: report.HealthOK}))
			client.PrependReactor("create", "selfsubjectaccessreviews", func(ktesting.Action) (bool, runtime.Object, error) {
				return true, &authorizationv1.SelfSubjectAccessReview{Status: authorizationv1.SubjectAccessReviewStatus{Allowed: true}}, nil
			})
			e.c.Client = clustertest.BeforeJobs(client, func(_ context.Context, verb string) error {
				if verb != "rehearse" {
					t.Errorf("a dry run makes a Job")
				}
				return c.answer
			})
			got, err := e.preview(t.Context(), protocol.PreviewRequest{ID: "prv_a", Type: "device.reset", TargetUID: fakeUUID, NodeName: fakeNode, Payload: json.RawMessage(`{}`)})
			if err != nil {
				t.Fatal(err)
			}
			if c.code == "" && len(got) > 0 || c.code != "" && (len(got) != 1 || got[0].Code != c.code || got[0].Rule != c.rule || got[0].Detail == "") {
				t.Errorf("%+v", got)
			}
		})
	}
}

// hostReport is what the node's host reports of itself.
func hostReport(t *testing.T, devices ...report.Device) *corev1.ConfigMap {
	t.Helper()
	h := report.Host{Node: fakeNode, Source: report.SourceRecorded, Devices: devices, At: time.Now().UTC()}
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: fakeNS, Name: report.Name(fakeNode), Labels: map[string]string{report.Label: report.Hash(fakeNode)}},
		Data: map[string]string{report.Key: string(h.Data())}}
}
