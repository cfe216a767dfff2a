package react

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/opsplane/opsplane/shared/admission"
	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
)

// SilenceKept is how long a silence is kept after its end, and MaxPastSilences how
// many of those that have ended are: the one that ended first goes first.
const (
	SilenceKept     = 90 * 24 * time.Hour
	MaxPastSilences = 1000
)

func silenceItem(s alert.Silence) ledger.Item {
	return ledger.Item{Key: record.SilenceKey(s.ID), Data: record.Encode(s), Expires: s.EndsAt.Add(SilenceKept)}
}

// loadSilences reads all silences. One that cannot be read holds up no other: it is
// told to faulty, and returned as damagedSilence has it.
func loadSilences(ctx context.Context, st *record.Store, faulty func(id string, err error)) ([]alert.Silence, error) {
	var out []alert.Silence
	err := each(ctx, st.Ledger, record.SilencesPK, "silence#", func(it ledger.Item) error {
		s, err := readSilence(it)
		if err != nil {
			faulty(s.ID, err)
		}
		out = append(out, s)
		return nil
	})
	return out, err
}

func silently(string, error) {}

// readSilence reads a silence from its item; with an error, too, there is one that
// can be listed and ended.
func readSilence(it ledger.Item) (alert.Silence, error) {
	s, err := record.Decode[alert.Silence](it)
	if err != nil {
		s = damagedSilence(it)
	}
	s.Version = it.Version
	return s, err
}

// damagedSilence stands for a silence that cannot be read, until it ends. It has no
// matchers, and so silences nothing; when it ends its item's expiry tells.
func damagedSilence(it ledger.Item) alert.Silence {
	s := alert.Silence{ID: strings.TrimPrefix(it.SK, record.SilenceKey("").SK), Matchers: []alert.Match{}, Author: operation.Plane, Reason: "it cannot be read: end it, and make it anew"}
	s.StartsAt = time.UnixMilli(0).UTC()
	if s.EndsAt = it.Expires.UTC().Add(-SilenceKept); it.Expires.IsZero() {
		s.EndsAt = time.UnixMilli(maxTime).UTC()
	}
	s.Created = s.StartsAt
	return s
}

// maxTime is the end of what has no other, in Unix milliseconds: the last that an
// index has room for.
const maxTime = 9_999_999_999_999

// Silences returns the silences that have not ended, and with past those that
// have too, by their start, the latest first.
func (s *Service) Silences(ctx context.Context, past bool) ([]alert.Silence, error) {
	all, err := loadSilences(ctx, s.Store, silently)
	if err != nil {
		return nil, err
	}
	now := s.now()
	all = slices.DeleteFunc(all, func(x alert.Silence) bool { return !past && !now.Before(x.EndsAt) })
	slices.SortFunc(all, func(a, b alert.Silence) int {
		return cmp.Or(b.StartsAt.Compare(a.StartsAt), strings.Compare(b.ID, a.ID))
	})
	return all, nil
}

// Silence returns a silence; not_found.
func (s *Service) Silence(ctx context.Context, silenceID string) (alert.Silence, error) {
	it, err := s.Store.Ledger.Get(ctx, record.SilenceKey(silenceID))
	if errors.Is(err, ledger.ErrNotFound) {
		return alert.Silence{}, operation.Refuse("not_found", "there is no silence %.128s", silenceID)
	}
	if err != nil {
		return alert.Silence{}, fmt.Errorf("read silence: %w", err)
	}
	x, _ := readSilence(it)
	return x, nil
}

// forgotten bounds the past silences that one commit forgets.
const forgotten = 20

// CreateSilence keeps a new silence; its id, author and time are filled in, and
// its start is now where there is none. Errors: alert.Faults, an
// *admission.EarlierError for a call that is a repeat.
func (s *Service) CreateSilence(ctx context.Context, call admission.Call, x alert.Silence) (alert.Silence, error) {
	now := s.now()
	x.ID, x.Author, x.Created, x.Version = id.New(id.Silence, now), call.Caller.Actor, now, 0
	if x.StartsAt.IsZero() {
		x.StartsAt = now
	}
	// The streams' clock has no parts of milliseconds.
	x.StartsAt, x.EndsAt = x.StartsAt.UTC().Truncate(time.Millisecond), x.EndsAt.UTC().Truncate(time.Millisecond)
	if _, err := alert.CompileSilence(x); err != nil {
		return x, err
	}
	if err := x.CheckSaved(); err != nil {
		return x, err
	}
	if !x.EndsAt.After(now) {
		return x, alert.Faults{{Pointer: "/ends_at", Code: alert.CodeRange, Detail: "is past"}}
	}
	err := s.change(ctx, func() ([]ledger.Write, error) {
		once, err := admission.Once(ctx, s.Store, call, x.ID)
		if err != nil {
			return nil, err
		}
		all, err := loadSilences(ctx, s.Store, silently)
		if err != nil {
			return nil, err
		}
		past := slices.DeleteFunc(slices.Clone(all), func(x alert.Silence) bool { return now.Before(x.EndsAt) })
		if n := len(all) - len(past); n >= alert.MaxSilences {
			return nil, alert.Faults{{Code: alert.CodeRange, Detail: fmt.Sprintf("there are %d silences that have not ended, the limit is %d", n, alert.MaxSilences)}}
		}
		slices.SortFunc(past, func(a, b alert.Silence) int { return a.EndsAt.Compare(b.EndsAt) })
		for i := range min(max(len(past)-MaxPastSilences, 0), forgotten) {
			once = append(once, ledger.Write{Kind: ledger.Delete, Expect: past[i].Version, Item: ledger.Item{Key: record.SilenceKey(past[i].ID)}})
		}
		return append(once, ledger.Write{Item: silenceItem(x)}, s.audit(call, "silence.create", x.ID, http.StatusCreated, x.Reason)), nil
	})
	if err != nil {
		return x, fmt.Errorf("create silence: %w", err)
	}
	x.Version = 1
	return x, nil
}

// EndSilence ends a silence now; one that has ended stays as it is. What it kept
// from being told and still fires is told then. Errors: not_found.
func (s *Service) EndSilence(ctx context.Context, call admission.Call, silenceID string) (alert.Silence, error) {
	var out alert.Silence
	err := s.change(ctx, func() ([]ledger.Write, error) {
		x, err := s.Silence(ctx, silenceID)
		if err != nil {
			return nil, err
		}
		out = x
		now := s.now()
		if !now.Before(x.EndsAt) {
			return nil, nil
		}
		version := x.Version
		if x.EndsAt = now; x.StartsAt.After(now) {
			x.StartsAt = now
		}
		out = x
		out.Version = version + 1
		return []ledger.Write{{Expect: version, Item: silenceItem(x)}, s.audit(call, "silence.end", x.ID, http.StatusOK, x.Reason)}, nil
	})
	if err != nil {
		return out, fmt.Errorf("end silence: %w", err)
	}
	return out, nil
}
