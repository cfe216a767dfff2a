package device

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/host/report"
	"github.com/opsplane/opsplane/shared/protocol"
)

// outliveMost is the longest between two looks at what outlives its pod: each is a Job.
const outliveMost = 15 * time.Second

// outliving names a holder whose pod does not run any more, by its process where the host
// knows it.
func outliving(h report.Holder) string {
	who := strings.ReplaceAll(h.Kind, "_", " ")
	if h.Name != "" {
		who += " " + h.Name
	}
	if len(h.PIDs) > 0 {
		who += fmt.Sprintf(" (PID %d)", h.PIDs[0])
	}
	if h.Count > 1 {
		who += fmt.Sprintf(" and %d more", h.Count-1)
	}
	return fmt.Sprintf("%s of pod %s, which does not run any more", who, h.Pod.Key())
}

// outlive is what outlives its pod as what stands in the way; since tells since when it
// was seen first. nil: nothing does.
func (h *holders) outlive(d target, since *protocol.Blocker, now time.Time) *protocol.Blocker {
	if h.lost == 0 {
		return nil
	}
	var names []string
	for _, o := range h.outlived {
		names = append(names, outliving(o))
	}
	b := &protocol.Blocker{Code: "holder", Resource: "device/" + d.uuid, Rule: "process",
		Detail: fmt.Sprintf("GPU %s is held by %s", d.uuid, strings.Join(names, ", "))}
	if now = now.UTC(); since != nil {
		now = *since.Since
	}
	b.Since = &now
	return b
}

// outwait waits until the host is asked again about what outlives its pod, for as long as
// the deadline leaves for that beside the reset; nil: ask.
func (e *devices) outwait(ctx context.Context, t *executor.Task, d target, on *holders, still *protocol.Blocker, try int) *executor.Outcome {
	pause := min(time.Second<<min(try-1, 10), outliveMost)
	if t.Remaining != nil {
		spare := t.Remaining() - e.needs()
		if spare <= 0 {
			o := executor.Permanent(report.CodeBusy, fmt.Sprintf("GPU %s is held by %s, and the deadline leaves no time to wait longer: a reset is not begun with less than %s", d.uuid, on.names(), e.needs()))
			o.ActionText = fmt.Sprintf("find out on node %s why it has not ended, or stop it, then reset again", d.node)
			if !on.drainable() {
				o.ActionText = on.free(true)
			}
			return &o
		}
		pause = min(pause, spare)
	}
	blocked(t, *still)
	if halt := executor.Wait(ctx, t, pause); halt != "" {
		o := executor.Waiting(halt, "waiting for what holds the device: "+still.Detail)
		return &o
	}
	return nil
}

// standing is the task of a look while something stands in the way; nil: nothing does. That
// the look itself waits for nothing does not end it.
func standing(t *executor.Task, still *protocol.Blocker) *executor.Task {
	if still == nil || t.Blocked == nil {
		return t
	}
	c := *t
	c.Blocked = func(now []protocol.Blocker) { t.Blocked(append([]protocol.Blocker{*still}, now...)) }
	return &c
}
