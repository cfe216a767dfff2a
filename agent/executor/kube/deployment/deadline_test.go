package deployment

import (
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

const (
	allNew   = `{"status":{"updatedReplicas":2}}`
	isPaused = `{"spec":{"paused":true},"status":{"updatedReplicas":1}}`
	noQuota  = `{"status":{"updatedReplicas":1,"conditions":[{"type":"ReplicaFailure","status":"True","reason":"FailedCreate","message":"exceeded quota: gpus, requested: 8"}]}}`
)

// A rollout that is to be taken back is given up while there is time for it: when
// something stands in its way, or it does not go on.
func TestGiveUpBeforeTheDeadline(t *testing.T) {
	t.Parallel()
	broken := newPod("web-3", false, waiting("ImagePullBackOff", "no such image"))
	tests := []struct {
		name    string
		patch   string
		pods    []*corev1.Pod
		at      time.Duration // after the restart
		left    time.Duration // until the deadline
		code    string
		wakesIn time.Duration
	}{
		{name: "image, in the window", pods: []*corev1.Pod{broken}, at: 30 * time.Second, left: 10 * time.Second, code: codeImagePull},
		{name: "image, before it", pods: []*corev1.Pod{broken}, at: 10 * time.Second, left: 30 * time.Second, wakesIn: 20 * time.Second},
		{name: "image, a long deadline", pods: []*corev1.Pod{broken}, at: 10 * time.Second, left: time.Hour, wakesIn: 57 * time.Minute},
		{name: "quota, in the window", patch: noQuota, at: 31 * time.Second, left: 9 * time.Second, code: codeQuota},
		{name: "paused, in the window", patch: isPaused, at: 31 * time.Second, left: 9 * time.Second, code: codePaused},
		{name: "no progress, in the window", at: 30 * time.Second, left: 10 * time.Second, code: codeDeadline, wakesIn: 10 * time.Second},
		{name: "no scheduler, in the window", pods: []*corev1.Pod{newPod("web-1", false, nil)}, at: 30 * time.Second, left: 10 * time.Second, code: codeNoScheduler},
		{name: "going on, in the window", pods: []*corev1.Pod{newPod("web-1", false, func(p *corev1.Pod) {
			isReady(p)
			p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(noon.Add(25 * time.Second))
		})}, at: 31 * time.Second, left: 9 * time.Second, wakesIn: 4 * time.Second},
		{name: "rolled", patch: `{"status":{"updatedReplicas":2}}`, pods: []*corev1.Pod{newPod("web-1", false, isReady), newPod("web-2", false, isReady)}, at: 39 * time.Second, left: time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			patch := tt.patch
			if patch == "" {
				patch = `{"status":{"updatedReplicas":1}}`
			}
			s, now := scene{rollout: merged(t, restarted(t, object(t, deployments, web), by, noon), []byte(patch)), pods: tt.pods}, noon.Add(tt.at)
			v := s.judge(by, DefaultBounds, false, map[string]time.Time{}, now)
			v.giveUp(s, DefaultBounds, tt.left, now)
			if v.code != tt.code || tt.code != "" && !strings.Contains(v.why, "deadline is "+tt.left.String()+" away") {
				t.Errorf("code %q, %s", v.code, v.why)
			}
			wake := time.Duration(0)
			if !v.wake.IsZero() {
				wake = v.wake.Sub(now)
			}
			if wake != tt.wakesIn {
				t.Errorf("wakes in %s, want %s", wake, tt.wakesIn)
			}
			left := func() time.Duration { return tt.left }
			if why := s.notFailing(by, Bounds{Stall: DefaultBounds.Stall, Undo: DefaultBounds.Undo, Patience: time.Hour}, left, now); tt.code != "" && why != "" {
				t.Errorf("the undo leaves what was given up: %s", why)
			}
		})
	}
}

