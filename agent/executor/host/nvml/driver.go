//go:build cgo && linux

package nvml

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/opsplane/opsplane/agent/executor/host/gpu"
	"github.com/opsplane/opsplane/agent/executor/host/report"
)

// Options say where the driver's parts are.
type Options struct {
	// Library is the file of NVML; empty: libnvidia-ml.so.1 where the loader finds
	// it, or within Root.
	Library string
	// Root is where the driver is installed, as the GPU operator does in a
	// container (/run/nvidia/driver); empty: on the host itself.
	Root string
}

// Driver is NVML with nvidia-smi.
type Driver struct {
	lib nvml.Interface
	smi smi
}

// maxLinks is how many NVLinks are asked for (NVML_NVLINK_MAX_LINKS).
const maxLinks = nvml.NVLINK_MAX_LINKS

// Open loads the library and asks it whether a driver is there. The error wraps
// gpu.ErrNoDriver when there is none.
func Open(o Options) (gpu.Driver, error) {
	var opts []nvml.LibraryOption
	if lib := cmp.Or(o.Library, within(o.Root)); lib != "" {
		opts = append(opts, nvml.WithLibraryPath(lib))
	}
	return open(nvml.New(opts...), newSMI(o.Root))
}

// within looks for the library under a root, where distributions put it.
func within(root string) string {
	if root == "" || root == "/" {
		return ""
	}
	for _, dir := range []string{"usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib"} {
		path := filepath.Join(root, dir, "libnvidia-ml.so.1")
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return ""
}

func open(lib nvml.Interface, s smi) (gpu.Driver, error) {
	switch ret := lib.Init(); ret {
	case nvml.SUCCESS:
		return &Driver{lib: lib, smi: s}, nil
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return nil, fmt.Errorf("%w: libnvidia-ml.so.1 is not there", gpu.ErrNoDriver)
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return nil, fmt.Errorf("%w: the kernel module is not loaded", gpu.ErrNoDriver)
	case nvml.ERROR_NO_PERMISSION:
		return nil, errors.New("open NVML: this process may not use the driver")
	default:
		return nil, fmt.Errorf("open NVML: %s", lib.ErrorString(ret))
	}
}

// Close implements gpu.Driver.
func (d *Driver) Close() { d.lib.Shutdown() }

// Reset implements gpu.Driver. NVML is let go for its time: this process would
// hold the device that is to be reset.
func (d *Driver) Reset(ctx context.Context, uuid string, held *os.File) error {
	d.lib.Shutdown()
	err := d.smi.reset(ctx, uuid, held)
	if ret := d.lib.Init(); ret != nvml.SUCCESS && err == nil {
		return fmt.Errorf("open NVML after the reset: %s", d.lib.ErrorString(ret))
	}
	return err
}

// SetPersistence implements gpu.Driver. Where nvidia-persistenced runs, NVML asks
// it to let the device go or take it.
func (d *Driver) SetPersistence(_ context.Context, uuid string, on bool) error {
	dev, ret := d.lib.DeviceGetHandleByUUID(uuid)
	if ret == nvml.SUCCESS {
		mode := nvml.EnableState(nvml.FEATURE_DISABLED)
		if on {
			mode = nvml.FEATURE_ENABLED
		}
		ret = dev.SetPersistenceMode(mode)
	}
	if ret != nvml.SUCCESS {
		return fmt.Errorf("set persistence mode of %s: %s", uuid, d.lib.ErrorString(ret))
	}
	return nil
}

// Use implements gpu.Driver.
func (d *Driver) Use(_ context.Context, uuid string) error {
	dev, ret := d.lib.DeviceGetHandleByUUID(uuid)
	if ret == nvml.ERROR_NOT_FOUND {
		return fmt.Errorf("%s: %w", uuid, gpu.ErrGone)
	}
	if ret == nvml.SUCCESS {
		var m nvml.Memory
		if m, ret = dev.GetMemoryInfo(); ret == nvml.SUCCESS && m.Total == 0 {
			return fmt.Errorf("use %s: it says that it has no memory", uuid)
		}
	}
	if ret != nvml.SUCCESS {
		return fmt.Errorf("use %s: %s", uuid, d.lib.ErrorString(ret))
	}
	return nil
}

// Read implements gpu.Driver.
func (d *Driver) Read(ctx context.Context) (gpu.System, error) {
	s := gpu.System{Source: report.SourceNVML}
	s.Driver, _ = d.lib.SystemGetDriverVersion()
	n, ret := d.lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return s, fmt.Errorf("count devices: %s", d.lib.ErrorString(ret))
	}
	for i := range n {
		if err := ctx.Err(); err != nil {
			return s, err
		}
		dev, ret := d.lib.DeviceGetHandleByIndex(i)
		if ret != nvml.SUCCESS {
			// One that fell off the bus has no UUID to be told by: the others count.
			continue
		}
		if one, ok := d.device(dev, i); ok {
			s.Devices = append(s.Devices, one)
		}
	}
	byPCI := map[string]string{}
	for i := range s.Devices {
		byPCI[s.Devices[i].PCI] = s.Devices[i].UUID
	}
	for i := range s.Devices { // links are known by bus id
		peers := s.Devices[i].Peers
		s.Devices[i].Peers = nil
		for _, pci := range peers {
			if uuid := byPCI[pci]; uuid != "" && uuid != s.Devices[i].UUID && !slices.Contains(s.Devices[i].Peers, uuid) {
				s.Devices[i].Peers = append(s.Devices[i].Peers, uuid)
			}
		}
		if s.Devices[i].NVSwitch { // through the switches it reaches all the others
			s.Devices[i].Peers = nil
			for j := range s.Devices {
				if j != i && s.Devices[j].NVSwitch {
					s.Devices[i].Peers = append(s.Devices[i].Peers, s.Devices[j].UUID)
				}
			}
		}
	}
	return s, nil
}

