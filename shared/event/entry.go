package event

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/operation"
)

// maxResources bounds the resources listed in one event's detail; what is
// beyond is counted.
const maxResources = 2000

// FromEntry returns the event that a journal entry is, and false when it is
// none. The same entry gives the same event, whoever makes it and how often.
func FromEntry(spec *operation.Spec, e operation.Entry) (Event, bool) {
	typ := e.EventType()
	if typ == "" {
		return Event{}, false
	}
	kind, name := targetOf(spec)
	d := OperationDetail{
		Operation: spec.ID, Type: spec.Request.Type, Phase: e.To, From: e.From, Reason: e.Reason, Text: e.Detail,
		Generation: e.Generation, Seq: e.Seq, Target: spec.TargetID, TargetName: spec.TargetName, TargetUID: spec.TargetUID,
		Node: spec.NodeName, Resources: spec.Resources, Parent: spec.Parent,
	}
	if d.Resources == nil {
		d.Resources = []string{}
	}
	if n := len(d.Resources); n > maxResources {
		d.Resources, d.LeftOff = d.Resources[:maxResources], n-maxResources
	}
	var after struct {
		Cause  *operation.Cause `json:"cause"`
		Report int64            `json:"report_generation"`
	}
	if json.Unmarshal(e.After, &after) == nil {
		d.ReportGen, d.Cause = after.Report, after.Cause
	}
	b, err := json.Marshal(d)
	if err != nil {
		// Only a value that was never in the ledger fails to encode.
		panic(fmt.Sprintf("encode detail of entry %d of %s: %v", e.Seq, spec.ID, err))
	}
	return Event{
		ID:   id.Derive(id.Event, spec.ID, strconv.FormatInt(e.Seq, 10)),
		Type: typ, Subject: Subject{Kind: kind, ID: spec.TargetID, Name: name}, Cluster: spec.Cluster, Stream: StreamOf(spec.Cluster),
		Timestamp: e.At.UTC(), ReceivedAt: e.At.UTC(), Detail: b,
		OperationID: spec.ID, CorrelationID: spec.CorrelationID, Actor: e.By, Severity: SeverityOf(typ),
	}, true
}

// kindOf tells the kind of the object by its id's prefix.
var kindOf = map[string]string{
	id.Cluster: operation.KindCluster, id.Node: operation.KindNode, id.Device: operation.KindDevice,
	id.Deployment: operation.KindDeployment, id.Workload: operation.KindWorkload, id.Component: operation.KindComponent,
}

// targetOf splits the target's name, "kind:name" or only a name.
func targetOf(spec *operation.Spec) (kind, name string) {
	kind, name = kindOf[id.Prefix(spec.TargetID)], spec.TargetName
	if kind == "" {
		kind = spec.TargetID // the fleet is its own id
	}
	if rest, ok := strings.CutPrefix(name, kind+":"); ok {
		name = rest
	}
	if name == "" {
		name = spec.TargetID
	}
	return kind, name
}
