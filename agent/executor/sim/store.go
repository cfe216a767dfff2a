package sim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// store is the cluster's one API server, as far as this process is concerned:
// it keeps the world equal to the log that all holders of the folder share.
type store struct {
	dir string
	now func() time.Time
	log *slog.Logger

	mu      sync.Mutex
	w       *World
	ix      *index
	file    *os.File // effects.jsonl, O_APPEND
	lock    *os.File // world.lock
	holders *os.File // holders.lock
	offset  int64    // how much of file is in the world
	facts   []fact   // since open, bounded, for watchers
	opened  int64    // the world's change at open; 0 for a fresh one
	closed  bool
}

// maxFacts bounds what is kept for a watcher that does not come.
const maxFacts = 20_000

var errClosed = errors.New("the simulated cluster is closed")

func openStore(dir string, now func() time.Time, log *slog.Logger, genesis func() (*World, error)) (_ *store, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create state folder: %w", err)
	}
	s := &store{dir: dir, now: now, log: log}
	defer func() {
		if err != nil {
			s.closeFiles()
		}
	}()
	for _, f := range []struct {
		name string
		to   **os.File
	}{{"world.lock", &s.lock}, {"holders.lock", &s.holders}} {
		if *f.to, err = os.OpenFile(filepath.Join(dir, f.name), os.O_RDWR|os.O_CREATE, 0o600); err != nil {
			return nil, fmt.Errorf("open lock file: %w", err)
		}
	}
	if err := flock(s.lock, syscall.LOCK_EX); err != nil {
		return nil, err
	}
	defer func() { _ = flock(s.lock, syscall.LOCK_UN) }()
	sole, err := s.hold()
	if err != nil {
		return nil, err
	}
	fresh, err := s.load(genesis)
	if err != nil {
		return nil, err
	}
	if s.w.Exclusive && !sole {
		return nil, fmt.Errorf("open state folder %s: its scenario is exclusive and another process holds it", dir)
	}
	if sole && !fresh && s.offset > 0 {
		if err := s.compact(); err != nil {
			return nil, err
		}
	}
	if !s.w.Exclusive {
		// Nobody else can come between: they need world.lock first.
		if err := flock(s.holders, syscall.LOCK_SH); err != nil {
			return nil, err
		}
	}
	s.opened = s.w.Seq
	if fresh {
		s.opened = 0
		f := fact{seq: s.w.Seq}
		for _, n := range sortedNodes(s.w) {
			f.events = append(f.events, nodeEvents(nil, n, s.w.Born)...)
		}
		s.facts = append(s.facts, f)
	}
	return s, nil
}

// hold tells whether this is the only holder of the folder, and makes it one.
// A holder that is just being killed may need a moment to be gone.
func (s *store) hold() (sole bool, err error) {
	for range 40 {
		err = flock(s.holders, syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return true, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return false, err
		}
		if err = flock(s.holders, syscall.LOCK_SH|syscall.LOCK_NB); err == nil {
			return false, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return false, err
		}
		time.Sleep(50 * time.Millisecond)
	}
	return false, fmt.Errorf("open state folder %s: its scenario is exclusive and another process holds it", s.dir)
}

// load builds the world from the snapshot and the log, or anew.
func (s *store) load(genesis func() (*World, error)) (fresh bool, err error) {
	path := filepath.Join(s.dir, "world.json")
	raw, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if s.w, err = genesis(); err != nil {
			return false, err
		}
		fresh = true
		if err := s.writeSnapshot(); err != nil {
			return false, err
		}
	case err != nil:
		return false, fmt.Errorf("read snapshot: %w", err)
	default:
		s.w = &World{}
		if err := json.Unmarshal(raw, s.w); err != nil {
			return false, fmt.Errorf("read snapshot: %w", err)
		}
		s.w.fill()
	}
	s.ix = newIndex(s.w)
	if err := s.openLog(); err != nil {
		return false, err
	}
	if err := s.tail(); err != nil {
		return false, err
	}
	s.facts = nil // what was before this open was told before
	return fresh, s.mend()
}

func (s *store) openLog() (err error) {
	s.offset = 0
	s.file, err = os.OpenFile(filepath.Join(s.dir, logName), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open effects log: %w", err)
	}
	return nil
}

// compact folds the log into the snapshot and keeps it as history. Killed in
// between, the next open skips what the snapshot has already.
func (s *store) compact() error {
	if err := s.writeSnapshot(); err != nil {
		return err
	}
	names, err := logNames(s.dir)
	if err != nil {
		return err
	}
	n := 1
	if len(names) > 0 {
		last, _ := logNumber(names[len(names)-1])
		n = last + 1
	}
	s.file.Close()
	if err := os.Rename(filepath.Join(s.dir, logName), filepath.Join(s.dir, fmt.Sprintf("effects-%d.jsonl", n))); err != nil {
		return fmt.Errorf("rotate effects log: %w", err)
	}
	return s.openLog()
}

