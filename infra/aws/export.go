package aws

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/export"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/ledger/dynamo"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
	"github.com/opsplane/opsplane/shared/version"
)

// Live lists the operations of the table that have not ended.
func (d *Deployment) Live(ctx context.Context) ([]export.LiveOperation, error) {
	live, err := export.Live(ctx, d.Store)
	if err != nil {
		return nil, plainIn(err)
	}
	return live, nil
}

// MarkRestored marks the operations that have not ended as restored, in the table
// itself: whoever held one is fenced off, and nothing is issued before the world
// has been read. It is for a table that is a copy of what went on elsewhere since,
// or that is about to be moved; no function may be working on it.
func (d *Deployment) MarkRestored(ctx context.Context, live []export.LiveOperation) error {
	by := operation.Actor{ID: "opsplane export", Kind: "plane"}
	for _, o := range live {
		_, err := d.Store.Update(ctx, o.ID, func(*operation.Operation) (operation.Change, []ledger.Write, error) {
			return operation.Restored{By: by}, nil, nil
		})
		if err != nil {
			return fmt.Errorf("mark operation %s: %w", o.ID, plainIn(err))
		}
	}
	return nil
}

// TellRestored has each stream of a table that was restored to a point in time tell
// so, in the table itself: see event.TellRestored.
func (d *Deployment) TellRestored(ctx context.Context) error {
	if err := event.TellRestored(ctx, d.Store); err != nil {
		return plainIn(err)
	}
	return nil
}

// Mend leaves out of the table what is in it twice, and tells what that was: see
// event.LeaveOutRepeats.
func (d *Deployment) Mend(ctx context.Context, w io.Writer) error {
	found, err := event.LeaveOutRepeats(ctx, d.Store)
	for _, x := range found {
		fmt.Fprintln(w, x)
	}
	if err != nil {
		return plainIn(err)
	}
	return nil
}

// Export writes the table, to which nothing else may write meanwhile: see
// export.Write.
func (d *Deployment) Export(ctx context.Context, w io.Writer) (export.Header, error) {
	now := time.Now()
	db, err := dynamo.New(dynamo.Options{Client: d.db, Table: d.Table, Sharded: record.BusyPartitions(), Now: func() time.Time { return now }})
	if err != nil {
		return export.Header{}, err
	}
	h, err := export.Write(ctx, walker{DB: db, client: d.db, table: d.Table},
		export.Source{Engine: "dynamodb", Version: version.Version, Name: d.Region + "/" + d.Table}, now, w)
	if err != nil {
		return h, plainIn(err)
	}
	return h, nil
}

// walker walks a table from end to end. It scans keys and reads the items as
// everybody does, so that only the engine knows how they are kept.
type walker struct {
	*dynamo.DB
	client *dynamodb.Client
	table  string
}

var _ ledger.Scanner = walker{}

// place is a scan's Next.
type place struct {
	PK string `json:"pk"`
	SK string `json:"sk"`
}

// Scan implements ledger.Scanner. An order of DynamoDB's own keeps the items of a
// partition together.
func (w walker) Scan(ctx context.Context, after string, limit int) (ledger.Page, error) {
	if limit < 0 || limit > ledger.MaxPage {
		return ledger.Page{}, fmt.Errorf("%w: scan limit %d: it is 0 to %d", ledger.ErrInvalid, limit, ledger.MaxPage)
	}
	if limit == 0 {
		limit = ledger.MaxPage
	}
	in := &dynamodb.ScanInput{TableName: &w.table, ConsistentRead: aws.Bool(true), ProjectionExpression: aws.String("pk, sk"), Limit: aws.Int32(int32(limit))}
	if after != "" {
		var p place
		b, err := base64.RawURLEncoding.DecodeString(after)
		if err = errors.Join(err, json.Unmarshal(b, &p)); err != nil || p.PK == "" || p.SK == "" {
			return ledger.Page{}, fmt.Errorf("%w: After %q is not the Next of a scan's page", ledger.ErrInvalid, after)
		}
		in.ExclusiveStartKey = map[string]types.AttributeValue{"pk": &types.AttributeValueMemberS{Value: p.PK}, "sk": &types.AttributeValueMemberS{Value: p.SK}}
	}
	out, err := w.client.Scan(ctx, in)
	if err != nil {
		return ledger.Page{}, fmt.Errorf("scan table %s: %w", w.table, err)
	}
	keys := make([]ledger.Key, len(out.Items))
	for i, it := range out.Items {
		keys[i] = ledger.Key{PK: text(it["pk"]), SK: text(it["sk"])}
	}
	var page ledger.Page
	for part := range slices.Chunk(keys, ledger.MaxWrites) {
		items, err := w.GetMany(ctx, part)
		if err != nil {
			return ledger.Page{}, err
		}
		for _, k := range part { // in the table's order; one that has expired is not among them
			if it, ok := items[k]; ok {
				page.Items = append(page.Items, it)
			}
		}
	}
	if last := out.LastEvaluatedKey; len(last) > 0 {
		b, err := json.Marshal(place{PK: text(last["pk"]), SK: text(last["sk"])})
		if err != nil {
			return ledger.Page{}, fmt.Errorf("scan table %s: %w", w.table, err)
		}
		page.Next = base64.RawURLEncoding.EncodeToString(b)
	}
	return page, nil
}
