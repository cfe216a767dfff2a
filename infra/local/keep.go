package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/ledger"
	ledgersqlite "github.com/opsplane/opsplane/shared/ledger/sqlite"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
	"github.com/opsplane/opsplane/shared/verify"
)

// Backup copies a data folder's ledger to a new file: one consistent instant,
// also while an engine writes to it. Doorbells are not copied: the sweep rings
// them again.
func Backup(ctx context.Context, data, file string) error {
	db, err := ledgersqlite.Open(ctx, ledgersqlite.Options{Path: LedgerPath(data), ReadOnly: true})
	if err != nil {
		return err
	}
	return errors.Join(db.Backup(ctx, file), db.Close())
}

// Restore makes a data folder from a backup, after verifying it, which goes on in the
// place of the one that was backed up: its streams tell that what came since is gone.
// It is made beside the place of the ledger, and moved there when it is whole: one that
// was cut off leaves nothing that an engine starts on, and is done again.
func Restore(ctx context.Context, file, data string) error {
	stage := stagePath(data)
	entries, err := os.ReadDir(data)
	if err == nil && slices.ContainsFunc(entries, func(e os.DirEntry) bool { return e.Name() != filepath.Base(stage) }) {
		return fmt.Errorf("data folder %s is not empty", data)
	}
	if err := os.RemoveAll(stage); err != nil {
		return fmt.Errorf("remove what an earlier restore left: %w", err)
	}
	if err := Fork(ctx, file, stage); err != nil {
		return err
	}
	if err := tellRestored(ctx, stage); err != nil {
		return err
	}
	if err := os.Rename(LedgerPath(stage), LedgerPath(data)); err != nil {
		return fmt.Errorf("move the ledger into its place: %w", err)
	}
	return os.RemoveAll(stage)
}

// stagePath is where in a data folder a restore makes the ledger.
func stagePath(data string) string { return filepath.Join(data, ".restoring") }

// cutOff tells whether a restore of a data folder was.
func cutOff(data string) error {
	if _, err := os.Stat(LedgerPath(stagePath(data))); err != nil {
		return nil //nolint:nilerr // there is none
	}
	return fmt.Errorf("data folder %s: a restore was cut off here: run opsplane restore again", data)
}

// tellRestored has the streams of a restored folder tell so.
func tellRestored(ctx context.Context, data string) (err error) {
	db, err := ledgersqlite.Open(ctx, ledgersqlite.Options{Path: LedgerPath(data)})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return event.TellRestored(ctx, &record.Store{Ledger: db, Now: time.Now, Timing: operation.OneMachine})
}

// Mend leaves out of a copy what is in it twice (event.LeaveOutRepeats), so that it can be
// restored or moved, and tells what that was.
func Mend(ctx context.Context, file string, w io.Writer) (err error) {
	db, err := ledgersqlite.Open(ctx, ledgersqlite.Options{Path: file})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	found, err := event.LeaveOutRepeats(ctx, &record.Store{Ledger: db, Now: time.Now, Timing: operation.OneMachine})
	for _, x := range found {
		fmt.Fprintln(w, x)
	}
	return err
}

