package operation

import (
	"encoding/json"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/opsplane/opsplane/shared/id"
)

// Target kinds.
const (
	KindCluster    = "cluster"
	KindNode       = "node"
	KindDevice     = "device"
	KindDeployment = "deployment"
	KindWorkload   = "workload"
	KindComponent  = "component"
	KindFleet      = "fleet"
)

// FieldError names a field of a request and what is wrong with it.
type FieldError struct {
	Pointer string `json:"pointer"` // RFC 6901, from the request body's root
	Code    string `json:"code"`
	Detail  string `json:"detail"`
}

// Target is a resolved target.
type Target struct {
	Kind     string
	ID       string
	Name     string
	UID      string
	Cluster  string
	NodeID   string // of a device
	NodeName string // of a device or node
	// Component is the id of the component that the payload names, for types
	// that work on one.
	Component string
}

// Definition is one type of operation: everything admission needs to know.
type Definition struct {
	Type       string
	Targets    []string // kinds it may act on
	PlaneLocal bool
	// Payload checks the payload, collecting every error, and sets defaults.
	Payload func(f *Fields)
	// Plan returns locks and steps; step ids are filled in by the caller.
	Plan func(t Target, payload json.RawMessage) ([]Lock, []PlanStep)
	// Force tells whether the payload uses a right of its own.
	Force func(payload json.RawMessage) bool
}

// Deadlines is one type's row of the table of deadlines.
type Deadlines struct {
	Default, Max time.Duration
}

// deadlines is the one table of defaults and maxima. A wave of drains is
// bounded by its slowest child, hence the plan's.
var deadlines = map[string]Deadlines{
	"node.cordon":       {5 * time.Minute, time.Hour},
	"node.uncordon":     {5 * time.Minute, time.Hour},
	"node.drain":        {time.Hour, 24 * time.Hour},
	"device.reset":      {30 * time.Minute, 6 * time.Hour},
	"deployment.roll":   {time.Hour, 24 * time.Hour},
	"component.upgrade": {time.Hour, 24 * time.Hour},
	"plan":              {24 * time.Hour, 30 * 24 * time.Hour},
}

// later lists types that the design names and this version does not carry out.
var later = []string{"node.reboot", "deployment.benchmark", "workload.scale", "workload.pause", "workload.drain", "workload.reshape"}

var definitions = map[string]Definition{}

// register adds a type; each type's file calls it once.
func register(d Definition) Definition {
	if _, ok := deadlines[d.Type]; !ok {
		panic("operation type " + d.Type + " has no row in the table of deadlines")
	}
	definitions[d.Type] = d
	return d
}

// Lookup returns a type's definition.
func Lookup(typ string) (Definition, bool) {
	d, ok := definitions[typ]
	return d, ok
}

// DeadlinesOf returns a type's row of the table of deadlines.
func DeadlinesOf(typ string) Deadlines { return deadlines[typ] }

// Types lists the supported types, sorted.
func Types() []string {
	out := make([]string, 0, len(definitions))
	for t := range definitions {
		out = append(out, t)
	}
	sort.Strings(out)
	return out
}

// Later tells whether a later version is to support the type.
func Later(typ string) bool { return slices.Contains(later, typ) }

// BuildPlan returns the locks and steps of a request, with stable step ids, and
// the sorted resources that they touch.
func BuildPlan(d Definition, opID string, t Target, payload json.RawMessage) (locks []Lock, steps []PlanStep, resources []string) {
	if d.Plan != nil {
		locks, steps = d.Plan(t, payload)
	}
	for i := range steps {
		st := &steps[i]
		st.ID = id.Derive(id.Step, opID, st.Name)
		if st.MaxAttempts == 0 {
			st.MaxAttempts = 5
		}
		if st.MinVersion == 0 {
			st.MinVersion = 1
		}
		if st.Resources == nil {
			st.Resources = []string{t.ID}
		}
		if st.Risk == "" {
			st.Risk = "none"
		}
		resources = append(resources, st.Resources...)
	}
	resources = append(resources, t.ID)
	for _, l := range locks {
		resources = append(resources, l.Resource)
	}
	slices.Sort(resources)
	return locks, steps, slices.Compact(resources)
}

// Fields reads a JSON object field by field and collects every error.
type Fields struct {
	at   string
	raw  map[string]json.RawMessage
	out  map[string]any
	seen map[string]bool
	Errs []FieldError
	list []PayloadField // all that were asked for, in that order
}

