package alert

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/opsplane/opsplane/shared/event"
)

// about is what an event is about.
type about struct {
	Subject   event.Subject `json:"subject,omitzero"`
	Operation string        `json:"op,omitempty"`
	// Node is the name of the node that it happened on, NodeUID its identity in its
	// cluster; empty where the event tells neither.
	Node    string `json:"node,omitempty"`
	NodeUID string `json:"node_uid,omitempty"`
}

// about is what the event is about. It goes by the event alone: what else is known of
// its operation depends on which other rules there are.
func (in *input) about() about {
	e := in.v.e
	a := about{Subject: e.Subject, Operation: e.OperationID}
	if e.Subject.Kind == "node" {
		a.Node = e.Subject.Name
		return a
	}
	a.Node, a.NodeUID = bound(in.v.shown("node")), in.v.shown("node_uid")
	if len(a.NodeUID) > maxValue { // nobody's
		a.NodeUID = ""
	}
	return a
}

// detailPrefix is how a summary's words of an event's detail begin, as in
// "{detail.xid}".
const detailPrefix = "detail."

// maxDetails bounds the words of the detail that a summary shows.
const maxDetails = 8

var placeholder = regexp.MustCompile(`\{((?:detail\.)?[a-z][a-z0-9_]*)\}`)

// words are those in braces of a summary, each once.
func words(summary string) []string {
	found := map[string]bool{}
	for _, m := range placeholder.FindAllStringSubmatch(summary, -1) {
		found[m[1]] = true
	}
	return slices.Sorted(maps.Keys(found))
}

// detailsOf are the keys of the detail that a summary shows.
func detailsOf(summary string) (keys []string) {
	for _, w := range words(summary) {
		if k, ok := strings.CutPrefix(w, detailPrefix); ok {
			keys = append(keys, k)
		}
	}
	return keys[:min(len(keys), maxDetails)]
}

// shown is a value of the event's detail as a summary shows it; empty where it has
// none that is a text, a number or a truth.
func (v *Vars) shown(key string) string {
	switch x := v.details()[key].(type) {
	case string:
		return x
	case float64:
		return strconv.FormatFloat(x, 'f', -1, 64)
	case bool:
		return strconv.FormatBool(x)
	}
	return ""
}

// showing are the values that the rule's summary shows of the event's detail.
func (c *Compiled) showing(v *Vars) map[string]string {
	if len(c.details) == 0 {
		return nil
	}
	out := make(map[string]string, len(c.details))
	for _, k := range c.details {
		if x := v.shown(k); x != "" {
			out[k] = bound(x)
		}
	}
	return out
}