// RestoreMended is Restore of a backup that is mended first; the backup stays as it is.
func RestoreMended(ctx context.Context, file, data string, w io.Writer) (err error) {
	tmp, err := os.MkdirTemp(filepath.Dir(filepath.Clean(data)), ".opsplane-mend-")
	if err != nil {
		return fmt.Errorf("copy the backup: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	db, err := ledgersqlite.Open(ctx, ledgersqlite.Options{Path: file, ReadOnly: true})
	if err != nil {
		return err
	}
	mended := filepath.Join(tmp, "mended.db")
	if err := errors.Join(db.Backup(ctx, mended), db.Close()); err != nil {
		return err
	}
	if err := Mend(ctx, mended, w); err != nil {
		return err
	}
	return Restore(ctx, mended, data)
}

// Fork makes a data folder from a backup, after verifying it, and marks what is live
// in it. Nothing came after the backup that mattered.
func Fork(ctx context.Context, file, data string) error {
	if entries, err := os.ReadDir(data); err == nil && len(entries) > 0 {
		return fmt.Errorf("data folder %s is not empty", data)
	}
	if err := Verify(ctx, file, io.Discard); err != nil {
		return fmt.Errorf("it does not hold: %w", err)
	}
	if err := os.MkdirAll(data, 0o700); err != nil {
		return fmt.Errorf("make data folder: %w", err)
	}
	db, err := ledgersqlite.Open(ctx, ledgersqlite.Options{Path: file, ReadOnly: true})
	if err != nil {
		return err
	}
	if err := errors.Join(db.Backup(ctx, LedgerPath(data)), db.Close()); err != nil {
		return err
	}
	return unsettle(ctx, data)
}

// unsettle marks what is live in a restored folder: effects may have been issued
// since the backup, so nothing is issued before the world has been read. What was
// reported of the fleet since is asked for anew.
func unsettle(ctx context.Context, data string) (err error) {
	db, err := ledgersqlite.Open(ctx, ledgersqlite.Options{Path: LedgerPath(data)})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	st := &record.Store{Ledger: db, Now: time.Now, Timing: operation.OneMachine}
	live, err := record.All[operation.State](ctx, db, ledger.Query{Index: ledger.Live, PK: record.ListOperations})
	if err != nil {
		return err
	}
	for _, s := range live {
		_, err := st.Update(ctx, s.ID, func(*operation.Operation) (operation.Change, []ledger.Write, error) {
			return operation.Restored{By: operation.Actor{ID: "opsplane restore", Kind: "plane"}}, nil, nil
		})
		if err != nil {
			return fmt.Errorf("mark operation %s: %w", s.ID, err)
		}
	}
	clusters, err := st.Clusters(ctx)
	if err != nil {
		return err
	}
	for _, c := range clusters {
		ask, err := st.AskInventory(ctx, c.ID)
		if err == nil && len(ask) > 0 {
			err = db.Commit(ctx, ask...)
		}
		if err != nil {
			return fmt.Errorf("ask for the inventory of %s: %w", c.Name, err)
		}
	}
	return nil
}

// bound is how long past its deadline an operation may be live: its agent's
// lease, one call deadline, and the sweep's own pace.
func bound(tm operation.Timing) time.Duration { return tm.Lease + tm.CallDeadline + 2*time.Second }

// Verify walks a data folder or a backup and prints what it found; an error
// tells that something does not hold. A folder in use is copied first, so that
// the walk sees one instant. Whether an operation outlived its deadline is
// judged at that instant only where an engine runs: time does not pass for a
// copy.
func Verify(ctx context.Context, path string, w io.Writer) error {
	file := path
	if info, err := os.Stat(path); err != nil {
		return fmt.Errorf("verify: %w", err)
	} else if info.IsDir() {
		tmp, err := os.MkdirTemp("", "opsplane-verify")
		if err != nil {
			return fmt.Errorf("verify: %w", err)
		}
		defer func() { _ = os.RemoveAll(tmp) }()
		file = filepath.Join(tmp, "copy.db")
		if err := Backup(ctx, path, file); err != nil {
			return err
		}
	}
	db, err := ledgersqlite.Open(ctx, ledgersqlite.Options{Path: file, ReadOnly: true})
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	st := &record.Store{Ledger: db, Now: time.Now, Timing: operation.OneMachine}
	r, err := verify.Run(ctx, st, time.Time{}, bound(st.Timing))
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "%d operations (%d live), %d journal entries, %d locks held, %d streams, %d events\n",
		r.Operations, r.Live, r.Entries, r.Locks, r.Streams, r.Events)
	for _, p := range r.Problems {
		fmt.Fprintln(w, "PROBLEM", p)
	}
	if r.Count > 0 {
		return r.Err()
	}
	fmt.Fprintln(w, "everything holds")
	return nil
}
