package operation

import "testing"

// TestNoActionIsWithoutWords: whatever an agent leaves out, a person is told what to do.
func TestNoActionIsWithoutWords(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		next      *NextAction
		retryable bool
		code      string
		text      string
	}{
		{nil, false, ActEscalate, "read the cause and the journal"},
		{&NextAction{Code: ActEscalate}, false, ActEscalate, "read the cause and the journal"},
		{&NextAction{Code: ActRetry}, true, ActRetry, "retry"},
		{&NextAction{Code: ActRetry}, false, ActRetry, "ask for a new operation"},
		{&NextAction{Code: ActRestoreDependency, Text: "mend it"}, false, ActRestoreDependency, "mend it"},
	} {
		h := running(t)
		h.after(t, h.report(&Final{Outcome: FinalFailed, Retryable: c.retryable, NextAction: c.next}, is("look", StepFailed)))
		if got := h.s.Result.NextAction; got == nil || got.Code != c.code || got.Text != c.text {
			t.Errorf("%+v, retryable %v: %+v", c.next, c.retryable, got)
		}
	}
}
