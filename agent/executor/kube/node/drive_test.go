package node

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	ktesting "k8s.io/client-go/testing"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
)

// TestNoEvictionOnceItEnds: evictions of a drain that wait for their turn behind those
// of others are not made once it has found that its node is another's.
func TestNoEvictionOnceItEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, c := aPod("a"), aPod("c")
		b := chosenSetup(t, func(int, *policyv1.Eviction) error { return nil }, a, c)
		for range maxInFlight { // a wave of others
			b.e.slots <- struct{}{}
		}
		other := theNode(false)
		other.UID = "another"
		if err := b.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("nodes"), other, ""); err != nil {
			t.Fatal(err)
		}
		end := make(chan executor.Outcome, 1)
		go func() {
			end <- (&Drains{b.e}).Chosen().Evict(t.Context(), b.task, theNode(false), []*corev1.Pod{a, c})
		}()
		time.Sleep(2 * watchNodeAfter)
		synctest.Wait()
		select {
		case o := <-end:
			if o.Class != operation.OutcomePermanent || o.ErrorCode != "node_replaced" {
				t.Errorf("it ended with %+v", o)
			}
		default:
			t.Error("it has not ended: its calls wait for their turn")
		}
		for range maxInFlight {
			<-b.e.slots
		}
		synctest.Wait()
		if len(b.sent) > 0 {
			t.Errorf("evicted %q", b.sent)
		}
		time.Sleep(2 * linger)
	})
}

// TestDeniedNodeIsBelieved: that the agent may not watch nodes, which a drive finds out
// once it has lasted, is found out soon by the tries that follow, and so believed.
func TestDeniedNodeIsBelieved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := aPod("a")
		b := chosenSetup(t, func(int, *policyv1.Eviction) error { return status(429, "busy") }, a)
		b.client.PrependReactor("list", "nodes", func(ktesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(nodeResource, "", errors.New("no"))
		})
		evict := b.e.lenient(func(ctx context.Context, t *executor.Task) executor.Outcome {
			time.Sleep(time.Second) // whoever chose the pods looks at them first
			return (&Drains{b.e}).Chosen().Evict(ctx, t, theNode(false), []*corev1.Pod{a})
		})
		var o executor.Outcome
		begun := time.Now()
		for time.Since(begun) < time.Minute && o.Class != operation.OutcomePermanent {
			o = evict(t.Context(), b.task)
			time.Sleep(o.After)
		}
		if o.Class != operation.OutcomePermanent || o.ErrorCode != "forbidden" || time.Since(begun) > watchNodeAfter+2*executor.DeniedFor {
			t.Errorf("after %s: %+v", time.Since(begun), o)
		}
		time.Sleep(2 * linger)
	})
}

// TestTurnAtTheEnd: a turn that comes together with the end is not taken.
func TestTurnAtTheEnd(t *testing.T) {
	t.Parallel()
	p := aPod("a")
	b := chosenSetup(t, func(int, *policyv1.Eviction) error { return nil }, p)
	d := b.e.newDrive(b.task, &session{}, payload{}, true)
	close(d.over)
	for range 64 { // of two that are ready, either may be chosen
		d.issue(t.Context(), call{p: &planned{}, uid: p.UID, namespace: "ns", name: "a"})
		if r := <-d.results; r.issued {
			t.Fatalf("issued: %+v", r)
		}
	}
}
