package cluster

import (
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster/words"
	"github.com/opsplane/opsplane/shared/protocol"
)

// CodeUnconverted is the code of objects that the API server, which answers, cannot read
// in the version that is asked for: whoever converts them does not answer.
const CodeUnconverted = "conversion_failed"

// UnconvertedBy is the version and kind of which an answer says so; "": it is another, or
// none.
func UnconvertedBy(err error) (kind string) {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return ""
	}
	// In a balancer's words it is nobody's. A list of objects that cannot be read looks like
	// such, and says so by its reason.
	if apierrors.IsUnexpectedServerError(err) && apierrors.ReasonForError(err) != metav1.StatusReasonStoreReadError {
		return ""
	}
	return words.Unconverted(status.Status().Message)
}

const ruleConversion = "conversion_webhook"

// ShowUnconverted tells what a step waits for that ended so, with the resource that it
// is about; nothing of any other outcome.
func ShowUnconverted(t *executor.Task, o executor.Outcome, resource string) {
	if o.ErrorCode == CodeUnconverted {
		show(t, protocol.Blocker{Code: o.ErrorCode, Resource: resource, Rule: ruleConversion, Detail: o.Detail})
	}
}

// Unconverted is such an answer as what stands in the way of a resource.
func Unconverted(err error, resource string) protocol.Blocker {
	return protocol.Blocker{Code: CodeUnconverted, Resource: resource, Rule: ruleConversion, Detail: unconverted(UnconvertedBy(err), err).Detail}
}

func unconverted(kind string, err error) executor.Outcome {
	o := executor.Waiting(CodeUnconverted, fmt.Sprintf("the API server cannot convert %s: %v", kind, err))
	o.After = uncalledPause
	return o
}
