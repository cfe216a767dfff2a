package httpapi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/opsplane/opsplane/shared/admission"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
)

// maxScan bounds the items that one page looks at; what is behind comes with the
// next one.
const maxScan = 2000

type operationsInput struct {
	PageInput
	Phase         []string `query:"phase,explode" doc:"Repeatable, or separated by commas"`
	Type          []string `query:"type,explode" doc:"Repeatable, or separated by commas"`
	Active        string   `query:"active" enum:"true,false" doc:"true: what has not ended"`
	Target        string   `query:"target" doc:"An id, or kind:name"`
	Resource      string   `query:"resource" doc:"Everything that touched this: an id, or kind:name"`
	Cluster       string   `query:"cluster" doc:"Id or name"`
	Actor         string   `query:"actor"`
	Parent        string   `query:"parent" doc:"Children of this plan"`
	CreatedSince  string   `query:"created_since" doc:"RFC 3339, included"`
	CreatedUntil  string   `query:"created_until" doc:"RFC 3339, excluded"`
	Since         string   `query:"since" doc:"Same as created_since"`
	Until         string   `query:"until" doc:"Same as created_until"`
	Order         string   `query:"order" enum:"asc,desc" default:"desc" doc:"By time of creation"`
	CorrelationID string   `query:"correlation_id"`
}

type operationListView struct {
	ListOf[operationView]
	HistoryBeginsAt *time.Time `json:"history_begins_at" doc:"Operations that ended before were removed; null: none were"`
}

// operationFilter is a list's parameters, read.
type operationFilter struct {
	phases, types            []string
	active                   *bool
	target, targetName       string
	resource, cluster, actor string
	parent, correlation      string
	since, until             time.Time
	reverse                  bool
	limit                    int
	sees                     func(cluster string) bool
	everything               bool // sees all clusters
	plain                    bool // nothing but the walk itself filters
}

func (a *API) listOperations(ctx context.Context, rq *request, in *operationsInput) (*bodyOutput[operationListView], error) {
	f, err := a.operationFilter(ctx, rq, in)
	if err != nil {
		return nil, err
	}
	key := f.key(in)
	place, err := decodeCursor(key, in.Cursor)
	if err != nil {
		return nil, err
	}
	walk := a.walkOperations
	if f.parent != "" {
		walk = a.walkChildren
	}
	ops, next, err := walk(ctx, f, place)
	if err != nil {
		return nil, err
	}
	items := make([]operationView, len(ops))
	for i := range ops {
		items[i] = viewOperation(&ops[i])
	}
	if next != "" {
		next = encodeCursor(key, next)
	}
	return &bodyOutput[operationListView]{Body: operationListView{ListOf: newList(items, next), HistoryBeginsAt: a.historyBegins(ctx)}}, nil
}

