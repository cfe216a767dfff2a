package device

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/host/report"
	"github.com/opsplane/opsplane/agent/executor/kube/node"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// details is what a result says of a reset.
type details struct {
	Stages   []stage  `json:"stages,omitempty"`
	Driver   string   `json:"driver,omitempty"`
	Recorded bool     `json:"recorded,omitempty"` // no GPU was touched
	ResetMS  int64    `json:"reset_ms,omitempty"`
	Already  bool     `json:"already,omitempty"` // an earlier lease of the run reset it
	Evicted  []string `json:"evicted,omitempty"`
}

// observe tells what is known of the device at the end. What the Jobs of this
// agent read is the newest there is; where there was none, the host's report.
func (e *devices) observe(ctx context.Context, a *protocol.Assignment, end *executor.Ending) {
	d, code, why := e.target(a)
	if code != "" {
		end.Message = why
		return
	}
	e.mu.Lock()
	o := e.last[runOf(a)]
	var known outcome
	if o != nil {
		known = *o
	}
	e.mu.Unlock()
	if known.device == nil {
		if h, err := e.host(ctx, d.node); err == nil {
			known.source, known.driver = h.Source, h.Driver
			for i := range h.Devices {
				if h.Devices[i].UUID == d.uuid {
					known.device = &h.Devices[i]
				}
			}
		}
	}
	end.Details, _ = json.Marshal(details{Stages: known.stages, Driver: known.driver, Recorded: known.source == report.SourceRecorded,
		ResetMS: known.took, Already: known.already, Evicted: known.drained}) // plain values always marshal
	e.tellEvicted(a, &known, end)
	notReset := unreset(a, d, known.kept)
	dev := known.device
	if dev == nil {
		end.Message = fmt.Sprintf("what became of GPU %s is not known", d.uuid)
		if notReset != "" {
			end.Message = notReset
		}
		return
	}
	end.Observed = &protocol.Inventory{Devices: []protocol.Device{{
		UID: d.uuid, Aliases: dev.Spellings(d.node), NodeName: d.node, Index: dev.Index, Product: dev.Product,
		Health: dev.Health, Detail: dev.Detail, Holders: len(dev.Holders),
	}}}
	read, cancel := e.c.Read(ctx)
	defer cancel()
	if n, err := e.c.Client.CoreV1().Nodes().Get(read, d.node, metav1.GetOptions{}); err == nil {
		end.Observed.Devices[0].NodeUID = string(n.UID)
	}
	end.Message = fmt.Sprintf("GPU %s is %s", d.uuid, dev.Health)
	if notReset != "" {
		end.Message = fmt.Sprintf("%s; by its host's last word it is %s", notReset, dev.Health)
	}
	if executor.StepNamed(a, "reset").Phase == operation.StepUnknown {
		end.Message = fmt.Sprintf("whether GPU %s was reset is not known; by its host's last word it is %s", d.uuid, dev.Health)
	}
	if dev.Detail != "" {
		end.Message += ": " + dev.Detail
	}
	reset, verify := executor.StepNamed(a, "reset"), executor.StepNamed(a, "verify")
	if reset.Phase == operation.StepSucceeded {
		end.Verified = append(end.Verified, fmt.Sprintf("the host's driver reset GPU %s once in this run", d.uuid))
	}
	if verify.Phase == operation.StepSucceeded {
		verified, open := known.proven(d.uuid)
		end.Verified = append(end.Verified, verified)
		if open != "" {
			end.NotVerified = append(end.NotVerified, open)
		}
	}
	end.NotVerified = append(end.NotVerified, "application readiness", "that the GPU computes: no work is run on it")
	if known.source == report.SourceRecorded {
		end.NotVerified = append(end.NotVerified, "a GPU: the host's answers are recorded")
	}
}

// proven words what a verify that succeeded has verified, and what it left open; "":
// nothing.
func (o *outcome) proven(uuid string) (verified, open string) {
	if o.proof != nil {
		return o.proof.Proven(uuid)
	}
	verified, _ = (&report.Answer{}).Proven(uuid)
	return verified, fmt.Sprintf("that GPU %s reported no XID since the reset: another lease had the host's word, which is not known here", uuid)
}

