package bus_test

import (
	"encoding/json"
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/opsplane/opsplane/shared/bus"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/operation"
)

var at = time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC)

// published is an event as the relay puts it on the bus.
func published(t *testing.T, cluster string, detail int) (event.Event, bus.Message) {
	t.Helper()
	e, err := event.New("node.joined", cluster, event.Subject{Kind: "node", ID: "nod_1", Name: "gpu & co"}, at, operation.Actor{}, map[string]string{"text": strings.Repeat("x", detail)}, "1")
	if err != nil {
		t.Fatal(err)
	}
	e.Sequence, e.OperationID, e.CorrelationID = 42, "op_1", "cor"
	b, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	return e, bus.Message{ID: e.ID, Type: e.Type, Time: e.Timestamp, Detail: b}
}

// TestReferenceIsAnEvent: who reads events reads a reference as the event
// without its detail.
func TestReferenceIsAnEvent(t *testing.T) {
	t.Parallel()
	for cluster, wantRef := range map[string]url.Values{
		"clu_1": {"type": {"node.joined"}, "subject": {"nod_1"}, "cluster": {"clu_1"}, "since": {"2026-03-01T12:00:00.123456789Z"}, "until": {"2026-03-01T12:00:00.12345679Z"}},
		"":      {"type": {"node.joined"}, "subject": {"nod_1"}, "since": {"2026-03-01T12:00:00.123456789Z"}, "until": {"2026-03-01T12:00:00.12345679Z"}},
	} {
		want, m := published(t, cluster, bus.MaxDetailBytes)
		fit, err := m.Fit()
		if err != nil {
			t.Fatal(err)
		}
		var got event.Event
		var extra struct {
			Omitted bool   `json:"detail_omitted"`
			Bytes   int    `json:"detail_bytes"`
			Ref     string `json:"detail_ref"`
		}
		if err := errors.Join(json.Unmarshal(fit.Detail, &got), json.Unmarshal(fit.Detail, &extra)); err != nil {
			t.Fatal(err)
		}
		want.Detail = json.RawMessage("{}")
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("cluster %q: event (-want +got):\n%s", cluster, diff)
		}
		ref, err := url.Parse(extra.Ref)
		if err != nil || !extra.Omitted || extra.Bytes != len(m.Detail) || ref.Path != "/v1/events" || ref.IsAbs() {
			t.Errorf("cluster %q: %+v, %v", cluster, extra, err)
		}
		if diff := cmp.Diff(wantRef, ref.Query()); diff != "" {
			t.Errorf("cluster %q: reference (-want +got):\n%s", cluster, diff)
		}
		fit.Detail, m.Detail = nil, nil
		if diff := cmp.Diff(m, fit); diff != "" {
			t.Errorf("cluster %q: message (-want +got):\n%s", cluster, diff)
		}
	}
}

func TestFitLeavesWhatFits(t *testing.T) {
	t.Parallel()
	_, m := published(t, "clu_1", 0)
	pad := bus.MaxDetailBytes - len(m.Detail)
	for extra, large := range map[int]bool{0: false, pad: false, pad + 1: true} {
		_, m := published(t, "clu_1", extra)
		fit, err := m.Fit()
		if err != nil || (string(fit.Detail) != string(m.Detail)) != large {
			t.Errorf("detail of %d bytes became one of %d, %v", len(m.Detail), len(fit.Detail), err)
		}
	}
}

// TestFitAnyObject: whatever object is too large becomes one that is not, with
// the message's own id and type, or is refused.
func TestFitAnyObject(t *testing.T) {
	t.Parallel()
	value := rapid.OneOf(rapid.Just(any(nil)), rapid.Just(any(true)), rapid.Just(any(7.)), rapid.Just(any("text")), rapid.Just(any([]any{1., "a"})),
		rapid.Just(any(map[string]any{"id": "nod_1"})), rapid.Just(any(map[string]any{"id": 7.})), rapid.Just(any(strings.Repeat("s", bus.MaxDetailBytes))))
	rapid.Check(t, func(t *rapid.T) {
		object := map[string]any{"pad": strings.Repeat("p", bus.MaxDetailBytes)}
		for _, name := range []string{"id", "type", "subject", "cluster", "cluster_id", "stream", "sequence", "timestamp", "detail", "detail_omitted", "detail_bytes", "detail_ref", "ID", "other"} {
			if rapid.Bool().Draw(t, name) {
				object[name] = value.Draw(t, name+" value")
			}
		}
		b, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		fit, err := bus.Message{ID: "evt_1", Type: "node.joined", Time: at, Detail: b}.Fit()
		if err != nil {
			if !errors.Is(err, bus.ErrTooLarge) {
				t.Fatalf("%v, want ErrTooLarge", err)
			}
			return
		}
		var got map[string]any
		if err := json.Unmarshal(fit.Detail, &got); err != nil || len(fit.Detail) > bus.MaxDetailBytes || got["id"] != "evt_1" || got["type"] != "node.joined" || got["detail_omitted"] != true {
			t.Fatalf("%v: %.300s", err, fit.Detail)
		}
		for _, name := range []string{"subject", "cluster", "cluster_id", "stream", "sequence", "timestamp"} {
			want, there := object[name]
			if have, ok := got[name]; ok != there || !cmp.Equal(want, have) {
				t.Fatalf("%s is %v (%t), want %v (%t)", name, have, ok, want, there)
			}
		}
	})
}

func TestFitMendsUTF8(t *testing.T) {
	t.Parallel()
	m := bus.Message{ID: "evt_1", Type: "node.joined", Time: at, Detail: json.RawMessage("{\"text\":\"a\xff\xfeb\"}")}
	fit, err := m.Fit()
	var want, got struct{ Text string }
	if err := errors.Join(err, json.Unmarshal(m.Detail, &want), json.Unmarshal(fit.Detail, &got)); err != nil {
		t.Fatal(err)
	}
	if got != want || !utf8.Valid(fit.Detail) {
		t.Errorf("%q became %q, want %q", m.Detail, got, want)
	}
}
