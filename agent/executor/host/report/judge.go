package report

import (
	"fmt"
	"slices"
	"strings"
)

// GPUs from Ampere on can be reset one by one although NVLinks connect them;
// before it every peer has to be reset in the same command. On Ampere, behind
// NVSwitches, the fabric manager has to run for it; from Hopper on it need not.
// nvidia-smi's manual page, --gpu-reset: https://docs.nvidia.com/deploy/nvidia-smi/
var (
	beforeAmpere = []string{"kepler", "maxwell", "pascal", "volta", "turing"}
	needsFabric  = []string{"ampere"}
)

// Proven words what a verify that was OK tells of a device: what it has verified, and what
// it left open; "": nothing.
func (a *Answer) Proven(uuid string) (verified, open string) {
	verified = fmt.Sprintf("GPU %s is enumerated, its memory can be asked for", uuid)
	if a.XIDsRead {
		return verified + ", and it reported no error since the reset", ""
	}
	return verified, fmt.Sprintf("that GPU %s reported no XID since the reset: it is not known that the kernel's log of its host was read", uuid)
}

// Refusal tells what stands in the way of a reset, whoever holds the device. ""
// means nothing that can be seen; the driver has the last word. fabric is the
// host's.
func (d *Device) Refusal(fabric string) (code, why string) {
	switch {
	case d.Virtual == VirtualVGPU: // a passed-through device the driver judges itself
		return CodeNotSupported, fmt.Sprintf("GPU %s is a share of one (vGPU): a VM cannot reset it", d.UUID)
	case d.MIG.ChangePending():
		return CodeMIG, fmt.Sprintf("GPU %s has a MIG mode change pending (%s, %s at the next reset)", d.UUID, d.MIG.Current, d.MIG.Pending)
	case len(d.Peers) > 0 && slices.Contains(beforeAmpere, d.Architecture):
		return CodePeers, fmt.Sprintf("GPU %s shares NVLink with %s, which would have to be reset with it (%s)", d.UUID, strings.Join(d.Peers, ", "), d.Architecture)
	case d.NVSwitch && len(d.Peers) > 0 && fabric != FabricRunning && slices.Contains(needsFabric, d.Architecture):
		return CodePeers, fmt.Sprintf("GPU %s shares NVLink with %s through NVSwitches and the fabric manager does not run: they would have to be reset with it",
			d.UUID, strings.Join(d.Peers, ", "))
	}
	// What the driver itself asks for:
	// https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/error-recovery-and-response-flags.html
	switch d.Recovery {
	case RecoveryReboot, RecoverySystemReboot:
		return CodeReboot, fmt.Sprintf("GPU %s cannot be reset before its node was rebooted: its driver asks for that", d.UUID)
	case RecoveryBusReset, RecoveryIMEX:
		return CodeNotSupported, fmt.Sprintf("the driver of GPU %s asks for %s, which this program does not do", d.UUID, strings.ReplaceAll(d.Recovery, "_", " "))
	}
	return "", ""
}

// Busy tells who has to let the device go. With release the persistence mode is
// turned off for the reset.
func (d *Device) Busy(release bool) (code, why string) {
	var by []string
	for _, h := range d.Holders {
		if h.Blocks(release) {
			by = append(by, h.String())
		}
	}
	if len(by) == 0 {
		return "", ""
	}
	return CodeBusy, fmt.Sprintf("GPU %s is held by %s", d.UUID, strings.Join(by, ", "))
}

// Blocks tells whether the holder is in the way of a reset: the fabric manager
// lets go by itself, and with release persistence mode is turned off.
func (h Holder) Blocks(release bool) bool {
	switch h.Kind {
	case HolderFabric:
		return false
	case HolderPersistence, HolderDaemon:
		return !release
	}
	return true
}

// String says who the holder is.
func (h Holder) String() string {
	name := h.Name
	if len(h.PIDs) > 0 && name != "" {
		name += fmt.Sprintf(" (%d)", h.PIDs[0])
	}
	if h.Count > 1 {
		name += fmt.Sprintf(" and %d more", h.Count-1)
	}
	switch {
	case h.Kind == HolderPersistence:
		return "persistence mode"
	case h.Kind == HolderVM && h.Name == "":
		return fmt.Sprintf("%d virtual machines", h.Count)
	case h.Pod != nil && h.Kind == HolderAllocation:
		return "pod " + h.Pod.Key()
	case h.Pod != nil && h.Kind != HolderProcess:
		return fmt.Sprintf("%s of pod %s", strings.ReplaceAll(h.Kind, "_", " "), h.Pod.Key())
	case h.Pod != nil:
		return "pod " + h.Pod.Key()
	case h.Kind == HolderProcess:
		return "process " + name
	}
	return strings.ReplaceAll(h.Kind, "_", " ") + " " + name
}
