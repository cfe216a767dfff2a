package follow

import (
	"context"
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
	heard   time.Time                // when the API server last said anything
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

// Run keeps the feed up to date until ctx ends.
func (f *Feed[T]) Run(ctx context.Context) {
	wait := time.Duration(0)
	for ctx.Err() == nil {
		begun := time.Now()
		err := f.follow(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil && (apierrors.IsResourceExpired(err) || apierrors.IsGone(err)) { // list again, at once
			f.mu.Lock()
			f.version = ""
			f.mu.Unlock()
			err = nil
		}
		if err == nil || time.Since(begun) > 10*most { // it was well meanwhile
			wait = 0
		}
		if err == nil && time.Since(begun) > least {
			continue
		}
		if err != nil {
			f.fail(err)
		}
		wait = min(max(2*wait, least), most)
		timer := time.NewTimer(wait - wait/5 + rand.N(wait/5*2+1))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

// follow lists if it has to and watches until the watch ends.
func (f *Feed[T]) follow(ctx context.Context) error {
	f.mu.Lock()
	version := f.version
	f.mu.Unlock()
	if version == "" {
		items, v, err := f.src.Once(ctx)
		if err != nil {
			return err
		}
		version = v
		f.Seed(items, v)
	}
	served := renew/2 + rand.N(renew/2)
	w, end, err := f.src.begin(ctx, metav1.ListOptions{ResourceVersion: version, AllowWatchBookmarks: true, TimeoutSeconds: ptr.To(int64(served / time.Second))})
	if err != nil {
		return err
	}
	defer end()
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
				return fmt.Errorf("watch %s: %w", f.src.What, apierrors.FromObject(e.Object))
			}
			if err := f.apply(e); err != nil {
				return err
			}
		}
	}
}

func (f *Feed[T]) apply(e watch.Event) error {
	o, ok := e.Object.(metav1.Object)
	if !ok {
		return fmt.Errorf("watch %s: got a %T", f.src.What, e.Object)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.version, f.heard = o.GetResourceVersion(), time.Now()
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
	f.version, f.listed, f.heard = version, true, time.Now()
	f.recover()
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
		f.err, f.since = nil, time.Time{}
		f.tellAll()
	}
}

func (f *Feed[T]) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.since = time.Now()
	}
	f.err = err
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

// LastHeard is when the API server last said anything to the feed.
func (f *Feed[T]) LastHeard() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.heard
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
