package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

func mustParse(q string) resource.Quantity { return resource.MustParse(q) }

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

func (s *server) source() source {
	return source{what: "the pods", read: func(ctx context.Context) (context.Context, context.CancelFunc) {
		return context.WithTimeout(ctx, time.Second)
	},
		list: func(context.Context, metav1.ListOptions) ([]runtime.Object, string, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.lists++
			return slices.Clone(s.pods), s.version, s.err
		},
		watch: func(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
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
	p := aPod(name)
	p.ResourceVersion = version
	return p
}

func names(f *feed[*corev1.Pod]) (list []string) {
	pods, _ := f.in("")
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
		f := newFeed(s.source(), takePod)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go f.run(ctx)
		if err := f.ready(ctx); err != nil {
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
		mark := versioned("", "9")
		s.watches[0].Action(watch.Bookmark, mark)
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
		_, since, _, err := f.state()
		if err == nil || since.Sub(away) > time.Second {
			t.Errorf("away: %v since %s", err, since.Sub(away))
		}
		s.set(func() { s.err = nil })
		time.Sleep(feedMost * 6 / 5)
		synctest.Wait()
		if _, _, _, err := f.state(); err != nil || len(s.from) != 4 || s.from[3] != "20" {
			t.Errorf("back: %v, watches from %q", err, s.from)
		}
	})
}

func TestFeedNamesAMissingRight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{err: apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", fmt.Errorf("no"))}
		f := newFeed(s.source(), takePod)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go f.run(ctx)
		if err := f.ready(ctx); !apierrors.IsForbidden(err) {
			t.Errorf("ready: %v", err)
		}
		s.set(func() { s.err = errors.New("away") })
		time.Sleep(5 * time.Second)
		within, stop := context.WithTimeout(ctx, time.Second)
		defer stop()
		if err := f.ready(within); err == nil || apierrors.IsForbidden(err) {
			t.Errorf("ready while away: %v", err)
		}
	})
}

func TestSharedFeedEndsWithItsUsers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{version: "1"}
		sh := &shared[*corev1.Pod]{linger: time.Minute, open: func() *feed[*corev1.Pod] { return newFeed(s.source(), takePod) }}
		first := sh.acquire()
		if err := first.ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		if sh.acquire() != first {
			t.Error("two users have two feeds")
		}
		sh.release()
		sh.release()
		time.Sleep(30 * time.Second)
		if sh.acquire() != first {
			t.Error("it did not linger")
		}
		sh.release()
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if sh.feed != nil {
			t.Error("it goes on without users")
		}
	})
}
