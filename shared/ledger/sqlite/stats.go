package sqlite

import (
	"errors"
	"os"
	"sync/atomic"
	"time"
)

// Stats are counts since Open and sizes now.
type Stats struct {
	Commits   int64 // commits answered without an error
	Batches   int64 // groups committed, each with one sync
	Conflicts int64 // commits answered with a conflict
	Failures  int64 // groups that failed
	Writes    int64 // rows put or deleted
	Reads     int64 // reads of the file; what memory answers is none
	Expired   int64 // expired items deleted
	Trimmed   int64 // change records dropped
	Queued    int   // commits waiting now
	FileBytes int64 // database file
	WALBytes  int64 // write-ahead log
}

type counters struct {
	commits, batches, conflicts, failures, writes, reads, expired, trimmed atomic.Int64
}

// Outcome is how a group of commits went that had something to write.
type Outcome struct {
	At  time.Time // by the machine's clock
	Err error     // nil: it is in the file
}

// LastWrite is how the last group went; the zero value when there was none yet.
func (db *DB) LastWrite() Outcome {
	if o := db.last.Load(); o != nil {
		return *o
	}
	return Outcome{}
}

// Why is what the library says of a failed commit, such as "database or disk is
// full"; "" of other errors.
func Why(err error) string {
	var se *sqlError
	if errors.As(err, &se) {
		return se.Text
	}
	return ""
}

// Stats returns the counts and sizes for metrics.
func (db *DB) Stats() Stats {
	c := &db.counts
	return Stats{
		Commits: c.commits.Load(), Batches: c.batches.Load(), Conflicts: c.conflicts.Load(), Failures: c.failures.Load(),
		Writes: c.writes.Load(), Reads: c.reads.Load(), Expired: c.expired.Load(), Trimmed: c.trimmed.Load(), Queued: db.queue.len(),
		FileBytes: fileSize(db.opts.Path), WALBytes: fileSize(db.opts.Path + "-wal"),
	}
}

func fileSize(path string) int64 {
	st, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return st.Size()
}
