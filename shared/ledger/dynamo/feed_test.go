package dynamo

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams"
	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/ledger"
)

// shard is one of a fake stream: its records are versions of the item p/s, at
// the sequence number of their place.
type shard struct {
	parent  string
	closed  bool
	trimmed int // so many of the first records are gone
	records []string
}

// stream is a fake of DynamoDB Streams with splits, trimming and shards that
// vanish, which the local engine does not have.
type stream struct {
	mu     sync.Mutex
	label  string
	order  []string
	shards map[string]*shard
}

func (s *stream) Do(r *http.Request) (*http.Response, error) {
	fake := &script{answers: []answer{s.answer}}
	return fake.Do(r)
}

func (s *stream) answer(r request) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	get := func(name string) string { v, _ := r.Body[name].(string); return v }
	switch r.Op {
	case "DescribeTable":
		return respond(200, fmt.Sprintf(`{"Table":{"LatestStreamArn":"arn:%s","LatestStreamLabel":%q}}`, s.label, s.label))
	case "DescribeStream": // one shard a page
		at := 0
		for i, id := range s.order {
			if id == get("ExclusiveStartShardId") {
				at = i + 1
			}
		}
		id, last := s.order[at], ""
		if at < len(s.order)-1 {
			last = fmt.Sprintf(`,"LastEvaluatedShardId":%q`, id)
		}
		parent := ""
		if p := s.shards[id].parent; p != "" {
			parent = fmt.Sprintf(`,"ParentShardId":%q`, p)
		}
		return respond(200, fmt.Sprintf(`{"StreamDescription":{"Shards":[{"ShardId":%q%s}]%s}}`, id, parent, last))
	case "GetShardIterator":
		sh := s.shards[get("ShardId")]
		at := sh.trimmed
		if get("ShardIteratorType") == "AFTER_SEQUENCE_NUMBER" {
			n, err := strconv.Atoi(get("SequenceNumber"))
			if err != nil {
				return nil, err
			}
			at = n + 1
		}
		if at < sh.trimmed {
			return fails("TrimmedDataAccessException", "")(r)
		}
		return respond(200, fmt.Sprintf(`{"ShardIterator":"%s|%d"}`, get("ShardId"), at))
	}
	id, place, _ := strings.Cut(get("ShardIterator"), "|")
	at, err := strconv.Atoi(place)
	if err != nil {
		return nil, err
	}
	sh := s.shards[id]
	limit := int(r.Body["Limit"].(float64))
	var out []string
	for ; at < len(sh.records) && len(out) < limit; at++ {
		out = append(out, fmt.Sprintf(`{"eventID":"%s-%d","eventName":"MODIFY","dynamodb":{"SequenceNumber":"%d","Keys":{"pk":{"S":"p"},"sk":{"S":"s"}},"NewImage":{%s}}}`, id, at, at, sh.records[at]))
	}
	next := fmt.Sprintf(`,"NextShardIterator":"%s|%d"`, id, at)
	if sh.closed && at == len(sh.records) {
		next = ""
	}
	return respond(200, `{"Records":[`+strings.Join(out, ",")+`]`+next+`}`)
}

