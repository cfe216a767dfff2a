package dynamo

import (
	"bytes"
	"context"
	"fmt"
	"io"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/opsplane/opsplane/shared/ledger"
)

// send makes one attempt.
func (db *DB) send(ctx context.Context, a *attempt) outcome {
	ctx, cancel := context.WithTimeout(ctx, db.pause.attempt)
	defer cancel()
	sent := false
	once := func(o *dynamodb.Options) {
		o.Retryer = aws.NopRetryer{}
		o.APIOptions = append(o.APIOptions, a.keepBody, noteSent(&sent))
	}
	if act := &a.writes[0]; len(a.writes) == 1 && act.Kind == ledger.Put {
		in := a.transactItem(db.table, act).Update
		_, err := db.client.UpdateItem(ctx, &dynamodb.UpdateItemInput{
			TableName: in.TableName, Key: in.Key, UpdateExpression: in.UpdateExpression, ConditionExpression: in.ConditionExpression,
			ExpressionAttributeValues: in.ExpressionAttributeValues, ReturnValuesOnConditionCheckFailure: in.ReturnValuesOnConditionCheckFailure,
		}, once)
		return judge(err, sent)
	}
	in := &dynamodb.TransactWriteItemsInput{ClientRequestToken: &a.token, TransactItems: make([]types.TransactWriteItem, len(a.writes))}
	for i := range a.writes {
		in.TransactItems[i] = a.transactItem(db.table, &a.writes[i])
	}
	_, err := db.client.TransactWriteItems(ctx, in, once)
	return judge(err, sent)
}

// noteSent sets sent when the request is handed to the HTTP client: what failed
// before, as for want of credentials, was not written.
func noteSent(sent *bool) func(*middleware.Stack) error {
	note := middleware.DeserializeMiddlewareFunc("LedgerNoteSent",
		func(ctx context.Context, in middleware.DeserializeInput, next middleware.DeserializeHandler) (middleware.DeserializeOutput, middleware.Metadata, error) {
			*sent = true
			return next.HandleDeserialize(ctx, in)
		})
	return func(s *middleware.Stack) error { return s.Deserialize.Add(note, middleware.After) }
}

// keepBody sends the bytes of the first try again with each that follows: a
// token stands for one content, and the SDK writes maps in another order each
// time.
func (a *attempt) keepBody(s *middleware.Stack) error {
	keep := middleware.SerializeMiddlewareFunc("LedgerKeepBody",
		func(ctx context.Context, in middleware.SerializeInput, next middleware.SerializeHandler) (out middleware.SerializeOutput, md middleware.Metadata, err error) {
			r, ok := in.Request.(*smithyhttp.Request)
			if !ok {
				return out, md, fmt.Errorf("unexpected transport %T", in.Request)
			}
			if a.body == nil {
				if a.body, err = io.ReadAll(r.GetStream()); err != nil {
					return out, md, err
				}
			}
			if in.Request, err = r.SetStream(bytes.NewReader(a.body)); err != nil {
				return out, md, err
			}
			return next.HandleSerialize(ctx, in)
		})
	return s.Serialize.Add(keep, middleware.After)
}
