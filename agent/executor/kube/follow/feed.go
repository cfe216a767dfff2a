package follow

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
	least = 100 * time.Millisecond // the first wait after a failure
	most  = 2 * time.Second        // the longest
	// steady is how long a watch has to last, or until it brings something, to count
	// as one that serves. mostBrief is the longest wait where none does: each try costs
	// the API server a watch or a list, of as many feeds as there are.
	steady    = time.Second
	mostBrief = 8 * time.Second
	// renew is how long the API server serves one watch, at most.
	renew = 8 * time.Minute
)

// Feed holds the objects of one source as a watch keeps them up to date.
type Feed[T any] struct {
	src Source
	// take reads an object: the bucket that it is kept in and what is kept.
	take func(o runtime.Object) (bucket string, v T)
	// Remember keeps those that went as well, as they were last: for sources of a
	// few objects that are followed for a while. It is set before the feed begins.
	Remember bool
	ring     func() // of a group; nil: none

	mu      sync.Mutex
	items   map[string]map[types.UID]T
	past    map[string]map[types.UID]T
	version string // where the watch goes on; "": it has to list
	listed  bool
	err     error // why it does not keep up; nil: it does
	since   time.Time
	brief   bool                     // err is of watches that begin and do not serve
	changed map[string]chan struct{} // by bucket, of those that somebody waits for
}

// stateBucket is where those wait who ask how the feed is.
const stateBucket = "\x00state"

// New makes a feed that take sorts into buckets. Nothing is read before Run.
func New[T any](src Source, take func(o runtime.Object) (bucket string, v T)) *Feed[T] {
	return &Feed[T]{src: src, take: take, items: map[string]map[types.UID]T{}, past: map[string]map[types.UID]T{}, changed: map[string]chan struct{}{}}
}

// Seed makes the feed begin with what was just listed, so that it does not list.
func (f *Feed[T]) Seed(items []runtime.Object, version string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.replace(items, version)
}

// errAtOnce: what is between the agent and the API server answers, and serves nothing.
var errAtOnce = errors.New("it ended at once")

// Run keeps the feed up to date until ctx ends.
func (f *Feed[T]) Run(ctx context.Context) {
	wait := time.Duration(0)
	expired := false // the version was not known any more, and nothing came since
	for ctx.Err() == nil {
		begun := time.Now()
		w, err := f.follow(ctx)
		if ctx.Err() != nil {
			return
		}
		expired = expired && !w.told
		brief := !w.told && !w.began.IsZero() && time.Since(w.began) < steady
		switch {
		case err != nil && (apierrors.IsResourceExpired(err) || apierrors.IsGone(err)):
			f.forget()
			if !expired { // list again, at once; not with all others, which lost theirs as well
				expired, wait = true, 0
				pause(ctx, rand.N(least))
				continue
			}
			brief = true
		case err == nil && brief:
			err = fmt.Errorf("watch %s: %w", f.src.What, errAtOnce)
		}
		longest := most
		switch {
		case err == nil:
			wait = 0
			if time.Since(begun) > least {
				continue
			}
		case brief:
			longest = mostBrief
		case time.Since(begun) > 10*most: // it was well meanwhile
			wait = 0
		}
		if err != nil {
			f.fail(err, brief)
		}
		wait = min(max(2*wait, least), longest)
		pause(ctx, wait-wait/5+rand.N(wait/5*2+1))
	}
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// served is what a watch did.
type served struct {
	began time.Time // zero: it did not begin
	told  bool      // it brought something
}

// follow lists if it has to and watches until the watch ends.
func (f *Feed[T]) follow(ctx context.Context) (served, error) {
	var s served
	f.mu.Lock()
	version := f.version
	f.mu.Unlock()
	if version == "" {
		items, v, err := f.src.Once(ctx)
		if err != nil {
			return s, err
		}
		version = v
		f.Seed(items, v)
	}
	serve := renew/2 + rand.N(renew/2)
	w, end, err := f.src.begin(ctx, metav1.ListOptions{ResourceVersion: version, AllowWatchBookmarks: true, TimeoutSeconds: ptr.To(int64(serve / time.Second))})
	if err != nil {
		return s, err
	}
	defer end()
	s.began = time.Now()
	f.mu.Lock()
	f.wellUnlessBrief()
	f.mu.Unlock()
	lasts := time.NewTimer(steady)
	defer lasts.Stop()
	for {
		select {
		case <-ctx.Done():
			return s, ctx.Err()
		case <-lasts.C:
			f.well()
		case e, open := <-w.ResultChan():
			if !open {
				return s, nil
			}
			if e.Type == watch.Error {
				return s, fmt.Errorf("watch %s: %w", f.src.What, apierrors.FromObject(e.Object))
			}
			if err := f.apply(e); err != nil {
				return s, err
			}
			s.told = true
		}
	}
}

// forget makes the next try list.
func (f *Feed[T]) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.version = ""
}

