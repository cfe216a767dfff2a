package node

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster/clustertest"
	"github.com/opsplane/opsplane/agent/executor/kube/follow"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// An API server that hangs leaves its watches silent: a drain that waits asks it, and
// blames no kubelet for what nobody could pass on.
func TestServerThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var server clustertest.Server
		server.Hang(true)
		pod := aPod("slow", ago(9*time.Second))
		s := &session{node: theNode(true), pods: follow.New(follow.Source{}, takePod), plan: map[types.UID]*planned{pod.UID: {uid: pod.UID, name: key(pod)}}}
		s.pods.Seed([]runtime.Object{pod}, "1")
		begun := time.Now()
		d := &drive{drainer: newDrainer(&cluster.Cluster{Client: fake.NewClientset(), Now: time.Now, Pulse: server.Pulse()}, Options{}), s: s, gone: true, begun: begun.Add(time.Hour), serving: map[string]*serving{},
			t: &executor.Task{Assignment: lease("op_1"), Remaining: func() time.Duration { return time.Hour }}}
		defer time.Sleep(time.Minute) // what it watched lingers
		defer d.close()
		defer d.c.Pulse.Listen()()
		var l *look
		var codes []string
		for time.Since(begun) < 30*time.Second { // as drive does
			var stop *executor.Outcome
			if l, stop = d.look(t.Context()); stop != nil {
				t.Fatal(stop)
			}
			if h := l.first(); h != nil && (len(codes) == 0 || codes[len(codes)-1] != h.code) {
				codes = append(codes, h.code)
				if h.code == "api_unavailable" && (time.Since(begun) > clustertest.Missed || !h.since.Equal(begun.Add(clustertest.Quiet)) || !strings.Contains(d.message(l), "does not answer: ")) {
					t.Errorf("after %s: %s", time.Since(begun), d.message(l))
				}
			}
			d.rest(t.Context(), l)
		}
		if !slices.Equal(codes, []string{"terminating", "stopping", "api_unavailable"}) && !slices.Equal(codes, []string{"terminating", "api_unavailable"}) || l.first().code != "api_unavailable" {
			t.Errorf("held by %q, at last %+v", codes, l.first())
		}
		d.t.Cancelled = nil
		var told []protocol.Blocker
		d.t.Blocked = func(now []protocol.Blocker) { told = now }
		d.t.Progress = func(int, int, string, string) {}
		if d.tell(l); len(told) == 0 || told[0].Since == nil || !told[0].Since.Equal(begun.Add(clustertest.Quiet)) {
			t.Errorf("told %+v, silent since %s", told, begun.Add(clustertest.Quiet).UTC())
		}
		if d.halted = "interrupted"; d.ended(l).ErrorCode != "api_unavailable" {
			t.Errorf("at the deadline: %+v", d.ended(l))
		}
		server.Hang(false)
		time.Sleep(clustertest.Back)
		synctest.Wait()
		if l, _ = d.look(t.Context()); l.away || l.first().code != "stopping" {
			t.Errorf("it answers again, and the drain is held by %+v", l.first())
		}
	})
}

// A drain that ends with evictions in flight, at an API server that is silent, has ended
// for good: what is to be done is no retry of it, and no webhook is blamed.
func TestEndAtAServerThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var server clustertest.Server
		server.Hang(true)
		pod := aPod("a")
		d := &drive{drainer: newDrainer(&cluster.Cluster{Client: fake.NewClientset(), Now: time.Now, Pulse: server.Pulse()}, Options{}),
			s: &session{plan: map[types.UID]*planned{pod.UID: {uid: pod.UID, name: key(pod), pod: pod, lost: true, unheard: unheard{tries: 1, took: 8 * time.Second}}}}}
		defer d.c.Pulse.Listen()()
		time.Sleep(clustertest.Missed)
		synctest.Wait()
		o := d.openEnd(1, executor.Waiting("api_unavailable", "0 of 1 pods gone; the API server does not answer"))
		if o.Class != operation.OutcomeAmbiguous || o.ActionCode != operation.ActRestoreDependency || !strings.HasPrefix(o.ActionText, "find out why the API server does not answer") ||
			strings.Contains(o.ActionText+o.Detail, "retry") || strings.Contains(o.Detail, "webhook") || !strings.Contains(o.Detail, "what became of 1 evictions is not known; 0 of 1 pods gone") {
			t.Errorf("%+v", o)
		}
	})
}

// A drain that waits for volumes says so as well.
func TestServerHangsWhileVolumesAreDetached(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var server clustertest.Server
		server.Hang(true)
		e := newDrainer(&cluster.Cluster{Client: fake.NewClientset(), Now: time.Now, Pulse: server.Pulse()}, Options{})
		src := follow.Source{What: "the volume attachments", Read: e.c.Read, List: func(context.Context, metav1.ListOptions) ([]runtime.Object, string, error) {
			return []runtime.Object{&storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "v", UID: "v"}, Spec: storagev1.VolumeAttachmentSpec{NodeName: "n"}}}, "1", nil
		}, Watch: func(context.Context, metav1.ListOptions) (watch.Interface, error) { return watch.NewFake(), nil }}
		e.attachments.Open = func() *follow.Feed[*storagev1.VolumeAttachment] { return follow.New(src, takeAttachment) }
		defer time.Sleep(2 * linger)
		var told []protocol.Blocker
		ctx, cancel := context.WithTimeout(t.Context(), clustertest.Missed+time.Second)
		defer cancel()
		o := e.awaitDetach(ctx, stuckTask(lease("op_1"), &told), &session{node: theNode(true)}, payload{}, executor.Outcome{Detail: "2 of 2 pods gone"})
		if o.ErrorCode != "api_unavailable" || len(told) != 2 || told[0].Code != "api_unavailable" || told[1].Code != "volume_attached" {
			t.Errorf("%+v, told %+v", o, told)
		}
	})
}

// A node is as it is since its condition says so, not since a drain came to see it.
func TestReadySince(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	n := theNode(false)
	n.Status.Conditions = nil
	if since := readySince(n); since != nil {
		t.Errorf("without a condition: %s", since)
	}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, LastTransitionTime: metav1.NewTime(at)}}
	if since := readySince(n); since == nil || !since.Equal(at) {
		t.Errorf("since %v", since)
	}
}
