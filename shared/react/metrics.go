package react

import (
	"maps"
	"sync"
	"time"

	"github.com/opsplane/opsplane/shared/alert"
)

// LatencyBounds are the upper bounds, in seconds, of the buckets of the time from
// an event's happening to the alert that it set off being kept.
var LatencyBounds = []float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300}

// Stats is what a reactor has done since it was made.
type Stats struct {
	alert.Meter
	Told    map[string]int64 // transitions by the type of their event
	Lost    int64            // events that passed retention before they were judged, the stretch of a restore as one
	Skipped int64            // events that cannot be read, and were passed over
	Panics  int64
	Faulty  int64 // rules, silences and positions that could not be used, each time that they were read
	SetBack int64 // clocks of streams that were ahead
	Retries int64 // passes and appends that lost a race
	// Latency counts alerts by LatencyBounds, the last for those above;
	// LatencySum is in seconds.
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
	out.Told = make(map[string]int64, len(m.stats.Told))
	for k, v := range m.stats.Told {
		out.Told[k] = v
	}
	out.Failed = maps.Clone(m.stats.Failed)
	out.Latency = append(make([]int64, 0, len(LatencyBounds)+1), m.stats.Latency...)
	for len(out.Latency) <= len(LatencyBounds) {
		out.Latency = append(out.Latency, 0)
	}
	return out
}

func (m *Metrics) again() {
	m.mu.Lock()
	m.stats.Retries++
	m.mu.Unlock()
}

func (m *Metrics) lose(n int64) {
	m.mu.Lock()
	m.stats.Lost += n
	m.mu.Unlock()
}

func (m *Metrics) skip(n int64) {
	m.mu.Lock()
	m.stats.Skipped += n
	m.mu.Unlock()
}

func (m *Metrics) faulty() {
	m.mu.Lock()
	m.stats.Faulty++
	m.mu.Unlock()
}

func (m *Metrics) setBack() {
	m.mu.Lock()
	m.stats.SetBack++
	m.mu.Unlock()
}

func (m *Metrics) panicked() {
	m.mu.Lock()
	m.stats.Panics++
	m.mu.Unlock()
}

// meter takes over what a stream has counted.
func (m *Metrics) meter(s *alert.Stream) {
	m.mu.Lock()
	m.stats.Meter.Add(s.Meter)
	m.mu.Unlock()
	s.Meter = alert.Meter{}
}

// told counts transitions that are kept, and how long after their events.
func (m *Metrics) told(ts []alert.Transition, now time.Time) {
	if len(ts) == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stats.Told == nil {
		m.stats.Told, m.stats.Latency = map[string]int64{}, make([]int64, len(LatencyBounds)+1)
	}
	for i := range ts {
		m.stats.Told[ts[i].Kind]++
		if ts[i].Kind != alert.TypeFiring || ts[i].Happened.IsZero() {
			continue
		}
		took := max(now.Sub(ts[i].Happened).Seconds(), 0)
		b := 0
		for b < len(LatencyBounds) && took > LatencyBounds[b] {
			b++
		}
		m.stats.Latency[b]++
		m.stats.LatencySum += took
	}
}
