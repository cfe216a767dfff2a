package holder

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/opsplane/opsplane/agent/executor/host/gpu"
	"github.com/opsplane/opsplane/agent/executor/host/report"
)

const (
	uuid   = "GPU-8f3c0a6e-1111-2222-3333-444455556666"
	podUID = "7f0d6c3e-aaaa-bbbb-cccc-000000000001"
)

// process makes a process in a false /proc.
func process(t *testing.T, proc string, pid int, comm, cgroup string, files ...string) {
	t.Helper()
	dir := filepath.Join(proc, fmt.Sprint(pid))
	if err := os.MkdirAll(filepath.Join(dir, "fd"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"comm": comm + "\n", "cgroup": cgroup + "\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for i, f := range files {
		if err := os.Symlink(f, filepath.Join(dir, "fd", fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
}

// runs makes a process of a false /proc run a file.
func runs(t *testing.T, proc string, pid int, file string) {
	t.Helper()
	if err := os.Symlink(file, filepath.Join(proc, fmt.Sprint(pid), "exe")); err != nil {
		t.Fatal(err)
	}
}

// kubelet answers like the kubelet's socket of allocations.
type kubelet struct {
	podresources.UnimplementedPodResourcesListerServer
	pods []*podresources.PodResources
}

func (k *kubelet) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	return &podresources.ListPodResourcesResponse{PodResources: k.pods}, nil
}

func startKubelet(t *testing.T, pods ...*podresources.PodResources) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "kubelet") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "k.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(s, &kubelet{pods: pods})
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		os.RemoveAll(dir)
	})
	return path
}

