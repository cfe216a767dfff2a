package operation

import (
	"fmt"
	"slices"
)

// residual lists what nobody proved the state of: steps whose outcome nobody knows,
// and steps that a person settled where what was issued goes on by itself once it was,
// such as a Job. A person's word says how the step counts; only a probe, which the next
// operation on the resource begins with, can tell that nothing of it is under way.
func (tx *transaction) residual() []Residual {
	var out []Residual
	for i, st := range tx.s.Steps {
		switch {
		case st.Phase == StepUnknown:
			out = tx.leave(out, i, "its outcome is unknown: "+st.Detail)
		case st.Resolved != nil && tx.spec.Steps[i].outlasts():
			out = tx.leave(out, i, fmt.Sprintf("settled as %s by %s: what was issued may be under way still, no probe found it ended", st.Resolved.Outcome, st.Resolved.By.ID))
		case st.Reissued != nil && tx.spec.Steps[i].outlasts():
			out = tx.leave(out, i, fmt.Sprintf("settled as %s by %s, and issued again: what was issued before may be under way still, no probe found it ended", st.Reissued.Outcome, st.Reissued.By.ID))
		}
	}
	return out
}

// left lists what an operation leaves behind whose end nobody looked at: beside what
// nobody proved anyway, what its steps began to bring about and nothing is known to have
// undone. The plan and the steps' attempts tell; what the world shows may be otherwise.
func (tx *transaction) left() []Residual {
	out := tx.residual()
	var begun []Residual
	for i, p := range tx.spec.Steps {
		st := tx.s.Steps[i]
		switch {
		case !p.Effect || p.Cleanup || len(st.Attempts) == 0 || st.Phase == StepSkipped || tx.undone(i):
			continue
		case st.Resolved != nil && st.Resolved.Outcome == ResolveNotDone:
			continue
		}
		what := "begun"
		switch {
		case st.Resolved != nil:
			what = "settled as " + st.Resolved.Outcome + " by " + st.Resolved.By.ID
		case st.Phase == StepSucceeded:
			what = "carried out"
		case st.Detail != "":
			what += " (" + cut(st.Detail, maxAttemptDetail) + ")"
		}
		begun = tx.leave(begun, i, fmt.Sprintf("%q was %s, and nothing is known to have undone it: not verified", p.Title, what))
	}
	return tx.besides(out, begun)
}

// undone tells whether a cleanup step of what the step does came through after the
// step's last attempt.
func (tx *transaction) undone(step int) bool {
	as := tx.s.Steps[step].Attempts
	for i, p := range tx.spec.Steps {
		if p.Cleanup && p.Capability == tx.spec.Steps[step].Capability && slices.ContainsFunc(tx.s.Steps[i].Attempts, func(a Attempt) bool {
			return a.Outcome == OutcomeDone && !a.StartedAt.Before(as[len(as)-1].StartedAt)
		}) {
			return true
		}
	}
	return false
}

// outlasts tells whether what the step issues goes on without its agent, and past its
// lease: that is why it cannot be interrupted.
func (p PlanStep) outlasts() bool { return p.Effect && !p.Interruptible }

// leave adds a step's resources to the list.
func (tx *transaction) leave(to []Residual, step int, detail string) []Residual {
	p := tx.spec.Steps[step]
	for _, r := range p.Resources {
		to = append(to, Residual{StepID: p.ID, Step: p.Name, Resource: r, Detail: detail})
	}
	return to
}

// besides adds to what is said of a step's resource already what is not.
func (tx *transaction) besides(said, more []Residual) []Residual {
	out := slices.Clone(said)
	for _, x := range more {
		if !slices.ContainsFunc(said, func(r Residual) bool { return r.StepID == x.StepID && r.Resource == x.Resource }) {
			out = append(out, x)
		}
	}
	return out
}

// ownResidual drops what an agent says of steps that are not of the plan.
func (tx *transaction) ownResidual(rs []Residual) []Residual {
	var out []Residual
	for _, r := range rs {
		if tx.spec.StepIndex(r.StepID) >= 0 && slices.Contains(tx.spec.Resources, r.Resource) {
			out = append(out, r)
		}
	}
	return out
}

// Settles tells whether the end settles what earlier operations left of the resources
// that it held alone: it succeeded, and no step of it rests on a person's word, nor was
// issued on one in place of a probe: that would have looked for what those left as well.
func (s *State) Settles() bool {
	return s.Phase == Succeeded && !slices.ContainsFunc(s.Steps, func(st StepState) bool { return st.Resolved != nil || st.Reissued != nil })
}
