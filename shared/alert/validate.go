package alert

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/operation"
)

var (
	nameForm = regexp.MustCompile(`^[a-z][a-z0-9]*(-[a-z0-9]+)*$`)
	keyForm  = regexp.MustCompile(`^[a-z][a-z0-9_]{0,62}$`)
)

// Validate checks everything of a rule but its expressions, which Compile does.
// The error is Faults.
func (r *Rule) Validate() error {
	f := &Faults{}
	if len(r.Name) > MaxNameBytes || !nameForm.MatchString(r.Name) {
		f.add("/name", CodeFormat, "must be words of a-z and 0-9 joined by hyphens, at most %d bytes", MaxNameBytes)
	}
	text(f, "/description", r.Description, MaxTextBytes)
	text(f, "/summary", r.Summary, MaxShortBytes)
	text(f, "/runbook", r.Runbook, MaxShortBytes)
	if r.Severity != "" && !slices.Contains(event.Severities, r.Severity) {
		f.add("/severity", CodeFormat, "must be one of %s", strings.Join(event.Severities, ", "))
	}
	if len(r.Labels) > MaxLabels {
		f.add("/labels", CodeRange, "has %d, the limit is %d", len(r.Labels), MaxLabels)
	}
	for _, k := range slices.Sorted(maps.Keys(r.Labels)) {
		if !keyForm.MatchString(k) {
			f.add("/labels/"+operation.EscapePointer(k), CodeFormat, "must be named by a-z, 0-9 and _, at most 63 bytes")
		}
		text(f, "/labels/"+operation.EscapePointer(k), r.Labels[k], MaxShortBytes)
	}
	if len(r.Clusters) > MaxClusters {
		f.add("/clusters", CodeRange, "has %d, the limit is %d", len(r.Clusters), MaxClusters)
	}
	for i, c := range r.Clusters {
		if c != PlaneCluster && !id.Valid(id.Cluster, c) {
			f.add(fmt.Sprintf("/clusters/%d", i), CodeFormat, "must be a cluster's id, or %q", PlaneCluster)
		}
	}
	checkTypes(f, "/on", r.On)
	r.keys(f)
	r.condition(f)
	r.times(f)
	r.inhibitors(f)
	if r.OnChange != "" && r.OnChange != OnChangeKeep && r.OnChange != OnChangeResolve {
		f.add("/on_change", CodeFormat, "must be %s or %s", OnChangeResolve, OnChangeKeep)
	}
	return f.orNil()
}

func text(f *Faults, pointer, s string, limit int) {
	switch {
	case len(s) > limit:
		f.add(pointer, CodeRange, "has %d bytes, the limit is %d", len(s), limit)
	case !utf8.ValidString(s) || !operation.CleanText(strings.ReplaceAll(s, "\n", " ")):
		f.add(pointer, CodeFormat, "holds control characters or is not UTF-8")
	}
}

// checkTypes checks the types and families of a clause.
func checkTypes(f *Faults, pointer string, on []string) {
	if len(on) == 0 {
		f.add(pointer, CodeRequired, "must name the event types or families that the rule looks at")
	}
	if len(on) > MaxOn {
		f.add(pointer, CodeRange, "has %d, the limit is %d", len(on), MaxOn)
	}
	for i, t := range on {
		family, isFamily := strings.CutSuffix(t, ".*")
		p := fmt.Sprintf("%s/%d", pointer, i)
		switch {
		case !event.ValidType(t) && !(isFamily && event.ValidType(family+".x")):
			f.add(p, CodeFormat, "must be a type such as node.left, or a family such as node.*")
		case t == "alert.*" || strings.HasPrefix(t, "alert."):
			f.add(p, CodeRange, "alerts' own events are not judged: a rule could set itself off")
		}
	}
}

func (r *Rule) keys(f *Faults) {
	if len(r.GroupBy) > MaxKeys {
		f.add("/group_by", CodeRange, "has %d, the limit is %d", len(r.GroupBy), MaxKeys)
	}
	for _, k := range slices.Sorted(maps.Keys(r.GroupBy)) {
		if !keyForm.MatchString(k) {
			f.add("/group_by/"+operation.EscapePointer(k), CodeFormat, "must be named by a-z, 0-9 and _, at most 63 bytes")
		}
	}
}

func (r *Rule) condition(f *Faults) {
	most := MaxCount
	if r.Distinct != "" {
		most = MaxDistinct
	}
	if r.Count < 0 || r.Count > most {
		f.add("/count", CodeRange, "must be 1 to %d", most)
	}
	switch counts := r.Count > 1 || r.Distinct != ""; {
	case counts && r.Window == 0:
		f.add("/window", CodeRequired, "must say within what time is counted: 1s or more")
	case r.Window != 0:
		span(f, "/window", r.Window)
	}
	if a := r.Absence; a != nil {
		if r.Count > 1 || r.Distinct != "" || r.Window != 0 {
			f.add("/absence", CodeConflict, "does not go with count, window and distinct")
		}
		checkTypes(f, "/absence/expect/on", a.Expect.On)
		span(f, "/absence/within", a.Within)
	}
	if w := r.While; w != nil {
		checkTypes(f, "/while/begin/on", w.Begin.On)
		checkTypes(f, "/while/end/on", w.End.On)
		if w.Each == "" {
			f.add("/while/each", CodeRequired, "must tell one thing that is under way from another")
		}
	}
	if c := r.ResolveWhen; c != nil {
		checkTypes(f, "/resolve_when/on", c.On)
	}
}

func (r *Rule) times(f *Faults) {
	for _, x := range []struct {
		pointer string
		d       Duration
	}{{"/for", r.For}, {"/resolve_after", r.ResolveAfter}, {"/keep_firing_for", r.KeepFiringFor}} {
		if x.d != 0 {
			span(f, x.pointer, x.d)
		}
	}
	if fl := r.Flap; fl != nil {
		if fl.Changes < 2 || fl.Changes > MaxChanges {
			f.add("/flap/changes", CodeRange, "must be 2 to %d", MaxChanges)
		}
		span(f, "/flap/window", fl.Window)
	}
}

func (r *Rule) inhibitors(f *Faults) {
	if len(r.InhibitedBy) > MaxInhibitors {
		f.add("/inhibited_by", CodeRange, "has %d, the limit is %d", len(r.InhibitedBy), MaxInhibitors)
	}
	for i, in := range r.InhibitedBy {
		p := fmt.Sprintf("/inhibited_by/%d", i)
		if !nameForm.MatchString(in.Rule) || len(in.Rule) > MaxNameBytes {
			f.add(p+"/rule", CodeFormat, "must be a rule's name")
		}
		if in.Rule == r.Name {
			f.add(p+"/rule", CodeCycle, "must be another rule")
		}
		for j, k := range in.Equal {
			if _, ok := r.GroupBy[k]; !ok {
				f.add(fmt.Sprintf("%s/equal/%d", p, j), CodeFormat, "must be a key of this rule's group_by")
			}
		}
	}
}

// span checks a duration that is not optional.
func span(f *Faults, pointer string, d Duration) {
	if d.D() < MinSpan || d.D() > MaxSpan {
		f.add(pointer, CodeRange, "must be %s to %s", Duration(MinSpan), Duration(MaxSpan))
	}
	if d.D()%time.Millisecond != 0 {
		f.add(pointer, CodeFormat, "must be whole milliseconds")
	}
}
