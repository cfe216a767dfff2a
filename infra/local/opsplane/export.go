package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/opsplane/opsplane/infra/aws"
	"github.com/opsplane/opsplane/infra/local"
	"github.com/opsplane/opsplane/shared/export"
	ledgersqlite "github.com/opsplane/opsplane/shared/ledger/sqlite"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
)

type exportCmd struct {
	Data     string `help:"Data folder." default:"data" env:"OPSPLANE_DATA"`
	WithLive bool   `help:"Move operations that have not ended: each is fenced off and probed where it goes on. The engine, or the deployment's functions, must be stopped for good."`
	Restored bool   `help:"The table was restored to a point in time: have each of its streams tell so, and pass over the sequences that were given out since. (opsplane restore does so for a folder.)"`
	Mend     bool   `help:"Where the ledger holds an event twice, which no export takes, leave the second out; an event stream.repeated in its place tells. It is left out of the export, or of the table itself."`
	deploymentFlags
}

// Run exports a data folder as of one consistent instant, taken as a backup is,
// or a table that nothing works on. What is written holds the hashes of tokens
// and everything that people wrote.
func (c *exportCmd) Run(ctx context.Context) error {
	if terminal(os.Stdout) {
		return errors.New("an export goes to standard output: opsplane export > FILE")
	}
	if !c.named() {
		if c.Restored {
			return errors.New("--restored is for a table: a folder is made from a backup by opsplane restore, which tells its streams")
		}
		return c.export(ctx, os.Stdout, os.Stderr)
	}
	d, err := c.open(ctx)
	if err != nil {
		return err
	}
	return c.exportTable(ctx, d, os.Stdout, os.Stderr)
}

func (c *exportCmd) exportTable(ctx context.Context, d *aws.Deployment, out, log io.Writer) error {
	live, err := d.Live(ctx)
	if err != nil {
		return err
	}
	if len(live) > 0 && !c.WithLive {
		return &liveError{live}
	}
	if err := d.MarkRestored(ctx, live); err != nil {
		return err
	}
	if c.Restored {
		if err := d.TellRestored(ctx); err != nil {
			return err
		}
	}
	if c.Mend {
		if err := d.Mend(ctx, log); err != nil {
			return err
		}
	}
	h, err := d.Export(ctx, out)
	if err != nil {
		return err
	}
	summarize(log, h)
	return nil
}

// summarize says what an export holds.
func summarize(w io.Writer, h export.Header) {
	fmt.Fprintf(w, "%d items: %d operations (%d live), %d journal entries, %d events\n", h.Items, h.Holds.Operations, h.Holds.Live, h.Holds.Entries, h.Holds.Events)
}

func (c *exportCmd) export(ctx context.Context, out, log io.Writer) (err error) {
	if err := notMoved(c.Data); err != nil {
		return err
	}
	if c.WithLive { // from here on no engine starts
		lock, err := ledgersqlite.Open(ctx, ledgersqlite.Options{Path: local.LedgerPath(c.Data), Logger: slog.New(slog.DiscardHandler)})
		if errors.Is(err, ledgersqlite.ErrLocked) {
			return fmt.Errorf("--with-live: stop the engine first: %w", err)
		}
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, lock.Close()) }()
	}
	tmp, err := os.MkdirTemp("", "opsplane-export")
	if err != nil {
		return fmt.Errorf("export: %w", err)
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	backup, copied := filepath.Join(tmp, "backup.db"), filepath.Join(tmp, "data")
	if err := local.Backup(ctx, c.Data, backup); err != nil {
		return err
	}
	live, err := liveIn(ctx, backup)
	if err != nil {
		return err
	}
	if len(live) > 0 && !c.WithLive {
		return &liveError{live}
	}
	if c.Mend {
		if err := local.Mend(ctx, backup, log); err != nil {
			return err
		}
	}
	// What is live is marked on the copy.
	if err := local.Fork(ctx, backup, copied); err != nil {
		return err
	}
	if err := os.Remove(backup); err != nil {
		return fmt.Errorf("export: %w", err)
	}
	if len(live) > 0 {
		if err := markMoved(c.Data, len(live)); err != nil {
			return err
		}
		defer func() {
			if err != nil { // nothing was handed over
				err = errors.Join(err, os.Remove(movedFile(c.Data)))
			}
		}()
	}
	return write(ctx, copied, c.Data, out, log)
}

func write(ctx context.Context, folder, name string, out, log io.Writer) error {
	now := time.Now()
	db, err := ledgersqlite.Open(ctx, ledgersqlite.Options{Path: local.LedgerPath(folder), ReadOnly: true, Now: func() time.Time { return now }})
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	if abs, err := filepath.Abs(name); err == nil {
		name = abs
	}
	h, err := export.Write(ctx, db, export.Source{Engine: "sqlite", Version: local.Version, Name: name}, now, out)
	if err != nil {
		return err
	}
	summarize(log, h)
	return nil
}

func liveIn(ctx context.Context, backup string) ([]export.LiveOperation, error) {
	db, err := ledgersqlite.Open(ctx, ledgersqlite.Options{Path: backup, ReadOnly: true})
	if err != nil {
		return nil, err
	}
	defer func() { _ = db.Close() }()
	return export.Live(ctx, &record.Store{Ledger: db, Now: time.Now, Timing: operation.OneMachine})
}

// liveError: an operation must not go on in two planes.
type liveError struct{ live []export.LiveOperation }

const showLive = 20

func (e *liveError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d operations have not ended:\n", len(e.live))
	for i, o := range e.live {
		if i == showLive {
			fmt.Fprintf(&b, "  and %d more\n", len(e.live)-i)
			break
		}
		fmt.Fprintf(&b, "  %s %s of %s: %s\n", o.ID, o.Type, o.Target, o.Phase)
	}
	b.WriteString("wait for their ends or cancel them; or stop the plane for good and move them with --with-live: " +
		"where they go on, nothing is issued before the world has been read")
	return b.String()
}

// moved is what is kept in a folder whose live operations went elsewhere.
type moved struct {
	At   time.Time `json:"at"`
	Live int       `json:"live"`
}

func movedFile(data string) string { return filepath.Join(data, "moved.json") }

func markMoved(data string, live int) error {
	b, err := json.Marshal(moved{At: time.Now().UTC().Truncate(time.Second), Live: live})
	if err != nil {
		return fmt.Errorf("mark folder as moved: %w", err)
	}
	if err := os.WriteFile(movedFile(data), append(b, '\n'), 0o600); err != nil {
		return fmt.Errorf("mark folder as moved: %w", err)
	}
	return nil
}

// notMoved refuses a folder whose live operations went elsewhere: they would go
// on in two planes.
func notMoved(data string) error {
	b, err := os.ReadFile(movedFile(data))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look whether the folder was moved: %w", err)
	}
	var m moved
	if err := json.Unmarshal(b, &m); err != nil {
		return fmt.Errorf("read %s: %w", movedFile(data), err)
	}
	return fmt.Errorf("%d live operations of this folder were exported at %s to go on elsewhere, and would go on in two planes: "+
		"only if that export was never imported, remove %s", m.Live, m.At.Format(time.RFC3339), movedFile(data))
}
