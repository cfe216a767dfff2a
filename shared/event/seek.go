package event

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
)

// FirstAt returns a sequence of the stream before which every event happened and
// was received before the time: where those who look for later ones may begin. It
// reads a few runs only.
func FirstAt(ctx context.Context, l ledger.Reader, stream string, at time.Time) (int64, error) {
	for try := 0; ; try++ {
		head, _, err := LoadHead(ctx, l, stream)
		if err != nil {
			return 0, err
		}
		if head.At < at.UnixMilli() {
			return head.Next, nil
		}
		seq, err := seek(ctx, l, stream, &head, head.Low, at.UnixMilli())
		var hole *holeError
		if err == nil || !errors.As(err, &hole) || try == maxHoles {
			if err != nil {
				err = fmt.Errorf("look for the first event: %w", err)
			}
			return seq, err
		}
		if err := backOff(ctx, try+2); err != nil {
			return 0, err
		}
	}
}
