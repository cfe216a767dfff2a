package inproc

// Stats counts what a subscription, or all of a bus, did with its messages.
type Stats struct {
	Delivered int64 // handled without error
	Retried   int64 // calls after a failure
	Dropped   int64 // given up, or pushed out of a full buffer, or left at Close
	Waiting   int   // in the buffer now
}

func (s *Stats) add(t Stats) {
	s.Delivered += t.Delivered
	s.Retried += t.Retried
	s.Dropped += t.Dropped
	s.Waiting += t.Waiting
}

// Stats sums up all subscriptions, those that ended too.
func (b *Bus) Stats() Stats {
	b.mu.Lock()
	defer b.mu.Unlock()
	total := b.past
	for _, s := range b.subs {
		total.add(s.statsLocked())
	}
	return total
}

// Stats counts this subscription's messages.
func (s *Subscription) Stats() Stats {
	s.bus.mu.Lock()
	defer s.bus.mu.Unlock()
	return s.statsLocked()
}

func (s *Subscription) statsLocked() Stats {
	st := s.stats
	st.Waiting = len(s.buffer)
	return st
}
