package httpapi

import (
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/problem"
)

// walk reads a list to its end and returns the ids.
func (p *plane) walk(role, path string, between func()) []string {
	p.t.Helper()
	var ids []string
	for cursor := ""; ; {
		sep := "?"
		if strings.Contains(path, "?") {
			sep = "&"
		}
		a := p.do(role, "GET", path+sep+"cursor="+cursor, nil).want(200)
		ids = append(ids, a.ids()...)
		if cursor = a.str("next_cursor"); cursor == "" {
			return ids
		}
		if between != nil {
			between()
		}
	}
}

func TestOperationFilters(t *testing.T) {
	t.Parallel()
	p := setup(t)
	n1, n2, west := p.node(p.cluster, "a"), p.node(p.cluster, "b"), p.node(p.other, "c")
	done := p.create(n1)
	p.do("operator", "DELETE", "/v1/operations/"+done, nil).want(200)
	time.Sleep(3 * time.Millisecond)
	middle := time.Now().UTC()
	time.Sleep(3 * time.Millisecond)
	again := p.create(n1)
	drain := p.do("admin", "POST", "/v1/operations", m{"type": "node.drain", "target": n2, "reason": "x"}, "X-Correlation-ID: corr").want(202).str("id")
	far := p.create(west)
	p.apply(far, operation.Dispatch{})
	actor := p.do("viewer", "GET", "/v1/operations/"+drain, nil).j["actor"].(m)["id"].(string)
	since, until := url.QueryEscape(middle.Format(time.RFC3339Nano)), url.QueryEscape(middle.Format(time.RFC3339Nano))
	for query, want := range map[string][]string{
		"":                                   {far, drain, again, done},
		"order=asc":                          {done, again, drain, far},
		"active=true":                        {far, drain, again},
		"active=false":                       {done},
		"phase=cancelled":                    {done},
		"phase=pending,dispatched":           {far, drain, again},
		"phase=pending&phase=cancelled":      {drain, again, done},
		"type=node.drain":                    {drain},
		"target=" + n1:                       {again, done},
		"target=" + n1 + "&type=node.drain":  nil,
		"target=node:b":                      {drain},
		"resource=" + n1:                     {again, done},
		"resource=" + n1 + "&order=asc":      {done, again},
		"cluster=west":                       {far},
		"cluster=" + p.cluster.ID:            {drain, again, done},
		"actor=" + actor:                     {drain},
		"correlation_id=corr":                {drain},
		"created_since=" + since:             {far, drain, again},
		"until=" + until:                     {done},
		"resource=" + n1 + "&since=" + since: {again},
		"resource=" + n1 + "&until=" + until: {done},
		"active=true&cluster=west":           {far},
		"parent=" + noOperation:              nil,
	} {
		for _, limit := range []string{"1", "2", "200"} {
			if got := p.walk("viewer", "/v1/operations?limit="+limit+"&"+query, nil); !slices.Equal(got, want) {
				t.Errorf("%s (limit %s): %v, want %v", query, limit, got, want)
			}
		}
	}
	if a := p.do("viewer", "GET", "/v1/operations", nil); a.str("history_begins_at") != "2026-01-02T03:04:05Z" {
		t.Error(a.raw)
	}
	for query, pointer := range map[string]string{
		"phase=gone": "phase", "type=node.explode": "type", "active=maybe": "active", "order=up": "order", "limit=0": "limit", "limit=201": "limit", "limit=x": "limit",
		"since=now": "since", "created_until=2026-13-01T00:00:00Z": "created_until", "since=2026-01-01T00:00:00Z&created_since=2026-01-02T00:00:00Z": "since",
		"cluster=nope": "cluster", "parent=x": "parent", "colour=red": "colour", "target=" + strings.Repeat("x", 700): "target", "limit=1&limit=2": "limit",
	} {
		p.do("viewer", "GET", "/v1/operations?"+query, nil).problem(422, problem.Invalid).points("/query/" + pointer)
	}
	p.do("viewer", "GET", "/v1/operations?a=%zz", nil).problem(422, problem.Invalid)
}

func TestPagesWhileOthersWrite(t *testing.T) {
	t.Parallel()
	p := setup(t)
	var before []string
	for i := range 30 {
		before = append(before, p.create(p.node(p.cluster, fmt.Sprintf("n%02d", i))))
	}
	var mu sync.Mutex
	stop, wg, n := make(chan struct{}), sync.WaitGroup{}, 0
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			mu.Lock()
			n++
			name := fmt.Sprintf("m%03d", n)
			mu.Unlock()
			p.create(p.node(p.cluster, name))
			p.do("operator", "DELETE", "/v1/operations/"+before[rand.IntN(len(before))], nil)
		}
	})
	for _, query := range []string{"limit=7", "limit=7&order=asc", "limit=3&cluster=east", "limit=7&type=node.cordon&phase=pending,cancelled"} {
		got := p.walk("viewer", "/v1/operations?"+query, nil)
		seen := map[string]int{}
		for _, id := range got {
			seen[id]++
		}
		for _, id := range before {
			if seen[id] != 1 {
				t.Errorf("%s: %s seen %d times", query, id, seen[id])
			}
		}
		for id, n := range seen {
			if n != 1 {
				t.Errorf("%s: %s seen %d times", query, id, n)
			}
		}
	}
	nodes := p.walk("viewer", "/v1/nodes?limit=3", nil)
	for i, id := range nodes {
		if slices.Contains(nodes[:i], id) {
			t.Errorf("node %s twice", id)
		}
	}
	close(stop)
	wg.Wait()
}

