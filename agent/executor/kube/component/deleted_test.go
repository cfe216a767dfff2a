package component

import (
	"context"
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
	kubetesting "k8s.io/client-go/testing"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster/clustertest"
	"github.com/opsplane/opsplane/agent/executor/kube/component/answer"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

func account() *corev1.ServiceAccount {
	return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "up"}}
}

func (s *site) remove(t *testing.T, pods bool) {
	t.Helper()
	for _, name := range s.asked {
		var err error
		if pods {
			err = s.client.CoreV1().Pods("ops").Delete(t.Context(), name, metav1.DeleteOptions{})
		} else {
			err = s.client.BatchV1().Jobs("ops").Delete(t.Context(), name, metav1.DeleteOptions{})
		}
		if err != nil {
			t.Error(err)
		}
	}
}

// TestJobThatIsDeleted: somebody deletes the Job of an upgrade, whose pod goes on for its
// grace. The step waits for the pod and names it, and no longer: then nobody knows what
// became of the upgrade, and the probe has to ask.
func TestJobThatIsDeleted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := setup(t)
		s.Cluster = opened(t)
		s.Client, s.Namespace = clustertest.BeforeJobs(s.client, nil), "ops"
		s.reply = func(*batchv1.Job) (answer.Answer, string) { return answer.Answer{}, "running" }
		var server clustertest.Server
		task := s.task(1, 1)
		task.Blocked = server.Blocked
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		over := make(chan executor.Outcome, 1)
		go func() { over <- s.upgrade(ctx, task) }()
		synctest.Wait()
		s.remove(t, false)
		synctest.Wait()
		shown := server.Shown()
		if len(shown) != 1 || shown[0].Code != "in_progress" || !strings.Contains(shown[0].Detail, "was deleted; its pod") {
			t.Errorf("shown while the pod goes on: %+v", shown)
		}
		if f := s.probe(t.Context(), s.task(2, 1)); f.Phase != operation.StepUnknown || f.ErrorCode != "in_progress" {
			t.Errorf("the probe beside the pod: %+v", f)
		}
		a := s.assignment(2)
		a.Steps = []protocol.Step{{PlanStep: operation.PlanStep{ID: "stp_1", Name: "upgrade"}, Phase: operation.StepRunning}}
		var ending executor.Ending
		if s.observe(t.Context(), a, &ending); len(ending.Residual) != 1 {
			t.Errorf("the ending beside the pod: %+v", ending)
		}
		s.remove(t, true)
		synctest.Wait()
		select {
		case o := <-over:
			if o.Class != operation.OutcomeAmbiguous || !strings.Contains(o.Detail, "was deleted before it answered") || len(server.Shown()) > 0 {
				t.Errorf("%+v, shown %+v", o, server.Shown())
			}
		default:
			t.Error("the step waits for a Job that is gone")
			cancel()
			<-over
		}
	})
}

// TestReadingJobThatIsDeleted: the Job of a preflight, or of the question what became of
// an upgrade, is not waited for when it is gone.
func TestReadingJobThatIsDeleted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := setup(t, account())
		s.reply = func(*batchv1.Job) (answer.Answer, string) { return answer.Answer{}, "running" }
		over := make(chan executor.Outcome, 1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		go func() { over <- s.preflight(ctx, s.task(1, 1)) }()
		synctest.Wait()
		s.remove(t, false)
		s.remove(t, true)
		if o := <-over; o.Class != operation.OutcomeTransient || o.ErrorCode != "job_failed" || !strings.Contains(o.Detail, "was deleted") {
			t.Errorf("the preflight: %+v", o)
		}
		s = setup(t)
		s.put(t, s.assignment(1), upgradeOf, answer.Answer{}, "mute")
		s.reply = func(*batchv1.Job) (answer.Answer, string) { return answer.Answer{}, "running" }
		found := make(chan executor.Finding, 1)
		go func() { found <- s.probe(ctx, s.task(2, 1)) }()
		synctest.Wait()
		s.remove(t, false)
		s.remove(t, true)
		if f := <-found; f.Phase != operation.StepUnknown || !strings.Contains(f.Detail, "was deleted") {
			t.Errorf("the probe: %+v", f)
		}
	})
}

