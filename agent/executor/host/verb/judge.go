package verb

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/opsplane/opsplane/agent/executor/host/report"
)

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
