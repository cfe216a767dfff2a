package node

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
)

// How a feed keeps up with the API server.
const (
	feedLeast = 100 * time.Millisecond // the first wait after a failure
	feedMost  = 2 * time.Second        // the longest
	// feedRenew is how long the API server serves one watch.
	feedRenew = 8 * time.Minute
)

// source is where a feed reads from.
type source struct {
	what  string // in words
	read  func(ctx context.Context) (context.Context, context.CancelFunc)
	list  func(ctx context.Context, o metav1.ListOptions) (items []runtime.Object, version string, err error)
	watch func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
}

// feed holds the objects of one list as a watch keeps them up to date: it lists
// once, watches from there, and lists again only when the API server no longer
// knows where it was. After a failure it tries again with a growing, bounded wait;
// meanwhile it says since when it knows nothing new.
type feed[T any] struct {
	src source
	// take reads an object: the bucket that it is kept in and what is kept.
	take func(o runtime.Object) (bucket string, v T)

	mu      sync.Mutex
	items   map[string]map[types.UID]T
	version string // where the watch goes on; "": it has to list
	listed  bool
	err     error // why it does not keep up; nil: it does
	since   time.Time
	heard   time.Time                // when the API server last said anything
	changed map[string]chan struct{} // by bucket, of those that somebody waits for
}

// stateBucket is where those wait who ask how the feed is.
const stateBucket = "\x00state"

func newFeed[T any](src source, take func(o runtime.Object) (string, T)) *feed[T] {
	return &feed[T]{src: src, take: take, items: map[string]map[types.UID]T{}, changed: map[string]chan struct{}{}}
}

// seed makes the feed begin with what was just listed, so that it does not list.
func (f *feed[T]) seed(items []runtime.Object, version string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.replace(items, version)
}

// run keeps the feed up to date until ctx ends.
func (f *feed[T]) run(ctx context.Context) {
	wait := time.Duration(0)
	for ctx.Err() == nil {
		begun := time.Now()
		err := f.follow(ctx)
		if ctx.Err() != nil {
			return
		}
		if expired(err) { // list again, at once
			f.mu.Lock()
			f.version = ""
			f.mu.Unlock()
			err = nil
		}
		if err == nil || time.Since(begun) > 10*feedMost { // it was well meanwhile
			wait = 0
		}
		if err == nil && time.Since(begun) > feedLeast {
			continue
		}
		if err != nil {
			f.fail(err)
		}
		wait = min(max(2*wait, feedLeast), feedMost)
		timer := time.NewTimer(wait - wait/5 + rand.N(wait/5*2+1))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

func expired(err error) bool {
	return err != nil && (apierrors.IsResourceExpired(err) || apierrors.IsGone(err))
}

// follow lists if it has to and watches until the watch ends.
func (f *feed[T]) follow(ctx context.Context) error {
	f.mu.Lock()
	version := f.version
	f.mu.Unlock()
	if version == "" {
		lctx, cancel := f.src.read(ctx)
		items, v, err := f.src.list(lctx, metav1.ListOptions{})
		cancel()
		if err != nil {
			return fmt.Errorf("list %s: %w", f.src.what, err)
		}
		version = v
		f.seed(items, v)
	}
	renew := feedRenew/2 + rand.N(feedRenew/2)
	w, err := f.src.watch(ctx, metav1.ListOptions{ResourceVersion: version, AllowWatchBookmarks: true, TimeoutSeconds: ptr.To(int64(renew / time.Second))})
	if err != nil {
		return fmt.Errorf("watch %s: %w", f.src.what, err)
	}
	defer w.Stop()
	f.mu.Lock()
	f.heard = time.Now()
	f.recover()
	f.mu.Unlock()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e, open := <-w.ResultChan():
			if !open {
				return nil
			}
			if e.Type == watch.Error {
				return fmt.Errorf("watch %s: %w", f.src.what, apierrors.FromObject(e.Object))
			}
			if err := f.apply(e); err != nil {
				return err
			}
		}
	}
}

