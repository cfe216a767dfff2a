package node

import (
	"fmt"
	"time"
)

// codeNoEffect is of a pod that is not told to stop although the API server accepted
// its eviction. A mutating webhook or policy may set deleteOptions.dryRun of evictions:
// the API server answers as ever then, and does nothing.
// https://kubernetes.io/docs/reference/using-api/api-concepts/#dry-run
const codeNoEffect = "eviction_without_effect"

// vain is what is known of calls about a pod that were accepted and did nothing, in a
// row. The zero value: there is none.
type vain struct {
	since time.Time // the first was accepted
	times int       // that the pod was read and not told to stop; what is accepted then proves nothing
	stage int       // of the last
}

// refusal is what keeps a pod that was read after its eviction was accepted.
func (v *vain) refusal(pod string) *refusal {
	what, since := "eviction", v.since.UTC()
	if v.stage > 0 {
		what = "deletion"
	}
	how := ""
	if v.times > 1 {
		how = fmt.Sprintf(", the last of %d tries", v.times)
	}
	return &refusal{stage: v.stage, code: codeNoEffect, rule: "admission", since: &since,
		why: fmt.Sprintf("pod %s: its %s was accepted and did nothing%s: it is not told to stop; admission, as a mutating webhook, may have made a dry run of it", pod, what, how)}
}

// accepted books a call that the API server took. Where such calls came to nothing
// before, it is the pod that tells.
func (d *drive) accepted(p *planned, r result, now time.Time) {
	p.unheard = unheard{}
	if v := &p.vain; v.times == 0 {
		p.tries, p.refusal, p.taken, v.since = 0, nil, true, now
		if r.stage == 0 { // finer than the deletionTimestamp's seconds
			p.evicted = now
		}
	} else {
		p.tries, p.refusal, p.unsure = v.times, v.refusal(p.name), true
	}
	if !p.terminating() {
		p.accepted, p.not = true, now.Add(d.unseen(r.stage))
	}
	d.noteForced(p, r)
}

// unseen is how long an accepted call may stay unseen: the pod is read while there is
// time for what comes next, deletions in the force window or the last word.
func (d *drive) unseen(stage int) time.Duration {
	left := d.t.Remaining() - readBack
	if stage == 0 {
		left = min(left, d.t.Remaining()-d.p.window())
	}
	return min(unseenFor, max(left, askLeast))
}

// withoutEffect books that a pod was read and is not told to stop, though the API server
// accepted that: it was not evicted, and nor was it forced out.
func (d *drive) withoutEffect(p *planned, now time.Time) {
	v := &p.vain
	if p.stage > 0 && v.stage == 0 {
		d.t.Note("without_effect", fmt.Sprintf("pod %s (%s): its deletion was accepted and did nothing", p.name, p.uid))
	}
	v.times, v.stage = v.times+1, p.stage
	p.evicted, p.taken, p.noGrace, p.stage, p.forced = time.Time{}, false, false, 0, ""
	p.refused(v.refusal(p.name), now, 0)
}

// noteForced notes a pod that was removed against a rule.
func (d *drive) noteForced(p *planned, r result) {
	switch {
	case r.stage > 0:
		p.stage = r.stage
		p.forced = d.why(p)
		if r.stage > p.vain.stage { // else it was noted
			d.sayForced(p)
			d.t.Note("forced", fmt.Sprintf("pod %s (%s): %s", p.name, p.uid, p.forced))
		}
	case p.verdict.unmanaged && !r.finished && p.forced == "":
		p.forced = "evicted, because the drain has force: true; it has no controller, so nothing starts it again"
		if !p.noted {
			p.noted = true
			d.t.Note("forced", fmt.Sprintf("pod %s (%s): %s", p.name, p.uid, p.forced))
		}
	}
}
