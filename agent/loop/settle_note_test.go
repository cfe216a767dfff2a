package loop

import (
	"slices"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/operation"
)

// notes are the journal's notes of an operation, in their order.
func (b *bench) notes(op string, codes ...string) (out []operation.Entry) {
	b.plane.locked(func() {
		for _, e := range b.plane.entries[op] {
			if e.Kind == operation.EntryNote && slices.Contains(codes, e.Reason) {
				out = append(out, e)
			}
		}
	})
	return out
}

// TestSilenceIsJournaled: the journal says when silence begins and when it ends while an
// operation waits to be read, also over several leases, and nothing at each probe.
func TestSilenceIsJournaled(t *testing.T) {
	for _, tc := range []struct {
		name  string
		lasts time.Duration
		most  int // notes beside the last
	}{
		{"in one lease", 30 * time.Second, 1},
		{"over leases", 5 * time.Minute, 1 + 4}, // and at each lease's end
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				server := b.mutes("cordon", toRun)
				b.start()
				op := b.unsettled(time.Hour, drainPlan()...)
				b.plane.wait(t, 15*time.Second, "a note", func() bool {
					return slices.ContainsFunc(b.plane.entries[op], func(e operation.Entry) bool { return e.Reason == codeSilent && e.Detail == mute })
				})
				time.Sleep(tc.lasts)
				server.away.Store(false)
				if s := b.plane.ended(t, op, time.Minute); s.Phase != operation.Succeeded {
					t.Fatalf("ended %s", s.Phase)
				}
				got := b.notes(op, codeSilent, codeAnswered)
				if n := len(got); n < 2 || n > tc.most+1 || got[n-1].Reason != codeAnswered || len(b.notes(op, codeAnswered)) != 1 {
					t.Fatalf("notes %+v", got)
				}
				first, last := got[0], got[len(got)-1]
				if d := last.At.Sub(first.At); d < tc.lasts || first.Detail != mute || first.Step != "" && first.Step != "cordon" {
					t.Errorf("%s apart: %+v, %+v", d, first, last)
				}
				if said := slices.ContainsFunc(got[1:], func(e operation.Entry) bool { return e.Detail == mute }); said {
					t.Errorf("said twice: %+v", got)
				}
			})
		})
	}
}

// TestDenialIsJournaled: so is a right that what never began waits for.
func TestDenialIsJournaled(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		g := b.needs("cordon")
		b.start()
		op := b.unsettled(time.Hour, drainPlan()...)
		time.Sleep(10 * time.Minute)
		if got := b.notes(op, codeForbidden); len(got) != 1 || got[0].Detail != lacks {
			t.Errorf("notes %+v", got)
		}
		g.give()
		b.plane.ended(t, op, 15*time.Second)
		if got := b.notes(op, codeAnswered); len(got) != 1 {
			t.Errorf("notes %+v", got)
		}
	})
}
