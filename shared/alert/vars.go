package alert

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"

	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/operation"
)

// Vars are what expressions see of one event. All rules share them, and what is
// dear to make is made once, if at all.
type Vars struct {
	e      *event.Event
	spec   *operation.Spec // nil: not read, or there is none
	detail map[string]any
	time   int64
}

// NewVars returns the variables of an event. The spec of the operation that it
// belongs to is needed only where NeedsSpec says so; nil stands for none.
func NewVars(e *event.Event, spec *operation.Spec) *Vars {
	return &Vars{e: e, spec: spec, time: EventTime(e)}
}

// ResolveName implements cel.Activation.
func (v *Vars) ResolveName(name string) (any, bool) {
	switch name {
	case "event", "operation":
		return v, true
	}
	return nil, false
}

// Parent implements cel.Activation.
func (v *Vars) Parent() cel.Activation { return nil }

func (v *Vars) details() map[string]any {
	if v.detail == nil {
		v.detail = map[string]any{}
		_ = json.Unmarshal(v.e.Detail, &v.detail) // it is an object, or counts as none
	}
	return v.detail
}

// transition tells whether the event's type is that of an operation's own events,
// whose detail says what is asked of an operation. The detail of others that belong
// to one, such as a cordon's, is an agent's and tells of something else.
func transition(typ string) bool { return strings.HasPrefix(typ, "operation.") }

// needsSpecFor is NeedsSpec for an event of the type: of what is no transition the
// spec alone tells anything of the operation.
func (c *Compiled) needsSpecFor(typ string) bool {
	needs := false
	c.programs(func(p *program) { needs = needs || p.needsSpec || p.ofOperation && !transition(typ) })
	return needs
}

// readsDetail tells whether an expression reads the detail of an event of the type.
func (c *Compiled) readsDetail(e *event.Event) bool {
	reads := false
	c.programs(func(p *program) {
		reads = reads || p.ofDetail || p.ofTransition && e.OperationID != "" && transition(e.Type)
	})
	return reads
}

// of reads a string of the detail of an operation's own event.
func (v *Vars) of(key string) string {
	if v.e.OperationID == "" || !transition(v.e.Type) {
		return ""
	}
	s, _ := v.details()[key].(string)
	return s
}

// or is of, where the event is the operation's own, and else from its spec.
func (v *Vars) or(key string, of func(*operation.Spec) string) string {
	if v.spec == nil || transition(v.e.Type) {
		return v.of(key)
	}
	return of(v.spec)
}

// field is one field of a variable.
type field struct {
	typ  *cel.Type
	get  func(*Vars) any
	spec bool // it takes the operation's spec
}

const (
	eventType     = "opsplane.Event"
	subjectType   = "opsplane.Subject"
	actorType     = "opsplane.Actor"
	operationType = "opsplane.Operation"
	requesterType = "opsplane.Requester"
)

var dynMap = cel.MapType(cel.StringType, cel.DynType)

// fields are the variables of expressions: what is not here is refused when a
// rule is saved.
var fields = map[string]map[string]field{
	eventType: {
		"id":             {typ: cel.StringType, get: func(v *Vars) any { return v.e.ID }},
		"type":           {typ: cel.StringType, get: func(v *Vars) any { return v.e.Type }},
		"severity":       {typ: cel.StringType, get: func(v *Vars) any { return v.e.Severity }},
		"subject":        {typ: cel.ObjectType(subjectType), get: itself},
		"actor":          {typ: cel.ObjectType(actorType), get: itself},
		"cluster":        {typ: cel.StringType, get: func(v *Vars) any { return v.e.Cluster }},
		"stream":         {typ: cel.StringType, get: func(v *Vars) any { return v.e.Stream }},
		"timestamp":      {typ: cel.TimestampType, get: func(v *Vars) any { return v.e.Timestamp }},
		"received_at":    {typ: cel.TimestampType, get: func(v *Vars) any { return v.e.ReceivedAt }},
		"operation_id":   {typ: cel.StringType, get: func(v *Vars) any { return v.e.OperationID }},
		"correlation_id": {typ: cel.StringType, get: func(v *Vars) any { return v.e.CorrelationID }},
		"detail":         {typ: dynMap, get: func(v *Vars) any { return v.details() }},
	},
	subjectType: {
		"kind": {typ: cel.StringType, get: func(v *Vars) any { return v.e.Subject.Kind }},
		"id":   {typ: cel.StringType, get: func(v *Vars) any { return v.e.Subject.ID }},
		"name": {typ: cel.StringType, get: func(v *Vars) any { return v.e.Subject.Name }},
	},
	actorType: {
		"kind": {typ: cel.StringType, get: func(v *Vars) any { return v.e.Actor.Kind }},
		"id":   {typ: cel.StringType, get: func(v *Vars) any { return v.e.Actor.ID }},
		"name": {typ: cel.StringType, get: func(v *Vars) any { return v.e.Actor.Name }},
	},
	operationType: {
		"id":          {typ: cel.StringType, get: func(v *Vars) any { return v.e.OperationID }},
		"type":        {typ: cel.StringType, get: func(v *Vars) any { return v.or("type", func(s *operation.Spec) string { return s.Request.Type }) }},
		"phase":       {typ: cel.StringType, get: func(v *Vars) any { return v.of("phase") }},
		"from":        {typ: cel.StringType, get: func(v *Vars) any { return v.of("from") }},
		"code":        {typ: cel.StringType, get: func(v *Vars) any { return v.of("reason") }},
		"target":      {typ: cel.StringType, get: func(v *Vars) any { return v.or("target", func(s *operation.Spec) string { return s.TargetID }) }},
		"target_name": {typ: cel.StringType, get: func(v *Vars) any { return v.or("target_name", func(s *operation.Spec) string { return s.TargetName }) }},
		"node":        {typ: cel.StringType, get: func(v *Vars) any { return v.or("node", func(s *operation.Spec) string { return s.NodeName }) }},
		"parent":      {typ: cel.StringType, get: func(v *Vars) any { return v.or("parent", func(s *operation.Spec) string { return s.Parent }) }},
		"generation":  {typ: cel.IntType, get: (*Vars).generation},
		"resources":   {typ: cel.ListType(cel.StringType), get: (*Vars).resources},
		"reason":      {typ: cel.StringType, spec: true, get: func(v *Vars) any { return v.request().Reason }},
		"actor":       {typ: cel.ObjectType(requesterType), spec: true, get: itself},
		"created_at":  {typ: cel.TimestampType, spec: true, get: (*Vars).created},
		"deadline":    {typ: cel.TimestampType, spec: true, get: (*Vars).deadline},
		"payload":     {typ: dynMap, spec: true, get: (*Vars).payload},
	},
	requesterType: {
		"kind": {typ: cel.StringType, get: func(v *Vars) any { return v.requester().Kind }},
		"id":   {typ: cel.StringType, get: func(v *Vars) any { return v.requester().ID }},
		"name": {typ: cel.StringType, get: func(v *Vars) any { return v.requester().Name }},
	},
}