// device reads one device. What it does not support stays empty.
func (d *Driver) device(dev nvml.Device, index int) (gpu.Device, bool) {
	var out gpu.Device
	raw, ret := dev.GetUUID()
	uuid, ok := report.UUID(raw)
	if ret != nvml.SUCCESS || !ok {
		return out, false
	}
	out.UUID, out.Index, out.Minor, out.Health = uuid, index, index, report.HealthOK
	if p, ret := dev.GetPciInfo(); ret == nvml.SUCCESS {
		out.PCI = busID(p)
	}
	if m, ret := dev.GetMinorNumber(); ret == nvml.SUCCESS {
		out.Minor = m
	}
	out.Product, _ = dev.GetName()
	if a, ret := dev.GetArchitecture(); ret == nvml.SUCCESS {
		out.Architecture = architectures[a]
	}
	if cur, pending, ret := dev.GetMigMode(); ret == nvml.SUCCESS {
		out.MIG = &report.MIG{Current: onOff(cur), Pending: onOff(pending)}
	}
	if p, ret := dev.GetPersistenceMode(); ret == nvml.SUCCESS {
		out.Persistence = p == nvml.FEATURE_ENABLED
	}
	if v, ret := dev.GetVirtualizationMode(); ret == nvml.SUCCESS {
		switch v {
		case nvml.GPU_VIRTUALIZATION_MODE_PASSTHROUGH:
			out.Virtual = report.VirtualPassthrough
		case nvml.GPU_VIRTUALIZATION_MODE_VGPU:
			out.Virtual = report.VirtualVGPU
		case nvml.GPU_VIRTUALIZATION_MODE_HOST_VGPU:
			if vms, ret := dev.GetActiveVgpus(); ret == nvml.SUCCESS {
				out.VMs = len(vms)
			}
		}
	}
	if out.MIG != nil && out.MIG.Current == "enabled" {
		out.Parts = parts(dev)
	}
	d.errors(dev, &out)
	d.links(dev, &out)
	for _, list := range []func() ([]nvml.ProcessInfo, nvml.Return){dev.GetComputeRunningProcesses, dev.GetGraphicsRunningProcesses, dev.GetMPSComputeRunningProcesses} {
		procs, ret := list()
		if ret != nvml.SUCCESS {
			continue
		}
		for _, p := range procs {
			if pid := int(p.Pid); !slices.ContainsFunc(out.Processes, func(q gpu.Process) bool { return q.PID == pid }) {
				out.Processes = append(out.Processes, gpu.Process{PID: pid})
			}
		}
	}
	return out, true
}

// parts lists the UUIDs of a device's MIG devices.
func parts(dev nvml.Device) (out []string) {
	n, ret := dev.GetMaxMigDeviceCount()
	if ret != nvml.SUCCESS {
		return nil
	}
	for i := range n {
		part, ret := dev.GetMigDeviceHandleByIndex(i)
		if ret != nvml.SUCCESS {
			continue // that slot is empty
		}
		if uuid, ret := part.GetUUID(); ret == nvml.SUCCESS {
			out = append(out, uuid)
		}
	}
	return out
}

