package follow

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
)

// server plays an API server with a list and watches of it.
type server struct {
	mu      sync.Mutex
	pods    []runtime.Object
	version string
	err     error // of the next lists and watches
	lists   int
	from    []string // versions that watches began at
	watches []*watch.FakeWatcher
}

func (s *server) source() Source {
	return Source{What: "the pods", Read: func(ctx context.Context) (context.Context, context.CancelFunc) {
		return context.WithTimeout(ctx, time.Second)
	},
		List: func(context.Context, metav1.ListOptions) ([]runtime.Object, string, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.lists++
			return slices.Clone(s.pods), s.version, s.err
		},
		Watch: func(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.err != nil {
				return nil, s.err
			}
			s.from = append(s.from, o.ResourceVersion)
			w := watch.NewFakeWithChanSize(10, false)
			s.watches = append(s.watches, w)
			return w, nil
		}}
}

func (s *server) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func versioned(name, version string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name), ResourceVersion: version}}
}

func takePod(o runtime.Object) (string, *corev1.Pod) { return "", o.(*corev1.Pod) }

func names(f *Feed[*corev1.Pod]) (list []string) {
	pods, _ := f.In("")
	for _, p := range pods {
		list = append(list, p.Name+"@"+p.ResourceVersion)
	}
	slices.Sort(list)
	return list
}

func TestFeed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{pods: []runtime.Object{versioned("a", "1"), versioned("b", "2")}, version: "2"}
		f := New(s.source(), takePod)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go f.Run(ctx)
		if err := f.Ready(ctx); err != nil {
			t.Fatal(err)
		}
		want := func(what string, want ...string) {
			t.Helper()
			synctest.Wait()
			if got := names(f); !slices.Equal(got, want) {
				t.Errorf("%s: %q, not %q", what, got, want)
			}
		}
		want("listed", "a@1", "b@2")
		s.watches[0].Add(versioned("c", "3"))
		s.watches[0].Modify(versioned("a", "4"))
		s.watches[0].Delete(versioned("b", "5"))
		want("watched", "a@4", "c@3")
		s.watches[0].Action(watch.Bookmark, versioned("", "9"))
		synctest.Wait()

		// The watch ends: it goes on from the bookmark and does not list.
		s.watches[0].Stop()
		time.Sleep(time.Second)
		synctest.Wait()
		if s.lists != 1 || !slices.Equal(s.from, []string{"2", "9"}) {
			t.Errorf("%d lists, watches from %q", s.lists, s.from)
		}
		// The server no longer knows the version: the list is read again.
		s.set(func() { s.pods, s.version = []runtime.Object{versioned("d", "20")}, "20" })
		gone := apierrors.NewResourceExpired("too old").ErrStatus
		s.watches[1].Error(&gone)
		time.Sleep(least)
		want("listed again", "d@20")
		if s.lists != 2 {
			t.Errorf("%d lists", s.lists)
		}
		// It is away: told since when, tried again at a bounded pace, and well again.
		away := time.Now()
		s.set(func() { s.err = errors.New("connection refused") })
		s.watches[2].Stop()
		time.Sleep(time.Minute)
		synctest.Wait()
		_, since, _, err := f.State()
		if err == nil || since.Sub(away) > time.Second {
			t.Errorf("away: %v since %s", err, since.Sub(away))
		}
		s.set(func() { s.err = nil })
		time.Sleep(most * 6 / 5)
		synctest.Wait()
		if _, _, _, err := f.State(); err != nil || len(s.from) != 4 || s.from[3] != "20" {
			t.Errorf("back: %v, watches from %q", err, s.from)
		}
	})
}

func TestFeedNamesAMissingRight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{err: apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", fmt.Errorf("no"))}
		f := New(s.source(), takePod)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go f.Run(ctx)
		if err := f.Ready(ctx); !apierrors.IsForbidden(err) {
			t.Errorf("ready: %v", err)
		}
		s.set(func() { s.err = errors.New("away") })
		time.Sleep(5 * time.Second)
		within, stop := context.WithTimeout(ctx, time.Second)
		defer stop()
		if err := f.Ready(within); err == nil || apierrors.IsForbidden(err) {
			t.Errorf("ready while away: %v", err)
		}
	})
}

func TestSharedFeedEndsWithItsUsers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{version: "1"}
		sh := &Shared[*corev1.Pod]{Linger: time.Minute, Open: func() *Feed[*corev1.Pod] { return New(s.source(), takePod) }}
		first := sh.Acquire()
		if err := first.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		if sh.Acquire() != first {
			t.Error("two users have two feeds")
		}
		sh.Release()
		sh.Release()
		time.Sleep(30 * time.Second)
		if sh.Acquire() != first {
			t.Error("it did not linger")
		}
		sh.Release()
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if sh.feed != nil {
			t.Error("it goes on without users")
		}
	})
}