// TestOrphanOfAnother: the pod of another operation's Job that was deleted may change the
// release yet, as the Job could.
func TestOrphanOfAnother(t *testing.T) {
	t.Parallel()
	s := setup(t, account())
	s.Cluster = opened(t)
	s.Client, s.Namespace = clustertest.BeforeJobs(s.client, nil), "ops"
	before := s.assignment(1)
	before.Operation = id.New(id.Operation, time.Now())
	q := request{verb: answer.Upgrade, component: good().Components["gpu-operator"], timeout: time.Minute, left: time.Hour}
	s.put(t, before, q, answer.Answer{}, "running")
	s.asked = []string{q.name(before)}
	p, err := s.client.CoreV1().Pods("ops").Get(t.Context(), q.name(before), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p.Spec = s.job(before, q).Spec.Template.Spec
	if _, err := s.client.CoreV1().Pods("ops").Update(t.Context(), p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.remove(t, false)
	if o := s.upgrade(t.Context(), s.task(1, 1)); o.Class != operation.OutcomeWaiting || o.ErrorCode != "in_progress" || !strings.Contains(o.Detail, before.Operation) {
		t.Errorf("beside it: %+v", o)
	}
}

// TestWhyAnUpgradeHasNoPod: what the Job's controller says is shown and ends the step,
// not that there is no pod.
func TestWhyAnUpgradeHasNoPod(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ message, code, rule string }{
		"quota":        {`Error creating: pods "x" is forbidden: exceeded quota: none, requested: pods=1, used: pods=0, limited: pods=0`, "quota_exceeded", "quota none"},
		"limit range":  {`Error creating: pods "x" is forbidden: maximum memory usage per Container is 1Mi, but limit is 512Mi`, "create_refused", "admission"},
		"pod security": {`Error creating: pods "x" is forbidden: violates PodSecurity "restricted:latest": seccompProfile`, "create_refused", "PodSecurity restricted:latest"},
		"nothing":      {"", "no_pod", "job controller"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := setup(t, account())
				s.reply = func(j *batchv1.Job) (answer.Answer, string) {
					if tt.message != "" {
						ev := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: j.Namespace, Name: "e"}, Type: corev1.EventTypeWarning, Reason: cluster.FailedCreate, Message: tt.message,
							InvolvedObject: corev1.ObjectReference{Kind: "Job", Namespace: j.Namespace, Name: j.Name, UID: j.UID}, FirstTimestamp: metav1.Now(), LastTimestamp: metav1.Now()}
						if err := s.client.Tracker().Add(ev); err != nil {
							t.Error(err)
						}
					}
					return answer.Answer{}, "podless"
				}
				var server clustertest.Server
				task := s.task(1, 1)
				task.Blocked = server.Blocked
				over := make(chan executor.Outcome, 1)
				ctx, cancel := context.WithCancel(t.Context())
				go func() { over <- s.preflight(ctx, task) }()
				time.Sleep(podlessEvery)
				synctest.Wait()
				if shown := server.Shown(); len(shown) != 1 || shown[0].Code != tt.code || shown[0].Rule != tt.rule {
					t.Errorf("shown: %+v", shown)
				}
				cancel() // its time is up
				if o := <-over; o.Class != operation.OutcomeWaiting || o.ErrorCode != tt.code || !strings.Contains(o.Detail, strings.TrimPrefix(tt.message, "Error creating: ")) {
					t.Errorf("at the deadline: %+v", o)
				}
				go func() { over <- s.preflight(t.Context(), task) }()
				time.Sleep(podlessEvery)
				synctest.Wait()
				j, err := s.client.BatchV1().Jobs("ops").Get(t.Context(), s.asked[0], metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobFailed, Status: corev1.ConditionTrue, Reason: batchv1.JobReasonDeadlineExceeded}}
				if _, err := s.client.BatchV1().Jobs("ops").Update(t.Context(), j, metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
				if o := <-over; o.Class != operation.OutcomePermanent || o.ErrorCode != tt.code || !strings.Contains(o.Detail, strings.TrimPrefix(tt.message, "Error creating: ")) {
					t.Errorf("%+v", o)
				}
			})
		})
	}
}

