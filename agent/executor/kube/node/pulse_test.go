package node

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/follow"
	"github.com/opsplane/opsplane/shared/protocol"
)

// An API server that hangs leaves its watches silent: a drain that waits asks it, and
// blames no kubelet for what nobody could pass on.
func TestServerThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		var hangs atomic.Bool
		hangs.Store(true)
		client.PrependReactor("get", "nodes", func(ktesting.Action) (bool, runtime.Object, error) {
			if !hangs.Load() {
				return false, nil, nil // 404: an answer
			}
			time.Sleep(pulseFor)
			return true, nil, context.DeadlineExceeded
		})
		pod := aPod("slow", ago(9*time.Second))
		s := &session{node: theNode(true), pods: follow.New(follow.Source{}, takePod), plan: map[types.UID]*planned{pod.UID: {uid: pod.UID, name: key(pod)}}}
		s.pods.Seed([]runtime.Object{pod}, "1")
		begun := time.Now()
		d := &drive{drainer: newDrainer(&cluster.Cluster{Client: client, Now: time.Now}, Options{}), s: s, gone: true, begun: begun.Add(time.Hour), serving: map[string]*serving{},
			t: &executor.Task{Assignment: lease("op_1"), Remaining: func() time.Duration { return time.Hour }}}
		defer time.Sleep(time.Minute) // what it watched lingers
		defer d.close()
		var l *look
		var codes []string
		for time.Since(begun) < 30*time.Second { // as drive does
			var stop *executor.Outcome
			if l, stop = d.look(t.Context()); stop != nil {
				t.Fatal(stop)
			}
			if h := l.first(); h != nil && (len(codes) == 0 || codes[len(codes)-1] != h.code) {
				codes = append(codes, h.code)
				if h.code == "api_unavailable" && (time.Since(begun) > 10*time.Second || !strings.Contains(d.message(l), "does not answer since "+begun.Add(silentFor).UTC().Format(time.RFC3339))) {
					t.Errorf("after %s: %s", time.Since(begun), d.message(l))
				}
			}
			d.rest(t.Context(), l)
		}
		if !slices.Equal(codes, []string{"terminating", "stopping", "api_unavailable"}) && !slices.Equal(codes, []string{"terminating", "api_unavailable"}) || l.first().code != "api_unavailable" {
			t.Errorf("held by %q, at last %+v", codes, l.first())
		}
		d.t.Cancelled = nil
		if d.halted = "interrupted"; d.ended(l).ErrorCode != "api_unavailable" {
			t.Errorf("at the deadline: %+v", d.ended(l))
		}
		hangs.Store(false)
		time.Sleep(2 * silentFor)
		synctest.Wait()
		_, _ = d.look(t.Context())
		synctest.Wait()
		if l, _ = d.look(t.Context()); l.away || l.first().code != "stopping" {
			t.Errorf("it answers again, and the drain is held by %+v", l.first())
		}
	})
}

// A drain that waits for volumes says so as well.
func TestServerHangsWhileVolumesAreDetached(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		client.PrependReactor("get", "nodes", func(ktesting.Action) (bool, runtime.Object, error) {
			time.Sleep(pulseFor)
			return true, nil, context.DeadlineExceeded
		})
		e := newDrainer(&cluster.Cluster{Client: client, Now: time.Now}, Options{})
		src := follow.Source{What: "the volume attachments", Read: e.c.Read, List: func(context.Context, metav1.ListOptions) ([]runtime.Object, string, error) {
			return []runtime.Object{&storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "v", UID: "v"}, Spec: storagev1.VolumeAttachmentSpec{NodeName: "n"}}}, "1", nil
		}, Watch: func(context.Context, metav1.ListOptions) (watch.Interface, error) { return watch.NewFake(), nil }}
		e.attachments.Open = func() *follow.Feed[*storagev1.VolumeAttachment] { return follow.New(src, takeAttachment) }
		defer time.Sleep(2 * linger)
		var told []protocol.Blocker
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		o := e.awaitDetach(ctx, stuckTask(lease("op_1"), &told), &session{node: theNode(true)}, payload{}, executor.Outcome{Detail: "2 of 2 pods gone"})
		if o.ErrorCode != "api_unavailable" || len(told) != 2 || told[0].Code != "api_unavailable" || told[1].Code != "volume_attached" {
			t.Errorf("%+v, told %+v", o, told)
		}
	})
}

// What a watch brings is an answer as well, and a client's own limit is none.
func TestPulse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var p pulse
		p.hear(time.Now())
		answer := errors.New("client rate limiter Wait returned an error: context deadline exceeded")
		feel := func(after time.Duration) error {
			time.Sleep(after)
			_, _, _, _ = p.feel(func(context.Context) error { return answer })
			synctest.Wait()
			_, _, _, err := p.feel(func(context.Context) error { t.Error("asked at once again"); return nil })
			return err
		}
		if err := feel(silentFor); err != nil {
			t.Errorf("limited: %v", err)
		}
		answer = errors.New("no route to host")
		if err := feel(silentFor); err == nil {
			t.Error("nobody said that it is away")
		}
		f := follow.New(follow.Source{}, takePod)
		time.Sleep(time.Second)
		f.Seed(nil, "7")
		p.hear(f.LastHeard())
		if _, _, _, err := p.feel(nil); err != nil {
			t.Errorf("after what a watch brought: %v", err)
		}
	})
}
