// Package ledger is the seam behind which the plane keeps its state: items
// under (partition, sort) keys with versions, atomic conditional commits, and a
// change feed.
//
// Two engines stand behind it: SQLite on one machine and DynamoDB on AWS. The
// seam promises only what both can keep, and package ledgertest holds every
// engine to it. Domain packages see this package alone, never an engine.
package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Limits of the seam. They are the smaller of what the engines allow.
const (
	// MaxWrites is how many writes one commit may carry (DynamoDB
	// TransactWriteItems: 100 actions).
	MaxWrites = 100
	// MaxItemBytes bounds an item's data (DynamoDB: 400 KB an item, of which
	// keys and index attributes take their part).
	MaxItemBytes = 350 << 10
	// MaxCommitBytes bounds the data of one commit (DynamoDB: 4 MB).
	MaxCommitBytes = 3 << 20
	// MaxKeyBytes bounds each half of a key (DynamoDB: 2,048 and 1,024 bytes).
	MaxKeyBytes = 1024
	// MaxIndexBytes bounds, for each index that an item is in, its sort key
	// there and the item's own PK and SK together, of which the bytes 0x00 and
	// 0x01 count twice but in the SK: an engine that orders an index by all
	// three keeps them in one key (DynamoDB: 1,024 bytes for an index's sort
	// key, less two separators; AWS: "Quotas in Amazon DynamoDB").
	MaxIndexBytes = 1022
	// MaxPage is the largest page a query returns.
	MaxPage = 1000
)

// Key names one item: its partition and its place in it.
type Key struct {
	PK string
	SK string
}

func (k Key) String() string { return k.PK + "/" + k.SK }

// Index names a secondary index. An item is in an index when its key there is
// set (sparse). Indexes are hints on engines that update them late: a reader
// whose decision hangs on an item reads the item itself.
type Index string

// The secondary indexes. Which item kinds use which is written beside the keys
// (package record).
const (
	Primary Index = ""       // the items themselves, by (PK, SK)
	List    Index = "list"   // everything of a kind, by time or name
	Scope   Index = "scope"  // a kind within a cluster
	Lookup  Index = "lookup" // by a natural name, actor or hash
	Live    Index = "live"   // what has not ended yet
)

// Indexes lists the secondary indexes that queries may name.
var Indexes = []Index{List, Scope, Lookup, Live}

// Item is one record. Data is opaque to the ledger.
type Item struct {
	Key
	// Version counts the writes of the item since it was created, from 1. It
	// starts again at 1 after a delete: what others keep a version of is
	// emptied, not deleted.
	Version int64
	Data    []byte
	// Due puts the item in the due index; zero leaves it out. Millisecond
	// resolution.
	Due time.Time
	// Expires is when the item may vanish by itself; zero keeps it. Whole
	// seconds. Engines never return an expired item, whenever they get round to
	// deleting it.
	Expires time.Time
	// Index holds the item's place in each secondary index that it is in.
	Index map[Index]Key
}

// WriteKind says what a Write does.
type WriteKind int

// The kinds of write.
const (
	Put    WriteKind = iota // create or replace
	Delete                  // remove
	Check                   // only require the version
)

// AnyVersion as a Write's Expect leaves the write unconditional. It is for
// items that one writer owns or whose last write may win.
const AnyVersion int64 = -1

// Write is one part of a commit.
type Write struct {
	Kind WriteKind
	// Item is what is put; for Delete and Check only its Key counts. Its
	// Version is ignored: the engine sets it. The engine may keep Data and Index
	// as they are: the caller does not write to them any more.
	Item Item
	// Expect is the version that the item must have: 0 means that it must not
	// exist, AnyVersion that it does not matter.
	Expect int64
	// Feed asks for the write to appear in the change feed. An engine may feed
	// other writes too.
	Feed bool
	// WasDue is the Due of the item that this put replaces, where the writer
	// knows it. Engines pass it over: it tells whoever wakes the sweep that a
	// wake-up for the item is under way (package sweep, Waker).
	WasDue time.Time
}

