package cluster

import (
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster/words"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// CodeAdmission is the code of a change that admission does not let through.
const CodeAdmission = "admission_refused"

// uncalledPause is between two tries of a change that waits for a webhook. Each asks it
// anew, and is a command in the journal.
const uncalledPause = 5 * time.Second

// Uncalled says that the API server, which answers, cannot ask a webhook of admission,
// and takes no change without its word.
type Uncalled struct {
	Webhook string
	Err     error     // the API server's answer
	Since   time.Time // it was first asked for what it does not take; zero: when it is shown
}

// UncalledBy reads whether an answer says so; nil: it is another, or none.
func UncalledBy(err error) *Uncalled {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || !apierrors.IsInternalError(err) || apierrors.IsUnexpectedServerError(err) {
		return nil // in a balancer's words it is nobody's
	}
	hook := words.Uncalled(status.Status().Message)
	if hook == "" {
		return nil
	}
	return &Uncalled{Webhook: hook, Err: err}
}

func (u *Uncalled) Error() string {
	return fmt.Sprintf("the API server cannot call admission webhook %s: %v", u.Webhook, u.Err)
}

// Outcome is of a step that waits for the webhook: nothing was done, nothing is wrong
// with the agent or the API server, and the operation's deadline bounds it.
func (u *Uncalled) Outcome() executor.Outcome {
	o := executor.Waiting(CodeAdmission, u.Error())
	o.After = uncalledPause
	o.ActionText = fmt.Sprintf("bring back what answers for admission webhook %s, or take the webhook away"+operation.ThenRetry, u.Webhook)
	return o
}

// Uncalled ends a step whose change waits for a webhook, and shows what it waits for:
// nil where the answer says nothing of the kind.
func (r Reply) Uncalled(t *executor.Task, resource string) *executor.Outcome {
	u := UncalledBy(r.Err)
	if u == nil {
		return nil
	}
	u.Show(t, resource)
	o := u.Outcome()
	o.CommandID = r.Command
	return &o
}

// Show tells that the webhook stands in the way of a change of the resource; nothing if
// the task has no ear for it.
func (u *Uncalled) Show(t *executor.Task, resource string) { show(t, u.Blocker(resource)) }

// Blocker is the webhook as what stands in the way of a change of the resource.
func (u *Uncalled) Blocker(resource string) protocol.Blocker {
	b := protocol.Blocker{Code: CodeAdmission, Resource: resource, Rule: "webhook/" + u.Webhook, Detail: u.Error()}
	if !u.Since.IsZero() {
		since := u.Since.UTC()
		b.Since = &since
	}
	return b
}

const (
	// maxHooks bounds of how many resources a webhook is remembered.
	maxHooks = 1_000
	// hookKept is for how long: longer than a try with the pause after it.
	hookKept = 2 * time.Minute
)

// hooks are the webhooks that could not be called when a change was asked for last, by
// what it is of: while it is asked for again it is still them that are waited for, as far
// as anybody knows. The zero value is ready.
type hooks struct {
	mu sync.Mutex
	of map[string]hook
}

// hook is one of them, and when it was waited for last.
type hook struct {
	*Uncalled
	at time.Time
}

func (h *hooks) last(resource string, now time.Time) *Uncalled {
	h.mu.Lock()
	defer h.mu.Unlock()
	maps.DeleteFunc(h.of, func(_ string, x hook) bool { return now.Sub(x.at) > hookKept })
	return h.of[resource].Uncalled
}

// keep remembers a webhook. Of one that failed a moment before it is known since when.
func (h *hooks) keep(resource string, u *Uncalled, now time.Time) {
	was := h.last(resource, now)
	h.mu.Lock()
	defer h.mu.Unlock()
	if was != nil && was.Webhook == u.Webhook && was.Since.Before(u.Since) {
		u.Since = was.Since
	}
	if h.of == nil {
		h.of = map[string]hook{}
	}
	if _, known := h.of[resource]; !known && len(h.of) >= maxHooks {
		oldest := ""
		for k, x := range h.of {
			if oldest == "" || x.at.Before(h.of[oldest].at) {
				oldest = k
			}
		}
		delete(h.of, oldest)
	}
	h.of[resource] = hook{u, now}
}

func (h *hooks) forget(resource string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.of, resource)
}
