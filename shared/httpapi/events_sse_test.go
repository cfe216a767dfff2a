package httpapi

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/operation"
)

// listen serves the API on a real port until the test or stop ends it.
func (p *plane) listen() (base string, srv *http.Server) {
	p.t.Helper()
	l, err := (&net.ListenConfig{}).Listen(p.t.Context(), "tcp", "127.0.0.1:0")
	must(p.t, err)
	srv = Server(p.api, l.Addr().String())
	go func() { _ = srv.Serve(l) }()
	p.t.Cleanup(func() { _ = srv.Close() })
	return "http://" + l.Addr().String(), srv
}

// happen appends facts to a stream as one commit.
func (p *plane) happen(stream, typ string, ns ...int) []event.Event {
	p.t.Helper()
	evs := make([]event.Event, len(ns))
	for i, n := range ns {
		cluster := stream
		if stream == event.PlaneStream {
			cluster = ""
		}
		e, err := event.New(typ, cluster, event.Subject{Kind: "node", ID: id.Derive(id.Node, fmt.Sprint(n%3)), Name: fmt.Sprintf("n%d", n%3)}, time.Now(), operation.Plane,
			map[string]any{"n": n, "text": "two\nlines: \u2028 <b>"}, stream, typ, fmt.Sprint(n))
		must(p.t, err)
		evs[i] = e
	}
	placed, err := event.Append(p.t.Context(), p.db, stream, evs, nil)
	must(p.t, err)
	return placed
}

// block is what a stream's blank line ends.
type block struct {
	id      string
	hasID   bool
	event   string
	data    string
	hasData bool
	retry   string
	comment bool
}

// sse reads a text/event-stream (HTML Standard, section 9.2.6), more strictly than
// a browser: what a browser would pass over is an error here.
type sse struct {
	r  *bufio.Reader
	id string // the last event id
}

// next returns the next block; io.EOF at the end, which must be behind a blank
// line.
func (s *sse) next() (block, error) {
	var b block
	var data []string
	for n := 0; ; n++ {
		line, err := s.r.ReadString('\n')
		if err == io.EOF && n == 0 && line == "" {
			return b, io.EOF
		}
		if err != nil {
			return b, fmt.Errorf("cut in a block at %q: %w", line, err)
		}
		line = strings.TrimSuffix(line, "\n")
		if strings.ContainsAny(line, "\r\x00") {
			return b, fmt.Errorf("line %q", line)
		}
		if line == "" {
			if n == 0 {
				return b, fmt.Errorf("an empty block")
			}
			b.data = strings.Join(data, "\n")
			if b.hasID {
				s.id = b.id
			}
			return b, nil
		}
		field, value, colon := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case field == "" && colon:
			b.comment = true
		case field == "id" && !b.hasID:
			b.id, b.hasID = value, true
		case field == "event" && b.event == "":
			b.event = value
		case field == "data":
			data, b.hasData = append(data, value), true
		case field == "retry" && value != "" && strings.Trim(value, "0123456789") == "":
			b.retry = value
		default:
			return b, fmt.Errorf("line %q", line)
		}
	}
}

// event reads on to the next event, past comments and the like.
func (s *sse) event(t testing.TB) event.Event {
	t.Helper()
	for {
		b, err := s.next()
		if err != nil {
			t.Fatalf("no event: %v", err)
		}
		if !b.hasData {
			continue
		}
		if b.event != "" || !b.hasID || b.id == "" {
			t.Fatalf("block %+v", b)
		}
		var e event.Event
		must(t, json.Unmarshal([]byte(b.data), &e))
		return e
	}
}

// stream opens a stream over HTTP. lastID "" is a new one.
func (p *plane) stream(ctx context.Context, base, role, query, lastID string) (*http.Response, *sse, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/v1/events?"+query, nil)
	if err != nil {
		return nil, nil, err
	}
	req.Header.Set("Authorization", "Bearer "+p.bearer[role])
	req.Header.Set("Accept", mediaStream)
	if lastID != "" {
		req.Header.Set("Last-Event-ID", lastID)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, nil, err
	}
	return res, &sse{r: bufio.NewReader(res.Body), id: lastID}, nil
}

// opened is a stream that must begin.
func (p *plane) opened(base, role, query, lastID string) *sse {
	p.t.Helper()
	res, s, err := p.stream(p.t.Context(), base, role, query, lastID)
	must(p.t, err)
	p.t.Cleanup(func() { res.Body.Close() })
	if res.StatusCode != 200 || res.Header.Get("Content-Type") != mediaStream || res.Header.Get("Cache-Control") != "no-store" || res.Header.Get("Content-Encoding") != "" {
		b, _ := io.ReadAll(res.Body)
		p.t.Fatalf("%s %v %s", res.Status, res.Header, b)
	}
	if b, err := s.next(); err != nil || b.retry != "1000" {
		p.t.Fatalf("the first block is %+v, %v", b, err)
	}
	return s
}

// page reads one page of the list and returns the ids.
func (p *plane) page(role string, query url.Values) ([]string, string) {
	p.t.Helper()
	a := p.do(role, "GET", "/v1/events?"+query.Encode(), nil).want(200)
	return a.ids(), a.str("next_cursor")
}
