// Package report is the contract between the program that runs on a GPU host
// (opsplane-host) and the agents: what the host says of its devices, and what it
// answers when it is asked to look at one, reset it or check it afterwards.
//
// A Host is kept in a ConfigMap of the agent's namespace by the program's serve
// form; an Answer comes back through a container's termination message, which
// Kubernetes cuts at 4,096 bytes, so that the agent needs no right to read logs
// (https://kubernetes.io/docs/tasks/debug/debug-application/determine-reason-pod-failure/).
// Both sides bound what they write; the agent treats what it reads as untrusted.
package report

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"time"
)

// Version is the version of both documents.
const Version = 1

// Where a Host is kept: ConfigMap Name(node) with the label Label = Hash(node),
// the JSON under Key.
const (
	Label = "opsplane.io/host-report"
	Key   = "report"
)

// Limits. What is past one is cut by the writer, which says so, and refused by
// the reader.
const (
	MaxMessageBytes = 4096      // one Answer: the kubelet's limit of a termination message
	MaxReportBytes  = 512 << 10 // one Host: half of what a ConfigMap may hold
	MaxDevices      = 64        // of a host
	MaxHolders      = 128       // of a device
	MaxXIDs         = 64        // kinds of XIDs of a device
	MaxPeers        = 32        // NVLink peers of a device
	MaxPIDs         = 8         // process ids named of one holder
	MaxNameBytes    = 253       // names, as Kubernetes bounds them
	MaxTextBytes    = 512       // details and texts
	MaxCodeBytes    = 64        // codes
	maxCount        = 1_000_000_000
)

// Sources of what a host says.
const (
	SourceNVML     = "nvml"
	SourceRecorded = "recorded" // answers from a file: tests and demonstrations
)

// Health of a device.
const (
	HealthOK       = "ok"
	HealthDegraded = "degraded" // it works and something is wrong
	HealthUnusable = "unusable" // nothing can run on it
	HealthUnknown  = "unknown"  // something is wrong on its node, and not known of which device
)

// Recovery actions, as the driver names them (NVML: nvmlDeviceGpuRecoveryAction_t
// of NVML_FI_DEV_GET_GPU_RECOVERY_ACTION). "" means that the driver does not say:
// it is older than the field.
const (
	RecoveryNone          = "none"
	RecoveryReset         = "gpu_reset"
	RecoveryReboot        = "node_reboot"
	RecoveryDrainP2P      = "drain_p2p"
	RecoveryDrainAndReset = "drain_and_reset"
	RecoveryIMEX          = "recover_imex_domain"
	RecoveryBusReset      = "bus_reset"
	RecoverySystemReboot  = "system_reboot"
)

// Fabric manager states.
const (
	FabricNone    = ""            // no NVSwitch: there is nothing to manage
	FabricRunning = "running"     //
	FabricStopped = "not_running" // an NVSwitch is there and nobody manages it
)

// Virtualization modes, as the driver within sees them.
const (
	VirtualPassthrough = "passthrough" // this host is a VM that has the whole device
	VirtualVGPU        = "vgpu"        // this host is a VM that has a share of one
)

// Host is what one host says of itself.
type Host struct {
	Version  int    `json:"version"`
	Node     string `json:"node"`
	Hostname string `json:"hostname,omitempty"`
	// BootID is the kernel's, another after each boot.
	BootID string `json:"boot_id,omitempty"`
	Source string `json:"source"`
	Driver string `json:"driver,omitempty"` // its version
	// Fabric is the state of NVIDIA's fabric manager.
	Fabric  string   `json:"fabric,omitempty"`
	Devices []Device `json:"devices"`
	// Code and Detail say why there are no devices to speak of, such as
	// CodeNoDriver.
	Code   string    `json:"code,omitempty"`
	Detail string    `json:"detail,omitempty"`
	At     time.Time `json:"at"`
	// Cut names what was left out to keep to the limits.
	Cut []string `json:"cut,omitempty"`
}

