package node

import (
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/shared/protocol"
)

// lookRules says of each pod that is left what may be done now, and what keeps it.
func (d *drive) lookRules(l *look) *executor.Outcome {
	now, force := d.c.Now(), d.p.forceNow(d.t)
	left := d.t.Remaining()
	if w := d.p.window(); w > 0 {
		for _, at := range []time.Duration{w, d.p.abrupt()} {
			if left > at {
				l.wake(left - at + time.Millisecond)
			}
		}
	}
	if len(l.waiting) > 0 {
		if code, why := ailing(d.s.node); code != "" {
			l.hold(code, "node/"+d.s.node.Name, "", why, nil).since = readySince(d.s.node)
		}
	}
	spaces := map[string][]*budget{}
	budgets := func(ns string) []*budget {
		if d.budgets == nil { // an empty node asks for none
			d.budgets = d.drainer.budgets.Acquire()
		}
		if _, ok := spaces[ns]; !ok {
			spaces[ns], l.budgets = d.budgets.In(ns)
		}
		return spaces[ns]
	}
	room := d.room(l, now)
	add := func(p *planned, stage int) {
		if room > 0 && !p.inFlight {
			room--
			d.s.takeTurn(p, now)
			l.ready = append(l.ready, p)
			l.force[p] = stage
		}
	}
	for _, p := range d.s.plan { // what has run to its end goes when it likes
		if p.finished && !d.chosen && !p.isGone && p.pod != nil && !p.going() && p.evicted.IsZero() && !now.Before(p.not) && !wouldStay(p.pod, now) {
			add(p, 0) // one that a finalizer holds would stand in the way then
		}
	}
	for _, p := range l.waiting {
		l.pending = l.pending || !p.going()
		l.unseen = l.unseen || !p.terminating()
	}
	for _, p := range l.waiting {
		if p.accepted && !now.Before(p.not) { // the watch should have shown it
			p.lost = true
		}
		if p.terminating() {
			d.lookStopping(l, p, force, left, add)
			continue
		}
		if p.accepted && !p.lost {
			if r := p.refusal; r != nil { // what was accepted before did nothing
				l.holds = append(l.holds, held{r.hold(), "pod/" + p.name, p})
			}
			l.wake(p.not.Sub(now))
			continue
		}
		if p.wave > l.waiting[0].wave && !force {
			continue
		}
		if p.lost {
			if now.Before(p.not) {
				l.wake(p.not.Sub(now))
			} else {
				add(p, 0)
			}
			if r := p.refusal; r != nil { // in whose words it is not known what became of it
				l.holds = append(l.holds, held{r.hold(), "pod/" + p.name, p})
			}
			continue
		}
		if p.inFlight {
			if r := p.refusal; r != nil && r.code != "pdb" { // it holds until the cluster says otherwise
				l.holds = append(l.holds, held{r.hold(), "pod/" + p.name, p})
			} else if h := d.unansweredYet(l, p, now); r == nil && h != nil {
				l.holds = append(l.holds, held{*h, "pod/" + p.name, p})
			}
			continue
		}
		all := budgets(p.pod.Namespace)
		h := rule(all, p.pod)
		_, since, _, err := d.budgets.State()
		var old *hold // what is known of its budget may be old: the API server decides, once it answers
		if (err != nil || l.away) && h != nil && h.code == "pdb" {
			old, h = h, nil
		}
		if d.chosen && apierrors.IsForbidden(err) && time.Since(since) > executor.DeniedFor { // a drain's preflight says so
			o := broken(err)
			return &o
		}
		if h != nil && h.code == "two_pdbs" && d.p.OnDeadline != onDeadlineForce {
			o := executor.Permanent(h.code, h.why)
			return &o
		}
		r := p.refusal
		if wait := p.not.Sub(now); force && r != nil && r.stage > 0 && (wait > 0 || d.overdue(p)) { // what refuses deletions stands in the way, whatever the budget says
			l.holds = append(l.holds, held{r.hold(), "pod/" + p.name, p})
			if wait > 0 {
				l.wake(wait)
			}
			continue
		}
		switch again := r == nil || d.again(p, all, now); {
		case h != nil:
		case !again:
			h = new(r.hold())
			l.wake(p.not.Sub(now))
		case r != nil && d.tooLate(p, force):
			h = new(r.hold())
		}
		if back, wait := d.s.returns(p, now); wait > 0 && (h == nil || force) { // nor is it forced sooner: it would be there again
			l.holds = append(l.holds, held{*back, "pod/" + p.name, p})
			l.wake(wait)
			continue
		}
		switch {
		case h != nil && force && h.code != "api_unavailable":
			if h.code != codeUndeleted { // what held it is what was before
				p.heldBy = h.why
			}
			add(p, withGrace)
		case h != nil:
			l.holds = append(l.holds, held{*h, "pod/" + p.name, p})
		case d.isOwn(p.pod) && !force && !d.wasHanded():
			l.onlyOwn = len(l.waiting) == 1
		case old != nil && force:
			p.heldBy = old.why
			add(p, withGrace)
		case old != nil && l.away:
			old.why += ", when that was heard last"
			l.holds = append(l.holds, held{*old, "pod/" + p.name, p})
		case room <= 0:
		case old != nil, d.allowances.take(now, all, p.pod):
			add(p, 0)
		default: // other drains of this agent take what the budget allows, or somebody else did just now
			b := selecting(all, p.pod)[0]
			l.holds = append(l.holds, held{hold{code: "pdb", rule: "pdb/" + b.key(), why: b.String() + ", which other evictions take", act: b.act()}, "pod/" + p.name, p})
			l.wake(refill)
		}
	}
	if len(spaces) > 1 { // the drive is woken by the budgets of one namespace
		l.wake(lookOthers)
	}
	return nil
}

