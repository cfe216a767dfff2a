package verb

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/opsplane/opsplane/agent/executor/host/report"
)

// ampereOn are the architectures whose GPUs can be reset one by one although
// NVLinks connect them; before them every peer has to be reset in the same
// command. Between them and Hopper, behind NVSwitches, the fabric manager has to
// run for it. nvidia-smi's manual page, --gpu-reset:
// https://docs.nvidia.com/deploy/nvidia-smi/
var (
	beforeAmpere = []string{"kepler", "maxwell", "pascal", "volta", "turing"}
	needsFabric  = []string{"ampere"}
)

// judge tells what stands in the way of a reset, whoever holds the device. ""
// means nothing that can be seen; the driver has the last word.
func judge(d *report.Device, fabric string) (code, why string) {
	switch {
	case d.Virtual == report.VirtualVGPU: // a passed-through device the driver judges itself
		return report.CodeNotSupported, fmt.Sprintf("GPU %s is a share of one (vGPU): a VM cannot reset it", d.UUID)
	case d.MIG.ChangePending():
		return report.CodeMIG, fmt.Sprintf("GPU %s has a MIG mode change pending (%s, %s at the next reset)", d.UUID, d.MIG.Current, d.MIG.Pending)
	case len(d.Peers) > 0 && slices.Contains(beforeAmpere, d.Architecture):
		return report.CodePeers, fmt.Sprintf("GPU %s shares NVLink with %s, which would have to be reset with it (%s)", d.UUID, strings.Join(d.Peers, ", "), d.Architecture)
	case d.NVSwitch && len(d.Peers) > 0 && fabric != report.FabricRunning && slices.Contains(needsFabric, d.Architecture):
		return report.CodePeers, fmt.Sprintf("GPU %s shares NVLink with %s through NVSwitches and the fabric manager does not run: they would have to be reset with it",
			d.UUID, strings.Join(d.Peers, ", "))
	}
	// What the driver itself asks for:
	// https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/error-recovery-and-response-flags.html
	switch d.Recovery {
	case report.RecoveryReboot, report.RecoverySystemReboot:
		return report.CodeReboot, fmt.Sprintf("GPU %s cannot be reset before its node was rebooted: its driver asks for that", d.UUID)
	case report.RecoveryBusReset, report.RecoveryIMEX:
		return report.CodeNotSupported, fmt.Sprintf("the driver of GPU %s asks for %s, which this program does not do", d.UUID, strings.ReplaceAll(d.Recovery, "_", " "))
	}
	return "", ""
}

// busy tells who has to let the device go. The fabric manager does by itself, and
// with release the persistence mode is turned off for the reset.
func busy(d *report.Device, release bool) (code, why string) {
	var by []string
	for _, h := range d.Holders {
		switch {
		case h.Kind == report.HolderFabric:
		case release && (h.Kind == report.HolderPersistence || h.Kind == report.HolderDaemon):
		default:
			by = append(by, Words(h))
		}
	}
	if len(by) == 0 {
		return "", ""
	}
	return report.CodeBusy, fmt.Sprintf("GPU %s is held by %s", d.UUID, strings.Join(by, ", "))
}

// Words says who a holder is.
func Words(h report.Holder) string {
	name := h.Name
	if len(h.PIDs) > 0 && name != "" {
		name += fmt.Sprintf(" (%d)", h.PIDs[0])
	}
	if h.Count > 1 {
		name += fmt.Sprintf(" and %d more", h.Count-1)
	}
	switch {
	case h.Kind == report.HolderPersistence:
		return "persistence mode"
	case h.Kind == report.HolderVM && h.Name == "":
		return fmt.Sprintf("%d virtual machines", h.Count)
	case h.Pod != nil && h.Kind == report.HolderAllocation:
		return "pod " + h.Pod.Key()
	case h.Pod != nil && h.Kind != report.HolderProcess:
		return fmt.Sprintf("%s of pod %s", strings.ReplaceAll(h.Kind, "_", " "), h.Pod.Key())
	case h.Pod != nil:
		return "pod " + h.Pod.Key()
	case h.Kind == report.HolderProcess:
		return "process " + name
	}
	return strings.ReplaceAll(h.Kind, "_", " ") + " " + name
}

// weigh makes up a device's health from what the driver says and from its XIDs
// since its last reset.
func weigh(d *report.Device, reset time.Time) {
	worse := func(health, why string) {
		rank := []string{report.HealthOK, report.HealthDegraded, report.HealthUnusable}
		if slices.Index(rank, health) > slices.Index(rank, d.Health) {
			d.Health, d.Detail = health, why
		}
	}
	switch d.Recovery {
	case "", report.RecoveryNone:
	case report.RecoveryReboot, report.RecoverySystemReboot, report.RecoveryBusReset:
		worse(report.HealthUnusable, "the driver asks for: "+strings.ReplaceAll(d.Recovery, "_", " "))
	default:
		worse(report.HealthDegraded, "the driver asks for: "+strings.ReplaceAll(d.Recovery, "_", " "))
	}
	for _, x := range causesSince(d, reset) {
		k := report.LookUpXID(x.Code)
		switch k.Advise {
		case report.AdviseReboot:
			worse(report.HealthUnusable, xidWords(x))
		case report.AdviseReset, report.AdviseSupport:
			worse(report.HealthDegraded, xidWords(x))
		}
	}
	if d.ECC != nil && d.ECC.Uncorrected > 0 {
		worse(report.HealthDegraded, fmt.Sprintf("%d uncorrected memory errors", d.ECC.Uncorrected))
	}
}

// causesSince lists the XIDs that accuse the device itself and came after a
// moment.
func causesSince(d *report.Device, since time.Time) []report.XID {
	var out []report.XID
	for _, x := range d.XIDs {
		if x.Cause() && x.Last.After(since) {
			out = append(out, x)
		}
	}
	return out
}

func xidWords(x report.XID) string {
	s := fmt.Sprintf("XID %d (%s)", x.Code, report.LookUpXID(x.Code).Name)
	if x.Count > 1 {
		s += fmt.Sprintf(", %d times", x.Count)
	}
	return s
}
