package node

import (
	"testing"
	"time"
)

// A memo that is full drops what is over, else what would be first, and nothing else.
func TestMemoThatIsFull(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	var m memo[int, int]
	for i := range maxMemo {
		m.put(now, i, i, time.Hour+time.Duration(i))
	}
	m.put(now, 7, 7, 2*time.Hour) // known: nothing goes for it
	if _, known := m.get(now, 0); !known {
		t.Error("the first went for one that is known")
	}
	m.put(now, maxMemo, maxMemo, 3*time.Hour)
	for i := range maxMemo + 1 {
		if v, known := m.get(now, i); known != (i > 0) || known && v != i {
			t.Fatalf("%d is known: %t, %d", i, known, v)
		}
	}
	later := now.Add(2*time.Hour + time.Second) // but for the last all is over
	m.put(later, 0, 0, time.Hour)
	if len(m.kept) != 2 {
		t.Errorf("%d are kept", len(m.kept))
	}
}
