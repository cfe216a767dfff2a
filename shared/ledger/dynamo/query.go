package dynamo

import (
	"context"
	"encoding/base64"
	"fmt"
	"hash/fnv"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/opsplane/opsplane/shared/ledger"
)

const (
	// maxPageBytes ends a page early: a page of the largest items would be
	// 350 MB.
	maxPageBytes = 4 << 20
	// maxSortBytes is DynamoDB's limit on a sort key, in conditions too (AWS:
	// "Quotas in Amazon DynamoDB").
	maxSortBytes = 1024
)

// Query implements ledger.Reader: strongly consistent for the table itself; for
// an index as late as DynamoDB updates it, usually well under a second.
func (db *DB) Query(ctx context.Context, q ledger.Query) (ledger.Page, error) {
	if err := q.Validate(); err != nil {
		return ledger.Page{}, err
	}
	after, err := decodeNext(q)
	if err != nil {
		return ledger.Page{}, err
	}
	if err := ctx.Err(); err != nil {
		return ledger.Page{}, err
	}
	if q.Limit == 0 {
		q.Limit = ledger.MaxPage
	}
	if !utf8.ValidString(q.PK) {
		return ledger.Page{}, nil // no item can be there
	}
	read := db.queryTable
	if q.Index != ledger.Primary {
		read = db.queryIndex
	}
	page, err := read(ctx, q, after)
	if err != nil {
		return ledger.Page{}, fmt.Errorf("query %s %q: %w", q.Index, q.PK, err)
	}
	return page, nil
}

// span is a stretch of sort keys, both ends included; empty leaves one open.
type span struct{ low, high string }

func (s span) empty() bool { return s.low != "" && s.high != "" && s.low > s.high }

// has tells whether the sort key is in the span.
func (s span) has(sk string) bool { return sk >= s.low && (s.high == "" || sk <= s.high) }

// condition is the span within a partition as a key condition. An end that
// DynamoDB does not take is left open there: the reader checks each key.
func (s span) condition(p place, pk string) (string, attributes) {
	values := attributes{":pk": str(pk)}
	cond := p.pk + " = :pk"
	sayable := func(sk string) bool { return sk != "" && len(sk) <= maxSortBytes && utf8.ValidString(sk) }
	low, high := sayable(s.low), sayable(s.high)
	if low {
		values[":low"] = str(s.low)
	}
	if high {
		values[":high"] = str(s.high)
	}
	switch {
	case low && high:
		cond += " AND " + p.sk + " BETWEEN :low AND :high"
	case low:
		cond += " AND " + p.sk + " >= :low"
	case high:
		cond += " AND " + p.sk + " <= :high"
	}
	return cond, values
}

// queryTable reads a page of the items themselves behind the sort key after.
func (db *DB) queryTable(ctx context.Context, q ledger.Query, after string) (ledger.Page, error) {
	s := span{q.From, q.To}
	var start attributes
	// The place to start at must lie within the condition.
	switch {
	case after == "":
	case q.Reverse && after < q.From, !q.Reverse && q.To != "" && after >= q.To:
		return ledger.Page{}, nil
	case q.Reverse && (q.To == "" || after < q.To), !q.Reverse && after >= q.From:
		start = keyAttributes(ledger.Key{PK: q.PK, SK: after})
	}
	if s.empty() {
		return ledger.Page{}, nil
	}
	cond, values := s.condition(place{attrPK, attrSK}, q.PK)
	var page ledger.Page
	for size := 0; ; {
		call, end := db.bounded(ctx)
		out, err := db.client.Query(call, &dynamodb.QueryInput{
			TableName: &db.table, KeyConditionExpression: &cond, ExpressionAttributeValues: values, ConsistentRead: aws.Bool(true),
			ScanIndexForward: aws.Bool(!q.Reverse), Limit: aws.Int32(int32(q.Limit - len(page.Items))), ExclusiveStartKey: start,
		})
		end()
		if err != nil {
			return page, readFailure(ctx, err)
		}
		now := db.now().Unix()
		for _, a := range out.Items {
			k, err := keyOf(a)
			if err != nil {
				return page, err
			}
			if expired(a, now) || !s.has(k.SK) || k.SK == q.To {
				continue
			}
			it, err := decodeItem(a)
			if err != nil {
				return page, err
			}
			size += len(it.Data)
			page.Items = append(page.Items, it)
		}
		start = out.LastEvaluatedKey
		if len(start) == 0 {
			return page, nil
		}
		if len(page.Items) == q.Limit || size >= maxPageBytes {
			last, err := keyOf(start)
			page.Next = encodeNext(q, last.SK)
			return page, err
		}
	}
}

// encodeNext makes a page's Next: a mark of the query that it belongs to, and
// the stored sort key of the last item that was looked at.
func encodeNext(q ledger.Query, sort string) string {
	return base64.RawURLEncoding.EncodeToString(append(queryMark(q), sort...))
}

// decodeNext reads a query's After, "" when it has none.
func decodeNext(q ledger.Query) (string, error) {
	if q.After == "" {
		return "", nil
	}
	bad := fmt.Errorf("%w: After %q is not the Next of a page of this query", ledger.ErrInvalid, q.After)
	b, err := base64.RawURLEncoding.DecodeString(q.After)
	mark := queryMark(q)
	if err != nil || len(b) <= len(mark) || string(b[:len(mark)]) != string(mark) {
		return "", bad
	}
	sort := string(b[len(mark):])
	if len(sort) > maxSortBytes || !utf8.ValidString(sort) {
		return "", bad
	}
	if q.Index != ledger.Primary {
		if _, _, err := sortOf(sort); err != nil {
			return "", bad
		}
	}
	return sort, nil
}

// queryMark tells queries apart whose places mean different things.
func queryMark(q ledger.Query) []byte {
	h := fnv.New32a()
	fmt.Fprintf(h, "%s %t %s", q.Index, q.Reverse, q.PK)
	return h.Sum(nil)
}
