package sim

import (
	"context"
	"fmt"
	"time"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
)

var upgradeSteps = map[string]step{
	"preflight": {(*Executor).probeConfirm, (*Executor).upgradePreflight},
	"upgrade":   {(*Executor).probeUpgrade, (*Executor).upgrade},
	"verify":    {(*Executor).probeConfirm, (*Executor).upgradeVerify},
}

type upgradePayload struct {
	Component string `json:"component"`
	Version   string `json:"version"`
}

func (w *World) componentNamed(name string) *Component {
	for _, c := range w.Components {
		if c.Name == name {
			return c
		}
	}
	return nil
}

func sameVersion(a, b string) bool {
	v, err := parseVersion(a)
	o, err2 := parseVersion(b)
	return a == b || (err == nil && err2 == nil && v.compare(o) == 0)
}

// readComponent reads the payload and the component, or why it cannot be
// upgraded.
func (e *Executor) readComponent(t *executor.Task) (p upgradePayload, c Component, code, why string, err error) {
	if err := decode(t.Assignment.Payload, &p); err != nil {
		return p, c, "invalid_payload", err.Error(), nil
	}
	err = e.store.view(func(w *World, _ *index) { c, code, why = judgeUpgrade(w, p) })
	return p, c, code, why, err
}

func judgeUpgrade(w *World, p upgradePayload) (c Component, code, why string) {
	x := w.componentNamed(p.Component)
	if x == nil {
		return c, "component_not_found", fmt.Sprintf("the cluster has no component %q", p.Component)
	}
	if _, err := parseVersion(p.Version); err != nil {
		return *x, "invalid_version", err.Error()
	}
	if fits, why := x.fits(p.Version); !fits && !sameVersion(x.Version, p.Version) {
		return *x, "incompatible_version", why
	}
	return *x, "", ""
}

func (e *Executor) upgradePreflight(_ context.Context, t *executor.Task) executor.Outcome {
	p, c, code, why, err := e.readComponent(t)
	switch {
	case err != nil:
		return e.broken(err)
	case code != "":
		return executor.Permanent(code, why)
	}
	return executor.Done(fmt.Sprintf("%s is %s, %s fits", c.Name, c.Version, p.Version))
}

func (e *Executor) probeUpgrade(ctx context.Context, t *executor.Task) executor.Finding {
	for range 50 {
		p, c, code, why, err := e.readComponent(t)
		switch {
		case err != nil:
			return unread(err)
		case code != "":
			return executor.Lost(code, why)
		case c.Upgrade == nil && sameVersion(c.Version, p.Version):
			return executor.Found(fmt.Sprintf("%s is %s", c.Name, c.Version))
		case c.Upgrade == nil || c.Upgrade.Operation != t.Assignment.Operation:
			return executor.ToRun(fmt.Sprintf("%s is %s", c.Name, c.Version))
		}
		if !sleep(ctx, pollMost) { // it ends by itself
			break
		}
	}
	return executor.Finding{Phase: operation.StepUnknown, ErrorCode: "in_progress", Detail: "the upgrade is still under way"}
}

// upgrade is an effect of kind (a): conditional on the resourceVersion, and it
// carries operation, run and generation.
func (e *Executor) upgrade(ctx context.Context, t *executor.Task) executor.Outcome {
	for range maxConflicts {
		p, c, code, why, err := e.readComponent(t)
		switch {
		case err != nil:
			return e.broken(err)
		case code != "":
			return executor.Permanent(code, why)
		case c.Upgrade == nil && sameVersion(c.Version, p.Version):
			return executor.Done(fmt.Sprintf("%s is %s", c.Name, c.Version))
		case c.Upgrade != nil && c.Upgrade.Operation == t.Assignment.Operation:
			return e.awaitUpgrade(ctx, t)
		case c.Mark != nil && c.Mark.Operation == t.Assignment.Operation && c.Mark.Run == t.Assignment.Run:
			// An earlier generation of this run upgraded it: once is enough.
			return executor.Permanent("superseded", fmt.Sprintf("%s is %s: somebody changed it after this operation's upgrade", c.Name, c.Version))
		}
		if executor.Halted(ctx, t) == "interrupted" { // the step is not interruptible
			return executor.Waiting("interrupted", "the upgrade was not begun")
		}
		r, stop := e.effect(ctx, t, DidUpgrade, "component/"+c.UID, c.Name, func(x *tx) reply {
			now := x.w.Components[c.UID]
			by := mark(t)
			switch {
			case now == nil:
				return refused("component_not_found", "component %s is gone", c.Name)
			case now.Upgrade != nil && now.Upgrade.Operation != by.Operation:
				return refused("component_busy", "component %s is being upgraded by %s", c.Name, now.Upgrade.Operation)
			}
			if r, is := stale(now.Mark, by); is {
				return r
			}
			if now.Revision != c.Revision {
				return conflict("component %s was changed: resourceVersion %d is not %d", c.Name, now.Revision, c.Revision)
			}
			n := *now
			r, failed, lost := fault(&n.Faults)
			if !failed {
				n.Mark = &by
				n.Upgrade = &Upgrade{Mark: by, To: p.Version, Ends: *x.in(n.Takes)}
				r = ok("")
				r.lost = lost
			}
			x.component(n)
			return r
		})
		if stop != nil {
			return *stop
		}
		if r.category == "ok" {
			return e.awaitUpgrade(ctx, t)
		}
	}
	return executor.Transient("conflict", "the component is written to all the time")
}

func (e *Executor) awaitUpgrade(ctx context.Context, t *executor.Task) executor.Outcome {
	for {
		p, c, _, _, err := e.readComponent(t)
		if err != nil {
			return executor.Ambiguous(err.Error())
		}
		if c.Upgrade == nil {
			if !sameVersion(c.Version, p.Version) {
				return executor.Transient("superseded", fmt.Sprintf("%s is %s", c.Name, c.Version))
			}
			return executor.Done(fmt.Sprintf("%s is %s", c.Name, c.Version))
		}
		t.Progress(0, 1, "components", fmt.Sprintf("upgrading %s from %s to %s", c.Name, c.Version, p.Version))
		if !sleep(ctx, 20*time.Millisecond) {
			return executor.Ambiguous("the upgrade of " + c.Name + " was begun and had not ended when its time was up")
		}
	}
}

func (e *Executor) upgradeVerify(_ context.Context, t *executor.Task) executor.Outcome {
	p, c, code, why, err := e.readComponent(t)
	switch {
	case err != nil:
		return e.broken(err)
	case code != "":
		return executor.Permanent(code, why)
	case !sameVersion(c.Version, p.Version):
		return executor.Permanent("version_mismatch", fmt.Sprintf("%s is %s, not %s", c.Name, c.Version, p.Version))
	case !c.Healthy:
		return executor.Permanent("unhealthy", fmt.Sprintf("%s %s is not healthy after the upgrade", c.Name, c.Version))
	}
	return executor.Done(fmt.Sprintf("%s is %s and healthy", c.Name, c.Version))
}
