package loop

import (
	"sync"
	"time"
)

// turnSlack is what a loop may be late without being taken for stuck: its calls
// have deadlines of their own, and a busy machine has others to serve.
const turnSlack = 30 * time.Second

// Status is how the agent stands, for its health endpoints. It holds no secret.
type Status struct {
	AgentID, Cluster, Boot string
	// Reporter: this agent reports the cluster's inventory.
	Reporter bool
	Stopping bool
	Leases   int // operations held
	Capacity int // operations it carries out at a time
	// Heard is how long ago the plane answered a heartbeat, HeartbeatEvery how
	// often it is asked. Never heard of: Heard is negative.
	Heard, HeartbeatEvery time.Duration
	// QueueHeard is how long ago the queue answered, negative: never. QueueError
	// is its last answer when that was none.
	QueueHeard time.Duration
	QueueError string
	// Stuck are the loops that did not come round when they had to.
	Stuck []string
}

// vitals are the signs of life that the loops leave.
type vitals struct {
	mu         sync.Mutex
	due        map[string]time.Duration // loop -> when it has to come round, on the monotonic clock
	heard      time.Duration            // 0: never
	queueHeard time.Duration            // 0: never
	queueError string
}

// turn says that a loop came round at now and comes again within.
func (v *vitals) turn(loop string, now, within time.Duration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.due == nil {
		v.due = map[string]time.Duration{}
	}
	v.due[loop] = now + within + turnSlack
}

// done says that a loop has ended and is due no more.
func (v *vitals) done(loop string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.due, loop)
}

func (v *vitals) planeHeard(now time.Duration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.heard = max(now, 1)
}

// queueAnswered takes the result of one receive.
func (v *vitals) queueAnswered(now time.Duration, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if err != nil {
		v.queueError = redact(err.Error(), 512)
		return
	}
	v.queueHeard, v.queueError = max(now, 1), ""
}

// Status tells how the agent stands.
func (a *Agent) Status() Status {
	answer := a.session.get()
	s := Status{
		AgentID: answer.AgentID, Cluster: answer.Cluster, Boot: a.boot, Reporter: answer.Reporter,
		Stopping: closed(a.stopping), Leases: a.runs.count(), Capacity: a.cfg.Concurrency, HeartbeatEvery: cadence(answer),
	}
	now := a.mono()
	v := &a.vitals
	v.mu.Lock()
	defer v.mu.Unlock()
	s.Heard, s.QueueHeard, s.QueueError = since(now, v.heard), since(now, v.queueHeard), v.queueError
	for loop, due := range v.due {
		if now > due {
			s.Stuck = append(s.Stuck, loop)
		}
	}
	return s
}

// since is how long ago then was, -1 if it never was.
func since(now, then time.Duration) time.Duration {
	if then == 0 {
		return -1
	}
	return max(now-then, 0)
}
