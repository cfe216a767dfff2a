package node

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/shared/operation"
)

const (
	// maxConflicts bounds how often a patch is tried in one go against a node that
	// others write to at the same time.
	maxConflicts = 20
	// apiPause is between two tries while the API server does not answer.
	apiPause = 500 * time.Millisecond
	// mostAfter bounds how long a wait that the API server asks for is kept to.
	mostAfter = 10 * time.Second
)

// change is what a patch sets: schedulable or not (nil: as it is) and annotations
// (nil: removed).
type change struct {
	unschedulable *bool
	annotations   map[string]*string
}

// wish judges a node as it was read: nothing is to be done (done says why), the
// step is over (stop), or set is to be patched in.
type wish struct {
	done string
	stop *executor.Outcome
	set  change
}

func stopped(code, detail string) wish {
	o := executor.Permanent(code, detail)
	return wish{stop: &o}
}

// patch is an effect of kind (a): it is conditional on the resourceVersion that
// was read before the fence and carries the mark of the lease. A lost answer is
// settled by reading: had the patch gone through, the node carries the mark; if it
// still comes, its resourceVersion is old. So the next try may take as long as
// admission may. have is the node as it was just read, or nil. The node is returned as
// the API server answered it, and what admission kept out of that is refused.
func (e *nodes) patch(ctx context.Context, t *executor.Task, what string, have *corev1.Node, judge func(n *corev1.Node) wish) (*corev1.Node, executor.Outcome) {
	n := have
	var busy executor.Outcome // of a server that takes no patch, however often
	h := &hindrance{t: t}
	slow := false // the last try was not answered, and the API server answers else
	for range maxConflicts {
		if n == nil {
			var code, detail string
			var err error
			if n, code, detail, err = e.read(ctx, t.Assignment); err != nil {
				return nil, broken(err)
			}
			if code != "" {
				return nil, executor.Permanent(code, detail)
			}
		}
		w := judge(n)
		if w.stop != nil {
			return n, *w.stop
		}
		if w.done != "" {
			h.over()
			return n, executor.Done(w.done)
		}
		if on, ok := cluster.ReadMark(n.Annotations); ok && on.Stale(cluster.MarkOf(t)) {
			return n, outdated(ctx, t, n.Name, on)
		}
		if s := executor.Halted(ctx, t); s != "" {
			return n, executor.Waiting(s, fmt.Sprintf("stopped before %s of node %s", what, n.Name))
		}
		body, err := w.set.body(n, cluster.MarkOf(t))
		if err != nil {
			return n, executor.Permanent("invalid_payload", err.Error())
		}
		var after *corev1.Node
		begun, limit := e.c.Now(), time.Duration(0)
		if slow { // admission may take longer than calls are given
			limit = min(cluster.AdmissionMost, max(t.Remaining()-readBack, askLeast))
		}
		r, stop := e.c.RepeatableWithin(ctx, t, limit, what, "node/"+string(n.UID), n.Name, func(ctx context.Context) error {
			var err error
			after, err = e.c.Client.CoreV1().Nodes().Patch(ctx, n.Name, types.MergePatchType, body, metav1.PatchOptions{FieldManager: fieldManager})
			return err
		})
		d := refusedPatch(r.Err, what, n.Name)
		if r.Category == cluster.OK {
			if d = w.set.untaken(what, after); d != nil {
				n = e.takeBack(ctx, t, n, after, w.set, d)
			}
		}
		if d != nil {
			h.stands(begun, d.blocker(n.Name))
			o := d.outcome()
			o.CommandID = r.Command
			return n, o
		}
		if stop != nil {
			return n, cluster.Patient(*stop, apiPause)
		}
		switch r.Category {
		case cluster.OK:
			h.over()
			return after, executor.Done(fmt.Sprintf("%s of node %s accepted", what, n.Name))
		case cluster.Conflict:
			busy = executor.Transient("conflict", "the node is written to all the time")
		case cluster.Throttled, cluster.Timeout:
			busy = executor.Waiting("throttled", fmt.Sprintf("%s of node %s: the API server is busy: %v", what, n.Name, r.Err))
			if r.Category == cluster.Timeout {
				busy = unanswered(r, "", what, n.Name)
				silent, _ := e.c.Pulse.State()
				slow = silent == nil
			}
			h.stands(begun, unmet(r, what, n.Name).blocker(n.Name))
			if s := executor.Wait(ctx, t, min(max(r.RetryAfter, apiPause), mostAfter)); s != "" {
				return n, unanswered(r, s, what, n.Name)
			}
		case cluster.Refused:
			if !r.NotFound() {
				o := refusedUnnamed(r.Err, what, n.Name).outcome()
				o.CommandID = r.Command
				return n, o
			}
		default:
			h.stands(begun, unmet(r, what, n.Name).blocker(n.Name))
			o := executor.Transient("api_error", fmt.Sprintf("%s of node %s: %v", what, n.Name, r.Err))
			o.CommandID = r.Command
			return n, o
		}
		n = nil
	}
	return nil, busy
}

// unanswered ends a patch that was interrupted: one whose answer was lost may
// have been done.
func unanswered(r cluster.Reply, why, what, name string) executor.Outcome {
	o := executor.Waiting(why, fmt.Sprintf("stopped before %s of node %s", what, name))
	if r.Category == cluster.Timeout {
		o = executor.Ambiguous(fmt.Sprintf("%s of node %s: the answer never came", what, name))
		o.ActionCode = operation.ActRestoreDependency
		o.ActionText = fmt.Sprintf("see that the API server answers, and every webhook that it asks about node %s; look whether the %s came through"+operation.ThenRetry, name, what)
	}
	o.CommandID = r.Command
	return o
}

