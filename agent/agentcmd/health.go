package agentcmd

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/loop"
)

const (
	// heartbeatsMissed is how many heartbeats in a row the plane may leave
	// unanswered before the agent counts as out of touch.
	heartbeatsMissed = 3
	// checkWithin and checkEvery bound what probes cost the executor.
	checkWithin = 3 * time.Second
	checkEvery  = 2 * time.Second
)

// health answers the probes.
type health struct {
	status   func() loop.Status
	executor Healthy // nil: there is nothing that it could lose
	lacking  Lacking // nil: it lacks nothing
	now      func() time.Time
	within   time.Duration

	mu      sync.Mutex
	checked time.Time
	err     error
	owed    chan error // an answer that has not come
}

func newHealth(agent *loop.Agent, e executor.Executor) *health {
	h := &health{status: agent.Status, now: time.Now, within: checkWithin}
	h.executor, _ = e.(Healthy)
	h.lacking, _ = e.(Lacking)
	return h
}

// works asks the executor, at most every checkEvery.
func (h *health) works() error {
	if h.executor == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if now := h.now(); h.checked.IsZero() || now.Sub(h.checked) >= checkEvery {
		h.err = h.ask()
		h.checked = h.now()
	}
	return h.err
}

// ask asks the executor once; while it owes an answer it is not asked again.
func (h *health) ask() error {
	if h.owed == nil {
		owed := make(chan error, 1)
		go func() { owed <- h.executor.Healthy() }()
		h.owed = owed
	}
	late := time.NewTimer(h.within)
	defer late.Stop()
	select {
	case err := <-h.owed:
		h.owed = nil
		return err
	case <-late.C:
		return fmt.Errorf("the executor does not say how it is within %s", h.within)
	}
}

// part is one thing that the agent depends on.
type part struct {
	OK           bool     `json:"ok"`
	HeardSeconds *float64 `json:"heard_seconds_ago,omitempty"`
	Code         string   `json:"code,omitempty"` // of the reason, as operations name it
	Detail       string   `json:"detail,omitempty"`
}

// coded is an error whose reason has a name.
type coded interface{ Code() string }

func ago(d time.Duration) *float64 {
	if d < 0 {
		return nil
	}
	s := d.Round(time.Millisecond).Seconds()
	return &s
}

// live tells whether the process does what it is there for: its loops come
// round. What lies outside of it is no reason to start it again.
func (h *health) live(w http.ResponseWriter, _ *http.Request) {
	s := h.status()
	p := part{OK: len(s.Stuck) == 0}
	if !p.OK {
		p.Detail = "these loops do not come round: " + strings.Join(s.Stuck, ", ")
	}
	answer(w, p.OK, p)
}

// readiness is what /readyz answers.
type readiness struct {
	Ready    bool   `json:"ready"`
	Agent    string `json:"agent,omitempty"`
	Cluster  string `json:"cluster,omitempty"`
	Reporter bool   `json:"reporter"`
	Leases   int    `json:"leases"`
	Capacity int    `json:"capacity"`
	Plane    part   `json:"plane"`
	Executor part   `json:"executor"`
	// Queue is told and does not count: an agent that holds leases works on
	// without it, and a rollout must not hang on it.
	Queue part `json:"queue"`
}

// ready tells whether operations can be carried out here: the plane was heard of
// lately and the executor reaches what it acts on.
func (h *health) ready(w http.ResponseWriter, _ *http.Request) {
	s := h.status()
	out := readiness{
		Agent: s.AgentID, Cluster: s.Cluster, Reporter: s.Reporter, Leases: s.Leases, Capacity: s.Capacity,
		Plane: planePart(s), Queue: queuePart(s), Executor: part{OK: true},
	}
	if h.lacking != nil { // no reason to send its work to an agent with the same role
		out.Executor.Detail = h.lacking.Lacks()
	}
	if err := h.works(); err != nil {
		out.Executor = part{Detail: inWords(err)}
		var named coded
		if errors.As(err, &named) {
			out.Executor.Code = named.Code()
		}
	}
	out.Ready = out.Plane.OK && out.Executor.OK && !s.Stopping
	answer(w, out.Ready, out)
}

func planePart(s loop.Status) part {
	// Heartbeats are spread by a fifth.
	most := heartbeatsMissed * (s.HeartbeatEvery + s.HeartbeatEvery/5)
	p := part{HeardSeconds: ago(s.Heard)}
	switch {
	case s.Stopping:
		p.Detail = "the agent stops"
	case s.Heard < 0:
		p.Detail = "the plane has not answered yet"
	case s.Heard > most:
		p.Detail = fmt.Sprintf("the plane has not answered for %s", s.Heard.Round(time.Second))
	default:
		p.OK = true
	}
	return p
}

func queuePart(s loop.Status) part {
	return part{OK: s.QueueError == "" && s.QueueHeard >= 0, HeardSeconds: ago(s.QueueHeard), Detail: s.QueueError}
}
