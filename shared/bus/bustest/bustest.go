// Package bustest holds every engine of the bus to the same promises: what is
// published is delivered at least once to each rule whose pattern matches, and
// to no other, and what is refused is told.
package bustest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/bus"
)

// Rig is an engine with a way to attach rules.
type Rig struct {
	Publisher bus.Publisher
	// Subscribe makes a rule that delivers to the handler before it returns, and
	// undoes it when the test ends. The handler may be called concurrently.
	Subscribe func(t *testing.T, p bus.Pattern, h func(context.Context, bus.Message) error)
	// Slack is how long a delivery may take; zero means a minute.
	Slack time.Duration
	// Retries says that a handler that failed is called again.
	Retries bool
}

// Run runs the suite. open gives each test a rig; messages of other tests may
// pass on the same bus.
func Run(t *testing.T, open func(t *testing.T) Rig) {
	for _, tt := range []struct {
		name string
		run  func(*testing.T, Rig)
	}{
		{"Delivers", testDelivers},
		{"Patterns", testPatterns},
		{"Many", testMany},
		{"ByReference", testByReference},
		{"BrokenUTF8", testBrokenUTF8},
		{"TooLarge", testTooLarge},
		{"Invalid", testInvalid},
		{"Partial", testPartial},
		{"Nothing", testNothing},
		{"RetriesHandler", testRetriesHandler},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := open(t)
			if r.Slack == 0 {
				r.Slack = time.Minute
			}
			tt.run(t, r)
		})
	}
}

// inbox keeps what one rule delivered.
type inbox struct {
	mu  sync.Mutex
	got map[string]bus.Message
	new chan struct{}
}

func newInbox() *inbox { return &inbox{got: map[string]bus.Message{}, new: make(chan struct{}, 1)} }

func (in *inbox) put(_ context.Context, m bus.Message) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.got[m.ID] = m
	select {
	case in.new <- struct{}{}:
	default:
	}
	return nil
}

