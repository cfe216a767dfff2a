package executor

import "github.com/opsplane/opsplane/shared/protocol"

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
