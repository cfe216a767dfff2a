package device

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/shared/protocol"
)

const (
	// codeDeadlineShort is the code of a deadline that leaves too little time for a reset.
	codeDeadlineShort = "deadline_short"
	// startWithin is what a reset's Job is given to start on a node that has its image.
	startWithin = 10 * time.Second
)

// needs is the least time that a reset is begun with: nothing interrupts it, and what it
// came to would not be known if the deadline did.
func (e *devices) needs() time.Duration { return e.cfg.ResetTimeout + startWithin }

// short tells that too little time is left for a reset; nil: there is enough, or no
// deadline is known.
func (e *devices) short(left time.Duration, d target) *protocol.Blocker {
	if left >= e.needs() {
		return nil
	}
	return &protocol.Blocker{Code: codeDeadlineShort, Resource: "device/" + d.uuid, Rule: "reset_timeout",
		Detail: fmt.Sprintf("%s are left to the deadline, and a reset of GPU %s is not begun with less than %s: the driver may take %s for it, and its Job %s to start",
			max(left, 0).Round(100*time.Millisecond), d.uuid, e.needs(), e.cfg.ResetTimeout, startWithin)}
}

// late is the outcome of a step that comes too late for the reset; nil: it does not.
func (e *devices) late(t *executor.Task, d target) *executor.Outcome {
	if t.Remaining == nil {
		return nil
	}
	b := e.short(t.Remaining(), d)
	if b == nil {
		return nil
	}
	o := executor.Permanent(b.Code, b.Detail)
	o.ActionText = fmt.Sprintf("ask again with a deadline of more than %s", e.needs())
	return &o
}

// tooLate is late for the reset itself: a Job of the name that is there was begun in time.
func (e *devices) tooLate(ctx context.Context, t *executor.Task, d target, name string) *executor.Outcome {
	stop := e.late(t, d)
	if stop == nil {
		return nil
	}
	read, cancel := e.c.Read(ctx)
	defer cancel()
	_, err := e.c.Client.BatchV1().Jobs(e.c.Namespace).Get(read, name, metav1.GetOptions{})
	switch {
	case err == nil:
		return nil
	case !apierrors.IsNotFound(err):
		o := cluster.Broken(err)
		return &o
	}
	stop.Detail = "the reset was not begun: " + stop.Detail
	return stop
}