// await waits until all the ids were delivered.
func (in *inbox) await(t *testing.T, slack time.Duration, ids ...string) map[string]bus.Message {
	t.Helper()
	late := time.After(slack)
	for {
		in.mu.Lock()
		missing := slices.DeleteFunc(slices.Clone(ids), func(id string) bool { _, ok := in.got[id]; return ok })
		in.mu.Unlock()
		if len(missing) == 0 {
			break
		}
		select {
		case <-in.new:
		case <-late:
			t.Fatalf("not delivered within %s: %d of %d, first %s", slack, len(missing), len(ids), missing[0])
		}
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	got := make(map[string]bus.Message, len(in.got))
	for id, m := range in.got {
		got[id] = m
	}
	return got
}

var serial = struct {
	sync.Mutex
	n int
}{}

// prefix makes event types of a test's own.
func prefix() string {
	serial.Lock()
	defer serial.Unlock()
	serial.n++
	return fmt.Sprintf("test%d-%d.", time.Now().UnixNano(), serial.n)
}

func message(eventType, id string) bus.Message {
	id = eventType + "/" + id
	return bus.Message{
		ID: id, Type: eventType, Time: time.Now().UTC().Truncate(time.Second),
		Detail: json.RawMessage(`{"id":` + strconv.Quote(id) + `,"text":"ä \u0000 <&>"}`),
	}
}

func publish(t *testing.T, r Rig, ms ...bus.Message) {
	t.Helper()
	if err := r.Publisher.Publish(t.Context(), ms...); err != nil {
		t.Fatalf("Publish: %v", err)
	}
}

func testDelivers(t *testing.T, r Rig) {
	p, in := prefix(), newInbox()
	r.Subscribe(t, bus.Pattern{Type: p + "*"}, in.put)
	m := message(p+"one", "1")
	publish(t, r, m)
	got := in.await(t, r.Slack, m.ID)[m.ID]
	var want, have any
	if err := errors.Join(json.Unmarshal(m.Detail, &want), json.Unmarshal(got.Detail, &have)); err != nil {
		t.Fatal(err)
	}
	if got.Type != m.Type || !got.Time.Equal(m.Time) || fmt.Sprint(have) != fmt.Sprint(want) {
		t.Errorf("published %+v, delivered %+v", m, got)
	}
}

func testPatterns(t *testing.T, r Rig) {
	p := prefix()
	exact, under, all := newInbox(), newInbox(), newInbox()
	r.Subscribe(t, bus.Pattern{Type: p + "node.joined"}, exact.put)
	r.Subscribe(t, bus.Pattern{Type: p + "node.*"}, under.put)
	r.Subscribe(t, bus.Pattern{}, all.put)
	joined, left, other := message(p+"node.joined", "1"), message(p+"node.joined.again", "2"), message(p+"device.reset", "3")
	last := message(p+"node.joined", "4")
	publish(t, r, joined, left, other, last)
	for name, tt := range map[string]struct {
		in   *inbox
		want []bus.Message
		not  []bus.Message
	}{
		"exact":  {exact, []bus.Message{joined, last}, []bus.Message{left, other}},
		"prefix": {under, []bus.Message{joined, left, last}, []bus.Message{other}},
		"all":    {all, []bus.Message{joined, left, other, last}, nil},
	} {
		var ids []string
		for _, m := range tt.want {
			ids = append(ids, m.ID)
		}
		got := tt.in.await(t, r.Slack, ids...)
		for _, m := range tt.not {
			if _, ok := got[m.ID]; ok {
				t.Errorf("%s: delivered %s", name, m.ID)
			}
		}
	}
}

// testMany publishes more than one request of any engine takes.
func testMany(t *testing.T, r Rig) {
	p, in := prefix(), newInbox()
	r.Subscribe(t, bus.Pattern{Type: p + "*"}, in.put)
	var ms []bus.Message
	var ids []string
	for i := range 57 {
		m := message(p+"n", strconv.Itoa(i))
		ms, ids = append(ms, m), append(ids, m.ID)
	}
	// Large ones too: EventBridge bounds the request as well as the entry.
	for i := range 3 {
		m := message(p+"large", strconv.Itoa(i))
		m.Detail = sized(m.ID, bus.MaxDetailBytes)
		ms, ids = append(ms, m), append(ids, m.ID)
	}
	publish(t, r, ms...)
	got := in.await(t, r.Slack, ids...)
	if n := len(got[ids[len(ids)-1]].Detail); n < bus.MaxDetailBytes {
		t.Errorf("a detail of %d bytes arrived with %d", bus.MaxDetailBytes, n)
	}
}

// sized makes a detail of exactly n bytes, for the message of the id.
func sized(id string, n int) json.RawMessage {
	head, tail := `{"id":`+strconv.Quote(id)+`,"text":"`, `"}`
	return json.RawMessage(head + strings.Repeat("x", n-len(head)-len(tail)) + tail)
}

// testByReference: a detail over the limit is carried as its envelope, which
// says so and where the whole of it is.
func testByReference(t *testing.T, r Rig) {
	p, in := prefix(), newInbox()
	r.Subscribe(t, bus.Pattern{Type: p + "*"}, in.put)
	m := message(p+"large", "1")
	text := strings.Repeat("x", bus.MaxDetailBytes)
	m.Detail = json.RawMessage(`{"id":` + strconv.Quote(m.ID) + `,"type":"elsewhere","subject":{"kind":"node","id":"nod_1","name":"gpu-1"},"cluster":"clu_1","cluster_id":"clu_1",` +
		`"stream":"clu_1","sequence":7,"operation_id":null,"severity":"info","detail":{"text":"` + text + `"}}`)
	publish(t, r, m, message(p+"small", "2"))
	got := in.await(t, r.Slack, m.ID)[m.ID]
	var have map[string]any
	if err := json.Unmarshal(got.Detail, &have); err != nil {
		t.Fatal(err)
	}
	ref, _ := have["detail_ref"].(string)
	delete(have, "detail_ref")
	want := map[string]any{"id": m.ID, "type": m.Type, "subject": map[string]any{"kind": "node", "id": "nod_1", "name": "gpu-1"}, "cluster": "clu_1", "cluster_id": "clu_1",
		"stream": "clu_1", "sequence": 7., "operation_id": nil, "severity": "info", "detail": map[string]any{}, "detail_omitted": true, "detail_bytes": float64(len(m.Detail))}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("reference (-want +got):\n%s", diff)
	}
	u, err := url.Parse(ref)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	since, err1 := time.Parse(time.RFC3339Nano, q.Get("since"))
	until, err2 := time.Parse(time.RFC3339Nano, q.Get("until"))
	if err := errors.Join(err1, err2); err != nil || !since.Equal(m.Time) || !until.After(since) {
		t.Errorf("detail_ref %s: %v", ref, err)
	}
	if u.Path != "/v1/events" || q.Get("type") != m.Type || q.Get("cluster") != "clu_1" || q.Get("subject") != "nod_1" {
		t.Errorf("detail_ref %s", ref)
	}
}

