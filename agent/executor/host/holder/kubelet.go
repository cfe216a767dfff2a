package holder

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/opsplane/opsplane/agent/executor/host/report"
)

const (
	// kubeletTimeout bounds one question to the kubelet.
	kubeletTimeout = 3 * time.Second
	maxKubelet     = 16 << 20 // the kubelet's own limit of an answer
	resourcePrefix = "nvidia.com/"
	draDriver      = "gpu.nvidia.com"
)

// draDevice is how NVIDIA's DRA driver names a device: gpu-<minor>, and a part of
// one gpu-<minor>-mig-...
// (https://github.com/NVIDIA/k8s-dra-driver-gpu, cmd/gpu-kubelet-plugin/deviceinfo.go)
var draDevice = regexp.MustCompile(`^gpu-(\d+)(?:-mig-.*)?$`)

// allocations asks the kubelet which pods it gave NVIDIA's devices to.
// https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/#monitoring-device-plugin-resources
func allocations(ctx context.Context, socket string) ([]Allocation, error) {
	ctx, cancel := context.WithTimeout(ctx, kubeletTimeout)
	defer cancel()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxKubelet)))
	if err != nil {
		return nil, fmt.Errorf("reach kubelet: %w", err)
	}
	defer conn.Close()
	answer, err := podresources.NewPodResourcesListerClient(conn).List(ctx, &podresources.ListPodResourcesRequest{})
	if err != nil {
		return nil, fmt.Errorf("ask kubelet: %w", err)
	}
	var out []Allocation
	for _, pod := range answer.GetPodResources() {
		for _, c := range pod.GetContainers() {
			p := report.Pod{Namespace: pod.GetNamespace(), Name: pod.GetName(), Container: c.GetName()}
			for _, d := range c.GetDevices() {
				if !strings.HasPrefix(d.GetResourceName(), resourcePrefix) {
					continue
				}
				for _, id := range d.GetDeviceIds() {
					id, _, _ = strings.Cut(id, "::") // a time-sliced share: UUID::n
					out = append(out, Allocation{Device: id, Pod: p})
				}
			}
			for _, r := range c.GetDynamicResources() {
				for _, cr := range r.GetClaimResources() {
					if m := draDevice.FindStringSubmatch(cr.GetDeviceName()); m != nil && cr.GetDriverName() == draDriver {
						out = append(out, Allocation{Device: m[1], Pod: p})
					}
				}
			}
		}
	}
	return out, nil
}
