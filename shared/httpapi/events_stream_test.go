package httpapi

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/problem"
)

func idsOf(evs []event.Event) []string {
	out := make([]string, len(evs))
	for i, e := range evs {
		out[i] = e.ID
	}
	return out
}

// TestStream: events come as they happen, and each id resumes exactly behind its
// event, in the stream as in the list, of one stream and of all.
func TestStream(t *testing.T) {
	t.Parallel()
	for name, query := range map[string]string{"one": "type=device.*&cluster=", "all": "type=device.*"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := setup(t)
			if name == "one" {
				query += p.cluster.ID
			}
			base, _ := p.listen()
			s := p.opened(base, "viewer", query, "")
			var want []string
			want = append(want, idsOf(p.happen(p.cluster.ID, "device.left", 1))...)
			if e := s.event(t); e.ID != want[0] || e.Stream != p.cluster.ID || e.Sequence != 1 || e.ReceivedAt.IsZero() {
				t.Fatalf("%+v", e)
			}
			p.happen(p.cluster.ID, "node.left", 1) // not asked for
			want = append(want, idsOf(p.happen(p.cluster.ID, "device.left", 2, 3, 4, 5))...)
			if name == "all" {
				want = append(want, idsOf(p.happen(p.other.ID, "device.left", 6, 7, 8))...)
				want = append(want, idsOf(p.happen(event.PlaneStream, "device.left", 9))...)
			}
			cursors := []string{s.id}
			for i := 1; i < len(want); i++ {
				if e := s.event(t); e.ID != want[i] {
					t.Fatalf("event %d is %s/%d", i, e.Stream, e.Sequence)
				}
				cursors = append(cursors, s.id)
			}
			for i, c := range cursors {
				rest := want[i+1:]
				q, err := url.ParseQuery(query)
				must(t, err)
				q.Set("cursor", c)
				got, next := p.page("viewer", q)
				if slices.Sort(got); !slices.Equal(got, slices.Sorted(slices.Values(rest))) {
					t.Errorf("the list from the cursor behind %d: %d events, want %d", i, len(got), len(rest))
				}
				if len(rest) == 0 {
					continue
				}
				// The header counts before the URL's own cursor, as an EventSource sends both.
				for _, again := range []*sse{p.opened(base, "viewer", query, c), p.opened(base, "viewer", q.Encode(), ""), p.opened(base, "viewer", query+"&cursor="+next, c)} {
					var ids []string
					for range rest {
						ids = append(ids, again.event(t).ID)
					}
					if slices.Sort(ids); !slices.Equal(ids, slices.Sorted(slices.Values(rest))) {
						t.Errorf("the stream from the cursor behind %d is another", i)
					}
				}
			}
			// A list's cursor goes on as a stream.
			q, err := url.ParseQuery(query)
			must(t, err)
			q.Set("limit", "2")
			first, next := p.page("viewer", q)
			again := p.opened(base, "viewer", query, next)
			for range want[2:] {
				if e := again.event(t); slices.Contains(first, e.ID) {
					t.Errorf("%s came twice", e.ID)
				}
			}
		})
	}
}

