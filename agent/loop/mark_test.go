package loop

import (
	"testing"
	"time"
)

// TestMarkIsSaidBack: each heartbeat says the mark that the plane told last, so that a
// plane whose record is from before knows.
func TestMarkIsSaidBack(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.plane.answer.Reporter, b.plane.answer.Mark = true, 7
		b.start()
		said := func(mark int64) func() bool {
			return func() bool { n := len(b.plane.beats); return n > 1 && b.plane.beats[n-1].Mark == mark }
		}
		b.plane.wait(t, time.Minute, "the mark", said(7))
		b.plane.mu.Lock()
		if first := b.plane.beats[0].Mark; first != 0 {
			t.Errorf("the first heartbeat says mark %d, before any was told", first)
		}
		b.plane.mu.Unlock()
		b.plane.locked(func() { b.plane.answer.Mark = 8 })
		b.plane.wait(t, time.Minute, "the next mark", said(8))
	})
}