// What stands in the way at the deadline is the cause, and what a person can do
// about it the next action.
func TestHaltedNamesTheCause(t *testing.T) {
	t.Parallel()
	_, c := serve(t, "Deployment", nil)
	c.Now = func() time.Time { return noon.Add(30 * time.Second) }
	r := &roller{Cluster: c, bounds: DefaultBounds}
	both := []*corev1.Pod{newPod("web-1", false, isReady), newPod("web-2", false, isReady)}
	going := newPod("web-0", true, func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: noon.Add(time.Minute)} })
	for name, tt := range map[string]struct {
		patch  string
		pods   []*corev1.Pod
		detail string
		text   string // of the action
	}{
		"image":   {`{"status":{"updatedReplicas":1}}`, []*corev1.Pod{newPod("web-3", false, waiting("ImagePullBackOff", "no such image"))}, "image registry.example/server:9 cannot be pulled (ImagePullBackOff): no such image", "repair the deployment"},
		"quota":   {noQuota, nil, "exceeded quota: gpus", "raise the namespace's quota"},
		"paused":  {isPaused, nil, "the rollout of llm/web is paused", "resume the rollout"},
		"nothing": {`{"status":{"updatedReplicas":1}}`, nil, "llm/web: 1 of 2 replicas updated, 2 ready; the cluster rolls on by itself", "find out what keeps"},
		"old pod": {allNew, append(both, going), "pod web-0 on node", "later deadline"},
		"old pod with a finalizer": {allNew, append(both, newPod("web-0", true, func(p *corev1.Pod) {
			p.DeletionTimestamp, p.Finalizers = &metav1.Time{Time: noon}, []string{"example.com/hold"}
		})), "pod web-0 is held by finalizer example.com/hold", "finalizer is removed"},
		"old pod on a dead node": {allNew, append(both, newPod("web-0", true, func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: noon} })),
			"pod web-0 should have stopped: the kubelet", "bring the pod's node back"},
	} {
		s := &scene{rollout: merged(t, restarted(t, object(t, deployments, web), by, noon), []byte(tt.patch)), pods: tt.pods}
		o := r.halted("interrupted", s, s.judge(by, DefaultBounds, false, map[string]time.Time{}, c.Now()), nil)
		if o.Class != operation.OutcomeWaiting || !strings.Contains(o.Detail, tt.detail) || !strings.Contains(o.ActionText, tt.text) || strings.Count(o.Detail, s.String()) != 1 {
			t.Errorf("%s: %s; next action %s: %s", name, o.Detail, o.ActionCode, o.ActionText)
		}
		if rolls := strings.Contains(o.Detail, "rolls on by itself"); rolls == (name == "paused" || strings.HasPrefix(name, "old pod")) {
			t.Errorf("%s: %s", name, o.Detail)
		}
	}
}

// A pause is told with the time when the controller heard of it, and a dead container
// of a new pod before it.
func TestPausedIsACause(t *testing.T) {
	t.Parallel()
	d := merged(t, restarted(t, object(t, deployments, web), by, noon),
		[]byte(`{"spec":{"paused":true},"status":{"updatedReplicas":1,"conditions":[{"type":"Progressing","status":"Unknown","reason":"DeploymentPaused","lastTransitionTime":"2026-05-04T12:00:02Z"}]}}`))
	s := scene{rollout: d, pods: []*corev1.Pod{newPod("web-3", false, waiting("ImagePullBackOff", "no such image"))}}
	list := s.judge(by, DefaultBounds, false, map[string]time.Time{}, noon.Add(time.Hour)).blockers(noon.Add(time.Hour))
	if len(list) != 2 || list[0].Code != codeImagePull || list[1].Code != codePaused || list[1].Rule != "spec.paused" || list[1].Resource != "deployment/llm/web" || !list[1].Since.Equal(noon.Add(2*time.Second)) {
		t.Errorf("blockers %+v", list)
	}
}

