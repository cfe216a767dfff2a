package loop

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/opsplane/opsplane/shared/protocol"
)

const (
	heartbeatEvery = 5 * time.Second // unless the plane says otherwise
	// Bounds of what the plane may say.
	heartbeatLeast = time.Second
	heartbeatMost  = time.Minute
	retryAfterMost = 30 * time.Second // of a Retry-After that is heeded
)

// session is what the plane told the agent last, and whether it answers.
type session struct {
	mu      sync.Mutex
	answer  protocol.HeartbeatAnswer
	up      bool
	changed chan struct{} // closed and replaced at each change
}

func newSession() *session { return &session{changed: make(chan struct{})} }

func (s *session) get() protocol.HeartbeatAnswer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.answer
}

func (s *session) isUp() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.up
}

func (s *session) notify() {
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *session) setUp(up bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.up != up {
		s.up = up
		s.notify()
	}
}

func (s *session) set(answer protocol.HeartbeatAnswer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer, s.up = answer, true
	s.notify()
}

// noReporter gives the reporter's part up until a heartbeat hands it out again.
func (s *session) noReporter() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer.Reporter = false
	s.notify()
}

// wait returns once ok holds for the session, or with ctx's error.
func (s *session) wait(ctx context.Context, ok func(protocol.HeartbeatAnswer, bool) bool) error {
	for ctx.Err() == nil {
		s.mu.Lock()
		answer, up, changed := s.answer, s.up, s.changed
		s.mu.Unlock()
		if ok(answer, up) {
			return nil
		}
		select {
		case <-ctx.Done():
		case <-changed:
		}
	}
	return ctx.Err()
}

func (s *session) waitUp(ctx context.Context) error {
	return s.wait(ctx, func(_ protocol.HeartbeatAnswer, up bool) bool { return up })
}

// cadence is how often the plane wants to hear of the agent.
func cadence(answer protocol.HeartbeatAnswer) time.Duration {
	if answer.HeartbeatMS <= 0 {
		return heartbeatEvery
	}
	return max(ms(min(answer.HeartbeatMS, heartbeatMost.Milliseconds())), heartbeatLeast)
}

// heartbeat sends one heartbeat and takes its answer over.
func (a *Agent) heartbeat(ctx context.Context, stopping bool) error {
	var answer protocol.HeartbeatAnswer
	away, _ := a.reach.cutOff()
	err := a.api.post(ctx, "/v1/agent/heartbeat", "", protocol.Heartbeat{
		Name:         a.cfg.Name,
		Boot:         a.boot,
		Version:      a.cfg.Version,
		Capabilities: a.cfg.Executor.Capabilities(),
		SentAt:       a.now().UTC(),
		Leases:       a.runs.count(),
		Capacity:     a.cfg.Concurrency,
		Stopping:     stopping,
		CutOff:       away,
		Mark:         a.session.get().Mark,
	}, &answer)
	if err != nil {
		return err
	}
	if answer.AgentID == "" || answer.Cluster == "" || answer.LeaseMS <= 0 || answer.CallDeadlineMS <= 0 {
		return errors.New("heartbeat: the answer lacks agent_id, cluster, lease_ms or call_deadline_ms")
	}
	a.metrics.Heartbeats.Add(1)
	a.vitals.planeHeard(a.mono())
	if answer.FullInventory {
		a.inventory.askFull()
	}
	a.session.set(answer)
	return nil
}

// beat runs the heartbeat loop until ctx ends. It returns an UnauthorizedError
// when the plane refuses the token, which nothing but a person can mend.
func (a *Agent) beat(ctx context.Context) error {
	defer a.vitals.done("heartbeat")
	a.vitals.turn("heartbeat", a.mono(), callTimeout)
	tries := 0
	var stopping <-chan struct{} = a.stopping // it is told at once: the process may be killed before the next heartbeat is due
	for {
		stops := closed(a.stopping)
		if stops {
			stopping = nil
		}
		err := a.heartbeat(ctx, stops)
		wait := jitter(cadence(a.session.get()))
		var denied *UnauthorizedError
		switch {
		case err == nil:
			if tries > 0 {
				a.log.Info("the plane answers again", slog.Int("tries", tries))
			}
			tries = 0
		case ctx.Err() != nil:
			return nil
		case errors.As(err, &denied):
			return denied
		default:
			tries++
			a.session.setUp(false)
			wait = atLeast(backoff(tries, 500*time.Millisecond, heartbeatEvery), err, retryAfterMost)
			if tries == 1 || tries%20 == 0 {
				a.log.Warn("the plane does not answer", slog.Int("tries", tries), slog.Any("err", err))
			}
		}
		a.vitals.turn("heartbeat", a.mono(), wait+callTimeout)
		if !pause(ctx, wait, stopping) {
			return nil
		}
	}
}
