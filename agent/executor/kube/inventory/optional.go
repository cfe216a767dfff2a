package inventory

import (
	"context"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
)

// optional is an API that a cluster may serve or not, from one minute to the next.
type optional struct {
	name     string
	versions []schema.GroupVersionResource // the first that is served is watched
	to       store
	source   func(v schema.GroupVersionResource) *source
	listed   func() // there is nothing to wait for any more
}

func (i *Inventory) optional(o *Options, client kubernetes.Interface, once func(name string) func()) []*optional {
	m := i.model
	var out []*optional
	slices := &optional{
		name: "resourceslices.resource.k8s.io", listed: once("resourceslices.resource.k8s.io"),
		versions: []schema.GroupVersionResource{{Group: "resource.k8s.io", Version: "v1", Resource: "resourceslices"}},
	}
	slices.to = newFeed(m, stripSlice, m.applySlice, slices.listed)
	slices.source = func(schema.GroupVersionResource) *source {
		return from(slices.name, client.ResourceV1().ResourceSlices(), nil, slices.to)
	}
	out = append(out, slices)
	if o.Cluster.Dynamic == nil {
		return out
	}
	for _, c := range customs {
		name := c.versions[0].GroupResource().String()
		x := &optional{name: name, listed: once(name), versions: c.versions}
		x.to = newFeed(m, c.strip, m.applyWorkload, x.listed)
		x.source = func(v schema.GroupVersionResource) *source {
			return from(name, o.Cluster.Dynamic.Resource(v), nil, x.to)
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
	}()
	for {
		v, known := x.served(client)
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
		case <-t.C:
		}
	}
}

// served returns the first of the versions that the API server serves, or none;
// known is false when it does not say.
func (x *optional) served(client kubernetes.Interface) (v schema.GroupVersionResource, known bool) {
	for _, v := range x.versions {
		list, err := client.Discovery().ServerResourcesForGroupVersion(v.GroupVersion().String())
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return schema.GroupVersionResource{}, false
		}
		for _, r := range list.APIResources {
			if r.Name == v.Resource {
				return v, true
			}
		}
	}
	return schema.GroupVersionResource{}, true
}
