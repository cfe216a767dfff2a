package export

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// Errors of Import beside those of a broken stream; match with errors.Is.
var (
	// ErrOccupied: the target holds what this import did not put there.
	ErrOccupied = errors.New("the target is not empty")
	// ErrDiffers: an item was read back other than it was written.
	ErrDiffers = errors.New("an item of the target is another than in the export")
)

// parallel is how many commits are under way at once unless the target says
// otherwise.
const parallel = 8

// Target is where a stream goes.
type Target struct {
	Ledger ledger.Ledger
	// Occupied returns the key of some item that is there already, or false. The
	// import's own record (record.ImportKey) is not asked about.
	Occupied func(context.Context) (ledger.Key, bool, error)
	// Queues makes the clusters' queues; nil makes none.
	Queues interface {
		Ensure(ctx context.Context, queue string) error
	}
	Now      func() time.Time
	Parallel int // commits at once; 0: 8
	// Progress is told how far a part of the work is, now and then, from several
	// goroutines; nil: nobody is.
	Progress func(part string, done, of int64)
}

// Result is what an import did.
type Result struct {
	Header Header
	SHA256 string // of the stream
	// Already: an earlier run had done it all, and this one changed nothing.
	Already bool
	Put     int64 // items written by this run
	Found   int64 // items that an earlier run had written
	Expired int64 // items whose time ran out since the export
	Queues  []string
}

// progress is the data of the import's own record.
type progress struct {
	SHA256    string     `json:"sha256"`
	Source    Source     `json:"source"`
	MadeAt    time.Time  `json:"made_at"`
	Items     int64      `json:"items"`
	StartedAt time.Time  `json:"started_at"`
	OpenedAt  *time.Time `json:"opened_at,omitempty"` // all at rest was put and read back
	DoneAt    *time.Time `json:"done_at,omitempty"`
}

// importer is one run.
type importer struct {
	t      Target
	s      *stream
	state  progress
	ver    int64 // of the record
	result Result
}

// Import puts a stream into a target that is empty or holds an unfinished import
// of the same stream, which it goes on with. The stream is checked to its end
// before anything is written. What is at rest is put first and read back, item by
// item; then come queues, and what lets the plane, agents and people act. A run
// after that changes nothing.
//
// Its errors match ErrBroken, ErrFormat, ErrOccupied, ErrDiffers or those of the
// engine. After any of them the same call may be made again.
func Import(ctx context.Context, src io.ReadSeeker, t Target) (Result, error) {
	s, err := open(src)
	if err != nil {
		return Result{}, fmt.Errorf("import: %w", err)
	}
	i := &importer{t: t, s: s, result: Result{Header: s.header, SHA256: s.sha256}}
	if i.t.Parallel <= 0 {
		i.t.Parallel = parallel
	}
	if err := i.run(ctx); err != nil {
		return i.result, fmt.Errorf("import: %w", err)
	}
	return i.result, nil
}

func (i *importer) run(ctx context.Context) error {
	if err := i.begin(ctx); err != nil {
		return err
	}
	if i.state.DoneAt != nil {
		i.result.Already = true
		return nil
	}
	if i.state.OpenedAt == nil {
		if err := i.batches(ctx, "written", atRest, i.load); err != nil {
			return err
		}
		if err := i.batches(ctx, "read back", atRest, i.compare); err != nil {
			return err
		}
	}
	if err := i.queues(ctx); err != nil {
		return err
	}
	if i.state.OpenedAt == nil {
		now := i.t.Now().UTC()
		i.state.OpenedAt = &now
		if err := i.keep(ctx); err != nil {
			return err
		}
	}
	for at := atRest + 1; at < stages; at++ {
		feed := at == live || at == plans // relay rings for them
		err := i.batches(ctx, "opened", at, func(ctx context.Context, items []ledger.Item) (int64, int64, int64, error) {
			return i.release(ctx, items, feed)
		})
		if err != nil {
			return err
		}
	}
	now := i.t.Now().UTC()
	i.state.DoneAt = &now
	return i.keep(ctx)
}

// begin finds the record of an earlier run of this import, or makes one in an
// empty target. What it finds there afterwards is the import's own work.
func (i *importer) begin(ctx context.Context) error {
	for range 3 { // at most one other run makes the record meanwhile
		it, err := i.t.Ledger.Get(ctx, record.ImportKey)
		if err == nil {
			if i.state, err = record.Decode[progress](it); err != nil {
				return err
			}
			if i.state.SHA256 != i.s.sha256 {
				return fmt.Errorf("%w: an import of another export (%s, of %s, sum %.12s) was begun there", ErrOccupied,
					i.state.Source.Name, i.state.MadeAt.Format(time.RFC3339), i.state.SHA256)
			}
			i.ver = it.Version
			return nil
		}
		if !errors.Is(err, ledger.ErrNotFound) {
			return fmt.Errorf("read the import's record: %w", err)
		}
		k, occupied, err := i.t.Occupied(ctx)
		if err != nil {
			return fmt.Errorf("look for items of others: %w", err)
		}
		if occupied && k != record.ImportKey {
			return fmt.Errorf("%w: it holds %s, for one", ErrOccupied, k)
		}
		i.state = progress{SHA256: i.s.sha256, Source: i.s.header.Source, MadeAt: i.s.header.MadeAt, Items: i.s.header.Items, StartedAt: i.t.Now().UTC()}
		if err := i.keep(ctx); !errors.Is(err, ledger.ErrConflict) {
			return err
		}
	}
	return fmt.Errorf("begin: %w", ledger.ErrConflict)
}

// keep writes the import's record.
func (i *importer) keep(ctx context.Context) error {
	w := ledger.Write{Item: ledger.Item{Key: record.ImportKey, Data: record.Encode(i.state)}, Expect: i.ver}
	if err := patiently(ctx, func() error { return i.t.Ledger.Commit(ctx, w) }); err != nil {
		return fmt.Errorf("keep the import's record: %w", err)
	}
	i.ver++
	return nil
}

// queues makes the queue of each cluster.
func (i *importer) queues(ctx context.Context) error {
	if i.t.Queues == nil {
		return nil
	}
	var names []string
	err := i.s.each(func(_ *reader, it *ledger.Item, _ stage) error {
		if record.Kind(it.Key) != record.KindCluster {
			return nil
		}
		c, err := record.Decode[fleet.Cluster](*it)
		names = append(names, c.Queue)
		return err
	})
	if err != nil {
		return err
	}
	slices.Sort(names)
	for _, name := range names {
		if err := i.t.Queues.Ensure(ctx, name); err != nil {
			return fmt.Errorf("make queue %s: %w", name, err)
		}
	}
	i.result.Queues = names
	return nil
}
