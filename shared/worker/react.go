package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/aws/aws-lambda-go/events"

	"github.com/opsplane/opsplane/shared/cloud"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/queue"
	"github.com/opsplane/opsplane/shared/record"
	"github.com/opsplane/opsplane/shared/sweep"
	"github.com/opsplane/opsplane/shared/tally"
)

// judgeAtOnce bounds the streams that an invocation judges at a time. It waits for
// the table most of the time, and one stream's pass waits for no other's.
const judgeAtOnce = 8

// React deals with the table's stream as Relay does, of which it takes the heads of
// event streams, the mark of the rules and the ends of clusters (record.Wakes). It knows the reactor by what it
// calls alone: whoever judges nothing links none.
type React struct {
	Store *record.Store
	// Follow judges a stream to its head (react.Reactor.Follow).
	Follow func(ctx context.Context, stream string) error
	// Counts is what the reactor has counted since it was made; nil: nothing.
	Counts func() Judged
	// Decode reads a record.
	Decode  func(events.DynamoDBEventRecord) (ledger.Change, error)
	Logger  *slog.Logger
	Metrics *cloud.Metrics // nil: none

	judged toldCounts
}

// Judged is what a reactor has counted.
type Judged struct {
	Counts  []tally.Count // under their names
	Told    int64         // transitions of alerts
	Trouble int64         // whatever somebody should look at: events that were not judged, rules that fail, panics
	Fired   int64         // alerts that began to fire because of an event
	Latency time.Duration // from their events' happening until they were kept, of all together
}

// since are the counts since others of the same counter.
func (j *Judged) since(was []tally.Count) []tally.Count {
	out := slices.Clone(j.Counts)
	for i := range out {
		for _, w := range was {
			if w.Name == out[i].Name {
				out[i].Value -= w.Value
			}
		}
	}
	return out
}

// Handle judges the streams that the batch is about, each once, or all when rules
// have changed. A record that cannot be read is kept as a dead letter and passed
// over.
//
// It answers the first record from which the batch must come again: one about a
// stream that could not be judged because the ledger was unavailable or time ran
// out. A stream that cannot be judged for another reason, which would not be gone
// in a moment, is told, counted and passed over, so that it holds up none of those
// behind it: its position stays where it is, and its next event and the sweep
// begin there (Sweep.Judge).
func (h *React) Handle(ctx context.Context, e StreamEvent) (events.DynamoDBEventResponse, error) {
	if len(e.Records) == 0 {
		return events.DynamoDBEventResponse{}, fmt.Errorf("%w: no records", ErrUnknownEvent)
	}
	ctx, cancel := within(ctx)
	defer cancel()
	b := reader{h.Store, h.Decode, h.Logger}.read(ctx, e.Records)
	streams, changed := record.Wakes(b.changes)
	if changed {
		every, err := event.Streams(ctx, h.Store)
		if err != nil { // those of the batch are judged all the same
			h.Logger.WarnContext(ctx, "streams cannot be listed for changed rules", "err", err)
			b.repeat([]ledger.Change{{Key: record.RulesKey}})
		}
		for _, s := range every {
			if !slices.Contains(streams, s) {
				streams = append(streams, s)
			}
		}
	}
	failed := judge(ctx, h.Follow, streams)
	stuck := 0
	for _, s := range streams {
		err := failed[s]
		switch {
		case err == nil:
		case !passing(ctx, err):
			stuck++
			h.Logger.ErrorContext(ctx, "a stream cannot be judged and is passed over", "stream", s, "err", err)
		default:
			h.Logger.WarnContext(ctx, "a stream could not be judged and comes again", "stream", s, "err", err)
			b.repeat([]ledger.Change{{Key: b.whyJudged(s)}})
		}
	}
	h.measure(ctx, stuck)
	return b.answer(e.Records)
}

// whyJudged is the key of the record for whose sake a stream is judged: its own
// events', that of its cluster's end, or the rules'.
func (b *batch) whyJudged(stream string) ledger.Key {
	for _, key := range []ledger.Key{record.StreamHeadKey(stream), record.FormerKey(stream)} {
		if _, ok := b.at[key]; ok {
			return key
		}
	}
	return record.RulesKey
}

// passing tells whether a stream that failed may well be judged in a moment.
func passing(ctx context.Context, err error) bool {
	return ctx.Err() != nil || errors.Is(err, ledger.ErrUnavailable) || errors.Is(err, ledger.ErrUnknown) || errors.Is(err, ledger.ErrConflict) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// judge follows the streams, several at a time, and returns why some failed.
func judge(ctx context.Context, follow func(context.Context, string) error, streams []string) map[string]error {
	var mu sync.Mutex
	var wg sync.WaitGroup
	failed := map[string]error{}
	slots := make(chan struct{}, judgeAtOnce)
	for _, s := range streams {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := follow(ctx, s); err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed[s] = err
			}
		})
	}
	wg.Wait()
	return failed
}

