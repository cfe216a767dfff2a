// Package plane runs a Kubernetes control plane as processes of this machine:
// etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kwok, each on
// its own, so that a test can kill, stop and start one of them.
//
// It knows Go's standard library alone: the programs come from package kubebox,
// built once and kept, and what uses this package builds in a second. Everything
// listens on loopback, at ports that no other plane of this machine has, and ends
// with the process that started it, also when that is killed.
//
// The state folder is the interface to package kuberig of the tests:
//
//	pki/ca.crt, ca.key         the authority that users' certificates come from
//	pki/admin.kubeconfig       a member of system:masters; see WriteUser for others
//	log/COMPONENT.log          what the component wrote
//	audit.log                  a line of JSON for each request, see audit.yaml
package plane
