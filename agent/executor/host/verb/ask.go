package verb

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/opsplane/opsplane/agent/executor/host/gpu"
	"github.com/opsplane/opsplane/agent/executor/host/mark"
	"github.com/opsplane/opsplane/agent/executor/host/report"
)

func (h *Host) answer(verb string, q Question) report.Answer {
	return report.Answer{Version: report.Version, Verb: verb, Operation: q.By.Operation, Run: q.By.Run, Generation: q.By.Generation,
		Node: h.Node, BootID: BootID(), At: h.Now().UTC()}
}

// no turns an answer into a refusal.
func no(a report.Answer, code, detail string) report.Answer {
	a.OK, a.Code, a.Detail = false, code, detail
	return a
}

// with opens the driver for reading and finds the device.
func (h *Host) with(ctx context.Context, a report.Answer, q Question, f func(d gpu.Driver, s *seen, dev *gpu.Device, a report.Answer) report.Answer) report.Answer {
	release, err := h.lockDriver(ctx, syscall.LOCK_SH)
	if err != nil {
		return no(a, codeOf(err), err.Error())
	}
	defer release()
	d, err := h.Open()
	if err != nil {
		return no(a, codeOf(err), err.Error())
	}
	defer d.Close()
	s, dev, a := h.find(ctx, d, a, q)
	if dev == nil {
		return a
	}
	return f(d, s, dev, a)
}

// find looks at the host and finds the device; nil: the answer says why.
func (h *Host) find(ctx context.Context, d gpu.Driver, a report.Answer, q Question) (*seen, *gpu.Device, report.Answer) {
	s, err := h.look(ctx, d)
	if err != nil {
		return nil, nil, no(a, codeOf(err), err.Error())
	}
	a.Source, a.Driver, a.Fabric, a.XIDsRead = s.Source, s.Driver, s.fabric, s.kernel
	dev, err := s.Find(q.Device)
	if errors.Is(err, gpu.ErrGone) {
		return s, nil, no(a, report.CodeGone, fmt.Sprintf("host %s has no device %s", h.Node, q.Device))
	}
	if err != nil {
		return s, nil, no(a, report.CodeInvalid, err.Error())
	}
	one := dev.Device
	a.Device = &one
	return s, dev, a
}

// Preflight tells what stands in the way of a reset. It changes nothing.
func (h *Host) Preflight(ctx context.Context, q Question) report.Answer {
	return h.with(ctx, h.answer(report.VerbPreflight, q), q, func(_ gpu.Driver, s *seen, dev *gpu.Device, a report.Answer) report.Answer {
		if code, why := dev.Refusal(s.fabric); code != "" {
			return no(a, code, why)
		}
		if code, why := dev.Busy(h.Persistence); code != "" {
			return no(a, code, why)
		}
		a.OK, a.Detail = true, fmt.Sprintf("GPU %s can be reset", dev.UUID)
		if len(s.unread) > 0 {
			a.Detail += "; not looked at: " + strings.Join(s.unread, "; ")
		}
		return a
	})
}

// Pods tells who holds a device. It changes nothing.
func (h *Host) Pods(ctx context.Context, q Question) report.Answer {
	return h.with(ctx, h.answer(report.VerbPods, q), q, func(_ gpu.Driver, _ *seen, dev *gpu.Device, a report.Answer) report.Answer {
		a.OK, a.Detail = true, fmt.Sprintf("%d pods hold GPU %s", len(dev.Pods()), dev.UUID)
		return a
	})
}

// Verify tells whether the device works, and what it reported since the reset of
// this run began. Persistence mode that the reset turned off is turned on again,
// should the reset not have come to it.
func (h *Host) Verify(ctx context.Context, q Question) report.Answer {
	return h.with(ctx, h.answer(report.VerbVerify, q), q, func(d gpu.Driver, s *seen, dev *gpu.Device, a report.Answer) report.Answer {
		book, err := mark.Peek(h.State, dev.UUID)
		if err != nil {
			return no(a, report.CodeHost, err.Error())
		}
		since := book.LastDone()
		if e := book.Of(q.By.Operation); e != nil {
			m := e.Mark
			a.Mark, since = &m, e.Started
			if e.Persistence && !dev.Persistence {
				if err := d.SetPersistence(ctx, dev.UUID, true); err != nil {
					return no(a, report.CodeHost, err.Error())
				}
			}
		}
		if err := d.Use(ctx, dev.UUID); err != nil {
			return no(a, report.CodeUnusable, err.Error())
		}
		causes := causesSince(&dev.Device, since)
		switch {
		case dev.Health == report.HealthUnusable:
			return no(a, report.CodeUnusable, fmt.Sprintf("GPU %s is unusable after the reset: %s", dev.UUID, dev.Detail))
		case len(causes) > 0:
			return no(a, report.CodeErrors, fmt.Sprintf("GPU %s reported %s since the reset", dev.UUID, xidWords(causes[0])))
		case dev.ECC != nil && dev.ECC.Uncorrected > 0:
			return no(a, report.CodeErrors, fmt.Sprintf("GPU %s counts %d uncorrected memory errors since the reset", dev.UUID, dev.ECC.Uncorrected))
		case dev.Health != report.HealthOK:
			return no(a, report.CodeErrors, fmt.Sprintf("GPU %s is %s after the reset: %s", dev.UUID, dev.Health, dev.Detail))
		}
		a.OK, a.Detail = true, fmt.Sprintf("GPU %s is usable", dev.UUID)
		if len(s.unread) > 0 {
			a.Detail += "; not looked at: " + strings.Join(s.unread, "; ")
		}
		return a
	})
}

