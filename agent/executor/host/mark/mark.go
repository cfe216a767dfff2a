// Package mark is the host's high-water mark: what it remembers of the resets of
// each device, so that a run of an operation resets a device once, and an agent
// whose lease is over cannot reset it any more.
//
// There is one file a device, named by its canonical UUID, in a folder of the
// host's that outlives containers. A device's file is changed under a lock that
// the driver's own tool inherits: while a reset goes on, whoever began it, even
// killed, the device is locked. A mark is written and synced before the reset
// begins.
package mark

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/opsplane/opsplane/agent/executor/host/report"
)

// ErrHeld: another process is at the device: a reset is under way.
var ErrHeld = errors.New("another reset of the device is under way")

// maxMarks is how many operations a device remembers.
const maxMarks = 16

// By is who asks: the lease under which an agent acts.
type By struct {
	Operation  string `json:"operation"`
	Run        int    `json:"run"`
	Generation int64  `json:"generation"`
}

func (b By) String() string { return fmt.Sprintf("%s/%d/%d", b.Operation, b.Run, b.Generation) }

// Evidence is what a device showed before a reset, to tell afterwards whether
// one took place.
type Evidence struct {
	Recovery    string `json:"recovery,omitempty"`
	MIGPending  bool   `json:"mig_pending,omitempty"`
	Uncorrected int64  `json:"ecc_uncorrected,omitempty"`
	Corrected   int64  `json:"ecc_corrected,omitempty"`
}

// Entry is one operation's newest reset of the device.
type Entry struct {
	report.Mark
	Before Evidence `json:"before"`
	// Persistence: the device's persistence mode was turned off for the reset and
	// is to be turned on again.
	Persistence bool `json:"persistence,omitempty"`
}

// Book is the marks of one device, open and locked.
type Book struct {
	UUID    string  `json:"uuid"`
	Entries []Entry `json:"entries"` // the newest first

	path string
	lock *os.File
}

// Open locks the device's marks and reads them. It waits for nobody: ErrHeld.
// Close lets them go.
func Open(dir, uuid string) (*Book, error) {
	canonical, ok := report.UUID(uuid)
	if !ok || canonical != uuid {
		return nil, fmt.Errorf("open marks: %q is not a canonical UUID", uuid)
	}
	dir = filepath.Join(dir, "devices")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open marks: %w", err)
	}
	b := &Book{path: filepath.Join(dir, strings.ToLower(uuid)+".json")}
	lock, err := os.OpenFile(b.path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open marks: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		lock.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, ErrHeld
		}
		return nil, fmt.Errorf("lock marks: %w", err)
	}
	b.lock = lock
	if err := b.read(); err != nil {
		lock.Close()
		return nil, err
	}
	b.UUID = uuid
	return b, nil
}

// Peek reads a device's marks without a lock: what is there may change.
func Peek(dir, uuid string) (*Book, error) {
	canonical, ok := report.UUID(uuid)
	if !ok {
		return nil, fmt.Errorf("read marks: %q is no UUID", uuid)
	}
	b := &Book{path: filepath.Join(dir, "devices", strings.ToLower(canonical)+".json")}
	if err := b.read(); err != nil {
		return nil, err
	}
	b.UUID = canonical
	return b, nil
}

func (b *Book) read() error {
	raw, err := os.ReadFile(b.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(raw, b)
	}
	if err != nil { // written whole or not at all: somebody else did this
		return fmt.Errorf("read marks %s: %w", filepath.Base(b.path), err)
	}
	return nil
}

// File is the lock, for the driver's tool to inherit.
func (b *Book) File() *os.File { return b.lock }

// Close lets the lock go, unless a child still has it to which it was given. One that
// is being forked has everything until its exec: that is waited for.
func (b *Book) Close() {
	if b.lock != nil {
		syscall.ForkLock.RLock()
		defer syscall.ForkLock.RUnlock()
		b.lock.Close()
	}
}

// Of is the operation's entry, nil when it has none.
func (b *Book) Of(operation string) *Entry {
	for i := range b.Entries {
		if b.Entries[i].Operation == operation {
			return &b.Entries[i]
		}
	}
	return nil
}

// Stale tells whether by may not act any more: a newer generation of its
// operation was here.
func (b *Book) Stale(by By) *Entry {
	if e := b.Of(by.Operation); e != nil && (e.Generation > by.Generation || e.Run > by.Run) {
		return e
	}
	return nil
}

// LastDone is when the newest reset on record ended; zero: none has.
func (b *Book) LastDone() time.Time {
	var last time.Time
	for i := range b.Entries {
		if e := &b.Entries[i]; e.State == report.MarkDone && e.Done.After(last) {
			last = e.Done
		}
	}
	return last
}

// Put makes e the newest entry and returns when it is on the disk.
func (b *Book) Put(e Entry) error {
	entries := []Entry{e}
	for _, x := range b.Entries {
		if x.Operation != e.Operation && len(entries) < maxMarks {
			entries = append(entries, x)
		}
	}
	b.Entries = entries
	raw, _ := json.Marshal(b) // plain values always marshal
	if err := Replace(b.path, raw); err != nil {
		return fmt.Errorf("write mark: %w", err)
	}
	return nil
}

// Replace writes a file whole or not at all: a new one is written and synced,
// takes the old one's name, and the folder is synced.
func Replace(path string, raw []byte) error {
	f, err := os.OpenFile(path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(raw)
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
