package node

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
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
// decide where it keeps them: whoever set spec.unschedulable owns it, and a person
// before an operation that set the same.
func CordonOf(n *corev1.Node) *protocol.Cordon {
	if !n.Spec.Unschedulable {
		return nil
	}
	n = honest(n)
	closed, wrote := closedBy(n), setting{manager: annotatedBy(n, cluster.AnnotationCordon)}
	c, told := readCordon(n.Annotations[cluster.AnnotationCordon])
	switch {
	case closed.other(), closed.manager == "" && !told:
		return &protocol.Cordon{Owner: "external", By: closed.manager, Since: closed.at}
	case !told || wrote.other():
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

// other tells whether somebody else than an operation set it.
func (s setting) other() bool { return s.manager != "" && s.manager != fieldManager }

// closedBy reads who set spec.unschedulable. Who applies what is set already owns it
// beside whoever set it (server-side apply): then the node is closed for them as well, and
// the first of those who are no operation is named.
// https://kubernetes.io/docs/reference/using-api/server-side-apply/#sharing-field-ownership
func closedBy(n *corev1.Node) (closed setting) {
	eachSetter(n, func(by setting, set fieldSet) {
		if _, owns := set.Spec["f:unschedulable"]; !owns {
			return
		}
		earlier := cmp.Or(by.at.Compare(closed.at), strings.Compare(by.manager, closed.manager)) < 0
		if closed.manager == "" || by.other() && (!closed.other() || earlier) {
			closed = by
		}
	})
	return closed
}

// annotatedBy names the manager that wrote the annotation, an operation's where it is
// one of several: they all wrote the same. Empty: nobody kept books.
func annotatedBy(n *corev1.Node, annotation string) (manager string) {
	eachSetter(n, func(by setting, set fieldSet) {
		if _, owns := set.Metadata.Annotations["f:"+annotation]; owns && manager != fieldManager {
			manager = by.manager
		}
	})
	return manager
}

// fieldSet is what somebody set of a node, as far as it is read.
type fieldSet struct {
	Spec     map[string]json.RawMessage `json:"f:spec"`
	Metadata struct {
		Annotations map[string]json.RawMessage `json:"f:annotations"`
	} `json:"f:metadata"`
}

// eachSetter reads the API server's books of a node. Those of a subresource are left out:
// no change of one sets what is read.
func eachSetter(n *corev1.Node, f func(by setting, set fieldSet)) {
	for _, e := range n.ManagedFields {
		var set fieldSet
		if e.FieldsV1 == nil || e.Subresource != "" || json.Unmarshal(e.FieldsV1.GetRawBytes(), &set) != nil {
			continue
		}
		by := setting{manager: e.Manager}
		if e.Time != nil {
			by.at = e.Time.UTC()
		}
		f(by, set)
	}
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
