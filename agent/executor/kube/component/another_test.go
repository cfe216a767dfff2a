package component

import (
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster/clustertest"
	"github.com/opsplane/opsplane/agent/executor/kube/component/answer"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// TestAnothersJobIsAwaited: an operation that ended left a Job behind that may change the
// release yet. No Job of the next one's is made beside it: dry run, probe, preflight and
// upgrade name it, and the steps wait until its pod has ended as well.
func TestAnothersJobIsAwaited(t *testing.T) {
	t.Parallel()
	other := Component{Release: "r2", Namespace: "n", Chart: "oci://a/b"}
	for name, tt := range map[string]struct {
		q     request
		how   string
		under bool
	}{
		"it upgrades the release":         {request{verb: answer.Upgrade, component: good().Components["gpu-operator"], timeout: time.Minute, left: time.Hour}, "running", true},
		"it has ended":                    {request{verb: answer.Upgrade, component: good().Components["gpu-operator"], timeout: time.Minute, left: time.Hour}, "mute", false},
		"it reads of the release":         {request{verb: answer.Preflight, component: good().Components["gpu-operator"], timeout: time.Minute}, "running", false},
		"it upgrades another release":     {request{verb: answer.Upgrade, component: other, timeout: time.Minute, left: time.Hour}, "running", false},
		"it upgrades it in another place": {request{verb: answer.Upgrade, component: Component{Release: "r", Namespace: "n2", Chart: "oci://a/b"}, timeout: time.Minute, left: time.Hour}, "running", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setup(t, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "up"}})
			s.Cluster = opened(t)
			s.Client, s.Namespace = clustertest.BeforeJobs(s.client, nil), "ops"
			before := s.assignment(1)
			before.Operation = id.New(id.Operation, time.Now())
			s.put(t, before, tt.q, answer.Answer{}, tt.how)
			s.reply = func(*batchv1.Job) (answer.Answer, string) { return answer.Answer{}, "" }
			jobName := tt.q.name(before)
			list, err := s.preview(t.Context(), protocol.PreviewRequest{Payload: before.Payload})
			if named := len(list) == 1 && list[0].Code == "in_progress" && list[0].Rule == "operation/"+before.Operation; err != nil || named != tt.under {
				t.Errorf("the dry run: %+v, %v", list, err)
			}
			if f := s.probe(t.Context(), s.task(1, 1)); f.Phase != operation.StepPending { // nothing of this run was begun
				t.Errorf("the probe: %+v", f)
			}
			var server clustertest.Server
			task := s.task(1, 1)
			task.Blocked = server.Blocked
			steps := []func() executor.Outcome{
				func() executor.Outcome { return s.preflight(t.Context(), task) },
				func() executor.Outcome { return s.upgrade(t.Context(), task) },
			}
			for _, step := range steps {
				if !tt.under {
					break
				}
				o := step()
				if o.Class != operation.OutcomeWaiting || o.ErrorCode != "in_progress" || o.After <= 0 || !strings.Contains(o.Detail, jobName+" of operation "+before.Operation) || !strings.HasSuffix(o.ActionText, operation.ThenRetry) {
					t.Errorf("%+v", o)
				}
				if shown := server.Shown(); len(shown) != 1 || shown[0].Code != "in_progress" || shown[0].Since == nil {
					t.Errorf("shown %+v", shown)
				}
			}
			if len(s.asked) > 0 {
				t.Errorf("Jobs %v were made beside it", s.asked)
			}
			if tt.under {
				s.end(t, jobName)
			}
			for _, step := range steps {
				if o := step(); o.Class != operation.OutcomeDone || len(server.Shown()) > 0 {
					t.Errorf("once it has ended: %+v, shown %+v", o, server.Shown())
				}
			}
		})
	}
}

// end has a Job and its pod end.
func (s *site) end(t *testing.T, name string) {
	t.Helper()
	j, err := s.client.BatchV1().Jobs("ops").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobFailed, Status: corev1.ConditionTrue}}
	p, err := s.client.CoreV1().Pods("ops").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p.Status.Phase = corev1.PodFailed
	if _, err := s.client.BatchV1().Jobs("ops").Update(t.Context(), j, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.client.CoreV1().Pods("ops").Update(t.Context(), p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestPodThatIsSeenLater: Jobs and pods come by two watches. A Job that has ended has an
// answer yet, for some seconds, if its pod is not seen; one that ended long ago has none.
func TestPodThatIsSeenLater(t *testing.T) {
	t.Parallel()
	now := time.Now()
	j, p := madeJob("1", "1", answer.Upgrade, true, "")
	since := map[types.UID]time.Time{}
	s := scene{jobs: []*batchv1.Job{j}}
	for after, want := range map[time.Duration]time.Duration{0: unseenMost, 2 * time.Second: unseenMost - 2*time.Second, unseenMost: 0} {
		since[j.UID] = now
		if left := s.unseen(since, now.Add(after)); left != want {
			t.Errorf("after %s: %s are left, want %s", after, left, want)
		}
	}
	j.Status.Conditions[0].LastTransitionTime = metav1.NewTime(now.Add(-2 * longAgo))
	if left := s.unseen(map[types.UID]time.Time{}, now); left != 0 {
		t.Errorf("long ago: %s are left", left)
	}
	j.Status.Conditions[0].LastTransitionTime = metav1.NewTime(now)
	s.pods = []*corev1.Pod{p}
	if left := s.unseen(map[types.UID]time.Time{}, now); left != 0 {
		t.Errorf("its pod is seen: %s are left", left)
	}
}

// A probe that has to ask Helm what became of an upgrade waits for another operation's Job.
func TestProbeBesideAnothersJob(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.Cluster = opened(t)
	s.Client, s.Namespace = clustertest.BeforeJobs(s.client, nil), "ops"
	before := s.assignment(1)
	before.Operation = id.New(id.Operation, time.Now())
	q := request{verb: answer.Upgrade, component: good().Components["gpu-operator"], timeout: time.Minute, left: time.Hour}
	s.put(t, before, q, answer.Answer{}, "running")
	s.put(t, s.assignment(1), q, answer.Answer{}, "mute")
	f := s.probe(t.Context(), s.task(2, 1))
	if f.Phase != operation.StepUnknown || f.ErrorCode != "in_progress" || f.Blocker == nil || f.Blocker.Resource != "job/ops/"+q.name(before) {
		t.Errorf("it finds %+v", f)
	}
}