// again tells whether an eviction that was refused is asked for again: when its
// time has come, or at once when the budget that refused it has changed.
func (d *drive) again(p *planned, all []*budget, now time.Time) bool {
	if !now.Before(p.not) {
		return true
	}
	for _, b := range all {
		if b.key() == p.refusal.budget && b.version != p.refusal.version {
			return true
		}
	}
	return false
}

// lookStopping says why a pod that was told to stop is still there, and ends its
// grace where the deadline is near and the payload allows it.
func (d *drive) lookStopping(l *look, p *planned, force bool, left time.Duration, add func(*planned, int)) {
	now := d.c.Now()
	code, rule, why := d.staying(p, now)
	// That a kubelet said nothing is no fault of its own while nobody could have
	// passed it on.
	if unheard := l.away && code == "stopping"; !unheard && (d.gone || l.pending) {
		h := l.hold(code, "pod/"+p.name, rule, fmt.Sprintf("pod %s: %s", p.name, why), p)
		h.since, h.act = stayingSince(d.s, p, code), toRemove(rule)
		if u := &p.unheard; u.stage > 0 && u.tries > 0 {
			h.why += fmt.Sprintf(", and %s: %s", u, mayHang)
		}
		if s := l.services[p.uid]; s != "" {
			h.why += ", and it still serves requests of service " + s
		}
		if back, _ := d.s.returns(p, now); back != nil {
			l.holds = append(l.holds, held{*back, "pod/" + p.name, p})
		}
	}
	if until := p.pod.DeletionTimestamp.Sub(now); until > 0 { // what is said changes then
		l.wake(until + time.Second)
	}
	if soon := removedWithin - now.Sub(endedAt(p.pod)); soon > 0 && len(p.pod.Finalizers) > 0 {
		l.wake(soon + time.Second)
	}
	if !force || p.inFlight || isKept(p.pod) || d.overdue(p) {
		return
	}
	if now.Before(p.not) {
		l.wake(p.not.Sub(now))
		return
	}
	p.heldBy = why
	switch {
	case p.stage < withoutGrace && (left <= d.p.abrupt() || code == "node_unreachable"):
		add(p, withoutGrace)
	case p.stage < withGrace && p.pod.DeletionTimestamp.Sub(now) > left-d.p.reserve():
		add(p, withGrace)
	}
}

