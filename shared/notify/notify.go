// Package notify tells receivers of alerts: it signs and sends webhooks, and
// pushes to Alertmanagers.
//
// The events of alerts in the streams are what is told. Follow reads a stream from
// a position of its own and keeps, in one commit, the position and the messages
// that come of it, so that a crash between any two calls or a second notifier
// neither loses a message nor makes one twice. Deliver sends what is due to one
// receiver; each receiver has a lane of its own, which one process holds at a time
// and which is found by the due index, so that one that is slow or fails holds up
// no other. Sending is at least once: a message keeps its id over all tries.
package notify

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/opsplane/opsplane/shared/admission"
	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
)

// Actor is who tells that a receiver could not be told.
var Actor = operation.Actor{ID: "notifier", Kind: "plane"}

// Service keeps receivers, makes messages of alerts' events and sends them. It is
// safe for use by several goroutines, and by several processes over one ledger.
type Service struct {
	Store  *record.Store
	Logger *slog.Logger
	// Allow are the addresses that receivers may have beside those of the public
	// internet.
	Allow []netip.Prefix
	// Base is the plane's own URL, for links in messages. With "", webhooks have paths
	// for links, and an Alertmanager gets none.
	Base string
	// Changed is called when receivers may have something due; nil: the due index
	// tells.
	Changed func()

	Metrics Metrics

	// doubts has, by receiver, what its Alertmanagers refused, while nobody here has its lane.
	doubts sync.Map
	// turns has, by receiver, whose turn it is of what a webhook was never sent, likewise.
	turns sync.Map

	once    sync.Once
	clients map[string]*http.Client
	jitter  func() float64 // 0 to 1; for tests
	// pushMost is pushRound, where it is not 0. For tests.
	pushMost int
	// patience is the constant of the name, where it is not 0. For tests.
	patience time.Duration
	// stops is stopsWithin, where it is not 0. For tests.
	stops time.Duration
	roots *x509.CertPool // nil: the system's; for tests
	// resolver looks names up; nil: the system's; for tests.
	resolver *net.Resolver

	mu        sync.Mutex
	mark      int64 // the version of the mark that the receivers are of
	receivers []*ready
	places    map[string]place // of streams, as this process knows them
}

// ready is a receiver with its compiled matchers.
type ready struct {
	Receiver
	matcher *alert.Matcher // nil: all alerts
}

func (r *ready) wants(a *alert.Alert) bool { return r.matcher == nil || r.matcher.Matches(a) }

func (s *Service) now() time.Time { return s.Store.Now().UTC().Truncate(time.Millisecond) }

func (s *Service) random() float64 {
	if s.jitter != nil {
		return s.jitter()
	}
	return rand.Float64()
}

// begun is the data of the receivers' mark: when there came to be receivers that
// are enabled, and how often that was.
type begun struct {
	N  int64     `json:"n"`
	At time.Time `json:"at"`
}

func (s *Service) audit(call admission.Call, action, resource string, status int, reason string) ledger.Write {
	return record.AuditWrite(record.Audit{At: s.now(), Actor: call.Caller.Actor, Method: call.Method, Path: call.Path, Action: action,
		Resource: resource, Status: status, Reason: reason, CorrelationID: call.CorrelationID, RemoteAddr: call.RemoteAddr})
}

// loadReceivers reads all receivers, by id.
func (s *Service) loadReceivers(ctx context.Context) ([]Receiver, error) {
	all, err := s.readReceivers(ctx)
	var out []Receiver
	for _, r := range all {
		out = append(out, r.Receiver)
	}
	return out, err
}

func (s *Service) readReceivers(ctx context.Context) ([]*ready, error) {
	q := ledger.Query{PK: record.ReceiversPK}
	var out []*ready
	for {
		p, err := s.Store.Ledger.Query(ctx, q)
		if err != nil {
			return nil, fmt.Errorf("read receivers: %w", err)
		}
		for _, it := range p.Items {
			out = append(out, s.readReceiver(ctx, it))
		}
		if p.Next == "" {
			return out, nil
		}
		q.After = p.Next
	}
}

// enabled returns the receivers of the mark that are told of alerts, by id.
func (s *Service) enabled(ctx context.Context, mark int64) ([]*ready, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mark == mark {
		return s.receivers, nil
	}
	out, err := s.readReceivers(ctx)
	if err != nil {
		return nil, err
	}
	out = slices.DeleteFunc(out, func(r *ready) bool { return !r.Active() })
	s.mark, s.receivers = mark, out
	return out, nil
}

// compileMatchers makes matchers ready, those of a silence that has no end.
func compileMatchers(ms []alert.Match) (*alert.Matcher, error) {
	if len(ms) == 0 {
		return nil, nil
	}
	at := time.Unix(0, 0)
	return alert.CompileSilence(alert.Silence{Matchers: ms, StartsAt: at, EndsAt: at.Add(time.Hour), Reason: "a receiver"})
}

// change commits what f makes of the receivers, with the move of their mark. f is
// called again when another was faster; facts are events for the plane's stream.
func (s *Service) change(ctx context.Context, f func(all []Receiver) (next []Receiver, writes []ledger.Write, facts []event.Event, err error)) error {
	err := record.Again(ctx, func() error {
		it, err := s.Store.Ledger.Get(ctx, record.ReceiversKey)
		if err != nil && !errors.Is(err, ledger.ErrNotFound) {
			return fmt.Errorf("read the receivers' mark: %w", err)
		}
		var b begun
		if it.Version > 0 {
			if b, err = record.Decode[begun](it); err != nil {
				return err
			}
		}
		all, err := s.loadReceivers(ctx)
		if err != nil {
			return err
		}
		next, writes, facts, err := f(slices.Clone(all))
		if err != nil || len(writes) == 0 {
			return err
		}
		active := func(r Receiver) bool { return r.Active() }
		if !slices.ContainsFunc(all, active) && slices.ContainsFunc(next, active) {
			b = begun{N: b.N + 1, At: s.now()}
		}
		writes = append(writes, ledger.Write{Expect: it.Version, Feed: true, Item: ledger.Item{Key: record.ReceiversKey, Data: record.Encode(b)}})
		more, err := s.tell(ctx, facts)
		if err != nil {
			return err
		}
		return s.Store.Ledger.Commit(ctx, append(writes, more...)...)
	})
	if err == nil && s.Changed != nil {
		s.Changed()
	}
	return err
}

// tell returns the writes that append events to the plane's stream.
func (s *Service) tell(ctx context.Context, facts []event.Event) ([]ledger.Write, error) {
	if len(facts) == 0 {
		return nil, nil
	}
	head, version, err := event.LoadHead(ctx, s.Store.Ledger, event.PlaneStream)
	if err != nil {
		return nil, err
	}
	writes, _, err := event.AppendWrites(head, version, event.PlaneStream, facts)
	if err != nil {
		return nil, fmt.Errorf("tell of receiver: %w", err)
	}
	return writes, nil
}

// clip bounds a text that came from outside, and takes out what is no text.
func clip(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	for len(text) > most {
		text = strings.ToValidUTF8(text[:most], "")
	}
	return text
}

// getMany reads items as Ledger.GetMany does, of any number of keys.
func (s *Service) getMany(ctx context.Context, keys []ledger.Key) (map[ledger.Key]ledger.Item, error) {
	out := map[ledger.Key]ledger.Item{}
	for part := range slices.Chunk(keys, ledger.MaxWrites) {
		items, err := s.Store.Ledger.GetMany(ctx, part)
		if err != nil {
			return nil, fmt.Errorf("read items: %w", err)
		}
		maps.Copy(out, items)
	}
	return out, nil
}