func (s *stream) feed(t *testing.T, now func() time.Time) *Feed {
	t.Helper()
	who := credentials.NewStaticCredentialsProvider("id", "secret", "")
	f, err := NewFeed(FeedOptions{Table: "table", Now: now, Poll: time.Millisecond,
		Client:  dynamodb.New(dynamodb.Options{Region: "us-east-1", Credentials: who, HTTPClient: s, Retryer: aws.NopRetryer{}}),
		Streams: dynamodbstreams.New(dynamodbstreams.Options{Region: "us-east-1", Credentials: who, HTTPClient: s, Retryer: aws.NopRetryer{}})})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func fed(v int) string   { return fmt.Sprintf(`"v":{"N":"%d"},"f":{"N":"1"}`, v) }
func unfed(v int) string { return fmt.Sprintf(`"v":{"N":"%d"}`, v) }

// split is a stream whose first shard was split in two, listed children first.
func split() *stream {
	return &stream{label: "one", order: []string{"child", "root", "other"}, shards: map[string]*shard{
		"root":  {closed: true, parent: "long gone", records: []string{fed(1), unfed(2), fed(3)}},
		"child": {parent: "root", records: []string{fed(4), fed(5)}},
		"other": {parent: "root", records: []string{}},
	}}
}

// TestFeedReadsParentsFirst: an item's records come in the order of its writes
// across a split, whatever the page size, and each position goes on from where
// it was.
func TestFeedReadsParentsFirst(t *testing.T) {
	t.Parallel()
	for limit := 1; limit < 7; limit++ {
		s := split()
		f := s.feed(t, nil)
		var got []int64
		after := ""
		for range 10 {
			changes, next, err := f.Changes(t.Context(), after, limit, 0)
			if err != nil || len(changes) > limit {
				t.Fatalf("limit %d: %d records, %v", limit, len(changes), err)
			}
			for _, c := range changes {
				got = append(got, c.Version)
			}
			after = next
		}
		if d := cmp.Diff([]int64{1, 3, 4, 5}, got); d != "" {
			t.Errorf("limit %d: versions (-want +got):\n%s", limit, d)
		}
		s.mu.Lock()
		s.shards["other"].records = []string{fed(6)}
		s.mu.Unlock()
		if changes, _, err := f.Changes(t.Context(), after, limit, time.Second); err != nil || len(changes) != 1 || changes[0].Version != 6 {
			t.Errorf("limit %d: later got %v, %v", limit, changes, err)
		}
	}
}

// TestFeedPositionExpires: who may have missed records is told.
func TestFeedPositionExpires(t *testing.T) {
	t.Parallel()
	start := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, c := range map[string]struct {
		happens func(*stream)
		later   time.Duration
		want    error
	}{
		"nothing happened":             {func(*stream) {}, time.Hour, nil},
		"a shard read to its end goes": {func(s *stream) { delete(s.shards, "root"); s.order = []string{"child", "other"} }, time.Hour, nil},
		"an unfinished shard goes":     {func(s *stream) { delete(s.shards, "other"); s.order = []string{"child", "root"} }, time.Hour, ledger.ErrPositionExpired},
		"records behind it go":         {func(s *stream) { s.shards["child"].trimmed = 5 }, time.Hour, ledger.ErrPositionExpired},
		"another stream":               {func(s *stream) { s.label = "two" }, time.Hour, ledger.ErrPositionExpired},
		"a day passes":                 {func(*stream) {}, streamKept, ledger.ErrPositionExpired},
	} {
		s := split()
		now := start
		f := s.feed(t, func() time.Time { return now })
		_, at, err := f.Changes(t.Context(), "", 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		c.happens(s)
		now = start.Add(c.later)
		if _, _, err := f.Changes(t.Context(), at, 0, 0); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
		if _, _, err := f.Changes(t.Context(), "", 0, 0); err != nil {
			t.Errorf("%s: from the oldest: %v", name, err)
		}
	}
}

func TestFeedRefuses(t *testing.T) {
	t.Parallel()
	s := split()
	f := s.feed(t, nil)
	for _, after := range []string{"!", "e30", "bnVsbA", "W10"} {
		if _, _, err := f.Changes(t.Context(), after, 1, 0); !errors.Is(err, ledger.ErrInvalid) {
			t.Errorf("position %q: got %v, want ErrInvalid", after, err)
		}
	}
	if _, _, err := f.Changes(t.Context(), "", ledger.MaxPage+1, 0); !errors.Is(err, ledger.ErrInvalid) {
		t.Errorf("big limit: got %v, want ErrInvalid", err)
	}
	s.shards["root"].records[1] = `"x":{"N":"1"}`
	var bad *RecordError
	if _, _, err := f.Changes(t.Context(), "", 0, 0); !errors.As(err, &bad) || bad.Sequence != "1" {
		t.Errorf("a record without a version: got %v, want a *RecordError", err)
	}
}
