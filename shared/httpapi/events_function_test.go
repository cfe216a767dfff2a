package httpapi

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/event"
)

// unflushable is a writer that sends its answer when it is whole, as a function's.
type unflushable struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (w *unflushable) Header() http.Header         { return w.header }
func (w *unflushable) WriteHeader(status int)      { w.status = status }
func (w *unflushable) Write(b []byte) (int, error) { return w.body.Write(b) }

// TestStreamOfAFunction: where an answer is sent whole it is a document that ends
// with the events that are there, in bounds of time and size, and is taken up
// again where it ended.
func TestStreamOfAFunction(t *testing.T) {
	t.Parallel()
	p := setup(t, asFunction, func(c *Config) { c.MaxWait = 700 * time.Millisecond })
	p.api.streaming.bytes = 2000
	lastID := ""
	ask := func(query string) (evs []event.Event, took time.Duration) {
		t.Helper()
		r := httptest.NewRequestWithContext(t.Context(), "GET", "/v1/events?"+query, nil)
		r.Header.Set("Authorization", "Bearer "+p.bearer["viewer"])
		r.Header.Set("Accept", mediaStream)
		if lastID != "" {
			r.Header.Set("Last-Event-ID", lastID)
		}
		w := &unflushable{header: http.Header{}}
		began := time.Now()
		p.api.ServeHTTP(w, r)
		took = time.Since(began)
		if w.status != 200 || w.header.Get("Content-Type") != mediaStream {
			t.Fatalf("%d %v %s", w.status, w.header, w.body.String())
		}
		s := &sse{r: bufio.NewReader(&w.body), id: lastID}
		for {
			b, err := s.next()
			if errors.Is(err, io.EOF) {
				lastID = s.id
				return evs, took
			}
			must(t, err)
			if b.hasData {
				var e event.Event
				must(t, json.Unmarshal([]byte(b.data), &e))
				evs = append(evs, e)
			}
		}
	}
	if evs, took := ask("type=device.*"); len(evs) != 0 || took < 700*time.Millisecond || took > 10*time.Second {
		t.Errorf("%d events of nothing after %s", len(evs), took)
	}
	var want, got []string
	for i := range 10 {
		want = append(want, idsOf(p.happen(p.cluster.ID, "device.left", i))...)
	}
	documents := 0
	for len(got) < len(want) {
		evs, _ := ask("type=device.*")
		got = append(got, idsOf(evs)...)
		if documents++; len(evs) == 0 {
			t.Fatalf("nothing after %d events", len(got))
		}
	}
	if !slices.Equal(got, want) || documents < 3 {
		t.Errorf("%d documents: %v, want %v", documents, got, want)
	}
	// It answers as soon as there is something.
	p.api.cfg.MaxWait = time.Minute
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.happen(p.cluster.ID, "device.left", 99)
	}()
	if evs, _ := ask("type=device.*&wait=20s"); len(evs) != 1 {
		t.Errorf("%d events", len(evs))
	}
	<-done
	// And while the request has time left.
	r := httptest.NewRequestWithContext(lasting{t.Context(), waitSlack + 300*time.Millisecond}, "GET", "/v1/events?type=x.y", nil)
	r.Header.Set("Authorization", "Bearer "+p.bearer["viewer"])
	r.Header.Set("Accept", mediaStream)
	if w := (&unflushable{header: http.Header{}}); true {
		began := time.Now()
		p.api.ServeHTTP(w, r)
		if took := time.Since(began); took > 15*time.Second || w.status != 200 {
			t.Errorf("%d after %s", w.status, took)
		}
	}
}