// unreset says that the device was not reset, and what the reset did not get past; ""
// where it was, or nobody knows.
func unreset(a *protocol.Assignment, d target, kept []node.Kept) string {
	phase := executor.StepNamed(a, "reset").Phase
	if phase == operation.StepSucceeded || phase == operation.StepUnknown {
		return ""
	}
	s := fmt.Sprintf("GPU %s was not reset", d.uuid)
	for _, step := range a.Steps {
		switch {
		case step.Phase == operation.StepSucceeded || step.Cleanup || !step.Required:
			continue
		case step.Name == "drain_holders" && len(kept) == 1:
			return s + ": the drain of its pods did not end, pod " + kept[0].Pod + " is left"
		case step.Name == "drain_holders" && len(kept) > 1:
			return fmt.Sprintf("%s: the drain of its pods did not end, %d of them are left", s, len(kept))
		}
		return s + ": it did not get past its step " + step.Name
	}
	return s
}

// tellEvicted says which pods were to go for the device and are there still, and that
// pods were evicted for one that was not reset. What an earlier lease evicted is known
// if it handed the step over, from its last word; not if it was lost.
func (e *devices) tellEvicted(a *protocol.Assignment, known *outcome, end *executor.Ending) {
	drain, reset := executor.StepNamed(a, "drain_holders"), executor.StepNamed(a, "reset").Phase
	if drain.ID == "" {
		return
	}
	var parts, who []string
	if drain.Phase != operation.StepSucceeded {
		parts = keptInWords(known.kept)
	}
	if len(known.drained) > 0 {
		who = append(who, some(known.drained))
	}
	if a.Generation > 1 {
		unknown := "which pods were evicted under an earlier lease"
		if drain.ErrorCode == codeOwnNode {
			who = append(who, "under an earlier lease: "+drain.Detail)
			unknown += ", beyond what it told: " + drain.Detail
		}
		end.NotVerified = append(end.NotVerified, unknown)
	}
	if len(who) > 0 && reset != operation.StepSucceeded && reset != operation.StepUnknown {
		parts = append(parts, "pods were evicted and the device was not reset: "+strings.Join(who, "; "))
	}
	if len(parts) > 0 && drain.Phase != operation.StepUnknown {
		end.Residual = append(end.Residual, operation.Residual{StepID: drain.ID, Step: drain.Name, Resource: resourceOf(a, drain), Detail: strings.Join(parts, "; ")})
	}
}

// keptInWords says which pods are there still, and why.
func keptInWords(kept []node.Kept) (parts []string) {
	var stay, stop []string
	for _, k := range kept {
		text := "pod " + k.Pod
		if k.Why != "" {
			text += " (" + k.Why + ")"
		}
		if k.Stopping {
			stop = append(stop, text)
		} else {
			stay = append(stay, text)
		}
	}
	if len(stay) > 0 {
		parts = append(parts, "not evicted: "+some(stay))
	}
	if len(stop) > 0 {
		parts = append(parts, "evicted and still there: "+some(stop))
	}
	return parts
}

func resourceOf(a *protocol.Assignment, s protocol.Step) string {
	if len(s.Resources) > 0 {
		return s.Resources[0]
	}
	return a.TargetID
}

// errNoReport: the node's host says nothing of itself.
type errNoReport struct{ why string }

func (e errNoReport) Error() string { return e.why }

// host reads the report that the host keeps of itself.
func (e *devices) host(ctx context.Context, node string) (report.Host, error) {
	ctx, cancel := e.c.Read(ctx)
	defer cancel()
	m, err := e.c.Client.CoreV1().ConfigMaps(e.c.Namespace).Get(ctx, report.Name(node), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return report.Host{}, errNoReport{fmt.Sprintf("node %s reports nothing of its devices: the host helper does not run there", node)}
	}
	if err != nil {
		return report.Host{}, err
	}
	h, err := report.ParseHost([]byte(m.Data[report.Key]))
	switch {
	case err != nil:
		return h, errNoReport{fmt.Sprintf("what node %s reports cannot be read: %v", node, err)}
	case h.Node != node:
		return h, errNoReport{fmt.Sprintf("the report of node %s speaks of node %s", node, h.Node)}
	case h.Stale(e.c.Now(), e.c.ServerNow()) != "":
		return h, errNoReport{fmt.Sprintf("what holds the devices of node %s is not known: %s; the host helper does not run there, or hangs", node, h.Stale(e.c.Now()))}
	case h.Code != "":
		return h, errNoReport{fmt.Sprintf("the host helper of node %s says %s: %s", node, h.Code, h.Detail)}
	}
	n, err := e.c.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return h, errNoReport{fmt.Sprintf("node %s is gone", node)}
	case err != nil:
		return h, err
	case h.At.Before(n.CreationTimestamp.Time):
		return h, errNoReport{fmt.Sprintf("node %s was made at %s and has not reported since: what is kept is of another machine that had its name", node, n.CreationTimestamp.UTC().Format(time.RFC3339))}
	}
	return h, nil
}
