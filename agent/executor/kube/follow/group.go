package follow

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
)

// Group is feeds that one waits for together.
type Group struct {
	changed chan struct{}
	feeds   []member
}

// member is a feed of a group, whatever it holds.
type member interface {
	State() (listed bool, since time.Time, changed <-chan struct{}, err error)
}

// NewGroup makes a group without feeds.
func NewGroup() *Group { return &Group{changed: make(chan struct{}, 1)} }

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
// a first list, a failure, its end. One waits for it.
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

// Trouble tells why nothing is heard: a right is missing, or the API server does not
// answer.
func (g *Group) Trouble() (denied, away error) {
	for _, f := range g.feeds {
		switch _, _, _, err := f.State(); {
		case err == nil:
		case apierrors.IsForbidden(err):
			denied = err
		default:
			away = err
		}
	}
	return denied, away
}
