// Package recorded is a driver that answers from a file. It carries the tests and
// demonstrations, where no GPU is at hand, and is never chosen by itself: only
// the flag that names the file selects it, and every answer says so
// (report.SourceRecorded).
//
// The file describes the devices of one host, and what is peculiar about them.
// What changes by itself, a reset above all, is kept beside it, in FILE.state.
package recorded

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/opsplane/opsplane/agent/executor/host/gpu"
	"github.com/opsplane/opsplane/agent/executor/host/report"
)

// File is what is recorded of a host.
type File struct {
	Driver  string   `json:"driver"`
	Devices []Device `json:"devices"`
}

// Device is a device and how it behaves.
type Device struct {
	report.Device
	Processes []gpu.Process `json:"processes,omitempty"`
	Parts     []string      `json:"parts,omitempty"`
	VMs       int           `json:"vms,omitempty"`
	Reset     Behaviour     `json:"reset"`
}

// Behaviour is how a device takes a reset.
type Behaviour struct {
	// Refuse is the code that the driver refuses with, whatever holds the device.
	Refuse string `json:"refuse,omitempty"`
	// TakesMS is how long it takes.
	TakesMS int64 `json:"takes_ms,omitempty"`
	// StaysBroken: the device is unusable afterwards. Vanishes: it is not there.
	StaysBroken bool `json:"stays_broken,omitempty"`
	Vanishes    bool `json:"vanishes,omitempty"`
	// NoTrace: nothing that can be read tells that there was a reset.
	NoTrace bool `json:"no_trace,omitempty"`
}

// State is what became of a device.
type State struct {
	Resets      int       `json:"resets"`
	Last        time.Time `json:"last"`
	Persistence *bool     `json:"persistence,omitempty"`
}

// maxFile bounds what is read.
const maxFile = 4 << 20

type driver struct {
	path string
}

// Open opens the recording of a node: the file path, or path/<node>.json when
// path is a folder.
func Open(path, node string) (gpu.Driver, error) {
	info, err := os.Stat(path)
	if err == nil && info.IsDir() {
		if node == "" || filepath.Base(node) != node {
			return nil, fmt.Errorf("open recorded answers: %s is a folder with a file a node, and the node %q is no file name", path, node)
		}
		path = filepath.Join(path, node+".json")
	}
	d := &driver{path: path}
	if _, err := d.file(); err != nil {
		return nil, err
	}
	return d, nil
}

func (d *driver) Close() {}

func (d *driver) file() (File, error) {
	var f File
	b, err := os.ReadFile(d.path)
	if err == nil && len(b) > maxFile {
		err = fmt.Errorf("%d bytes, the limit is %d", len(b), maxFile)
	}
	if err == nil {
		dec := json.NewDecoder(bytes.NewReader(b))
		dec.DisallowUnknownFields()
		err = dec.Decode(&f)
	}
	if err != nil {
		return f, fmt.Errorf("read recorded answers: %w", err)
	}
	for i := range f.Devices {
		x := &f.Devices[i]
		uuid, ok := report.UUID(x.UUID)
		if !ok {
			return f, fmt.Errorf("read recorded answers: devices[%d].uuid: %q is no GPU's UUID", i, x.UUID)
		}
		x.UUID = uuid
		pci, ok := report.PCI(x.PCI)
		if !ok {
			return f, fmt.Errorf("read recorded answers: devices[%d].pci: %q is no bus id", i, x.PCI)
		}
		x.PCI = pci
		if x.Health == "" {
			x.Health = report.HealthOK
		}
	}
	return f, nil
}

// states reads what became of the devices.
func (d *driver) states() (map[string]State, error) {
	out := map[string]State{}
	b, err := os.ReadFile(d.path + ".state")
	if errors.Is(err, fs.ErrNotExist) {
		return out, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &out)
	}
	if err != nil {
		return nil, fmt.Errorf("read recorded state: %w", err)
	}
	return out, nil
}

