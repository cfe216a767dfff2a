package event

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

func TestLeaveOutRepeats(t *testing.T) {
	t.Parallel()
	leaveOutRepeats(t, openDB(t))
}

// leaveOutRepeats: of two events of one id - in one run, in two, in two streams - the first
// stays where it is, and the second's place says so; all others stay as they are, and in
// their places.
func leaveOutRepeats(t *testing.T, db ledger.Ledger) {
	ctx := t.Context()
	put := func(stream string, evs ...Event) {
		t.Helper()
		if _, err := Append(ctx, db, stream, evs, nil); err != nil {
			t.Fatal(err)
		}
	}
	st := &record.Store{Ledger: db, Now: func() time.Time { return t0 }}
	if err := db.Commit(ctx, ledger.Write{Item: record.ClusterItem(&fleet.Cluster{ID: "clu_a", Name: "alpha"})}); err != nil {
		t.Fatal(err)
	}
	evs := mixed(8)
	put(PlaneStream, evs[0], evs[1])
	put("clu_a", evs[2], evs[3], evs[2]) // in one run
	put("clu_a", evs[4])
	put("clu_a", evs[3], evs[5], evs[1]) // of another run, and of another stream
	put("clu_a", evs[6], evs[7])
	r := &Reader{Ledger: db, Streams: list("clu_a")}
	before, _ := drain(t, r, Query{Cluster: "clu_a"})
	found, err := LeaveOutRepeats(ctx, st)
	if err != nil {
		t.Fatal(err)
	}
	want := []Repeat{
		{"clu_a", 3, evs[2].ID, "clu_a", 1}, {"clu_a", 5, evs[3].ID, "clu_a", 2}, {"clu_a", 7, evs[1].ID, PlaneStream, 2},
	}
	if d := cmp.Diff(want, found); d != "" {
		t.Errorf("found (-want +got):\n%s", d)
	}
	after, _ := drain(t, r, Query{Cluster: "clu_a"})
	if len(after) != len(before) {
		t.Fatalf("%d events of %d", len(after), len(before))
	}
	ids := map[string]bool{}
	for i, e := range after {
		if ids[e.ID] {
			t.Errorf("event %s is there twice still", e.ID)
		}
		ids[e.ID] = true
		if e.Type != TypeRepeated {
			if fmt.Sprint(e) != fmt.Sprint(before[i]) {
				t.Errorf("event %d is %+v, was %+v", i, e, before[i])
			}
			continue
		}
		var d RepeatedDetail
		if err := json.Unmarshal(e.Detail, &d); err != nil {
			t.Fatal(err)
		}
		is := Repeat{e.Stream, e.Sequence, d.Event, d.Stream, d.Sequence}
		if d.Type != before[i].Type || is != want[0] || e.Sequence != before[i].Sequence || !e.ReceivedAt.Equal(before[i].ReceivedAt) || e.Severity != Warning {
			t.Errorf("in the place of %+v: %+v, %s", before[i], e, e.Detail)
		}
		want = want[1:]
	}
	if len(want) > 0 {
		t.Errorf("not told: %v", want)
	}
	if again, err := LeaveOutRepeats(ctx, st); err != nil || len(again) > 0 {
		t.Errorf("again: %v, %v", again, err)
	}
}
