package dynamo

import (
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/opsplane/opsplane/shared/ledger"
)

const (
	// maxItem is DynamoDB's limit on an item with its keys and names, and
	// maxTransaction that on all items of one transaction (AWS: "Quotas in
	// Amazon DynamoDB").
	maxItem        = 400 << 10
	maxTransaction = 4 << 20
	// writeNameBytes: two writes of one item that matter to each other are
	// seconds apart at most; 48 random bits are plenty.
	writeNameBytes = 6
)

// Conditions. Their values: :now, and :expect or :w where they appear.
const (
	condAbsent  = "attribute_not_exists(pk) OR x <= :now"
	condVersion = "v = :expect AND (attribute_not_exists(x) OR x > :now)"
	// An unconditional put takes an item that is alive or not there at all. Its
	// own name must not be there yet: else it has been applied.
	condAlive = "(attribute_not_exists(x) OR x > :now) AND (attribute_not_exists(w) OR (w <> :w AND b <> :w AND c <> :w))"
	// With revive.
	condExpired = "x <= :now"
)

// attempt is a commit as it is sent, the same on each retry: a token stands for
// exactly one request.
type attempt struct {
	now    int64  // Unix seconds
	name   []byte // of the commit, kept on what it puts
	token  string
	body   []byte // as it was first sent
	writes []action
}

// action is one write on its way.
type action struct {
	ledger.Write
	set attributes // what a put sets
	// revive: an unconditional put found an expired item, which counts as
	// absent: its versions begin again.
	revive bool
}

// newAttempt readies writes; those that neither write nor require anything are
// left out. Its errors match ledger.ErrInvalid.
func (db *DB) newAttempt(writes []ledger.Write) (*attempt, error) {
	a := &attempt{}
	total := 0
	for _, w := range writes {
		act := action{Write: w}
		switch {
		case w.Kind == ledger.Check && w.Expect == ledger.AnyVersion:
			continue
		case w.Kind == ledger.Delete && w.Expect == 0:
			act.Kind = ledger.Check // what must not be there need not be deleted
		case w.Kind == ledger.Put:
			act.set = db.encodeItem(&w.Item)
			n := itemBytes(w.Item.Key, act.set) + putOverhead
			if n > maxItem {
				return nil, fmt.Errorf("%w: item %s takes %d bytes of DynamoDB's %d", ledger.ErrInvalid, w.Item.Key, n, maxItem)
			}
			total += n
		}
		a.writes = append(a.writes, act)
	}
	if total > maxTransaction {
		return nil, fmt.Errorf("%w: commit takes %d bytes of DynamoDB's %d", ledger.ErrInvalid, total, maxTransaction)
	}
	a.name = make([]byte, writeNameBytes)
	_, _ = rand.Read(a.name) // never fails (crypto/rand)
	a.renew(db)
	return a, nil
}

// putOverhead is what version, feed mark and write names add to an item at most.
const putOverhead = 3 + 12 + 3*(1+writeNameBytes)

// renew makes the attempt a new request, with a time and a token of its own.
func (a *attempt) renew(db *DB) {
	a.now = db.now().Unix()
	a.token = rand.Text()
	a.body = nil
}

// condition returns the condition of an action, "" for none, and its values.
func (a *attempt) condition(act *action) (string, attributes) {
	values := attributes{":now": num(a.now)}
	switch {
	case act.Expect > 0:
		values[":expect"] = num(act.Expect)
		return condVersion, values
	case act.Expect == 0:
		return condAbsent, values
	case act.Kind == ledger.Put && act.revive:
		return condExpired, values
	case act.Kind == ledger.Put:
		return condAlive, values
	}
	return "", nil
}

// update is a put as an update that sets or removes every attribute that the
// engine knows. Unlike PutItem it can count versions without a read, and keep
// the names of the writes before, by which a lost answer is told from a conflict.
func (a *attempt) update(act *action) (expression string, values attributes) {
	values = attributes{":w": binary(a.name), ":none": binary([]byte{0})}
	// All right sides are of the item as it was (AWS: "Update expressions").
	set := []string{"c = if_not_exists(b, :none)", "b = if_not_exists(w, :none)", "w = :w"}
	switch {
	case act.Expect == ledger.AnyVersion && !act.revive:
		values[":zero"], values[":one"] = num(0), num(1)
		set = append(set, "v = if_not_exists(v, :zero) + :one")
	default:
		values[":v"] = num(max(act.Expect, 0) + 1)
		set = append(set, "v = :v")
	}
	var remove []string
	if act.Feed {
		values[":f"] = num(1)
		set = append(set, "f = :f")
	} else {
		remove = append(remove, attrFeed)
	}
	for _, name := range optional {
		if v, ok := act.set[name]; ok {
			values[":"+name] = v
			set = append(set, name+" = :"+name)
		} else {
			remove = append(remove, name)
		}
	}
	expression = "SET " + strings.Join(set, ", ")
	if len(remove) > 0 {
		expression += " REMOVE " + strings.Join(remove, ", ")
	}
	return expression, values
}

// optional are the attributes that an item may have or not.
var optional = func() []string {
	names := []string{attrData, attrExpires, placeDue.pk, placeDue.sk}
	for _, x := range ledger.Indexes {
		names = append(names, places[x].pk, places[x].sk)
	}
	slices.Sort(names)
	return names
}()

// transactItem is an action as a part of a transaction.
func (a *attempt) transactItem(table string, act *action) types.TransactWriteItem {
	const all = types.ReturnValuesOnConditionCheckFailureAllOld
	key := keyAttributes(act.Item.Key)
	cond, values := a.condition(act)
	var condition *string
	if cond != "" {
		condition = &cond
	}
	switch act.Kind {
	case ledger.Put:
		expression, more := a.update(act)
		maps.Copy(more, values)
		return types.TransactWriteItem{Update: &types.Update{TableName: &table, Key: key, UpdateExpression: &expression,
			ConditionExpression: condition, ExpressionAttributeValues: more, ReturnValuesOnConditionCheckFailure: all}}
	case ledger.Delete:
		return types.TransactWriteItem{Delete: &types.Delete{TableName: &table, Key: key,
			ConditionExpression: condition, ExpressionAttributeValues: values, ReturnValuesOnConditionCheckFailure: all}}
	}
	return types.TransactWriteItem{ConditionCheck: &types.ConditionCheck{TableName: &table, Key: key,
		ConditionExpression: aws.String(cond), ExpressionAttributeValues: values, ReturnValuesOnConditionCheckFailure: all}}
}
