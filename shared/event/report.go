package event

import (
	"bytes"
	"encoding/json"
	"regexp"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// FromReport returns the event that an agent reports, received at now. Its id
// derives from the agent's own numbers, so that a resend is the same event. What
// breaks a rule is refused with ErrInvalid, whose text the agent may see.
func FromReport(cluster, agentID, boot string, r protocol.Event, now time.Time) (Event, error) {
	switch {
	case r.Unreadable != "":
		return Event{}, invalid("%s", r.Unreadable)
	case r.N < 1 || r.N > protocol.MaxEventNumber:
		return Event{}, invalid("/n is %d: numbers are from 1 to %d", r.N, int64(protocol.MaxEventNumber))
	case len(r.Type) > MaxTypeBytes:
		return Event{}, &LimitError{"/type", len(r.Type), MaxTypeBytes}
	case !ValidType(r.Type):
		return Event{}, invalid("/type is %.*q: it is words of a-z, 0-9 and _ joined by dots, at most %d bytes", MaxTypeBytes, r.Type, MaxTypeBytes)
	case reserved(r.Type):
		return Event{}, invalid("/type is %q: only the plane tells it", r.Type)
	case r.At.Year() < 2000 || r.At.Year() > 9999:
		return Event{}, invalid("/at is missing or not between the years 2000 and 9999")
	}
	subject, err := reportSubject(cluster, r.Subject)
	if err != nil {
		return Event{}, err
	}
	detail, err := reportDetail(r.Detail)
	if err != nil {
		return Event{}, err
	}
	return Event{
		ID:   id.Derive(id.Event, cluster, agentID, boot, strconv.FormatInt(r.N, 10)),
		Type: r.Type, Subject: subject, Cluster: cluster, Stream: StreamOf(cluster),
		Timestamp: r.At.UTC(), ReceivedAt: now.UTC(), Detail: detail,
		Actor: operation.Actor{ID: agentID, Kind: "agent"}, Severity: SeverityOf(r.Type),
	}, nil
}

func reportSubject(cluster string, s protocol.Subject) (Subject, error) {
	for _, f := range []struct{ name, value string }{{"uid", s.UID}, {"name", s.Name}} {
		if len(f.value) > fleet.MaxNameBytes {
			return Subject{}, &LimitError{"/subject/" + f.name, len(f.value), fleet.MaxNameBytes}
		}
		if !utf8.ValidString(f.value) || !operation.CleanText(f.value) {
			return Subject{}, invalid("/subject/%s holds control characters or is not UTF-8", f.name)
		}
	}
	out := Subject{Kind: s.Kind, Name: s.Name}
	uid := s.UID
	if s.Kind == operation.KindComponent || s.Kind == KindAgent {
		if out.Name == "" {
			out.Name = s.UID
		}
		uid = out.Name // these are known by name
	}
	if uid == "" && s.Kind != operation.KindCluster {
		return Subject{}, invalid("/subject/uid is missing, which a %.32q has", s.Kind)
	}
	switch s.Kind {
	case operation.KindNode:
		out.ID = fleet.NodeID(cluster, uid)
	case operation.KindDevice:
		uid = fleet.CanonicalDevice(uid)
		out.ID, out.Name = fleet.DeviceID(cluster, uid), uid
	case operation.KindDeployment:
		out.ID = fleet.DeploymentID(cluster, uid)
	case operation.KindComponent:
		out.ID = fleet.ComponentID(cluster, uid)
	case KindAgent:
		out.ID = fleet.AgentID(cluster, uid)
	case operation.KindCluster:
		out.ID = cluster
	default: // of an agent that is newer than the plane
		if !kindForm.MatchString(s.Kind) || slices.Contains(planeKinds, s.Kind) {
			return Subject{}, invalid("/subject/kind is %.32q: it is a word of a-z, 0-9 and _, at most 63 bytes, and none that only the plane tells of", s.Kind)
		}
		out.ID = id.Derive(id.Object, cluster, s.Kind, uid)
	}
	if out.Name == "" {
		out.Name = uid
	}
	return out, nil
}

// kindForm is what a subject's kind looks like, planeKinds are those that the plane
// alone tells of.
var (
	kindForm   = regexp.MustCompile(`^[a-z][a-z0-9_]{0,62}$`)
	planeKinds = []string{KindPlane, "operation", "fleet", "workload", "queue", "rule", "alert", "silence", "receiver"}
)

func reportDetail(b json.RawMessage) (json.RawMessage, error) {
	if len(b) == 0 || string(b) == "null" {
		return emptyDetail, nil
	}
	if len(b) > protocol.MaxEventBytes {
		return nil, &LimitError{"/detail", len(b), protocol.MaxEventBytes}
	}
	if err := operation.CheckJSON("/detail", b); err != nil { // it is served as it came
		return nil, invalid("%s", err)
	}
	if bytes.TrimLeft(b, " \t\r\n")[0] != '{' {
		return nil, invalid("/detail is not a JSON object")
	}
	return b, nil
}

// Gap returns the event that says which of an agent's events are missing: those
// numbered from to through, both included. They were lost on the way, or, with a
// reason, refused for it.
func Gap(cluster, agentID, agentName, boot string, from, through int64, reason string, now time.Time) Event {
	e, err := New(TypeGap, cluster, Subject{Kind: KindAgent, ID: agentID, Name: agentName}, now, operation.Plane,
		GapDetail{Agent: agentID, Boot: boot, From: from, Through: through, Refused: reason},
		agentID, boot, strconv.FormatInt(from, 10), strconv.FormatInt(through, 10))
	if err != nil {
		panic(err) // the type and the detail are ours
	}
	return e
}
