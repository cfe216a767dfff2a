package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
)

// Read is the context of one read: it has a deadline of its own.
func (c *Cluster) Read(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, readTimeout)
}

// Unread is the finding of a probe that could not read the API server: nothing is
// known of the step.
func Unread(err error) executor.Finding {
	o := Broken(err)
	f := executor.Unknown(o.ErrorCode, o.Detail)
	switch u, h := UncalledBy(err), hungBy(err); { // a probe may make something that tells
	case u != nil:
		b := u.Blocker("cluster")
		f.Blocker = &b
	case h != nil: // by the code that is waited for under the lease
		b := h.Blocker()
		f.ErrorCode, f.Blocker = CodeAdmission, &b
	}
	return f
}

// Broken is the outcome of a step that could not read what it needs, or was not told
// what it asked for: permanent for a missing right, which the detail names, waiting for
// a webhook that the API server cannot call, or that hangs, else transient.
func Broken(err error) executor.Outcome {
	if u := UncalledBy(err); u != nil {
		return u.Outcome()
	}
	if h := hungBy(err); h != nil {
		return h.broken()
	}
	if kind := UnconvertedBy(err); kind != "" {
		return unconverted(kind, err)
	}
	switch {
	case apierrors.IsForbidden(err):
		return executor.Permanent("forbidden", forbidden(err))
	case apierrors.IsUnauthorized(err):
		return executor.Transient("api_unavailable", "the API server does not know the agent's credentials: "+err.Error())
	case unavailable(err):
		return executor.Transient("api_unavailable", "the API server does not answer: "+err.Error())
	}
	return executor.Permanent("api_error", err.Error())
}

// Patient turns the outcome of a step that the API server did not answer into waiting,
// for pause at least: it is nothing that the step's budget of attempts is for, and the
// operation's deadline bounds it.
func Patient(o executor.Outcome, pause time.Duration) executor.Outcome {
	if o.ErrorCode == CodeUnavailable && o.Class == operation.OutcomeTransient {
		o.Class, o.After = operation.OutcomeWaiting, max(o.After, pause)
	}
	return o
}

// forbidden words what the authorizer said: its message names user, verb and
// resource.
func forbidden(err error) string {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return "the agent's role lacks a right: " + status.Status().Message
	}
	return fmt.Sprintf("the agent's role lacks a right: %v", err)
}
