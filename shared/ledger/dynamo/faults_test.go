package dynamo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/ledger"
)

// met answers that a condition failed on an item with this version and these
// names; %s in them is the name of the request.
func met(version int, w, b string) answer {
	return func(r request) (*http.Response, error) {
		item := ""
		if version > 0 {
			item = fmt.Sprintf(`,"Item":{"pk":{"S":"p"},"sk":{"S":"s"},"v":{"N":"%d"},"w":{"B":%q},"b":{"B":%q}}`,
				version, strings.ReplaceAll(w, "%s", r.name()), strings.ReplaceAll(b, "%s", r.name()))
		}
		return fails("ConditionalCheckFailedException", item)(r)
	}
}

// earlier is met with the request's name as the last but two.
func earlier(version int) answer {
	return func(r request) (*http.Response, error) {
		return fails("ConditionalCheckFailedException", fmt.Sprintf(`,"Item":{"pk":{"S":"p"},"sk":{"S":"s"},"v":{"N":"%d"},"w":{"B":%q},"b":{"B":%q},"c":{"B":%q}}`,
			version, stranger, stranger, r.name()))(r)
	}
}

const stranger = "c3RyYW5nZXI="

// TestLostAnswerOfPut: what a failed condition means when the answer before it
// was lost.
func TestLostAnswerOfPut(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		expect int64
		then   answer
		want   error
	}{
		"it had not been applied":             {3, fine, nil},
		"it had been applied":                 {3, met(4, "%s", stranger), nil},
		"applied, then written by another":    {3, met(5, stranger, "%s"), nil},
		"applied, then written by two":        {3, earlier(6), nil},
		"applied and revived by another":      {3, met(1, stranger, "%s"), nil},
		"another was first":                   {3, met(4, stranger, stranger), ledger.ErrConflict},
		"two others were first":               {3, met(5, stranger, stranger), ledger.ErrConflict},
		"three others were first":             {3, met(6, stranger, stranger), ledger.ErrConflict},
		"many have written since":             {3, met(7, stranger, stranger), ledger.ErrUnknown},
		"it is gone":                          {3, met(0, "", ""), ledger.ErrUnknown},
		"created":                             {0, met(1, "%s", "AA=="), nil},
		"created by another":                  {0, met(1, stranger, "AA=="), ledger.ErrConflict},
		"unconditional, had been applied":     {ledger.AnyVersion, met(9, "%s", stranger), nil},
		"unconditional, then by another":      {ledger.AnyVersion, met(9, stranger, "%s"), nil},
		"unconditional, had not been":         {ledger.AnyVersion, fine, nil},
		"it is a limit, but in doubt":         {3, fails("ValidationException", ""), ledger.ErrUnknown},
		"no right any more, and in doubt":     {3, fails("AccessDeniedException", ""), ledger.ErrUnknown},
		"throttled from then on":              {3, fails("ProvisionedThroughputExceededException", ""), ledger.ErrUnknown},
		"the network stays away from then on": {3, unreachable, ledger.ErrUnknown},
	} {
		for how, first := range map[string]answer{"lost": lost, "broken": broken, "500": internal} {
			t.Run(name+"/"+how, func(t *testing.T) {
				t.Parallel()
				db, s := scripted(t, first, c.then)
				err := db.Commit(t.Context(), write(ledger.Put, "p", "s", c.expect))
				if !errors.Is(err, c.want) {
					t.Fatalf("got %v, want %v", err, c.want)
				}
				if c.want == ledger.ErrUnknown && (errors.Is(err, ledger.ErrUnavailable) || errors.Is(err, ledger.ErrConflict)) {
					t.Errorf("%v also says that nothing was written", err)
				}
				sent := s.sent()
				for _, r := range sent {
					if d := cmp.Diff(sent[0], r); d != "" || r.Op != "UpdateItem" {
						t.Errorf("the retry is not the same request (-first +retry):\n%s", d)
					}
				}
			})
		}
	}
}

// TestConflictWithoutDoubt: when every answer came, a conflict is one whatever
// the item looks like.
func TestConflictWithoutDoubt(t *testing.T) {
	t.Parallel()
	for _, then := range []answer{met(9, stranger, stranger), met(0, "", "")} {
		db, s := scripted(t, fails("ThrottlingException", ""), fails("TransactionConflictException", ""), unreachable, then)
		if err := db.Commit(t.Context(), write(ledger.Put, "p", "s", 3)); !errors.Is(err, ledger.ErrConflict) {
			t.Errorf("got %v, want ErrConflict", err)
		}
		if n := len(s.sent()); n != 4 {
			t.Errorf("%d requests, want 4", n)
		}
	}
}

func unreachable(request) (*http.Response, error) {
	return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
}

