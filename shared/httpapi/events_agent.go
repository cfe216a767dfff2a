package httpapi

import (
	"encoding/json"
	"net/http"
	"reflect"

	"github.com/opsplane/opsplane/shared/protocol"
)

// agentEvents takes what an agent's cluster reported. Each event is read by
// itself: one that cannot be read is refused like any other bad one, and leaves
// the rest of the call alone.
func (a *API) agentEvents(w http.ResponseWriter, r *http.Request) {
	rq := requestOf(r.Context())
	var in struct {
		AgentID string            `json:"agent_id"`
		Boot    string            `json:"boot"`
		Events  []json.RawMessage `json:"events"`
	}
	if err := decode(r, &in); err != nil {
		a.refuse(w, rq, err)
		return
	}
	req := protocol.EventsRequest{AgentID: in.AgentID, Boot: in.Boot, Events: make([]protocol.Event, len(in.Events))}
	last := int64(0)
	for i, raw := range in.Events {
		req.Events[i] = reportedEvent(raw, last)
		last = req.Events[i].N
	}
	out, err := a.cfg.Agent.Events(r.Context(), rq.agentCluster(), req)
	if err != nil {
		a.refuse(w, rq, err)
		return
	}
	a.write(w, http.StatusOK, out)
}

// reportedEvent reads one event of a call. Of one that cannot be read, or has no
// number, the number is what it says or, behind another, the next one: numbers
// count up in a call. Members that are not known are a newer agent's, and passed
// over.
func reportedEvent(raw json.RawMessage, last int64) protocol.Event {
	var e protocol.Event
	err := json.Unmarshal(raw, &e)
	why := ""
	switch {
	case err != nil:
		why = "it cannot be read"
		if m, found := misfitOf(raw, reflect.TypeFor[protocol.Event](), "", false); found && m.pointer == "" {
			why = "it " + m.says()
		} else if found {
			why = m.pointer + " " + m.says()
		}
	case string(raw) == "null":
		why = "it must be an object, is null"
	case e.N < 1:
		why = "/n is missing or not a number from 1"
	default:
		return e
	}
	var number struct {
		N int64 `json:"n"`
	}
	if json.Unmarshal(raw, &number) != nil || number.N < 1 || number.N > protocol.MaxEventNumber {
		number.N = 0
		if 0 < last && last < protocol.MaxEventNumber {
			number.N = last + 1
		}
	}
	return protocol.Event{N: number.N, Unreadable: why}
}
