// Package verb is what the host's program does: it looks at a device (Preflight),
// resets it (Reset), checks it afterwards (Verify), tells what it remembers of a
// reset (Mark) and describes the whole host (Report).
package verb

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/opsplane/opsplane/agent/executor/host/gpu"
	"github.com/opsplane/opsplane/agent/executor/host/holder"
	"github.com/opsplane/opsplane/agent/executor/host/kmsg"
	"github.com/opsplane/opsplane/agent/executor/host/mark"
	"github.com/opsplane/opsplane/agent/executor/host/report"
)

// Points at which Host.Pause is called in a reset, for tests that stop it there.
const (
	Started = "started" // the mark is on the disk, nothing was asked of the driver
	Acted   = "acted"   // the driver has reset, the mark does not say so yet
)

// Host is the host that the program runs on.
type Host struct {
	Node string // as Kubernetes calls it; told, not checked
	// Open opens the driver; the error wraps gpu.ErrNoDriver when there is none.
	Open func() (gpu.Driver, error)
	Scan holder.Options
	// Kernel is the kernel's log, /dev/kmsg or a file; empty: it is not read.
	Kernel string
	// State is the folder of the marks. It outlives reboots.
	State string
	// Persistence: turn a device's persistence mode off for its reset, and on
	// again after it. Without, it holds the device.
	Persistence bool
	Now         func() time.Time
	Pause       func(point string) // nil: nobody stops it
}

// Question is what is asked about a device.
type Question struct {
	Device string // by any spelling
	By     mark.By
	// Timeout bounds the driver's reset.
	Timeout time.Duration
}

const (
	bootIDFile = "/proc/sys/kernel/random/boot_id"
	// lockWait is how long a reset waits for others to let the driver go.
	lockWait = 20 * time.Second
	lockPoll = 20 * time.Millisecond
)

// BootID is the kernel's; "" where there is none to read.
func BootID() string {
	b, err := os.ReadFile(bootIDFile)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// errBusyDriver: a reset keeps the driver for itself.
var errBusyDriver = errors.New("a device of the host is being reset")

// lockDriver takes the driver, shared for reading or alone for a reset: a process
// that reads devices holds them for that time.
func (h *Host) lockDriver(ctx context.Context, how int) (release func(), err error) {
	f, err := h.driverLock(how)
	if err != nil {
		return nil, fmt.Errorf("lock driver: %w", err)
	}
	if f == nil {
		return func() {}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for {
		err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lock driver: %w", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			f.Close()
			return nil, errBusyDriver
		}
	}
}

// driverLock opens the lock's file. Whoever only reads may have the folder
// read-only, as serve does; without the file no reset was ever begun here, and
// there is nothing to wait for: nil.
func (h *Host) driverLock(how int) (*os.File, error) {
	path := filepath.Join(h.State, "driver.lock")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(h.State, 0o700); err != nil {
			return nil, err
		}
		f, err = os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	}
	if err == nil || how == syscall.LOCK_EX || !errors.Is(err, syscall.EROFS) && !errors.Is(err, fs.ErrPermission) {
		return f, err
	}
	f, err = os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return f, err
}

// seen is the host at one moment.
type seen struct {
	gpu.System
	fabric string
	xids   map[string][]report.XID // by bus id
	unread []string                // what could not be looked at
	kernel bool                    // the kernel's log was read
}

// look reads everything, under a driver that is open already.
func (h *Host) look(ctx context.Context, d gpu.Driver) (*seen, error) {
	system, err := d.Read(ctx)
	if err != nil {
		return nil, err
	}
	s := &seen{System: system}
	scan, err := holder.Look(ctx, h.Scan)
	if err != nil {
		return nil, err
	}
	s.unread = scan.Unread
	s.fabric = scan.FabricState(s.Devices)
	if h.Kernel != "" {
		boot, err := kmsg.BootTime(h.Now())
		var events []kmsg.Event
		if err == nil {
			events, err = kmsg.Read(h.Kernel, boot)
		}
		if s.kernel = err == nil; err != nil {
			s.unread = append(s.unread, err.Error())
		}
		s.xids = kmsg.Fold(events)
	} else {
		s.unread = append(s.unread, "the kernel's log: it is not named")
	}
	for i := range s.Devices {
		one := &s.Devices[i]
		one.Holders = scan.Of(one)
		one.XIDs = s.xids[one.PCI]
		book, err := mark.Peek(h.State, one.UUID)
		if err != nil {
			s.unread = append(s.unread, err.Error())
			book = &mark.Book{}
		}
		weigh(&one.Device, book.LastDone())
	}
	return s, nil
}

// Report describes the whole host. While a device is reset it answers ok = false:
// what was last said stands.
func (h *Host) Report(ctx context.Context) (out report.Host, ok bool) {
	hostname, _ := os.Hostname()
	out = report.Host{Version: report.Version, Node: h.Node, Hostname: hostname, BootID: BootID(), Source: report.SourceNVML, At: h.Now().UTC(), Devices: []report.Device{}}
	release, err := h.lockDriver(ctx, syscall.LOCK_SH)
	if errors.Is(err, errBusyDriver) {
		return out, false
	}
	var s *seen
	if err == nil {
		defer release()
		var d gpu.Driver
		if d, err = h.Open(); err == nil {
			defer d.Close()
			s, err = h.look(ctx, d)
		}
	}
	if err != nil {
		out.Code, out.Detail = codeOf(err), err.Error()
		return out, true
	}
	out.Source, out.Driver, out.Fabric = s.Source, s.Driver, s.fabric
	for _, d := range s.Devices {
		out.Devices = append(out.Devices, d.Device)
	}
	for _, u := range s.unread {
		out.Cut = append(out.Cut, "not looked at: "+u)
	}
	return out, true
}

func codeOf(err error) string {
	var r *gpu.Refusal
	switch {
	case errors.As(err, &r):
		return r.Code
	case errors.Is(err, gpu.ErrNoDriver):
		return report.CodeNoDriver
	case errors.Is(err, gpu.ErrGone):
		return report.CodeGone
	case errors.Is(err, mark.ErrHeld), errors.Is(err, errBusyDriver):
		return report.CodeInProgress
	}
	return report.CodeHost
}