// Errors of the seam; match with errors.Is.
var (
	ErrNotFound        = errors.New("item not found")
	ErrConflict        = errors.New("ledger conflict")
	ErrPositionExpired = errors.New("feed position expired")
	// ErrUnavailable: the engine cannot take the call now (throttled, disk full,
	// closed); nothing was written. The caller may try again later.
	ErrUnavailable = errors.New("ledger unavailable")
	// ErrUnknown: the engine lost the answer to a commit and could not find out
	// whether it was applied, as when the network stays away. It was applied
	// whole or not at all. The caller reads before it tries again.
	ErrUnknown = errors.New("outcome of the ledger commit is unknown")
	// ErrInvalid: the call breaks a limit or rule of the seam.
	ErrInvalid = errors.New("invalid ledger call")
)

// ConflictError says which writes of a commit found another version than they
// expected. Nothing was written. errors.Is(err, ErrConflict) holds.
type ConflictError struct{ Keys []Key }

func (e *ConflictError) Error() string {
	names := make([]string, len(e.Keys))
	for i, k := range e.Keys {
		names[i] = k.String()
	}
	return fmt.Sprintf("ledger conflict on %s", strings.Join(names, ", "))
}

// Is makes errors.Is(err, ErrConflict) true.
func (e *ConflictError) Is(target error) bool { return target == ErrConflict }

// Query asks for a run of items of one partition, of the table itself or of an
// index. Order is by sort key, then (in an index) by the item's own key.
type Query struct {
	Index Index
	PK    string
	// From is the first sort key included, To the first one excluded; empty
	// leaves that side open.
	From, To string
	Reverse  bool
	// Limit is the most items to return: 1 to MaxPage, 0 means MaxPage.
	Limit int
	// After continues behind an earlier page: that page's Next, with the same
	// Index, PK and Reverse.
	After string
}

// Page is what a query found. Next is empty at the end. A page may hold fewer
// items than the limit, even none, and still have a Next.
type Page struct {
	Items []Item
	Next  string
}

// Change is one record of the feed: a hint that an item was written. The item
// itself is the truth, and may be newer than the hint.
type Change struct {
	Key
	// Version is the one written; of a delete the one that went, or 0 from an
	// engine that does not know it.
	Version int64
	Deleted bool
}

// Reader reads items. All reads see every commit that was acknowledged before
// they began, except that queries on an index may lag on engines that index
// late.
type Reader interface {
	// Get returns one item, or ErrNotFound.
	Get(ctx context.Context, k Key) (Item, error)
	// GetMany returns those of the items that exist, by key, at most MaxWrites.
	GetMany(ctx context.Context, ks []Key) (map[Key]Item, error)
	Query(ctx context.Context, q Query) (Page, error)
	// Due returns items whose Due is not after until, earliest first. The limit
	// is as in Query.
	Due(ctx context.Context, until time.Time, limit int) ([]Item, error)
}

// Ledger is an engine.
type Ledger interface {
	Reader
	// Commit applies all writes or none. It returns a *ConflictError when a
	// version was not the expected one, ErrInvalid for a call that no engine
	// takes (over a limit, one key twice), ErrUnavailable when nothing was written
	// and it may be tried again, ErrUnknown when it may have been applied. When it
	// returns nil the writes are durable.
	Commit(ctx context.Context, writes ...Write) error
}

// Feed reads the change feed: at least once, ordered per item. Positions are
// opaque and expire.
type Feed interface {
	// Changes returns records behind the position, and the position behind the
	// last of them; it waits up to wait for a first one. An empty position is
	// the oldest that is left. ErrPositionExpired: some records were lost to
	// this reader, who starts again from the oldest and mends by reading items.
	Changes(ctx context.Context, after string, limit int, wait time.Duration) ([]Change, string, error)
}

// Foreseer is what an engine can add whose due index is late or dear to read.
type Foreseer interface {
	// NextDue returns the earliest due time behind after and not behind until
	// that the due index knows, without a look at the items, or the zero time.
	// It is a hint: the item may have moved on since.
	NextDue(ctx context.Context, after, until time.Time) (time.Time, error)
}

// DuePager is what an engine adds whose due items can be read on behind those that
// stay due.
type DuePager interface {
	// DueFrom is as Due, of items whose Due is not before from, in whole
	// milliseconds.
	DueFrom(ctx context.Context, from, until time.Time, limit int) ([]Item, error)
}

