package httpapi

import (
	"net/http"
	"time"

	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/problem"
	"github.com/opsplane/opsplane/shared/queue"
)

// Bodies of the queue's calls.
const (
	queueBody = 16 << 10
	buryBody  = 8 * queue.MaxBodyBytes // a body that is all escapes
)

// maxVisibility is how long a message may be hidden (SQS: 12 hours).
const maxVisibility = 12 * time.Hour

// queueRoutes are the long poll of agents on one machine; package queue/remote
// is its client. The token says which queue.
func (a *API) queueRoutes() {
	serve := func(name string, body int64, h http.HandlerFunc) {
		a.handle(route{pattern: "POST /v1/agent/queue/" + name, action: auth.Serve, body: body}, h)
	}
	serve("receive", queueBody, a.queueReceive)
	serve("delete", queueBody, a.queueDelete)
	serve("extend", queueBody, a.queueExtend)
	if a.cfg.Bury != nil {
		serve("bury", buryBody, a.queueBury)
	}
}

// noQueueRoutes answer agents that poll where there is nothing to poll.
func (a *API) noQueueRoutes() {
	a.handle(route{pattern: "POST /v1/agent/queue/{call}", action: auth.Serve, body: buryBody}, func(w http.ResponseWriter, r *http.Request) {
		a.refuse(w, requestOf(r.Context()), problem.New(problem.NotFound, "the plane has no queue of its own here: agents poll their cluster's queue on Amazon SQS").
			WithNextAction(problem.CorrectInput, "Poll SQS at queue_url, which the answer to each heartbeat carries."))
	})
}

// queueName is the queue of the agent's cluster.
func (rq *request) queueName() string { return fleet.QueueName(rq.agentCluster()) }

type messageView struct {
	ID       string `json:"id"`
	Receipt  string `json:"receipt"`
	Body     string `json:"body"`
	Receives int    `json:"receives"`
}

func (a *API) queueReceive(w http.ResponseWriter, r *http.Request) {
	rq := requestOf(r.Context())
	var in struct {
		Max          int   `json:"max"`
		WaitMS       int64 `json:"wait_ms"`
		VisibilityMS int64 `json:"visibility_ms"`
	}
	if err := decode(r, &in); err != nil {
		a.refuse(w, rq, err)
		return
	}
	switch {
	case in.Max < 1 || in.Max > queue.MaxBatch:
		a.refuse(w, rq, badField("max", "must be from 1 to %d", queue.MaxBatch))
		return
	case in.WaitMS < 0 || in.WaitMS > queue.MaxWait.Milliseconds():
		a.refuse(w, rq, badField("wait_ms", "must be from 0 to %d", queue.MaxWait.Milliseconds()))
		return
	case in.VisibilityMS < 1 || in.VisibilityMS > maxVisibility.Milliseconds():
		a.refuse(w, rq, badField("visibility_ms", "must be from 1 to %d", maxVisibility.Milliseconds()))
		return
	}
	if in.WaitMS > 0 {
		release, err := rq.wait()
		if err != nil {
			a.refuse(w, rq, err)
			return
		}
		defer release()
	}
	// The context ends when the client goes, and with it the wait.
	ms, err := a.cfg.Queue.Receive(r.Context(), rq.queueName(), in.Max, millis(in.WaitMS), millis(in.VisibilityMS))
	if err != nil {
		a.refuse(w, rq, err)
		return
	}
	out := make([]messageView, len(ms))
	for i, m := range ms {
		out[i] = messageView{ID: m.ID, Receipt: m.Receipt, Body: string(m.Body), Receives: m.Receives}
	}
	a.write(w, http.StatusOK, map[string]any{"messages": out})
}

func millis(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

func badField(name, format string, args ...any) *problem.Problem {
	p := problem.New(problem.Invalid, name+" "+format, args...)
	return p.WithField(problem.Pointer(name), "range", format, args...)
}

func (a *API) queueDelete(w http.ResponseWriter, r *http.Request) {
	rq := requestOf(r.Context())
	var in struct {
		Receipts []string `json:"receipts"`
	}
	err := decode(r, &in)
	if n := len(in.Receipts); err == nil && (n < 1 || n > queue.MaxBatch) {
		err = badField("receipts", "must hold 1 to %d", queue.MaxBatch)
	}
	if err == nil {
		err = a.cfg.Queue.Delete(r.Context(), rq.queueName(), in.Receipts...)
	}
	a.settled(w, rq, err)
}

func (a *API) queueExtend(w http.ResponseWriter, r *http.Request) {
	rq := requestOf(r.Context())
	var in struct {
		Receipt      string `json:"receipt"`
		VisibilityMS int64  `json:"visibility_ms"`
	}
	err := decode(r, &in)
	if err == nil && (in.VisibilityMS < 0 || in.VisibilityMS > maxVisibility.Milliseconds()) {
		err = badField("visibility_ms", "must be from 0 to %d", maxVisibility.Milliseconds())
	}
	if err == nil {
		err = a.cfg.Queue.Extend(r.Context(), rq.queueName(), in.Receipt, millis(in.VisibilityMS))
	}
	a.settled(w, rq, err)
}

// maxBuryReason bounds why a message was put aside.
const maxBuryReason = 1024

func (a *API) queueBury(w http.ResponseWriter, r *http.Request) {
	rq := requestOf(r.Context())
	var in struct {
		messageView
		Reason string `json:"reason"`
	}
	err := decode(r, &in)
	switch {
	case err != nil:
	case in.Reason == "" || len(in.Reason) > maxBuryReason:
		err = badField("reason", "must have 1 to %d bytes", maxBuryReason)
	case len(in.Body) > queue.MaxBodyBytes:
		err = badField("body", "must have at most %d bytes", queue.MaxBodyBytes)
	default:
		err = a.cfg.Bury(r.Context(), rq.queueName(), queue.Message{ID: in.ID, Receipt: in.Receipt, Body: []byte(in.Body), Receives: in.Receives}, in.Reason)
	}
	a.settled(w, rq, err)
}

// settled answers a call that has nothing to say but whether it worked.
func (a *API) settled(w http.ResponseWriter, rq *request, err error) {
	if err != nil {
		a.refuse(w, rq, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