// putEvery is how often counts are put of which nothing is remarkable: a line of
// metrics costs as any other. So much is lost when Lambda ends an instance that is
// idle, and no more.
const putEvery = time.Minute

// toldCounts are a reactor's counts as they were when metrics were put last.
type toldCounts struct {
	mu    sync.Mutex
	told  Judged
	putAt time.Time
}

// metrics are what the reactor has counted since they were put last. What is not
// remarkable waits for a minute to pass, unless all is asked for.
func (t *toldCounts) metrics(counts func() Judged, at time.Time, all bool) []cloud.Metric {
	if counts == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now, was := counts(), t.told
	if !all && now.Told == was.Told && now.Trouble == was.Trouble && at.Sub(t.putAt) < putEvery {
		return nil
	}
	t.told, t.putAt = now, at
	ms := cloud.Counted(now.since(was.Counts))
	if n := now.Told - was.Told; n > 0 {
		ms = append(ms, count("alerts_told_total", int(n)))
	}
	if n := now.Fired - was.Fired; n > 0 {
		ms = append(ms, cloud.Metric{Name: "alert_latency_seconds", Unit: cloud.Seconds, Value: (now.Latency - was.Latency).Seconds() / float64(n)})
	}
	return ms
}

// measure puts what has happened since metrics were put last: at once where an
// alert was told, a stream passed over or something went wrong, else with others of
// the minute.
func (h *React) measure(ctx context.Context, stuck int) {
	ms := h.judged.metrics(h.Counts, h.Store.Now(), stuck > 0)
	if stuck > 0 {
		ms = append(ms, count("StreamsUnjudged", stuck))
	}
	if err := h.Metrics.Put(ms...); err != nil {
		h.Logger.WarnContext(ctx, "metrics not written", "err", err)
	}
}

// timerWithin bounds what one stream's timers may cost a pass of the sweep, which
// has deadlines of others to look after. What is left is due again, and the
// position is kept on the way.
const timerWithin = 5 * time.Second

// Timers has the sweep judge a stream of which a timer is due (sweep.Sweep.React).
func Timers(follow func(ctx context.Context, stream string) error) func(ctx context.Context, stream string) error {
	return func(ctx context.Context, stream string) error {
		ctx, cancel := context.WithTimeout(ctx, timerWithin)
		defer cancel()
		return follow(ctx, stream)
	}
}

// Telling has a stream judged, and what is told of alerts in it made into messages
// for receivers. One of the two that fails leaves the other alone.
func Telling(judge, tell func(ctx context.Context, stream string) error) func(ctx context.Context, stream string) error {
	return func(ctx context.Context, stream string) error {
		return errors.Join(judge(ctx, stream), tell(ctx, stream))
	}
}

// ReactGivenUpQueue is where Lambda tells of records that react did not take.
const ReactGivenUpQueue = "react-dead"

// unjudgedHeld is how long one look at that queue may take before another may
// begin.
const unjudgedHeld = 5 * time.Minute

// unjudged judges every stream when records were given up by react, and each
// mendEvery minutes for what no record told of. It returns how many notices it
// dealt with, of which each is kept as a dead letter; a notice stays until all
// streams are judged that can be.
func (h *Sweep) unjudged(ctx context.Context, at time.Time) (int, error) {
	if h.Judge == nil {
		return 0, nil
	}
	var notices []queue.Message
	if h.GivenUp != nil {
		var err error
		if notices, err = h.GivenUp.Receive(ctx, ReactGivenUpQueue, queue.MaxBatch, 0, unjudgedHeld); err != nil {
			return 0, fmt.Errorf("look for records given up: %w", err)
		}
	}
	if len(notices) == 0 && at.Minute()%mendEvery != mendAt {
		return 0, nil
	}
	receipts := make([]string, len(notices))
	for i, m := range notices {
		receipts[i] = m.Receipt
		l := queue.DeadLetter{ID: m.ID, Queue: ReactGivenUpQueue, Body: m.Body, Reason: "records of the change feed were given up", At: h.Sweep.Store.Now()}
		if err := sweep.Keep(ctx, h.Sweep.Store, l); err != nil {
			return 0, fmt.Errorf("keep a notice of records given up: %w", err)
		}
	}
	streams, err := event.Streams(ctx, h.Sweep.Store)
	if err != nil {
		return 0, fmt.Errorf("list streams: %w", err)
	}
	var errs error
	again := false
	for s, err := range judge(ctx, h.Judge, streams) {
		again = again || passing(ctx, err)
		errs = errors.Join(errs, fmt.Errorf("judge stream %s: %w", s, err))
	}
	if again || len(receipts) == 0 {
		return 0, errs
	}
	if err := h.GivenUp.Delete(ctx, ReactGivenUpQueue, receipts...); err != nil {
		return 0, errors.Join(errs, fmt.Errorf("delete notices of records given up: %w", err))
	}
	return len(notices), errs
}
