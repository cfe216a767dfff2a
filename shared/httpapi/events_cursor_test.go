package httpapi

import (
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/problem"
	"github.com/opsplane/opsplane/shared/record"
)

// TestCursorsOverHTTP: each way in which a cursor is no good, in the list and in
// the stream, of one stream and of all.
func TestCursorsOverHTTP(t *testing.T) {
	t.Parallel()
	for name, query := range map[string]string{"one": "type=node.*&cluster=east", "all": "type=node.*"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := setup(t)
			base, _ := p.listen()
			p.happen(p.cluster.ID, "node.left", 1, 2, 3)
			p.happen(p.other.ID, "node.left", 4, 5, 6)
			q, err := url.ParseQuery(query)
			must(t, err)
			q.Set("limit", "2")
			_, listed := p.page("viewer", q)
			s := p.opened(base, "viewer", query, "")
			s.event(t)
			s.event(t)
			stepped := s.id
			bad := func(what, query, cursor string) {
				t.Helper()
				sep := "&"
				if query == "" {
					sep = ""
				}
				p.do("viewer", "GET", "/v1/events?"+query+sep+"cursor="+url.QueryEscape(cursor), nil).problem(422, problem.InvalidCursor).points("/query/cursor")
				a := p.do("viewer", "GET", "/v1/events?"+query, nil, "Accept: "+mediaStream, "Last-Event-ID: "+cursor).problem(422, problem.InvalidCursor).points("/header/Last-Event-ID")
				if a.j["next_action"].(map[string]any)["code"] != "correct_input" {
					t.Errorf("%s: %s", what, a.raw)
				}
			}
			nodes := p.do("viewer", "GET", "/v1/event-types?limit=1", nil).want(200).str("next_cursor")
			for _, c := range []string{listed, stepped} {
				// Another list's: another filter, another cluster, another kind of list.
				bad("another type", strings.Replace(query, "node.*", "node.left", 1), c)
				bad("without the filter", strings.TrimPrefix(query, "type=node.*"), c)
				bad("another cluster", "type=node.*&cluster=west", c)
				p.do("scoped", "GET", "/v1/events?wait=1ms&type=node.*&cursor="+url.QueryEscape(c), nil, "Accept: "+mediaStream).want(map[bool]int{true: 200, false: 422}[name == "one"])
				// A flipped bit, anywhere.
				for i := range c {
					for _, bit := range []byte{1, 4, 32} {
						b := []byte(c)
						if b[i] ^= bit; b[i] > ' ' && b[i] < 0x7f {
							bad("a flipped bit", query, string(b))
						}
					}
				}
			}
			bad("another list's", query, nodes)
			bad("no cursor", query, "x")
			if name == "one" {
				q.Set("cluster", p.cluster.ID)
			}
			// Older than retention: 410 with the first cursor that is left.
			_, _, err = event.Trim(t.Context(), p.db, p.cluster.ID, time.Now().Add(time.Hour))
			must(t, err)
			left := p.happen(p.cluster.ID, "node.left", 7)
			for _, c := range []string{listed, stepped} {
				for _, accept := range []string{mediaJSON, mediaStream} {
					a := p.do("viewer", "GET", "/v1/events?"+query+"&cursor="+url.QueryEscape(c), nil, "Accept: "+accept).problem(410, problem.CursorExpired)
					first := a.str("cursor")
					streams, _ := a.j["streams"].(map[string]any)
					if first == "" || streams[p.cluster.ID] != float64(4) || len(streams) != 1 || !strings.Contains(a.str("detail"), "4") {
						t.Fatalf("%s", a.raw)
					}
					text, _ := a.j["next_action"].(map[string]any)["text"].(string)
					if !strings.Contains(text, "cursor") {
						t.Errorf("it does not say how to go on: %s", a.raw)
					}
					got, _ := p.page("viewer", url.Values{"type": {"node.*"}, "cursor": {first}, "cluster": q["cluster"]})
					if !slices.Contains(got, left[0].ID) {
						t.Errorf("from the first one left: %v", got)
					}
				}
			}
		})
	}
}

// TestCursorAheadOfItsStream: one that was given before the ledger was restored
// from an older backup is told, not answered with nothing for ever.
func TestCursorAheadOfItsStream(t *testing.T) {
	t.Parallel()
	p := setup(t)
	p.happen(p.cluster.ID, "node.left", 1)
	before, err := p.db.Get(t.Context(), record.StreamHeadKey(p.cluster.ID))
	must(t, err)
	p.happen(p.cluster.ID, "node.left", 2, 3)
	_, cursor := p.page("viewer", url.Values{"cluster": {p.cluster.ID}})
	base, _ := p.listen()
	s, all := p.opened(base, "viewer", "cluster="+p.cluster.ID, ""), p.opened(base, "viewer", "", "")
	for range 3 {
		s.event(t)
	}
	for n := int64(0); n < 3; {
		if e := all.event(t); e.Stream == p.cluster.ID {
			n = e.Sequence
		}
	}
	must(t, p.db.Commit(t.Context(), ledger.Write{Item: ledger.Item{Key: before.Key, Data: before.Data}, Expect: ledger.AnyVersion},
		ledger.Write{Kind: ledger.Delete, Item: ledger.Item{Key: record.StreamRunKey(p.cluster.ID, 2)}, Expect: ledger.AnyVersion}))
	path := "/v1/events?cluster=" + p.cluster.ID
	p.do("viewer", "GET", path+"&cursor="+cursor, nil).problem(422, problem.InvalidCursor).points("/query/cursor")
	for path, id := range map[string]string{path: s.id, "/v1/events": all.id} {
		a := p.do("viewer", "GET", path, nil, "Accept: "+mediaStream, "Last-Event-ID: "+id).problem(422, problem.InvalidCursor)
		if !strings.Contains(a.str("detail"), "ahead") {
			t.Errorf("%s", a.raw)
		}
	}
}

// TestCursorThatARestoreTookBack: it is told, in a list and in a stream, with the cursor
// that goes on and what to do where that is not enough.
func TestCursorThatARestoreTookBack(t *testing.T) {
	t.Parallel()
	p := setup(t)
	p.happen(p.cluster.ID, "node.left", 1)
	must(t, event.TellRestored(t.Context(), p.store))
	after := p.happen(p.cluster.ID, "node.left", 2)
	lost := id.Derive(id.Cursor, "of another life")
	for _, accept := range []string{mediaJSON, mediaStream} {
		a := p.do("viewer", "GET", "/v1/events?cursor="+lost, nil, "Accept: "+accept).problem(410, problem.CursorExpired)
		streams, _ := a.j["streams"].(map[string]any)
		text, _ := a.j["next_action"].(map[string]any)["text"].(string)
		if streams[p.cluster.ID] != float64(2) || streams[event.PlaneStream] == nil || !strings.Contains(a.str("detail"), "restored at") || !strings.Contains(text, "since") {
			t.Fatalf("%s", a.raw)
		}
		got, _ := p.page("viewer", url.Values{"cursor": {a.str("cursor")}})
		if !slices.Contains(got, after[0].ID) || len(got) != len(streams)+1 {
			t.Errorf("on from there: %v", got)
		}
	}
}
