package bus

import "testing"

func TestPatternMatch(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		pattern, eventType string
		want               bool
	}{
		{"", "node.joined", true},
		{"*", "node.joined", true},
		{"node.joined", "node.joined", true},
		{"node.joined", "node.joined2", false},
		{"node.*", "node.joined", true},
		{"node.*", "node.", true},
		{"node.*", "nodes.joined", false},
		{"operation.", "operation.dispatched", false},
	} {
		if got := (Pattern{Type: tt.pattern}).Match(tt.eventType); got != tt.want {
			t.Errorf("%q matches %q: %t", tt.pattern, tt.eventType, got)
		}
	}
}
