package inventory

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"

	"github.com/opsplane/opsplane/agent/executor/host/report"
)

// slice is what is kept of a ResourceSlice that offers a node's GPUs.
type slice struct {
	head
	node, driver, pool string
	generation         int64
	gpus               []gpu
}

// gpuDrivers are DRA drivers of GPUs: gpu.nvidia.com, gpu.amd.com, gpu.intel.com.
const gpuDrivers = "gpu."

var trailing = regexp.MustCompile(`(\d+)$`)

// stripSlice reads a ResourceSlice. Parts of a GPU (MIG) are not devices of the
// inventory: what is reset and drained is the card.
// https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/resource-slice-v1/
func stripSlice(obj any) (*slice, bool) {
	o, ok := obj.(*resourcev1.ResourceSlice)
	if !ok || o.Spec.NodeName == nil || !strings.HasPrefix(o.Spec.Driver, gpuDrivers) {
		return nil, false
	}
	s := &slice{head: headOf(o), node: intern(*o.Spec.NodeName), driver: intern(o.Spec.Driver), pool: intern(o.Spec.Pool.Name), generation: o.Spec.Pool.Generation}
	for i := range o.Spec.Devices {
		d := &o.Spec.Devices[i]
		get := func(names ...string) string {
			for _, name := range names {
				for _, key := range []string{name, o.Spec.Driver + "/" + name, "resource.kubernetes.io/" + name} {
					if a, ok := d.Attributes[resourcev1.QualifiedName(key)]; ok {
						switch {
						case a.StringValue != nil:
							return *a.StringValue
						case a.IntValue != nil:
							return strconv.FormatInt(*a.IntValue, 10)
						}
					}
				}
			}
			return ""
		}
		if typ := get("type"); typ != "" && typ != "gpu" && typ != "vfio" {
			continue
		}
		g := gpu{product: intern(cut(get("productName", "model", "family"), 256)), health: report.HealthOK, index: -1, version: s.version}
		g.uuid, _ = report.UUID(get("uuid"))
		g.pci, _ = report.PCI(get("pciBusID", "pciAddress"))
		g.pci = intern(g.pci)
		for _, text := range []string{get("index", "minor"), trailing.FindString(d.Name)} {
			if n, err := strconv.Atoi(text); err == nil && n >= 0 && g.index < 0 {
				g.index = n
			}
		}
		if g.index < 0 {
			g.index = i
		}
		tainted(d.Taints, &g)
		s.gpus = append(s.gpus, g)
	}
	return s, true
}

// tainted reads the taints that a driver sets on a device that is ill: with
// NoExecute nothing may run on it, with NoSchedule nothing new.
func tainted(taints []resourcev1.DeviceTaint, g *gpu) {
	for _, t := range taints {
		health := ""
		switch t.Effect {
		case resourcev1.DeviceTaintEffectNoExecute:
			health = report.HealthUnusable
		case resourcev1.DeviceTaintEffectNoSchedule:
			health = report.HealthDegraded
		}
		if health != "" && rank(health) > rank(g.health) {
			g.health, g.detail = health, cut("its driver tainted it "+strings.TrimSuffix(t.Key+"="+t.Value, "=")+":"+string(t.Effect), 512)
		}
	}
}

func (m *model) applySlice(was, is *slice) {
	if was != nil {
		delete(m.slices[was.node], was)
		if len(m.slices[was.node]) == 0 {
			delete(m.slices, was.node)
		}
	}
	if is != nil {
		if m.slices[is.node] == nil {
			m.slices[is.node] = map[*slice]struct{}{}
		}
		m.slices[is.node][is] = struct{}{}
	}
	if was != nil && (is == nil || was.node != is.node) {
		m.refreshDevices(was.node)
	}
	if is != nil {
		m.refreshDevices(is.node)
	}
}

// currentSlices lists the node's slices that count: of each pool those of its
// newest generation, in the order of their names.
func (m *model) currentSlices(node string) []*slice {
	newest := map[string]int64{}
	for s := range m.slices[node] {
		newest[s.driver+"/"+s.pool] = max(newest[s.driver+"/"+s.pool], s.generation)
	}
	var out []*slice
	for s := range m.slices[node] {
		if s.generation == newest[s.driver+"/"+s.pool] {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(a, b *slice) int { return strings.Compare(a.name, b.name) })
	return out
}
