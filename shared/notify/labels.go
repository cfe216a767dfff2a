package notify

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/id"
)

// An Alertmanager tells one alert from another by its labels and by nothing else
// (alertmanager: provider/mem, which keeps them by the fingerprint of those), and takes
// a label without a value for one that is not there (api/v2, postAlertsHandler). So
// each value has a label of its own, and the labels' names depend on the receiver, the
// rule's labels and its keys alone: that a group's value is empty tells it apart, too.

// Labels that each alert has by itself.
const (
	labelName     = "alertname" // the rule's name
	labelSeverity = "severity"
	labelCluster  = "cluster" // its id, or alert.PlaneCluster
	labelFolded   = "folded"  // "true" of one that stands for all groups over the limit, else without a value
)

// reserved are the names that a receiver's labels may not have.
var reserved = []string{labelName, labelSeverity, labelCluster, labelFolded}

// labelForm is what label names are everywhere: an Alertmanager may take any UTF-8
// (0.27 and later), where its operator did not say classic mode.
var labelForm = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)

var notInNames = regexp.MustCompile(`[^a-zA-Z0-9_]`)

// labelsOf are the labels of an alert for an Alertmanager. They are texts that were
// read from JSON: valid UTF-8, as it wants them.
func labelsOf(r *Receiver, a *alert.Alert) map[string]string {
	own := map[string]string{labelName: a.Rule, labelSeverity: a.Severity, labelCluster: a.Cluster, labelFolded: ""}
	if a.Cluster == "" {
		own[labelCluster] = alert.PlaneCluster
	}
	if a.Folded {
		own[labelFolded] = "true"
	}
	return joinLabels(own, labels{"receiver_", r.Labels}, labels{"rule_", a.Labels}, labels{"group_", a.Group})
}

// labels are some of an alert's, of one origin, with the prefix of those whose names
// are taken.
type labels struct {
	prefix string
	values map[string]string
}

// joinLabels puts labels beside those that an alert has by itself. One whose name is
// taken by an origin before its own, or is none, gets the prefix of its origin, as
// often as it takes.
func joinLabels(own map[string]string, more ...labels) map[string]string {
	out := maps.Clone(own)
	type taken struct{ prefix, name, value string }
	var later []taken
	for _, l := range more {
		for _, k := range slices.Sorted(maps.Keys(l.values)) {
			if _, is := out[k]; is || !labelForm.MatchString(k) {
				later = append(later, taken{l.prefix, notInNames.ReplaceAllString(k, "_"), l.values[k]})
				continue
			}
			out[k] = l.values[k]
		}
	}
	for _, l := range later {
		name := l.prefix + l.name
		for _, is := out[name]; is; _, is = out[name] {
			name = l.prefix + name
		}
		out[name] = l.value
	}
	maps.DeleteFunc(out, func(_, v string) bool { return v == "" })
	return out
}

// pushID is the id of what an Alertmanager is told under labels: one message for all
// that ever has them, so that the end of one alert, taken late, does not end the next.
func pushID(receiver string, labels map[string]string) string {
	b, err := json.Marshal(labels) // keys are sorted
	if err != nil {
		panic(fmt.Sprintf("encode labels: %v", err)) // texts
	}
	return id.Derive(id.Delivery, receiver, "labels", string(b))
}

// Doubles are the names of those of the receivers that tell an Alertmanager of the
// receiver's, too, under the same labels: to it, their alerts and the receiver's are the
// same.
func (r *Receiver) Doubles(all []Receiver) []string {
	var out []string
	mine := r.endpoints()
	for i := range all {
		o := &all[i]
		if o.ID == r.ID || o.Kind != KindAlertmanager || r.Kind != KindAlertmanager || !o.Active() || !r.Active() || !maps.Equal(o.Labels, r.Labels) {
			continue
		}
		if slices.ContainsFunc(o.endpoints(), func(e endpoint) bool {
			return slices.ContainsFunc(mine, func(m endpoint) bool { return samePlace(m.url) == samePlace(e.url) })
		}) {
			out = append(out, o.Name)
		}
	}
	return out
}
