package agentapi

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// TestReportDetails: what a result is served with is what every reader can read.
func TestReportDetails(t *testing.T) {
	t.Parallel()
	lists := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	for details, says := range map[string]string{
		``:                                "",
		`{"pods":[{"name":"a"}]}`:         "",
		`[1,"\ud83d\ude00"]`:              "",
		lists(operation.MaxJSONDepth):     "",
		`{"pods":[{"name":"\udc00"}]}`:    "/final/details/pods/0/name holds half of a surrogate pair",
		lists(operation.MaxJSONDepth + 1): "deeper than 32 levels",
		lists(5000):                       "deeper than 32 levels",
		`{"a":-1e400}`:                    "/final/details/a is a number that no double can hold",
		`{"a":1,"a":1}`:                   "/final/details/a is there twice",
		"\"\xff\"":                        "/final/details is not UTF-8",
		`{`:                               "/final/details is not JSON",
		`"` + strings.Repeat("x", protocol.MaxDetailsBytes) + `"`: "the limit is 65536",
	} {
		_, err := reportOf("agt_1", protocol.Report{N: 1, Final: &protocol.Final{Outcome: protocol.FinalSucceeded, Details: json.RawMessage(details)}})
		refused, ok := errors.AsType[*operation.Refusal](err)
		if ok != (says != "") || ok && !strings.Contains(refused.Detail, says) {
			t.Errorf("%.40s: %v, want %q", details, err, says)
		}
	}
}
