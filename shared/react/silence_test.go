package react

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// A silence's times have no parts of milliseconds, as clocks of streams have none;
// one that has, from an earlier version, ends all the same.
func TestSilencesByTheMillisecond(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.quiet()
	b.rule("name: one\non: [x.bad]\ngroup_by: {g: event.subject.name}\nresolve_after: 2h\n")
	ms := []alert.Match{{Field: "rule", Op: "=", Value: "one"}}
	made, err := b.service.CreateSilence(t.Context(), call, alert.Silence{Matchers: ms, StartsAt: t0.Add(400 * time.Microsecond), EndsAt: t0.Add(time.Minute + 1), Reason: "x"})
	if err != nil || !made.StartsAt.Equal(t0) || !made.EndsAt.Equal(t0.Add(time.Minute)) {
		t.Errorf("made %+v, %v", made, err)
	}
	old := alert.Silence{ID: "sil_00000000000000000000000000", Matchers: ms, StartsAt: t0, EndsAt: t0.Add(2*time.Minute + 1), Reason: "x"}
	if err := b.service.change(t.Context(), func() ([]ledger.Write, error) { return []ledger.Write{{Item: silenceItem(old)}}, nil }); err != nil {
		t.Fatal(err)
	}
	b.tell("x.bad", "a")
	b.follow()
	for range 4 {
		b.advance(time.Minute)
		b.follow()
	}
	want := []string{"0s firing onemap[g:a] condition_holds", "2m0.001s unsilenced onemap[g:a] silence_over", "2m0.001s firing onemap[g:a] silence_over"}
	if d := cmp.Diff(want, b.told()); d != "" {
		t.Errorf("told (-want +got):\n%s", d)
	}
}

// Silences that have ended do not count to the limit; of these, too, so many are
// kept, and those that ended last.
func TestPastSilencesTakeNoRoom(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ms := []alert.Match{{Field: "rule", Op: "=", Value: "one"}}
	var writes []ledger.Write
	put := func(i int, ends time.Time) {
		s := alert.Silence{ID: fmt.Sprintf("sil_%026d", i), Matchers: ms, StartsAt: t0.Add(-time.Hour), EndsAt: ends, Reason: "x"}
		if writes = append(writes, ledger.Write{Item: silenceItem(s)}); len(writes) < 50 {
			return
		}
		if err := b.db.Commit(t.Context(), writes...); err != nil {
			t.Fatal(err)
		}
		writes = nil
	}
	for i := range MaxPastSilences + 50 {
		put(i, t0.Add(-time.Duration(i+1)*time.Second))
	}
	create := func() error {
		_, err := b.service.CreateSilence(t.Context(), call, alert.Silence{Matchers: ms, EndsAt: t0.Add(time.Hour), Reason: "x"})
		return err
	}
	for i := range 4 {
		if err := create(); err != nil {
			t.Fatal(i, err)
		}
	}
	all, err := b.service.Silences(t.Context(), true)
	if err != nil || len(all) != MaxPastSilences+4 {
		t.Errorf("%d silences, %v", len(all), err)
	}
	for _, s := range all {
		if s.EndsAt.Before(t0.Add(-MaxPastSilences * time.Second)) {
			t.Errorf("%s ended at %s and is kept", s.ID, s.EndsAt)
		}
	}
	for i := range alert.MaxSilences - 50 {
		put(10_000+i, t0.Add(time.Hour))
	}
	for range 46 {
		if err := create(); err != nil {
			t.Fatal(err)
		}
	}
	if err := create(); code(err) != "invalid" {
		t.Errorf("one over the limit: %v", err)
	}
}

// Pages of silences are by their start, whatever their ids.
func TestSilencesByTheirStart(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var want []string
	for i := range 9 {
		s, err := b.service.CreateSilence(t.Context(), call, alert.Silence{Matchers: []alert.Match{{Field: "rule", Op: "=", Value: "x"}},
			StartsAt: t0.Add(time.Duration(i*4%9/2) * time.Minute), EndsAt: t0.Add(time.Hour), Reason: "x"})
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, record.TimeSort(s.StartsAt, s.ID))
	}
	all, err := b.service.Silences(t.Context(), false)
	if err != nil || len(all) != len(want) {
		t.Fatal(all, err)
	}
	for i := 1; i < len(all); i++ {
		if record.TimeSort(all[i].StartsAt, all[i].ID) >= record.TimeSort(all[i-1].StartsAt, all[i-1].ID) {
			t.Errorf("%d is not before %d", i-1, i)
		}
	}
}
