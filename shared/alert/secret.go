package alert

import (
	"fmt"
	"maps"
	"slices"

	"github.com/opsplane/opsplane/shared/operation"
)

// CheckSecret refuses a text that looks like a credential, as operations do: it
// would stand in lists, messages and the audit log. The pointer names it. The error
// is Faults.
func CheckSecret(pointer, text string) error {
	f := &Faults{}
	f.secret(pointer, text)
	return f.orNil()
}

func (f *Faults) secret(pointer, text string) {
	if operation.SecretShaped(text) {
		f.add(pointer, CodeSecret, "looks like a credential; name a secret, never its value")
	}
}

// secrets looks through what a rule shows, and through its expressions: these may
// speak of passwords and tokens, and so are searched for keys alone.
func (r *Rule) secrets(f *Faults) {
	f.secret("/description", r.Description)
	f.secret("/summary", r.Summary)
	f.secret("/runbook", r.Runbook)
	for _, k := range slices.Sorted(maps.Keys(r.Labels)) {
		f.secret("/labels/"+operation.EscapePointer(k), r.Labels[k])
	}
	r.expressions(func(pointer, expr string) {
		if operation.KeyShaped(expr) {
			f.secret(pointer, expr)
		}
	})
}

// expressions calls f with each of the rule's expressions, and where it stands.
func (r *Rule) expressions(f func(pointer, expr string)) {
	f("/when", r.When)
	for _, k := range slices.Sorted(maps.Keys(r.GroupBy)) {
		f("/group_by/"+operation.EscapePointer(k), r.GroupBy[k])
	}
	f("/distinct", r.Distinct)
	if a := r.Absence; a != nil {
		f("/absence/expect/when", a.Expect.When)
	}
	if w := r.While; w != nil {
		f("/while/begin/when", w.Begin.When)
		f("/while/end/when", w.End.When)
		f("/while/each", w.Each)
	}
	if c := r.ResolveWhen; c != nil {
		f("/resolve_when/when", c.When)
	}
}

// CheckSaved holds a silence to what is asked of one that is made, beyond
// CompileSilence: that it tells no secret. Those that were made before go on as they
// are. The error is Faults.
func (s *Silence) CheckSaved() error {
	f := &Faults{}
	for i, m := range s.Matchers {
		f.secret(fmt.Sprintf("/matchers/%d/value", i), m.Value)
	}
	f.secret("/reason", s.Reason)
	return f.orNil()
}
