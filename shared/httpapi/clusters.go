package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/registry"
)

const clustersPath = "/v1/clusters"

func (a *API) clusterRoutes() {
	tags := []string{"clusters"}
	register(a, huma.Operation{Method: http.MethodPost, Path: clustersPath, Summary: "Create cluster", Tags: tags, DefaultStatus: http.StatusCreated,
		Description: "Registers a cluster with its queue. The agents' token is shown this once."},
		access{action: auth.ManageClusters, fleet: true, body: smallBody}, a.createCluster)
	register(a, huma.Operation{Method: http.MethodGet, Path: clustersPath, Summary: "List clusters", Tags: tags}, access{action: auth.Read}, a.listClusters)
	register(a, huma.Operation{Method: http.MethodGet, Path: clustersPath + "/{id}", Summary: "Get cluster", Tags: tags}, access{action: auth.Read}, a.getCluster)
	register(a, huma.Operation{Method: http.MethodDelete, Path: clustersPath + "/{id}", Summary: "Delete cluster", Tags: tags,
		Description: "Removes its inventory, agents, tokens and queue. 409 cluster_in_use while an operation of it is live."},
		access{action: auth.ManageClusters}, a.deleteCluster)
	register(a, huma.Operation{Method: http.MethodPost, Path: clustersPath + "/{id}/token", Summary: "Rotate cluster token", Tags: tags,
		Description: "Gives the agents a new token, shown this once; the old one ends at once."},
		access{action: auth.ManageClusters}, a.rotateCluster)
}

// ClusterView is a cluster.
type ClusterView struct {
	ID           string          `json:"id"`
	Name         string          `json:"name"`
	Queue        string          `json:"queue"`
	CreatedAt    time.Time       `json:"created_at"`
	CreatedBy    operation.Actor `json:"created_by"`
	Deleting     bool            `json:"deleting"`
	Agents       int             `json:"agents"`
	AgentsOnline int             `json:"agents_online"`
	Links        clusterLinks    `json:"links"`
}

type clusterLinks struct {
	Nodes      string `json:"nodes"`
	Operations string `json:"operations"`
	Events     string `json:"events"`
}

// newClusterView is a cluster with a fresh agents' token.
type newClusterView struct {
	ClusterView
	Token   string `json:"token" doc:"The agents' bearer token; it is never shown again"`
	TokenID string `json:"token_id"`
	// On AWS; absent where agents poll through the plane.
	QueueURL    string          `json:"queue_url,omitempty" doc:"On AWS: where the agents poll"`
	QueueARN    string          `json:"queue_arn,omitempty" doc:"On AWS: the queue's name in policies"`
	AgentPolicy json.RawMessage `json:"agent_policy,omitempty" doc:"On AWS: the IAM policy that the agents need, for their own queue and nothing else"`
}

// QueueAccess is how a cluster's agents reach its queue without the plane.
type QueueAccess struct {
	URL string
	ARN string
	// Policy is the IAM policy in JSON that their credentials need.
	Policy json.RawMessage
}

// viewNewCluster shows a cluster with its token. The token is not shown again, so
// that nothing may fail here: what else cannot be told now is left out, and the
// next rotation, or a look at the cluster, tells it.
func (a *API) viewNewCluster(ctx context.Context, made registry.NewCluster) newClusterView {
	cluster, err := a.viewCluster(ctx, made.Cluster)
	if err != nil {
		a.log.WarnContext(ctx, "cannot count a cluster's agents", "cluster", made.Cluster.ID, "err", err)
	}
	v := newClusterView{ClusterView: cluster, Token: made.Secret, TokenID: made.Token.ID}
	if a.cfg.QueueAccess == nil {
		return v
	}
	access, err := a.cfg.QueueAccess(ctx, made.Cluster.Queue)
	if err != nil {
		a.log.WarnContext(ctx, "cannot tell how agents reach their queue", "cluster", made.Cluster.ID, "err", err)
		return v
	}
	v.QueueURL, v.QueueARN, v.AgentPolicy = access.URL, access.ARN, access.Policy
	return v
}

func (a *API) viewCluster(ctx context.Context, c fleet.Cluster) (ClusterView, error) {
	v := ClusterView{ID: c.ID, Name: c.Name, Queue: c.Queue, CreatedAt: c.CreatedAt, CreatedBy: c.CreatedBy, Deleting: c.Deleting,
		Links: clusterLinks{Nodes: "/v1/nodes?cluster=" + c.ID, Operations: operationsPath + "?cluster=" + c.ID, Events: "/v1/events?cluster=" + c.ID}}
	agents, err := a.cfg.Store.Agents(ctx, c.ID)
	for _, g := range agents {
		v.Agents++
		if g.Online(a.now(), a.cfg.Store.Timing.AgentSilent) {
			v.AgentsOnline++
		}
	}
	return v, err
}

func (a *API) createCluster(ctx context.Context, rq *request, in *struct {
	Body struct {
		Name string `json:"name" doc:"A DNS label, unique"`
	} `nameHint:"ClusterBody"`
}) (*createdOutput[newClusterView], error) {
	made, err := a.cfg.Registry.Create(ctx, rq.call(), in.Body.Name)
	if err != nil {
		return nil, err
	}
	return &createdOutput[newClusterView]{Status: http.StatusCreated, Location: clustersPath + "/" + made.Cluster.ID, Body: a.viewNewCluster(ctx, made)}, nil
}

func (a *API) listClusters(ctx context.Context, rq *request, in *struct {
	PageInput
	Name string `query:"name"`
}) (*listOutput[ClusterView], error) {
	key := listKey("clusters", in.Name)
	place, err := decodeCursor(key, in.Cursor)
	if err != nil {
		return nil, err
	}
	all, err := a.cfg.Store.Clusters(ctx)
	if err != nil {
		return nil, err
	}
	items, next := []ClusterView{}, ""
	for _, c := range all {
		sort := c.Name + "#" + c.ID
		if sort <= place || !rq.sees(c.ID) || in.Name != "" && c.Name != in.Name {
			continue
		}
		if len(items) == in.Limit {
			last := items[len(items)-1]
			next = encodeCursor(key, last.Name+"#"+last.ID)
			break
		}
		v, err := a.viewCluster(ctx, c)
		if err != nil {
			return nil, err
		}
		items = append(items, v)
	}
	return &listOutput[ClusterView]{Body: newList(items, next)}, nil
}

type clusterPath struct {
	ID string `path:"id" maxLength:"64" doc:"Id or name"`
}

func (a *API) getCluster(ctx context.Context, rq *request, in *clusterPath) (*bodyOutput[ClusterView], error) {
	c, err := a.cfg.Registry.Find(ctx, rq.call(), in.ID)
	if err != nil {
		return nil, err
	}
	v, err := a.viewCluster(ctx, c)
	return &bodyOutput[ClusterView]{Body: v}, err
}

func (a *API) deleteCluster(ctx context.Context, rq *request, in *clusterPath) (*struct{}, error) {
	return nil, a.cfg.Registry.Delete(ctx, rq.call(), in.ID)
}

func (a *API) rotateCluster(ctx context.Context, rq *request, in *clusterPath) (*bodyOutput[newClusterView], error) {
	made, err := a.cfg.Registry.RotateToken(ctx, rq.call(), in.ID)
	if err != nil {
		return nil, err
	}
	return &bodyOutput[newClusterView]{Body: a.viewNewCluster(ctx, made)}, nil
}
