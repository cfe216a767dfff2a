package dynamo

import (
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
)

// DynamoDB does not say in which order items with equal index sort keys come
// (AWS: "Using Global Secondary Indexes": index keys need not be unique). So
// the stored sort key is
//
//	escape(sort key) 0x00 escape(item's PK) 0x00 item's SK
//
// which sorts as (sort key, PK, SK) do, byte by byte: the escape keeps the
// order and leaves no 0x00 inside. A stored index partition is escape(PK), with
// 0x00 and the part's number behind it when it is sharded.

const separator = "\x00"

var escaper = strings.NewReplacer("\x00", "\x01\x01", "\x01", "\x01\x02")

func escape(s string) string {
	if !strings.ContainsAny(s, "\x00\x01") {
		return s
	}
	return escaper.Replace(s)
}

func unescape(s string) (string, error) {
	if !strings.ContainsAny(s, "\x00\x01") {
		return s, nil
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c == 0 {
			return "", fmt.Errorf("%w: a stray end in %q", errGarbled, s)
		}
		if c == 1 {
			i++
			if i == len(s) || s[i] < 1 || s[i] > 2 {
				return "", fmt.Errorf("%w: a bad escape in %q", errGarbled, s)
			}
			c = s[i] - 1
		}
		b = append(b, c)
	}
	return string(b), nil
}

// storedSort is the stored sort key of an item in an index.
func storedSort(sort string, k ledger.Key) string {
	return escape(sort) + separator + escape(k.PK) + separator + k.SK
}

// sortOf reads a stored sort key: the sort key that the item was put with, and
// the item's own key.
func sortOf(stored string) (sort string, k ledger.Key, err error) {
	parts := strings.SplitN(stored, separator, 3)
	if len(parts) != 3 || parts[0] == "" || parts[1] == "" || parts[2] == "" {
		return "", k, fmt.Errorf("%w: index sort key %q", errGarbled, stored)
	}
	if sort, err = unescape(parts[0]); err != nil {
		return "", k, err
	}
	k.SK = parts[2]
	k.PK, err = unescape(parts[1])
	return sort, k, err
}

// part is the number of the part to which an item of a sharded partition goes.
func part(k ledger.Key, parts int) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(k.PK + separator + k.SK)) // a hash takes everything
	return int(h.Sum32() % uint32(parts))
}

func storedPart(pk string, n int) string { return escape(pk) + separator + strconv.Itoa(n) }

// storedPartition is the stored partition of an item in an index.
func (db *DB) storedPartition(pk string, k ledger.Key) string {
	if !db.sharded[pk] {
		return escape(pk)
	}
	return storedPart(pk, part(k, db.shards))
}

// partitions are the stored partitions that a query of pk must read.
func (db *DB) partitions(pk string) []string {
	if !db.sharded[pk] {
		return []string{escape(pk)}
	}
	out := make([]string, db.shards)
	for n := range out {
		out[n] = storedPart(pk, n)
	}
	return out
}

// partitionOf reads a stored partition, sharded or not.
func partitionOf(stored string) (string, error) {
	name, _, _ := strings.Cut(stored, separator)
	return unescape(name)
}

// duePartition is the stored partition of part n of the due index.
func duePartition(n int) string { return "due#" + strconv.Itoa(n) }

// storedTime is an instant as a sort key: milliseconds, moved so that those
// before 1970 sort first.
func storedTime(t time.Time) string { return fmt.Sprintf("%016x", uint64(t.UnixMilli())^(1<<63)) }

func timeOf(stored string) (time.Time, error) {
	n, err := strconv.ParseUint(stored, 16, 64)
	if err != nil || len(stored) != 16 {
		return time.Time{}, fmt.Errorf("%w: due time %q", errGarbled, stored)
	}
	return time.UnixMilli(int64(n ^ (1 << 63))).UTC(), nil
}
