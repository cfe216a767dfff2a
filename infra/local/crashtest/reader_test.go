package crashtest

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"sync"
	"time"
)

// fact is an event as the API shows it.
type fact struct {
	ID          string  `json:"id"`
	Type        string  `json:"type"`
	Stream      string  `json:"stream"`
	Sequence    int64   `json:"sequence"`
	OperationID *string `json:"operation_id"`
	Detail      struct {
		JournalSeq int64  `json:"journal_seq"`
		Phase      string `json:"phase"`
	} `json:"detail"`
}

// reader reads all streams from their beginning through one cursor that it
// keeps, whatever happens to the plane.
type reader struct {
	l *load // for problems

	mu     sync.Mutex
	cursor string
	facts  []fact
	ids    map[string]bool
	last   map[string]int64 // sequence by stream
	empty  int              // pages in a row that brought nothing
	errors int
}

func newReader(l *load) *reader {
	return &reader{l: l, ids: map[string]bool{}, last: map[string]int64{}}
}

func (r *reader) run(ctx context.Context) {
	for ctx.Err() == nil {
		q := url.Values{"limit": {"200"}, "wait": {"1s"}}
		if r.cursor != "" {
			q.Set("cursor", r.cursor)
		}
		a := r.l.c.call(http.MethodGet, "/v1/events?"+q.Encode(), nil, "")
		if a.status == 0 || a.status == http.StatusServiceUnavailable {
			r.errors++
			time.Sleep(20 * time.Millisecond)
			continue
		}
		var p page[fact]
		if err := json.Unmarshal(a.body, &p); a.status != http.StatusOK || err != nil {
			r.l.problem("reading events from cursor %q: %s", r.cursor, a)
			return
		}
		r.take(p)
	}
}

// take checks a page against everything before it: in each stream the next
// number, and no event twice.
func (r *reader) take(p page[fact]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range p.Items {
		if want := r.last[f.Stream] + 1; f.Sequence != want {
			r.l.problem("stream %s: the reader got %d, the next is %d (%s %s)", f.Stream, f.Sequence, want, f.Type, f.ID)
		}
		r.last[f.Stream] = f.Sequence
		if r.ids[f.ID] {
			r.l.problem("event %s (%s) was read twice", f.ID, f.Type)
		}
		r.ids[f.ID] = true
		r.facts = append(r.facts, f)
	}
	r.empty++
	if len(p.Items) > 0 {
		r.empty = 0
	}
	if p.NextCursor != nil {
		r.cursor = *p.NextCursor
	}
}

// transitions returns how often each journal entry of each operation was read.
func (r *reader) transitions() map[string]map[int64]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := map[string]map[int64]int{}
	for _, f := range r.facts {
		if f.OperationID == nil || f.Detail.Phase == "" {
			continue
		}
		if out[*f.OperationID] == nil {
			out[*f.OperationID] = map[int64]int{}
		}
		out[*f.OperationID][f.Detail.JournalSeq]++
	}
	return out
}

// caughtUp waits until two pages in a row brought nothing.
func (r *reader) caughtUp(within time.Duration) bool {
	r.mu.Lock()
	r.empty = 0
	r.mu.Unlock()
	for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		r.mu.Lock()
		n := r.empty
		r.mu.Unlock()
		if n >= 2 {
			return true
		}
	}
	return false
}
