package sim

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// resetRefusals are the codes with which a host refuses a reset.
var resetRefusals = []string{"device_busy", "mig_change_pending", "not_supported", "nvlink_peers", "needs_reboot"}

// rollFaults are the ways in which a rollout fails; stuck never ends.
var rollFaults = []string{"progress_deadline_exceeded", "image_pull_failed", "stuck"}

// check finds what the decoder cannot.
func (sc *Scenario) check() error {
	var errs []error
	fail := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: %s", field, fmt.Sprintf(format, args...)))
	}
	oneOf := func(field, v string, allowed ...string) {
		if v != "" && !slices.Contains(allowed, v) {
			fail(field, "%q is none of %s", v, strings.Join(allowed, ", "))
		}
	}
	spaced := func(field, name string) {
		ns, n, found := strings.Cut(name, "/")
		if !found || ns == "" || n == "" || strings.Contains(n, "/") {
			fail(field, "%q is not of the form namespace/name", name)
		}
	}
	if sc.Cluster == "" {
		fail("cluster", "is missing")
	}
	if sc.TimeScale <= 0 {
		fail("time_scale", "must be above 0")
	}
	nodes := map[string]bool{}
	for i, n := range sc.Nodes {
		at := fmt.Sprintf("nodes[%d]", i)
		for _, name := range names(n.Name, n.Count, n.From) {
			if name == "" || strings.Contains(name, "%!") {
				fail(at+".name", "%q is no name", name)
			} else if nodes[name] {
				fail(at+".name", "%q is there twice", name)
			}
			nodes[name] = true
		}
		gpus := 8
		if n.GPUs != nil {
			gpus = *n.GPUs
		}
		if gpus < 0 || gpus > 64 {
			fail(at+".gpus", "%d is not between 0 and 64", gpus)
		}
		for j, p := range n.Pods {
			at := fmt.Sprintf("%s.pods[%d]", at, j)
			spaced(at+".name", p.Name)
			oneOf(at+".owner", p.Owner, OwnerDeployment, OwnerStatefulSet, OwnerJob, OwnerDaemonSet, OwnerMirror, OwnerNone)
		}
		for j, d := range n.Devices {
			at := fmt.Sprintf("%s.devices[%d]", at, j)
			if d.Index < 0 || d.Index >= gpus {
				fail(at+".index", "%d is not between 0 and %d", d.Index, gpus-1)
			}
			oneOf(at+".health", d.Health, HealthOK, HealthDegraded, HealthUnusable)
			oneOf(at+".reset_refused", d.ResetRefused, resetRefusals...)
			for _, p := range d.NVLinkPeers {
				if p < 0 || p >= gpus || p == d.Index {
					fail(at+".nvlink_peers", "%d is no other GPU of the node", p)
				}
			}
		}
	}
	for i, d := range sc.Deployments {
		at := fmt.Sprintf("deployments[%d]", i)
		for _, name := range names(d.Name, d.Count, 0) {
			spaced(at+".name", name)
		}
		oneOf(at+".kind", d.Kind, OwnerDeployment, OwnerStatefulSet)
		oneOf(at+".roll_fault", d.RollFault, rollFaults...)
		if d.Replicas < 0 {
			fail(at+".replicas", "is negative")
		}
		for _, n := range d.Nodes {
			if !nodes[n] {
				fail(at+".nodes", "there is no node %q", n)
			}
		}
	}
	for i, d := range sc.DaemonSets {
		spaced(fmt.Sprintf("daemonsets[%d]", i), d)
	}
	for i, b := range sc.PDBs {
		at := fmt.Sprintf("pdbs[%d]", i)
		spaced(at+".name", b.Name)
		if len(b.Selector) == 0 {
			fail(at+".selector", "is missing")
		}
		if (b.MinAvailable == nil) == (b.MaxUnavailable == nil) {
			fail(at+".min_available", "give one of min_available and max_unavailable")
		}
	}
	for i, c := range sc.Components {
		at := fmt.Sprintf("components[%d]", i)
		for _, v := range []struct{ field, text string }{{"version", c.Version}, {"min", c.Min}, {"max", c.Max}} {
			if _, err := parseVersion(v.text); err != nil && (v.text != "" || v.field == "version") {
				fail(at+"."+v.field, "%v", err)
			}
		}
	}
	last := Duration(0)
	for i, h := range sc.Script {
		at := fmt.Sprintf("script[%d]", i)
		if h.Do == "" {
			fail(at+".do", "is missing")
		}
		oneOf(at+".do", h.Do, Happenings...)
		if (h.Do == "device.xid") != (h.XID > 0) {
			fail(at+".xid", "must be a positive number, of device.xid alone")
		}
		if h.At < last {
			fail(at+".at", "comes before the one above it")
		}
		last = h.At
	}
	return errors.Join(errs...)
}

// names spells a pattern out.
func names(pattern string, count, from int) []string {
	if count == 0 {
		return []string{pattern}
	}
	list := make([]string, count)
	for i := range list {
		list[i] = fmt.Sprintf(pattern, from+i)
	}
	return list
}
