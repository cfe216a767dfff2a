package node

import (
	"fmt"
	"time"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/shared/protocol"
)

// hindrance is what a patch meets that may pass. It is shown from the first try that
// met it: a webhook may hang for as long as the operation has.
type hindrance struct {
	t *executor.Task

	code  string
	since time.Time
}

// stands shows what a try that began then has met.
func (h *hindrance) stands(begun time.Time, b protocol.Blocker) {
	if h.code != b.Code {
		h.code, h.since = b.Code, begun.UTC()
	}
	since := h.since
	b.Since = &since
	h.t.Blocked([]protocol.Blocker{b})
}

// over takes back what this patch has shown, and those before: a step that waits makes
// its patch anew, within one attempt.
func (h *hindrance) over() { h.t.Blocked(nil) }

// unmet is of a try that came to nothing for want of the API server's word, or for a
// fault of it.
func unmet(r cluster.Reply, what, node string) *refusal {
	o := &refusal{code: "api_error", rule: "api_server", why: fmt.Sprintf("the API server fails at the %s of node %s: %v", what, node, r.Err)}
	switch r.Category {
	case cluster.Throttled:
		o.code, o.why = "throttled", fmt.Sprintf("the API server is too busy for the %s of node %s: %v", what, node, r.Err)
	case cluster.Timeout:
		o.why = fmt.Sprintf("the API server did not answer the %s of node %s, and so it is asked again: a webhook may hang: %v", what, node, r.Err)
	}
	return o
}
