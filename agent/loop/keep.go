package loop

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/protocol"
)

const (
	keptMost      = 1000
	keptFileBytes = 2 << 20
)

// keptReport is a report that the plane has not acknowledged, as it lies on disk.
type keptReport struct {
	Report      protocol.Report `json:"report"`
	Correlation string          `json:"correlation_id,omitempty"`
	// SavedAt is what the report's ago_ms count back from.
	SavedAt time.Time `json:"saved_at"`

	// Told: the plane heard it, too late for it to count.
	Told bool `json:"told,omitempty"`

	owned bool          // a run still delivers it itself
	due   time.Duration // when to try next
	tries int
}

// aged returns the report with its times counted back from now.
func (k *keptReport) aged(now time.Time) protocol.Report {
	r, more := k.Report, max(now.Sub(k.SavedAt), 0).Milliseconds()
	r.Steps = slices.Clone(r.Steps)
	for i := range r.Steps {
		r.Steps[i].AgoMS += more
	}
	r.Commands = slices.Clone(r.Commands)
	for i := range r.Commands {
		r.Commands[i].StartAgoMS += more
		if r.Commands[i].Category != "" {
			r.Commands[i].EndAgoMS += more
		}
	}
	return r
}

type keptKey struct {
	operation  string
	generation int64
}

// keep holds the reports that outlived their lease, or may: in memory, and in
// small files so that a restart loses none.
type keep struct {
	dir string // "": memory only
	now func() time.Time
	log *slog.Logger

	disk sync.Mutex // one file at a time; taken before mu

	mu      sync.Mutex
	entries map[keptKey]*keptReport
	kick    chan struct{}
}

// openKeep reads what an earlier process left.
func openKeep(dir string, now func() time.Time, log *slog.Logger) (*keep, error) {
	k := &keep{dir: dir, now: now, log: log, entries: map[keptKey]*keptReport{}, kick: make(chan struct{}, 1)}
	if dir == "" {
		return k, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make state folder: %w", err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "report-*.json"))
	if err != nil {
		return nil, fmt.Errorf("list kept reports: %w", err)
	}
	for _, file := range files {
		entry, err := readKept(file)
		if err != nil {
			log.Warn("a kept report cannot be read and is put aside", slog.String("file", filepath.Base(file)), slog.Any("err", err))
			_ = os.Rename(file, strings.TrimSuffix(file, ".json")+".unreadable")
			continue
		}
		k.entries[keptKey{entry.Report.Operation, entry.Report.Generation}] = entry
	}
	k.bound()
	return k, nil
}

func readKept(file string) (*keptReport, error) {
	info, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	if info.Size() > keptFileBytes {
		return nil, errors.New("too large")
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var entry keptReport
	if err := json.Unmarshal(data, &entry); err != nil {
		return nil, err
	}
	if !id.Valid(id.Operation, entry.Report.Operation) || entry.Report.Generation < 1 {
		return nil, errors.New("names no operation")
	}
	return &entry, nil
}

func (k *keep) file(key keptKey) string {
	return filepath.Join(k.dir, fmt.Sprintf("report-%s-%d.json", key.operation, key.generation))
}

// guard saves a final report that its run goes on delivering, so that a crash
// does not lose it.
func (k *keep) guard(r protocol.Report, correlation string) {
	k.put(&keptReport{Report: r, Correlation: correlation, owned: true})
}

// release keeps a report whose run is over.
func (k *keep) release(r protocol.Report, correlation string, told bool) {
	k.put(&keptReport{Report: r, Correlation: correlation, Told: told})
	select {
	case k.kick <- struct{}{}:
	default:
	}
}

// tell marks a report that the plane has heard, too late for it to count.
func (k *keep) tell(entry *keptReport) {
	k.mu.Lock()
	entry.Told = true
	k.mu.Unlock()
	k.save(entry)
}

func (k *keep) put(entry *keptReport) {
	k.mu.Lock()
	key := keptKey{entry.Report.Operation, entry.Report.Generation}
	if old := k.entries[key]; old != nil && entry.owned {
		k.mu.Unlock()
		return // guarded already
	}
	entry.SavedAt = k.now().UTC()
	k.entries[key] = entry
	k.bound()
	k.mu.Unlock()
	k.save(entry)
}

// save writes the entry's file. The disk's time is not spent under the lock
// that reports wait for.
func (k *keep) save(entry *keptReport) {
	if k.dir == "" {
		return
	}
	k.disk.Lock()
	defer k.disk.Unlock()
	key := keptKey{entry.Report.Operation, entry.Report.Generation}
	k.mu.Lock()
	current, copied := k.entries[key] == entry, *entry
	k.mu.Unlock()
	if !current { // dropped or replaced meanwhile
		return
	}
	if err := writeKept(k.file(key), &copied); err != nil {
		k.log.Error("a report cannot be saved; it is kept in memory only",
			slog.String("operation", key.operation), slog.Any("err", err))
	}
}

func writeKept(file string, entry *keptReport) error {
	data, err := encode(entry)
	if err != nil {
		return err
	}
	if len(data) > keptFileBytes { // the outcome matters most
		bare := *entry
		bare.Report.Commands, bare.Report.Notes = nil, nil
		if data, err = encode(bare); err != nil {
			return err
		}
	}
	tmp := file + ".tmp"
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(tmp, file)
	}
	if err != nil {
		_ = os.Remove(tmp)
		return err
	}
	d, err := os.Open(filepath.Dir(file))
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }()
	return d.Sync()
}

