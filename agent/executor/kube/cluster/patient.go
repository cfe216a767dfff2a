package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

const (
	// previewMost is how long admission may take over a dry run that somebody waits for.
	previewMost = 8 * time.Second
	// ShownAfter is when it is shown that admission is waited for: by then it is known
	// whether the API server answers anything.
	ShownAfter = 10 * time.Second
	// SlowFrom is how long a rehearsal takes from which on the change itself is given as
	// much time.
	SlowFrom = 4 * time.Second
	// hungFrom is how long a question is without an answer that was interrupted, for
	// that to be what stood in the way.
	hungFrom = 3 * time.Second
	// askAgain is when a step asks again that was not answered.
	askAgain = time.Second
)

// Change is what the API server is asked for, or to judge.
type Change struct {
	What     string // "restart of ns/web"
	Resource string // of its blocker: "deployment/ns/web"
	About    string // whose webhooks may stand in the way: "deployment ns/web"
}

// SeeTo is what a person can do where it is not answered.
func (c Change) SeeTo() string {
	return "see that the API server answers, and every webhook that it asks about " + c.About
}

// Hung says that the API server, which answers else, did not say what it makes of a
// change.
type Hung struct {
	Change Change
	Since  time.Time
	Within time.Duration
	// Hook is the webhook that it could not call when it was last asked the same; nil: it
	// has named none.
	Hook *Uncalled
}

func (h *Hung) Error() string {
	if h.Hook != nil {
		return fmt.Sprintf("%v; it is asked again", h.Hook)
	}
	return fmt.Sprintf("the API server did not say within %s whether it takes the %s, and so it is asked again: a webhook may hang", h.Within.Round(time.Second), h.Change.What)
}

// Blocker is it as what stands in the way: the webhook, where it is known, so that one
// that takes long to fail is the same trouble all the while.
func (h *Hung) Blocker() protocol.Blocker {
	if h.Hook != nil {
		return h.Hook.Blocker(h.Change.Resource)
	}
	since := h.Since.UTC()
	return protocol.Blocker{Code: "api_error", Resource: h.Change.Resource, Rule: "api_server", Detail: h.Error(), Since: &since}
}

// Outcome is of a step that waits for it, or was stopped meanwhile. Nothing was done.
func (h *Hung) Outcome(ctx context.Context, t *executor.Task) executor.Outcome {
	o := h.broken()
	if halt := executor.Halted(ctx, t); halt != "" {
		o.ErrorCode = halt
	}
	return o
}

func (h *Hung) broken() executor.Outcome {
	code, text := "api_error", h.Change.SeeTo()+operation.ThenRetry
	if h.Hook != nil {
		code, text = CodeAdmission, h.Hook.Outcome().ActionText
	}
	o := executor.Waiting(code, h.Error())
	o.After, o.ActionCode, o.ActionText = askAgain, operation.ActRestoreDependency, text
	return o
}

// Patiently asks for a change with f, which does no harm where its answer is lost, for as
// long as admission may take. It shows when that takes long, with the task, and what of it
// is the API server's own silence. A nil task: somebody waits for a dry run. A cancel that
// the task's step heeds ends f. The error is a *Hung where the API server answers
// anything but this.
func (c *Cluster) Patiently(ctx context.Context, t *executor.Task, x Change, f func(ctx context.Context) error) (took time.Duration, err error) {
	most, halt := previewMost, (<-chan struct{})(nil)
	if t != nil {
		most = AdmissionMost
		if !t.Step.Cleanup {
			halt = t.Cancelled
		}
	}
	defer c.Pulse.Listen()()
	asked, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	begun, answered := c.Now(), make(chan struct{})
	go func() {
		defer close(answered)
		err = f(asked)
	}()
	hung := &Hung{Change: x, Since: begun}
	if t != nil {
		hung.Hook = c.hooks.last(x.Resource, begun)
	}
	late := time.NewTimer(ShownAfter)
	defer late.Stop()
	for waits, shown := false, false; ; {
		silent, changed := c.Pulse.State()
		if t != nil && (silent != nil || waits || shown) {
			shown = true
			hung.Within = c.Now().Sub(begun)
			show(t, standing(silent, waits, hung)...)
		}
		select {
		case <-changed:
			continue
		case <-late.C:
			waits = true
			continue
		case <-halt:
			cancel()
			<-answered
		case <-answered:
		}
		took = c.Now().Sub(begun)
		cut := err != nil && asked.Err() != nil
		if (timedOut(err) || cut && took >= hungFrom) && silent == nil {
			if hung.Within = took; t != nil {
				switch {
				case !cut: // it gave up, and named nobody
					hung.Hook = nil
					c.hooks.forget(x.Resource)
				case hung.Hook != nil:
					c.hooks.keep(x.Resource, hung.Hook, c.Now())
				}
				show(t, hung.Blocker())
			}
			return took, hung
		}
		switch u := UncalledBy(err); {
		case t == nil || cut:
		case u != nil:
			u.Since = begun
			c.hooks.keep(x.Resource, u, c.Now())
			u.Show(t, x.Resource)
		default:
			c.hooks.forget(x.Resource)
			if shown && err == nil {
				show(t)
			}
		}
		return took, err
	}
}

// timedOut tells whether the API server said that it gave the request up.
func timedOut(err error) bool { return apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) }

// standing is what stands in the way of a change that is not answered yet.
func standing(silent *Unanswered, waits bool, h *Hung) []protocol.Blocker {
	switch {
	case silent != nil:
		return []protocol.Blocker{silent.Blocker()}
	case waits || h.Hook != nil:
		return []protocol.Blocker{h.Blocker()}
	}
	return nil
}

// show tells what stands in the way; nothing if the task has no ear for it.
func show(t *executor.Task, now ...protocol.Blocker) {
	if t != nil && t.Blocked != nil {
		t.Blocked(now)
	}
}

// hungBy reads whether an error says that a change was not answered; nil: it does not.
func hungBy(err error) *Hung {
	var h *Hung
	errors.As(err, &h)
	return h
}
