package bill

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/http"
	"strings"
	"sync"
)

// attributes is an item or a key as DynamoDB's JSON has it: by name, a value
// under its type.
type attributes map[string]map[string]json.RawMessage

// entry is what the meter remembers of an item, to know what the next write of
// it costs.
type entry struct {
	size  int
	index map[string]string // by index, the item's place in it
}

// shadow is the table as the successful writes left it, by key.
type shadow struct {
	mu    sync.Mutex
	items map[string]entry
}

// put notes an item as it is now, or that it is gone.
func (s *shadow) put(key string, e *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e != nil {
		s.items[key] = *e
	} else {
		delete(s.items, key)
	}
}

func (s *shadow) get(key string) entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.items[key]
}

// indexKeys are the attributes of the table's indexes.
var indexKeys = map[string][2]string{"list": {"lp", "ls"}, "scope": {"sp", "ss"}, "lookup": {"kp", "ks"}, "live": {"vp", "vs"}, "due": {"dp", "ds"}}

// size is the billed size of attributes, by the page "DynamoDB item sizes and
// formats" of the DynamoDB developer guide.
func (a attributes) size() (int, error) {
	n := 0
	for name, v := range a {
		n += len(name)
		for typ, raw := range v {
			var s string
			if typ == "S" || typ == "N" || typ == "B" {
				if err := json.Unmarshal(raw, &s); err != nil {
					return 0, fmt.Errorf("read attribute %s: %w", name, err)
				}
			}
			switch typ {
			case "S":
				n += len(s)
			case "N": // one byte for two significant digits, and one
				n += (len(strings.Trim(strings.TrimLeft(s, "-"), "0"))+1)/2 + 1
			case "B":
				n += base64.StdEncoding.DecodedLen(len(s)) - strings.Count(s, "=")
			case "BOOL", "NULL":
				n++
			default:
				return 0, fmt.Errorf("attribute %s: no rule for type %s", name, typ)
			}
		}
	}
	return n, nil
}

func (a attributes) key() string {
	return string(a["pk"]["S"]) + "\n" + string(a["sk"]["S"])
}

func (a attributes) places() map[string]string {
	out := map[string]string{}
	for index, k := range indexKeys {
		if a[k[0]] != nil && a[k[1]] != nil {
			out[index] = string(a[k[0]]["S"]) + "\n" + string(a[k[1]]["S"])
		}
	}
	return out
}

func writeUnits(size int) float64 { return math.Ceil(float64(max(size, 1)) / 1024) }
func readUnits(size int) float64  { return math.Ceil(float64(max(size, 1)) / 4096) }

// write is one write of a request: a put, an update, a delete, or a check.
type write struct {
	Item                      attributes // of a put
	Key                       attributes // of the others
	UpdateExpression          string     // of an update
	ExpressionAttributeValues attributes
}

// item is the item that a put or an update leaves. An update must name every
// attribute that the item has, as the ledger's do.
func (w *write) item() (attributes, error) {
	if w.Item != nil {
		return w.Item, nil
	}
	set, _, _ := strings.Cut(strings.TrimPrefix(w.UpdateExpression, "SET "), " REMOVE ")
	out := attributes{}
	maps.Copy(out, w.Key)
	for clause := range strings.SplitSeq(set, ", ") {
		name, value, ok := strings.Cut(clause, " = ")
		if !ok { // the rest of a function's arguments
			continue
		}
		switch v, plain := w.ExpressionAttributeValues[value]; {
		case plain:
			out[name] = v
		case name == "b", name == "c": // the names of the writes before, as long as this one's
			out[name] = w.ExpressionAttributeValues[":w"]
		case name == "v": // counted by DynamoDB
			out[name] = map[string]json.RawMessage{"N": json.RawMessage(`"1"`)}
		default:
			return nil, fmt.Errorf("no rule for %q", clause)
		}
	}
	return out, nil
}