// TestTransactionKeepsItsToken: DynamoDB tells a repeated transaction from a
// new one by its token, and takes a token for one content only.
func TestTransactionKeepsItsToken(t *testing.T) {
	t.Parallel()
	for name, writes := range map[string][]ledger.Write{
		"several":       {write(ledger.Put, "p", "1", 0), write(ledger.Put, "p", "2", ledger.AnyVersion), write(ledger.Check, "q", "c", 3)},
		"single delete": {write(ledger.Delete, "p", "1", 2)},
		"any delete":    {write(ledger.Delete, "p", "1", ledger.AnyVersion)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			trouble := []answer{lost, internal, broken, fails("TransactionInProgressException", ""), fails("ThrottlingException", ""),
				cancelled("None", "TransactionConflict", "None"), cancelled("ThrottlingError"), unreachable}
			db, s := scripted(t, append(trouble, fine)...)
			if err := db.Commit(t.Context(), writes...); err != nil {
				t.Fatal(err)
			}
			sent := s.sent()
			if len(sent) != len(trouble)+1 {
				t.Fatalf("%d requests, want %d", len(sent), len(trouble)+1)
			}
			for _, r := range sent {
				if d := cmp.Diff(sent[0], r); d != "" || r.Op != "TransactWriteItems" || r.Body["ClientRequestToken"] == "" {
					t.Errorf("the retry is not the same request (-first +retry):\n%s", d)
				}
			}
			if token := sent[0].Body["ClientRequestToken"].(string); len(token) < 16 || len(token) > 36 {
				t.Errorf("token %q: DynamoDB takes 1 to 36 characters", token)
			}
		})
	}
}

// TestCancellationReasons: contention is tried again, a failed condition is
// not, whatever comes with it.
func TestCancellationReasons(t *testing.T) {
	t.Parallel()
	writes := []ledger.Write{write(ledger.Put, "p", "1", 1), write(ledger.Put, "p", "2", 1), write(ledger.Check, "p", "3", 1)}
	for name, c := range map[string]struct {
		reasons  []string
		want     error
		keys     string
		requests int // 0: more than one
	}{
		"all conditions":             {[]string{"ConditionalCheckFailed", "ConditionalCheckFailed", "ConditionalCheckFailed"}, ledger.ErrConflict, "p/1 p/2 p/3", 1},
		"conditions of two":          {[]string{"ConditionalCheckFailed", "None", "ConditionalCheckFailed"}, ledger.ErrConflict, "p/1 p/3", 1},
		"condition and contention":   {[]string{"TransactionConflict", "ConditionalCheckFailed", "None"}, ledger.ErrConflict, "p/2", 1},
		"condition and throttling":   {[]string{"ThrottlingError", "ConditionalCheckFailed", "ProvisionedThroughputExceeded"}, ledger.ErrConflict, "p/2", 1},
		"condition and limit":        {[]string{"ItemCollectionSizeLimitExceeded", "None", "ConditionalCheckFailed"}, ledger.ErrConflict, "p/3", 1},
		"limit":                      {[]string{"None", "ItemCollectionSizeLimitExceeded", "None"}, ledger.ErrInvalid, "", 1},
		"too large":                  {[]string{"None", "ValidationError", "TransactionConflict"}, ledger.ErrInvalid, "", 1},
		"contention for good":        {[]string{"TransactionConflict", "None", "TransactionConflict"}, ledger.ErrUnavailable, "", 0},
		"throttling for good":        {[]string{"None", "ThrottlingError", "None"}, ledger.ErrUnavailable, "", 0},
		"both for good":              {[]string{"TransactionConflict", "ProvisionedThroughputExceeded", "None"}, ledger.ErrUnavailable, "", 0},
		"a code that came since":     {[]string{"None", "SomethingNew", "None"}, ledger.ErrUnavailable, "", 0},
		"cancelled without a reason": {nil, ledger.ErrUnavailable, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, s := scripted(t, cancelled(c.reasons...))
			err := db.Commit(t.Context(), writes...)
			if !errors.Is(err, c.want) {
				t.Fatalf("got %v, want %v", err, c.want)
			}
			var conflict *ledger.ConflictError
			if errors.As(err, &conflict) {
				var got []string
				for _, k := range conflict.Keys {
					got = append(got, k.String())
				}
				if d := cmp.Diff(c.keys, strings.Join(got, " ")); d != "" {
					t.Errorf("keys (-want +got):\n%s", d)
				}
			}
			if n := len(s.sent()); c.requests > 0 && n != c.requests || n < 1 || c.requests == 0 && n < 2 {
				t.Errorf("%d requests, want %d (0: several)", n, c.requests)
			}
		})
	}
}

