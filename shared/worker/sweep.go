package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/aws/aws-lambda-go/events"

	"github.com/opsplane/opsplane/shared/cloud"
	"github.com/opsplane/opsplane/shared/queue"
	"github.com/opsplane/opsplane/shared/queue/sqs"
	"github.com/opsplane/opsplane/shared/retention"
	"github.com/opsplane/opsplane/shared/sweep"
)

const (
	// earlyBy is how much too early a wake-up may come and still be waited for;
	// one that comes earlier is rung again.
	earlyBy = time.Second
	// mendEvery and mendAt are the minutes of the hour at which live operations are
	// looked through for what was not published; retentionAt is the one at which
	// what is past its age is deleted, queuesAt the one at which queues that are
	// missing are made.
	mendEvery   = 10
	mendAt      = 5
	retentionAt = 0
	queuesAt    = 30
)

// Sweep looks after time: at a tick each minute, and at wake-ups between.
type Sweep struct {
	Sweep *sweep.Sweep
	// GivenUp reads notices of stream records that Lambda gave up; nil: none.
	GivenUp queue.Receiver
	// Judge judges a stream of events to its head, as React.Follow does: for
	// records that Lambda gave up, and for what nobody told of; nil: nobody judges.
	Judge func(ctx context.Context, stream string) error
	// Counts is what the reactor has counted that Judge and the sweep judge by; nil:
	// nothing. It is put with the sweep's own metrics.
	Counts func() Judged
	// Lanes are served behind each pass; nil: none.
	Lanes *Lanes
	// Retention is how long things are kept; zero keeps them for ever.
	Retention retention.Policy
	Logger    *slog.Logger
	Metrics   *cloud.Metrics // nil: none

	judged toldCounts
}

// Handle deals with either source, which it tells by the event's shape: a
// scheduled rule of EventBridge, or messages of SQS. It answers the messages
// that must come again, and nothing to a tick.
func (h *Sweep) Handle(ctx context.Context, raw json.RawMessage) (any, error) {
	ctx, cancel := within(ctx)
	defer cancel()
	var shape struct {
		events.SQSEvent
		events.CloudWatchEvent
	}
	if err := json.Unmarshal(raw, &shape); err != nil {
		return nil, h.told(ctx, fmt.Errorf("%w: %w", ErrUnknownEvent, err))
	}
	queued, scheduled := fromQueue(shape.Records), shape.Source == "aws.events" && shape.DetailType == "Scheduled Event"
	switch {
	case queued && !scheduled:
		return h.wake(ctx, shape.Records), nil
	case scheduled && len(shape.Records) == 0:
		return nil, h.told(ctx, h.tick(ctx, shape.Time))
	}
	return nil, h.told(ctx, fmt.Errorf("%w: source %.64q, type %.64q, %d records", ErrUnknownEvent, shape.Source, shape.DetailType, len(shape.Records)))
}

// told logs what ends an invocation: Lambda counts it, and keeps no words.
func (h *Sweep) told(ctx context.Context, err error) error {
	if err != nil {
		h.Logger.ErrorContext(ctx, "sweep failed", "err", err)
	}
	return err
}

// tick deals with what is due, then with what nobody rings for. Each part that
// fails leaves the others alone.
func (h *Sweep) tick(ctx context.Context, at time.Time) error {
	if at.IsZero() {
		at = h.Sweep.Store.Now()
	}
	res, err, lost := h.due(ctx)
	errs := errors.Join(err, res.Err, lost)
	part := func(what string, do func() error) {
		if ctx.Err() != nil {
			errs = errors.Join(errs, fmt.Errorf("%s: no time was left: %w", what, ctx.Err()))
		} else if err := do(); err != nil {
			errs = errors.Join(errs, fmt.Errorf("%s: %w", what, err))
		}
	}
	served := make(chan error, 1)
	go func() { served <- h.receivers(ctx) }() // the parts wait for no receiver
	dead, givenUp, unjudged := 0, 0, 0
	part("dead letters", func() (err error) { dead, err = h.Sweep.DeadLetters(ctx); return err })
	part("records given up", func() (err error) {
		if h.GivenUp == nil {
			return nil
		}
		givenUp, err = h.Sweep.GivenUp(ctx, h.GivenUp)
		return err
	})
	part("records given up by react", func() (err error) { unjudged, err = h.unjudged(ctx, at); return err })
	part("streams behind on the bus", func() error { return h.Sweep.Relay.MendBus(ctx) })
	if at.Minute()%mendEvery == mendAt {
		part("journals behind in their streams", func() error { return h.Sweep.Relay.MendLive(ctx) })
	}
	if at.Minute() == queuesAt {
		part("queues of clusters", func() error { return h.Sweep.EnsureQueues(ctx) })
	}
	if at.Minute() == retentionAt && !h.Retention.Zero() {
		part("retention", func() error { return h.retain(ctx) })
	}
	errs = errors.Join(errs, <-served)
	h.measure(ctx, append(lateness(res), count("SweepTicks", 1), count("DeadLetters", dead), count("StreamGivenUp", givenUp), count("ReactGivenUp", unjudged)))
	return errs
}