// bound drops the oldest past the limit.
func (k *keep) bound() {
	for len(k.entries) > keptMost {
		var oldest keptKey
		var at time.Time
		for key, entry := range k.entries {
			if at.IsZero() || entry.SavedAt.Before(at) {
				oldest, at = key, entry.SavedAt
			}
		}
		k.log.Error("too many kept reports: the oldest is dropped", slog.String("operation", oldest.operation))
		k.remove(oldest)
	}
}

func (k *keep) remove(key keptKey) {
	if _, ok := k.entries[key]; !ok {
		return
	}
	delete(k.entries, key)
	if k.dir != "" {
		if err := os.Remove(k.file(key)); err != nil && !errors.Is(err, os.ErrNotExist) {
			k.log.Warn("a kept report's file cannot be removed", slog.String("operation", key.operation), slog.Any("err", err))
		}
	}
}

// drop forgets one report.
func (k *keep) drop(operation string, generation int64) {
	k.disk.Lock()
	defer k.disk.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.remove(keptKey{operation, generation})
}

// dropBefore forgets the operation's reports of older generations, which a new
// run of it has taken over.
func (k *keep) dropBefore(operation string, generation int64) {
	k.disk.Lock()
	defer k.disk.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	for key := range k.entries {
		if key.operation == operation && key.generation < generation {
			k.remove(key)
		}
	}
}

// before returns what older generations of the operation left to tell.
func (k *keep) before(operation string, generation int64) []protocol.Report {
	k.mu.Lock()
	defer k.mu.Unlock()
	var out []protocol.Report
	for key, entry := range k.entries {
		if key.operation == operation && key.generation < generation {
			out = append(out, entry.aged(k.now()))
		}
	}
	return out
}

// dueNow returns up to most reports that no run owns and whose time has come.
func (k *keep) dueNow(now time.Duration, most int) []*keptReport {
	k.mu.Lock()
	defer k.mu.Unlock()
	var out []*keptReport
	for _, entry := range k.entries {
		if !entry.owned && entry.due <= now && len(out) < most {
			out = append(out, entry)
		}
	}
	return out
}

// postpone tries again later.
func (k *keep) postpone(entry *keptReport, now, wait time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	entry.tries++
	if wait <= 0 {
		wait = backoff(entry.tries, time.Second, 30*time.Second)
	}
	entry.due = now + wait
}

// has tells whether a report of that very generation is kept.
func (k *keep) has(operation string, generation int64) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.entries[keptKey{operation, generation}] != nil
}
