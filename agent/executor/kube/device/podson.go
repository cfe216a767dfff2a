package device

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/opsplane/opsplane/agent/executor/host/report"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
)

// PodsRights are what PodsOn needs of the agent's role beside what a drain has.
var PodsRights = []cluster.Right{
	{Verb: "get", Resource: "nodes", Why: "to tell a report of the node from one of a machine before it that had its name"},
	{Verb: "get", Resource: "configmaps", Namespace: cluster.OwnNamespace, Why: "to read which pods hold a device, for a drain that is narrowed to it"},
}

// PodsOn tells which pods of a node hold a device, by any of its spellings, from
// what the host reports of itself (serve): for drains that are narrowed to one.
// nameOf names a node by its UID. A reason says why it cannot be told.
func PodsOn(c *cluster.Cluster, nameOf func(ctx context.Context, node types.UID) (string, error)) func(ctx context.Context, node types.UID, device string) (pods []types.UID, reason string, err error) {
	e := &devices{c: c}
	return func(ctx context.Context, node types.UID, device string) ([]types.UID, string, error) {
		name, err := nameOf(ctx, node)
		if err != nil {
			return nil, "", fmt.Errorf("name node %s: %w", node, err)
		}
		return e.podsOn(ctx, name, device)
	}
}

func (e *devices) podsOn(ctx context.Context, node, device string) ([]types.UID, string, error) {
	h, err := e.host(ctx, node)
	var none errNoReport
	if errors.As(err, &none) {
		return nil, none.why, nil
	}
	if err != nil {
		return nil, "", err
	}
	device = strings.TrimPrefix(device, node+"/") // a bus id with its node, as the inventory writes it
	uuid, _ := report.UUID(device)
	pci, _ := report.PCI(device)
	index, err := strconv.Atoi(device)
	byIndex := err == nil && uuid == "" && pci == "" // <node>/<index>
	for i := range h.Devices {
		dev := &h.Devices[i]
		if dev.UUID != uuid && (pci == "" || dev.PCI != pci) && (!byIndex || dev.Index != index) {
			continue
		}
		on, err := e.resolve(ctx, target{dev.UUID, node}, &report.Answer{Device: dev})
		if err != nil {
			return nil, "", err
		}
		return on.uids, "", nil // a pod that the host still names and the cluster does not is gone
	}
	return nil, fmt.Sprintf("node %s reports no device %s", node, device), nil
}
