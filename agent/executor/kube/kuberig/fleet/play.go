//go:build kubetest

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/opsplane/opsplane/agent/executor/host/gpu"
	"github.com/opsplane/opsplane/agent/executor/host/recorded"
	"github.com/opsplane/opsplane/agent/executor/host/report"
	"github.com/opsplane/opsplane/agent/executor/host/serve"
	"github.com/opsplane/opsplane/agent/executor/host/verb"
	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
)

// worn is the node with a device that wants a reset.
const worn = 8

// uuid is a device's.
func uuid(node, device int) string {
	return fmt.Sprintf("GPU-%08x-0000-4000-8000-%012x", node+1, device)
}

// play starts the hosts: their kubelet, and what keeps their reports. wait returns
// when they have ended after ctx.
func play(ctx context.Context, r *kuberig.Rig, o options) (wait func(), err error) {
	hosts := filepath.Join(o.dir, "hosts")
	for i := range nodes {
		if err := record(filepath.Join(hosts, nodeName(i), recordings), i); err != nil {
			return nil, err
		}
	}
	r.Kubelet(kuberig.KubeletOptions{
		Programs: map[string]string{image: o.host}, HostRoot: filepath.Join(hosts, "$NODE"),
		Log: func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) },
	})
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	client := r.Client(kuberig.Admin)
	var wg sync.WaitGroup
	for i := range nodes {
		node := nodeName(i)
		host := verb.Host{
			Node: node, State: filepath.Join(hosts, node, marks), Now: time.Now,
			Open: func() (gpu.Driver, error) { return recorded.Open(filepath.Join(hosts, node, recordings), node) },
		}
		wg.Go(func() {
			err := serve.Run(ctx, serve.Options{
				Client: client, Namespace: namespace, Node: node, Look: host.Report, Log: log.With(slog.String("node", node)), Now: time.Now,
				Every: 2 * time.Second, Least: time.Second, Alive: serve.DefaultAlive,
			})
			if err != nil && ctx.Err() == nil {
				log.Error("a host's report ended", slog.String("node", node), slog.Any("err", err))
			}
		})
	}
	return wg.Wait, nil
}

// record writes what a host answers about its devices.
func record(dir string, node int) error {
	f := recorded.File{Driver: "580.65.06"}
	for i := range gpus {
		d := recorded.Device{Reset: recorded.Behaviour{TakesMS: 1500}}
		d.Device = report.Device{
			UUID: uuid(node, i), PCI: fmt.Sprintf("0000:%02x:00.0", 0x18+8*i), Index: i, Minor: i,
			Product: "NVIDIA H100 80GB HBM3", Architecture: "hopper", Health: report.HealthOK,
		}
		if node == worn && i == 3 {
			d.Health, d.Detail = report.HealthDegraded, "a page is to be remapped with the next reset"
		}
		f.Devices = append(f.Devices, d)
	}
	b, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return err
	}
	file := filepath.Join(dir, nodeName(node)+".json")
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(file, b, 0o600)); err != nil {
		return fmt.Errorf("record a host: %w", err)
	}
	return nil
}
