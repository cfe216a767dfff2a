// Package charttest holds the chart infra/helm/opsplane-agent to what it
// promises, by rendering it with Helm's own library: it lints, it refuses values
// that make no sense, its role is exactly what the executors ask for, its pods
// keep to the restricted pod security standard, and a real API server takes what
// it renders (with the tag kubetest).
package charttest