// testTooLarge: what is over the limit even by reference is refused.
func testTooLarge(t *testing.T, r Rig) {
	err := r.Publisher.Publish(t.Context(), tooLarge(prefix()+"large"))
	if !errors.Is(err, bus.ErrTooLarge) || !strings.Contains(err.Error(), strconv.Itoa(bus.MaxDetailBytes)) {
		t.Errorf("%v, want ErrTooLarge with the limit", err)
	}
}

// tooLarge makes a message whose subject alone is over the limit.
func tooLarge(eventType string) bus.Message {
	m := message(eventType, "1")
	m.Detail = json.RawMessage(`{"id":` + strconv.Quote(m.ID) + `,"subject":` + strconv.Quote(strings.Repeat("s", bus.MaxDetailBytes)) + `}`)
	return m
}

func testInvalid(t *testing.T, r Rig) {
	for name, spoil := range map[string]func(*bus.Message){
		"no id":      func(m *bus.Message) { m.ID = "" },
		"odd type":   func(m *bus.Message) { m.Type = "a\xff" },
		"no type":    func(m *bus.Message) { m.Type = "" },
		"long type":  func(m *bus.Message) { m.Type = strings.Repeat("t", bus.MaxTypeBytes+1) },
		"no time":    func(m *bus.Message) { m.Time = time.Time{} },
		"no detail":  func(m *bus.Message) { m.Detail = nil },
		"not json":   func(m *bus.Message) { m.Detail = json.RawMessage(`{"a":`) },
		"no object":  func(m *bus.Message) { m.Detail = json.RawMessage(`[1]`) },
		"two values": func(m *bus.Message) { m.Detail = json.RawMessage(`{}{}`) },
	} {
		m := message(prefix()+"bad", "1")
		spoil(&m)
		if err := r.Publisher.Publish(t.Context(), m); !errors.Is(err, bus.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
}

// testPartial: bad messages hold none of the others back and are told by index.
func testPartial(t *testing.T, r Rig) {
	p, in := prefix(), newInbox()
	r.Subscribe(t, bus.Pattern{Type: p + "*"}, in.put)
	var ms []bus.Message
	for i := range 23 {
		ms = append(ms, message(p+"n", strconv.Itoa(i)))
	}
	ms[3] = tooLarge(p + "n")
	ms[17].Detail = json.RawMessage(`nope`)
	err := r.Publisher.Publish(t.Context(), ms...)
	partial, ok := errors.AsType[*bus.PartialError](err)
	if !ok || !slices.Equal(partial.Failed, []int{3, 17}) || !errors.Is(err, bus.ErrTooLarge) {
		t.Fatalf("%v (%+v), want a PartialError of 3 and 17", err, partial)
	}
	var ids []string
	for i, m := range ms {
		if i != 3 && i != 17 {
			ids = append(ids, m.ID)
		}
	}
	got := in.await(t, r.Slack, ids...)
	if len(got) != len(ids) {
		t.Errorf("%d messages delivered, want %d", len(got), len(ids))
	}
}

// testBrokenUTF8: it arrives as a JSON reader would have read it.
func testBrokenUTF8(t *testing.T, r Rig) {
	p, in := prefix(), newInbox()
	r.Subscribe(t, bus.Pattern{Type: p + "*"}, in.put)
	m := message(p+"one", "1")
	m.Detail = json.RawMessage(`{"id":` + strconv.Quote(m.ID) + `,"text":"` + "a\xffb" + `"}`)
	publish(t, r, m)
	got := in.await(t, r.Slack, m.ID)[m.ID]
	var have struct{ Text string }
	if err := json.Unmarshal(got.Detail, &have); err != nil || have.Text != "a\uFFFDb" || !utf8.Valid(got.Detail) {
		t.Errorf("delivered %q (%v)", got.Detail, err)
	}
}

func testNothing(t *testing.T, r Rig) {
	publish(t, r)
	publish(t, r, message(prefix()+"nobody.listens", "1"))
}

func testRetriesHandler(t *testing.T, r Rig) {
	if !r.Retries {
		t.Skip("the engine's own rules do not call a handler again") // declared by the rig, not missing
	}
	p, in := prefix(), newInbox()
	var mu sync.Mutex
	calls := 0
	r.Subscribe(t, bus.Pattern{Type: p + "*"}, func(ctx context.Context, m bus.Message) error {
		mu.Lock()
		defer mu.Unlock()
		if calls++; calls <= 2 {
			return errors.New("not yet")
		}
		return in.put(ctx, m)
	})
	m := message(p+"one", "1")
	publish(t, r, m)
	in.await(t, r.Slack, m.ID)
}
