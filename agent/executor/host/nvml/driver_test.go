//go:build cgo && linux

package nvml

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/agent/executor/host/gpu"
	"github.com/opsplane/opsplane/agent/executor/host/report"
)

// TestNoLibrary: on a host without a driver the program says so; it does not die.
func TestNoLibrary(t *testing.T) {
	t.Parallel()
	_, err := Open(Options{Library: "libnvidia-ml-that-is-nowhere.so.1"})
	if !errors.Is(err, gpu.ErrNoDriver) {
		t.Errorf("got %v", err)
	}
	for ret, want := range map[nvml.Return]bool{nvml.ERROR_DRIVER_NOT_LOADED: true, nvml.ERROR_NO_PERMISSION: false, nvml.ERROR_UNKNOWN: false} {
		lib := &mock.Interface{InitFunc: func() nvml.Return { return ret }, ErrorStringFunc: func(nvml.Return) string { return "said" }}
		if _, err := open(lib, smi{}); errors.Is(err, gpu.ErrNoDriver) != want || err == nil {
			t.Errorf("%v: %v", ret, err)
		}
	}
}

func pci(id string) nvml.PciInfo {
	var p nvml.PciInfo
	for i, c := range []byte(id) {
		p.BusId[i] = int8(c)
	}
	return p
}

// device is one that supports everything.
func device(id, bus string, links ...string) *mock.Device {
	return &mock.Device{
		GetUUIDFunc:              func() (string, nvml.Return) { return id, nvml.SUCCESS },
		GetPciInfoFunc:           func() (nvml.PciInfo, nvml.Return) { return pci(bus), nvml.SUCCESS },
		GetMinorNumberFunc:       func() (int, nvml.Return) { return 3, nvml.SUCCESS },
		GetNameFunc:              func() (string, nvml.Return) { return "NVIDIA H100 80GB HBM3", nvml.SUCCESS },
		GetArchitectureFunc:      func() (nvml.DeviceArchitecture, nvml.Return) { return nvml.DEVICE_ARCH_HOPPER, nvml.SUCCESS },
		GetMigModeFunc:           func() (int, int, nvml.Return) { return nvml.DEVICE_MIG_ENABLE, nvml.DEVICE_MIG_DISABLE, nvml.SUCCESS },
		GetMaxMigDeviceCountFunc: func() (int, nvml.Return) { return 2, nvml.SUCCESS },
		GetMigDeviceHandleByIndexFunc: func(i int) (nvml.Device, nvml.Return) {
			if i == 0 {
				return nil, nvml.ERROR_NOT_FOUND
			}
			return &mock.Device{GetUUIDFunc: func() (string, nvml.Return) { return "MIG-1", nvml.SUCCESS }}, nvml.SUCCESS
		},
		GetPersistenceModeFunc: func() (nvml.EnableState, nvml.Return) { return nvml.FEATURE_ENABLED, nvml.SUCCESS },
		GetVirtualizationModeFunc: func() (nvml.GpuVirtualizationMode, nvml.Return) {
			return nvml.GPU_VIRTUALIZATION_MODE_HOST_VGPU, nvml.SUCCESS
		},
		GetActiveVgpusFunc: func() ([]nvml.VgpuInstance, nvml.Return) { return make([]nvml.VgpuInstance, 2), nvml.SUCCESS },
		GetFieldValuesFunc: func(v []nvml.FieldValue) nvml.Return {
			binary.NativeEndian.PutUint32(v[0].Value[:4], 4)
			return nvml.SUCCESS
		},
		GetTotalEccErrorsFunc: func(kind nvml.MemoryErrorType, _ nvml.EccCounterType) (uint64, nvml.Return) {
			return uint64(kind) + 1, nvml.SUCCESS
		},
		GetMemoryInfoFunc:   func() (nvml.Memory, nvml.Return) { return nvml.Memory{Total: 80 << 30}, nvml.SUCCESS },
		GetRemappedRowsFunc: func() (int, int, bool, bool, nvml.Return) { return 0, 1, true, false, nvml.SUCCESS },
		GetNvLinkStateFunc: func(l int) (nvml.EnableState, nvml.Return) {
			if l >= len(links) {
				return 0, nvml.ERROR_INVALID_ARGUMENT
			}
			return nvml.FEATURE_ENABLED, nvml.SUCCESS
		},
		GetNvLinkRemoteDeviceTypeFunc: func(l int) (nvml.IntNvLinkDeviceType, nvml.Return) {
			if links[l] == "switch" {
				return nvml.NVLINK_DEVICE_TYPE_SWITCH, nvml.SUCCESS
			}
			return nvml.NVLINK_DEVICE_TYPE_GPU, nvml.SUCCESS
		},
		GetNvLinkRemotePciInfoFunc:        func(l int) (nvml.PciInfo, nvml.Return) { return pci(links[l]), nvml.SUCCESS },
		GetComputeRunningProcessesFunc:    func() ([]nvml.ProcessInfo, nvml.Return) { return []nvml.ProcessInfo{{Pid: 7}, {Pid: 8}}, nvml.SUCCESS },
		GetGraphicsRunningProcessesFunc:   func() ([]nvml.ProcessInfo, nvml.Return) { return []nvml.ProcessInfo{{Pid: 8}}, nvml.SUCCESS },
		GetMPSComputeRunningProcessesFunc: func() ([]nvml.ProcessInfo, nvml.Return) { return nil, nvml.ERROR_NOT_SUPPORTED },
	}
}

