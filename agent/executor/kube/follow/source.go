package follow

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// Source is where a feed reads from.
type Source struct {
	What string // in words, for errors: "the pods of node n"
	// Read is the context of one read: it has a deadline of its own.
	Read  func(ctx context.Context) (context.Context, context.CancelFunc)
	List  func(ctx context.Context, o metav1.ListOptions) (items []runtime.Object, version string, err error)
	Watch func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
}

// lister is a client's typed or dynamic resource.
type lister[L runtime.Object] interface {
	List(ctx context.Context, o metav1.ListOptions) (L, error)
	Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
}

// Of is the source that a client's resource is, narrowed by the selectors of narrow.
func Of[L runtime.Object](what string, read func(ctx context.Context) (context.Context, context.CancelFunc), from lister[L], narrow metav1.ListOptions) Source {
	with := func(o metav1.ListOptions) metav1.ListOptions {
		o.FieldSelector, o.LabelSelector = narrow.FieldSelector, narrow.LabelSelector
		return o
	}
	return Source{
		What: what, Read: read,
		List: func(ctx context.Context, o metav1.ListOptions) ([]runtime.Object, string, error) {
			l, err := from.List(ctx, with(o))
			if err != nil {
				return nil, "", err
			}
			items, err := meta.ExtractList(l)
			if err != nil {
				return nil, "", err
			}
			of, err := meta.ListAccessor(l)
			if err != nil {
				return nil, "", err
			}
			return items, of.GetResourceVersion(), nil
		},
		Watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return from.Watch(ctx, with(o))
		},
	}
}

// Once lists once.
func (s Source) Once(ctx context.Context) (items []runtime.Object, version string, err error) {
	ctx, cancel := s.Read(ctx)
	defer cancel()
	if items, version, err = s.List(ctx, metav1.ListOptions{}); err != nil {
		return nil, "", fmt.Errorf("list %s: %w", s.What, err)
	}
	return items, version, nil
}

// errLate: a read and the beginning of a watch are given the same time.
var errLate = errors.New("the API server did not begin it in time")

// begin begins a watch, which lasts until end is called.
func (s Source) begin(ctx context.Context, o metav1.ListOptions) (w watch.Interface, end func(), err error) {
	read, done := s.Read(ctx)
	until, bounded := read.Deadline()
	done()
	ctx, cancel := context.WithCancel(ctx)
	late := func() bool { return false }
	if bounded {
		timer := time.AfterFunc(time.Until(until), cancel)
		late = func() bool { return !timer.Stop() }
	}
	w, err = s.Watch(ctx, o)
	if late() {
		if err == nil {
			w.Stop()
		}
		err = errLate
	}
	if err != nil {
		cancel()
		return nil, nil, fmt.Errorf("watch %s: %w", s.What, err)
	}
	return w, func() { w.Stop(); cancel() }, nil
}
