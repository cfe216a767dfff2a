package inventory

import (
	"context"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"

	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
)

// optional is an API that a cluster may serve or not, from one minute to the next.
type optional struct {
	name     string
	versions []schema.GroupVersionResource // the first that is served, and converted, is watched
	to       store
	source   func(v schema.GroupVersionResource) *source
	listed   func() // it is read, or there is none: there is nothing to wait for any more
	without  func() // there is an inventory without it

	mu sync.Mutex
	// unconverted are the versions that the API server serves and cannot read: their
	// objects are stored in another, and nobody converts them.
	unconverted map[schema.GroupVersionResource]bool
	turned      chan struct{} // one became so
	held        *time.Timer   // runs since the first list failed so; nil: none did
}

// unconvertedMost is how long the first inventory waits for objects that nobody converts:
// their webhook may be starting like the agent. After that it goes without them.
const unconvertedMost = 30 * time.Second

// unread takes why a version could not be listed.
func (x *optional) unread(v schema.GroupVersionResource, err error) {
	if cluster.UnconvertedBy(err) == "" {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.held == nil {
		x.held = time.AfterFunc(unconvertedMost, x.without)
	}
	if x.unconverted[v] {
		return
	}
	if x.unconverted == nil {
		x.unconverted = map[schema.GroupVersionResource]bool{}
	}
	x.unconverted[v] = true
	select {
	case x.turned <- struct{}{}:
	default:
	}
}

// choose is which of the versions that are served is watched: the first that is converted,
// as far as is known. Where none is, what is watched at stays, and anew all are tried again.
func (x *optional) choose(served []schema.GroupVersionResource, at schema.GroupVersionResource, anew bool) schema.GroupVersionResource {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, v := range served {
		if !x.unconverted[v] {
			return v
		}
	}
	switch {
	case len(served) == 0:
		return schema.GroupVersionResource{}
	case !anew && slices.Contains(served, at):
		return at
	}
	clear(x.unconverted)
	return served[0]
}

func (i *Inventory) optional(o *Options, client kubernetes.Interface, once func(name string) func()) []*optional {
	m := i.model
	var out []*optional
	devices := &optional{
		name: "resourceslices.resource.k8s.io", listed: once("resourceslices.resource.k8s.io"),
		versions: []schema.GroupVersionResource{{Group: "resource.k8s.io", Version: "v1", Resource: "resourceslices"}},
	}
	devices.to = newFeed(m, stripSlice, m.applySlice, devices.listed)
	devices.source = func(schema.GroupVersionResource) *source {
		return from(devices.name, client.ResourceV1().ResourceSlices(), nil, devices.to)
	}
	out = append(out, devices)
	if o.Cluster.Dynamic == nil {
		return out
	}
	for _, c := range customs {
		name := c.versions[0].GroupResource().String()
		listed := once(name)
		x := &optional{name: name, versions: c.versions, turned: make(chan struct{}, 1)}
		x.listed = func() { m.with(c.kind); listed() }
		x.without = func() { m.without(c.kind); listed() }
		x.to = newFeed(m, c.strip, m.applyWorkload, x.listed)
		x.source = func(v schema.GroupVersionResource) *source {
			s := from(name, o.Cluster.Dynamic.Resource(v), nil, x.to)
			s.unread = func(err error) { x.unread(v, err) }
			return s
		}
		out = append(out, x)
	}
	return out
}

// run watches the API while it is served. Discovery needs no right that is not
// everybody's (system:discovery,
// https://kubernetes.io/docs/reference/access-authn-authz/rbac/#discovery-roles).
func (x *optional) run(ctx context.Context, h *health, every time.Duration, client kubernetes.Interface) {
	var at schema.GroupVersionResource // what is watched
	var going sync.WaitGroup
	stop := func() {}
	defer func() {
		stop()
		going.Wait()
		x.mu.Lock()
		defer x.mu.Unlock()
		if x.held != nil {
			x.held.Stop()
		}
	}()
	for anew := true; ; {
		served, known := x.served(client)
		v := x.choose(served, at, anew)
		if known && v != at { // else all stays as it is
			stop()
			going.Wait()
			if at = v; v.Resource == "" {
				x.to.leave()
				h.drop(x.name)
			} else {
				s := x.source(v)
				sub, cancel := context.WithCancel(ctx)
				stop = cancel
				going.Go(func() { s.run(sub, h) })
			}
		}
		if known && v.Resource == "" {
			x.listed()
		}
		t := time.NewTimer(every)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-x.turned:
			anew = false
		case <-t.C:
			anew = true
		}
		t.Stop()
	}
}

// served returns those of the versions that the API server serves; known is false when it
// does not say.
func (x *optional) served(client kubernetes.Interface) (list []schema.GroupVersionResource, known bool) {
	for _, v := range x.versions {
		resources, err := client.Discovery().ServerResourcesForGroupVersion(v.GroupVersion().String())
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, false
		}
		for _, r := range resources.APIResources {
			if r.Name == v.Resource {
				list = append(list, v)
			}
		}
	}
	return list, true
}
