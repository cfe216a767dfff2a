//go:build kubetest

package kuberig_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
)

// TestProxyFaults: each fault does what its name says to the request that it is
// meant for, and nothing to others.
func TestProxyFaults(t *testing.T) {
	t.Parallel()
	r := kuberig.Shared(t)
	ns := r.Namespace()
	direct := r.Client(kuberig.Admin).CoreV1().ConfigMaps(ns)
	for _, c := range []struct {
		name  string
		fault kuberig.Fault
		check func(t *testing.T, err error)
		done  bool // the API server did it
	}{
		{"none", kuberig.Fault{Match: kuberig.On("PATCH", "/configmaps")}, func(t *testing.T, err error) {
			if err != nil {
				t.Errorf("a request that no fault matches failed: %v", err)
			}
		}, true},
		{"429", kuberig.Fault{Status: http.StatusTooManyRequests, RetryAfter: 7 * time.Second}, func(t *testing.T, err error) {
			// client-go would wait for 7 s and ask again: the deadline ends it before.
			if after, ok := apierrors.SuggestsClientDelay(err); !errors.Is(err, context.DeadlineExceeded) && (!apierrors.IsTooManyRequests(err) || !ok || after != 7) {
				t.Errorf("got %v (after %d s), want too many requests after 7 s", err, after)
			}
		}, false},
		{"500", kuberig.Fault{Status: http.StatusInternalServerError}, func(t *testing.T, err error) {
			if !apierrors.IsInternalError(err) {
				t.Errorf("got %v, want an internal error", err)
			}
		}, false},
		{"cut", kuberig.Fault{Cut: true}, func(t *testing.T, err error) {
			if err == nil || apierrors.ReasonForError(err) != metav1.StatusReasonUnknown {
				t.Errorf("got %v, want a broken connection", err)
			}
		}, false},
		{"drop", kuberig.Fault{Drop: true}, func(t *testing.T, err error) {
			if err == nil || apierrors.ReasonForError(err) != metav1.StatusReasonUnknown {
				t.Errorf("got %v, want a broken connection", err)
			}
		}, true},
		{"late", kuberig.Fault{Late: time.Minute}, func(t *testing.T, err error) {
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v, want the deadline's end", err)
			}
		}, true},
		{"delay", kuberig.Fault{Delay: time.Minute}, func(t *testing.T, err error) {
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v, want the deadline's end", err)
			}
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := r.For(t).Proxy(kuberig.Admin)
			if c.fault.Match == nil {
				c.fault.Match = kuberig.On("POST", "/configmaps")
			}
			in := p.Inject(c.fault)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := p.Client().CoreV1().ConfigMaps(ns).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "of-" + c.name}}, metav1.CreateOptions{})
			c.check(t, err)
			if want := c.name != "none"; want != (in.Hits() > 0) {
				t.Errorf("the fault happened to %d requests", in.Hits())
			}
			_, err = direct.Get(t.Context(), "of-"+c.name, metav1.GetOptions{})
			if c.done && err != nil || !c.done && !apierrors.IsNotFound(err) {
				t.Errorf("whether the API server did it should be %v: %v", c.done, err)
			}
			in.Remove()
			if _, err := p.Client().CoreV1().ConfigMaps(ns).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "after-" + c.name}}, metav1.CreateOptions{}); err != nil {
				t.Errorf("after the fault: %v", err)
			}
		})
	}
}

// TestProxyWatches: a cut ends the watches that run; a fault may keep new ones off.
func TestProxyWatches(t *testing.T) {
	t.Parallel()
	r := kuberig.Shared(t)
	ns := r.Namespace()
	p := r.Proxy(kuberig.Admin)
	maps := p.Client().CoreV1().ConfigMaps(ns)
	w, err := maps.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if _, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "seen"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for e := range w.ResultChan() { // events come through while the watch runs
		if m, ok := e.Object.(*corev1.ConfigMap); ok && m.Name == "seen" {
			break
		}
	}
	if n := p.CutWatches(); n != 1 {
		t.Errorf("%d watches were cut, want 1", n)
	}
	for range w.ResultChan() { // ends
	}
	off := p.Inject(kuberig.Fault{Match: kuberig.Watches, Status: http.StatusServiceUnavailable, Times: 1})
	if _, err := maps.Watch(t.Context(), metav1.ListOptions{}); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("a watch that is kept off: %v", err)
	}
	<-off.Hit()
	again, err := maps.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatalf("after the fault's one time: %v", err)
	}
	again.Stop()
}

// TestProxyHolds: a request waits until it is let go, and what is called when it
// was answered sees its effect.
func TestProxyHolds(t *testing.T) {
	t.Parallel()
	r := kuberig.Shared(t)
	ns := r.Namespace()
	p := r.Proxy(kuberig.Admin)
	direct := r.Client(kuberig.Admin).CoreV1().ConfigMaps(ns)
	let := make(chan struct{})
	var then error
	in := p.Inject(kuberig.Fault{Match: kuberig.On("POST", "/configmaps"), Until: let, Then: func() {
		_, then = direct.Get(context.Background(), "held", metav1.GetOptions{})
	}})
	made := make(chan error, 1)
	go func() {
		_, err := p.Client().CoreV1().ConfigMaps(ns).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "held"}}, metav1.CreateOptions{})
		made <- err
	}()
	<-in.Hit()
	if _, err := direct.Get(t.Context(), "held", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a request that is held back was done: %v", err)
	}
	close(let)
	if err := <-made; err != nil {
		t.Error(err)
	}
	if then != nil {
		t.Errorf("what is called after the effect does not see it: %v", then)
	}
}
