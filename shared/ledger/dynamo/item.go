package dynamo

import (
	"fmt"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/opsplane/opsplane/shared/ledger"
)

// attributes is an item as DynamoDB's client has it.
type attributes = map[string]types.AttributeValue

func str(s string) types.AttributeValue    { return &types.AttributeValueMemberS{Value: s} }
func binary(b []byte) types.AttributeValue { return &types.AttributeValueMemberB{Value: b} }
func num(n int64) types.AttributeValue {
	return &types.AttributeValueMemberN{Value: strconv.FormatInt(n, 10)}
}

func keyAttributes(k ledger.Key) attributes {
	return attributes{attrPK: str(k.PK), attrSK: str(k.SK)}
}

// encodeItem returns the attributes that a put sets beside the key, the version
// and the write's name.
func (db *DB) encodeItem(it *ledger.Item) attributes {
	out := make(attributes, 4+2*len(it.Index))
	if len(it.Data) > 0 {
		out[attrData] = binary(pack(it.Data))
	}
	if !it.Expires.IsZero() {
		out[attrExpires] = num(expiry(it.Expires))
	}
	if !it.Due.IsZero() {
		out[placeDue.pk] = str(duePartition(part(it.Key, db.shards)))
		out[placeDue.sk] = str(storedTime(it.Due))
	}
	for x, k := range it.Index {
		p := places[x]
		out[p.pk] = str(db.storedPartition(k.PK, it.Key))
		out[p.sk] = str(storedSort(k.SK, it.Key))
	}
	return out
}

// expiry is an item's end as stored, rounded up: an item never goes early.
func expiry(t time.Time) int64 {
	s := t.Unix()
	if t.Nanosecond() > 0 {
		s++
	}
	return s
}

// decodeItem reads an item. Its errors match errGarbled.
func decodeItem(a attributes) (it ledger.Item, err error) {
	if it.Key, err = keyOf(a); err != nil {
		return it, err
	}
	fail := func(err error) (ledger.Item, error) {
		return ledger.Item{}, fmt.Errorf("decode item %s: %w", it.Key, err)
	}
	if it.Version, err = numberOf(a, attrVersion); err != nil {
		return fail(err)
	}
	if d, ok := a[attrData]; ok {
		b, ok := d.(*types.AttributeValueMemberB)
		if !ok {
			return fail(fmt.Errorf("%w: attribute %s", errGarbled, attrData))
		}
		if it.Data, err = unpack(b.Value); err != nil {
			return fail(err)
		}
	}
	if _, ok := a[attrExpires]; ok {
		n, err := numberOf(a, attrExpires)
		if err != nil {
			return fail(err)
		}
		it.Expires = time.Unix(n, 0).UTC()
	}
	if s, ok := stringOf(a, placeDue.sk); ok {
		if it.Due, err = timeOf(s); err != nil {
			return fail(err)
		}
	}
	for x, p := range places {
		pk, ok := stringOf(a, p.pk)
		if !ok {
			continue
		}
		sk, _ := stringOf(a, p.sk)
		if it.Index == nil {
			it.Index = make(map[ledger.Index]ledger.Key, len(places))
		}
		var k ledger.Key
		if k.PK, err = partitionOf(pk); err != nil {
			return fail(err)
		}
		if k.SK, _, err = sortOf(sk); err != nil {
			return fail(err)
		}
		it.Index[x] = k
	}
	return it, nil
}

func keyOf(a attributes) (ledger.Key, error) {
	pk, okP := stringOf(a, attrPK)
	sk, okS := stringOf(a, attrSK)
	if !okP || !okS {
		return ledger.Key{}, fmt.Errorf("%w: no key", errGarbled)
	}
	return ledger.Key{PK: pk, SK: sk}, nil
}

func stringOf(a attributes, name string) (string, bool) {
	s, ok := a[name].(*types.AttributeValueMemberS)
	if !ok {
		return "", false
	}
	return s.Value, true
}

func numberOf(a attributes, name string) (int64, error) {
	n, ok := a[name].(*types.AttributeValueMemberN)
	if !ok {
		return 0, fmt.Errorf("%w: attribute %s", errGarbled, name)
	}
	v, err := strconv.ParseInt(n.Value, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%w: attribute %s: %w", errGarbled, name, err)
	}
	return v, nil
}

// versionAt is the version of an item as conditions see it: 0 when there is
// none or it has expired.
func versionAt(a attributes, now int64) (int64, error) {
	if len(a) == 0 || expired(a, now) {
		return 0, nil
	}
	return numberOf(a, attrVersion)
}

// expired tells whether an item has expired: DynamoDB deletes it days later
// (AWS: "Using time to live (TTL) in DynamoDB").
func expired(a attributes, now int64) bool {
	at, err := numberOf(a, attrExpires)
	return err == nil && at <= now
}

// itemBytes is an item's size as DynamoDB counts it (AWS: "DynamoDB item sizes
// and formats"): names and values; a number is at most 21 bytes.
func itemBytes(k ledger.Key, a attributes) int {
	n := len(attrPK) + len(k.PK) + len(attrSK) + len(k.SK)
	for name, v := range a {
		n += len(name)
		switch v := v.(type) {
		case *types.AttributeValueMemberS:
			n += len(v.Value)
		case *types.AttributeValueMemberB:
			n += len(v.Value)
		case *types.AttributeValueMemberN:
			n += (len(v.Value)+1)/2 + 1
		}
	}
	return n
}