// Watcher is what an engine in the same process can add: a signal when a
// partition was written. Readers without one poll.
type Watcher interface {
	// Watch returns a channel that gets a value after each commit that wrote to
	// the partition (signals may fold), and a function that ends the watch.
	Watch(pk string) (<-chan struct{}, func())
}

// Validate checks a commit against the limits and rules of the seam; engines
// call it first. Its errors match ErrInvalid.
func Validate(writes []Write) error {
	if len(writes) == 0 {
		return fmt.Errorf("%w: empty commit", ErrInvalid)
	}
	if len(writes) > MaxWrites {
		return fmt.Errorf("%w: %d writes in one commit, the limit is %d", ErrInvalid, len(writes), MaxWrites)
	}
	total := 0
	seen := make(map[Key]bool, len(writes))
	for _, w := range writes {
		k := w.Item.Key
		if k.PK == "" || k.SK == "" || len(k.PK) > MaxKeyBytes || len(k.SK) > MaxKeyBytes {
			return fmt.Errorf("%w: key %q: each half takes 1 to %d bytes", ErrInvalid, k, MaxKeyBytes)
		}
		if seen[k] {
			return fmt.Errorf("%w: key %s twice in one commit", ErrInvalid, k)
		}
		seen[k] = true
		if w.Expect < AnyVersion {
			return fmt.Errorf("%w: key %s: expected version %d", ErrInvalid, k, w.Expect)
		}
		if !utf8.ValidString(k.PK) || !utf8.ValidString(k.SK) {
			return fmt.Errorf("%w: key %q is not UTF-8", ErrInvalid, k)
		}
		if w.Kind < Put || w.Kind > Check {
			return fmt.Errorf("%w: key %s: write kind %d", ErrInvalid, k, w.Kind)
		}
		if w.Kind == Put {
			if err := validateIndex(w.Item); err != nil {
				return err
			}
		}
		if n := len(w.Item.Data); n > MaxItemBytes {
			return fmt.Errorf("%w: item %s has %d bytes, the limit is %d", ErrInvalid, k, n, MaxItemBytes)
		}
		total += len(w.Item.Data)
	}
	if total > MaxCommitBytes {
		return fmt.Errorf("%w: commit of %d bytes, the limit is %d", ErrInvalid, total, MaxCommitBytes)
	}
	return nil
}

// validateIndex checks an item's places in the indexes.
func validateIndex(it Item) error {
	for x, k := range it.Index {
		if !slices.Contains(Indexes, x) {
			return fmt.Errorf("%w: item %s: unknown index %q", ErrInvalid, it.Key, x)
		}
		if k.PK == "" || k.SK == "" || len(k.PK) > MaxKeyBytes || len(k.SK) > MaxKeyBytes ||
			!utf8.ValidString(k.PK) || !utf8.ValidString(k.SK) {
			return fmt.Errorf("%w: item %s: index %s: key %q: each half takes 1 to %d bytes of UTF-8", ErrInvalid, it.Key, x, k, MaxKeyBytes)
		}
		if n := indexBytes(k.SK) + indexBytes(it.PK) + len(it.SK); n > MaxIndexBytes {
			return fmt.Errorf("%w: item %s: index %s: sort key %q and the item's key take %d bytes, the limit is %d", ErrInvalid, it.Key, x, k.SK, n, MaxIndexBytes)
		}
	}
	return nil
}

// indexBytes is the length of a part of an index's sort key as MaxIndexBytes
// counts it.
func indexBytes(s string) int {
	return len(s) + strings.Count(s, "\x00") + strings.Count(s, "\x01")
}

// Validate checks a query against the limits and rules of the seam; engines
// call it first. Its errors match ErrInvalid.
func (q Query) Validate() error {
	if q.Index != Primary && !slices.Contains(Indexes, q.Index) {
		return fmt.Errorf("%w: unknown index %q", ErrInvalid, q.Index)
	}
	if q.PK == "" || len(q.PK) > MaxKeyBytes {
		return fmt.Errorf("%w: query of partition %q: it takes 1 to %d bytes", ErrInvalid, q.PK, MaxKeyBytes)
	}
	if q.Limit < 0 || q.Limit > MaxPage {
		return fmt.Errorf("%w: query limit %d: it is 0 to %d", ErrInvalid, q.Limit, MaxPage)
	}
	return nil
}
