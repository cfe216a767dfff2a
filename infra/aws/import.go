package aws

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/opsplane/opsplane/shared/export"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// Settling times of a table's indexes after an import.
const (
	settleTries = 20
	settlePause = 500 * time.Millisecond
)

// Import puts an export into the deployment's table, which is empty or holds an
// unfinished import of the same export, and makes the clusters' queues. See
// export.Import. A stream that cannot be read twice is kept in a temporary file
// meanwhile.
func (d *Deployment) Import(ctx context.Context, stream io.Reader, progress func(part string, done, of int64)) (export.Result, error) {
	src, drop, err := seekable(stream)
	if err != nil {
		return export.Result{}, err
	}
	defer drop()
	r, err := export.Import(ctx, src, export.Target{Ledger: d.Ledger, Occupied: d.occupied, Queues: d.Queues, Now: time.Now, Progress: progress})
	if err != nil {
		return r, plainIn(err)
	}
	return r, nil
}

// ErrShort: after an import the table holds less than the source did.
var ErrShort = errors.New("the table holds less than the export")

// Compare walks the table after an import and prints what it found. It must hold,
// and have no less operations, journal entries and events than the source had;
// the plane that runs over it only adds. Indexes lag behind items for a moment.
func (d *Deployment) Compare(ctx context.Context, h export.Holds, w io.Writer) error {
	for try := 0; ; try++ {
		r, err := d.prove(ctx, time.Time{})
		if err != nil {
			return err
		}
		if r.Operations >= h.Operations && r.Entries >= h.Entries && r.Events >= h.Events {
			return tell(w, r)
		}
		if try == settleTries {
			return fmt.Errorf("%w: %d of %d operations, %d of %d journal entries, %d of %d events", ErrShort,
				r.Operations, h.Operations, r.Entries, h.Entries, r.Events, h.Events)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(settlePause):
		}
	}
}

// occupied looks for an item that the plane did not make by itself: one that was
// just deployed keeps how far its readers are.
func (d *Deployment) occupied(ctx context.Context) (ledger.Key, bool, error) {
	in := &dynamodb.ScanInput{TableName: &d.Table, ConsistentRead: aws.Bool(true), ProjectionExpression: aws.String("pk, sk"), Limit: aws.Int32(100)}
	for {
		out, err := d.db.Scan(ctx, in)
		if err != nil {
			return ledger.Key{}, false, fmt.Errorf("scan table %s: %w", d.Table, plain(err))
		}
		for _, it := range out.Items {
			k := ledger.Key{PK: text(it["pk"]), SK: text(it["sk"])}
			if record.Kind(k) != record.KindFeedPosition {
				return k, true, nil
			}
		}
		if in.ExclusiveStartKey = out.LastEvaluatedKey; len(in.ExclusiveStartKey) == 0 {
			return ledger.Key{}, false, nil
		}
	}
}

func text(v types.AttributeValue) string {
	if s, ok := v.(*types.AttributeValueMemberS); ok {
		return s.Value
	}
	return ""
}

// seekable returns the stream itself when it is a regular file, else a copy of it
// that its user alone can read.
func seekable(r io.Reader) (src io.ReadSeeker, drop func(), err error) {
	if f, ok := r.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
			return f, func() {}, nil
		}
	}
	f, err := os.CreateTemp("", "opsplane-import") // mode 0600
	if err != nil {
		return nil, nil, fmt.Errorf("keep the export while it is read: %w", err)
	}
	drop = func() { _, _ = f.Close(), os.Remove(f.Name()) }
	if _, err := io.Copy(f, r); err != nil {
		drop()
		return nil, nil, fmt.Errorf("keep the export while it is read: %w", err)
	}
	return f, drop, nil
}
