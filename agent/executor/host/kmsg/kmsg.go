// Package kmsg reads what NVIDIA's driver wrote to the kernel's log of its
// devices: XIDs, repeats folded, told apart into causes and what came in their
// wake.
package kmsg

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/opsplane/opsplane/agent/executor/host/report"
)

// wake is how long after a cause (or just before it, since the driver's threads
// race) another XID of the device counts as having come in its wake.
const (
	wake       = 10 * time.Second
	wakeBefore = time.Second
	// maxRecord is the kernel's limit of one record (CONSOLE_EXT_LOG_MAX).
	maxRecord = 8192
	// maxRecords bounds how much of a log is looked at.
	maxRecords = 200_000
)

// Event is one XID as the kernel's log has it.
type Event struct {
	PCI  string // sysfs's spelling
	Code int
	At   time.Time
	Text string
}

// form is the driver's line:
//
//	NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python3, GPU has fallen off the bus.
//
// https://docs.nvidia.com/deploy/xid-errors/ ("Xid messages")
var form = regexp.MustCompile(`NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+)(?:, ?)?(.*)`)

// Parse reads one record of /dev/kmsg, "priority,sequence,microseconds,flags;text",
// or a plain line. boot is when the kernel's clock began.
func Parse(record string, boot time.Time) (Event, bool) {
	head, text, isRecord := strings.Cut(record, ";")
	at := time.Time{}
	if isRecord {
		part := strings.Split(head, ",")
		if len(part) < 3 {
			return Event{}, false
		}
		us, err := strconv.ParseInt(part[2], 10, 64)
		if err != nil || us < 0 {
			return Event{}, false
		}
		at = boot.Add(time.Duration(us) * time.Microsecond)
	} else {
		text = record
	}
	text, _, _ = strings.Cut(text, "\n") // what follows are tags of the record
	m := form.FindStringSubmatch(text)
	if m == nil {
		return Event{}, false
	}
	pci, ok := report.PCI(m[1])
	code, err := strconv.Atoi(m[2])
	if !ok || err != nil {
		return Event{}, false
	}
	return Event{PCI: pci, Code: code, At: at.UTC(), Text: strings.TrimSpace(m[3])}, true
}

// Read reads the XIDs of the log at path: /dev/kmsg, or a file of such records.
func Read(path string, boot time.Time) ([]Event, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("read kernel log: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("read kernel log: %w", err)
	}
	next := lines(f)
	if info.Mode()&os.ModeCharDevice != 0 {
		fd := int(f.Fd()) // which makes it block
		if err := unix.SetNonblock(fd, true); err != nil {
			return nil, fmt.Errorf("read kernel log: %w", err)
		}
		next = records(fd)
	}
	var out []Event
	for range maxRecords {
		record, err := next()
		if e, ok := Parse(record, boot); ok {
			out = append(out, e)
		}
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return out, fmt.Errorf("read kernel log: %w", err)
		}
	}
	return out, nil
}

func lines(f *os.File) func() (string, error) {
	r := bufio.NewReaderSize(f, maxRecord)
	return func() (string, error) {
		slice, err := r.ReadSlice('\n')
		line := string(bytes.TrimSuffix(slice, []byte("\n"))) // the slice is the reader's
		for errors.Is(err, bufio.ErrBufferFull) {             // the rest of an overlong line
			_, err = r.ReadSlice('\n')
		}
		return line, err
	}
}

// records reads the device: one record a read, EAGAIN after the last, EPIPE when
// older ones were overwritten meanwhile.
// https://docs.kernel.org/admin-guide/abi-testing-files.html (dev-kmsg)
func records(fd int) func() (string, error) {
	buf := make([]byte, maxRecord)
	return func() (string, error) {
		for {
			n, err := unix.Read(fd, buf)
			switch {
			case errors.Is(err, unix.EINTR), errors.Is(err, unix.EPIPE):
				continue
			case errors.Is(err, unix.EAGAIN), err == nil && n == 0:
				return "", io.EOF
			case err != nil:
				return "", err
			}
			return string(buf[:n]), nil
		}
	}
}

// Fold turns events into what a report carries, by device: each code once, the
// causes first and then the newest first.
func Fold(events []Event) map[string][]report.XID {
	byDevice := map[string][]Event{}
	for _, e := range events {
		byDevice[e.PCI] = append(byDevice[e.PCI], e)
	}
	out := map[string][]report.XID{}
	for pci, es := range byDevice {
		slices.SortStableFunc(es, func(a, b Event) int { return a.At.Compare(b.At) })
		out[pci] = fold(es)
	}
	return out
}

func fold(events []Event) []report.XID {
	var out []report.XID
	for i, e := range events {
		k := slices.IndexFunc(out, func(x report.XID) bool { return x.Code == e.Code })
		if k < 0 {
			out = append(out, report.XID{Code: e.Code, Class: report.LookUpXID(e.Code).Class, First: e.At})
			k = len(out) - 1
		}
		x := &out[k]
		x.Count++
		x.Last, x.Text = e.At, e.Text
		// The newest one decides: a 45 that once followed a 48 and now comes alone is
		// nobody's victim.
		x.VictimOf = causeOf(events, i)
	}
	slices.SortStableFunc(out, func(a, b report.XID) int {
		if a.Cause() != b.Cause() {
			if a.Cause() {
				return -1
			}
			return 1
		}
		return b.Last.Compare(a.Last)
	})
	return out
}

// causeOf finds the XID in whose wake event i came, 0: none. Only what a program
// or another XID would explain is explained away so.
func causeOf(events []Event, i int) int {
	switch report.LookUpXID(events[i].Code).Class {
	case report.ClassVictim, report.ClassApplication, report.ClassInfo:
	default:
		return 0
	}
	best := 0
	for _, e := range events {
		after := events[i].At.Sub(e.At)
		if after > wake || after < -wakeBefore {
			continue
		}
		if c := report.LookUpXID(e.Code).Class; c == report.ClassHardware || c == report.ClassDriver {
			best = e.Code // the last of them
		}
	}
	return best
}

// BootTime is when the kernel's log begins to count.
func BootTime(now time.Time) (time.Time, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return time.Time{}, fmt.Errorf("read kernel clock: %w", err)
	}
	return now.Add(-time.Duration(ts.Nano())), nil
}
