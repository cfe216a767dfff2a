package sim

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

var cordonSteps = map[string]step{
	"cordon":  {(*Executor).probeCordon, (*Executor).cordon},
	"confirm": {(*Executor).probeConfirm, (*Executor).confirmCordon},
}

var uncordonSteps = map[string]step{
	"uncordon": {(*Executor).probeUncordon, (*Executor).uncordon},
	"confirm":  {(*Executor).probeConfirm, (*Executor).confirmUncordon},
}

// readNode returns a copy of the target node, or why it cannot be acted on.
func (e *Executor) readNode(t *executor.Task) (n Node, code, detail string, err error) {
	err = e.store.view(func(w *World, ix *index) {
		var p *Node
		if p, code, detail = findNode(w, ix, t.Assignment.TargetUID, nodeName(t)); p != nil {
			n = *p
		}
	})
	return n, code, detail, err
}

func (e *Executor) probeConfirm(context.Context, *executor.Task) executor.Finding {
	return executor.ToRun("it is read again")
}

func (e *Executor) probeCordon(_ context.Context, t *executor.Task) executor.Finding {
	n, code, detail, err := e.readNode(t)
	switch {
	case err != nil:
		return unread(err)
	case code != "":
		return executor.Lost(code, detail)
	case !n.Schedulable:
		return executor.Found(fmt.Sprintf("node %s is cordoned", n.Name))
	}
	return executor.ToRun(fmt.Sprintf("node %s is schedulable", n.Name))
}

func (e *Executor) probeUncordon(_ context.Context, t *executor.Task) executor.Finding {
	n, code, detail, err := e.readNode(t)
	switch {
	case err != nil:
		return unread(err)
	case code != "":
		return executor.Lost(code, detail)
	case n.Schedulable:
		return executor.Found(fmt.Sprintf("node %s is schedulable", n.Name))
	}
	return executor.ToRun(fmt.Sprintf("node %s is cordoned", n.Name))
}

// maxConflicts bounds how often a patch is tried against a node that others
// write to at the same time.
const maxConflicts = 20

// patchNode is an effect of kind (a): it is conditional on the resourceVersion
// that was read before the fence, and it carries the generation, so that an
// older generation is refused. want judges the node as it was read (a non-empty
// detail: nothing to do) and set changes it.
func (e *Executor) patchNode(ctx context.Context, t *executor.Task, what string,
	want func(n Node) (done string, stop *executor.Outcome), set func(n *Node, x *tx)) executor.Outcome {
	for range maxConflicts {
		n, code, detail, err := e.readNode(t)
		if err != nil {
			return e.broken(err)
		}
		if code != "" {
			return executor.Permanent(code, detail)
		}
		done, stop := want(n)
		if stop != nil {
			return *stop
		}
		if done != "" {
			return executor.Done(done)
		}
		if s := executor.Halted(ctx, t); s != "" {
			return executor.Waiting(s, fmt.Sprintf("stopped before %s of node %s", what, n.Name))
		}
		r, stop := e.effect(ctx, t, what, "node/"+n.UID, n.Name, func(x *tx) reply {
			now := x.w.Nodes[n.UID]
			if now == nil {
				return refused("node_gone", "node %s (%s) is gone", n.Name, n.UID)
			}
			if r, is := stale(now.Mark, mark(t)); is {
				return r
			}
			if now.Revision != n.Revision {
				return conflict("node %s was changed: resourceVersion %d is not %d", n.Name, now.Revision, n.Revision)
			}
			c := *now
			r, failed, lost := fault(&c.Faults)
			if !failed {
				m := mark(t)
				c.Mark = &m
				set(&c, x)
				r = ok("")
				r.lost = lost
			}
			x.node(c)
			return r
		})
		if stop != nil {
			return *stop
		}
		if r.category == "ok" {
			return executor.Done(fmt.Sprintf("%s of node %s accepted", what, n.Name))
		}
	}
	return executor.Transient("conflict", "the node is written to all the time")
}