// Device is one GPU as its host sees it.
type Device struct {
	UUID    string `json:"uuid"` // GPU-<lower-case uuid>
	PCI     string `json:"pci"`  // as sysfs writes it: 0000:3b:00.0
	Index   int    `json:"index"`
	Minor   int    `json:"minor"` // of /dev/nvidia<minor>
	Product string `json:"product,omitempty"`
	// Architecture is turing, ampere, hopper, ...: what a reset may touch depends
	// on it.
	Architecture string `json:"architecture,omitempty"`
	MIG          *MIG   `json:"mig,omitempty"` // nil: the device has no such mode
	Persistence  bool   `json:"persistence,omitempty"`
	// Virtual is set within a VM: Virtual*.
	Virtual  string `json:"virtual,omitempty"`
	Health   string `json:"health"`
	Detail   string `json:"detail,omitempty"`
	Recovery string `json:"recovery,omitempty"`
	ECC      *ECC   `json:"ecc,omitempty"`
	// NVSwitch tells that its links end in switches; Peers are the other GPUs
	// that its links lead to.
	NVSwitch bool     `json:"nvswitch,omitempty"`
	Peers    []string `json:"peers,omitempty"`
	Holders  []Holder `json:"holders,omitempty"`
	XIDs     []XID    `json:"xids,omitempty"`
}

// MIG modes: enabled or disabled.
type MIG struct {
	Current string `json:"current"`
	Pending string `json:"pending"`
}

// ChangePending tells whether the mode changes at the next reset.
func (m *MIG) ChangePending() bool { return m != nil && m.Current != m.Pending }

// ECC counts errors since the driver loaded the device.
type ECC struct {
	Corrected   int64 `json:"corrected"`
	Uncorrected int64 `json:"uncorrected"`
}

// Kinds of holders.
const (
	HolderProcess      = "process"
	HolderExporter     = "exporter"         // DCGM and its exporter
	HolderDevicePlugin = "device_plugin"    // NVIDIA's device plugin and feature discovery
	HolderPersistence  = "persistence_mode" // the driver keeps the device open by itself
	HolderDaemon       = "persistenced"     // nvidia-persistenced does
	HolderFabric       = "fabric_manager"
	HolderVM           = "vm"         // a virtual machine has the device
	HolderAllocation   = "allocation" // the kubelet gave it to a pod that has no process on it
)

// Holder is who has a device open, folded by pod and kind.
type Holder struct {
	Kind string `json:"kind"`
	Name string `json:"name,omitempty"` // of the process
	PIDs []int  `json:"pids,omitempty"` // on the host, some of them
	// Count is how many processes there are.
	Count int  `json:"count,omitempty"`
	Pod   *Pod `json:"pod,omitempty"`
}

// Pod is the pod that a process runs in. Namespace and Name are empty when only
// the cgroup tells of it.
type Pod struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	UID       string `json:"uid,omitempty"`
	Container string `json:"container,omitempty"`
}

// Key is namespace/name, or the UID where the name is not known.
func (p *Pod) Key() string {
	if p.Name == "" {
		return "uid " + p.UID
	}
	return p.Namespace + "/" + p.Name
}

// XID is one kind of error that the driver reported of a device, repeats folded.
type XID struct {
	Code  int    `json:"code"`
	Class string `json:"class"`
	// Count is how often it came since the kernel's log begins.
	Count int       `json:"count"`
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
	// VictimOf is the XID that this one came in the wake of, 0: of none.
	VictimOf int    `json:"victim_of,omitempty"`
	Text     string `json:"text,omitempty"`
}

// Pods lists the pods that hold the device, each once.
func (d *Device) Pods() []Pod {
	var out []Pod
	seen := map[string]bool{}
	for _, h := range d.Holders {
		if h.Pod != nil && !seen[h.Pod.Key()] {
			seen[h.Pod.Key()] = true
			out = append(out, *h.Pod)
		}
	}
	return out
}

// Spellings are the other ways in which people and tools name the device: the
// UUID in upper case, and the bus id as NVML writes it (eight digits, upper case)
// and as sysfs does. A bus id is only unique on its node, so it carries the
// node's name.
func (d *Device) Spellings(node string) []string {
	out := []string{"GPU-" + strings.ToUpper(strings.TrimPrefix(d.UUID, "GPU-"))}
	if d.PCI != "" {
		out = append(out, node+"/0000"+strings.ToUpper(d.PCI), node+"/"+d.PCI)
	}
	return out
}

// Hash is the node's name in a form that fits a label.
func Hash(node string) string {
	h := sha256.Sum256([]byte(node))
	return hex.EncodeToString(h[:])[:20]
}

// Prefix is how the names of the hosts' ConfigMaps begin.
const Prefix = "opsplane-host-"

// Name is the name of the node's ConfigMap: the node's with Prefix, or without it
// where that would be longer than an object's name may be. The chart's admission
// policy works the same out from the node in the writer's token, which leaves no
// room for a hash.
func Name(node string) string {
	if len(Prefix)+len(node) > MaxNameBytes {
		return node
	}
	return Prefix + node
}
