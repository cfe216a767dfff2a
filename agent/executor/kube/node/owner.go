package node

import (
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// fieldManager is under what name the API server books the agent's patches.
// https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management
const fieldManager = cluster.ManagedBy

// CordonOf tells whose a node's cordon is, nil for a node that is schedulable.
//
// The annotation alone proves nothing: it stays behind when a person uncordons the
// node with other tools and later cordons it again. So the API server's own books
// decide where it keeps them: whoever set spec.unschedulable owns it.
func CordonOf(n *corev1.Node) *protocol.Cordon {
	if !n.Spec.Unschedulable {
		return nil
	}
	closed, wrote := setBy(n)
	c, told := readCordon(n.Annotations[cluster.AnnotationCordon])
	switch {
	case closed.manager != "" && closed.manager != fieldManager, closed.manager == "" && !told:
		return &protocol.Cordon{Owner: "external", By: closed.manager, Since: closed.at}
	case !told || wrote.manager != "" && wrote.manager != fieldManager:
		// Closed by an operation, and what it wrote beside was changed by others.
		return &protocol.Cordon{Owner: "opsplane", Since: closed.at}
	}
	return &c
}

// Limits of a cordon's annotation: anybody who may annotate nodes can write it, and
// what is reported of it must fit in the plane's inventory.
const (
	maxCordon       = 16 << 10
	maxCordonWho    = 256
	maxCordonReason = 2 << 10
)

// readCordon reads the annotation, false when no operation wrote it so.
func readCordon(text string) (c protocol.Cordon, ok bool) {
	if text == "" || len(text) > maxCordon || json.Unmarshal([]byte(text), &c) != nil || c.Owner != "opsplane" {
		return protocol.Cordon{}, false
	}
	return c, len(c.Operation) <= maxCordonWho && len(c.By) <= maxCordonWho && len(c.Reason) <= maxCordonReason &&
		operation.CleanText(c.Operation) && operation.CleanText(c.By) && operation.CleanText(c.Reason)
}

// setting is who set a field, and when; empty when the node does not tell.
type setting struct {
	manager string
	at      time.Time
}

// setBy reads who set spec.unschedulable, and who the cordon's annotation.
func setBy(n *corev1.Node) (closed, wrote setting) {
	for _, f := range n.ManagedFields {
		if f.FieldsV1 == nil || f.Subresource != "" {
			continue
		}
		var set struct {
			Spec     map[string]json.RawMessage `json:"f:spec"`
			Metadata struct {
				Annotations map[string]json.RawMessage `json:"f:annotations"`
			} `json:"f:metadata"`
		}
		if json.Unmarshal(f.FieldsV1.GetRawBytes(), &set) != nil {
			continue
		}
		by := setting{manager: f.Manager}
		if f.Time != nil {
			by.at = f.Time.UTC()
		}
		if _, owns := set.Spec["f:unschedulable"]; owns {
			closed = by
		}
		if _, owns := set.Metadata.Annotations["f:"+cluster.AnnotationCordon]; owns {
			wrote = by
		}
	}
	return closed, wrote
}

func describe(c *protocol.Cordon) string {
	if c == nil || *c == (protocol.Cordon{Owner: "external"}) {
		return "nobody knows whom"
	}
	s := c.Owner
	if c.Operation != "" {
		s += " operation " + c.Operation
	}
	if c.By != "" {
		s += " " + c.By
	}
	if c.Reason != "" {
		s += " (" + c.Reason + ")"
	}
	if !c.Since.IsZero() {
		s += " since " + c.Since.UTC().Format(time.RFC3339)
	}
	return s
}

// ours tells whether the cordon was placed by the operation.
func ours(c *protocol.Cordon, operation string) bool {
	return c != nil && c.Owner == "opsplane" && c.Operation == operation
}

func countForced(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(", %d forced", n)
}
