package executor

import (
	"strings"
	"testing"

	"github.com/opsplane/opsplane/shared/operation"
)

// TestAdvicesCanBeReworded: where an operation may not be retried the plane says what to
// do instead of it, which it can if an advice speaks of a retry at its end alone, and
// only where a new run may succeed.
func TestAdvicesCanBeReworded(t *testing.T) {
	t.Parallel()
	for code, a := range advices {
		mend, ends := strings.CutSuffix(a.text, operation.ThenRetry)
		if ends && !a.retryable || a.text != "retry" && strings.Contains(mend, "retry") {
			t.Errorf("%s: %q, retryable %v", code, a.text, a.retryable)
		}
	}
	for code, want := range map[string]bool{"job_evicted": true, "attempts_exhausted": false, "": false} { // the first is advised to retry
		if _, _, text := Action(code); Advised(code) != want || text != "retry" {
			t.Errorf("%q: advised %v with %q", code, Advised(code), text)
		}
	}
	if _, _, text := Action("node_replaced"); !strings.Contains(text, "another id") {
		t.Errorf("a node that is there, and is another one, is answered with %q", text)
	}
}
