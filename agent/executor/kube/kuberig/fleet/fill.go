//go:build kubetest

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
)

const (
	nodes     = 12
	gpus      = 8 // of a node
	agentUser = "agent"
	namespace = "opsplane" // the agent's
	image     = "opsplane-host"
)

// Where the hosts keep things, as they see it.
const (
	recordings = "/var/lib/opsplane-recorded"
	marks      = "/var/lib/opsplane-host"
)

func nodeName(i int) string { return fmt.Sprintf("gpu-node-%02d", i+1) }

// fill makes the nodes, the workloads and the agent's user.
func fill(r *kuberig.Rig, o options) (Ready, error) {
	for i := range nodes {
		r.Node(nodeName(i), kuberig.NodeLabel(corev1.LabelTopologyZone, fmt.Sprintf("sim-1%c", 'a'+i%3)))
	}
	if err := grant(r, o.rights); err != nil {
		return Ready{}, err
	}
	workloads(r)
	config := filepath.Join(o.dir, "agent.yaml")
	b, err := yaml.Marshal(map[string]any{"deviceReset": map[string]any{"image": image, "recorded": recordings, "state": marks}})
	if err != nil {
		return Ready{}, err
	}
	if err := os.WriteFile(config, b, 0o600); err != nil {
		return Ready{}, fmt.Errorf("write the agent's configuration: %w", err)
	}
	return Ready{Kubeconfig: r.Kubeconfig(agentUser), Namespace: namespace, Config: config, Nodes: nodes, Device: uuid(worn, 3)}, nil
}

// workloads are what runs on the fleet: 60 of its 96 GPUs are taken.
func workloads(r *kuberig.Rig) {
	for _, ns := range []string{"inference", "training", "notebooks", "monitoring"} {
		r.NamespaceNamed(ns)
	}
	// First, as long as there are whole nodes.
	r.StatefulSet("training", "llama", 2, kuberig.WantsGPUs(gpus), kuberig.Shutdown(5*time.Second), kuberig.Grace(60),
		kuberig.PreferNode(nodeName(6), nodeName(7), nodeName(9), nodeName(10)))
	// Never drained: nothing may be away. The operation says so and waits.
	r.Deployment("inference", "ranker", 4, kuberig.WantsGPUs(2), kuberig.PreferNode(nodeName(2), nodeName(3)))
	r.PDB("inference", "ranker", "ranker", kuberig.MinAvailable("4"))
	one := kuberig.WantsGPUs(1)
	r.DaemonSet("monitoring", "dcgm-exporter")
	// Drained two at a time.
	r.Deployment("inference", "llm-api", 24, one, kuberig.Shutdown(2*time.Second), kuberig.ReadyDelay(2*time.Second))
	r.PDB("inference", "llm-api", "llm-api", kuberig.MaxUnavailable("2"))
	r.Deployment("inference", "embeddings", 12, one)
	r.PDB("inference", "embeddings", "embeddings", kuberig.MinAvailable("50%"))
	// Nobody makes it again, and its data goes with it.
	r.Pod("notebooks", "jupyter", kuberig.OnNode(nodeName(nodes-1)), kuberig.EmptyDir())
}

// grant gives the agent's user the rights that the chart gives the agent.
func grant(r *kuberig.Rig, file string) error {
	r.NamespaceNamed(namespace)
	b, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read the agent's rights: %w", err)
	}
	var rights map[string]struct{ Cluster, Namespace []rbacv1.PolicyRule }
	if err := yaml.Unmarshal(b, &rights); err != nil {
		return fmt.Errorf("read the agent's rights in %s: %w", file, err)
	}
	r.Kubeconfig(agentUser) // makes the user
	for _, part := range []string{"agent", "deviceReset"} {
		p, ok := rights[part]
		if !ok {
			return fmt.Errorf("read the agent's rights in %s: no %s", file, part)
		}
		if len(p.Cluster) > 0 {
			r.Grant(agentUser, metav1.NamespaceAll, p.Cluster...)
		}
		if len(p.Namespace) > 0 {
			r.Grant(agentUser, namespace, p.Namespace...)
		}
	}
	return nil
}