func TestCursors(t *testing.T) {
	t.Parallel()
	p := setup(t)
	for i := range 4 {
		p.create(p.node(p.cluster, fmt.Sprint("n", i)))
	}
	ops := p.do("viewer", "GET", "/v1/operations?limit=2", nil).str("next_cursor")
	nodes := p.do("viewer", "GET", "/v1/nodes?limit=2", nil).str("next_cursor")
	if ops == "" || nodes == "" {
		t.Fatal("no cursors")
	}
	p.do("viewer", "GET", "/v1/operations?limit=1&cursor="+ops, nil).want(200) // another page size is the same list
	bad := []string{
		"/v1/operations?cursor=" + nodes, "/v1/nodes?cursor=" + ops, "/v1/operations?active=true&cursor=" + ops, "/v1/operations?order=asc&cursor=" + ops,
		"/v1/nodes?name=n1&cursor=" + nodes, "/v1/operations?cursor=" + ops + "A", "/v1/operations?cursor=x", "/v1/operations?cursor=" + strings.Repeat("A", 5000),
		"/v1/audit?cursor=" + ops, "/v1/tokens?cursor=" + ops, "/v1/clusters?cursor=" + ops, "/v1/agents?cursor=" + ops, "/v1/manual-changes?cursor=" + ops,
		"/v1/dead-letters?cursor=" + ops, "/v1/events?cursor=" + ops, "/v1/devices?cursor=" + nodes,
	}
	raw, err := base64.RawURLEncoding.DecodeString(ops)
	must(t, err)
	for i := range len(raw) * 8 {
		flipped := slices.Clone(raw)
		flipped[i/8] ^= 1 << (i % 8)
		bad = append(bad, "/v1/operations?cursor="+base64.RawURLEncoding.EncodeToString(flipped))
	}
	for _, path := range bad {
		p.do("admin", "GET", path, nil).problem(422, problem.InvalidCursor)
	}
}

func TestCursorProperties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		key, other, place := rapid.String().Draw(t, "key"), rapid.String().Draw(t, "other"), rapid.StringN(1, 200, -1).Draw(t, "place")
		c := encodeCursor(key, place)
		if got, err := decodeCursor(key, c); err != nil || got != place {
			t.Fatalf("%q came back as %q: %v", place, got, err)
		}
		if _, err := decodeCursor(other, c); err == nil && other != key {
			t.Fatalf("a cursor of %q was one of %q", key, other)
		}
	})
}

func TestEvents(t *testing.T) {
	t.Parallel()
	p := setup(t)
	node := p.node(p.cluster, "a")
	for i := range 5 {
		p.do("operator", "POST", "/v1/manual-changes", m{"target": node, "reason": fmt.Sprint(i)}).want(201)
	}
	var seqs []string
	for cursor := ""; ; {
		a := p.do("viewer", "GET", "/v1/events?limit=2&cluster=east&cursor="+cursor, nil).want(200)
		if len(a.items()) == 0 {
			break
		}
		for _, e := range a.items() {
			seqs = append(seqs, fmt.Sprint(e["sequence"]))
		}
		cursor = a.str("next_cursor")
	}
	if strings.Join(seqs, " ") != "1 2 3 4 5" {
		t.Error(seqs)
	}
	all := p.do("viewer", "GET", "/v1/events?limit=200", nil).want(200)
	if len(all.items()) != 7 || !strings.HasPrefix(all.str("next_cursor"), "cur_") {
		t.Error(all.raw)
	}
	if got := p.do("scoped", "GET", "/v1/events", nil).want(200).items(); len(got) != 5 {
		t.Errorf("a scoped principal sees %d events", len(got))
	}
	next := make(chan answer)
	go func() {
		next <- p.do("viewer", "GET", "/v1/events?wait=30s&type=manual.change&cursor="+
			p.do("viewer", "GET", "/v1/events?limit=200&type=manual.change", nil).str("next_cursor"), nil)
	}()
	until(t, "somebody waits", func() bool {
		return strings.Contains(p.do("viewer", "GET", "/metrics", nil).raw, "opsplane_http_open_waits 1")
	})
	p.do("operator", "POST", "/v1/manual-changes", m{"target": node, "reason": "sixth"}).want(201)
	if a := <-next; a.status != 200 || len(a.items()) != 1 {
		t.Error(a.status, a.raw)
	}
	// A credential that ends meanwhile is answered as it would be at once.
	tok, secret, err := p.tokens.Create(t.Context(), auth.TokenSpec{Name: "short", Role: auth.Viewer})
	must(t, err)
	p.bearer["short"] = secret
	cursor := p.do("viewer", "GET", "/v1/events?limit=200&type=manual.change", nil).str("next_cursor")
	go func() { next <- p.do("short", "GET", "/v1/events?wait=30s&type=manual.change&cursor="+cursor, nil) }()
	until(t, "somebody waits", func() bool {
		return strings.Contains(p.do("viewer", "GET", "/metrics", nil).raw, "opsplane_http_open_waits 1")
	})
	_, err = p.tokens.Revoke(t.Context(), tok.ID, "test")
	must(t, err)
	p.do("operator", "POST", "/v1/manual-changes", m{"target": node, "reason": "seventh"}).want(201)
	a := <-next
	a.problem(401, problem.Unauthenticated)
	for _, q := range []string{"type=NOT", "wait=x", "since=x", "until=x", "x=1", "limit=201"} {
		p.do("viewer", "GET", "/v1/events?"+q, nil).problem(422, problem.Invalid)
	}
	p.do("viewer", "GET", "/v1/events?cursor=cur_00000000000000000000000000", nil).problem(422, problem.InvalidCursor).points("/query/cursor")
}
