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

// A deletion does what is asked of it: admission may deny it and changes nothing of it.
// https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#response

// vain is what is known of evictions of a pod that were accepted and did nothing, in a
// row. The zero value: there is none.
type vain struct {
	since time.Time // the first was accepted
	times int       // that the pod was read and not told to stop; what is accepted then proves nothing
}

// refusal is what keeps a pod that was read after its eviction was accepted.
func (v *vain) refusal(pod string) *refusal {
	since, how := v.since.UTC(), ""
	if v.times > 1 {
		how = fmt.Sprintf(", the last of %d tries", v.times)
	}
	return &refusal{code: codeNoEffect, rule: "admission", since: &since,
		why: fmt.Sprintf("pod %s: its eviction was accepted and did nothing%s: it is not told to stop; admission, as a mutating webhook, may have made a dry run of it", pod, how)}
}

// accepted books a call that the API server took. Where evictions came to nothing
// before, it is the pod that tells of the next.
func (d *drive) accepted(p *planned, r result, now time.Time) {
	p.unheard = unheard{}
	if r.stage > 0 {
		p.vain = vain{}
	}
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
// accepted its eviction: it was not evicted.
func (p *planned) withoutEffect(now time.Time) {
	p.vain.times++
	p.evicted, p.taken, p.noGrace, p.forced = time.Time{}, false, false, ""
	p.refused(p.vain.refusal(p.name), now, 0)
}

// noteForced notes a pod that was removed against a rule.
func (d *drive) noteForced(p *planned, r result) {
	switch {
	case r.stage > 0:
		p.stage = r.stage
		p.forced = d.why(p)
		d.sayForced(p)
		d.t.Note("forced", fmt.Sprintf("pod %s (%s): %s", p.name, p.uid, p.forced))
	case p.verdict.unmanaged && !r.finished && p.forced == "":
		p.forced = "evicted, because the drain has force: true; it has no controller, so nothing starts it again"
		if !p.noted {
			p.noted = true
			d.t.Note("forced", fmt.Sprintf("pod %s (%s): %s", p.name, p.uid, p.forced))
		}
	}
}