// change changes the state of one device, alone.
func (d *driver) change(uuid string, f func(s *State)) error {
	lock, err := os.OpenFile(d.path+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return fmt.Errorf("write recorded state: %w", err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("write recorded state: %w", err)
	}
	all, err := d.states()
	if err != nil {
		return err
	}
	s := all[uuid]
	f(&s)
	all[uuid] = s
	b, _ := json.Marshal(all) // plain values always marshal
	tmp := d.path + ".state.new"
	if err := os.WriteFile(tmp, b, 0o644); err != nil {
		return fmt.Errorf("write recorded state: %w", err)
	}
	if err := os.Rename(tmp, d.path+".state"); err != nil {
		return fmt.Errorf("write recorded state: %w", err)
	}
	return nil
}

func (d *driver) find(uuid string) (Device, State, error) {
	f, err := d.file()
	if err != nil {
		return Device{}, State{}, err
	}
	states, err := d.states()
	if err != nil {
		return Device{}, State{}, err
	}
	i := slices.IndexFunc(f.Devices, func(x Device) bool { return x.UUID == uuid })
	if i < 0 || f.Devices[i].Reset.Vanishes && states[uuid].Resets > 0 {
		return Device{}, State{}, fmt.Errorf("%s: %w", uuid, gpu.ErrGone)
	}
	return f.Devices[i], states[uuid], nil
}

// Read implements gpu.Driver.
func (d *driver) Read(ctx context.Context) (gpu.System, error) {
	f, err := d.file()
	if err != nil {
		return gpu.System{}, err
	}
	out := gpu.System{Source: report.SourceRecorded, Driver: f.Driver}
	for _, rec := range f.Devices {
		if err := ctx.Err(); err != nil {
			return out, err
		}
		x, s, err := d.find(rec.UUID)
		if errors.Is(err, gpu.ErrGone) {
			continue
		}
		if err != nil {
			return out, err
		}
		if s.Persistence != nil {
			x.Persistence = *s.Persistence
		}
		if s.Resets > 0 && !x.Reset.NoTrace {
			x.Health, x.Detail, x.Recovery = report.HealthOK, "", report.RecoveryNone
			if x.ECC != nil {
				x.ECC = &report.ECC{}
			}
			if x.MIG != nil {
				x.MIG = &report.MIG{Current: x.MIG.Pending, Pending: x.MIG.Pending}
			}
		}
		if s.Resets > 0 && x.Reset.StaysBroken {
			x.Health, x.Detail, x.Recovery = report.HealthUnusable, "the GPU did not come back after the reset", report.RecoveryReboot
		}
		out.Devices = append(out.Devices, gpu.Device{Device: x.Device, Processes: x.Processes, Parts: x.Parts, VMs: x.VMs})
	}
	return out, nil
}

// Use implements gpu.Driver.
func (d *driver) Use(_ context.Context, uuid string) error {
	x, s, err := d.find(uuid)
	if err != nil {
		return err
	}
	if s.Resets > 0 && x.Reset.StaysBroken || s.Resets == 0 && x.Health == report.HealthUnusable {
		return fmt.Errorf("use %s: the driver says: GPU requires reset", uuid)
	}
	return nil
}

// Reset implements gpu.Driver.
func (d *driver) Reset(ctx context.Context, uuid string, _ *os.File) error {
	x, _, err := d.find(uuid)
	if err != nil {
		return err
	}
	if x.Reset.Refuse != "" {
		return &gpu.Refusal{Code: x.Reset.Refuse, Detail: "the recorded driver refuses to reset " + uuid}
	}
	timer := time.NewTimer(time.Duration(x.Reset.TakesMS) * time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return fmt.Errorf("reset %s: %w", uuid, ctx.Err())
	}
	return d.change(uuid, func(s *State) { s.Resets, s.Last = s.Resets+1, time.Now().UTC() })
}

// SetPersistence implements gpu.Driver.
func (d *driver) SetPersistence(_ context.Context, uuid string, on bool) error {
	if _, _, err := d.find(uuid); err != nil {
		return err
	}
	return d.change(uuid, func(s *State) { s.Persistence = &on })
}

// Resets tells how often a recorded device was reset.
func Resets(path, uuid string) (int, error) {
	states, err := (&driver{path: path}).states()
	return states[uuid].Resets, err
}
