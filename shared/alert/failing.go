package alert

import (
	"strconv"
	"time"

	"cel.dev/cel-go/common/types"
)

// Failure is that an expression could not be evaluated.
type Failure struct {
	Event string `json:"event" doc:"Id of the event"`
	Field string `json:"field" doc:"Pointer to the expression in the rule"`
	Error string `json:"error"`
}

// maxFailure bounds what is kept of an error's text, in bytes.
const maxFailure = 256

// Failing is how judging a rule failed in a stream, as it is kept with the position.
type Failing struct {
	Digest string  `json:"d"` // of the rule that failed
	Count  int64   `json:"n"` // events that an expression failed for
	Seq    int64   `json:"q"` // the last of them
	At     int64   `json:"t"` // when that was received, by the stream's clock
	Last   Failure `json:"f"`
}

// maxFailing bounds the rules whose failures are kept in a stream. Another takes the
// place of one that did not fail for staleFailing; else it is counted alone.
const (
	maxFailing   = 20
	staleFailing = time.Hour
)

// fail notes that an expression of the rule could not be evaluated. An event that is
// judged again counts once.
func (s *Stream) fail(c *Compiled, seq, clock int64, last Failure) {
	f := s.Position.Failing[c.ID]
	if f != nil && f.Digest == c.Digest && f.Seq >= seq {
		return
	}
	if f == nil && !s.roomForFailing(clock) {
		return
	}
	if s.Position.Failing == nil {
		s.Position.Failing = map[string]*Failing{}
	}
	if f == nil || f.Digest != c.Digest {
		f = &Failing{Digest: c.Digest}
		s.Position.Failing[c.ID] = f
	}
	f.Count++
	f.Seq, f.At, f.Last = seq, clock, last
	s.failing = s.failing || f.Count&(f.Count-1) == 0
}

// roomForFailing makes room for one more rule, where there is any.
func (s *Stream) roomForFailing(clock int64) bool {
	if len(s.Position.Failing) < maxFailing {
		return true
	}
	var oldest string
	for id, o := range s.Position.Failing {
		if was := s.Position.Failing[oldest]; was == nil || o.Seq < was.Seq || o.Seq == was.Seq && id < oldest {
			oldest = id
		}
	}
	if s.Position.Failing[oldest].At > clock-staleFailing.Milliseconds() {
		return false
	}
	delete(s.Position.Failing, oldest)
	return true
}

// forgetFailures forgets those of rules that are gone, or mean something else.
func (s *Stream) forgetFailures() {
	for id, f := range s.Position.Failing {
		if c := s.set.Rule(id); c == nil && !s.set.resting[id] || c != nil && c.Digest != f.Digest {
			delete(s.Position.Failing, id)
		}
	}
}

// written is a value as the text that it stands for in a group's key: a string as it
// is, a number or a truth written out. Others stand for none.
func written(v any) (string, bool) {
	switch x := v.(type) {
	case types.String:
		return string(x), true
	case types.Int:
		return strconv.FormatInt(int64(x), 10), true
	case types.Uint:
		return strconv.FormatUint(uint64(x), 10), true
	case types.Double:
		if x == 0 {
			x = 0 // without a sign: both are the same to a condition
		}
		return strconv.FormatFloat(float64(x), 'f', -1, 64), true
	case types.Bool:
		return strconv.FormatBool(bool(x)), true
	}
	return "", false
}