// NewFields starts reading raw, which sits at the pointer.
func NewFields(at string, raw json.RawMessage) *Fields {
	f := &Fields{at: at, out: map[string]any{}, seen: map[string]bool{}}
	if len(raw) == 0 || string(raw) == "null" {
		return f
	}
	if err := json.Unmarshal(raw, &f.raw); err != nil {
		f.fail("", "type", "must be a JSON object")
	}
	return f
}

func (f *Fields) fail(name, code, format string, args ...any) {
	p := f.at
	if name != "" {
		p += "/" + name
	}
	f.Errs = append(f.Errs, FieldError{Pointer: p, Code: code, Detail: fmt.Sprintf(format, args...)})
}

func (f *Fields) get(name string, v any, kind string) bool {
	f.seen[name] = true
	raw, ok := f.raw[name]
	if !ok || string(raw) == "null" {
		return false
	}
	if err := json.Unmarshal(raw, v); err != nil {
		f.fail(name, "type", "must be %s", kind)
		return false
	}
	return true
}

// Int reads an integer within [lo, hi], or takes the default.
func (f *Fields) Int(name string, lo, hi, def int) int {
	v := def
	f.describe(PayloadField{Name: name, Values: fmt.Sprintf("an integer from %d to %d", lo, hi), Default: strconv.Itoa(def)})
	if f.get(name, &v, fmt.Sprintf("an integer from %d to %d", lo, hi)) && (v < lo || v > hi) {
		f.fail(name, "range", "must be from %d to %d", lo, hi)
	}
	f.out[name] = v
	return v
}

// OptInt reads an integer that has no default.
func (f *Fields) OptInt(name string, lo, hi int) {
	var v int
	f.describe(PayloadField{Name: name, Values: fmt.Sprintf("an integer from %d to %d", lo, hi)})
	if f.get(name, &v, fmt.Sprintf("an integer from %d to %d", lo, hi)) {
		if v < lo || v > hi {
			f.fail(name, "range", "must be from %d to %d", lo, hi)
		}
		f.out[name] = v
	}
}

// Bool reads a boolean, or takes the default.
func (f *Fields) Bool(name string, def bool) bool {
	v := def
	f.describe(PayloadField{Name: name, Values: "true or false", Default: strconv.FormatBool(def)})
	f.get(name, &v, "true or false")
	f.out[name] = v
	return v
}

// Enum reads one of the values, or takes the default.
func (f *Fields) Enum(name, def string, values ...string) string {
	v := def
	f.describe(PayloadField{Name: name, Values: strings.Join(values, ", "), Default: def})
	if f.get(name, &v, "a string") && !slices.Contains(values, v) {
		f.fail(name, "enum", "must be one of %v", values)
	}
	f.out[name] = v
	return v
}

// String reads a string of at most limit bytes; when it is required, an absent
// or empty one is an error.
func (f *Fields) String(name string, required bool, limit int) string {
	var v string
	f.describe(PayloadField{Name: name, Values: fmt.Sprintf("a string of at most %d bytes", limit), Required: required})
	ok := f.get(name, &v, "a string")
	switch {
	case !ok || v == "":
		if required && !f.failed(name) {
			f.fail(name, "required", "is required")
		}
	case len(v) > limit:
		f.fail(name, "max_length", "has %d bytes, the limit is %d", len(v), limit)
	case !CleanText(v):
		f.fail(name, "characters", "must not hold control characters, or ones that override the direction of text")
	default:
		f.out[name] = v
	}
	return v
}

func (f *Fields) failed(name string) bool {
	return slices.ContainsFunc(f.Errs, func(e FieldError) bool { return e.Pointer == f.at+"/"+name })
}

// Raw takes a field as it is.
func (f *Fields) Raw(name string) json.RawMessage {
	f.seen[name] = true
	f.describe(PayloadField{Name: name, Values: "JSON"})
	return f.raw[name]
}

// Set puts a normalized value in the payload.
func (f *Fields) Set(name string, v any) { f.out[name] = v }

// Fail reports an error of a field that the caller judged itself.
func (f *Fields) Fail(name, code, detail string) { f.fail(name, code, "%s", detail) }

// Done reports unknown fields and returns the payload with its defaults.
func (f *Fields) Done() json.RawMessage {
	names := make([]string, 0, len(f.raw))
	for name := range f.raw {
		if !f.seen[name] {
			names = append(names, name)
		}
	}
	sort.Strings(names)
	for _, name := range names {
		f.fail(EscapePointer(cut(name, 128)), "unknown_field", "is not a field of this object")
	}
	b, err := json.Marshal(f.out)
	if err != nil {
		f.fail("", "type", "cannot be encoded")
		return nil
	}
	return b
}
