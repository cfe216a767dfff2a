package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	sqlite3 "modernc.org/sqlite/lib"
)

// Backup writes a consistent copy of the ledger, as of one commit, to a new
// file, while commits go on. The copy is whole and synced, or not there. It
// fails with fs.ErrExist when the file exists.
func (db *DB) Backup(ctx context.Context, file string) error {
	if err := db.backup(ctx, file); err != nil {
		return fmt.Errorf("back up ledger to %s: %w", file, err)
	}
	return nil
}

func (db *DB) backup(ctx context.Context, file string) (err error) {
	db.backups.RLock()
	defer db.backups.RUnlock()
	select {
	case <-db.closing:
		return errClosed
	default:
	}
	if _, err := os.Lstat(file); !errors.Is(err, fs.ErrNotExist) {
		if err == nil {
			err = fs.ErrExist
		}
		return err
	}
	dir := filepath.Dir(file)
	temp, err := os.CreateTemp(dir, "."+filepath.Base(file)+".*.part") // mode 0600; VACUUM INTO takes an empty file
	if err != nil {
		return err
	}
	defer os.Remove(temp.Name())
	defer temp.Close()
	if err := db.vacuumInto(ctx, temp.Name()); err != nil {
		return err
	}
	// The descriptor is of the copy, which no connection holds any more.
	if err := temp.Sync(); err != nil {
		return err
	}
	// Unlike a rename, a link does not replace; not every file system has it.
	if err := os.Link(temp.Name(), file); errors.Is(err, fs.ErrExist) {
		return err
	} else if err != nil {
		if err := os.Rename(temp.Name(), file); err != nil {
			return err
		}
	}
	return syncDir(dir)
}

// vacuumInto copies on a connection of its own: one of the pool would be missed
// for as long as it takes.
func (db *DB) vacuumInto(ctx context.Context, file string) error {
	c, err := db.openReader()
	if err != nil {
		return err
	}
	defer c.close()
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		c.interrupt()
	})
	s, err := c.prepare("vacuum into ?1")
	if err == nil {
		s.bindText(1, file)
		err = s.run()
	}
	if !stop() {
		<-interrupted // c must outlive it
	}
	if ctx.Err() != nil { // also when the interrupt came before the statement
		return ctx.Err()
	}
	var se *sqlError
	if errors.As(err, &se) && se.primary() == sqlite3.SQLITE_FULL {
		return unavailable(err)
	}
	return err
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
