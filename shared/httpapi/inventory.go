package httpapi

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/opsplane/opsplane/shared/admission"
	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
)

func (a *API) inventoryRoutes() {
	inventory(a, "nodes", operation.KindNode, id.Node, viewNode, (*nodesInput).part)
	inventory(a, "devices", operation.KindDevice, id.Device, viewDevice, (*devicesInput).part)
	inventory(a, "deployments", operation.KindDeployment, id.Deployment, viewDeployment, (*ObjectsInput).part)
	inventory(a, "components", operation.KindComponent, id.Component, viewComponent, (*ObjectsInput).part)
}

// ObjectsInput are the parameters that every list of the inventory takes.
type ObjectsInput struct {
	PageInput
	Cluster string `query:"cluster" doc:"Id or name"`
	Name    string `query:"name" doc:"The whole name"`
}

// objectsPart is what a kind's own parameters come down to.
type objectsPart struct {
	ObjectsInput
	key     string
	matches func(fleet.Object) bool
}

func (in *ObjectsInput) part() objectsPart {
	return objectsPart{ObjectsInput: *in, matches: func(fleet.Object) bool { return true }}
}

type nodesInput struct {
	ObjectsInput
	Schedulable string `query:"schedulable" enum:"true,false"`
	Ready       string `query:"ready" enum:"true,false"`
}

func (in *nodesInput) part() objectsPart {
	schedulable, ready := parseBool(in.Schedulable), parseBool(in.Ready)
	return objectsPart{ObjectsInput: in.ObjectsInput, key: in.Schedulable + " " + in.Ready, matches: func(o fleet.Object) bool {
		return o.Node != nil && (schedulable == nil || *schedulable == o.Node.Schedulable) && (ready == nil || *ready == o.Node.Ready)
	}}
}

type devicesInput struct {
	ObjectsInput
	Node   string `query:"node" doc:"The node's id or name"`
	Health string `query:"health" enum:"ok,degraded,unusable,unknown"`
}

func (in *devicesInput) part() objectsPart {
	return objectsPart{ObjectsInput: in.ObjectsInput, key: in.Node + " " + in.Health, matches: func(o fleet.Object) bool {
		return o.Device != nil && (in.Health == "" || o.Device.Health == in.Health) &&
			(in.Node == "" || o.Device.NodeName == in.Node || fleet.NodeID(o.Cluster, o.Device.NodeUID) == in.Node)
	}}
}

// ObjectView is what all kinds have in common.
type ObjectView struct {
	ID              string      `json:"id"`
	Name            string      `json:"name"`
	UID             string      `json:"uid" doc:"Its own identity in its cluster"`
	Cluster         string      `json:"cluster"`
	ActiveOperation *string     `json:"active_operation" doc:"The live operation that holds it"`
	UnsettledBy     []string    `json:"unsettled_by" nullable:"false" doc:"Operations that left it in a state nobody proved"`
	Revision        int64       `json:"revision"`
	FirstSeen       time.Time   `json:"first_seen"`
	ObservedAt      time.Time   `json:"observed_at"`
	Links           objectLinks `json:"links"`
}

type objectLinks struct {
	History string `json:"history"`
	Events  string `json:"events"`
}

func viewObject(o *fleet.Object, l operation.LockState) ObjectView {
	v := ObjectView{ID: o.ID, Name: o.Name, UID: o.UID, Cluster: o.Cluster, UnsettledBy: orEmpty(l.Unsettled), Revision: o.Revision,
		FirstSeen: o.FirstSeen, ObservedAt: o.ObservedAt, Links: objectLinks{History: operationsPath + "?resource=" + o.ID, Events: "/v1/events?subject=" + o.ID}}
	for _, h := range l.Holders {
		if v.ActiveOperation == nil || h.Mode == operation.Exclusive {
			v.ActiveOperation = orNull(h.Operation)
		}
	}
	return v
}

// inventory registers the list and the single read of one kind.
func inventory[V, In any](a *API, name, kind, prefix string, view func(*fleet.Object, operation.LockState) V, part func(*In) objectsPart) {
	tags, path := []string{"inventory"}, "/v1/"+name
	register(a, huma.Operation{Method: http.MethodGet, Path: path, Summary: "List " + name, Tags: tags}, access{action: auth.Read},
		func(ctx context.Context, rq *request, in *In) (*listOutput[V], error) {
			objects, next, err := a.listObjects(ctx, rq, kind, part(in))
			if err != nil {
				return nil, err
			}
			ids := make([]string, len(objects))
			for i, o := range objects {
				ids[i] = o.ID
			}
			locks, err := a.cfg.Store.Locks(ctx, ids)
			if err != nil {
				return nil, err
			}
			items := make([]V, len(objects))
			for i := range objects {
				items[i] = view(&objects[i], locks[objects[i].ID])
			}
			return &listOutput[V]{Body: newList(items, next)}, nil
		})
	register(a, huma.Operation{Method: http.MethodGet, Path: path + "/{id}", Summary: "Get " + kind, Tags: tags}, access{action: auth.Read},
		func(ctx context.Context, rq *request, in *struct {
			ID string `path:"id"`
		}) (*bodyOutput[V], error) {
			if !id.Valid(prefix, in.ID) {
				return nil, notFound(kind, in.ID)
			}
			o, _, err := a.cfg.Store.Object(ctx, in.ID)
			if err != nil {
				return nil, missing(err, kind, in.ID)
			}
			if !rq.sees(o.Cluster) || o.Kind != kind {
				return nil, notFound(kind, in.ID)
			}
			locks, err := a.cfg.Store.Locks(ctx, []string{o.ID})
			if err != nil {
				return nil, err
			}
			return &bodyOutput[V]{Body: view(&o, locks[o.ID])}, nil
		})
}

// listObjects reads one page of the inventory of a kind.
func (a *API) listObjects(ctx context.Context, rq *request, kind string, in objectsPart) ([]fleet.Object, string, error) {
	cluster, err := a.clusterParam(ctx, rq, in.Cluster)
	if err != nil {
		return nil, "", err
	}
	if len(in.Name) > admission.MaxTargetBytes || !operation.CleanText(in.Name) {
		return nil, "", invalidParam("query", "name", "format", "must have at most %d bytes of text", admission.MaxTargetBytes)
	}
	if kind == operation.KindDevice {
		in.Name = fleet.CanonicalDevice(in.Name)
	}
	key := listKey(kind, cluster, in.Name, in.key)
	if cluster == "" && len(rq.principal.Clusters) == 1 {
		cluster = rq.principal.Clusters[0]
	}
	read := func(sp record.Span) ([]fleet.Object, bool, error) { return a.cfg.Store.Objects(ctx, kind, cluster, sp) }
	if in.Name != "" {
		read = func(sp record.Span) ([]fleet.Object, bool, error) {
			objects, err := a.cfg.Store.ObjectsByName(ctx, kind, in.Name)
			slices.SortFunc(objects, func(x, y fleet.Object) int { return strings.Compare(record.ObjectSort(&x), record.ObjectSort(&y)) })
			return slices.DeleteFunc(objects, func(o fleet.Object) bool { return record.ObjectSort(&o) <= sp.After }), false, err
		}
	}
	return page(key, in.PageInput, false, read, func(o fleet.Object) string { return record.ObjectSort(&o) },
		func(o fleet.Object) bool {
			return rq.sees(o.Cluster) && (cluster == "" || o.Cluster == cluster) && in.matches(o)
		})
}
