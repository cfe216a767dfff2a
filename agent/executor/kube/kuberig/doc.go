// Package kuberig gives tests a real Kubernetes control plane, by processes of
// this machine: Shared for all that a namespace and nodes of its own are enough
// for, Start for a test that kills or halts components, or counts what the whole
// cluster was asked.
//
// It makes users (Client, Kubeconfig, Grant), nodes, pods and workloads whose
// behaviour is set by options (Node, Pod, Deployment, PDB, ...), reads the API
// server's audit log (Audit), plays the kubelet for the Jobs that the agents make
// (Kubelet), and puts faults between a client and the API server (Proxy).
//
// Only tests with the tag kubetest use it; `make test-kube` builds the programs
// and runs them. By hand: `bin/kubetest up` prints what to export.
package kuberig