// library is a driver with these devices.
func library(devices ...*mock.Device) *mock.Interface {
	return &mock.Interface{
		InitFunc:                   func() nvml.Return { return nvml.SUCCESS },
		ShutdownFunc:               func() nvml.Return { return nvml.SUCCESS },
		ErrorStringFunc:            func(r nvml.Return) string { return r.Error() },
		SystemGetDriverVersionFunc: func() (string, nvml.Return) { return "580.65.06", nvml.SUCCESS },
		DeviceGetCountFunc:         func() (int, nvml.Return) { return len(devices), nvml.SUCCESS },
		DeviceGetHandleByIndexFunc: func(i int) (nvml.Device, nvml.Return) {
			if devices[i] == nil {
				return nil, nvml.ERROR_GPU_IS_LOST
			}
			return devices[i], nvml.SUCCESS
		},
		DeviceGetHandleByUUIDFunc: func(id string) (nvml.Device, nvml.Return) {
			for _, d := range devices {
				if d != nil {
					if got, _ := d.GetUUID(); strings.EqualFold(got, id) {
						return d, nvml.SUCCESS
					}
				}
			}
			return nil, nvml.ERROR_NOT_FOUND
		},
	}
}

func TestRead(t *testing.T) {
	t.Parallel()
	const other = "GPU-00000000-1111-2222-3333-444455556666"
	a := device("GPU-8F3C0A6E-1111-2222-3333-444455556666", "00000000:3B:00.0", "00000000:86:00.0", "00000000:86:00.0", "00000000:FF:00.0")
	bare := &mock.Device{GetUUIDFunc: func() (string, nvml.Return) { return other, nvml.SUCCESS },
		GetPciInfoFunc: func() (nvml.PciInfo, nvml.Return) { return pci("00000000:86:00.0"), nvml.SUCCESS }}
	unsupported(bare)
	d, err := open(library(a, nil, bare), smi{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := d.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := gpu.System{Source: report.SourceNVML, Driver: "580.65.06", Devices: []gpu.Device{
		{Device: report.Device{UUID: uuid, PCI: "0000:3b:00.0", Minor: 3, Product: "NVIDIA H100 80GB HBM3", Architecture: "hopper",
			MIG: &report.MIG{Current: "enabled", Pending: "disabled"}, Persistence: true, Health: report.HealthDegraded,
			Detail: "a row of its memory is remapped at the next reset", Recovery: report.RecoveryDrainAndReset, ECC: &report.ECC{Corrected: 1, Uncorrected: 2},
			Peers: []string{other}}, Processes: []gpu.Process{{PID: 7}, {PID: 8}}, Parts: []string{"MIG-1"}, VMs: 2},
		{Device: report.Device{UUID: other, PCI: "0000:86:00.0", Index: 2, Minor: 2, Health: report.HealthOK}},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// unsupported makes a device of which nothing more can be read.
func unsupported(d *mock.Device) {
	no := nvml.ERROR_NOT_SUPPORTED
	d.GetMinorNumberFunc = func() (int, nvml.Return) { return 0, no }
	d.GetNameFunc = func() (string, nvml.Return) { return "", no }
	d.GetArchitectureFunc = func() (nvml.DeviceArchitecture, nvml.Return) { return 0, no }
	d.GetMigModeFunc = func() (int, int, nvml.Return) { return 0, 0, no }
	d.GetPersistenceModeFunc = func() (nvml.EnableState, nvml.Return) { return 0, no }
	d.GetVirtualizationModeFunc = func() (nvml.GpuVirtualizationMode, nvml.Return) { return 0, no }
	d.GetFieldValuesFunc = func([]nvml.FieldValue) nvml.Return { return no }
	d.GetTotalEccErrorsFunc = func(nvml.MemoryErrorType, nvml.EccCounterType) (uint64, nvml.Return) { return 0, no }
	d.GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) { return nvml.Memory{}, no }
	d.GetRemappedRowsFunc = func() (int, int, bool, bool, nvml.Return) { return 0, 0, false, false, no }
	d.GetNvLinkStateFunc = func(int) (nvml.EnableState, nvml.Return) { return 0, no }
	none := func() ([]nvml.ProcessInfo, nvml.Return) { return nil, no }
	d.GetComputeRunningProcessesFunc, d.GetGraphicsRunningProcessesFunc, d.GetMPSComputeRunningProcessesFunc = none, none, none
}

// TestSwitched: behind NVSwitches every GPU reaches every other.
func TestSwitched(t *testing.T) {
	t.Parallel()
	d, err := open(library(device(uuid, "00000000:3B:00.0", "switch", "switch"), device("GPU-00000000-1111-2222-3333-444455556666", "00000000:86:00.0", "switch")), smi{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := d.Read(t.Context())
	if err != nil || !got.Devices[0].NVSwitch || len(got.Devices[0].Peers) != 1 || got.Devices[0].Peers[0] != got.Devices[1].UUID {
		t.Errorf("%+v: %v", got.Devices, err)
	}
}

func TestUse(t *testing.T) {
	t.Parallel()
	good := device(uuid, "00000000:3B:00.0")
	lost := device("GPU-00000000-1111-2222-3333-444455556666", "00000000:86:00.0")
	lost.GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) { return nvml.Memory{}, nvml.ERROR_GPU_IS_LOST }
	var set nvml.EnableState = 9
	good.SetPersistenceModeFunc = func(s nvml.EnableState) nvml.Return { set = s; return nvml.SUCCESS }
	d, err := open(library(good, lost), smi{})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Use(t.Context(), uuid); err != nil {
		t.Error(err)
	}
	if err := d.Use(t.Context(), "GPU-00000000-1111-2222-3333-444455556666"); err == nil || errors.Is(err, gpu.ErrGone) {
		t.Errorf("a lost one: %v", err)
	}
	if err := d.Use(t.Context(), "GPU-11111111-1111-2222-3333-444455556666"); !errors.Is(err, gpu.ErrGone) {
		t.Errorf("none: %v", err)
	}
	if err := d.SetPersistence(t.Context(), uuid, false); err != nil || set != nvml.FEATURE_DISABLED {
		t.Errorf("persistence %v: %v", set, err)
	}
	got, err := d.Read(t.Context())
	if err != nil || got.Devices[1].Health != report.HealthUnusable {
		t.Errorf("%+v: %v", got.Devices[1], err)
	}
}

// TestResetLetsGo: NVML is closed while the tool runs: this process would hold the
// device.
func TestResetLetsGo(t *testing.T) {
	t.Parallel()
	lib := library(device(uuid, "00000000:3B:00.0"))
	open1 := 0
	lib.InitFunc = func() nvml.Return { open1++; return nvml.SUCCESS }
	lib.ShutdownFunc = func() nvml.Return { open1--; return nvml.SUCCESS }
	d, err := open(lib, tool(t, "exit 3"))
	if err != nil {
		t.Fatal(err)
	}
	var r *gpu.Refusal
	if err := d.Reset(t.Context(), uuid, nil); !errors.As(err, &r) || open1 != 1 {
		t.Errorf("%v, opened %d times", err, open1)
	}
	d.Close()
	if open1 != 0 {
		t.Errorf("left open %d times", open1)
	}
}
