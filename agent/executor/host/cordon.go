package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/host/mark"
	"github.com/opsplane/opsplane/shared/protocol"
)

// cordonBook is the file that says whether anybody should place work here.
type cordonBook struct {
	Cordon *protocol.Cordon `json:"cordon,omitempty"`
	// Lifted says which operation opened the host last; it goes with the next cordon
	// that an operation places.
	Lifted *protocol.Cordon `json:"lifted,omitempty"`
	// Marks are the leases that changed it, the newest first: an older one of the
	// same operation is refused.
	Marks []mark.By `json:"marks,omitempty"`
}

// CordonFile is the file's name in the folder of the host's state. Whoever places
// work on the host can read it: {"cordon": {...}} says no. Without "cordon", or
// without the file, the host is open.
const CordonFile = "cordon.json"

const maxCordonMarks = 16

func (e *Executor) readCordon() (cordonBook, error) {
	var b cordonBook
	raw, err := os.ReadFile(filepath.Join(e.o.State, CordonFile))
	if errors.Is(err, fs.ErrNotExist) {
		return b, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, &b)
	}
	if err != nil {
		return b, fmt.Errorf("read the host's cordon: %w", err)
	}
	return b, nil
}

// errStale: a newer lease of the operation changed the cordon.
var errStale = errors.New("a newer lease of this operation was here")

// writeCordon changes the file under a lock, once f says how; f may refuse.
func (e *Executor) writeCordon(by mark.By, f func(b *cordonBook) error) error {
	path := filepath.Join(e.o.State, CordonFile)
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("change the host's cordon: %w", err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("change the host's cordon: %w", err)
	}
	b, err := e.readCordon()
	if err != nil {
		return err
	}
	marks := []mark.By{by}
	for _, m := range b.Marks {
		switch {
		case m.Operation != by.Operation:
			if len(marks) < maxCordonMarks {
				marks = append(marks, m)
			}
		case m.Generation > by.Generation:
			return errStale
		}
	}
	if err := f(&b); err != nil {
		return err
	}
	b.Marks = marks
	raw, _ := json.Marshal(b) // plain values always marshal
	if err := mark.Replace(path, raw); err != nil {
		return fmt.Errorf("change the host's cordon: %w", err)
	}
	return nil
}

func byOf(t *executor.Task) mark.By {
	return mark.By{Operation: t.Assignment.Operation, Run: t.Assignment.Run, Generation: t.Assignment.Generation}
}

func (e *Executor) probeCordon(context.Context, *executor.Task) (f executor.Finding) {
	return e.probeOpen(false)
}

func (e *Executor) probeUncordon(context.Context, *executor.Task) (f executor.Finding) {
	return e.probeOpen(true)
}

func (e *Executor) probeOpen(want bool) executor.Finding {
	b, err := e.readCordon()
	switch {
	case err != nil:
		return executor.Unknown("host_error", err.Error())
	case (b.Cordon == nil) == want:
		return executor.Found(state(b))
	}
	return executor.ToRun(state(b))
}

func state(b cordonBook) string {
	if b.Cordon == nil {
		return "the host is schedulable"
	}
	return "the host is cordoned by " + b.Cordon.Owner + " " + b.Cordon.By
}

// change is a step that changes the cordon.
func (e *Executor) change(ctx context.Context, t *executor.Task, what string, f func(b *cordonBook) error) executor.Outcome {
	if s := executor.Halted(ctx, t); s != "" {
		return executor.Waiting(s, "nothing was changed")
	}
	var err error
	id, stop := e.effect(ctx, t, what+" host "+e.o.Name, "node/"+e.uid, func(context.Context) (string, string) {
		if err = e.writeCordon(byOf(t), f); err != nil {
			return "refused", err.Error()
		}
		return "ok", ""
	})
	if stop != nil {
		return *stop
	}
	var foreign *foreignError
	var o executor.Outcome
	switch {
	case err == nil:
		b, err := e.readCordon()
		if err != nil {
			return executor.Transient("host_error", err.Error())
		}
		return executor.Done(state(b))
	case errors.Is(err, errStale):
		o = executor.Transient("fenced", "nothing was issued: "+err.Error())
		_, o.ActionCode, o.ActionText = executor.Action("interrupted")
	case errors.As(err, &foreign):
		o = executor.Permanent("cordon_not_owned", err.Error())
	default:
		o = executor.Transient("host_error", err.Error())
	}
	o.CommandID = id
	return o
}

func (e *Executor) cordon(ctx context.Context, t *executor.Task) executor.Outcome {
	return e.change(ctx, t, "cordon", func(b *cordonBook) error {
		if b.Cordon == nil {
			b.Cordon, b.Lifted = executor.Doing(t.Assignment, e.o.Now()), nil
		}
		return nil
	})
}

// foreignError: the cordon is somebody else's.
type foreignError struct{ why string }

func (f *foreignError) Error() string { return f.why }

// notOurs tells why a cordon may not be lifted: one that somebody wrote into the
// file by hand names another owner.
func notOurs(b cordonBook, payload json.RawMessage) string {
	var p struct {
		TakeOver bool `json:"take_over"`
	}
	_ = json.Unmarshal(payload, &p) // checked at the admission
	if b.Cordon == nil || b.Cordon.Owner == "opsplane" || p.TakeOver {
		return ""
	}
	return fmt.Sprintf("the host was cordoned by somebody else: %s %s (%s) since %s", b.Cordon.Owner, b.Cordon.By, b.Cordon.Reason, b.Cordon.Since.UTC().Format(time.RFC3339))
}

func (e *Executor) uncordon(ctx context.Context, t *executor.Task) executor.Outcome {
	return e.change(ctx, t, "uncordon", func(b *cordonBook) error {
		if why := notOurs(*b, t.Assignment.Payload); why != "" {
			return &foreignError{why}
		}
		if b.Cordon != nil {
			b.Cordon, b.Lifted = nil, executor.Doing(t.Assignment, e.o.Now())
		}
		return nil
	})
}

func (e *Executor) confirmCordon(context.Context, *executor.Task) executor.Outcome {
	return e.confirm(false, "uncordoned_externally")
}

func (e *Executor) confirmUncordon(context.Context, *executor.Task) executor.Outcome {
	return e.confirm(true, "cordoned_externally")
}

func (e *Executor) confirm(open bool, code string) executor.Outcome {
	b, err := e.readCordon()
	switch {
	case err != nil:
		return executor.Transient("host_error", err.Error())
	case (b.Cordon == nil) != open:
		return executor.Permanent(code, state(b))
	}
	return executor.Done(state(b) + "; nothing on it enforces that")
}
