package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// schemaVersion is kept in the file (user_version). A file of an older version
// is replaced: a queue holds nothing that cannot be rung again. One of a newer
// version is refused, like the whole folder that it stands in.
const schemaVersion = 1

// ErrNewer: the file was written by a newer version of the program.
var ErrNewer = errors.New("queue file is of a newer version")

// errDamaged: the file is no sound queue database of this version.
var errDamaged = errors.New("damaged queue file")

func openFile(ctx context.Context, path string) (*sql.DB, error) {
	if path == "" {
		return nil, errors.New("no path given")
	}
	if err := checkFolder(filepath.Dir(path)); err != nil {
		return nil, err
	}
	db, err := openSound(ctx, path)
	if errors.Is(err, errDamaged) {
		if err := setAside(path); err != nil {
			return nil, err
		}
		db, err = openSound(ctx, path)
	}
	return db, err
}

// checkFolder makes the folder when it is missing, and tells one that cannot be
// written from a damaged file.
func checkFolder(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	f, err := os.CreateTemp(dir, ".queue-write-test-*")
	if err != nil {
		return fmt.Errorf("folder is not writable: %w", err)
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

func setAside(path string) error {
	for _, suffix := range []string{"", "-wal", "-shm"} {
		if err := os.Rename(path+suffix, path+".damaged"+suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("set damaged file aside: %w", err)
		}
	}
	return nil
}

func openSound(ctx context.Context, path string) (_ *sql.DB, err error) {
	// SQLite makes its other files with the access of this one.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("file is not writable: %w", err)
	}
	if err := f.Close(); err != nil {
		return nil, err
	}
	// The lock is exclusive because the writer keeps in memory which queues
	// exist; it goes away with the process.
	dsn := url.URL{Scheme: "file", Opaque: (&url.URL{Path: path}).EscapedPath(), RawQuery: url.Values{
		"_txlock": {"immediate"},
		"_pragma": {"locking_mode(EXCLUSIVE)", "busy_timeout(2000)", "journal_mode(WAL)", "synchronous(NORMAL)", "journal_size_limit(16777216)", "cache_size(-16384)", "wal_autocheckpoint(4000)", "temp_store(MEMORY)"},
	}.Encode()}
	db, err := sql.Open("sqlite", dsn.String())
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, db.Close())
		}
	}()
	db.SetMaxOpenConns(1)
	db.SetConnMaxIdleTime(0)
	db.SetConnMaxLifetime(0)

	var version int
	if err := db.QueryRowContext(ctx, `pragma user_version`).Scan(&version); err != nil {
		return nil, diagnose(err)
	}
	if version == 0 {
		tables := 0
		if err := db.QueryRowContext(ctx, `select count(*) from sqlite_schema`).Scan(&tables); err != nil {
			return nil, diagnose(err)
		}
		if tables > 0 {
			return nil, errors.New("file is another database")
		}
		return db, create(ctx, db)
	}
	if version > schemaVersion {
		return nil, fmt.Errorf("%w: schema version %d, this program knows %d", ErrNewer, version, schemaVersion)
	}
	if version != schemaVersion {
		return nil, fmt.Errorf("%w: schema version %d, want %d", errDamaged, version, schemaVersion)
	}
	var sound string
	if err := db.QueryRowContext(ctx, `pragma quick_check(1)`).Scan(&sound); err != nil {
		return nil, diagnose(err)
	}
	if sound != "ok" {
		return nil, fmt.Errorf("%w: %s", errDamaged, sound)
	}
	return db, nil
}

func create(ctx context.Context, db *sql.DB) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return diagnose(err)
	}
	if _, err := tx.ExecContext(ctx, schema+fmt.Sprintf("pragma user_version = %d;", schemaVersion)); err != nil {
		return errors.Join(diagnose(err), tx.Rollback())
	}
	if err := tx.Commit(); err != nil {
		return diagnose(err)
	}
	return nil
}

// diagnose tells a damaged file from a file that cannot be used now
// (https://www.sqlite.org/rescode.html).
func diagnose(err error) error {
	var se *sqlite.Error
	if !errors.As(err, &se) {
		return err
	}
	switch se.Code() & 0xff {
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_SCHEMA:
		return fmt.Errorf("%w: %w", errDamaged, err)
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		return fmt.Errorf("file is in use by another process: %w", err)
	}
	return err
}