func (f *Feed[T]) apply(e watch.Event) error {
	o, ok := e.Object.(metav1.Object)
	if !ok {
		return fmt.Errorf("watch %s: got a %T", f.src.What, e.Object)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.version = o.GetResourceVersion()
	f.recover()
	if e.Type == watch.Bookmark {
		return nil
	}
	bucket, v := f.take(e.Object)
	if e.Type == watch.Deleted {
		f.went(bucket, o.GetUID(), v)
		delete(f.items[bucket], o.GetUID())
		if len(f.items[bucket]) == 0 {
			delete(f.items, bucket)
		}
	} else {
		put(f.items, bucket, o.GetUID(), v)
	}
	f.tell(bucket)
	return nil
}

func put[T any](in map[string]map[types.UID]T, bucket string, uid types.UID, v T) {
	if in[bucket] == nil {
		in[bucket] = map[types.UID]T{}
	}
	in[bucket][uid] = v
}

func (f *Feed[T]) went(bucket string, uid types.UID, v T) {
	if f.Remember {
		put(f.past, bucket, uid, v)
	}
}

func (f *Feed[T]) replace(items []runtime.Object, version string) {
	before := f.items
	f.items = make(map[string]map[types.UID]T, len(before))
	for _, o := range items {
		if m, ok := o.(metav1.Object); ok {
			bucket, v := f.take(o)
			put(f.items, bucket, m.GetUID(), v)
		}
	}
	for bucket, was := range before {
		for uid, v := range was {
			if _, there := f.items[bucket][uid]; !there {
				f.went(bucket, uid, v)
			}
		}
	}
	f.version, f.listed = version, true
	f.wellUnlessBrief()
	f.tellAll()
}

// tell wakes those who wait for a bucket, tellAll everybody.
func (f *Feed[T]) tell(bucket string) {
	if c := f.changed[bucket]; c != nil {
		close(c)
		delete(f.changed, bucket)
	}
	if f.ring != nil {
		f.ring()
	}
}

func (f *Feed[T]) tellAll() {
	for _, c := range f.changed {
		close(c)
	}
	clear(f.changed)
	if f.ring != nil {
		f.ring()
	}
}

// wait returns what is closed at the next change of a bucket.
func (f *Feed[T]) wait(bucket string) <-chan struct{} {
	c := f.changed[bucket]
	if c == nil {
		c = make(chan struct{})
		f.changed[bucket] = c
	}
	return c
}

func (f *Feed[T]) recover() {
	if f.err != nil {
		f.err, f.since, f.brief = nil, time.Time{}, false
		f.tellAll()
	}
}

// wellUnlessBrief is recover, where the trouble is not that watches begin and end.
func (f *Feed[T]) wellUnlessBrief() {
	if !f.brief {
		f.recover()
	}
}

func (f *Feed[T]) well() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.recover()
}

// fail notes why the feed does not keep up. brief: a watch began, or could have, and
// did not serve; that one begins again is no end of it.
func (f *Feed[T]) fail(err error, brief bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.since = time.Now()
	}
	f.err, f.brief = err, brief
	f.tellAll()
}

// In returns what is in a bucket, and a channel that is closed at the next change.
func (f *Feed[T]) In(bucket string) ([]T, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return list(f.items[bucket]), f.wait(bucket)
}

// Seen returns what is in a bucket, what went from it (if the feed remembers), and a
// channel that is closed at the next change.
func (f *Feed[T]) Seen(bucket string) (there, gone []T, changed <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return list(f.items[bucket]), list(f.past[bucket]), f.wait(bucket)
}

func list[T any](of map[types.UID]T) []T {
	l := make([]T, 0, len(of))
	for _, v := range of {
		l = append(l, v)
	}
	return l
}

// State tells whether there was a first list, and why and since when the feed does
// not keep up. changed is closed when that is another one.
func (f *Feed[T]) State() (listed bool, since time.Time, changed <-chan struct{}, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.listed, f.since, f.wait(stateBucket), f.err
}

// Ready waits for the first list. A missing right is told at once; other failures
// are tried again until ctx ends.
func (f *Feed[T]) Ready(ctx context.Context) error {
	for {
		listed, _, changed, err := f.State()
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
				err = fmt.Errorf("list %s: %w", f.src.What, ctx.Err())
			}
			return err
		}
	}
}
