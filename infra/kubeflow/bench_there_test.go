//go:build kubetest

package kubeflow

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
)

// gpusEach is how many GPUs a node of the rig has.
const gpusEach = 8

// BenchmarkFleetThere is how long it takes from the start of an agent that nobody has seen
// before until the whole fleet is in each of the lists that the API serves: 30 s are
// promised. All are asked for in turns, as a person would who waits for them.
func BenchmarkFleetThere(b *testing.B) {
	const deployments = 20
	n := waveNodes(b)
	b.Run(fmt.Sprintf("nodes=%d", n), func(b *testing.B) {
		rig := kuberig.Start(b, kuberig.Options{})
		f := newFleet(b, rig, n, 0)
		for i := range deployments {
			rig.Deployment(f.ns, fmt.Sprintf("serve-%02d", i), 1, kuberig.WantsGPUs(1))
		}
		s := newSite(b, rig, []string{}...)
		want := map[string]int{"nodes": n, "devices": n * gpusEach, "deployments": deployments}
		rig.Program("./agent") // its build is none of it
		began := time.Now()
		s.agent("")
		b.ReportMetric(time.Since(began).Seconds(), "online-s")
		for missing := maps.Clone(want); len(missing) > 0; time.Sleep(20 * time.Millisecond) {
			for _, kind := range slices.Sorted(maps.Keys(missing)) {
				have := len(list[thing](s, "/v1/"+kind+"?limit=200"))
				took := time.Since(began)
				if have >= want[kind] {
					b.ReportMetric(took.Seconds(), kind+"-s")
					delete(missing, kind)
				} else if took > 2*time.Minute {
					b.Fatalf("after %s there are %d of %d %s", took, have, want[kind], kind)
				}
			}
		}
		b.ReportMetric(0, "ns/op")
	})
}