// TestPreviewRehearsesTheUpgradesJob: what refuses the upgrade's Jobs is told by a dry
// run, and nothing is made.
func TestPreviewRehearsesTheUpgradesJob(t *testing.T) {
	t.Parallel()
	jobs := schema.GroupResource{Group: "batch", Resource: "jobs"}
	for name, tt := range map[string]struct {
		answer     error
		denied     bool
		code, rule string
	}{
		"taken":  {nil, false, "", ""},
		"quota":  {apierrors.NewForbidden(jobs, "x", errors.New("exceeded quota: none, requested: count/jobs.batch=1, used: count/jobs.batch=0, limited: count/jobs.batch=0")), false, cluster.CodeJobRefused, "quota none"},
		"policy": {apierrors.NewForbidden(jobs, "x", errors.New("ValidatingAdmissionPolicy 'frozen' with binding 'frozen' denied request: no")), false, cluster.CodeJobRefused, "policy/frozen"},
		"right":  {nil, true, "forbidden", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setup(t, account())
			s.Cluster = opened(t)
			s.client.PrependReactor("create", "selfsubjectaccessreviews", func(kubetesting.Action) (bool, runtime.Object, error) {
				return true, &authorizationv1.SelfSubjectAccessReview{Status: authorizationv1.SubjectAccessReviewStatus{Allowed: !tt.denied}}, nil
			})
			s.Namespace, s.Client = "ops", clustertest.BeforeJobs(s.client, func(_ context.Context, verb string) error {
				if verb != "rehearse" {
					t.Errorf("a dry run makes a Job")
				}
				return tt.answer
			})
			got, err := s.preview(t.Context(), protocol.PreviewRequest{ID: "prv_a", Type: "component.upgrade", Payload: s.assignment(1).Payload})
			if err != nil {
				t.Fatal(err)
			}
			if tt.code == "" && len(got) > 0 || tt.code != "" && (len(got) != 1 || got[0].Code != tt.code || tt.rule != "" && got[0].Rule != tt.rule) {
				t.Errorf("%+v", got)
			}
		})
	}
}

// TestReleaseThatIsLeft: the ending names the revision that an upgrade left, whether it failed
// or is pending: the latter keeps all that come next from beginning.
func TestReleaseThatIsLeft(t *testing.T) {
	t.Parallel()
	for status, says := range map[string]string{"deployed": "", "failed": "revision 7, which failed", "pending-upgrade": "revision 7, which is pending-upgrade"} {
		s := setup(t)
		code := ""
		if says != "" {
			code = answer.UpgradeFailed
		}
		s.put(t, s.assignment(1), upgradeOf, answer.Answer{Code: code, Own: &answer.Release{Revision: 7, Status: status}}, "")
		a := s.assignment(1)
		a.Steps = []protocol.Step{{PlanStep: operation.PlanStep{ID: "stp_1", Name: "upgrade"}, Phase: operation.StepFailed}}
		var end executor.Ending
		s.observe(t.Context(), a, &end)
		if (says == "") != (len(end.Residual) == 0) || says != "" && !strings.Contains(end.Residual[0].Detail, says) {
			t.Errorf("%s: %+v", status, end.Residual)
		}
	}
}

// TestAskedJobsAreNotKept: what became of an upgrade may be asked every few seconds for a
// day, while a right is missing. Those Jobs are gone soon, those that upgrade are not; and
// that some are gone keeps nobody from asking anew.
func TestAskedJobsAreNotKept(t *testing.T) {
	t.Parallel()
	s := setup(t)
	a := s.assignment(2)
	for verb, most := range map[string]time.Duration{answer.Status: 10 * time.Minute, answer.Upgrade: 25 * time.Hour, answer.Preflight: 25 * time.Hour} {
		if ttl := s.job(a, request{verb: verb, left: time.Hour}).Spec.TTLSecondsAfterFinished; ttl == nil || time.Duration(*ttl)*time.Second != most {
			t.Errorf("%s is kept for %v s", verb, ttl)
		}
	}
	s.put(t, s.assignment(1), upgradeOf, answer.Answer{}, "mute")
	asked := request{verb: answer.Status, after: upgradeOf.name(s.assignment(1)), attempt: 2} // the first is gone
	s.put(t, a, asked, answer.Answer{Code: answer.Forbidden}, "")
	s.reply = func(*batchv1.Job) (answer.Answer, string) {
		return answer.Answer{Own: &answer.Release{Revision: 2, Status: "deployed"}}, ""
	}
	if f := s.probe(t.Context(), s.task(2, 1)); f.Phase != operation.StepSucceeded {
		t.Errorf("the probe: %+v", f)
	}
	asked.attempt++
	if len(s.asked) != 1 || s.asked[0] != asked.name(a) {
		t.Errorf("asked by %v, want %s", s.asked, asked.name(a))
	}
}
