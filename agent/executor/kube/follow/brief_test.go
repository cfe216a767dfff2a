package follow

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// counts tells how many lists and watches were asked for.
func (s *server) counts() (lists, watches int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lists, len(s.from)
}

// trouble tells how the feed is at each change of that, until ctx ends.
func trouble(ctx context.Context, f *Feed[*corev1.Pod]) (told []string) {
	for {
		_, _, changed, err := f.State()
		said := ""
		if err != nil {
			said = err.Error()
		}
		if len(told) == 0 || told[len(told)-1] != said {
			told = append(told, said)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return told
		}
	}
}

// A version that is not known any more right after each list does not make the feed
// list without a pause, however long a list takes.
func TestVersionsThatExpireAgainAndAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{version: "1", pods: []runtime.Object{versioned("a", "1")}}
		src := s.source()
		begins, reads := src.Watch, src.List
		expires := true
		src.List = func(ctx context.Context, o metav1.ListOptions) ([]runtime.Object, string, error) {
			time.Sleep(300 * time.Millisecond)
			return reads(ctx, o)
		}
		src.Watch = func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			s.mu.Lock()
			late := expires
			s.mu.Unlock()
			if late {
				return nil, apierrors.NewResourceExpired("too old")
			}
			return begins(ctx, o)
		}
		f := New(src, takePod)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		minute, end := context.WithTimeout(ctx, time.Minute)
		defer end()
		go f.Run(ctx)
		time.Sleep(550 * time.Millisecond) // the second list is under way
		synctest.Wait()
		lists, _ := s.counts()
		if _, _, _, err := f.State(); err != nil || lists != 1 {
			t.Errorf("after the first 410: %v, %d lists", err, lists)
		}
		time.Sleep(200 * time.Millisecond)
		synctest.Wait()
		lists, _ = s.counts()
		if _, _, _, err := f.State(); !apierrors.IsResourceExpired(err) || lists != 2 {
			t.Errorf("after the second: %v, %d lists", err, lists)
		}
		told := trouble(minute, f)
		synctest.Wait()
		if want := []string{"watch the pods: too old"}; !slices.Equal(told, want) { // and not as well after each list
			t.Errorf("told %q, want %q", told, want)
		}
		if lists, _ = s.counts(); lists > 16 {
			t.Errorf("%d lists in a minute", lists)
		}
		s.set(func() { expires = false })
		time.Sleep(mostBrief*6/5 + 300*time.Millisecond + steady)
		synctest.Wait()
		if _, _, _, err := f.State(); err != nil {
			t.Errorf("once a watch lasts: %v", err)
		}
		// It expires once more, as any version does: no trouble.
		s.set(func() { s.version = "20" })
		first := s.watches[0]
		first.Modify(versioned("a", "10"))
		gone := apierrors.NewResourceExpired("too old").ErrStatus
		first.Error(&gone)
		time.Sleep(300*time.Millisecond + least)
		synctest.Wait()
		if _, _, _, err := f.State(); err != nil || len(s.from) != 2 || s.from[1] != "20" {
			t.Errorf("after one more: %v, watches from %q", err, s.from)
		}
	})
}

// A balancer that answers each watch and closes it is told, and not asked without end.
func TestWatchesThatEndAtOnce(t *testing.T) {
	t.Parallel()
	for name, ends := range map[string]func(w *watch.FakeWatcher){
		"closed":   func(w *watch.FakeWatcher) { w.Stop() },
		"in error": func(w *watch.FakeWatcher) { w.Error(&apierrors.NewInternalError(errors.New("no upstream")).ErrStatus) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := &server{version: "1", pods: []runtime.Object{versioned("a", "1")}}
				src := s.source()
				begins, after := src.Watch, 150*time.Millisecond // longer than the least wait
				src.Watch = func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
					w, err := begins(ctx, o)
					s.mu.Lock()
					defer s.mu.Unlock()
					if after > 0 {
						time.AfterFunc(after, func() { ends(w.(*watch.FakeWatcher)) })
					}
					return w, err
				}
				f := New(src, takePod)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				minute, end := context.WithTimeout(ctx, time.Minute)
				defer end()
				began := time.Now()
				go f.Run(ctx)
				told := trouble(minute, f)
				synctest.Wait()
				if len(told) != 2 || told[1] == "" { // and not as well whenever one begins
					t.Errorf("told %q", told)
				}
				if _, since, _, err := f.State(); since.Sub(began) > steady || name == "closed" && !errors.Is(err, errAtOnce) {
					t.Errorf("since %s: %v", since.Sub(began), err)
				}
				if lists, watches := s.counts(); watches > 16 || lists != 1 {
					t.Errorf("%d watches and %d lists in a minute", watches, lists)
				}
				s.set(func() { after = 0 })
				time.Sleep(mostBrief*6/5 + 200*time.Millisecond)
				synctest.Wait()
				s.watches[len(s.watches)-1].Add(versioned("b", "2"))
				synctest.Wait()
				if _, _, _, err := f.State(); err != nil || len(names(f)) != 2 {
					t.Errorf("once one brings something: %v, %q", err, names(f))
				}
			})
		})
	}
}
