package node

import (
	"cmp"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// Values of the payload.
const (
	onDeadlineForce = "force"
	orderPriority   = "priority"
)

// payload is a drain's payload, ready to use.
type payload struct {
	operation.DrainPayload
	selector labels.Selector
	// only holds the pods that a drain of a device is about; nil: all.
	only map[types.UID]bool
}

// readPayload reads the payload of a drain. (A payload that admission has not
// filled has a grace period of 0, so an absent field must stay at -1.)
func readPayload(a *protocol.Assignment) (payload, error) {
	p := payload{DrainPayload: operation.DrainPayload{GracePeriodSeconds: -1, OnDeadline: "stop", OnCancel: "leave", Order: orderPriority}}
	if err := decode(a.Payload, &p.DrainPayload); err != nil {
		return p, fmt.Errorf("read the payload of %s: %w", a.Type, err)
	}
	p.Order = cmp.Or(p.Order, orderPriority)
	if p.ForceWindowSeconds == 0 {
		p.ForceWindowSeconds = max(p.GracePeriodSeconds, 0) + 30
	}
	var err error
	if p.selector, err = labels.Parse(p.PodSelector); err != nil {
		return p, fmt.Errorf("pod_selector %q: %w", p.PodSelector, err)
	}
	return p, nil
}

// window is how long before the deadline what is left is deleted; 0: never.
func (p payload) window() time.Duration {
	if p.OnDeadline != onDeadlineForce {
		return 0
	}
	return time.Duration(p.ForceWindowSeconds) * time.Second
}

// reserve is the last part of the window, at whose begin the grace of what is left
// has ended.
func (p payload) reserve() time.Duration { return min(p.window()/3, 10*time.Second) }

// abrupt is the second half of the reserve, in which nobody waits for a kubelet any
// more; the first half is the kubelet's, to say that a pod stopped when its grace ended.
func (p payload) abrupt() time.Duration { return p.reserve() / 2 }

// forceNow tells whether the window before the deadline has begun.
func (p payload) forceNow(t *executor.Task) bool {
	return p.OnDeadline == onDeadlineForce && t.Remaining() <= p.window()
}

// mercy is the grace period of a pod that is deleted past its rules: its own or
// the payload's, as far as the deadline leaves it.
func (p payload) mercy(own int64, left time.Duration) int64 {
	if p.GracePeriodSeconds >= 0 {
		own = int64(p.GracePeriodSeconds)
	}
	return max(min(own, int64((left-p.reserve())/time.Second)), 0)
}
