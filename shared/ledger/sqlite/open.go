// Package sqlite is the ledger's engine on one machine: an SQLite file in WAL
// mode with full syncing, written by one goroutine that commits in groups and
// read through a pool of connections.
//
// A commit goes: Commit (queue.go) -> writer (write.go) -> plan and apply
// (apply.go) -> one fsync for the group -> wake feed readers and watchers ->
// answer.
package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	driver "modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/opsplane/opsplane/shared/ledger"
)

// Errors of Open and Backup; match with errors.Is.
var (
	// ErrNewerVersion: a newer build wrote the file. It was left as it is.
	ErrNewerVersion = errors.New("ledger file is of a newer version")
	// ErrNotLedger: the file is no SQLite database, or another program's. It
	// was left as it is.
	ErrNotLedger = errors.New("file is not a ledger")
	// ErrLocked: another process has the ledger open; errors.As with a
	// *LockedError gives its process id.
	ErrLocked = errors.New("ledger is in use")
	// ErrReadOnly: the file or its folder cannot be written, or the ledger was
	// opened with ReadOnly.
	ErrReadOnly = errors.New("ledger is read-only")
)

const (
	busyTimeoutMillis = 5000
	defaultFeedAge    = 24 * time.Hour
	defaultJanitor    = time.Minute
	readers           = 4
	// Bigger than the library's 1,000 pages: pages that many commits touch are
	// then written back once instead of many times.
	checkpointPages = 4000
	writerCacheKiB  = 16 << 10
	readerCacheKiB  = 8 << 10
)

// Options say which ledger to open and how. Only Path is required.
type Options struct {
	// Path is the database file. It and its folder are made when missing, with
	// access for this user only.
	Path string
	// ReadOnly opens an existing file beside a process that may be writing it:
	// no lock is taken, commits fail, Changes polls and Watch never signals.
	ReadOnly bool
	// Now is the clock of expiry and of the feed's age; time.Now when nil.
	Now func() time.Time
	// FeedAge is how long change records are kept, 24 h when 0.
	FeedAge time.Duration
	// JanitorEvery is how often expired items and old change records are
	// deleted, 1 min when 0.
	JanitorEvery time.Duration
	// Logger gets what no caller can be told; slog.Default when nil.
	Logger *slog.Logger

	maxPages int64 // bounds the file's size, for tests of a full disk
}

// DB is an open ledger: a ledger.Ledger, ledger.Feed and ledger.Watcher, safe
// for concurrent use.
type DB struct {
	opts   Options
	now    func() time.Time
	log    *slog.Logger
	lock   *fileLock
	queue  *queue
	writer *conn
	pool   chan *conn
	feed   feedState
	memory *memory // nil: another process may write
	watch  watchers
	counts counters
	last   atomic.Pointer[Outcome]

	closing chan struct{} // closed when Close begins
	once    sync.Once
	loops   sync.WaitGroup
	opened  int          // connections that belong to pool
	backups sync.RWMutex // held for reading by each backup
}

var (
	_ ledger.Ledger  = (*DB)(nil)
	_ ledger.Feed    = (*DB)(nil)
	_ ledger.Watcher = (*DB)(nil)
)

// syncFast makes commits use fdatasync: as durable for a write-ahead log, and
// about half the wait on journaling file systems.
var syncFast = sync.OnceFunc(func() { _, _ = driver.Fdatasync(true) }) // not everywhere: then fsync stays

// Open opens or makes the ledger. Errors match ErrNewerVersion, ErrNotLedger,
// ErrLocked, ErrReadOnly or fs.ErrNotExist (ReadOnly without a file). The
// context bounds opening only.
func Open(ctx context.Context, o Options) (*DB, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("open ledger %s: %w", o.Path, err)
	}
	db, err := open(o)
	if err != nil {
		return nil, fmt.Errorf("open ledger %s: %w", o.Path, err)
	}
	return db, nil
}

func open(o Options) (_ *DB, err error) {
	if o.Path == "" {
		return nil, fmt.Errorf("%w: empty path", ledger.ErrInvalid)
	}
	if o.Path, err = filepath.Abs(o.Path); err != nil {
		return nil, err
	}
	syncFast()
	db := &DB{opts: o, now: o.Now, log: o.Logger, queue: newQueue(), closing: make(chan struct{})}
	db.feed.init()
	if db.now == nil {
		db.now = time.Now
	}
	if db.log == nil {
		db.log = slog.Default()
	}
	if db.opts.FeedAge <= 0 {
		db.opts.FeedAge = defaultFeedAge
	}
	if db.opts.JanitorEvery <= 0 {
		db.opts.JanitorEvery = defaultJanitor
	}
	defer func() {
		if err != nil {
			db.drop()
		}
	}()
	if o.ReadOnly {
		return db, db.openReaders()
	}
	if err := prepareFile(o.Path); err != nil {
		return nil, err
	}
	if _, err := os.Stat(o.Path + ".lock"); errors.Is(err, fs.ErrNotExist) {
		// Beside a file that is no ledger of this version nothing is left.
		if err := checkBeforeWriting(o.Path); err != nil {
			return nil, err
		}
	}
	db.memory = newMemory()
	if db.lock, err = lockFile(o.Path + ".lock"); err != nil {
		return nil, err
	}
	if db.writer, err = openWriter(o); err != nil {
		return nil, err
	}
	w, err := newWriter(db, db.writer)
	if err != nil {
		return nil, err
	}
	if err := db.openReaders(); err != nil {
		return nil, err
	}
	db.loops.Go(w.loop)
	db.loops.Go(db.janitor)
	return db, nil
}