// TestFailures: what never wrote says so, and what cannot be helped is not
// tried again.
func TestFailures(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer answer
		want   error
		once   bool
	}{
		"throttled for good":   {fails("ProvisionedThroughputExceededException", ""), ledger.ErrUnavailable, false},
		"account limit":        {fails("RequestLimitExceeded", ""), ledger.ErrUnavailable, false},
		"unreachable for good": {unreachable, ledger.ErrUnavailable, false},
		"in contention":        {fails("TransactionConflictException", ""), ledger.ErrUnavailable, false},
		"no such table":        {fails("ResourceNotFoundException", ""), ledger.ErrUnavailable, true},
		"no right":             {fails("AccessDeniedException", ""), ledger.ErrUnavailable, true},
		"expired credentials":  {fails("ExpiredTokenException", ""), ledger.ErrUnavailable, true},
		"over a limit":         {fails("ValidationException", ""), ledger.ErrInvalid, true},
		"lost for good":        {lost, ledger.ErrUnknown, false},
		"500 for good":         {internal, ledger.ErrUnknown, false},
		"a proxy's error page": {says(http.StatusBadGateway, "<html>"), ledger.ErrUnknown, false},
		"cut answers for good": {broken, ledger.ErrUnknown, false},
	} {
		for kind, writes := range map[string][]ledger.Write{
			"put":         {write(ledger.Put, "p", "s", 0)},
			"transaction": {write(ledger.Put, "p", "s", 0), write(ledger.Delete, "q", "s", 1)},
		} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				t.Parallel()
				db, s := scripted(t, c.answer)
				err := db.Commit(t.Context(), writes...)
				for _, e := range []error{ledger.ErrUnavailable, ledger.ErrInvalid, ledger.ErrUnknown, ledger.ErrConflict} {
					if errors.Is(err, e) != (e == c.want) {
						t.Errorf("got %v, want %v only", err, c.want)
					}
				}
				if n := len(s.sent()); (n == 1) != c.once {
					t.Errorf("%d requests", n)
				}
			})
		}
	}
}

// TestPastTheToken: when a transaction is repeated so late that its token may be
// forgotten, the items tell.
func TestPastTheToken(t *testing.T) {
	t.Parallel()
	db, _ := scripted(t, fine)
	late := time.Now().Add(-2 * tokenWindow)
	ours := func(a *attempt) attributes { return attributes{"v": num(8), "w": binary(a.name)} }
	theirs := func(v int64) func(*attempt) attributes {
		return func(*attempt) attributes { return attributes{"v": num(v), "w": binary([]byte("stranger"))} }
	}
	gone := func(*attempt) attributes { return nil }
	put, del := write(ledger.Put, "p", "1", 3), write(ledger.Delete, "p", "2", 3)
	for name, c := range map[string]struct {
		writes []ledger.Write
		failed map[int]func(*attempt) attributes
		began  time.Time
		want   error
	}{
		"a put carries its name":              {[]ledger.Write{put, del}, map[int]func(*attempt) attributes{0: ours, 1: gone}, late, nil},
		"a put kept its version":              {[]ledger.Write{put, del}, map[int]func(*attempt) attributes{1: gone}, late, ledger.ErrConflict},
		"a put was overtaken":                 {[]ledger.Write{put, del}, map[int]func(*attempt) attributes{0: theirs(4), 1: gone}, late, ledger.ErrConflict},
		"a put was written over and over":     {[]ledger.Write{put, del}, map[int]func(*attempt) attributes{0: theirs(9), 1: gone}, late, ledger.ErrUnknown},
		"only a delete":                       {[]ledger.Write{del}, map[int]func(*attempt) attributes{0: gone}, late, ledger.ErrUnknown},
		"only a delete, within the window":    {[]ledger.Write{del}, map[int]func(*attempt) attributes{0: gone}, time.Now(), ledger.ErrConflict},
		"written over, but within the window": {[]ledger.Write{put, del}, map[int]func(*attempt) attributes{0: theirs(9)}, time.Now(), ledger.ErrConflict},
	} {
		a, err := db.newAttempt(c.writes)
		if err != nil {
			t.Fatal(err)
		}
		out := outcome{verdict: refused, failed: map[int]attributes{}}
		for i, item := range c.failed {
			out.failed[i] = item(a)
		}
		if again, err := db.weigh(t.Context(), a, out, true, c.began); again || !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, %v, want %v", name, again, err, c.want)
		}
	}
}

