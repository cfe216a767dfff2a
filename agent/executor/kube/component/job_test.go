package component

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster/clustertest"
	"github.com/opsplane/opsplane/agent/executor/kube/component/answer"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// site is a cluster whose Jobs answer as the test says.
type site struct {
	*upgrader
	client *fake.Clientset
	op     string

	mu    sync.Mutex
	asked []string                                   // names of the Jobs that were made
	reply func(*batchv1.Job) (answer.Answer, string) // what a Job answers; "running": nothing yet, "mute": it ends without, "podless": it gets no pod
}

func setup(t *testing.T, objects ...runtime.Object) *site {
	t.Helper()
	s := &site{client: fake.NewClientset(objects...), op: id.New(id.Operation, time.Now())}
	c := &cluster.Cluster{Client: clustertest.BeforeJobs(s.client, nil), Namespace: "ops", Now: time.Now, Log: slog.New(slog.DiscardHandler)}
	s.upgrader = &upgrader{Cluster: c, config: good()}
	s.client.PrependReactor("create", "selfsubjectaccessreviews", func(kubetesting.Action) (bool, runtime.Object, error) {
		return true, &authorizationv1.SelfSubjectAccessReview{Status: authorizationv1.SubjectAccessReviewStatus{Allowed: true}}, nil
	})
	s.client.PrependReactor("create", "jobs", func(action kubetesting.Action) (bool, runtime.Object, error) {
		j := action.(kubetesting.CreateAction).GetObject().(*batchv1.Job).DeepCopy()
		j.UID = types.UID(j.Name)
		jobs := batchv1.SchemeGroupVersion.WithResource("jobs")
		if _, err := s.client.Tracker().Get(jobs, j.Namespace, j.Name); err == nil {
			return true, nil, apierrors.NewAlreadyExists(jobs.GroupResource(), j.Name)
		}
		s.mu.Lock()
		s.asked = append(s.asked, j.Name)
		a, how := s.reply(j)
		s.mu.Unlock()
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: j.Namespace, Name: j.Name, UID: "pod-" + j.UID, Labels: j.Spec.Template.Labels,
			OwnerReferences: []metav1.OwnerReference{{UID: j.UID, Controller: ptr.To(true)}}}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
		if how != "running" {
			message := ""
			if how != "mute" {
				message = string(a.Encode())
			}
			j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
			p.Status.Phase = corev1.PodSucceeded
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: message}}}}
		}
		if how == "podless" {
			j.Status.Conditions = nil
		} else if err := s.client.Tracker().Add(p); err != nil {
			t.Error(err)
		}
		return true, j, s.client.Tracker().Create(jobs, j, j.Namespace)
	})
	return s
}