func itself(v *Vars) any { return v }

func (v *Vars) generation() any {
	if v.e.OperationID == "" || !transition(v.e.Type) {
		return int64(0)
	}
	n, _ := v.details()["generation"].(float64)
	return int64(n)
}

func (v *Vars) resources() any {
	out := []string{}
	if v.e.OperationID == "" {
		return out
	}
	if !transition(v.e.Type) {
		if v.spec != nil {
			out = append(out, v.spec.Resources...)
		}
		return out
	}
	list, _ := v.details()["resources"].([]any)
	for _, x := range list {
		if s, ok := x.(string); ok {
			out = append(out, s)
		}
	}
	return out
}

func (v *Vars) request() operation.Request {
	if v.spec == nil {
		return operation.Request{}
	}
	return v.spec.Request
}

func (v *Vars) requester() operation.Actor {
	if v.spec == nil {
		return operation.Actor{}
	}
	return v.spec.Actor
}

func (v *Vars) created() any {
	if v.spec == nil {
		return time.Time{}
	}
	return v.spec.CreatedAt
}

// deadline is the one that was asked for, or its type's default: what never
// changes, unlike that of a retry.
func (v *Vars) deadline() any {
	r := v.request()
	if r.Deadline != nil {
		return *r.Deadline
	}
	if v.spec == nil {
		return time.Time{}
	}
	return v.spec.CreatedAt.Add(operation.DeadlinesOf(r.Type).Default)
}

func (v *Vars) payload() any {
	out := map[string]any{}
	if r := v.request(); len(r.Payload) > 0 {
		_ = json.Unmarshal(r.Payload, &out)
	}
	return out
}

// provider tells the checker and the planner of the fields.
type provider struct{ *types.Registry }

// FindStructType implements types.Provider.
func (p provider) FindStructType(name string) (*types.Type, bool) {
	if _, ok := fields[name]; ok {
		return types.NewTypeTypeWithParam(types.NewObjectType(name)), true
	}
	return p.Registry.FindStructType(name)
}

// FindStructFieldNames implements types.Provider.
func (p provider) FindStructFieldNames(name string) ([]string, bool) {
	if fs, ok := fields[name]; ok {
		return slices.Sorted(maps.Keys(fs)), true
	}
	return p.Registry.FindStructFieldNames(name)
}

// FindStructFieldType implements types.Provider.
func (p provider) FindStructFieldType(name, f string) (*types.FieldType, bool) {
	fs, ok := fields[name]
	if !ok {
		return p.Registry.FindStructFieldType(name, f)
	}
	x, ok := fs[f]
	if !ok {
		return nil, false
	}
	return &types.FieldType{
		Type:    x.typ,
		IsSet:   func(target any) bool { return !empty(x.get(target.(*Vars))) },
		GetFrom: func(target any) (any, error) { return x.get(target.(*Vars)), nil },
	}, true
}

// empty tells whether has() says no of a value.
func empty(x any) bool {
	switch x := x.(type) {
	case string:
		return x == ""
	case int64:
		return x == 0
	case time.Time:
		return x.IsZero()
	case []string:
		return len(x) == 0
	case map[string]any:
		return len(x) == 0
	}
	return false
}

// Lateness is how late an event may be told and still count for when it
// happened.
const Lateness = 5 * time.Minute

// EventTime is the time that windows go by, in Unix milliseconds: when the event
// happened, but no later than it was received and no more than Lateness before.
// So a clock that is wrong can neither blind a rule nor set it off.
func EventTime(e *event.Event) int64 {
	at, received := e.Timestamp.UnixMilli(), e.ReceivedAt.UnixMilli()
	return min(max(at, received-Lateness.Milliseconds()), received)
}
