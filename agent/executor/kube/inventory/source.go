package inventory

import (
	"context"
	"errors"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// pageSize is how many whole objects of a list are in memory at a time.
const pageSize = 200

// source is one resource that is listed and watched.
type source struct {
	name  string // of the resource, with its group
	list  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error)
	watch func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
	// narrow sets the selectors.
	narrow func(o *metav1.ListOptions)
	to     store
	// unread is told of each list that fails; nil: nobody cares.
	unread func(err error)
}

// store is a feed of any kind of fact.
type store interface {
	cache.TransformingStore
	// leave takes everything back that the source has told.
	leave()
}

// run lists and watches until ctx ends. A server that is away is asked again
// after 0.5 to 10 s.
func (s *source) run(ctx context.Context, h *health) {
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			l, err := s.pages(ctx, o)
			s.heard(ctx, h, verbList, err)
			if err != nil && s.unread != nil {
				s.unread(err)
			}
			return l, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			s.narrowed(&o)
			w, err := s.watch(ctx, o)
			s.heard(ctx, h, verbWatch, err)
			return w, err
		},
	}
	quiet := logr.Discard() // what matters is told by health, once
	r := cache.NewReflectorWithOptions(paging{lw}, nil, s.to, cache.ReflectorOptions{
		Name: s.name, TypeDescription: s.name, Logger: &quiet,
		Backoff: &wait.Backoff{Duration: 500 * time.Millisecond, Cap: 10 * time.Second, Steps: 6, Factor: 2, Jitter: 0.5},
	})
	r.RunWithContext(klog.NewContext(ctx, quiet))
}

func (s *source) narrowed(o *metav1.ListOptions) {
	if s.narrow != nil {
		s.narrow(o)
	}
}

// heard passes an answer on to health. That a resourceVersion is too old is how
// a watch that fell behind ends, and no fault; what is not found is an API that is
// served no more, which is noticed elsewhere.
func (s *source) heard(ctx context.Context, h *health, verb string, err error) {
	if ctx.Err() != nil || errors.Is(err, context.Canceled) || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) || apierrors.IsNotFound(err) {
		return
	}
	h.heard(s.name, verb, err)
}

// pages lists all in pages, stripping each before the next is read, at whatever
// version the server has now. Left to itself the reflector would hold the whole
// list first: with a resourceVersion the server gives all at once. Lists that are
// streamed by a watch would do as well, on servers that have them; this works the
// same on all, and needs the right to list that the role has to grant anyway.
// https://kubernetes.io/docs/reference/using-api/api-concepts/#retrieving-large-results-sets-in-chunks
func (s *source) pages(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	s.narrowed(&o)
	o.ResourceVersion, o.ResourceVersionMatch, o.Limit, o.Continue = "", "", pageSize, ""
	strip, all := s.to.Transformer(), &stripped{}
	for {
		l, err := s.list(ctx, o)
		if err != nil {
			return nil, err
		}
		m, err := meta.ListAccessor(l)
		if err != nil {
			return nil, err
		}
		if err = meta.EachListItem(l, func(obj runtime.Object) error {
			f, err := strip(obj)
			if err == nil {
				all.Items = append(all.Items, f.(runtime.Object))
			}
			return err
		}); err != nil {
			return nil, err
		}
		all.ResourceVersion = m.GetResourceVersion()
		if o.Continue = m.GetContinue(); o.Continue == "" {
			return all, nil
		}
	}
}

// paging keeps the reflector from asking for a streamed list.
type paging struct{ *cache.ListWatch }

// IsWatchListSemanticsUnSupported tells the reflector to list.
func (paging) IsWatchListSemanticsUnSupported() bool { return true }

// stripped is a list of facts.
type stripped struct {
	metav1.TypeMeta
	metav1.ListMeta
	Items []runtime.Object
}

// DeepCopyObject returns the list itself: nobody changes it.
func (s *stripped) DeepCopyObject() runtime.Object { return s }