func TestPreviewWarnsOfAShortDeadline(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		kind     *kind
		spec     string
		deadline time.Duration
		want     string // part of the detail; empty: no warning
	}{
		"default, short":            {deployments, `{}`, 40 * time.Second, "only after 10m0s without progress"},
		"default, as long":          {deployments, `{}`, 10 * time.Minute, "comes first"},
		"default, longer":           {deployments, `{}`, time.Hour, ""},
		"own, longer":               {deployments, `{"spec":{"progressDeadlineSeconds":30}}`, 40 * time.Second, ""},
		"turned off":                {deployments, `{"spec":{"progressDeadlineSeconds":2147483647}}`, time.Hour, "counts as failed never"},
		"not told":                  {deployments, `{}`, 0, ""},
		"a kind without, short":     {statefulSets, `{}`, time.Minute, "only after 10m0s without progress"},
		"a kind without, annotated": {statefulSets, `{"metadata":{"annotations":{"opsplane.io/progress-deadline-seconds":"30"}}}`, time.Minute, ""},
	} {
		d := merged(t, object(t, tt.kind, web), []byte(tt.spec))
		b := d.short(DefaultBounds, tt.deadline)
		if (b != nil) != (tt.want != "") || b != nil && (b.Code != codeDeadlineShort || !strings.Contains(b.Detail, tt.want)) {
			t.Errorf("%s: %+v", name, b)
		}
	}
	_, c := serve(t, "Deployment", nil)
	q := protocol.PreviewRequest{ID: "pre_1", TargetName: "deployment:web/web", TargetUID: "u1", Payload: []byte(`{}`), DeadlineMS: 40_000}
	list, err := Roll(c).Preview(within(t, 10*time.Second), q)
	if err != nil || len(list) == 0 || list[len(list)-1].Code != codeDeadlineShort || !strings.Contains(list[len(list)-1].Detail, "40s away") {
		t.Errorf("preview %+v %v", list, err)
	}
}

// A dry run without the right to restart says which right is missing.
func TestPreviewNamesTheMissingRight(t *testing.T) {
	t.Parallel()
	for verb, method := range map[string]string{"patch": http.MethodPatch, "get": http.MethodGet} {
		_, c := serve(t, "Deployment", func(s *apiServer) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == method && strings.Contains(r.URL.Path, "/apis/apps/") {
					write(w, 403, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Code: 403, Reason: metav1.StatusReasonForbidden,
						Message: `deployments.apps "web" is forbidden: User "agent" cannot ` + verb + ` resource "deployments" in API group "apps" in the namespace "web"`,
						Details: &metav1.StatusDetails{Name: "web", Group: "apps", Kind: "deployments"}})
					return
				}
				if strings.HasSuffix(r.URL.Path, "/selfsubjectaccessreviews") {
					write(w, 201, map[string]any{"kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "status": map[string]any{"allowed": false}})
					return
				}
				s.ServeHTTP(w, r)
			})
		})
		list, err := Roll(c).Preview(within(t, 10*time.Second), protocol.PreviewRequest{ID: "pre_1", TargetName: "deployment:web/web", TargetUID: "u1", Payload: []byte(`{}`)})
		if err != nil || len(list) != 1 || list[0].Code != "forbidden" || list[0].Rule != "rbac" || !strings.Contains(list[0].Detail, "cannot "+verb+` resource "deployments"`) {
			t.Errorf("%s: preview %+v %v", verb, list, err)
		}
	}
}

