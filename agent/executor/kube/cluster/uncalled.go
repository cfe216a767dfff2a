package cluster

import (
	"errors"
	"fmt"
	"regexp"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// CodeAdmission is the code of a change that admission does not let through.
const CodeAdmission = "admission_refused"

// uncalledPause is between two tries of a change that waits for a webhook. Each asks it
// anew, and is a command in the journal.
const uncalledPause = 5 * time.Second

// uncalledWebhook matches the API server's words on a webhook that it has to ask
// (failurePolicy: Fail) and cannot reach, or that does not answer within its own timeout.
// It says so before it stores anything.
// https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#failure-policy
var uncalledWebhook = regexp.MustCompile(`failed calling webhook "([^"]+)"`)

// Uncalled says that the API server, which answers, cannot ask a webhook of admission,
// and takes no change without its word.
type Uncalled struct {
	Webhook string
	Err     error // the API server's answer
}

// UncalledBy reads whether an answer says so; nil: it is another, or none.
func UncalledBy(err error) *Uncalled {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || !apierrors.IsInternalError(err) || apierrors.IsUnexpectedServerError(err) {
		return nil // in a balancer's words it is nobody's
	}
	m := uncalledWebhook.FindStringSubmatch(status.Status().Message)
	if m == nil {
		return nil
	}
	return &Uncalled{m[1], err}
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
func (u *Uncalled) Show(t *executor.Task, resource string) {
	if t != nil && t.Blocked != nil {
		t.Blocked([]protocol.Blocker{u.Blocker(resource)})
	}
}

// Blocker is the webhook as what stands in the way of a change of the resource.
func (u *Uncalled) Blocker(resource string) protocol.Blocker {
	return protocol.Blocker{Code: CodeAdmission, Resource: resource, Rule: "webhook/" + u.Webhook, Detail: u.Error()}
}