// dynamo counts a call. A write that a condition refused costs what it would
// have cost, without the indexes (page "Read and write operations").
func (m *Meter) dynamo(operation string, body, answer []byte, status int) error {
	done := status == http.StatusOK
	switch operation {
	case "PutItem", "UpdateItem", "DeleteItem":
		var w write
		if err := json.Unmarshal(body, &w); err != nil {
			return err
		}
		return m.write(w, operation != "DeleteItem", false, 1, done)
	case "TransactWriteItems":
		var in struct {
			TransactItems []struct{ Put, Update, Delete, ConditionCheck *write }
		}
		if err := json.Unmarshal(body, &in); err != nil {
			return err
		}
		for _, t := range in.TransactItems {
			var err error
			switch {
			case t.Put != nil:
				err = m.write(*t.Put, true, false, 2, done)
			case t.Update != nil:
				err = m.write(*t.Update, true, false, 2, done)
			case t.Delete != nil:
				err = m.write(*t.Delete, false, false, 2, done)
			case t.ConditionCheck != nil:
				err = m.write(*t.ConditionCheck, false, true, 2, done)
			default:
				err = fmt.Errorf("no rule for a write of this kind: %s", body)
			}
			if err != nil {
				return err
			}
		}
		return nil
	case "GetItem", "BatchGetItem", "Query":
		return m.read(operation, body, answer, done)
	case "DescribeTable", "CreateTable", "UpdateTimeToLive", "DescribeTimeToLive": // not charged
		return nil
	}
	return fmt.Errorf("no rule for %s", operation)
}

// write counts one write: by the larger of the item before and after it, twice
// in a transaction, and one unit for each index entry that it makes, moves (two)
// or removes; entries hold keys alone and are under 1 KB.
func (m *Meter) write(w write, put, check bool, factor float64, done bool) error {
	key, size := w.Key.key(), 0
	if put {
		var err error
		if w.Item, err = w.item(); err != nil {
			return err
		}
		key = w.Item.key()
		if size, err = w.Item.size(); err != nil {
			return err
		}
	}
	was := m.table.get(key)
	m.written(kindOf(key), factor*writeUnits(max(size, was.size)))
	if !done || check {
		return nil
	}
	is := entry{size: size}
	if put {
		is.index = w.Item.places()
		m.table.put(key, &is)
	} else {
		m.table.put(key, nil)
	}
	for index := range indexKeys {
		before, after := was.index[index], is.index[index]
		switch {
		case before == after:
		case before == "" || after == "":
			m.written(kindOf(key)+", index "+index, 1)
		default:
			m.written(kindOf(key)+", index "+index, 2)
		}
	}
	return nil
}

func (m *Meter) written(what string, n float64) {
	m.units[DynamoWrite] += n
	m.items["write "+what] += n
}

func (m *Meter) wasRead(what string, n float64) {
	m.units[DynamoRead] += n
	m.items[what] += n
}

// kindOf is what an item is: its keys up to the first number or name in them.
func kindOf(key string) string {
	pk, sk, _ := strings.Cut(strings.ReplaceAll(key, `"`, ""), "\n")
	short := func(s string) string { s, _, _ = strings.Cut(s, "#"); return s }
	if short(pk) == "aud" {
		return "aud"
	}
	return short(pk) + "/" + short(sk)
}

// read counts a read: each item of a get by itself, a query by the sum of what
// it went through, half when it need not be consistent.
func (m *Meter) read(operation string, body, answer []byte, done bool) error {
	if !done {
		m.units[DynamoRead]++
		return nil
	}
	var in struct {
		ConsistentRead            bool
		Key                       attributes
		IndexName                 string
		ExpressionAttributeValues attributes
		RequestItems              map[string]struct {
			ConsistentRead bool
			Keys           []attributes
		}
	}
	var out struct {
		Item      attributes
		Items     []attributes
		Responses map[string][]attributes
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return err
	}
	if err := json.Unmarshal(answer, &out); err != nil {
		return err
	}
	factor := func(consistent bool) float64 {
		if consistent {
			return 1
		}
		return 0.5
	}
	switch operation {
	case "GetItem":
		size, err := out.Item.size()
		if err != nil {
			return err
		}
		m.wasRead("get "+kindOf(in.Key.key()), factor(in.ConsistentRead)*readUnits(size))
	case "Query":
		total := 0
		for _, it := range out.Items {
			size, err := it.size()
			if err != nil {
				return err
			}
			total += size
		}
		m.wasRead("query "+in.IndexName+kindOf(string(in.ExpressionAttributeValues[":pk"]["S"])+"\n"), factor(in.ConsistentRead)*readUnits(total))
	case "BatchGetItem":
		for table, req := range in.RequestItems {
			found := out.Responses[table]
			for _, it := range found {
				size, err := it.size()
				if err != nil {
					return err
				}
				m.wasRead("batch "+kindOf(it.key()), factor(req.ConsistentRead)*readUnits(size))
			}
			m.wasRead("batch, missing", factor(req.ConsistentRead)*float64(max(0, len(req.Keys)-len(found)))) // one each
		}
	}
	return nil
}
