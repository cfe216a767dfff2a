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
		}
	}
	return out
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
// that it held alone: it succeeded, and no step of it rests on a person's word.
func (s *State) Settles() bool {
	return s.Phase == Succeeded && !slices.ContainsFunc(s.Steps, func(st StepState) bool { return st.Resolved != nil })
}
