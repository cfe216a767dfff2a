package record

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
)

// The journal's newest entries ride in the state's item, where they cost no
// write of their own; when they get too many they are put into an item of their
// own, a run, in the commit that brings the next ones. Entries only ever move
// from the tail to a run: whoever reads the state first and the runs then has
// them all.
const (
	// tailEntries and tailBytes bound the entries in the state's item. So many are
	// what most operations have at their end; compressed, the item stays within
	// DynamoDB's first KB for most of their way.
	tailEntries = 14
	tailBytes   = 12 << 10
	// runBytes bounds the entries of a run.
	runBytes = 200 << 10
)

// journalRun is the data of a journal item.
type journalRun struct {
	Entries []operation.Entry `json:"entries"`
}

// entryBytes is about how many bytes an entry takes: JSON doubles what it has to
// escape, and control characters were refused before.
func entryBytes(e *operation.Entry) int {
	return 512 + 2*(len(e.Reason)+len(e.Detail)) + len(e.Before) + len(e.After)
}

// fit is how many of the entries fit into so many bytes, but one at least.
func fit(entries []operation.Entry, bytes int) int {
	n, size := 0, 0
	for n < len(entries) && (n == 0 || size+entryBytes(&entries[n]) <= bytes) {
		size += entryBytes(&entries[n])
		n++
	}
	return n
}

// tailFits tells whether entries may ride in the state's item.
func tailFits(entries []operation.Entry) bool {
	size := 0
	for i := range entries {
		size += entryBytes(&entries[i])
	}
	return len(entries) <= tailEntries && size <= tailBytes
}

// StateWrites are the writes that put an operation's next state and its new
// journal entries: the state conditional on the version read. They become a part
// of the state, whose older ones may move to runs.
func (st *Store) StateWrites(s *operation.State, version int64, entries []operation.Entry) []ledger.Write {
	var move []operation.Entry
	switch all := append(s.Tail[:len(s.Tail):len(s.Tail)], entries...); {
	case len(entries) == 0:
	case tailFits(all):
		s.Tail = all
	case tailFits(entries):
		s.Tail, move = entries, s.Tail
	default:
		s.Tail, move = nil, all
	}
	item := st.StateItem(s)
	if len(item.Data) > ledger.MaxItemBytes && len(s.Tail) > 0 { // there is no room for them
		s.Tail, move = nil, append(move[:len(move):len(move)], s.Tail...)
		item = st.StateItem(s)
	}
	ws := []ledger.Write{{Item: item, Expect: version, Feed: len(entries) > 0}}
	for len(move) > 0 {
		n := fit(move, runBytes)
		ws = append(ws, ledger.Write{Item: ledger.Item{Key: journalKey(s.ID, move[0].Seq), Data: Encode(journalRun{move[:n]})}})
		move = move[n:]
	}
	return ws
}

// Journal reads entries from seq on, at most limit (0: all).
func (st *Store) Journal(ctx context.Context, id string, from int64, limit int) ([]operation.Entry, error) {
	op, err := st.Load(ctx, id) // before the runs: see above
	if errors.Is(err, ledger.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read journal of %s: %w", id, err)
	}
	return st.journal(ctx, id, op.State.Tail, from, limit)
}

// journal reads entries from seq on, of which the tail is known.
func (st *Store) journal(ctx context.Context, id string, tail []operation.Entry, from int64, limit int) ([]operation.Entry, error) {
	var out []operation.Entry
	if len(tail) == 0 || from < tail[0].Seq {
		before := int64(0)
		if len(tail) > 0 {
			before = tail[0].Seq
		}
		var err error
		if out, err = st.runs(ctx, id, from, before, limit); err != nil {
			return nil, err
		}
	}
	out = append(out, since(tail, from)...)
	if limit > 0 && len(out) > limit {
		out = out[:limit]
	}
	return out, nil
}

// runs reads entries from the runs, from seq on and before another (0: all), at
// least limit of them if there are so many (0: all).
func (st *Store) runs(ctx context.Context, id string, from, before int64, limit int) ([]operation.Entry, error) {
	q := ledger.Query{PK: OperationPK(id), From: skJournal, To: skJournal + "~", Limit: 200}
	if before > 0 {
		q.To = seqKey(skJournal, before)
	}
	if from > 1 && limit == 0 {
		return st.lastRuns(ctx, q, from)
	}
	var out []operation.Entry
	if from > 1 { // the run that holds from may begin before it
		earlier, err := st.Ledger.Query(ctx, ledger.Query{PK: q.PK, From: q.From, To: seqKey(skJournal, from+1), Reverse: true, Limit: 1})
		if err != nil {
			return nil, fmt.Errorf("read journal of %s: %w", id, err)
		}
		if len(earlier.Items) > 0 {
			q.From = earlier.Items[0].SK
		}
	}
	for {
		p, err := st.Ledger.Query(ctx, q)
		if err != nil {
			return nil, fmt.Errorf("read journal of %s: %w", id, err)
		}
		for _, it := range p.Items {
			run, err := Decode[journalRun](it)
			if err != nil {
				return nil, err
			}
			out = append(out, since(run.Entries, from)...)
			if limit > 0 && len(out) >= limit {
				return out, nil
			}
		}
		if p.Next == "" {
			return out, nil
		}
		q.After = p.Next
	}
}

// lastRuns reads the query's runs from the last one back, to the one that holds
// from: whoever is a little behind reads one item.
func (st *Store) lastRuns(ctx context.Context, q ledger.Query, from int64) ([]operation.Entry, error) {
	q.Reverse, q.Limit = true, 4
	var back [][]operation.Entry
	for {
		p, err := st.Ledger.Query(ctx, q)
		if err != nil {
			return nil, fmt.Errorf("read journal in %s: %w", q.PK, err)
		}
		for _, it := range p.Items {
			run, err := Decode[journalRun](it)
			if err != nil {
				return nil, err
			}
			back = append(back, since(run.Entries, from))
			if len(run.Entries) > 0 && run.Entries[0].Seq <= from {
				p.Next = ""
				break
			}
		}
		if p.Next == "" {
			slices.Reverse(back)
			return slices.Concat(back...), nil
		}
		q.After = p.Next
	}
}

// since are the entries from seq on.
func since(entries []operation.Entry, from int64) []operation.Entry {
	for len(entries) > 0 && entries[0].Seq < from {
		entries = entries[1:]
	}
	return entries
}

// JournalOf reads the entries of an operation that was glanced at from seq on,
// up to the head that it then had.
func (st *Store) JournalOf(ctx context.Context, g *Glance, from int64) ([]operation.Entry, error) {
	tail, err := g.tail()
	if err != nil {
		return nil, err
	}
	entries, err := st.journal(ctx, g.ID, tail, from, 0)
	for len(entries) > 0 && entries[len(entries)-1].Seq > g.Journal.Seq { // written since
		entries = entries[:len(entries)-1]
	}
	return entries, err
}
