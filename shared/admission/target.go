package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
)

// kindOf maps an identifier's prefix to the kind that it names.
var kindOf = map[string]string{
	id.Cluster: operation.KindCluster, id.Node: operation.KindNode, id.Device: operation.KindDevice,
	id.Deployment: operation.KindDeployment, id.Workload: operation.KindWorkload, id.Component: operation.KindComponent,
}

// kinds are what "kind:name" may begin with.
var kinds = []string{operation.KindCluster, operation.KindNode, operation.KindDevice, operation.KindDeployment, operation.KindWorkload}

// reference is a target as it was written.
type reference struct {
	kind string
	id   string // or
	name string
}

// parseReference reads a target string: an id, kind:name, or fleet.
func parseReference(s string) (reference, bool) {
	if s == operation.KindFleet {
		return reference{kind: operation.KindFleet}, true
	}
	if kind, name, ok := strings.Cut(s, ":"); ok {
		if !slices.Contains(kinds, kind) || name == "" {
			return reference{}, false
		}
		if kind == operation.KindDevice {
			name = fleet.CanonicalDevice(name)
		}
		return reference{kind: kind, name: name}, true
	}
	kind, ok := kindOf[id.Prefix(s)]
	if !ok || !id.Valid(id.Prefix(s), s) {
		return reference{}, false
	}
	return reference{kind: kind, id: s}, true
}

// Reference reads what names an object: its id (or "fleet"), or kind:name in its
// canonical form. Both are "" for an empty string.
func Reference(s string) (objectID, name string, ok bool) {
	if s == "" {
		return "", "", true
	}
	ref, ok := parseReference(s)
	switch {
	case ref.kind == operation.KindFleet:
		return ref.kind, "", ok
	case ref.name != "":
		return "", ref.kind + ":" + ref.name, ok
	}
	return ref.id, "", ok
}

// Candidate is one of several objects that a name may mean.
type Candidate struct {
	ID          string `json:"id"`
	Name        string `json:"name"`
	Cluster     string `json:"cluster"`
	ClusterName string `json:"cluster_name,omitempty"`
}

func notFound(at, format string, args ...any) *operation.Refusal {
	r := operation.Refuse("not_found", format, args...)
	r.Errors = []operation.FieldError{{Pointer: at, Code: "not_found", Detail: r.Detail}}
	return r
}

// Resolve finds the target that a request names. Its refusals are not_found,
// invalid (with candidates) and forbidden.
func Resolve(ctx context.Context, st *record.Store, caller Caller, at string, typ string, allowed []string, target, cluster string) (operation.Target, error) {
	field := func(name, code, format string, args ...any) error {
		return operation.Invalid(operation.FieldError{Pointer: at + "/" + name, Code: code, Detail: fmt.Sprintf(format, args...)})
	}
	ref, ok := parseReference(target)
	if !ok {
		return operation.Target{}, field("target", "format", "must be an id, kind:name with a kind of %s, or fleet", strings.Join(kinds, ", "))
	}
	if !slices.Contains(allowed, ref.kind) {
		return operation.Target{}, field("target", "kind", "%s acts on %s, not on a %s", typ, strings.Join(allowed, " or "), ref.kind)
	}
	var within string
	if cluster != "" {
		if ref.kind == operation.KindFleet || ref.kind == operation.KindWorkload {
			return operation.Target{}, field("cluster", "conflict", "does not go with a %s target", ref.kind)
		}
		c, err := FindCluster(ctx, st, cluster)
		if errors.Is(err, ledger.ErrNotFound) {
			return operation.Target{}, notFound(at+"/cluster", "there is no cluster %q", cluster)
		}
		if err != nil {
			return operation.Target{}, err
		}
		within = c.ID
	}
	switch ref.kind {
	case operation.KindFleet:
		if caller.Clusters != nil {
			return operation.Target{}, operation.Refuse("forbidden", "your rights end at some clusters; the fleet is all of them")
		}
		return operation.Target{Kind: ref.kind, ID: operation.KindFleet, Name: operation.KindFleet}, nil
	case operation.KindCluster:
		name := ref.id
		if name == "" {
			name = ref.name
		}
		c, err := FindCluster(ctx, st, name)
		if errors.Is(err, ledger.ErrNotFound) || (err == nil && within != "" && within != c.ID) {
			return operation.Target{}, notFound(at+"/target", "there is no %s", target)
		}
		if err != nil {
			return operation.Target{}, err
		}
		return allowedIn(caller, operation.Target{Kind: ref.kind, ID: c.ID, Name: c.Name, Cluster: c.ID})
	}
	if ref.id != "" {
		o, _, err := st.Object(ctx, ref.id)
		if errors.Is(err, ledger.ErrNotFound) || (err == nil && within != "" && within != o.Cluster) {
			return operation.Target{}, notFound(at+"/target", "there is no %s", target)
		}
		if err != nil {
			return operation.Target{}, err
		}
		return allowedIn(caller, o.Target())
	}
	objects, err := st.ObjectsByName(ctx, ref.kind, ref.name)
	if err != nil {
		return operation.Target{}, err
	}
	if len(objects) == 0 && ref.kind == operation.KindDevice {
		if objects, err = byAlias(ctx, st, within, ref.name); err != nil {
			return operation.Target{}, err
		}
	}
	objects = slices.DeleteFunc(objects, func(o fleet.Object) bool {
		return (within != "" && o.Cluster != within) || !caller.May(o.Cluster)
	})
	switch len(objects) {
	case 0:
		return operation.Target{}, notFound(at+"/target", "there is no %s that you may act on", target)
	case 1:
		return objects[0].Target(), nil
	}
	candidates := make([]Candidate, len(objects))
	for i, o := range objects {
		candidates[i] = Candidate{ID: o.ID, Name: o.Name, Cluster: o.Cluster}
		if c, _, err := st.Cluster(ctx, o.Cluster); err == nil {
			candidates[i].ClusterName = c.Name
		}
	}
	r := operation.Invalid(operation.FieldError{Pointer: at + "/target", Code: "ambiguous",
		Detail: fmt.Sprintf("%s is the name of %d objects; add cluster, or use an id", target, len(objects))})
	return operation.Target{}, r.With("candidates", candidates)
}

func allowedIn(caller Caller, t operation.Target) (operation.Target, error) {
	if !caller.May(t.Cluster) {
		return operation.Target{}, operation.Refuse("forbidden", "your rights do not reach cluster %s", t.Cluster)
	}
	return t, nil
}

// FindCluster finds a cluster by id or name, or ledger.ErrNotFound.
func FindCluster(ctx context.Context, st *record.Store, s string) (fleet.Cluster, error) {
	if id.Valid(id.Cluster, s) {
		c, _, err := st.Cluster(ctx, s)
		return c, err
	}
	return st.ClusterByName(ctx, s)
}

// byAlias finds devices by another spelling than their UUID, in one cluster or, with
// an empty one, in all.
func byAlias(ctx context.Context, st *record.Store, within, name string) ([]fleet.Object, error) {
	clusters := []string{within}
	if within == "" {
		all, err := st.Clusters(ctx)
		if err != nil {
			return nil, err
		}
		clusters = clusters[:0]
		for _, c := range all {
			clusters = append(clusters, c.ID)
		}
	}
	var out []fleet.Object
	for _, c := range clusters {
		found, err := st.DevicesByAlias(ctx, c, name)
		if err != nil {
			return nil, err
		}
		out = append(out, found...)
	}
	return out, nil
}