// outdatedTries is how often a lease that holds meets a newer mark until it says
// that the mark is nobody's.
const outdatedTries = 3

// outdated is the outcome of a lease that a newer one has overtaken. Where the lease
// still holds, there is no newer one, and waiting for it helps nobody: somebody else
// wrote the mark, or the plane's database was put back.
func outdated(ctx context.Context, t *executor.Task, node string, on cluster.Mark) executor.Outcome {
	if t.Attempt >= outdatedTries {
		if _, release, err := t.Fence(ctx); err == nil {
			release()
			return executor.Permanent("mark_newer", fmt.Sprintf("annotation %s of node %s says that generation %d of this operation was there, and this lease, which holds, is generation %d: nothing was issued",
				cluster.AnnotationMark, node, on.Generation, t.Assignment.Generation))
		}
	}
	o := executor.Transient("fenced", fmt.Sprintf("nothing was issued: generation %d of %s is newer", on.Generation, on.Operation))
	_, o.ActionCode, o.ActionText = executor.Action("interrupted")
	return o
}

// body is a JSON merge patch (RFC 7386) that the API server refuses with a 409
// when the node is no longer at the resourceVersion that was read.
func (c change) body(n *corev1.Node, m cluster.Mark) ([]byte, error) {
	annotations := map[string]*string{}
	for k, v := range c.annotations {
		annotations[k] = v
	}
	mark := m.String()
	annotations[cluster.AnnotationMark] = &mark
	p := map[string]any{"metadata": map[string]any{"resourceVersion": n.ResourceVersion, "annotations": annotations}}
	if c.unschedulable != nil {
		spec := map[string]any{"unschedulable": nil}
		if *c.unschedulable {
			spec["unschedulable"] = true
		}
		p["spec"] = spec
	}
	b, err := json.Marshal(p)
	if err != nil {
		return nil, fmt.Errorf("encode the patch of node %s: %w", n.Name, err)
	}
	return b, nil
}

// takeBack takes back what came to be stored of a change that admission kept out: the
// annotations tell of a cordon, or of a lift, that is not there. The mark stays. read is
// the node as it was before, and stored as it was answered. It returns the node as last
// known, and r says so where they are still there, and whose the cordon is where nothing
// else knows any more.
func (e *nodes) takeBack(ctx context.Context, t *executor.Task, read, stored *corev1.Node, set change, r *refusal) *corev1.Node {
	if c := CordonOf(read); c != nil && c.By != "" && c.Owner != "opsplane" {
		r.why += fmt.Sprintf("; the cordon is still that of %s, though the API server's books do not say so any more", describe(c))
	}
	n, o := e.patch(ctx, t, "annotations", stored, func(n *corev1.Node) wish {
		back := change{annotations: map[string]*string{}}
		for k, v := range set.annotations {
			was := annotation(read, k)
			if k == cluster.AnnotationCordon {
				was = cordonSaid(read)
			}
			if !ptr.Equal(was, v) && ptr.Equal(annotation(n, k), v) {
				back.annotations[k] = was
			}
		}
		if len(back.annotations) == 0 {
			return wish{done: "nothing came to be stored"}
		}
		return wish{set: back}
	})
	if o.Class != operation.OutcomeDone {
		r.why += "; its annotations may still be there: " + o.Detail
	}
	return cmp.Or(n, stored)
}

// cordonSaid is the annotation that says of the node's cordon what CordonOf knows of it,
// without the API server's books: those of a lift forget who had closed the node, also
// where admission then takes the lift out. Nothing says whose a person's cordon is.
func cordonSaid(n *corev1.Node) *string {
	text, c := annotation(n, cluster.AnnotationCordon), CordonOf(n)
	switch {
	case c == nil:
		return text
	case c.Owner != "opsplane":
		return nil
	case text != nil:
		if said, ok := readCordon(*text); ok && said == *c {
			return text
		}
	}
	b, _ := json.Marshal(c) // plain values always marshal
	return ptr.To(string(b))
}

// annotation is the node's annotation, nil: it has none.
func annotation(n *corev1.Node, key string) *string {
	if v, has := n.Annotations[key]; has {
		return &v
	}
	return nil
}

// rely makes the node carry the mark of this lease before the step goes by what an
// earlier one left there: from then on no patch of an older holder can land.
// Generation 1 has no predecessor. extra is written with it.
func (e *nodes) rely(ctx context.Context, t *executor.Task, have *corev1.Node, extra func(n *corev1.Node) map[string]*string) (*corev1.Node, *executor.Outcome) {
	if t.Assignment.Generation <= 1 {
		return have, nil
	}
	n, o := e.patch(ctx, t, "mark", have, func(n *corev1.Node) wish {
		if on, ok := cluster.ReadMark(n.Annotations); ok && on == cluster.MarkOf(t) {
			return wish{done: "the node carries the mark"}
		}
		w := wish{}
		if extra != nil {
			w.set.annotations = extra(n)
		}
		return w
	})
	if o.Class != operation.OutcomeDone {
		return n, &o
	}
	return n, nil
}
