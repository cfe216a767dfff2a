package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/protocol"
)

// agentViewRoutes show the agents to people; what agents call is in agent.go.
func (a *API) agentViewRoutes() {
	register(a, huma.Operation{Method: http.MethodGet, Path: "/v1/agents", Summary: "List agents", Tags: []string{"agents"}}, access{action: auth.Read}, a.listAgents)
	register(a, huma.Operation{Method: http.MethodGet, Path: "/v1/agents/{id}", Summary: "Get agent", Tags: []string{"agents"}}, access{action: auth.Read}, a.getAgent)
}

// agentView is an agent as it was last heard of.
type agentView struct {
	ID           string                `json:"id"`
	Name         string                `json:"name"`
	Cluster      string                `json:"cluster"`
	Online       bool                  `json:"online"`
	Version      string                `json:"version"`
	Capabilities []protocol.Capability `json:"capabilities" nullable:"false"`
	Boot         string                `json:"boot"`
	FirstSeen    time.Time             `json:"first_seen"`
	LastSeen     time.Time             `json:"last_seen"`
	SkewMS       int64                 `json:"skew_ms" doc:"How far its wall clock is ahead of the plane's, in milliseconds, by its last heartbeat"`
	ClockSkewed  bool                  `json:"clock_skewed" doc:"Its wall clock counts as wrong: 30 s off in two heartbeats in a row, until it is less than 10 s off in two"`
	Leases       int                   `json:"leases"`
	Capacity     int                   `json:"capacity"`
	Stopping     bool                  `json:"stopping"`
	CutOff       bool                  `json:"cut_off" doc:"What it works on, such as the API server, did not answer it at its last heartbeat: it leaves new work, and the inventory, to other agents"`
}

func (a *API) viewAgent(g fleet.Agent) agentView {
	return agentView{ID: g.ID, Name: g.Name, Cluster: g.Cluster, Online: g.Online(a.now(), a.cfg.Store.Timing.AgentSilent), Version: g.Version,
		Capabilities: orEmpty(g.Capabilities), Boot: g.Boot, FirstSeen: g.FirstSeen, LastSeen: g.LastSeen, SkewMS: g.SkewMS, ClockSkewed: g.ClockSkewed, Leases: g.Leases,
		Capacity: g.Capacity, Stopping: g.Stopping, CutOff: g.CutOff}
}

func (a *API) listAgents(ctx context.Context, rq *request, in *struct {
	PageInput
	Cluster string `query:"cluster" doc:"Id or name"`
	Online  string `query:"online" enum:"true,false"`
	Name    string `query:"name"`
}) (*listOutput[agentView], error) {
	cluster, err := a.clusterParam(ctx, rq, in.Cluster)
	if err != nil {
		return nil, err
	}
	key := listKey("agents", cluster, in.Online, in.Name)
	place, err := decodeCursor(key, in.Cursor)
	if err != nil {
		return nil, err
	}
	all, err := a.cfg.Store.AllAgents(ctx)
	if err != nil {
		return nil, err
	}
	online := parseBool(in.Online)
	items, next := []agentView{}, ""
	for _, g := range all {
		v := a.viewAgent(g)
		if g.Cluster+"#"+g.ID <= place || !rq.sees(g.Cluster) || cluster != "" && g.Cluster != cluster ||
			online != nil && *online != v.Online || in.Name != "" && g.Name != in.Name {
			continue
		}
		if len(items) == in.Limit {
			last := items[len(items)-1]
			next = encodeCursor(key, last.Cluster+"#"+last.ID)
			break
		}
		items = append(items, v)
	}
	return &listOutput[agentView]{Body: newList(items, next)}, nil
}

func (a *API) getAgent(ctx context.Context, rq *request, in *struct {
	ID string `path:"id"`
}) (*bodyOutput[agentView], error) {
	if !id.Valid(id.Agent, in.ID) {
		return nil, notFound("agent", in.ID)
	}
	all, err := a.cfg.Store.AllAgents(ctx)
	if err != nil {
		return nil, err
	}
	for _, g := range all {
		if g.ID == in.ID && rq.sees(g.Cluster) {
			return &bodyOutput[agentView]{Body: a.viewAgent(g)}, nil
		}
	}
	return nil, notFound("agent", in.ID)
}
