package node

import (
	"cmp"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// codeNoEffect is of a pod that is not told to stop although the API server accepted
// its eviction. A mutating webhook or policy may set deleteOptions.dryRun of evictions:
// the API server answers as ever then, and does nothing. A deletion that is accepted does
// what is asked of it: admission may deny it and changes nothing of it.
// https://kubernetes.io/docs/reference/using-api/api-concepts/#dry-run
// https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#response
const codeNoEffect = "eviction_without_effect"

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
	if v := &p.vain; v.times == 0 { // one that was told to stop before was told by whoever did
		p.tries, p.refusal, p.taken, v.since = 0, nil, p.taken || r.until == nil, now
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
	if why := d.past(p, r); why != "" {
		d.force(p, r.stage, why)
	}
}

// past says past what rule a call removes a pod; empty: past none, or it is noted.
func (d *drive) past(p *planned, r result) string {
	switch {
	case r.stage > 0:
		return d.why(p, r.stage)
	case p.verdict.unmanaged && !r.finished && p.forced == "":
		return "evicted, because the drain has force: true; it has no controller, so nothing starts it again"
	}
	return ""
}

func (d *drive) force(p *planned, stage int, why string) {
	p.stage, p.forced, p.open = max(p.stage, stage), why, forcing{}
	if stage > 0 {
		d.sayForced(p)
	}
	if stage > 0 || !p.noted {
		p.noted = true
		d.t.Note("forced", fmt.Sprintf("pod %s (%s): %s", p.name, p.uid, p.forced))
	}
}

// forcing is a call that removes a pod past a rule and whose answer was lost. The zero
// value: there is none.
type forcing struct {
	stage int
	why   string
	until *metav1.Time // when the pod's grace ended before it; nil: it was not told to stop
}

// noAnswer books a call that may have been done. One about a pod that was told to stop
// before told it nothing but past what rule.
func (d *drive) noAnswer(p *planned, r result) {
	p.lost, p.unsure = true, p.unsure || r.until == nil
	if why := d.past(p, r); why != "" {
		p.open = forcing{r.stage, why + "; the answer to that was lost", r.until}
	}
}

// noteOpen notes what such a call did to a pod that is still there, if that is told to
// stop by now, or to stop sooner.
func (d *drive) noteOpen(p *planned) {
	if f := p.open; f.why != "" && p.terminating() && !f.until.Equal(p.pod.DeletionTimestamp) {
		d.force(p, f.stage, f.why)
	}
}

// wasForced says past what rule a pod was removed that is gone, or may have been, as it
// went after it was asked for; empty: past none.
func (p *planned) wasForced() string { return cmp.Or(p.open.why, p.forced) }
