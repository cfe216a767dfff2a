package follow

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
)

// Group is feeds that one waits for together.
type Group struct {
	changed chan struct{}
	pulse   *cluster.Pulse
	feeds   []Stated
}

// Stated is a Feed, whatever it holds.
type Stated interface {
	State() (listed bool, since time.Time, changed <-chan struct{}, err error)
}

// NewGroup makes a group without feeds, which listens to the API server's pulse
// until ctx ends.
func NewGroup(ctx context.Context, p *cluster.Pulse) *Group {
	g := &Group{changed: make(chan struct{}, 1), pulse: p}
	go p.Tell(ctx, func(*cluster.Unanswered) { g.ring() })
	return g
}

// Join begins to follow a source, as a part of the group, until ctx ends.
func Join[T any](ctx context.Context, g *Group, src Source, take func(o runtime.Object) T) *Feed[T] {
	f := New(src, func(o runtime.Object) (string, T) { return "", take(o) })
	f.ring = g.ring
	g.feeds = append(g.feeds, f)
	go f.Run(ctx)
	return f
}

func (g *Group) ring() {
	select {
	case g.changed <- struct{}{}:
	default:
	}
}

// Changed tells once of whatever changed since it was last received from: objects,
// a first list, a failure, a silence, its end. One waits for it.
func (g *Group) Changed() <-chan struct{} { return g.changed }

// Ready tells whether each source was listed.
func (g *Group) Ready() bool {
	for _, f := range g.feeds {
		if listed, _, _, _ := f.State(); !listed {
			return false
		}
	}
	return true
}

// Trouble tells why nothing is heard, as the function of this name.
func (g *Group) Trouble() (away *cluster.Unanswered, denied error) {
	return Trouble(g.pulse, g.feeds...)
}

// Trouble tells why nothing is heard of feeds: the API server does not answer (away),
// by its pulse or by a watch, whichever knew it first, or a right is missing. A watch alone
// would not do: over a connection that is dead it is as silent as one that has nothing
// to tell.
func Trouble(p *cluster.Pulse, feeds ...Stated) (away *cluster.Unanswered, denied error) {
	away, _ = p.State()
	for _, f := range feeds {
		switch _, since, _, err := f.State(); {
		case err == nil:
		case apierrors.IsForbidden(err):
			denied = err
		case away == nil || since.Before(away.Since):
			away = &cluster.Unanswered{Since: since, Err: err}
		}
	}
	return away, denied
}
