package sqs

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/queue"
)

var lost = queue.Message{ID: "m1", Receipt: "r1", Body: []byte("what?"), Receives: 2}

// TestBuryInOrder: hold it, send it, delete it.
func TestBuryInOrder(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	if err := f.engine().Bury(t.Context(), "q", lost, "unknown\x00 kind \xff"); err != nil {
		t.Fatal(err)
	}
	var order []string
	for _, c := range f.made("") {
		if c.action != "GetQueueUrl" {
			order = append(order, c.action)
		}
	}
	if diff := cmp.Diff([]string{"ChangeMessageVisibility", "SendMessage", "DeleteMessageBatch"}, order); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	text := func(s string) map[string]any { return map[string]any{"DataType": "String", "StringValue": s} }
	want := map[string]any{"QueueUrl": fakeURL + "p-dead", "MessageBody": "what?", "MessageAttributes": map[string]any{
		attrQueue: text("q"), attrReason: text("unknown\uFFFD kind \uFFFD"), attrID: text("m1")}}
	if diff := cmp.Diff(want, f.made("SendMessage")[0].in); diff != "" {
		t.Errorf("letter (-want +got):\n%s", diff)
	}
}

func TestBuryFailures(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		action, code string
		want         error
		sent         int
		deleted      int
	}{
		"gone":        {"ChangeMessageVisibility", "MessageNotInflight", queue.ErrStaleReceipt, 0, 0},
		"not sent":    {"SendMessage", "InternalFailure", queue.ErrUnavailable, 1, 0},
		"not deleted": {"DeleteMessageBatch", "InternalFailure", queue.ErrUnavailable, 1, 1},
	} {
		f := newFake(t)
		f.answer[tt.action] = refuse(400, tt.code, "")
		err := f.engine().Bury(t.Context(), "q", lost, "why")
		if !errors.Is(err, tt.want) || len(f.made("SendMessage")) != tt.sent || len(f.made("DeleteMessageBatch")) != tt.deleted {
			t.Errorf("%s: %v; sent %d times, deleted %d times", name, err, len(f.made("SendMessage")), len(f.made("DeleteMessageBatch")))
		}
	}
}

// TestBuryWithoutReason: an attribute must not be empty, so it is left out.
func TestBuryWithoutReason(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	long := lost
	long.ID = ""
	if err := f.engine().Bury(t.Context(), "q", long, ""); err != nil {
		t.Fatal(err)
	}
	if got := f.made("SendMessage")[0].in["MessageAttributes"].(map[string]any); len(got) != 1 || got[attrQueue] == nil {
		t.Errorf("attributes %v", got)
	}
	if got := text(strings.Repeat("ä", maxReason), maxReason); got != strings.Repeat("ä", maxReason/2) {
		t.Errorf("a long reason became one of %d bytes", len(got))
	}
	if got := text("x"+strings.Repeat("ä", maxReason), maxReason); got != "x"+strings.Repeat("ä", maxReason/2-1) {
		t.Errorf("a long reason was cut within a character: %d bytes", len(got))
	}
}

// deadQueue has a fake answer receives from the queue of dead letters with the
// batches in turn, and then with nothing.
func deadQueue(f *fake, batches ...[]any) {
	n := 0
	f.answer["ReceiveMessage"] = func(map[string]any) answer {
		if n++; n <= len(batches) {
			return answer{body: map[string]any{"Messages": batches[n-1]}}
		}
		return answer{body: map[string]any{}}
	}
}

var sentAt = map[string]string{"SentTimestamp": "1767225600123"}

// deleted lists the receipts of the deletes so far.
func deleted(f *fake) []string {
	var out []string
	for _, c := range f.made("DeleteMessageBatch") {
		for _, e := range entriesOf(c.in) {
			out = append(out, e["ReceiptHandle"].(string))
		}
	}
	return out
}

func TestTakeDead(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	own := map[string]string{attrQueue: "cluster-east", attrReason: "unknown kind", attrID: "m1"}
	moved := map[string]string{"SentTimestamp": "1767225600123", "DeadLetterQueueSourceArn": "arn:aws:sqs:us-east-1:123456789012:p-plane"}
	elsewhere := map[string]string{"SentTimestamp": "1767225600123", "DeadLetterQueueSourceArn": "arn:aws:sqs:us-east-1:123456789012:other-queue"}
	deadQueue(f, []any{message("d1", "a", sentAt, own), message("d2", "b", moved, nil), message("d3", "c", elsewhere, nil)},
		[]any{message("d4", "d", sentAt, nil), message("d5", "a", sentAt, own)})
	e := f.engine()
	letters, err := e.TakeDead(t.Context(), 50)
	if err != nil {
		t.Fatal(err)
	}
	at := time.UnixMilli(1767225600123)
	want := []queue.DeadLetter{
		{ID: "m1", Queue: "cluster-east", Body: []byte("a"), Reason: "unknown kind", At: at},
		{ID: "d2", Queue: "plane", Body: []byte("b"), Reason: ReasonMaxReceives, At: at},
		{ID: "d3", Queue: "other-queue", Body: []byte("c"), Reason: ReasonMaxReceives, At: at},
		{ID: "d4", Queue: Dead, Body: []byte("d"), Reason: ReasonForeign, At: at},
	}
	if diff := cmp.Diff(want, letters); diff != "" {
		t.Errorf("letters (-want +got):\n%s", diff)
	}
	// The message that was buried twice goes as a whole; what this engine never
	// handed over is left.
	if err := e.DropDead(t.Context(), "m1", "d4", "unknown"); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"r-d1", "r-d5", "r-d4"}, deleted(f)); diff != "" {
		t.Errorf("deleted (-want +got):\n%s", diff)
	}
	if err := e.DropDead(t.Context(), "m1"); err != nil || len(deleted(f)) != 3 {
		t.Errorf("dropped twice: %v, %v", err, deleted(f))
	}
}

// TestTakeDeadInPart: letters in hand are handed over although the next receive
// fails: everybody else is kept from them by now.
func TestTakeDeadInPart(t *testing.T) {
	t.Parallel()
	f, n := newFake(t), 0
	f.answer["ReceiveMessage"] = func(in map[string]any) answer {
		if n++; n == 1 {
			return answer{body: map[string]any{"Messages": []any{message("d1", "a", sentAt, nil)}}}
		}
		return answer{status: 500, code: "InternalFailure"}
	}
	e := f.engine()
	if letters, err := e.TakeDead(t.Context(), 20); err != nil || len(letters) != 1 {
		t.Errorf("%d letters, %v; want the first one", len(letters), err)
	}
	if _, err := e.TakeDead(t.Context(), 20); !errors.Is(err, queue.ErrUnavailable) {
		t.Errorf("none in hand: %v", err)
	}
}

// TestDropDeadLate: a receipt is good for as long as the letter is hidden; then
// it comes again.
func TestDropDeadLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		deadQueue(f, []any{message("d1", "a", sentAt, nil)}, nil, []any{message("d2", "a", sentAt, nil)})
		e := f.engine()
		if _, err := e.TakeDead(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		time.Sleep(deadHold)
		if _, err := e.TakeDead(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		if err := e.DropDead(t.Context(), "d1"); err != nil || len(deleted(f)) > 0 || len(e.dead) > 0 {
			t.Errorf("%v; deleted %v, keeps %d", err, deleted(f), len(e.dead))
		}
	})
}