// staying says why a pod that was told to stop is still there.
func (d *drive) staying(p *planned, now time.Time) (code, rule, why string) {
	return staying(d.s, p, now)
}

func staying(s *session, p *planned, now time.Time) (code, rule, why string) {
	asked, until := askedAt(p.pod), p.pod.DeletionTimestamp.Time
	over := !now.Before(until)
	sick, _ := ailing(s.node)
	if sick == "node_unreachable" && !isReleased(p.pod) {
		return sick, "", fmt.Sprintf("node %s is unreachable, so nobody can see it stop", s.node.Name)
	}
	if f, why := unremoved(p.pod, now); f != "" {
		return "finalizer", f, why
	}
	if over && sick != "" {
		c := cluster.Readiness(s.node)
		return sick, "kubelet", fmt.Sprintf("its grace period ended at %s and node %s is not ready%s%s", until.UTC().Format(time.RFC3339), s.node.Name, since(c), inItsWords(c))
	}
	if over {
		return "stopping", "kubelet", fmt.Sprintf("its grace period ended at %s and its kubelet has not said that it stopped", until.UTC().Format(time.RFC3339))
	}
	within := ""
	if hasPreStop(p.pod) {
		within = ", with its preStop hook,"
	}
	return "terminating", "grace_period", fmt.Sprintf("it has been stopping since %s, its grace period of %s%s ends at %s",
		asked.Format(time.RFC3339), until.Sub(asked).Round(time.Second), within, until.UTC().Format(time.RFC3339))
}

// stayingSince is since when what keeps a pod does that was told to stop, as the cluster
// itself tells: it is the same whoever holds the lease. What kept it before that is no
// matter of it.
func stayingSince(s *session, p *planned, code string) *time.Time {
	at := askedAt(p.pod)
	switch code {
	case "node_unreachable", "node_not_ready":
		return readySince(s.node)
	case "finalizer":
		at = unremovedSince(p.pod)
	case "stopping": // its grace is over
		at = p.pod.DeletionTimestamp.UTC()
	}
	return &at
}

// why words past what rule a pod was deleted: the drain asked for it.
func (d *drive) why(p *planned, stage int) string {
	how := "deleted past its rules"
	if stage == withoutGrace {
		how = "deleted without grace"
	}
	s := how + ", because the deadline is near and the drain has on_deadline: force"
	if p.heldBy != "" {
		s += "; what held it: " + p.heldBy
	}
	return s
}

// summary counts the planned pods.
func (d *drive) summary(l *look) string {
	return fmt.Sprintf("%d of %d pods gone", l.gone, l.total) + countForced(l.forced)
}

// message says how far the drain is and what it waits for.
func (d *drive) message(l *look) string {
	s := d.summary(l)
	switch h := l.first(); {
	case h == nil:
	case h.code == "api_unavailable":
		s += "; " + h.why
	case h.pod == nil:
		s += ", waiting: " + h.why
	default:
		s += waitingFor(h.pod.name, h.why)
	}
	return s
}

// waitingFor names the pod that is waited for and why, to follow on what is said of
// the pods.
func waitingFor(pod, why string) string {
	pod = "pod " + pod
	switch rest, named := strings.CutPrefix(why, pod); {
	case named && strings.HasPrefix(rest, ":"):
		return ", waiting for " + why
	case named:
		return ", waiting for " + pod + ", which" + rest
	}
	return ", waiting for " + pod + ": " + why
}

// tell shows how far the drain is and everything that holds it up.
func (d *drive) tell(l *look) {
	d.t.Progress(l.gone, l.total, "pods", d.message(l))
	if d.t.Blocked == nil {
		return
	}
	list := make([]protocol.Blocker, len(l.holds))
	for i, h := range l.holds {
		list[i] = protocol.Blocker{Code: h.code, Resource: h.resource, Rule: h.rule, Detail: h.why, Since: h.since}
	}
	d.t.Blocked(ahead(d.t, d.p, list))
}
