package operation

import "testing"

// TestLastFailure: the last attempt that says why it came to nothing.
func TestLastFailure(t *testing.T) {
	t.Parallel()
	refused := Attempt{Outcome: OutcomeAmbiguous, ErrorCode: "answer_lost", Detail: "the webhook"}
	busy := Attempt{Outcome: OutcomeTransient, ErrorCode: "busy"}
	lost := Attempt{Outcome: OutcomeAmbiguous, ErrorCode: codeLeaseLost}
	other := []Attempt{{}, {Outcome: OutcomeDone}, {Outcome: OutcomeWaiting, ErrorCode: "hand_back"}, {Outcome: OutcomeTransient}, {Outcome: OutcomeDone, ErrorCode: "resolved"}}
	for name, c := range map[string]struct {
		attempts []Attempt
		want     string
	}{
		"none":                         {nil, ""},
		"none of them failed":          {other, ""},
		"the last":                     {[]Attempt{refused, busy}, "busy"},
		"before others":                {append([]Attempt{busy, refused}, other...), "answer_lost"},
		"a lost lease says less":       {[]Attempt{busy, refused, lost, lost}, "answer_lost"},
		"a lost lease, where all were": {[]Attempt{lost, lost}, codeLeaseLost},
	} {
		got := ""
		if a := (StepState{Attempts: c.attempts}).LastFailure(); a != nil {
			got = a.ErrorCode
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
