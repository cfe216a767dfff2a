package loop

import (
	"errors"
	"fmt"
	"sync"

	"github.com/opsplane/opsplane/shared/protocol"
	"github.com/opsplane/opsplane/shared/queue"
)

// ErrQueueRefused: the queue does not take this agent's credentials, or not for
// this queue. The agent stays online and asks again, more and more rarely, for
// what mends it (a role, a policy) lies outside.
var ErrQueueRefused = errors.New("queue refuses the agent's credentials")

// source is a queue to poll under its name. Messages are answered where they
// came from, also when the plane has named another queue since.
type source struct {
	queue.Receiver
	name string
}

// sources finds the queue that the plane's last heartbeat answer means.
type sources struct {
	fixed queue.Receiver // Config.Queue
	plane queue.Receiver // the plane's own long poll
	open  func(url string) (queue.Receiver, error)

	mu     sync.Mutex
	url    string
	opened queue.Receiver // the one at url
}

func newSources(cfg Config, api *api) (*sources, error) {
	s := &sources{fixed: cfg.Queue, open: cfg.OpenQueue}
	if s.fixed != nil {
		return s, nil
	}
	q, err := newPlaneQueue(cfg, api)
	s.plane = q
	return s, err
}

// of returns the queue of an answer: at its URL, which is opened when it is
// another than before, or else the plane's long poll.
func (s *sources) of(answer protocol.HeartbeatAnswer) (source, error) {
	switch {
	case s.fixed != nil && answer.QueueURL != "":
		return source{s.fixed, answer.QueueURL}, nil
	case s.fixed != nil:
		return source{s.fixed, answer.Cluster}, nil
	case answer.QueueURL == "":
		return source{s.plane, answer.Cluster}, nil
	case s.open == nil:
		return source{}, fmt.Errorf("open queue %s: this agent reads the plane's own queue only", answer.QueueURL)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.opened == nil || s.url != answer.QueueURL {
		q, err := s.open(answer.QueueURL)
		if err != nil {
			return source{}, fmt.Errorf("open queue %s: %w", answer.QueueURL, err)
		}
		s.url, s.opened = answer.QueueURL, q
	}
	return source{s.opened, s.url}, nil
}