// words splits a parameter that may be given more than once and holds commas. An
// empty word is a slip: what was meant there would be left out.
func words(name string, vs []string) ([]string, error) {
	var out []string
	for _, v := range vs {
		out = append(out, strings.Split(v, ",")...)
	}
	if slices.Contains(out, "") {
		return nil, invalidParam("query", name, "empty", "holds an empty word")
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// either reads a time that has two names.
func either(name, v, other, w string) (time.Time, error) {
	if v != "" && w != "" && v != w {
		return time.Time{}, invalidParam("query", other, "conflict", "differs from %s", name)
	}
	if v == "" {
		name, v = other, w
	}
	return parseTime(name, v)
}

func (a *API) operationFilter(ctx context.Context, rq *request, in *operationsInput) (*operationFilter, error) {
	phases, err := words("phase", in.Phase)
	if err != nil {
		return nil, err
	}
	types, err := words("type", in.Type)
	if err != nil {
		return nil, err
	}
	f := &operationFilter{phases: phases, types: types, active: parseBool(in.Active), actor: in.Actor,
		parent: in.Parent, correlation: in.CorrelationID, reverse: in.Order != "asc", limit: in.Limit, sees: rq.sees, everything: len(rq.principal.Clusters) == 0}
	for _, p := range f.phases {
		if !operation.Phase(p).Valid() {
			return nil, invalidParam("query", "phase", "enum", "must be of %v", operation.Phases)
		}
	}
	for _, t := range f.types {
		if _, ok := operation.Lookup(t); !ok && !operation.Later(t) {
			return nil, invalidParam("query", "type", "enum", "must be of %v", operation.Types())
		}
	}
	for name, v := range map[string]string{"target": in.Target, "resource": in.Resource, "actor": in.Actor, "parent": in.Parent, "correlation_id": in.CorrelationID} {
		if len(v) > admission.MaxTargetBytes || !operation.CleanText(v) {
			return nil, invalidParam("query", name, "format", "must have at most %d bytes of text", admission.MaxTargetBytes)
		}
	}
	ok := true
	if f.target, f.targetName, ok = admission.Reference(in.Target); !ok {
		return nil, invalidParam("query", "target", "format", "must be an id, kind:name, or fleet")
	}
	if f.parent != "" && !id.Valid(id.Operation, f.parent) {
		return nil, invalidParam("query", "parent", "format", "must be an operation's id")
	}
	if f.since, err = either("created_since", in.CreatedSince, "since", in.Since); err != nil {
		return nil, err
	}
	if f.until, err = either("created_until", in.CreatedUntil, "until", in.Until); err != nil {
		return nil, err
	}
	given := func(name, other, v string) string { // which of the two was
		if v == "" {
			return other
		}
		return name
	}
	if err = between(given("created_since", "since", in.CreatedSince), f.since, given("created_until", "until", in.CreatedUntil), f.until); err != nil {
		return nil, err
	}
	if f.cluster, err = a.clusterParam(ctx, rq, in.Cluster); err != nil {
		return nil, err
	}
	if f.resource, err = a.resourceParam(ctx, rq, in.Resource, in.Cluster); err != nil {
		return nil, err
	}
	if len(rq.principal.Clusters) == 1 && f.cluster == "" {
		f.cluster = rq.principal.Clusters[0] // all that there is to see
	}
	f.plain = len(f.phases)+len(f.types) == 0 && f.target+f.targetName+f.correlation == "" && f.everything
	return f, nil
}

// resourceParam reads the parameter that names a resource by id or kind:name, as
// admission reads a target.
func (a *API) resourceParam(ctx context.Context, rq *request, s, cluster string) (string, error) {
	resource, name, ok := admission.Reference(s)
	switch {
	case !ok:
		return "", invalidParam("query", "resource", "format", "must be an id, kind:name, or fleet")
	case name == "":
		return resource, nil
	}
	kind, _, _ := strings.Cut(name, ":")
	t, err := admission.Resolve(ctx, a.cfg.Store, rq.call().Caller, "", "resource", []string{kind}, s, cluster)
	if r, ok := errors.AsType[*operation.Refusal](err); ok {
		p := invalidParam("query", "resource", r.ErrorCode, "cannot be found: %s", r.Detail)
		if c, ok := r.Extra["candidates"]; ok {
			p.WithExtra("candidates", c)
		}
		return "", p
	}
	return t.ID, err
}

// clusterParam reads the parameter that names a cluster by id or name.
func (a *API) clusterParam(ctx context.Context, rq *request, name string) (string, error) {
	if name == "" {
		return "", nil
	}
	if len(name) > admission.MaxTargetBytes || !operation.CleanText(name) {
		return "", invalidParam("query", "cluster", "format", "must be a cluster's id or name")
	}
	c, err := admission.FindCluster(ctx, a.cfg.Store, name)
	if errors.Is(err, ledger.ErrNotFound) {
		if id.Valid(id.Cluster, name) {
			c.ID, err = name, nil // one that was deleted has its history
		} else {
			return "", invalidParam("query", "cluster", "not_found", "names no cluster")
		}
	}
	if err == nil && !rq.sees(c.ID) {
		return "", invalidParam("query", "cluster", "not_found", "names no cluster")
	}
	return c.ID, err
}

// key is what the list's cursors are bound to.
func (f *operationFilter) key(in *operationsInput) string {
	return listKey("operations", strings.Join(f.phases, ","), strings.Join(f.types, ","), in.Active, in.Target, in.Resource, f.cluster,
		in.Actor, in.Parent, in.CorrelationID, stamp(f.since), stamp(f.until), strconv.FormatBool(f.reverse))
}

// matches judges an operation as it is now.
func (f *operationFilter) matches(op *operation.Operation) bool {
	s, sp := &op.State, &op.Spec
	switch {
	case !f.sees(s.Cluster), !f.about(s):
		return false
	case f.target != "" && sp.TargetID != f.target, f.targetName != "" && sp.TargetName != f.targetName:
		return false
	case f.resource != "" && !slices.Contains(sp.Resources, f.resource):
		return false
	}
	return f.correlation == "" || sp.CorrelationID == f.correlation
}

// about judges what the state alone tells, so that a spec need not be read.
func (f *operationFilter) about(s *operation.State) bool {
	switch {
	case len(f.phases) > 0 && !slices.Contains(f.phases, string(s.Phase)),
		len(f.types) > 0 && !slices.Contains(f.types, s.Type),
		f.active != nil && *f.active == s.Phase.Terminal(),
		f.cluster != "" && s.Cluster != f.cluster,
		f.actor != "" && s.ActorID != f.actor,
		f.parent != "" && s.Parent != f.parent,
		s.CreatedAt.Before(f.since),
		!f.until.IsZero() && !s.CreatedAt.Before(f.until):
		return false
	}
	return true
}

// by chooses the shortest walk that holds everything that may match.
func (f *operationFilter) by() record.OperationsBy {
	switch {
	case f.resource != "":
		return record.OperationsBy{Resource: f.resource}
	case f.target != "":
		return record.OperationsBy{Resource: f.target} // a target is a resource
	case f.active != nil && *f.active:
		return record.OperationsBy{Live: true}
	case f.cluster != "":
		return record.OperationsBy{Cluster: f.cluster}
	case f.actor != "":
		return record.OperationsBy{Actor: f.actor}
	}
	return record.OperationsBy{}
}

// walkOperations reads one page, and the place that it came to; "" at the end.
func (a *API) walkOperations(ctx context.Context, f *operationFilter, place string) (ops []operation.Operation, next string, err error) {
	sp := record.Span{After: place, Reverse: f.reverse}
	if !f.since.IsZero() {
		sp.From = record.TimeSort(f.since, "")
	}
	if !f.until.IsZero() {
		// Keys are whole milliseconds: the filter judges the last of them.
		sp.To = record.TimeSort(f.until.Add(time.Millisecond), "")
	}
	by := f.by()
	for scanned := 0; scanned < maxScan; {
		sp.Limit = maxLimit
		if f.plain {
			sp.Limit = f.limit - len(ops)
		}
		found, more, err := a.cfg.Store.Operations(ctx, by, sp)
		if err != nil {
			return nil, "", err
		}
		scanned += max(len(found), 1)
		var full bool
		var at int
		if ops, at, full, err = a.take(ctx, f, ops, found); err != nil {
			return nil, "", err
		}
		if at > 0 {
			sp.After = found[at-1].Sort
		}
		if full && (at < len(found) || more) {
			return ops, sp.After, nil
		}
		if !more {
			return ops, "", nil
		}
	}
	return ops, sp.After, nil
}

// take appends those of the found operations that match, until the page is full.
// It returns how many it passed.
func (a *API) take(ctx context.Context, f *operationFilter, ops []operation.Operation, found []record.FoundOperation) ([]operation.Operation, int, bool, error) {
	for at := 0; at < len(found); {
		// No more are loaded at a time than the page can take.
		room := f.limit - len(ops)
		if room <= 0 {
			return ops, at, true, nil
		}
		end, ids := at, []string{}
		for ; end < len(found) && len(ids) < room; end++ {
			if x := found[end]; x.ID != "" && (x.State == nil || f.about(x.State) && f.sees(x.State.Cluster)) {
				ids = append(ids, x.ID)
			}
		}
		loaded, err := a.cfg.Store.LoadMany(ctx, ids)
		if err != nil {
			return nil, 0, false, err
		}
		for _, opID := range ids {
			if op, ok := loaded[opID]; ok && f.matches(&op) {
				ops = append(ops, op)
			}
		}
		at = end
	}
	return ops, len(found), len(ops) >= f.limit, nil
}

// walkChildren reads one page of a plan's admitted children, by their index.
func (a *API) walkChildren(ctx context.Context, f *operationFilter, place string) (ops []operation.Operation, next string, err error) {
	c, err := a.cfg.Store.Children(ctx, f.parent)
	if err != nil {
		return nil, "", err
	}
	var found []record.FoundOperation
	for _, k := range c.Kids {
		if k.Admitted {
			found = append(found, record.FoundOperation{ID: k.Operation, Sort: fmt.Sprintf("%05d", k.Index)})
		}
	}
	if f.reverse {
		slices.Reverse(found)
	}
	if place != "" {
		found = slices.DeleteFunc(found, func(x record.FoundOperation) bool {
			return !f.reverse && x.Sort <= place || f.reverse && x.Sort >= place
		})
	}
	ops, at, full, err := a.take(ctx, f, nil, found)
	if err != nil || !full || at == len(found) {
		return ops, "", err
	}
	return ops, found[at-1].Sort, nil
}
