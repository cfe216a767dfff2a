package protocol

import (
	"encoding/json"
	"testing"
	"time"
)

// A condition of which nobody says since when it holds has no time.
func TestConditionWithoutTime(t *testing.T) {
	t.Parallel()
	for want, c := range map[string]Condition{
		`{"type":"Ready","status":"Unknown"}`:                                {Type: "Ready", Status: "Unknown"},
		`{"type":"Ready","status":"Unknown","since":"2026-01-02T03:04:05Z"}`: {Type: "Ready", Status: "Unknown", Since: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)},
	} {
		if b, err := json.Marshal(c); err != nil || string(b) != want {
			t.Errorf("%s, %v", b, err)
		}
	}
}
