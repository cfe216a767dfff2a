package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opsplane/opsplane/infra/local"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/export"
	"github.com/opsplane/opsplane/shared/ledger"
	ledgersqlite "github.com/opsplane/opsplane/shared/ledger/sqlite"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
	"github.com/opsplane/opsplane/shared/verify"
)

// An export of a running engine is one instant of it, unless operations are live.
func TestExport(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	var out bytes.Buffer
	no(t, (&exportCmd{Data: s.data}).export(t.Context(), &out, io.Discard))
	if !strings.HasPrefix(out.String()[17:], `{"opsplane_export":1,`) {
		t.Errorf("export begins %.80s", out.String())
	}
	op := s.cordon(t, "n0")
	err := (&exportCmd{Data: s.data}).export(t.Context(), io.Discard, io.Discard)
	var live *liveError
	if !errors.As(err, &live) || !strings.Contains(err.Error(), op+" node.cordon of node:n0: pending") {
		t.Errorf("with a live operation: %v", err)
	}
	if err := (&exportCmd{Data: s.data, WithLive: true}).export(t.Context(), io.Discard, io.Discard); !errors.Is(err, ledgersqlite.ErrLocked) {
		t.Errorf("with a live operation under a running engine: %v", err)
	}
}

// A ledger that holds an event twice is exported without the second, where that is asked
// for, and stays as it is.
func TestExportMended(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := newSite(t)
	evs, _, err := event.ReadStream(ctx, s.Store.Ledger, event.PlaneStream, 1, 1)
	no(t, err)
	_, err = event.Append(ctx, s.Store.Ledger, event.PlaneStream, evs[:1], nil)
	no(t, err)
	if err := (&exportCmd{Data: s.data}).export(ctx, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), evs[0].ID) || !strings.Contains(err.Error(), "--mend") {
		t.Errorf("exported: %v", err)
	}
	var out, said bytes.Buffer
	no(t, (&exportCmd{Data: s.data, Mend: true}).export(ctx, &out, &said))
	if !strings.Contains(said.String(), "left out: event "+evs[0].ID) || !strings.Contains(out.String(), event.TypeRepeated) {
		t.Errorf("said %s", said.String())
	}
	after, _, err := event.ReadStream(ctx, s.Store.Ledger, event.PlaneStream, 1, 1000)
	no(t, err)
	if last := after[len(after)-1]; last.ID != evs[0].ID {
		t.Errorf("the folder was changed: %+v", last)
	}
}

// broken is a writer whose disk is full.
type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, io.ErrShortWrite }

// Live operations are moved as restored ones, and never go on in two planes.
func TestExportLive(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := newSite(t)
	op := s.cordon(t, "n0")
	before, err := s.Store.Load(ctx, op)
	no(t, err)
	s.close(t)
	c := exportCmd{Data: s.data, WithLive: true}
	if err := c.export(ctx, broken{}, io.Discard); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("to a full disk: %v", err)
	}
	if _, err := os.Stat(movedFile(s.data)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an export that failed has marked the folder: %v", err)
	}
	var out bytes.Buffer
	no(t, c.export(ctx, &out, io.Discard))

	up := upCmd{Data: s.data, Addr: "127.0.0.1:0", Rate: 1, Waits: 1, Retention: time.Hour, Events: time.Hour, Log: "error"}
	if err := up.Run(); err == nil || !strings.Contains(err.Error(), movedFile(s.data)) {
		t.Errorf("the engine starts on a folder whose operations went elsewhere: %v", err)
	}
	if err := c.export(ctx, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), movedFile(s.data)) {
		t.Errorf("the folder is exported again: %v", err)
	}

	db, err := ledgersqlite.Open(ctx, ledgersqlite.Options{Path: filepath.Join(t.TempDir(), "l.db")})
	no(t, err)
	defer db.Close()
	r, err := export.Import(ctx, bytes.NewReader(out.Bytes()), export.Target{Ledger: db, Now: time.Now,
		Occupied: func(context.Context) (ledger.Key, bool, error) { return ledger.Key{}, false, nil }})
	no(t, err)
	st := &record.Store{Ledger: db, Now: time.Now, Timing: operation.AWS}
	after, err := st.Load(ctx, op)
	no(t, err)
	if r.Header.Holds.Live != 1 || after.State.Generation < before.State.Generation+1_000_000 || after.State.Lease != nil {
		t.Errorf("%d live; generation %d after %d, lease %v", r.Header.Holds.Live, after.State.Generation, before.State.Generation, after.State.Lease)
	}
	entries, err := st.Journal(ctx, op, 1, 0)
	no(t, err)
	if last := entries[len(entries)-1]; last.Kind != operation.EntryRestored {
		t.Errorf("the journal ends in %s", last.Kind)
	}
}

// A folder that was restored says so in each stream, holds, and is exported like any
// other. An export by itself is no restore.
func TestExportRestored(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := newSite(t)
	s.close(t)
	backup, data := filepath.Join(t.TempDir(), "b.db"), filepath.Join(t.TempDir(), "restored")
	no(t, local.Backup(ctx, s.data, backup))
	no(t, local.Restore(ctx, backup, data))
	no(t, local.Verify(ctx, data, io.Discard))
	for folder, want := range map[string]int{s.data: 0, data: 1} {
		var out bytes.Buffer
		no(t, (&exportCmd{Data: folder}).export(ctx, &out, io.Discard))
		db, err := ledgersqlite.Open(ctx, ledgersqlite.Options{Path: filepath.Join(t.TempDir(), "l.db")})
		no(t, err)
		defer db.Close()
		_, err = export.Import(ctx, bytes.NewReader(out.Bytes()), export.Target{Ledger: db, Now: time.Now,
			Occupied: func(context.Context) (ledger.Key, bool, error) { return ledger.Key{}, false, nil }})
		no(t, err)
		st := &record.Store{Ledger: db, Now: time.Now, Timing: operation.OneMachine}
		r, err := verify.Run(ctx, st, time.Time{}, 0)
		if err != nil || r.Count > 0 {
			t.Errorf("what was imported: %v, %v", r.Problems, err)
		}
		names, err := event.Streams(ctx, st)
		no(t, err)
		for _, name := range names {
			page, err := (&event.Reader{Ledger: db}).Read(ctx, event.Query{Streams: []string{name}, Types: []string{event.TypeRestored}})
			if err != nil || len(page.Events) != want {
				t.Errorf("stream %s tells of %d restores, want %d (%v)", name, len(page.Events), want, err)
			}
		}
	}
	if err := (&exportCmd{Data: data, Restored: true}).Run(ctx); err == nil {
		t.Error("a folder is told to be a restored table")
	}
}
