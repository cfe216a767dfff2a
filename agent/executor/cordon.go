package executor

import (
	"time"

	"github.com/opsplane/opsplane/shared/protocol"
)

// Doing is a cordon, or the lift of one, as the operation's doing.
func Doing(a *protocol.Assignment, at time.Time) *protocol.Cordon {
	return &protocol.Cordon{Owner: "opsplane", Operation: a.Operation, By: a.Actor.ID, Reason: a.Reason, Since: at.UTC()}
}

// Cordoned is the detail of node.cordoned: whose the cordon is. Every executor tells
// it so.
func Cordoned(c *protocol.Cordon) map[string]any {
	d := map[string]any{}
	if c == nil {
		return d
	}
	for k, v := range map[string]string{"owner": c.Owner, "operation": c.Operation, "by": c.By, "reason": c.Reason} {
		if v != "" {
			d[k] = v
		}
	}
	return d
}

// Uncordoned is the detail of node.uncordoned: who lifted the cordon, in the fields in
// which node.cordoned says who placed it, and whose it was. A lift of nil is of
// somebody else than Opsplane, of whom no more is known. was is the cordon that was
// lifted, nil: nobody knows.
func Uncordoned(lift, was *protocol.Cordon) map[string]any {
	if lift == nil {
		lift = &protocol.Cordon{Owner: "external"}
	}
	d := Cordoned(lift)
	if was != nil {
		of := Cordoned(was)
		if !was.Since.IsZero() {
			of["since"] = was.Since.UTC()
		}
		d["was"] = of
	}
	return d
}