// put makes a Job as an earlier lease made it, with what became of it.
func (s *site) put(t *testing.T, a *protocol.Assignment, q request, says answer.Answer, how string) {
	t.Helper()
	before := s.reply
	s.reply = func(*batchv1.Job) (answer.Answer, string) { return says, how }
	if _, err := s.client.BatchV1().Jobs("ops").Create(t.Context(), s.job(a, q), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.reply, s.asked = before, nil
}

func (s *site) assignment(generation int64) *protocol.Assignment {
	return &protocol.Assignment{Operation: s.op, Run: 1, Generation: generation, Payload: json.RawMessage(`{"component":"gpu-operator","version":"1.1.0"}`)}
}

func (s *site) task(generation int64, attempt int) *executor.Task {
	return &executor.Task{
		Assignment: s.assignment(generation), Attempt: attempt,
		Fence: func(ctx context.Context) (context.Context, context.CancelFunc, error) {
			ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
			return ctx, cancel, nil
		},
		Progress: func(int, int, string, string) {}, Note: func(string, string) {}, Remaining: func() time.Duration { return time.Hour },
		Begin: func(string, string) (string, func(string, string)) { return "cmd_1", func(string, string) {} },
	}
}

var upgradeOf = request{verb: answer.Upgrade, timeout: time.Minute, left: time.Hour}

// TestVerifyAsksAnew: what the probe was told before the upgrade says nothing of it.
func TestVerifyAsksAnew(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.put(t, s.assignment(1), upgradeOf, answer.Answer{}, "mute")
	s.reply = func(*batchv1.Job) (answer.Answer, string) {
		return answer.Answer{Detail: "revision 1 is deployed", Release: &answer.Release{Status: "deployed", Chart: "1.0.0"}}, ""
	}
	if f := s.probe(t.Context(), s.task(2, 1)); f.Phase != operation.StepPending || !strings.Contains(f.Detail, "cut off") {
		t.Fatalf("the probe finds %+v", f)
	}
	s.put(t, s.assignment(2), upgradeOf, answer.Answer{Own: &answer.Release{}}, "")
	replies := []answer.Answer{
		{Code: answer.Unavailable, Detail: "the API server was away"},
		{Release: &answer.Release{Status: "deployed", Chart: "1.1.0"}},
	}
	s.reply = func(*batchv1.Job) (answer.Answer, string) {
		a := replies[0]
		replies = replies[1:]
		return a, ""
	}
	if o := s.verify(t.Context(), s.task(2, 1)); o.Class != operation.OutcomeTransient || o.ErrorCode != "job_failed" {
		t.Fatalf("the first attempt: %+v", o)
	}
	if o := s.verify(t.Context(), s.task(2, 2)); o.Class != operation.OutcomeDone {
		t.Errorf("the second attempt: %+v", o)
	}
	if len(s.asked) != 2 {
		t.Errorf("Jobs %v", s.asked)
	}
}

// TestProbeTakesUpWhatIsAsked: a probe is shorter than it takes to start a pod, and
// each claim makes a generation of its own.
func TestProbeTakesUpWhatIsAsked(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.put(t, s.assignment(1), upgradeOf, answer.Answer{}, "mute")
	short, cancel := context.WithCancel(t.Context())
	defer cancel()
	s.reply = func(*batchv1.Job) (answer.Answer, string) {
		cancel() // before its pod is there
		return answer.Answer{}, "running"
	}
	if f := s.probe(short, s.task(2, 1)); f.Phase != operation.StepUnknown {
		t.Fatalf("the first probe finds %+v", f)
	}
	if len(s.asked) != 1 {
		t.Fatalf("Jobs %v", s.asked)
	}
	// Its pod comes up and answers while nobody looks.
	name := s.asked[0]
	j, err := s.client.BatchV1().Jobs("ops").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
	p, err := s.client.CoreV1().Pods("ops").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p.Status.Phase = corev1.PodSucceeded
	said := answer.Answer{Detail: "revision 2 is deployed", Own: &answer.Release{Revision: 2, Status: "deployed"}}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: string(said.Encode())}}}}
	if _, err := s.client.BatchV1().Jobs("ops").Update(t.Context(), j, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.client.CoreV1().Pods("ops").Update(t.Context(), p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	second, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if f := s.probe(second, s.task(3, 1)); f.Phase != operation.StepSucceeded {
		t.Errorf("the next lease finds %+v", f)
	}
	if len(s.asked) != 1 {
		t.Errorf("Jobs %v", s.asked)
	}
	// One that answered of no use is asked again, under the same lease too.
	s = setup(t)
	s.put(t, s.assignment(1), upgradeOf, answer.Answer{}, "mute")
	replies := []answer.Answer{{Code: answer.Unavailable}, said}
	s.reply = func(*batchv1.Job) (answer.Answer, string) {
		a := replies[0]
		replies = replies[1:]
		return a, ""
	}
	if f := s.probe(t.Context(), s.task(2, 1)); f.Phase != operation.StepUnknown {
		t.Errorf("the first probe finds %+v", f)
	}
	if f := s.probe(t.Context(), s.task(2, 1)); f.Phase != operation.StepSucceeded {
		t.Errorf("the second probe finds %+v", f)
	}
}

// TestTakenUpJobIsNotForgotten: the lease that took it up ends, the Job does not.
func TestTakenUpJobIsNotForgotten(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.put(t, s.assignment(1), upgradeOf, answer.Answer{}, "running")
	ctx, end := context.WithCancel(t.Context())
	tk := s.task(2, 1)
	tk.Progress = func(int, int, string, string) { end() }
	if o := s.upgrade(ctx, tk); o.Class != operation.OutcomeAmbiguous || !strings.Contains(o.Detail, upgradeOf.name(s.assignment(1))) {
		t.Errorf("%+v", o)
	}
	ctx, end = context.WithCancel(t.Context())
	end()
	if o := setup(t).upgrade(ctx, s.task(2, 1)); o.Class != operation.OutcomeWaiting { // nothing is under way
		t.Errorf("%+v", o)
	}
}

// TestUpgradeEndsWithItsOperation: the Job is active no longer than that.
func TestUpgradeEndsWithItsOperation(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		rollback bool
		left     time.Duration
		want     time.Duration
	}{
		{false, time.Hour, 15 * time.Minute}, {true, time.Hour, 25 * time.Minute},
		{false, 12 * time.Minute, 12 * time.Minute}, {true, 21 * time.Minute, 21 * time.Minute},
	} {
		q := request{verb: answer.Upgrade, timeout: 10 * time.Minute, rollback: tt.rollback, left: tt.left}
		j := (&upgrader{Cluster: &cluster.Cluster{}, config: good()}).job(&protocol.Assignment{}, q)
		if got := time.Duration(*j.Spec.ActiveDeadlineSeconds) * time.Second; got != tt.want {
			t.Errorf("%+v: %s", tt, got)
		}
	}
}

