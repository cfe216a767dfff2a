package holder

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/opsplane/opsplane/agent/executor/host/gpu"
	"github.com/opsplane/opsplane/agent/executor/host/report"
)

// kinds are the programs that are known by name; the kernel cuts it at 15 bytes.
var kinds = []struct {
	prefix, kind string
}{
	{"nvidia-persiste", report.HolderDaemon},
	{fabricManager, report.HolderFabric},
	{"nv-hostengine", report.HolderExporter},
	{"dcgm", report.HolderExporter},
	{"nvidia-device-p", report.HolderDevicePlugin},
	{"gpu-feature-dis", report.HolderDevicePlugin},
	{"gpu-kubelet-plu", report.HolderDevicePlugin},
	{"qemu", report.HolderVM},
	{"cloud-hyperviso", report.HolderVM},
}

// Self is how this program's file is called: it reads devices, lets them go, and
// keeps off while one is reset (see package verb), so it does not count.
const Self = "opsplane-host"

func kindOf(name string) string {
	for _, k := range kinds {
		if strings.HasPrefix(name, k.prefix) {
			return k.kind
		}
	}
	return report.HolderProcess
}

// Of puts together who is on the device, pods first.
func (s *Scan) Of(d *gpu.Device) []report.Holder {
	var out []report.Holder
	seen := map[int]bool{}
	add := func(kind, name string, pid int, pod *report.Pod) {
		if pid > 0 && seen[pid] {
			return
		}
		seen[pid] = true
		kind = cmp.Or(kind, kindOf(name))
		i := slices.IndexFunc(out, func(h report.Holder) bool { return h.Kind == kind && h.Name == name && samePod(h.Pod, pod) })
		if i < 0 {
			out = append(out, report.Holder{Kind: kind, Name: name, Pod: pod})
			i = len(out) - 1
		}
		h := &out[i]
		if h.Count++; pid > 0 && len(h.PIDs) < report.MaxPIDs {
			h.PIDs = append(h.PIDs, pid)
		}
	}
	for _, p := range d.Processes {
		known := s.All[p.PID]
		if p.Name != "" { // recorded: the ids are not this host's
			known = Proc{Name: p.Name}
		}
		if known.Self {
			continue
		}
		pod := known.Pod
		if p.Pod != nil {
			pod = p.Pod
		}
		add(p.Kind, known.Name, p.PID, pod)
	}
	for _, p := range s.Open[d.Minor] {
		if p.Self {
			continue
		}
		add("", p.Name, p.PID, p.Pod)
	}
	for _, a := range s.Allocated {
		uuid, _ := report.UUID(a.Device)
		if uuid != d.UUID && a.Device != strconv.Itoa(d.Minor) && !slices.Contains(d.Parts, a.Device) {
			continue
		}
		if !slices.ContainsFunc(out, func(h report.Holder) bool {
			return h.Pod != nil && h.Pod.Name == a.Pod.Name && h.Pod.Namespace == a.Pod.Namespace
		}) {
			pod := a.Pod
			out = append(out, report.Holder{Kind: report.HolderAllocation, Count: 1, Pod: &pod})
		}
	}
	if d.VMs > 0 {
		out = append(out, report.Holder{Kind: report.HolderVM, Count: d.VMs})
	}
	if d.Persistence && !slices.ContainsFunc(out, func(h report.Holder) bool { return h.Kind == report.HolderDaemon }) {
		out = append(out, report.Holder{Kind: report.HolderPersistence})
	}
	slices.SortStableFunc(out, func(a, b report.Holder) int {
		if (a.Pod != nil) != (b.Pod != nil) {
			if a.Pod != nil {
				return -1
			}
			return 1
		}
		return cmp.Or(strings.Compare(a.Kind, b.Kind), strings.Compare(a.Name, b.Name), strings.Compare(key(a.Pod), key(b.Pod)))
	})
	return out
}

func samePod(a, b *report.Pod) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

func key(p *report.Pod) string {
	if p == nil {
		return ""
	}
	return p.Key()
}

// FabricState is what a report says of the fabric manager.
func (s *Scan) FabricState(devices []gpu.Device) string {
	switched := s.Switches || slices.ContainsFunc(devices, func(d gpu.Device) bool { return d.NVSwitch })
	switch {
	case s.Fabric:
		return report.FabricRunning
	case switched:
		return report.FabricStopped
	}
	return report.FabricNone
}