// TestCancelledCommit: a caller who gives up learns either that nothing was
// written or what came of it.
func TestCancelledCommit(t *testing.T) {
	t.Parallel()
	giveUp := func(cancel context.CancelFunc, then answer) answer {
		return func(r request) (*http.Response, error) { cancel(); return then(r) }
	}
	for name, c := range map[string]struct {
		first, then answer
		want        error
	}{
		"in an attempt that works":     {fine, fine, nil},
		"in an attempt that is lost":   {lost, met(4, "%s", stranger), nil},
		"when it was throttled":        {fails("ThrottlingException", ""), fine, context.Canceled},
		"and no answer comes any more": {lost, lost, ledger.ErrUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			db, s := scripted(t, giveUp(cancel, c.first), c.then)
			err := db.Commit(ctx, write(ledger.Put, "p", "s", 3))
			if !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
			if n := len(s.sent()); errors.Is(c.want, context.Canceled) && n != 1 {
				t.Errorf("%d requests, want 1", n)
			}
		})
	}
	db, s := scripted(t, fine)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := db.Commit(ctx, write(ledger.Put, "p", "s", 3)); !errors.Is(err, context.Canceled) || len(s.sent()) > 0 {
		t.Errorf("cancelled before: got %v after %d requests", err, len(s.sent()))
	}
}

// TestUnprocessedKeys: what a batch leaves over is asked for again, not for ever.
func TestUnprocessedKeys(t *testing.T) {
	t.Parallel()
	item := func(sk string) string {
		return fmt.Sprintf(`{"pk":{"S":"p"},"sk":{"S":%q},"v":{"N":"1"}}`, sk)
	}
	left := func(sk string) string {
		return fmt.Sprintf(`,"UnprocessedKeys":{"table":{"ConsistentRead":true,"Keys":[{"pk":{"S":"p"},"sk":{"S":%q}}]}}`, sk)
	}
	keys := []ledger.Key{{PK: "p", SK: "1"}, {PK: "p", SK: "2"}, {PK: "p", SK: "2"}, {PK: "", SK: "no key"}, {PK: "p", SK: "\xff"}}
	db, s := scripted(t, says(200, `{"Responses":{"table":[`+item("1")+`]}`+left("2")+`}`), says(200, `{"Responses":{"table":[]}`+left("2")+`}`),
		says(200, `{"Responses":{"table":[`+item("2")+`]}}`))
	got, err := db.GetMany(t.Context(), keys)
	if err != nil || len(got) != 2 {
		t.Fatalf("got %v, %v, want both items", got, err)
	}
	sent := s.sent()
	var first struct {
		RequestItems map[string]struct {
			ConsistentRead bool
			Keys           []json.RawMessage
		}
	}
	if err := json.Unmarshal([]byte(sent[0].Raw), &first); err != nil {
		t.Fatal(err)
	}
	if asked := first.RequestItems["table"]; len(sent) != 3 || !asked.ConsistentRead || len(asked.Keys) != 2 {
		t.Errorf("%d requests, the first %s", len(sent), sent[0].Raw)
	}

	db, s = scripted(t, says(200, `{"Responses":{"table":[]}`+left("2")+`}`))
	if _, err := db.GetMany(t.Context(), keys); !errors.Is(err, ledger.ErrUnavailable) {
		t.Errorf("never processed: got %v, want ErrUnavailable", err)
	}
	if n := len(s.sent()); n != maxUnprocessed+1 {
		t.Errorf("%d requests, want %d", n, maxUnprocessed+1)
	}
}

// TestFailedReads: a read that failed never looks like an item that is not
// there.
func TestFailedReads(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer answer
		want   error
	}{
		"lost":             {lost, ledger.ErrUnavailable},
		"cut":              {broken, ledger.ErrUnavailable},
		"500":              {internal, ledger.ErrUnavailable},
		"throttled":        {fails("ProvisionedThroughputExceededException", ""), ledger.ErrUnavailable},
		"no table":         {fails("ResourceNotFoundException", ""), ledger.ErrUnavailable},
		"not a valid call": {fails("ValidationException", ""), ledger.ErrInvalid},
		"no JSON":          {says(200, "<html>"), ledger.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, _ := scripted(t, c.answer)
			k := ledger.Key{PK: "p", SK: "s"}
			_, get := db.Get(t.Context(), k)
			_, many := db.GetMany(t.Context(), []ledger.Key{k})
			_, table := db.Query(t.Context(), ledger.Query{PK: "p"})
			_, index := db.Query(t.Context(), ledger.Query{Index: ledger.List, PK: "p"})
			_, due := db.Due(t.Context(), time.Now(), 0)
			check := db.Commit(t.Context(), write(ledger.Check, "p", "s", 0))
			for call, err := range map[string]error{"get": get, "get many": many, "query": table, "query index": index, "due": due, "check": check} {
				if !errors.Is(err, c.want) || errors.Is(err, ledger.ErrNotFound) {
					t.Errorf("%s: got %v, want %v", call, err, c.want)
				}
			}
		})
	}
	db, _ := scripted(t, func(request) (*http.Response, error) { return nil, io.EOF })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := db.Query(ctx, ledger.Query{PK: "p"}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled query: got %v", err)
	}
}
