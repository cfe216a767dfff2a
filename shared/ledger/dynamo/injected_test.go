//go:build awstest

package dynamo

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/opsplane/opsplane/shared/ledger"
)

// TestMain lets the suite's model run fewer times than rapid's 100: a call here
// takes milliseconds, not microseconds. The flag overrides.
func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "rapid.checks" })
	if !given {
		if err := flag.Set("rapid.checks", "25"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// unreliable is the way to a real engine with faults on it, of writes only.
type unreliable struct {
	next                  aws.HTTPClient
	lost, throttled, torn float64 // how much of the answers, of the requests, and of the connections before a request
	forget                string  // an operation whose next answer is lost, once
	mu                    sync.Mutex
	faults                atomic.Int64
}

func (u *unreliable) Do(r *http.Request) (*http.Response, error) {
	op := r.Header.Get("X-Amz-Target")
	if op != "DynamoDB_20120810.UpdateItem" && op != "DynamoDB_20120810.TransactWriteItems" {
		return u.next.Do(r)
	}
	switch x := rand.Float64(); {
	case x < u.throttled:
		u.faults.Add(1)
		return fails("ProvisionedThroughputExceededException", "")(request{})
	case x < u.throttled+u.torn: // the request never comes there, which the caller cannot know
		u.faults.Add(1)
		return nil, io.ErrUnexpectedEOF
	}
	resp, err := u.next.Do(r)
	if err != nil {
		return resp, err
	}
	u.mu.Lock()
	drop := rand.Float64() < u.lost || u.forget != "" && op == "DynamoDB_20120810."+u.forget
	if drop {
		u.forget = ""
	}
	u.mu.Unlock()
	if drop {
		u.faults.Add(1)
		_, _ = io.Copy(io.Discard, resp.Body) // as far as it comes: it is lost anyway
		return nil, errors.Join(io.ErrUnexpectedEOF, resp.Body.Close())
	}
	return resp, nil
}

// over is an engine on the rig behind a client of its own.
func (r *rig) over(t *testing.T, c aws.HTTPClient) *DB {
	t.Helper()
	return r.open(t, Options{Client: dynamodb.NewFromConfig(r.config, func(o *dynamodb.Options) { o.HTTPClient = c })})
}

// TestIncrementsUnderFaults: with a tenth of the answers lost and a tenth of the
// requests throttled, a counter is what was acknowledged, no more, no less, but
// for what was said to be unknown.
func TestIncrementsUnderFaults(t *testing.T) {
	t.Parallel()
	for name, extra := range map[string]int{"single": 0, "transaction": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			u := &unreliable{next: r.config.HTTPClient, lost: 0.1, throttled: 0.1, torn: 0.05}
			db := r.over(t, u)
			k := ledger.Key{PK: "p", SK: "n"}
			var acked, unknown atomic.Int64
			var wg sync.WaitGroup
			for g := range 4 {
				wg.Go(func() {
					for i := range 25 {
						for { // until it is acknowledged
							it, err := db.Get(t.Context(), k)
							if err != nil && !errors.Is(err, ledger.ErrNotFound) {
								t.Error(err)
								return
							}
							n, _ := strconv.Atoi(string(it.Data)) // none is 0
							writes := []ledger.Write{{Item: ledger.Item{Key: k, Data: strconv.AppendInt(nil, int64(n+1), 10)}, Expect: it.Version}}
							for x := range extra {
								writes = append(writes, ledger.Write{Item: ledger.Item{Key: ledger.Key{PK: "log", SK: fmt.Sprint(g, i, x)}}})
							}
							err = db.Commit(t.Context(), writes...)
							if err == nil {
								acked.Add(1)
								break
							}
							if errors.Is(err, ledger.ErrUnknown) {
								unknown.Add(1)
							} else if !errors.Is(err, ledger.ErrConflict) {
								t.Error(err)
								return
							}
						}
					}
				})
			}
			wg.Wait()
			it, err := db.Get(t.Context(), k)
			if err != nil {
				t.Fatal(err)
			}
			s := db.Stats()
			t.Logf("%d increments, %d faults, %d recovered, %d conflicts, %d unknown", it.Version, u.faults.Load(), s.Recovered, s.Conflicts, unknown.Load())
			if data := strconv.FormatInt(it.Version, 10); string(it.Data) != data || it.Version < acked.Load() || it.Version > acked.Load()+unknown.Load() {
				t.Errorf("counter %s at version %d: %d were acknowledged, %d unknown", it.Data, it.Version, acked.Load(), unknown.Load())
			}
			// A single put can be written over twice before its second try; then
			// nobody can tell. A transaction has its token.
			if n := unknown.Load(); extra > 0 && n > 0 || n > acked.Load()/10 {
				t.Errorf("%d of %d have an unknown outcome", n, acked.Load())
			}
			if u.faults.Load() < 10 {
				t.Errorf("only %d faults: proves nothing", u.faults.Load())
			}
		})
	}
}