// due passes over what is due, and hands the chain of wake-ups on: lost is why
// it could not.
func (h *Sweep) due(ctx context.Context) (res sweep.Result, err, lost error) {
	res, err = h.Sweep.Run(ctx)
	undone := err != nil || res.Failed > 0 || res.More
	return res, err, h.Sweep.RingNext(context.WithoutCancel(ctx), res.Through, undone)
}

// retain deletes what is past its age; what it has no time for, the next hour's
// does.
func (h *Sweep) retain(ctx context.Context) error {
	n, err := retention.Pass(ctx, h.Sweep.Store, h.Retention)
	if n > 0 {
		h.Logger.InfoContext(ctx, "old operations deleted", "count", n)
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// wake deals with wake-ups: one look serves them all. What fails is rung for
// again; only what cannot even be rung for comes again as it is.
func (h *Sweep) wake(ctx context.Context, ms []events.SQSMessage) events.SQSEventResponse {
	var failed, wakes []string
	var latest time.Time
	for _, m := range ms {
		w, err := sweep.ParseWake([]byte(m.Body))
		if err == nil {
			wakes = append(wakes, m.MessageId)
			if w.Due.After(latest) {
				latest = w.Due
			}
			continue
		}
		if err := h.Sweep.Queue.Bury(ctx, sweep.WakeQueue, sqs.FromEvent(m), err.Error()); err != nil {
			h.Logger.WarnContext(ctx, "cannot put a message aside", "message", m.MessageId, "err", err)
			failed = append(failed, m.MessageId)
		}
	}
	if len(wakes) == 0 {
		return answer(failed)
	}
	if early := latest.Sub(h.Sweep.Store.Now()); early > 0 && early <= earlyBy {
		wait(ctx, early)
	}
	if h.look(ctx) != nil {
		failed = append(failed, wakes...)
	}
	_ = h.receivers(ctx) // told there; what failed is due again
	return answer(failed)
}

// look deals with what is due, and tells what failed; lost is that nobody is rung
// for what follows.
func (h *Sweep) look(ctx context.Context) (lost error) {
	res, err, lost := h.due(ctx)
	if err = errors.Join(err, res.Err, lost); err != nil {
		h.Logger.WarnContext(ctx, "a wake-up failed", "due", res.Due, "failed", res.Failed, "err", err)
	}
	if res.Due > 0 {
		h.measure(ctx, lateness(res))
	}
	return lost
}

// receivers serves the lanes that a pass found. Those that it finds too late itself
// are rung for.
func (h *Sweep) receivers(ctx context.Context) error {
	left, err := h.Lanes.serve(ctx, func(ctx context.Context) { _ = h.look(ctx) }) // told there; the next look or tick makes up for it
	if left > 0 {
		err = errors.Join(err, h.Sweep.RingNext(context.WithoutCancel(ctx), time.Time{}, true))
	}
	return err
}

// lateness is how a pass did. The oldest item's tells all of them: whatever was
// due was looked at.
func lateness(res sweep.Result) []cloud.Metric {
	return []cloud.Metric{count("SweepDue", res.Due), count("SweepFailed", res.Failed),
		{Name: "SweepLateness", Unit: cloud.Seconds, Value: res.Late.Seconds()}}
}

func (h *Sweep) measure(ctx context.Context, ms []cloud.Metric) {
	ms = append(ms, h.judged.metrics(h.Counts, h.Sweep.Store.Now(), true)...)
	if w := h.Sweep.Waker; w != nil {
		sent, lost := w.Counts()
		ms = append(ms, count("WakeUps", int(sent)), count("WakeUpsLost", int(lost)))
	}
	if err := h.Metrics.Put(ms...); err != nil {
		h.Logger.WarnContext(ctx, "metrics not written", "err", err)
	}
}

// wait waits for d, or until ctx ends.
func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
