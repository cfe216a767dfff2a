package verb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/opsplane/opsplane/agent/executor/host/gpu"
	"github.com/opsplane/opsplane/agent/executor/host/mark"
	"github.com/opsplane/opsplane/agent/executor/host/report"
)

// DefaultTimeout bounds the driver's reset: seconds where all is well.
const DefaultTimeout = 2 * time.Minute

// Reset resets the device once for the run that asks. An older generation of the
// operation is refused, whatever it believes of its lease; a run that did it
// before is told so; one whose process died in between is told that nobody knows,
// unless the device itself shows it.
func (h *Host) Reset(ctx context.Context, q Question) report.Answer {
	a := h.answer(report.VerbReset, q)
	// Alone at the driver from the first look on: whoever reads a device holds it.
	release, err := h.lockDriver(ctx, syscall.LOCK_EX)
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
	book, err := mark.Open(h.State, dev.UUID)
	if err != nil {
		return no(a, codeOf(err), err.Error())
	}
	defer book.Close()
	if e := book.Stale(q.By); e != nil {
		m := e.Mark
		a.Mark = &m
		return no(a, report.CodeStale, fmt.Sprintf("generation %d of run %d was here: generation %d of run %d is over", e.Generation, e.Run, q.By.Generation, q.By.Run))
	}
	if e := book.Of(q.By.Operation); e != nil && e.Run == q.By.Run {
		switch done, decided := h.before(a, q, book, e, dev); {
		case decided:
			return done
		}
	}
	if code, why := dev.Refusal(s.fabric); code != "" {
		return no(a, code, why)
	}
	if code, why := dev.Busy(h.Persistence); code != "" {
		return no(a, code, why)
	}
	return h.carryOut(ctx, d, a, q, book, dev)
}

// before judges what this run's earlier leases left behind. decided is false when
// nothing was reset: the run may do it now.
func (h *Host) before(a report.Answer, q Question, book *mark.Book, e *mark.Entry, dev *gpu.Device) (answer report.Answer, decided bool) {
	m := e.Mark
	a.Mark = &m
	switch m.State {
	case report.MarkDone:
		a.OK, a.Already = true, true
		a.Detail = fmt.Sprintf("generation %d of this run reset the GPU at %s", m.Generation, m.Done.UTC().Format(time.RFC3339))
		return a, true
	case report.MarkStarted:
		switch state, why := trace(e, &dev.Device, BootID()); state {
		case report.MarkDone:
			e.State, e.Detail, e.Done = report.MarkDone, why, h.Now().UTC()
			if err := book.Put(*e); err != nil {
				return no(a, report.CodeHost, err.Error()), true
			}
			m = book.Entries[0].Mark
			a.OK, a.Already, a.Detail = true, true, why
			return a, true
		case report.MarkStarted:
			return no(a, report.CodeUnknown, fmt.Sprintf("generation %d of this run began a reset of GPU %s at %s and its process died; nothing that can be read tells how it ended",
				m.Generation, dev.UUID, m.Started.UTC().Format(time.RFC3339))), true
		}
	}
	return a, false
}

// carryOut writes the mark, resets, and writes how it ended.
func (h *Host) carryOut(ctx context.Context, d gpu.Driver, a report.Answer, q Question, book *mark.Book, dev *gpu.Device) report.Answer {
	e := mark.Entry{
		Mark:   report.Mark{State: report.MarkStarted, Operation: q.By.Operation, Run: q.By.Run, Generation: q.By.Generation, Started: h.Now().UTC(), BootID: a.BootID},
		Before: evidence(&dev.Device), Persistence: h.Persistence && dev.Persistence,
	}
	if err := book.Put(e); err != nil { // nothing is on record: nothing is done
		return no(a, report.CodeHost, err.Error())
	}
	h.pause(Started)
	// Whoever stops this program stops it before or after, not in between.
	ctx = context.WithoutCancel(ctx)
	under, cancel := context.WithTimeout(ctx, cmp.Or(q.Timeout, DefaultTimeout))
	defer cancel()
	begun := time.Now()
	var err error
	if e.Persistence {
		if err = d.SetPersistence(under, dev.UUID, false); err != nil {
			err = &gpu.Refusal{Code: report.CodeBusy, Detail: err.Error()}
		}
	}
	if err == nil {
		err = d.Reset(under, dev.UUID, book.File())
	}
	a.Took = time.Since(begun).Milliseconds()
	h.pause(Acted)
	var refused *gpu.Refusal
	switch {
	case err == nil:
		e.State, e.Done = report.MarkDone, h.Now().UTC()
	case errors.As(err, &refused):
		e.State, e.Code, e.Detail = report.MarkRefused, refused.Code, refused.Detail
	case errors.Is(err, gpu.ErrGone):
		e.State, e.Code, e.Detail = report.MarkRefused, report.CodeGone, err.Error()
	}
	if e.Persistence {
		if on := d.SetPersistence(ctx, dev.UUID, true); on == nil {
			e.Persistence = false
		}
	}
	if put := book.Put(e); put != nil && err == nil {
		// It was reset and the record says started: whoever asks next finds out.
		return no(a, report.CodeUnknown, fmt.Sprintf("GPU %s was reset and %v", dev.UUID, put))
	}
	m := e.Mark
	a.Mark = &m
	switch {
	case err == nil:
		a.OK, a.Detail = true, fmt.Sprintf("the host reset GPU %s", dev.UUID)
	case e.State == report.MarkRefused:
		return no(a, e.Code, e.Detail)
	default:
		return no(a, report.CodeUnknown, fmt.Sprintf("the reset of GPU %s was begun and how it ended is not known: %v", dev.UUID, err))
	}
	if s, err := d.Read(ctx); err == nil { // as it is now
		if now, err := s.Find(dev.UUID); err == nil {
			one := now.Device
			one.Holders, one.XIDs = dev.Holders, dev.XIDs
			a.Device = &one
		}
	}
	return a
}

func (h *Host) pause(point string) {
	if h.Pause != nil {
		h.Pause(point)
	}
}