// TestStreamEnds: by its own bound, by the server's shutdown and by the end of the
// credential, each between blocks; and the client goes on from its last id.
func TestStreamEnds(t *testing.T) {
	t.Parallel()
	p := setup(t)
	p.api.streaming.alive = 20 * time.Millisecond
	base, srv := p.listen()
	evs := p.happen(p.cluster.ID, "node.left", 1, 2)
	toEnd := func(s *sse) {
		t.Helper()
		for {
			b, err := s.next()
			if errors.Is(err, io.EOF) && b == (block{}) {
				return
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	s := p.opened(base, "viewer", "cluster="+p.cluster.ID, "")
	for alive := false; !alive; { // what keeps it so comes without an event
		b, err := s.next()
		must(t, err)
		alive = b.comment
	}
	s = p.opened(base, "viewer", "wait=300ms&cluster="+p.cluster.ID, "")
	toEnd(s)
	// What does not match takes the cursor on, by an id alone.
	s = p.opened(base, "viewer", "wait=300ms&type=x.y&cluster="+p.cluster.ID, "")
	toEnd(s)
	if got, _ := p.page("viewer", url.Values{"type": {"x.y"}, "cluster": {p.cluster.ID}, "cursor": {s.id}}); s.id == "" || len(got) != 0 {
		t.Errorf("cursor %q", s.id)
	}
	tok, secret, err := p.tokens.Create(t.Context(), auth.TokenSpec{Name: "short", Role: auth.Viewer})
	must(t, err)
	p.bearer["short"] = secret
	s = p.opened(base, "short", "", "")
	if e := s.event(t); e.Type == "" {
		t.Error("no event")
	}
	_, err = p.tokens.Revoke(t.Context(), tok.ID, "test")
	must(t, err)
	for said := (problem.Problem{}); said.ErrorCode == ""; {
		b, err := s.next()
		must(t, err)
		if b.event != "problem" {
			continue
		}
		must(t, json.Unmarshal([]byte(b.data), &said))
		if said.ErrorCode != problem.Unauthenticated || said.Status != http.StatusUnauthorized || said.CorrelationID == "" {
			t.Errorf("%s", b.data)
		}
	}
	toEnd(s)
	s = p.opened(base, "viewer", "cluster="+p.cluster.ID, "")
	if e := s.event(t); e.ID != evs[0].ID {
		t.Errorf("%s", e.ID)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	must(t, srv.Shutdown(ctx)) // would wait for open streams
	toEnd(s)
	base, _ = p.listen()
	s = p.opened(base, "viewer", "wait=200ms", "") // this API has been told to end its streams
	toEnd(s)
}

// TestStreamBounds: who may, how many at once, and what is no stream.
func TestStreamBounds(t *testing.T) {
	t.Parallel()
	p := setup(t, func(c *Config) { c.Limiter = &auth.Limiter{Waits: 1} })
	base, _ := p.listen()
	p.happen(p.cluster.ID, "node.left", 1)
	p.happen(p.other.ID, "node.left", 2)
	res, s, err := p.stream(t.Context(), base, "scoped", "", "")
	must(t, err)
	own := p.happen(p.cluster.ID, "node.left", 3)
	p.happen(p.other.ID, "node.left", 4)
	p.happen(event.PlaneStream, "node.left", 5)
	last := p.happen(p.cluster.ID, "node.left", 6)
	s.event(t)
	if a, b := s.event(t), s.event(t); a.ID != own[0].ID || b.ID != last[0].ID {
		t.Errorf("a scoped token sees %s/%d and %s/%d", a.Stream, a.Sequence, b.Stream, b.Sequence)
	}
	stream := "Accept: " + mediaStream
	p.do("scoped", "GET", "/v1/events", nil, stream).problem(429, problem.TooManyWaits)
	p.do("scoped", "GET", "/v1/events?wait=10ms", nil).problem(429, problem.TooManyWaits)
	p.do("scoped", "GET", "/v1/events?cluster=west", nil, stream).problem(422, problem.Invalid).points("/query/cluster")
	res.Body.Close()
	for deadline := time.Now().Add(20 * time.Second); ; { // the place is given back when the server notices
		if a := p.do("scoped", "GET", "/v1/events?wait=1ms", nil); a.status == 200 {
			break
		} else if time.Now().After(deadline) {
			t.Fatal(a.raw)
		}
	}
	for query, pointer := range map[string]string{"type=Node": "", "wait=x": "/query/wait", "wait=-1s": "/query/wait", "since=x": "/query/since", "limit=0": "/query/limit",
		"cursor=x": "/query/cursor", "unknown=1": "/query/unknown"} {
		a := p.do("viewer", "GET", "/v1/events?"+query, nil, stream).want(422)
		if pointer != "" {
			a.points(pointer)
		}
	}
	p.do("viewer", "GET", "/v1/events", nil, stream, "Last-Event-ID: x").problem(422, problem.InvalidCursor).points("/header/Last-Event-ID")
	p.do("", "GET", "/v1/events", nil, stream).problem(401, problem.Unauthenticated)
	p.do("agent", "GET", "/v1/events", nil, stream).problem(403, problem.Forbidden)
}

// TestStreamAccepts: a stream is only who asks for it.
func TestStreamAccepts(t *testing.T) {
	t.Parallel()
	p := setup(t)
	for accept, want := range map[string]string{mediaStream: mediaStream, "application/json;q=0.5, text/event-stream": mediaStream, "*/*": mediaJSON, "text/html": mediaJSON,
		"application/json": mediaJSON, "text/event-stream;q=0.1, application/json": mediaJSON, "text/event-stream;q=0": mediaJSON} {
		a := p.do("viewer", "GET", "/v1/events?wait=1ms", nil, "Accept: "+accept).want(200)
		if ct := a.header.Get("Content-Type"); ct != want {
			t.Errorf("%s: %s", accept, ct)
		}
	}
	if a := p.do("viewer", "HEAD", "/v1/events", nil, "Accept: "+mediaStream).want(200); a.raw != "" || a.header.Get("Content-Type") != mediaStream {
		t.Errorf("HEAD: %q", a.raw)
	}
	if a := p.do("viewer", "GET", "/v1/events", nil, "Last-Event-ID: x").want(200); len(a.items()) == 0 && a.str("next_cursor") == "" {
		t.Error(a.raw)
	}
}

// narrow is a listener whose connections hold little of what is not read.
type narrow struct{ net.Listener }

func (n narrow) Accept() (net.Conn, error) {
	c, err := n.Listener.Accept()
	if err == nil {
		err = c.(*net.TCPConn).SetWriteBuffer(4 << 10)
	}
	return c, err
}

// TestSlowClient: one that does not read is cut, with no more held for it than a
// page, and its place is free again.
func TestSlowClient(t *testing.T) {
	t.Parallel()
	p := setup(t, func(c *Config) { c.Limiter = &auth.Limiter{Waits: 1} })
	p.api.streaming.patience = 200 * time.Millisecond
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	srv := Server(p.api, l.Addr().String())
	go func() { _ = srv.Serve(narrow{l}) }()
	defer srv.Close()
	const total = 40 * 30 << 10
	var evs []event.Event
	for i := range 40 {
		e, err := event.New("node.left", p.cluster.ID, event.Subject{Kind: "node"}, time.Now(), operation.Plane, map[string]string{"x": strings.Repeat("y", 30<<10)}, "slow", fmt.Sprint(i))
		must(t, err)
		evs = append(evs, e)
	}
	_, err = event.Append(t.Context(), p.db, p.cluster.ID, evs, nil)
	must(t, err)
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", l.Addr().String())
	must(t, err)
	defer conn.Close()
	must(t, conn.(*net.TCPConn).SetReadBuffer(4<<10))
	_, err = io.WriteString(conn, "GET /v1/events HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\nAuthorization: Bearer "+p.bearer["viewer"]+"\r\n\r\n")
	must(t, err)
	r := bufio.NewReader(conn)
	if line, err := r.ReadString('\n'); err != nil || !strings.Contains(line, "200") {
		t.Fatalf("%q, %v", line, err)
	}
	for deadline := time.Now().Add(time.Minute); ; {
		if p.do("viewer", "GET", "/v1/events?wait=1ms&since=2100-01-01T00:00:00Z", nil).status == 200 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the stream still holds its place")
		}
	}
	must(t, conn.SetReadDeadline(time.Now().Add(time.Minute)))
	n, err := io.Copy(io.Discard, r)
	if errors.Is(err, os.ErrDeadlineExceeded) || n > total/2 {
		t.Errorf("%d bytes of %d, %v: it was not cut", n, total, err)
	}
}

// TestStreamOverHTTP2: deadlines of writes that have passed do not end a stream
// that is idle for longer.
func TestStreamOverHTTP2(t *testing.T) {
	t.Parallel()
	p := setup(t)
	p.api.streaming.patience, p.api.streaming.alive = 1500*time.Millisecond, 2*time.Second
	srv := httptest.NewUnstartedServer(p.api)
	srv.EnableHTTP2 = true
	srv.StartTLS()
	defer srv.Close()
	defer p.api.EndStreams()
	req, err := http.NewRequestWithContext(t.Context(), "GET", srv.URL+"/v1/events?type=node.left", nil)
	must(t, err)
	req.Header.Set("Authorization", "Bearer "+p.bearer["viewer"])
	req.Header.Set("Accept", mediaStream)
	res, err := srv.Client().Do(req)
	must(t, err)
	defer res.Body.Close()
	s := &sse{r: bufio.NewReader(res.Body)}
	for comments := 0; comments < 2; {
		b, err := s.next()
		must(t, err)
		if b.comment {
			comments++
		}
	}
	want := p.happen(p.cluster.ID, "node.left", 1)
	if e := s.event(t); res.ProtoMajor != 2 || e.ID != want[0].ID {
		t.Errorf("HTTP/%d: %s", res.ProtoMajor, e.ID)
	}
}

// TestStreamPassedByRetention: a stream whose reader retention has passed says so
// and ends, and the client's id is then a 410 with the first cursor that is left.
func TestStreamPassedByRetention(t *testing.T) {
	t.Parallel()
	p := setup(t)
	p.api.streaming.alive = 20 * time.Millisecond
	p.happen(p.cluster.ID, "node.left", 1, 2, 3)
	base, _ := p.listen()
	query := "limit=1&cluster=" + p.cluster.ID
	s := p.opened(base, "viewer", query, "")
	s.event(t)
	first := s.id
	s.event(t)
	s.event(t)
	p.happen(p.cluster.ID, "node.left", 4)
	_, _, err := event.Trim(t.Context(), p.db, p.cluster.ID, time.Now().Add(time.Hour))
	must(t, err)
	p.happen(p.cluster.ID, "node.left", 5)
	// It may have sent number 4 in time; then it was not passed.
	for {
		b, err := s.next()
		must(t, err)
		if b.event == "problem" {
			var said problem.Problem
			must(t, json.Unmarshal([]byte(b.data), &said))
			if said.ErrorCode != problem.CursorExpired || said.CorrelationID == "" {
				t.Errorf("%s", b.data)
			}
			if _, err := s.next(); !errors.Is(err, io.EOF) {
				t.Errorf("it goes on: %v", err)
			}
			break
		}
		if b.hasData && strings.Contains(b.data, `"sequence":5`) {
			break
		}
	}
	res, again, err := p.stream(t.Context(), base, "viewer", query, first)
	must(t, err)
	defer res.Body.Close()
	raw, err := io.ReadAll(again.r)
	must(t, err)
	a := answer{t: t, status: res.StatusCode, header: res.Header, raw: string(raw)}
	must(t, json.Unmarshal(raw, &a.j))
	a.problem(410, problem.CursorExpired)
	if e := p.opened(base, "viewer", query, a.str("cursor")).event(t); e.Sequence != 5 {
		t.Errorf("the first one left is %d", e.Sequence)
	}
}
