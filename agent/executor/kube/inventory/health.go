package inventory

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
)

// health is how the sources fare. It is told in the log when it turns, not at
// each try.
type health struct {
	log *slog.Logger
	now func() time.Time

	mu      sync.Mutex
	waiting map[string]bool // not listed yet
	failing map[request]failure
	down    bool // told in the log
}

// request is one kind of request of a source: to list, or to watch.
type request struct{ source, verb string }

const (
	verbList  = "list"
	verbWatch = "watch"
)

type failure struct {
	err    error
	since  time.Time
	denied time.Time // since when a right is missing; zero: it is not what fails
	told   bool      // that it is missing
}

func newHealth(log *slog.Logger, now func() time.Time) *health {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if now == nil {
		now = time.Now
	}
	return &health{log: log, now: now, waiting: map[string]bool{}, failing: map[request]failure{}}
}

func (h *health) expect(source string) {
	h.mu.Lock()
	h.waiting[source] = true
	h.mu.Unlock()
}

func (h *health) listed(source string) {
	h.mu.Lock()
	delete(h.waiting, source)
	h.mu.Unlock()
}

// drop forgets a source that is watched no more.
func (h *health) drop(source string) {
	h.mu.Lock()
	delete(h.waiting, source)
	delete(h.failing, request{source, verbList})
	delete(h.failing, request{source, verbWatch})
	h.turn()
	h.mu.Unlock()
}

// heard takes the answer to one list or watch request. That a list came does not
// make up for a watch that cannot be had.
func (h *health) heard(source, verb string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	key := request{source, verb}
	if err == nil {
		delete(h.failing, key)
		h.turn()
		return
	}
	f, was := h.failing[key]
	if !was {
		f.since = h.now()
	}
	f = h.deny(f, key, err)
	if kind := cluster.UnconvertedBy(err); kind != "" && (!was || cluster.UnconvertedBy(f.err) == "") {
		h.log.Error("objects cannot be converted; they stand still in the inventory, or are missing",
			slog.String("kind", kind), slog.Any("err", err))
	}
	f.err = err
	h.failing[key] = f
	h.turn()
}

// deny tells of a right that is missing, once, when that is believed: an API server that
// has just started denies every right.
func (h *health) deny(f failure, key request, err error) failure {
	switch {
	case !apierrors.IsForbidden(err):
		f.denied, f.told = time.Time{}, false
		return f
	case f.denied.IsZero():
		f.denied = h.now()
	}
	if !f.told && h.now().Sub(f.denied) >= executor.DeniedFor {
		f.told = true
		h.log.Error("the agent's role lacks a right; a part of the inventory is missing",
			slog.String("right", key.verb+" "+key.source), slog.Any("err", err))
	}
	return f
}

// pulse takes whether the API server answers anybody at all.
func (h *health) pulse(silent *cluster.Unanswered) {
	var err error
	if silent != nil {
		err = silent
	}
	h.heard("/readyz", "get", err)
}

// turn tells once that the API server went, and once that it is back.
func (h *health) turn() {
	var worst failure
	for _, f := range h.failing {
		if !apierrors.IsForbidden(f.err) && cluster.UnconvertedBy(f.err) == "" && (worst.err == nil || f.since.Before(worst.since)) {
			worst = f
		}
	}
	switch down := worst.err != nil; {
	case down && !h.down:
		h.log.Warn("the API server does not answer; the inventory stands still", slog.Any("err", worst.err))
		h.down = true
	case !down && h.down:
		h.log.Info("the API server answers again; the inventory goes on")
		h.down = false
	}
}

func (h *health) err() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var errs []error
	for _, key := range slices.SortedFunc(maps.Keys(h.failing), func(a, b request) int {
		return cmp.Or(cmp.Compare(a.source, b.source), cmp.Compare(a.verb, b.verb))
	}) {
		f := h.failing[key]
		if apierrors.IsForbidden(f.err) {
			errs = append(errs, fmt.Errorf("the agent's role lacks the right to %s %s: %w", key.verb, key.source, f.err))
			continue
		}
		errs = append(errs, fmt.Errorf("%s %s, failing since %s: %w", key.verb, key.source, f.since.UTC().Format(time.RFC3339), f.err))
	}
	if len(errs) == 0 && len(h.waiting) > 0 {
		errs = append(errs, fmt.Errorf("not listed yet: %s", strings.Join(slices.Sorted(maps.Keys(h.waiting)), ", ")))
	}
	return errors.Join(errs...)
}
