package notify

import (
	"sync"
	"time"
)

// LatencyBounds are the upper bounds, in seconds, of the buckets of the time from an
// alert's event being taken to its receiver taking the message.
var LatencyBounds = []float64{0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3600}

// Stats is what a notifier has done since it was made.
type Stats struct {
	Sent    int64 // messages that were taken, each time
	Failed  int64 // tries that were not
	Retried int64 // tries of messages that had failed before
	Given   int64 // messages that were given up
	// Superseded are messages that a webhook did not take before a later one of their alert.
	Superseded int64
	Lost       int64 // events that passed retention, the stretch of a restore as one, or could not be read
	Unread     int64 // receivers, messages and other items that could not be read, each time
	// Seconds is how long requests took, all together.
	Seconds float64
	// Latency counts messages, when they are taken for the first time, by
	// LatencyBounds, the last for those above; LatencySum is in seconds.
	Latency    []int64
	LatencySum float64
}

// Metrics counts; the zero value is ready.
type Metrics struct {
	mu    sync.Mutex
	stats Stats
}

// Read returns the counts so far.
func (m *Metrics) Read() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := m.stats
	out.Latency = append(make([]int64, 0, len(LatencyBounds)+1), m.stats.Latency...)
	for len(out.Latency) <= len(LatencyBounds) {
		out.Latency = append(out.Latency, 0)
	}
	return out
}

func (m *Metrics) lose(n int64) {
	m.mu.Lock()
	m.stats.Lost += n
	m.mu.Unlock()
}

func (m *Metrics) supersede(n int) {
	m.mu.Lock()
	m.stats.Superseded += int64(n)
	m.mu.Unlock()
}

func (m *Metrics) unread() {
	m.mu.Lock()
	m.stats.Unread++
	m.mu.Unlock()
}

func (m *Metrics) took(d time.Duration) {
	m.mu.Lock()
	m.stats.Seconds += d.Seconds()
	m.mu.Unlock()
}

// tried counts one try: from was to d.
func (m *Metrics) tried(was, d *Delivery, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if was.Tries > 0 && was.failed() {
		m.stats.Retried++
	}
	if d.LastError != "" {
		m.stats.Failed++
		if d.State == Failed {
			m.stats.Given++
		}
		return
	}
	m.stats.Sent++
	if was.State != Pending || d.Redeliver > 0 {
		return
	}
	if m.stats.Latency == nil {
		m.stats.Latency = make([]int64, len(LatencyBounds)+1)
	}
	took := max(now.Sub(d.Received).Seconds(), 0)
	b := 0
	for b < len(LatencyBounds) && took > LatencyBounds[b] {
		b++
	}
	m.stats.Latency[b]++
	m.stats.LatencySum += took
}
