// Package gpu is what the host's program asks of a GPU driver: NVIDIA's, through
// NVML and nvidia-smi (package nvml), or recorded answers (package recorded).
package gpu

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/opsplane/opsplane/agent/executor/host/report"
)

// ErrNoDriver: there is no driver to ask. Its text says which part is missing.
var ErrNoDriver = errors.New("no NVIDIA driver")

// ErrGone: the driver knows no such device.
var ErrGone = errors.New("no such device")

// Driver reads and resets the GPUs of this host.
type Driver interface {
	// Read lists the devices as the driver sees them. Of report.Device it leaves
	// Holders and XIDs open: those come from the kernel and the kubelet, too.
	Read(ctx context.Context) (System, error)
	// Use proves that a device can be used: its memory is asked for. ErrGone when
	// it is not enumerated.
	Use(ctx context.Context, uuid string) error
	// Reset resets one device. *Refusal: nothing was done. Any other error, the
	// end of ctx too: nobody knows. What it starts inherits held, whose lock then
	// lasts as long as the driver's own tool does.
	Reset(ctx context.Context, uuid string, held *os.File) error
	// SetPersistence turns a device's persistence mode on or off.
	SetPersistence(ctx context.Context, uuid string, on bool) error
	// Close lets the driver go: while it is open, this program holds the devices.
	Close()
}

// System is what the driver says of the host.
type System struct {
	Source  string // report.SourceNVML or report.SourceRecorded
	Driver  string // its version
	Devices []Device
}

// Device is a device with what only the driver knows of who is on it.
type Device struct {
	report.Device
	Processes []Process
	// Parts are the UUIDs of its MIG devices, as the kubelet hands them out.
	Parts []string
	// VMs is how many virtual machines have a share of it.
	VMs int
}

// Process is a process that the driver has a context for.
type Process struct {
	PID  int    `json:"pid"`
	Name string `json:"name,omitempty"` // empty: to be read from /proc
	// Pod is set by recorded answers alone; the driver knows of none.
	Pod *report.Pod `json:"pod,omitempty"`
	// Kind is a report.Holder* kind where it is known before, as recorded answers
	// do; else it follows from the name.
	Kind string `json:"kind,omitempty"`
}

// Find finds a device by any of its spellings: its UUID with or without prefix
// and in either case, or its bus id as NVML, sysfs or people write it.
func (s *System) Find(name string) (*Device, error) {
	uuid, isUUID := report.UUID(name)
	pci, isPCI := report.PCI(name)
	if !isUUID && !isPCI {
		return nil, fmt.Errorf("device %q is neither a GPU's UUID nor a bus id", name)
	}
	for i := range s.Devices {
		if d := &s.Devices[i]; isUUID && d.UUID == uuid || isPCI && d.PCI == pci {
			return d, nil
		}
	}
	return nil, fmt.Errorf("device %s: %w", name, ErrGone)
}

// Refusal is a driver that says no, having done nothing.
type Refusal struct {
	Code   string // report.Code*
	Detail string
}

func (r *Refusal) Error() string { return r.Code + ": " + r.Detail }
