package loop

import (
	"errors"

	"github.com/opsplane/opsplane/shared/queue"
)

// planeQueue is the plane's own long poll.
func planeQueue(Config, *api) (queue.Receiver, error) {
	return nil, errors.New("no queue")
}
