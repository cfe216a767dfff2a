// Package kubeflow holds the whole way of an operation on a real Kubernetes API
// server: the one-machine engine and the agent's own binary as processes, asked
// over HTTP as anybody would, and killed, stopped and cut off where it hurts.
//
// Its tests and benchmarks carry the tag kubetest: `make test-kube` and `make
// bench-kube` run them on a control plane of package kuberig.
package kubeflow
