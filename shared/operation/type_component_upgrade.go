package operation

import (
	"encoding/json"
	"regexp"
)

// versionShape is a semantic version with an optional v, as Helm charts and
// image tags carry it (semver.org, version 2.0.0).
var versionShape = regexp.MustCompile(`^v?(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?$`)

var _ = register(Definition{
	Type:    "component.upgrade",
	Targets: []string{KindCluster},
	Payload: func(f *Fields) {
		f.String("component", true, 253)
		f.Enum("rollback", "on_failure", "on_failure", "never")
		if v := f.String("version", true, 128); v != "" && !versionShape.MatchString(v) {
			f.Fail("version", "format", "must be a semantic version such as v1.2.3")
		}
	},
	Plan: func(t Target, _ json.RawMessage) ([]Lock, []PlanStep) {
		on := []string{t.Component}
		return []Lock{{t.Component, Exclusive}}, []PlanStep{
			{Name: "preflight", Title: "Check version and compatibility", Resources: on, Required: true, Interruptible: true, ReplaySafe: true, Capability: "component.upgrade"},
			{Name: "upgrade", Title: "Upgrade the component", Resources: on, Required: true, Effect: true, ReplaySafe: true, Capability: "component.upgrade", Risk: "high"},
			{Name: "verify", Title: "Observe the new version healthy", Resources: on, Required: true, Interruptible: true, ReplaySafe: true, Capability: "component.upgrade"},
		}
	},
})