func (s *store) writeSnapshot() error {
	raw, err := json.Marshal(s.w)
	if err != nil {
		return fmt.Errorf("write snapshot: %w", err)
	}
	path := filepath.Join(s.dir, "world.json")
	if err := os.WriteFile(path+".tmp", raw, 0o600); err != nil {
		return fmt.Errorf("write snapshot: %w", err)
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		return fmt.Errorf("write snapshot: %w", err)
	}
	return nil
}

// tail applies what is new in the log. It needs no lock: a line is taken when
// its end is there.
func (s *store) tail() error {
	info, err := s.file.Stat()
	if err != nil {
		return fmt.Errorf("read effects log: %w", err)
	}
	if info.Size() <= s.offset {
		return nil
	}
	raw, err := io.ReadAll(io.NewSectionReader(s.file, s.offset, info.Size()-s.offset))
	if err != nil {
		return fmt.Errorf("read effects log: %w", err)
	}
	for {
		line, rest, whole := bytes.Cut(raw, []byte{'\n'})
		if !whole {
			return nil
		}
		var e entry
		if err := json.Unmarshal(line, &e); err != nil {
			return fmt.Errorf("read effects log at byte %d: %w", s.offset, err)
		}
		if e.Seq > s.w.Seq {
			s.applied(apply(s.w, s.ix, &e))
		}
		s.offset += int64(len(line)) + 1
		raw = rest
	}
}

// mend cuts a torn last line off: its writer died before it was answered. Only
// under the lock, when nobody else writes.
func (s *store) mend() error {
	info, err := s.file.Stat()
	if err != nil {
		return fmt.Errorf("mend effects log: %w", err)
	}
	if info.Size() > s.offset {
		if err := s.file.Truncate(s.offset); err != nil {
			return fmt.Errorf("mend effects log: %w", err)
		}
	}
	return nil
}

func (s *store) applied(f fact) {
	if len(f.events) == 0 && len(f.gone) == 0 {
		return
	}
	s.facts = append(s.facts, f)
	if len(s.facts) > maxFacts {
		s.facts = append([]fact(nil), s.facts[maxFacts/2:]...)
	}
}

// view reads the newest world. f must not keep what it is given.
func (s *store) view(f func(w *World, ix *index)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.refreshLocked(); err != nil {
		return err
	}
	f(s.w, s.ix)
	return nil
}

// refresh lets the world go on: it reads what others wrote and does what is due.
func (s *store) refresh() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refreshLocked()
}

func (s *store) refreshLocked() error {
	if s.closed {
		return errClosed
	}
	if !s.w.Exclusive {
		if err := s.tail(); err != nil {
			return err
		}
	}
	if !s.ix.anyDue(s.now()) {
		return nil
	}
	unlock, err := s.acquire()
	if err != nil {
		return err
	}
	defer unlock()
	return s.advance(s.now())
}

// mutate makes one change: f reads the world and stages what it wants in x.
// What f staged is written to the log and then applied; nothing staged is
// nothing written. f is given the newest world and no other change comes
// between.
func (s *store) mutate(f func(x *tx)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosed
	}
	unlock, err := s.acquire()
	if err != nil {
		return err
	}
	defer unlock()
	now := s.now()
	if err := s.advance(now); err != nil {
		return err
	}
	x := &tx{w: s.w, ix: s.ix, now: now}
	f(x)
	if err := s.commit(x); err != nil {
		return err
	}
	return s.advance(now)
}

// acquire takes the world's lock and reads what others wrote.
func (s *store) acquire() (unlock func(), err error) {
	if s.w.Exclusive {
		return func() {}, nil
	}
	if err := flock(s.lock, syscall.LOCK_EX); err != nil {
		return nil, err
	}
	unlock = func() { _ = flock(s.lock, syscall.LOCK_UN) }
	if err := s.tail(); err != nil {
		unlock()
		return nil, err
	}
	if err := s.mend(); err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}

// commit writes what was staged, then applies it.
func (s *store) commit(x *tx) error {
	if x.e.empty() {
		return nil
	}
	x.e.Seq, x.e.Time = s.w.Seq+1, x.now.UTC()
	if x.e.Effect != nil {
		x.e.Effect.Seq, x.e.Effect.Time = x.e.Seq, x.e.Time
	}
	line, err := json.Marshal(&x.e)
	if err != nil {
		return fmt.Errorf("write effect: %w", err)
	}
	line = append(line, '\n')
	if _, err := s.file.Write(line); err != nil {
		return errors.Join(fmt.Errorf("write effect: %w", err), s.mend())
	}
	s.offset += int64(len(line))
	s.applied(apply(s.w, s.ix, &x.e))
	return nil
}

func (s *store) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	return s.closeFiles()
}

func (s *store) closeFiles() error {
	var errs []error
	for _, f := range []*os.File{s.file, s.lock, s.holders} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

// flock is flock(2): the lock belongs to the open file, so two executors of one
// process exclude each other too.
func flock(f *os.File, how int) error {
	for {
		err := syscall.Flock(int(f.Fd()), how)
		if !errors.Is(err, syscall.EINTR) {
			if err != nil {
				return fmt.Errorf("lock %s: %w", filepath.Base(f.Name()), err)
			}
			return nil
		}
	}
}
