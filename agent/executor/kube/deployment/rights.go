package deployment

import (
	"slices"

	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
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
