package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
)

func TestBackupUnderLoad(t *testing.T) {
	t.Parallel()
	db := start(t, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for n := int64(1); ctx.Err() == nil; n++ {
				if err := db.Commit(context.WithoutCancel(ctx), crashWrites(g, n)...); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for db.Stats().Commits < 200 {
		time.Sleep(time.Millisecond)
	}
	dir := t.TempDir()
	for i := range 3 {
		file := filepath.Join(dir, fmt.Sprintf("backup-%d.db", i))
		before := db.Stats().Commits
		if err := db.Backup(t.Context(), file); err != nil {
			t.Fatal(err)
		}
		if err := db.Backup(t.Context(), file); !errors.Is(err, fs.ErrExist) {
			t.Errorf("over an existing file: got %v, want ErrExist", err)
		}
		acked := map[int]int64{}
		checkAfterCrash(t, file, acked) // every commit whole
		copied := start(t, Options{Path: file})
		var total int64
		for g := range 4 {
			if it, err := copied.Get(t.Context(), ledger.Key{PK: "counter", SK: fmt.Sprint(g)}); err == nil {
				total += it.Version
			}
		}
		if total < before-4 { // each worker may be between its sync and its count
			t.Errorf("the copy has %d commits, %d were acknowledged before", total, before)
		}
		copied.Close()
	}
	cancelled, stop := context.WithCancel(t.Context())
	stop()
	if err := db.Backup(cancelled, filepath.Join(dir, "never.db")); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: got %v", err)
	}
	cancel()
	wg.Wait()
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	hidden, err := filepath.Glob(filepath.Join(dir, ".*.part"))
	if err != nil || len(hidden) != 0 {
		t.Errorf("left behind: %v in %v, %v", hidden, left, err)
	}
}
