//go:build kubetest

package kuberig

import (
	"strings"
	"testing"
)

// TestAuditBeginsWithALine wherever the log ended when its reader began.
func TestAuditBeginsWithALine(t *testing.T) {
	t.Parallel()
	const log = `{"auditID":"1","verb":"get"}` + "\n" + `{"auditID":"2","verb":"list"}` + "\n" + `{"auditID":"3","ver`
	first := strings.Index(log, "\n") + 1
	for at, want := range map[int]int{0: 2, 1: 1, first - 1: 1, first: 1, first + 1: 0, len(log): 0} {
		b, err := readSince(strings.NewReader(log), int64(at))
		if err != nil {
			t.Fatal(err)
		}
		if got := parseAudit(t.Fatalf, b, nil); len(got) != want {
			t.Errorf("from %d on: %+v, want %d", at, got, want)
		}
	}
}

// TestAuditOfAnotherLog: what is read of one that was begun anew would be nothing.
func TestAuditOfAnotherLog(t *testing.T) {
	t.Parallel()
	if b, err := readSince(strings.NewReader("{}\n"), 4); err == nil {
		t.Errorf("a log of 3 bytes has %q behind its byte 4", b)
	}
}