func (e *Executor) cordon(ctx context.Context, t *executor.Task) executor.Outcome {
	return e.patchNode(ctx, t, DidCordon, func(n Node) (string, *executor.Outcome) {
		if m := n.Mark; n.Schedulable && m != nil && m.Operation == t.Assignment.Operation && m.Run == t.Assignment.Run {
			// It was cordoned by an earlier generation of this run: once is enough.
			o := executor.Permanent("uncordoned_externally", fmt.Sprintf("node %s was cordoned by this operation, and somebody uncordoned it", n.Name))
			return "", &o
		}
		if n.Schedulable {
			return "", nil
		}
		if c := n.Cordon; c != nil && c.Operation != t.Assignment.Operation {
			by := c.Owner
			if c.By != "" {
				by += " (" + c.By + ")"
			}
			t.Note("cordon_kept", fmt.Sprintf("node %s was cordoned before by %s; that cordon stays theirs", n.Name, by))
			return fmt.Sprintf("node %s was cordoned before by %s; it stays theirs", n.Name, by), nil
		}
		return fmt.Sprintf("node %s is cordoned", n.Name), nil
	}, func(n *Node, x *tx) {
		n.Schedulable = false
		n.Cordon, n.Lifted = executor.Doing(t.Assignment, x.now), nil
		if n.VanishAfter > 0 && n.VanishAt == nil {
			n.VanishAt = x.in(n.VanishAfter)
		}
	})
}

func (e *Executor) uncordon(ctx context.Context, t *executor.Task) executor.Outcome {
	var p struct {
		TakeOver bool `json:"take_over"`
	}
	if err := decode(t.Assignment.Payload, &p); err != nil {
		return executor.Permanent("invalid_payload", err.Error())
	}
	var lifted *protocol.Cordon
	o := e.patchNode(ctx, t, DidUncordon, func(n Node) (string, *executor.Outcome) {
		lifted = nil
		if n.Schedulable {
			return fmt.Sprintf("node %s is schedulable", n.Name), nil
		}
		if (n.Cordon == nil || n.Cordon.Owner != "opsplane") && !p.TakeOver {
			o := executor.Permanent("cordon_not_owned", fmt.Sprintf("node %s was cordoned by somebody else: %s", n.Name, describe(n.Cordon)))
			return "", &o
		}
		if lifted = n.Cordon; lifted == nil {
			lifted = &protocol.Cordon{Owner: "unknown"}
		}
		return "", nil
	}, func(n *Node, x *tx) {
		n.Schedulable, n.Cordon, n.Lifted = true, nil, executor.Doing(t.Assignment, x.now)
	})
	if p.TakeOver && lifted != nil && (o.Class == operation.OutcomeDone || o.Class == operation.OutcomeAmbiguous) {
		t.Note("cordon_taken_over", fmt.Sprintf("the cordon that was lifted: owner %s, by %s, reason %q",
			lifted.Owner, cmp.Or(lifted.By, "unknown"), lifted.Reason))
	}
	return o
}

func describe(c *protocol.Cordon) string {
	if c == nil {
		return "nobody knows whom"
	}
	return fmt.Sprintf("%s %s (%s)", c.Owner, c.By, c.Reason)
}

func (e *Executor) confirmCordon(_ context.Context, t *executor.Task) executor.Outcome {
	n, code, detail, err := e.readNode(t)
	switch {
	case err != nil:
		return e.broken(err)
	case code != "":
		return executor.Permanent(code, detail)
	case n.Schedulable:
		return executor.Permanent("uncordoned_externally", fmt.Sprintf("node %s is schedulable again: somebody uncordoned it", n.Name))
	}
	return executor.Done(fmt.Sprintf("node %s is cordoned", n.Name))
}

func (e *Executor) confirmUncordon(_ context.Context, t *executor.Task) executor.Outcome {
	n, code, detail, err := e.readNode(t)
	switch {
	case err != nil:
		return e.broken(err)
	case code != "":
		return executor.Permanent(code, detail)
	case !n.Schedulable:
		return executor.Permanent("cordoned_externally", fmt.Sprintf("node %s is cordoned again by %s", n.Name, describe(n.Cordon)))
	}
	return executor.Done(fmt.Sprintf("node %s is schedulable", n.Name))
}

// decode reads a payload; an empty one has no fields.
func decode(raw json.RawMessage, to any) error {
	if len(raw) == 0 {
		return nil
	}
	return json.Unmarshal(raw, to)
}