// prepareFile makes the folder and the file, private to this user, and finds
// out whether they can be written.
func prepareFile(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return readOnly(err)
	}
	// Safe only while no connection is open in this process: closing any
	// descriptor of the file would drop its locks. The caller holds none.
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return readOnly(err)
		}
		if err := f.Close(); err != nil {
			return err
		}
		// A power cut must not lose the file's name, nor a new folder's.
		dir := filepath.Dir(path)
		_ = syncDir(filepath.Dir(dir)) // which this user may not be able to read
		return syncDir(dir)
	}
	return nil
}

// readOnly gives permission failures their own error.
func readOnly(err error) error {
	if errors.Is(err, fs.ErrPermission) || isReadOnlyFS(err) {
		return fmt.Errorf("%w: %w", ErrReadOnly, err)
	}
	return err
}

// checkBeforeWriting refuses a foreign or newer file before anything of it can
// change: a read-only connection neither checkpoints nor converts.
func checkBeforeWriting(path string) error {
	if st, err := os.Stat(path); err != nil || st.Size() == 0 {
		return err
	}
	c, err := openConn(path, sqlite3.SQLITE_OPEN_READONLY)
	if err != nil {
		return openFailure(err)
	}
	defer c.close()
	_, err = checkFile(c)
	return openFailure(err)
}

// openFailure gives the library's refusals the package's errors.
func openFailure(err error) error {
	var se *sqlError
	if errors.As(err, &se) {
		switch se.primary() {
		case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM:
			return fmt.Errorf("%w: %w", ErrReadOnly, err)
		}
	}
	return err
}

func openWriter(o Options) (*conn, error) {
	if err := checkBeforeWriting(o.Path); err != nil {
		return nil, err
	}
	c, err := openConn(o.Path, sqlite3.SQLITE_OPEN_READWRITE)
	if err != nil {
		return nil, openFailure(err)
	}
	if err := setUpWriter(c, o); err != nil {
		c.close()
		return nil, openFailure(err)
	}
	return c, nil
}

func setUpWriter(c *conn, o Options) error {
	version, err := checkFile(c)
	if err != nil {
		return err
	}
	pragmas := fmt.Sprintf(`pragma journal_mode = wal; pragma synchronous = full; pragma temp_store = memory;
		pragma wal_autocheckpoint = %d; pragma journal_size_limit = %d; pragma cache_size = -%d;`,
		checkpointPages, 64<<20, writerCacheKiB)
	if o.maxPages > 0 {
		pragmas += fmt.Sprintf("pragma max_page_count = %d;", o.maxPages)
	}
	if err := c.exec(pragmas); err != nil {
		return err
	}
	return migrate(c, version)
}

func (db *DB) openReaders() error {
	db.pool = make(chan *conn, readers)
	for range readers {
		c, err := db.openReader()
		if err != nil {
			return err
		}
		if err := c.exec("pragma query_only = 1"); err != nil {
			c.close()
			return err
		}
		db.pool <- c
		db.opened++
	}
	return nil
}

// openReader opens one connection that cannot write.
func (db *DB) openReader() (*conn, error) {
	if _, err := os.Stat(db.opts.Path); err != nil {
		return nil, err
	}
	c, err := openConn(db.opts.Path, sqlite3.SQLITE_OPEN_READONLY)
	if err != nil {
		return nil, openFailure(err)
	}
	version, err := checkFile(c)
	if noPlaceForLog(err) && db.opts.ReadOnly {
		// A folder that cannot be written has no place for the shared memory of
		// the write-ahead log. Without a log nobody is writing: the file stands.
		if _, statErr := os.Stat(db.opts.Path + "-wal"); errors.Is(statErr, fs.ErrNotExist) {
			c.close()
			name := (&url.URL{Scheme: "file", Path: db.opts.Path, RawQuery: "immutable=1"}).String()
			if c, err = openConn(name, sqlite3.SQLITE_OPEN_READONLY|sqlite3.SQLITE_OPEN_URI); err != nil {
				return nil, openFailure(err)
			}
			version, err = checkFile(c)
		}
	}
	if err == nil && version == 0 {
		err = fmt.Errorf("%w: it is empty", ErrNotLedger)
	}
	if err == nil {
		err = c.exec(fmt.Sprintf("pragma temp_store = memory; pragma cache_size = -%d", readerCacheKiB))
	}
	if err != nil {
		c.close()
		return nil, openFailure(err)
	}
	return c, nil
}

// noPlaceForLog tells the failures of a folder that cannot be written.
func noPlaceForLog(err error) bool {
	var se *sqlError
	return errors.As(err, &se) && (se.primary() == sqlite3.SQLITE_CANTOPEN || se.Code == sqlite3.SQLITE_READONLY_DIRECTORY)
}

// Close finishes the commits that wait, refuses new calls with ErrUnavailable,
// ends waiting Changes calls and lets the lock go. It may be called again.
func (db *DB) Close() error {
	db.once.Do(func() {
		close(db.closing)
		db.queue.close()
		db.loops.Wait()
		db.drop()
	})
	return nil
}

// drop closes the connections, each reader once it has come back, and lets the
// lock go. The writer is last: the last one folds the log into the file, which a
// reader cannot.
func (db *DB) drop() {
	db.backups.Lock()
	defer db.backups.Unlock()
	for ; db.opened > 0; db.opened-- {
		(<-db.pool).close()
	}
	if db.writer != nil {
		db.writer.close()
	}
	if db.lock != nil {
		db.lock.release()
	}
}
