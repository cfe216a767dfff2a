package notify

import (
	"net/http"
	"slices"
	"time"
)

// away is an Alertmanager that fails, or asked for a pause. It keeps the others waiting
// for nothing.
type away struct {
	Fails int       `json:"fails,omitempty"` // rounds in a row
	Until time.Time `json:"until"`           // when it is tried again
	Error string    `json:"error"`
}

// failHold is for how long nothing is sent where so many rounds in a row failed.
func failHold(fails int) time.Duration { return min(time.Second<<min(fails, 6), maxFailHold) }

// holds is until when nothing is sent; zero: something is.
func (h *held) holds(r *target, now time.Time) (until time.Time) {
	if r.Kind != KindAlertmanager {
		if at := h.lane.Hold; isAhead(at, now) {
			return at
		}
		return time.Time{}
	}
	for _, to := range r.URLs {
		at := h.lane.Away[to].Until
		if !isAhead(at, now) {
			return time.Time{}
		}
		until = sooner(until, at)
	}
	return until
}

// away says which Alertmanagers are to be left out, and until when: those that took
// nothing, or asked for a pause.
func (s *Service) away(was map[string]away, urls []string, answers [][]answer, now time.Time) map[string]away {
	next := map[string]away{}
	for i, to := range urls {
		is := was[to]
		if isAhead(is.Until, now) {
			next[to] = is
			continue
		}
		last, pause := answers[i][0], time.Duration(0)
		for _, a := range answers[i] {
			pause = max(pause, a.pause)
		}
		failed := !slices.ContainsFunc(answers[i], func(a answer) bool { return a.taken() || a.status == http.StatusBadRequest })
		switch {
		case failed:
			hold := failHold(is.Fails + 1)
			if pause > 0 {
				hold = min(pause, maxHold)
			}
			next[to] = away{Fails: is.Fails + 1, Until: s.now().Add(hold), Error: last.err}
		case pause > 0:
			next[to] = away{Until: s.now().Add(min(pause, maxHold)), Error: "asked for a pause"}
		}
	}
	return next
}
