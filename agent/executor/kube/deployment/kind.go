package deployment

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// kind is one kind of object that can be rolled.
type kind struct {
	name string
	// resources are its versions, newest first: a CRD may serve any of them.
	resources []schema.GroupVersionResource
	// template is the part of the object that a revision is made of; annotated
	// are the pod templates within it that carry the restart.
	template  []string
	annotated [][]string
	// ownDeadline: the controller itself tells when a rollout is stuck for good.
	ownDeadline bool
	// controller is who carries a rollout out, in words.
	controller string
	// events: why pods are missing is told by events of the StatefulSet alone.
	events bool
}

const controllerManager = "the controller manager (kube-controller-manager)"

var (
	deployments = &kind{
		name: "Deployment", resources: []schema.GroupVersionResource{{Group: "apps", Version: "v1", Resource: "deployments"}},
		template: []string{"spec", "template"}, annotated: [][]string{{"spec", "template"}}, ownDeadline: true, controller: controllerManager,
	}
	statefulSets = &kind{
		name: "StatefulSet", resources: []schema.GroupVersionResource{{Group: "apps", Version: "v1", Resource: "statefulsets"}},
		template: []string{"spec", "template"}, annotated: [][]string{{"spec", "template"}}, events: true, controller: controllerManager,
	}
	// A change of spec.leaderWorkerTemplate makes a new revision of a
	// LeaderWorkerSet; without a leader template the leaders use the workers'.
	// https://github.com/kubernetes-sigs/lws/tree/main/keps/238-controller-revision
	leaderWorkerSets = &kind{
		name: "LeaderWorkerSet", resources: []schema.GroupVersionResource{{Group: "leaderworkerset.x-k8s.io", Version: "v1", Resource: "leaderworkersets"}},
		template: []string{"spec", "leaderWorkerTemplate"},
		annotated: [][]string{
			{"spec", "leaderWorkerTemplate", "leaderTemplate"},
			{"spec", "leaderWorkerTemplate", "workerTemplate"},
		},
		events: true, controller: "the LeaderWorkerSet operator (lws-controller-manager)",
	}
	// https://github.com/ai-dynamo/dynamo/blob/main/deploy/operator/api/v1beta1/dynamographdeployment_types.go
	dynamoGraphs = &kind{
		name: "DynamoGraphDeployment",
		resources: []schema.GroupVersionResource{
			{Group: "nvidia.com", Version: "v1beta1", Resource: "dynamographdeployments"},
			{Group: "nvidia.com", Version: "v1alpha1", Resource: "dynamographdeployments"},
		},
		controller: "the Dynamo operator",
	}
)

// kinds in the order in which a name is looked for.
var kinds = []*kind{deployments, statefulSets, leaderWorkerSets, dynamoGraphs}

// Labels by which the operators of the two CRDs name their pods' owner.
const (
	labelLeaderWorkerSet = "leaderworkerset.sigs.k8s.io/name"
	labelGroupIndex      = "leaderworkerset.sigs.k8s.io/group-index"
	labelDynamoGraph     = "nvidia.com/dynamo-graph-deployment-name"
)
