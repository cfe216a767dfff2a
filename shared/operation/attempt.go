package operation

import "slices"

// codeLeaseLost is the code of an attempt whose lease ended before it did.
const codeLeaseLost = "lease_lost"

// LastFailure is the last of the attempts that are kept which came to no good end, in
// whatever run; nil: there is none. One that was cut off by the end of its lease says
// less of why than any other, so that it counts where there is none else.
func (st StepState) LastFailure() *Attempt {
	var lost *Attempt
	for _, a := range slices.Backward(st.Attempts) {
		switch {
		case a.ErrorCode == "" || a.Outcome != OutcomeTransient && a.Outcome != OutcomePermanent && a.Outcome != OutcomeAmbiguous:
		case a.ErrorCode != codeLeaseLost:
			return &a
		case lost == nil:
			lost = &a
		}
	}
	return lost
}