// The last that is told of a rollout is how it ended.
func TestLastProgressIsTheEnd(t *testing.T) {
	t.Parallel()
	s, c := serve(t, "Deployment", nil)
	typ, tk := Roll(c), rollTask()
	var last []string
	tk.Progress = func(done, total int, unit, message string) { last = append(last, message) }
	if o := typ.Steps["restart"].Execute(within(t, 10*time.Second), tk); o.Class != operation.OutcomeDone {
		t.Fatalf("restart: %+v", o)
	}
	s.mu.Lock()
	merge(s.object, map[string]any{"status": map[string]any{"updatedReplicas": int64(1), "readyReplicas": int64(1), "availableReplicas": int64(1)}})
	s.pods = []any{map[string]any{
		"metadata": map[string]any{"name": "web-h1-0", "namespace": "web", "labels": map[string]any{"pod-template-hash": "h1"}, "annotations": map[string]any{"opsplane.io/mark": "op_1/1/1"},
			"ownerReferences": []any{map[string]any{"kind": "ReplicaSet", "name": "web-h1", "uid": "r1", "controller": true}}},
		"status": map[string]any{"phase": "Running", "conditions": []any{map[string]any{"type": "Ready", "status": "True"}}},
	}}
	s.mu.Unlock()
	if o := typ.Steps["confirm"].Execute(within(t, 10*time.Second), tk); o.Class != operation.OutcomeDone {
		t.Fatalf("confirm: %+v", o)
	}
	if len(last) == 0 || last[len(last)-1] != "1 of 1 replicas updated, 1 ready" {
		t.Errorf("told %q", last)
	}
}

// An undo that has nothing to take back says that it did nothing.
func TestUndoOfWhatHasNotFailed(t *testing.T) {
	t.Parallel()
	_, c := serve(t, "Deployment", nil)
	typ, tk := Roll(c), rollTask()
	if o := typ.Steps["undo"].Execute(within(t, 10*time.Second), tk); o.Class != operation.OutcomeDone || !o.Nothing {
		t.Errorf("undo of what was not restarted: %+v", o)
	}
	if o := typ.Steps["restart"].Execute(within(t, 10*time.Second), tk); o.Class != operation.OutcomeDone {
		t.Fatalf("restart: %+v", o)
	}
	if o := typ.Steps["undo"].Execute(within(t, 10*time.Second), tk); o.Class != operation.OutcomeDone || !o.Nothing || !strings.Contains(o.Detail, "left as it is") {
		t.Errorf("undo: %+v", o)
	}
}

// What stands in the way of a rollout that has failed is told with its end, also when
// it had failed before anybody looked.
func TestFailureKeepsWhatStandsInTheWay(t *testing.T) {
	t.Parallel()
	s, c := serve(t, "Deployment", nil)
	typ, tk := Roll(c), rollTask()
	var shown []protocol.Blocker
	tk.Blocked = func(now []protocol.Blocker) { shown = now }
	if o := typ.Steps["restart"].Execute(within(t, 10*time.Second), tk); o.Class != operation.OutcomeDone {
		t.Fatalf("restart: %+v", o)
	}
	s.mu.Lock()
	merge(s.object, map[string]any{"status": map[string]any{"conditions": []any{map[string]any{"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "message": "timed out"}}}})
	s.pods = []any{map[string]any{
		"metadata": map[string]any{"name": "web-h1-0", "namespace": "web", "labels": map[string]any{"pod-template-hash": "h1"}, "annotations": map[string]any{"opsplane.io/mark": "op_1/1/1"},
			"ownerReferences": []any{map[string]any{"kind": "ReplicaSet", "name": "web-h1", "uid": "r1", "controller": true}}},
		"status": map[string]any{"phase": "Pending", "containerStatuses": []any{map[string]any{"name": "c", "state": map[string]any{"waiting": map[string]any{"reason": "ImagePullBackOff", "message": "no such image"}}}}},
	}}
	s.mu.Unlock()
	if o := typ.Steps["wait"].Execute(within(t, 10*time.Second), tk); o.Class != operation.OutcomePermanent || o.ErrorCode != codeImagePull {
		t.Fatalf("wait: %+v", o)
	}
	if len(shown) != 1 || shown[0].Code != codeImagePull || shown[0].Resource != "pod/web/web-h1-0" {
		t.Errorf("stands in the way: %+v", shown)
	}
}
