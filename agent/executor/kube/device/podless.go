package device

import (
	"context"

	"github.com/opsplane/opsplane/shared/protocol"
)

// podless reads beside the wait why the Job's controller makes no pod; nil: it does not
// say, or it cannot be read.
func (w *waiting) podless(ctx context.Context) <-chan *protocol.Blocker {
	said := make(chan *protocol.Blocker, 1)
	go func() { said <- w.e.c.Podless(ctx, w.job) }()
	return said
}

// refused takes down why there is no pod, unless one has come.
func (w *waiting) refused(b *protocol.Blocker) {
	if b == nil || w.last.pod != nil || w.deaf {
		return
	}
	w.named = true
	w.show(*b)
}