// Mark tells what became of the run's reset. It changes nothing. A mark that
// says started while nobody has the device's lock belongs to a reset whose
// process died: then the device is asked for traces.
func (h *Host) Mark(ctx context.Context, q Question) report.Answer {
	a := h.answer(report.VerbMark, q)
	uuid, ok := report.UUID(q.Device)
	if !ok { // a bus id: the driver knows whose
		a = h.with(ctx, a, q, func(_ gpu.Driver, _ *seen, dev *gpu.Device, a report.Answer) report.Answer {
			uuid = dev.UUID
			return a
		})
		if uuid == "" {
			return a
		}
	}
	book, err := mark.Open(h.State, uuid)
	if errors.Is(err, mark.ErrHeld) {
		if book, err = mark.Peek(h.State, uuid); err == nil {
			a.Mark = &report.Mark{State: report.MarkStarted}
			if e := book.Of(q.By.Operation); e != nil {
				m := e.Mark
				a.Mark = &m
			}
			return no(a, report.CodeInProgress, "a reset of the device is under way")
		}
	}
	if err != nil {
		return no(a, report.CodeHost, err.Error())
	}
	e := book.Of(q.By.Operation)
	book.Close() // what follows reads the device, not the book
	switch {
	case e == nil || e.Run < q.By.Run:
		a.OK, a.Mark = true, &report.Mark{State: report.MarkNone}
		return a
	case e.Run > q.By.Run:
		m := e.Mark
		a.Mark = &m
		return no(a, report.CodeStale, fmt.Sprintf("run %d of the operation was here", e.Run))
	}
	m := e.Mark
	a.Mark = &m
	if m.State != report.MarkStarted {
		a.OK = true
		return a
	}
	q.Device = uuid
	return h.with(ctx, a, q, func(_ gpu.Driver, _ *seen, dev *gpu.Device, a report.Answer) report.Answer {
		switch state, why := trace(e, &dev.Device, BootID()); state {
		case report.MarkDone, report.MarkRefused:
			a.OK, a.Mark.State, a.Mark.Detail = true, state, why
			if state == report.MarkRefused {
				a.Mark.Code = report.CodeFailed
			}
			return a
		}
		return no(a, report.CodeUnknown, fmt.Sprintf("a reset of GPU %s was begun at %s by generation %d and its process died; nothing that can be read tells how it ended",
			dev.UUID, m.Started.UTC().Format(time.RFC3339), m.Generation))
	})
}

// evidence is what the device shows before a reset.
func evidence(d *report.Device) mark.Evidence {
	e := mark.Evidence{Recovery: d.Recovery, MIGPending: d.MIG.ChangePending()}
	if d.ECC != nil {
		e.Uncorrected, e.Corrected = d.ECC.Uncorrected, d.ECC.Corrected
	}
	return e
}

// trace compares a device with what it showed before a reset whose end is not on
// record. Volatile error counters begin at 0 when the driver loads the device, at
// a reset or a boot (NVML: nvmlEccCounterType_t); a recovery action and a pending
// MIG mode end with one. What shows no difference proves nothing, but for counters
// that stand where they stood. Counters that are higher prove nothing either: those
// of a device that is ill may have begun anew and come past where they were.
func trace(e *mark.Entry, now *report.Device, boot string) (state, why string) {
	was, is := e.Before, evidence(now)
	switch {
	case e.BootID != "" && boot != "" && e.BootID != boot:
		return report.MarkDone, "the host was booted since, and the device with it"
	case was.Recovery != "" && was.Recovery != report.RecoveryNone && is.Recovery == report.RecoveryNone:
		return report.MarkDone, fmt.Sprintf("the driver asked for %s before and asks for nothing now", strings.ReplaceAll(was.Recovery, "_", " "))
	case was.MIGPending && !is.MIGPending:
		return report.MarkDone, "the MIG mode that was pending is in force"
	case now.ECC == nil:
	case was.Uncorrected > is.Uncorrected || was.Corrected > is.Corrected:
		return report.MarkDone, "the device's error counters began anew"
	case was.Uncorrected == is.Uncorrected && was.Corrected == is.Corrected && was.Uncorrected+was.Corrected > 0:
		return report.MarkRefused, "the device's error counters are as they were: no reset took place"
	}
	return report.MarkStarted, ""
}
