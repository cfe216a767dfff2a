package alert

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
)

// face is what an open alert was told with: its end, and every other transition,
// carries the same, whatever became of its rule meanwhile. Those who were told
// know it by that; an Alertmanager knows it by nothing else.
type face struct {
	Rule     string            `json:"rule"`
	Version  int64             `json:"v"`
	Severity string            `json:"sev"`
	Labels   map[string]string `json:"labels,omitempty"`
	Summary  string            `json:"sum,omitempty"` // as the rule has it
	Runbook  string            `json:"book,omitempty"`
	Keys     []string          `json:"keys,omitempty"` // of the group
	By       string            `json:"by,omitempty"`   // tells one group_by from another
}

func (c *Compiled) face() face {
	return face{Rule: c.Rule.Name, Version: c.Version, Severity: c.severity(), Labels: maps.Clone(c.Rule.Labels), Summary: c.Rule.Summary,
		Runbook: c.Rule.Runbook, Keys: c.keys, By: groupDigest(c.Rule.GroupBy)}
}

// face is that of the open alert; of one that was kept before there was any, it is
// its rule's as it is now.
func (g *Group) face(c *Compiled) face {
	if g.Alert == nil || g.Alert.Face == nil {
		return c.face()
	}
	return *g.Alert.Face
}

// same tells whether an alert of the one looks like one of the other.
func (f *face) same(o face) bool {
	return f.Rule == o.Rule && f.Severity == o.Severity && f.Summary == o.Summary && f.Runbook == o.Runbook && maps.Equal(f.Labels, o.Labels)
}

func (f *face) bytes() int {
	n := 200 + len(f.Summary) + len(f.Runbook)
	for k, v := range f.Labels {
		n += len(k) + len(v) + 8
	}
	for _, k := range f.Keys {
		n += len(k) + 4
	}
	return n
}

// groupDigest tells one group_by from another, by names and expressions.
func groupDigest(by map[string]string) string {
	if len(by) == 0 {
		return ""
	}
	b, err := json.Marshal(by)
	if err != nil {
		panic(fmt.Sprintf("encode group_by: %v", err)) // strings
	}
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:8])
}

// named are the group's values under the names of its keys.
func (g *Group) named(keys []string) map[string]string {
	out := make(map[string]string, len(keys))
	for i, k := range keys {
		if g.Other {
			out[k] = otherValue
		} else if i < len(g.Values) {
			out[k] = g.Values[i]
		}
	}
	return out
}