// What went is remembered as it was last, also when it went while nobody watched.
func TestFeedRemembers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{pods: []runtime.Object{versioned("a", "1"), versioned("b", "2")}, version: "2"}
		f := New(s.source(), takePod)
		f.Remember = true
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go f.Run(ctx)
		synctest.Wait()
		s.watches[0].Modify(versioned("a", "3"))
		s.watches[0].Delete(versioned("a", "4"))
		synctest.Wait()
		s.set(func() { s.pods, s.version = nil, "9" })
		gone := apierrors.NewResourceExpired("too old").ErrStatus
		time.Sleep(time.Second)
		s.watches[0].Error(&gone)
		time.Sleep(least)
		synctest.Wait()
		there, went, _ := f.Seen("")
		var list []string
		for _, p := range went {
			list = append(list, p.Name+"@"+p.ResourceVersion)
		}
		slices.Sort(list)
		if len(there) != 0 || !slices.Equal(list, []string{"a@4", "b@2"}) {
			t.Errorf("%d there, %q went", len(there), list)
		}
	})
}

// An API server that never begins a watch is told as away, and asked again.
func TestWatchThatNeverBegins(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{version: "1"}
		src := s.source()
		asked, begins := 0, src.Watch
		src.Watch = func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			if asked++; asked < 3 {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return begins(ctx, o)
		}
		f := New(src, takePod)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go f.Run(ctx)
		time.Sleep(1500 * time.Millisecond) // the second try is under way
		if _, _, _, err := f.State(); !errors.Is(err, errLate) {
			t.Errorf("while it hangs: %v", err)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if _, _, _, err := f.State(); err != nil || asked != 3 || s.lists != 1 {
			t.Errorf("at the end: %v, asked %d times, %d lists", err, asked, s.lists)
		}
	})
}

// A group is ready when each of its feeds is, and tells a missing right from a server
// that is away, which its pulse may know before a watch does.
func TestGroup(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var hangs atomic.Bool
		g := NewGroup(ctx, cluster.NewPulse(func(ctx context.Context) error {
			if hangs.Load() {
				<-ctx.Done()
			}
			return ctx.Err()
		}))
		one, two := &server{version: "1", pods: []runtime.Object{versioned("a", "1")}}, &server{version: "1", err: errors.New("connection refused")}
		pods := func(o runtime.Object) *corev1.Pod { return o.(*corev1.Pod) }
		Join(ctx, g, one.source(), pods)
		f := Join(ctx, g, two.source(), pods)
		rung := func(what string, want bool) {
			t.Helper()
			synctest.Wait()
			got := false
			select {
			case <-g.Changed():
				got = true
			default:
			}
			if got != want {
				t.Errorf("%s: rung %t", what, got)
			}
		}
		rung("one is listed, one fails", true)
		if away, denied := g.Trouble(); g.Ready() || denied != nil || away == nil {
			t.Errorf("ready %t, denied %v, away %v", g.Ready(), denied, away)
		}
		two.set(func() { two.err = apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", errors.New("no")) })
		time.Sleep(5 * time.Second)
		if _, denied := g.Trouble(); !apierrors.IsForbidden(denied) {
			t.Errorf("denied %v", denied)
		}
		two.set(func() { two.err = nil })
		time.Sleep(5 * time.Second)
		rung("both are listed, the second without an object", true)
		if away, denied := g.Trouble(); !g.Ready() || denied != nil || away != nil {
			t.Errorf("ready %t, denied %v, away %v", g.Ready(), denied, away)
		}
		rung("nothing", false)
		two.watches[0].Add(versioned("b", "2"))
		rung("a pod came", true)
		if l, _ := f.In(""); len(l) != 1 {
			t.Errorf("%d pods", len(l))
		}

		// The watches stay open over a connection that brings nothing any more.
		hangs.Store(true)
		since := time.Now()
		time.Sleep(10 * time.Second)
		rung("it hangs", true)
		if away, denied := g.Trouble(); denied != nil || away == nil || away.Since.Before(since) {
			t.Errorf("hangs since %s: denied %v, away %v", since, denied, away)
		}
		two.watches[0].Stop()
		two.set(func() { two.err = errors.New("connection refused") })
		time.Sleep(time.Second)
		rung("a watch ended", true)
		away, _ := g.Trouble()
		if _, later, _, err := f.State(); err == nil || away == nil || !away.Since.Before(later) {
			t.Errorf("a watch failed after that, at %s (%v): away %v", later, err, away)
		}
		two.set(func() { two.err = nil })
		hangs.Store(false)
		time.Sleep(5 * time.Second)
		rung("it answers", true)
		if away, denied := g.Trouble(); denied != nil || away != nil {
			t.Errorf("it answers: denied %v, away %v", denied, away)
		}
	})
}

// Of narrows lists and watches, reads the list's version, and takes what a client's
// typed list holds.
func TestOf(t *testing.T) {
	t.Parallel()
	here, there := versioned("a", "7"), versioned("b", "8")
	here.Labels, there.Labels = map[string]string{"app": "x"}, map[string]string{"app": "y"}
	client := fake.NewClientset(here, there)
	read := func(ctx context.Context) (context.Context, context.CancelFunc) {
		return context.WithTimeout(ctx, time.Minute)
	}
	f := New(Of("the pods of x", read, client.CoreV1().Pods("ns"), metav1.ListOptions{LabelSelector: "app=x"}), takePod)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go f.Run(ctx)
	if err := f.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	if got := names(f); len(got) != 1 || !strings.HasPrefix(got[0], "a@") {
		t.Errorf("followed %q", got)
	}
}
