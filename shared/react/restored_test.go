package react

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// TestJudgesBehindARestore: rules go on behind a restore with what is new, and may look
// at the restore itself; what was judged before it is not judged again.
func TestJudgesBehindARestore(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.quiet()
	b.rule("name: each\non: [x.bad]\ngroup_by: {g: event.subject.name}\nresolve_after: 1h\n")
	b.rule("name: back\non: [stream.restored]\ngroup_by: {s: event.stream}\nresolve_after: 1h\n")
	b.put(b.fact("x.bad", "a", nil))
	b.follow()
	b.put(b.fact("x.bad", "b", nil)) // in the backup, and not judged
	b.advance(time.Minute)
	if err := b.db.Commit(t.Context(), ledger.Write{Item: record.ClusterItem(&fleet.Cluster{ID: stream, Name: "alpha"})}); err != nil {
		t.Fatal(err)
	}
	if err := event.TellRestored(t.Context(), b.store); err != nil {
		t.Fatal(err)
	}
	b.reactor = b.another()
	for range 2 {
		b.follow()
	}
	b.advance(time.Minute)
	b.put(b.fact("x.bad", "a", nil), b.fact("x.bad", "c", nil))
	for range 2 {
		b.follow()
	}
	want := []string{
		"0s firing eachmap[g:a] condition_holds", "0s firing eachmap[g:b] condition_holds",
		"1m0s firing backmap[s:" + stream + "] condition_holds", "2m0s firing eachmap[g:c] condition_holds",
	}
	if d := cmp.Diff(want, b.told()); d != "" {
		t.Errorf("told (-want +got):\n%s", d)
	}
	if m := b.reactor.Metrics.Read(); m.Skipped != 0 {
		t.Errorf("counted %+v", m)
	}
}

// TestRestorePassesTheReactor: of a restore that passed retention before it was judged,
// what was there is counted, and not the sequences that it stands for.
func TestRestorePassesTheReactor(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.quiet()
	b.tell("x.bad", "a")
	b.follow()
	b.tell("x.bad", "b")
	b.advance(time.Minute)
	if err := b.db.Commit(t.Context(), ledger.Write{Item: record.ClusterItem(&fleet.Cluster{ID: stream, Name: "alpha"})}); err != nil {
		t.Fatal(err)
	}
	if err := event.TellRestored(t.Context(), b.store); err != nil {
		t.Fatal(err)
	}
	b.tell("x.bad", "c")
	b.advance(time.Hour)
	if _, _, err := event.Trim(t.Context(), b.db, stream, b.clock()); err != nil {
		t.Fatal(err)
	}
	b.tell("x.bad", "d")
	b.follow()
	if m := b.reactor.Metrics.Read(); m.Lost != 3 || m.Judged != 2 {
		t.Errorf("%d are counted as lost and %d as judged, want 3 and 2", m.Lost, m.Judged)
	}
}