func TestWhoHoldsADevice(t *testing.T) {
	t.Parallel()
	proc, logs := t.TempDir(), t.TempDir()
	if err := os.Mkdir(filepath.Join(logs, "inference_decode-0_"+podUID), 0o700); err != nil {
		t.Fatal(err)
	}
	systemd := "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod7f0d6c3e_aaaa_bbbb_cccc_000000000001.slice/cri-containerd-abc.scope"
	process(t, proc, 100, "python3", systemd, "/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia0", "/dev/nvidia-uvm")
	process(t, proc, 101, "python3", systemd, "/dev/nvidia0")
	process(t, proc, 102, "dcgm-exporter", "0::/kubepods/besteffort/pod7f0d6c3e-aaaa-bbbb-cccc-000000000002/0123456789abcdef", "/dev/nvidia0", "/dev/nvidia1")
	process(t, proc, 103, "nvidia-persiste", "0::/system.slice/nvidia-persistenced.service", "/dev/nvidia0")
	process(t, proc, 104, "nv-fabricmanage", "0::/system.slice/nvidia-fabricmanager.service", "/dev/nvidia-nvswitchctl")
	process(t, proc, 105, Self, "0::/x", "/dev/nvidia0")
	runs(t, proc, 105, "/usr/bin/opsplane-host (deleted)")
	process(t, proc, 108, "another-name", "0::/x", "/dev/nvidia0") // a thread of it may be called anything
	runs(t, proc, 108, "/opsplane-host")
	process(t, proc, 109, Self, "0::/x", "/dev/nvidia0") // that calls itself so
	runs(t, proc, 109, "/usr/bin/python3.12")
	process(t, proc, 110, Self, "0::/x", "/dev/nvidia0") // whose file cannot be told
	process(t, proc, 106, "bash", "0::/user.slice/podium", "/dev/null", "/dev/nvidia10")
	process(t, proc, 107, "train", "11:memory:/kubepods/poddeadbeefdeadbeefdeadbeefdeadbeef/c\n1:name=systemd:/x")
	socket := startKubelet(t,
		&podresources.PodResources{Namespace: "inference", Name: "decode-0", Containers: []*podresources.ContainerResources{{Name: "main",
			Devices: []*podresources.ContainerDevices{{ResourceName: "nvidia.com/gpu", DeviceIds: []string{uuid}}}}}},
		&podresources.PodResources{Namespace: "inference", Name: "idle-0", Containers: []*podresources.ContainerResources{{Name: "main",
			Devices: []*podresources.ContainerDevices{{ResourceName: "nvidia.com/gpu.shared", DeviceIds: []string{uuid + "::3"}}}}}},
		&podresources.PodResources{Namespace: "inference", Name: "mig-0", Containers: []*podresources.ContainerResources{{Name: "main",
			Devices: []*podresources.ContainerDevices{{ResourceName: "nvidia.com/mig-1g.10gb", DeviceIds: []string{"MIG-1", "MIG-other"}}}}}},
		&podresources.PodResources{Namespace: "inference", Name: "claim-0", Containers: []*podresources.ContainerResources{{Name: "main",
			DynamicResources: []*podresources.DynamicResource{{ClaimResources: []*podresources.ClaimResource{{DriverName: "gpu.nvidia.com", DeviceName: "gpu-0"}}}}}}},
		&podresources.PodResources{Namespace: "x", Name: "nic", Containers: []*podresources.ContainerResources{{
			Devices: []*podresources.ContainerDevices{{ResourceName: "mellanox.com/nic", DeviceIds: []string{uuid, "0"}}}}}})
	s, err := Look(t.Context(), Options{Proc: proc, PodLogs: logs, PodResources: socket})
	if err != nil || len(s.Unread) > 0 {
		t.Fatalf("%v, not looked at: %v", err, s.Unread)
	}
	d := &gpu.Device{Device: report.Device{UUID: uuid, Minor: 0, Persistence: true}, Parts: []string{"MIG-1"},
		Processes: []gpu.Process{{PID: 100}, {PID: 107}, {PID: 105}, {PID: 109}}}
	decode := &report.Pod{Namespace: "inference", Name: "decode-0", UID: podUID}
	pod := func(name string) *report.Pod {
		return &report.Pod{Namespace: "inference", Name: name, Container: "main"}
	}
	want := []report.Holder{
		{Kind: report.HolderAllocation, Count: 1, Pod: pod("claim-0")},
		{Kind: report.HolderAllocation, Count: 1, Pod: pod("idle-0")},
		{Kind: report.HolderAllocation, Count: 1, Pod: pod("mig-0")},
		{Kind: report.HolderExporter, Name: "dcgm-exporter", PIDs: []int{102}, Count: 1, Pod: &report.Pod{UID: "7f0d6c3e-aaaa-bbbb-cccc-000000000002"}},
		{Kind: report.HolderProcess, Name: "python3", PIDs: []int{100, 101}, Count: 2, Pod: decode},
		{Kind: report.HolderProcess, Name: "train", PIDs: []int{107}, Count: 1, Pod: &report.Pod{UID: "deadbeefdeadbeefdeadbeefdeadbeef"}},
		{Kind: report.HolderDaemon, Name: "nvidia-persiste", PIDs: []int{103}, Count: 1},
		{Kind: report.HolderProcess, Name: Self, PIDs: []int{109, 110}, Count: 2},
	}
	if diff := cmp.Diff(want, s.Of(d)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := s.FabricState(nil); got != report.FabricRunning || !s.Switches {
		t.Errorf("fabric manager %q, switches %v", got, s.Switches)
	}
}

func TestHolderWithoutAFile(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		device gpu.Device
		want   []report.Holder
	}{
		"legacy persistence mode": {gpu.Device{Device: report.Device{UUID: uuid, Persistence: true}}, []report.Holder{{Kind: report.HolderPersistence}}},
		"virtual machines":        {gpu.Device{Device: report.Device{UUID: uuid}, VMs: 2}, []report.Holder{{Kind: report.HolderVM, Count: 2}}},
		"a recorded process": {gpu.Device{Device: report.Device{UUID: uuid}, Processes: []gpu.Process{{PID: 1, Name: "nv-hostengine"}}},
			[]report.Holder{{Kind: report.HolderExporter, Name: "nv-hostengine", PIDs: []int{1}, Count: 1}}},
		"nobody": {gpu.Device{Device: report.Device{UUID: uuid}}, nil},
	} {
		s := Scan{All: map[int]Proc{1: {PID: 1, Name: "init"}}}
		if diff := cmp.Diff(c.want, s.Of(&c.device)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	s := Scan{}
	if got := s.FabricState([]gpu.Device{{Device: report.Device{NVSwitch: true}}}); got != report.FabricStopped {
		t.Errorf("with a switch and no manager: %q", got)
	}
	if got := s.FabricState([]gpu.Device{{}}); got != report.FabricNone {
		t.Errorf("without a switch: %q", got)
	}
}

// TestKubeletAway: what could not be looked at is told.
func TestKubeletAway(t *testing.T) {
	t.Parallel()
	s, err := Look(t.Context(), Options{PodResources: filepath.Join(t.TempDir(), "none.sock"), PodLogs: filepath.Join(t.TempDir(), "none")})
	if err != nil || len(s.Unread) != 2 {
		t.Errorf("%v, not looked at: %v", err, s.Unread)
	}
}