func (f *feed[T]) apply(e watch.Event) error {
	o, ok := e.Object.(metav1.Object)
	if !ok {
		return fmt.Errorf("watch %s: got a %T", f.src.what, e.Object)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.version, f.heard = o.GetResourceVersion(), time.Now()
	if e.Type == watch.Bookmark {
		return nil
	}
	bucket, v := f.take(e.Object)
	if e.Type == watch.Deleted {
		delete(f.items[bucket], o.GetUID())
		if len(f.items[bucket]) == 0 {
			delete(f.items, bucket)
		}
	} else {
		f.put(bucket, o.GetUID(), v)
	}
	f.tell(bucket)
	return nil
}

func (f *feed[T]) put(bucket string, uid types.UID, v T) {
	if f.items[bucket] == nil {
		f.items[bucket] = map[types.UID]T{}
	}
	f.items[bucket][uid] = v
}

func (f *feed[T]) replace(items []runtime.Object, version string) {
	f.items = make(map[string]map[types.UID]T, len(f.items))
	for _, o := range items {
		if m, ok := o.(metav1.Object); ok {
			bucket, v := f.take(o)
			f.put(bucket, m.GetUID(), v)
		}
	}
	f.version, f.listed, f.heard = version, true, time.Now()
	f.recover()
	f.tellAll()
}

// tell wakes those who wait for a bucket, tellAll everybody.
func (f *feed[T]) tell(bucket string) {
	if c := f.changed[bucket]; c != nil {
		close(c)
		delete(f.changed, bucket)
	}
}

func (f *feed[T]) tellAll() {
	for _, c := range f.changed {
		close(c)
	}
	clear(f.changed)
}

// wait returns what is closed at the next change of a bucket.
func (f *feed[T]) wait(bucket string) <-chan struct{} {
	c := f.changed[bucket]
	if c == nil {
		c = make(chan struct{})
		f.changed[bucket] = c
	}
	return c
}

func (f *feed[T]) recover() {
	if f.err != nil {
		f.err, f.since = nil, time.Time{}
		f.tellAll()
	}
}

func (f *feed[T]) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.since = time.Now()
	}
	f.err = err
	f.tellAll()
}

// in returns what is in a bucket, and a channel that is closed at the next change.
func (f *feed[T]) in(bucket string) ([]T, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := make([]T, 0, len(f.items[bucket]))
	for _, v := range f.items[bucket] {
		list = append(list, v)
	}
	return list, f.wait(bucket)
}

// state tells whether there was a first list, and why and since when the feed does
// not keep up.
func (f *feed[T]) state() (listed bool, since time.Time, changed <-chan struct{}, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.listed, f.since, f.wait(stateBucket), f.err
}

// lastHeard is when the API server last said anything to the feed.
func (f *feed[T]) lastHeard() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.heard
}

// ready waits for the first list. A missing right is told at once; other failures
// are tried again until ctx ends.
func (f *feed[T]) ready(ctx context.Context) error {
	for {
		listed, _, changed, err := f.state()
		switch {
		case apierrors.IsForbidden(err):
			return err
		case listed:
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			if err == nil {
				err = fmt.Errorf("list %s: %w", f.src.what, ctx.Err())
			}
			return errors.Join(err)
		}
	}
}

// linger is how long a shared feed goes on after its last user.
const linger = 2 * time.Minute

// shared is a feed that runs while somebody uses it, and a while longer: drains
// come in waves.
type shared[T any] struct {
	open   func() *feed[T]
	linger time.Duration

	mu    sync.Mutex
	users int
	feed  *feed[T]
	stop  context.CancelFunc
	timer *time.Timer
}

// acquire returns the running feed; release gives it back.
func (s *shared[T]) acquire() *feed[T] {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users++
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
	if s.feed == nil {
		var ctx context.Context
		ctx, s.stop = context.WithCancel(context.Background())
		s.feed = s.open()
		go s.feed.run(ctx)
	}
	return s.feed
}

// idle tells whether nobody uses it and no feed of it runs.
func (s *shared[T]) idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.users == 0 && s.feed == nil
}

func (s *shared[T]) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users--; s.users > 0 {
		return
	}
	s.timer = time.AfterFunc(s.linger, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.users == 0 && s.feed != nil {
			s.stop()
			s.feed, s.timer = nil, nil
		}
	})
}