// errors reads what the driver says of the device's health.
func (d *Driver) errors(dev nvml.Device, out *gpu.Device) {
	field := []nvml.FieldValue{{FieldId: nvml.FI_DEV_GET_GPU_RECOVERY_ACTION}}
	if ret := dev.GetFieldValues(field); ret == nvml.SUCCESS && field[0].NvmlReturn == uint32(nvml.SUCCESS) {
		out.Recovery = recovery(binary.NativeEndian.Uint32(field[0].Value[:4]))
	}
	corrected, ret := dev.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.VOLATILE_ECC)
	uncorrected, ret2 := dev.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC)
	if ret == nvml.SUCCESS && ret2 == nvml.SUCCESS {
		out.ECC = &report.ECC{Corrected: int64(corrected), Uncorrected: int64(uncorrected)}
	}
	_, ret = dev.GetMemoryInfo()
	_, _, pending, failed, ret2 := dev.GetRemappedRows()
	switch {
	case ret == nvml.ERROR_GPU_IS_LOST || ret == nvml.ERROR_RESET_REQUIRED || ret == nvml.ERROR_UNKNOWN:
		out.Health, out.Detail = report.HealthUnusable, "the driver says: "+d.lib.ErrorString(ret)
	case ret2 == nvml.SUCCESS && failed:
		out.Health, out.Detail = report.HealthDegraded, "a row of its memory could not be remapped"
	case ret2 == nvml.SUCCESS && pending:
		out.Health, out.Detail = report.HealthDegraded, "a row of its memory is remapped at the next reset"
	}
}

// links reads where its NVLinks end; Peers are bus ids until all are known.
func (d *Driver) links(dev nvml.Device, out *gpu.Device) {
	for l := range maxLinks {
		state, ret := dev.GetNvLinkState(l)
		if ret == nvml.ERROR_INVALID_ARGUMENT || ret == nvml.ERROR_NOT_SUPPORTED {
			return // no such link: no more of them
		}
		if ret != nvml.SUCCESS || state != nvml.FEATURE_ENABLED {
			continue
		}
		kind, ret := dev.GetNvLinkRemoteDeviceType(l)
		if ret == nvml.SUCCESS && kind == nvml.NVLINK_DEVICE_TYPE_SWITCH {
			out.NVSwitch = true
			continue
		}
		if remote, ret := dev.GetNvLinkRemotePciInfo(l); ret == nvml.SUCCESS {
			if pci := busID(remote); pci != "" && !slices.Contains(out.Peers, pci) {
				out.Peers = append(out.Peers, pci)
			}
		}
	}
}

func busID(p nvml.PciInfo) string {
	var b []byte
	for _, c := range p.BusId {
		if c == 0 {
			break
		}
		b = append(b, byte(c))
	}
	pci, _ := report.PCI(string(b))
	return pci
}

func onOff(mode int) string {
	if mode == nvml.DEVICE_MIG_ENABLE {
		return "enabled"
	}
	return "disabled"
}

var architectures = map[nvml.DeviceArchitecture]string{
	nvml.DEVICE_ARCH_KEPLER: "kepler", nvml.DEVICE_ARCH_MAXWELL: "maxwell", nvml.DEVICE_ARCH_PASCAL: "pascal", nvml.DEVICE_ARCH_VOLTA: "volta",
	nvml.DEVICE_ARCH_TURING: "turing", nvml.DEVICE_ARCH_AMPERE: "ampere", nvml.DEVICE_ARCH_ADA: "ada", nvml.DEVICE_ARCH_HOPPER: "hopper",
	nvml.DEVICE_ARCH_BLACKWELL: "blackwell", nvml.DEVICE_ARCH_RUBIN: "rubin",
}

// recovery names nvmlDeviceGpuRecoveryAction_t (nvml.h). One that is newer than
// this program is no reason to reset.
func recovery(action uint32) string {
	names := []string{report.RecoveryNone, report.RecoveryReset, report.RecoveryReboot, report.RecoveryDrainP2P, report.RecoveryDrainAndReset,
		report.RecoveryIMEX, report.RecoveryBusReset, report.RecoverySystemReboot}
	if int(action) < len(names) {
		return names[action]
	}
	return fmt.Sprintf("action_%d", action)
}
