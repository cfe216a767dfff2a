package operation

import (
	"slices"
	"time"
)

// Stood is a blocker that an earlier lease showed: since when something stands in the
// way is no matter of who holds the operation.
type Stood struct {
	Code     string    `json:"code"`
	Resource string    `json:"resource"`
	Rule     string    `json:"rule,omitempty"`
	Since    time.Time `json:"since"`
	// Met: the present lease shows it, too. It is over once that does not.
	Met bool `json:"met,omitempty"`
}

// metWithin is how soon after its claim a lease meets what stood before it; what it
// meets later is taken to be another time.
const metWithin = 2 * time.Minute

func (s Stood) is(b Blocker) bool {
	return s.Code == b.Code && s.Resource == b.Resource && s.Rule == b.Rule
}

// keepStood keeps, for the lease that begins, since when what is shown stands in the way,
// beside what the lease before had no time to meet.
func (tx *transaction) keepStood() {
	stood := slices.DeleteFunc(slices.Clone(tx.s.Stood), func(s Stood) bool { return s.Met })
	if p := tx.s.Progress; p != nil {
		for _, b := range p.Blockers {
			if b.Since == nil {
				continue
			}
			stood = slices.DeleteFunc(stood, func(s Stood) bool { return s.is(b) })
			stood = append(stood, Stood{Code: b.Code, Resource: b.Resource, Rule: b.Rule, Since: *b.Since})
		}
	}
	tx.s.Stood = stood[max(len(stood)-MaxProgressBlockers, 0):]
}

// since is the progress with the blockers that an earlier lease showed standing since
// then.
func (tx *transaction) since(p *Progress) *Progress {
	if len(tx.s.Stood) == 0 {
		return p
	}
	own := *p
	own.Blockers = slices.Clone(p.Blockers)
	early := tx.at.Sub(tx.s.Assignments[len(tx.s.Assignments)-1].From) < metWithin
	var left []Stood
	for _, s := range tx.s.Stood {
		if !s.Met && !early {
			continue
		}
		if i := slices.IndexFunc(own.Blockers, s.is); i >= 0 {
			if at := own.Blockers[i].Since; at != nil && s.Since.Before(*at) {
				own.Blockers[i].Since = &s.Since
			}
			s.Met = true
		} else if len(own.Blockers) == MaxProgressBlockers { // it may be one of those that are not shown
			s.Met = true
		} else if s.Met {
			continue
		}
		left = append(left, s)
	}
	tx.s.Stood = left
	return &own
}
