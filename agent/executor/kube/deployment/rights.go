package deployment

import (
	"context"
	"slices"

	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// Rights are what deployment.roll needs of the agent's role.
var Rights = slices.Concat(
	rightsOn("apps", "deployments", "a Deployment"),
	rightsOn("apps", "statefulsets", "a StatefulSet"),
	rightsOn("leaderworkerset.x-k8s.io", "leaderworkersets", "a LeaderWorkerSet"),
	rightsOn("nvidia.com", "dynamographdeployments", "a DynamoGraphDeployment"),
	[]cluster.Right{
		{Verb: "list", Resource: "pods", Why: "to tell the new pods of a rollout from the old and why they are not ready"},
		{Verb: "watch", Resource: "pods", Why: "to follow the pods of a rollout"},
		{Verb: "list", Group: "apps", Resource: "replicasets", Why: "to tell a Deployment's pods from another's"},
		{Verb: "watch", Group: "apps", Resource: "replicasets", Why: "to hear of the ReplicaSets that a rollout of a Deployment makes"},
		{Verb: "delete", Resource: "pods", Why: "to let a StatefulSet go back past pods that never get ready"},
		{Verb: "list", Resource: "events", Why: "to read why a StatefulSet's pods cannot be made"},
		{Verb: "watch", Resource: "events", Why: "to hear why a StatefulSet's pods cannot be made"},
		cluster.EventRight,
	},
)

func rightsOn(group, resource, what string) []cluster.Right {
	return []cluster.Right{
		{Verb: "get", Group: group, Resource: resource, Why: "to read " + what + " and its rollout"},
		{Verb: "list", Group: group, Resource: resource, Why: "to begin to follow the rollout of " + what},
		{Verb: "watch", Group: group, Resource: resource, Why: "to follow the rollout of " + what},
		{Verb: "patch", Group: group, Resource: resource, Why: "to restart " + what},
	}
}

// needs are those of Rights without which a roll of the object does not come to its
// end. That to read the object is the first.
func (r *rollout) needs(p operation.RollPayload) []cluster.Right {
	var list []cluster.Right
	for _, right := range Rights {
		var needed bool
		switch right.Resource {
		case r.resource.Resource:
			needed = right.Group == r.resource.Group
		case "pods":
			needed = right.Verb != "delete" || p.Undo == "on_failure" && r.kind == statefulSets && r.ordered
		case "replicasets":
			needed = r.kind == deployments
		case "events":
			needed = right != cluster.EventRight && r.kind.events
		}
		if needed {
			list = append(list, right)
		}
	}
	return list
}

// lacking are the rights to roll d to its end that the agent's role lacks: the restart
// itself does not meet most of them, and what follows it does too late. A review that
// denies the read of d, which was just made, tells nothing: a role need not grant to ask.
func (r *roller) lacking(ctx context.Context, d *rollout, p operation.RollPayload) ([]protocol.Blocker, error) {
	var list []protocol.Blocker
	for _, right := range d.needs(p) {
		asked := right.Attributes()
		asked.Namespace = d.object.GetNamespace()
		if right.Resource == d.resource.Resource { // a watch of one object names it
			asked.Name = d.object.GetName()
		}
		read, cancel := r.Read(ctx)
		has, err := r.Allowed(read, asked)
		cancel()
		switch {
		case err != nil:
			return nil, err
		case has:
		case right.Verb == "get":
			return nil, nil
		default:
			list = append(list, *right.Missing("deployment/" + d.name()))
		}
	}
	return list, nil
}