// TestLostAnswers: each kind of commit whose answer is lost is applied once, and
// known to be.
func TestLostAnswers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	u := &unreliable{next: r.config.HTTPClient}
	db := r.over(t, u)
	version := func(pk string) int64 {
		t.Helper()
		it, err := db.Get(t.Context(), ledger.Key{PK: pk, SK: "s"})
		if err != nil && !errors.Is(err, ledger.ErrNotFound) {
			t.Fatal(err)
		}
		return it.Version
	}
	for _, c := range []struct {
		name, op string
		writes   []ledger.Write
		want     int64
	}{
		{"create", "UpdateItem", []ledger.Write{write(ledger.Put, "a", "s", 0)}, 1},
		{"replace", "UpdateItem", []ledger.Write{write(ledger.Put, "a", "s", 1)}, 2},
		{"unconditional", "UpdateItem", []ledger.Write{write(ledger.Put, "a", "s", ledger.AnyVersion)}, 3},
		{"several", "TransactWriteItems", []ledger.Write{write(ledger.Put, "a", "s", 3), write(ledger.Put, "b", "s", ledger.AnyVersion)}, 4},
		{"delete", "TransactWriteItems", []ledger.Write{write(ledger.Delete, "a", "s", 4)}, 0},
		{"create again", "UpdateItem", []ledger.Write{write(ledger.Put, "a", "s", 0)}, 1},
		{"unconditional delete", "TransactWriteItems", []ledger.Write{write(ledger.Delete, "a", "s", ledger.AnyVersion)}, 0},
	} {
		u.forget = c.op
		if err := db.Commit(t.Context(), c.writes...); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if u.forget != "" {
			t.Errorf("%s: no answer of %s was lost", c.name, c.op)
		}
		if got := version("a"); got != c.want {
			t.Errorf("%s: version %d, want %d", c.name, got, c.want)
		}
	}
	if got := version("b"); got != 1 {
		t.Errorf("the unconditional put of a transaction was counted %d times", got)
	}
	// Another deletes in the meantime: one of the two has the delete.
	first := ledger.Write{Item: ledger.Item{Key: ledger.Key{PK: "c", SK: "s"}}}
	if err := db.Commit(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	won := atomic.Int64{}
	var wg sync.WaitGroup
	u.lost = 0.5
	for range 4 {
		wg.Go(func() {
			switch err := db.Commit(t.Context(), write(ledger.Delete, "c", "s", 1)); {
			case err == nil:
				won.Add(1)
			case !errors.Is(err, ledger.ErrConflict):
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 {
		t.Errorf("%d deletes of one version were acknowledged", won.Load())
	}
}

// TestFeedMark: a write that does not ask for the feed takes the mark of the
// one before away, by which the event source mapping filters.
func TestFeedMark(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	db := r.open(t, Options{})
	marked := func() bool {
		t.Helper()
		out, err := r.client.GetItem(t.Context(), &dynamodb.GetItemInput{TableName: &r.table, Key: keyAttributes(ledger.Key{PK: "p", SK: "s"}), ConsistentRead: aws.Bool(true)})
		if err != nil {
			t.Fatal(err)
		}
		_, ok := out.Item[attrFeed]
		return ok
	}
	for i, feed := range []bool{true, false, true, true, false} {
		w := write(ledger.Put, "p", "s", int64(i))
		w.Feed = feed
		if err := db.Commit(t.Context(), w); err != nil {
			t.Fatal(err)
		}
		if marked() != feed {
			t.Errorf("write %d: marked %t, want %t", i, marked(), feed)
		}
	}
}

// BenchmarkCommit is for the documentation: what the local engine takes, not AWS.
func BenchmarkCommit(b *testing.B) {
	config, err := localConfig(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	client := dynamodb.NewFromConfig(config)
	table := "bench-" + strconv.FormatInt(time.Now().UnixNano(), 36)
	if err := Create(b.Context(), client, table); err != nil {
		b.Fatal(err)
	}
	defer func() {
		if _, err := client.DeleteTable(b.Context(), &dynamodb.DeleteTableInput{TableName: &table}); err != nil {
			b.Error(err)
		}
	}()
	db, err := New(Options{Client: client, Table: table})
	if err != nil {
		b.Fatal(err)
	}
	var next atomic.Int64
	for _, n := range []int{1, 4} {
		b.Run(fmt.Sprintf("writes=%d", n), func(b *testing.B) {
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					var ws []ledger.Write
					for i := range n {
						ws = append(ws, write(ledger.Put, fmt.Sprint(n, "-", next.Add(1)), fmt.Sprint(i), 0))
					}
					if err := db.Commit(b.Context(), ws...); err != nil {
						b.Error(err)
						return
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "commits/s")
		})
	}
}