// TestPodThatVanishedMayLive: its node may come back with it.
func TestPodThatVanishedMayLive(t *testing.T) {
	t.Parallel()
	condition := func(typ batchv1.JobConditionType, reason string) []batchv1.JobCondition {
		return []batchv1.JobCondition{{Type: typ, Status: corev1.ConditionTrue, Reason: reason}}
	}
	for name, tt := range map[string]struct {
		conditions []batchv1.JobCondition
		pod        bool
		dead       bool
	}{
		"its pod was seen":                        {condition(batchv1.JobFailed, batchv1.JobReasonDeadlineExceeded), true, true},
		"its pod succeeded":                       {condition(batchv1.JobComplete, ""), false, true},
		"the controller saw its pod fail":         {condition(batchv1.JobFailed, batchv1.JobReasonBackoffLimitExceeded), false, true},
		"it ran out of time, and its pod is gone": {condition(batchv1.JobFailed, batchv1.JobReasonDeadlineExceeded), false, false},
	} {
		j, p := madeJob("1", "1", answer.Upgrade, true, "")
		j.Spec.PodReplacementPolicy = ptr.To(batchv1.Failed)
		j.Status.Conditions = tt.conditions
		s := scene{jobs: []*batchv1.Job{j}}
		if tt.pod {
			s.pods = []*corev1.Pod{p}
		}
		if got := len(s.dead()) == 1; got != tt.dead {
			t.Errorf("%s: dead %v", name, got)
		}
	}
}

// TestCutOffUpgrade is begun again only when nobody can go on with it.
func TestCutOffUpgrade(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		vanished bool
		want     operation.StepPhase
	}{
		"its pod was seen to end": {false, operation.StepPending},
		"its pod has vanished":    {true, operation.StepUnknown},
	} {
		s := setup(t)
		s.put(t, s.assignment(1), upgradeOf, answer.Answer{}, "mute")
		if tt.vanished {
			name := upgradeOf.name(s.assignment(1))
			j, err := s.client.BatchV1().Jobs("ops").Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobFailed, Status: corev1.ConditionTrue, Reason: batchv1.JobReasonDeadlineExceeded,
				LastTransitionTime: metav1.NewTime(time.Now().Add(-time.Hour))}}
			if _, err := s.client.BatchV1().Jobs("ops").Update(t.Context(), j, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			if err := s.client.CoreV1().Pods("ops").Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		s.reply = func(*batchv1.Job) (answer.Answer, string) {
			return answer.Answer{Detail: "revision 2 is pending-upgrade", Own: &answer.Release{Revision: 2, Status: "pending-upgrade", Generation: 1}}, ""
		}
		if f := s.probe(t.Context(), s.task(2, 1)); f.Phase != tt.want {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

// TestEmptyListIsHeard: after an outage nothing may have changed.
func TestEmptyListIsHeard(t *testing.T) {
	t.Parallel()
	s := setup(t)
	failed := false
	s.client.PrependReactor("list", "jobs", func(kubetesting.Action) (bool, runtime.Object, error) {
		if failed {
			return false, nil, nil
		}
		failed = true
		return true, nil, apierrors.NewServiceUnavailable("starting")
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// This site has no time for an effect: that the Job would be made is enough.
	if o := s.upgrade(ctx, s.task(1, 1)); o.ErrorCode != "fenced" {
		t.Errorf("%+v", o)
	}
}

// TestRightThatComesBack: an API server that has just started denies every right.
func TestRightThatComesBack(t *testing.T) {
	t.Parallel()
	s := setup(t)
	now := time.Now()
	s.Now = func() time.Time { return now }
	s.client.PrependReactor("list", "jobs", func(kubetesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(batchv1.Resource("jobs"), "", nil)
	})
	step := Upgrade(s.Cluster, good()).Steps["upgrade"].Execute
	if o := step(t.Context(), s.task(1, 1)); o.Class != operation.OutcomeWaiting || o.ErrorCode != "forbidden" {
		t.Errorf("at first: %+v", o)
	}
	// What the upgrade's account lacks is the Job's answer: asking again changes nothing.
	other := setup(t)
	other.put(t, other.assignment(1), upgradeOf, answer.Answer{Code: answer.Forbidden}, "")
	if o := Upgrade(other.Cluster, good()).Steps["upgrade"].Execute(t.Context(), other.task(1, 1)); o.Class != operation.OutcomePermanent || o.ErrorCode != "forbidden" {
		t.Errorf("the upgrade's account: %+v", o)
	}
	now = now.Add(executor.DeniedFor)
	if o := step(t.Context(), s.task(1, 1)); o.Class != operation.OutcomePermanent || o.ErrorCode != "forbidden" {
		t.Errorf("when it lasts: %+v", o)
	}
}
