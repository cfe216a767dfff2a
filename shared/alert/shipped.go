package alert

import (
	"embed"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"

	"github.com/opsplane/opsplane/shared/id"
)

//go:embed shipped/*.yaml
var shippedFiles embed.FS

// Shipped is a rule that comes with the product, on unless it is overridden.
type Shipped struct {
	ID   string
	Rule Rule
}

// ShippedID is the id of the shipped rule of a name.
func ShippedID(name string) string { return id.Derive(id.Rule, "shipped", name) }

// ShippedRules returns the rules that come with the product, by name.
func ShippedRules() []Shipped { return slices.Clone(shipped()) }

var shipped = sync.OnceValue(func() []Shipped {
	files, err := fs.Glob(shippedFiles, "shipped/*.yaml")
	if err != nil {
		panic(err) // the pattern is a constant
	}
	var out []Shipped
	for _, f := range files {
		data, err := shippedFiles.ReadFile(f)
		if err != nil {
			panic(err) // it was listed
		}
		r, err := ParseRule(data)
		if err != nil {
			panic(fmt.Sprintf("shipped rule %s: %v", f, err)) // a test parses them all
		}
		out = append(out, Shipped{ID: ShippedID(r.Name), Rule: *r})
	}
	slices.SortFunc(out, func(a, b Shipped) int { return strings.Compare(a.Rule.Name, b.Rule.Name) })
	return out
})

// Override is what a site changes of a shipped rule. Nil and zero fields leave
// it as it is.
type Override struct {
	Enabled       *bool     `json:"enabled,omitempty"`
	Severity      string    `json:"severity,omitempty"`
	Clusters      []string  `json:"clusters,omitempty"`
	Count         int       `json:"count,omitempty" minimum:"1"`
	Window        Duration  `json:"window,omitempty"`
	Within        Duration  `json:"within,omitempty"` // of an absence
	For           *Duration `json:"for,omitempty"`
	ResolveAfter  Duration  `json:"resolve_after,omitempty"`
	KeepFiringFor *Duration `json:"keep_firing_for,omitempty"`
	// OnChange says what becomes of alerts that are open when the override comes:
	// OnChangeResolve or OnChangeKeep; the rule's own when empty.
	OnChange string `json:"on_change,omitempty"`
}

// Apply returns the rule with what the override changes. Whether that makes sense
// is for Compile to say.
func (o *Override) Apply(r Rule) Rule {
	if o.Enabled != nil {
		r.Enabled = o.Enabled
	}
	if o.Severity != "" {
		r.Severity = o.Severity
	}
	if len(o.Clusters) > 0 {
		r.Clusters = o.Clusters
	}
	if o.Count != 0 {
		r.Count = o.Count
	}
	if o.Window != 0 {
		r.Window = o.Window
	}
	if o.Within != 0 && r.Absence != nil {
		a := *r.Absence
		a.Within = o.Within
		r.Absence = &a
	}
	if o.For != nil {
		r.For = *o.For
	}
	if o.ResolveAfter != 0 {
		r.ResolveAfter = o.ResolveAfter
	}
	if o.KeepFiringFor != nil {
		r.KeepFiringFor = *o.KeepFiringFor
	}
	if o.OnChange != "" {
		r.OnChange = o.OnChange
	}
	return r
}
