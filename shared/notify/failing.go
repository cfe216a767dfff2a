package notify

import (
	"context"
	"strconv"
	"time"

	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/ledger"
)

// failingAfter is for how long a receiver has taken nothing when that is told. A
// message is given up a day later, and what fires is never given up to an Alertmanager.
const failingAfter = 10 * time.Minute

// failing is of a lane's receiver that takes nothing, by any of its endpoints.
type failing struct {
	Since time.Time `json:"since,omitzero"` // when the first try failed
	// Told: it is told that it takes nothing, and so is to be that it does again.
	Told bool `json:"told,omitempty"`
	// Tell is the type of the event that is to be told with the lane's next write, and
	// Error the last. They are of the process that has the lane.
	Tell  string `json:"-"`
	Error string `json:"-"`
}

// noteFailing takes over that an endpoint took nothing, or is there.
func (l *lane) noteFailing(r *target, failed bool, err string, now time.Time) {
	f := &l.Failing
	if !failed {
		if f.Told {
			f.Tell = event.TypeNotifyRecovered
		} else {
			*f = failing{}
		}
		return
	}
	for _, to := range r.endpoints() {
		if l.Holds[to.url].Fails == 0 { // that one may be told
			return
		}
	}
	if f.Since.IsZero() || setBack(f.Since, now) {
		f.Since = now
	}
	if f.Error = err; !f.Told && now.Sub(f.Since) >= failingAfter {
		f.Tell = event.TypeNotifyFailing
	} else if f.Tell == event.TypeNotifyRecovered { // it was not kept by now
		f.Tell = ""
	}
}

// told is what is kept when the event is told.
func (f failing) told() failing {
	switch f.Tell {
	case event.TypeNotifyFailing:
		return failing{Since: f.Since, Told: true}
	case event.TypeNotifyRecovered:
		return failing{}
	}
	return failing{Since: f.Since, Told: f.Told}
}

// commitLane commits a lane with the event that it is to be told with. What the lane
// says of it is the event's marker: it is in the stream once.
func (s *Service) commitLane(ctx context.Context, h *held, f failing, write ledger.Write) error {
	if f.Tell == "" {
		return s.Store.Ledger.Commit(ctx, write)
	}
	var detail any = event.NotifyFailingDetail{Since: f.Since, Error: f.Error}
	if f.Tell == event.TypeNotifyRecovered {
		detail = event.NotifyRecoveredDetail{Since: f.Since, FailedMS: max(s.now().Sub(f.Since), 0).Milliseconds()}
	}
	e, err := s.fact(f.Tell, h.told, detail, h.receiver, strconv.FormatInt(f.Since.UnixMilli(), 10))
	if err != nil {
		return err
	}
	_, err = event.Append(ctx, s.Store.Ledger, event.PlaneStream, []event.Event{e}, func() ([]ledger.Write, error) { return []ledger.Write{write}, nil })
	return err
}
