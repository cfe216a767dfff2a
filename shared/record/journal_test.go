package record_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
)

// hashes stand for the entries: each covers an entry and those before it.
func hashes(entries []operation.Entry) []string {
	out := make([]string, len(entries))
	for i, e := range entries {
		out[i] = e.Hash
	}
	return out
}

// TestJournalWhereverItLies: however many and large the entries of each commit
// are, so that they ride in the state or move on, every reader gets them in order,
// once each: by pages, from any entry on, and as of an earlier look.
func TestJournalWhereverItLies(t *testing.T) {
	t.Parallel()
	l := openLedger(t)
	setUp := newStore(l)
	rapid.Check(t, func(rt *rapid.T) {
		opID := admit(t, setUp)
		st := newStore(l)
		op, err := st.Load(t.Context(), opID)
		if err != nil {
			rt.Fatal(err)
		}
		all, err := st.Journal(t.Context(), opID, 1, 0)
		if err != nil {
			rt.Fatal(err)
		}
		var looks []record.Glance
		size := rapid.SampledFrom([]int{0, 0, 0, 900, 3000, 40_000})
		for range rapid.IntRange(1, 6).Draw(rt, "commits") {
			entries := make([]operation.Entry, rapid.SampledFrom([]int{0, 1, 2, 3, 5, 16}).Draw(rt, "entries"))
			for i := range entries {
				entries[i] = operation.Entry{At: op.State.CreatedAt, Kind: operation.EntryNote, By: operation.Plane,
					Detail: strings.Repeat(`"`, size.Draw(rt, "bytes"))}
			}
			if op.State.Journal, err = operation.Seal(op.State.Journal, entries); err != nil {
				rt.Fatal(err)
			}
			if err := l.Commit(t.Context(), st.StateWrites(&op.State, op.Version, entries)...); err != nil {
				rt.Fatal(err)
			}
			op.Version++
			all = append(all, entries...)
			g, _, err := st.Glances(t.Context(), []string{opID})
			if err != nil {
				rt.Fatal(err)
			}
			looks = append(looks, g[opID])
		}
		limit := rapid.IntRange(1, 12).Draw(rt, "limit")
		var paged []operation.Entry
		for {
			page, err := st.Journal(t.Context(), opID, int64(len(paged))+1, limit)
			if err != nil || len(page) > limit {
				rt.Fatalf("%d entries, %v", len(page), err)
			}
			if len(page) == 0 {
				break
			}
			paged = append(paged, page...)
		}
		if d := cmp.Diff(hashes(all), hashes(paged)); d != "" {
			rt.Fatalf("pages of %d (-written +read):\n%s", limit, d)
		}
		for _, from := range rapid.SliceOfN(rapid.IntRange(0, len(all)-1), 4, 4).Draw(rt, "from") {
			rest, err := st.Journal(t.Context(), opID, int64(from)+1, 0)
			if d := cmp.Diff(hashes(all[from:]), hashes(rest)); err != nil || d != "" {
				rt.Fatalf("from %d, %v (-written +read):\n%s", from+1, err, d)
			}
			for _, g := range looks {
				if int64(from) >= g.Journal.Seq {
					continue
				}
				seen, err := st.JournalOf(t.Context(), &g, int64(from)+1)
				if d := cmp.Diff(hashes(all[from:g.Journal.Seq]), hashes(seen)); err != nil || d != "" {
					rt.Fatalf("from %d as of entry %d, %v (-written +read):\n%s", from+1, g.Journal.Seq, err, d)
				}
			}
		}
	})
}
