package node

import (
	"fmt"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/opsplane/opsplane/agent/executor/kube/follow"
)

// endpointsFor is how long a drain waits for the endpoints of a pod that is gone to
// go as well.
const endpointsFor = 10 * time.Second

// serving is a namespace whose endpoints a drive looks at.
type serving struct {
	shared *follow.Shared[*discoveryv1.EndpointSlice]
	feed   *follow.Feed[*discoveryv1.EndpointSlice]
	told   bool // that the agent may not read them
}

// lookServing finds the pods that still serve requests though they are stopping: a
// stopping pod is an endpoint until it is gone, for those connections that have
// nowhere else to go.
// https://kubernetes.io/docs/tutorials/services/pods-and-endpoint-termination-flow/
//
// Most pods are gone before anybody would look; the API server is asked about those
// that take longer.
func (d *drive) lookServing(l *look) {
	if !d.gone || d.chosen {
		return
	}
	now := d.c.Now()
	for _, p := range l.waiting {
		if !p.terminating() {
			continue
		}
		if age := now.Sub(askedAt(p.pod)); age < lookServing {
			l.wake(lookServing - age)
			continue
		}
		if d.serving[p.pod.Namespace] == nil {
			s := d.endpointsOf(p.pod.Namespace)
			d.serving[p.pod.Namespace] = &serving{shared: s, feed: s.Acquire()}
		}
	}
	for ns, s := range d.serving {
		_, _, _, err := s.feed.State()
		if err != nil && apierrors.IsForbidden(err) && !s.told {
			s.told = true
			d.t.Note("forbidden", fmt.Sprintf("whether pods of namespace %s still serve requests cannot be told: %v", ns, err))
		}
		slices, changed := s.feed.In("")
		if l.serving == nil || len(slices) > 0 {
			l.serving = changed
		}
		for _, slice := range slices {
			d.readSlice(l, slice, now)
		}
	}
}

func (d *drive) readSlice(l *look, slice *discoveryv1.EndpointSlice, now time.Time) {
	for _, ep := range slice.Endpoints {
		if ep.TargetRef == nil || ep.Conditions.Serving == nil || !*ep.Conditions.Serving {
			continue
		}
		p := d.s.plan[ep.TargetRef.UID]
		if p == nil || p.finished {
			continue
		}
		service := slice.Labels[discoveryv1.LabelServiceName]
		switch {
		case p.terminating() && !p.isGone:
			p.served = now
			if l.services == nil {
				l.services = map[types.UID]string{}
			}
			l.services[p.uid] = service
		case p.isGone && !p.served.IsZero() && now.Sub(p.gone) < endpointsFor:
			l.hold("still_serving", "pod/"+p.name, "service/"+slice.Namespace+"/"+service,
				fmt.Sprintf("pod %s is gone and still an endpoint of service %s", p.name, service), p)
			l.wake(endpointsFor - now.Sub(p.gone))
		case p.isGone && !p.served.IsZero():
			p.dangling = service
		}
	}
}

// endpointsOf is the shared feed of a namespace's endpoints.
func (e *drainer) endpointsOf(namespace string) *follow.Shared[*discoveryv1.EndpointSlice] {
	e.mu.Lock()
	defer e.mu.Unlock()
	for ns, s := range e.slices { // namespaces come and go
		if ns != namespace && s.Idle() {
			delete(e.slices, ns)
		}
	}
	s := e.slices[namespace]
	if s == nil {
		s = slicesOf(e.c, namespace)
		e.slices[namespace] = s
	}
	return s
}
