package httpapi

import (
	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// nodeView is a node as its cluster reported it.
type nodeView struct {
	ObjectView
	Schedulable bool                 `json:"schedulable"`
	Ready       bool                 `json:"ready"`
	Cordon      *protocol.Cordon     `json:"cordon" doc:"Who closed it to new pods"`
	GPUs        int                  `json:"gpus"`
	Pods        int                  `json:"pods"`
	Labels      map[string]string    `json:"labels"`
	ProviderID  *string              `json:"provider_id" doc:"The machine's name at its cloud"`
	Conditions  []protocol.Condition `json:"conditions" nullable:"false" doc:"Ready, and the others that say that something is wrong"`
	Blockers    []protocol.Blocker   `json:"blockers" nullable:"false" doc:"What a drain would meet, as last seen"`
}

func viewNode(o *fleet.Object, l operation.LockState) nodeView {
	v := nodeView{ObjectView: viewObject(o, l), Labels: map[string]string{}, Conditions: []protocol.Condition{}, Blockers: []protocol.Blocker{}}
	if n := o.Node; n != nil {
		v.Schedulable, v.Ready, v.Cordon, v.GPUs, v.Pods, v.Blockers = n.Schedulable, n.Ready, n.Cordon, n.GPUs, n.Pods, orEmpty(n.Blockers)
		v.ProviderID, v.Conditions = orNull(n.ProviderID), orEmpty(n.Conditions)
		if n.Labels != nil {
			v.Labels = n.Labels
		}
	}
	return v
}

// deviceView is a GPU as its cluster reported it.
type deviceView struct {
	ObjectView
	NodeID   string   `json:"node_id"`
	NodeName string   `json:"node_name"`
	Index    int      `json:"index"`
	Product  string   `json:"product"`
	Health   string   `json:"health" doc:"ok, degraded, unusable; unknown: something is wrong on its node, and not known of which device"`
	Detail   *string  `json:"detail"`
	Holders  int      `json:"holders" doc:"Processes or pods that hold it"`
	Aliases  []string `json:"aliases" nullable:"false"`
}

func viewDevice(o *fleet.Object, l operation.LockState) deviceView {
	v := deviceView{ObjectView: viewObject(o, l), Aliases: []string{}}
	if d := o.Device; d != nil {
		v.NodeID, v.NodeName, v.Index, v.Product = fleet.NodeID(o.Cluster, d.NodeUID), d.NodeName, d.Index, d.Product
		v.Health, v.Detail, v.Holders, v.Aliases = d.Health, orNull(d.Detail), d.Holders, orEmpty(d.Aliases)
	}
	return v
}

// deploymentView is a deployment as its cluster reported it.
type deploymentView struct {
	ObjectView
	Kind      string  `json:"kind"`
	Desired   int     `json:"desired"`
	Ready     int     `json:"ready"`
	Updated   int     `json:"updated"`
	Image     *string `json:"image"`
	Available bool    `json:"available"`
}

func viewDeployment(o *fleet.Object, l operation.LockState) deploymentView {
	v := deploymentView{ObjectView: viewObject(o, l)}
	if d := o.Deployment; d != nil {
		v.Kind, v.Desired, v.Ready, v.Updated, v.Image, v.Available = d.Kind, d.Desired, d.Ready, d.Updated, orNull(d.Image), d.Available
	}
	return v
}

// componentView is an installed component as its cluster reported it.
type componentView struct {
	ObjectView
	Version   string  `json:"version"`
	Healthy   bool    `json:"healthy"`
	Namespace *string `json:"namespace" doc:"Where it is installed; null where it is in several namespaces or the cluster does not say"`
}

func viewComponent(o *fleet.Object, l operation.LockState) componentView {
	v := componentView{ObjectView: viewObject(o, l)}
	if c := o.Component; c != nil {
		v.Version, v.Healthy, v.Namespace = c.Version, c.Healthy, orNull(c.Namespace)
	}
	return v
}
