// Package kube is the executor for Kubernetes: it makes one executor of the
// operation types, each in a package of its own (node, device, deployment,
// component), and of the inventory. Package cluster is the API server as all of
// them reach it, package follow how they wait for what it holds.
package kube
