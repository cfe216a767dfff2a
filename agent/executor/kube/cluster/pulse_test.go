package cluster

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"
)

// heart answers as a test says; it is asked through a transport that notes what
// it answers, as the agent's own is.
type heart struct {
	mu     sync.Mutex
	answer func(r *http.Request) (*http.Response, error)
	asked  []time.Time
}

func (s *heart) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	s.asked = append(s.asked, time.Now())
	answer := s.answer
	s.mu.Unlock()
	return answer(r)
}

func (s *heart) set(answer func(r *http.Request) (*http.Response, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = answer
}

func (s *heart) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.asked)
}

func says(status int, body string) func(*http.Request) (*http.Response, error) {
	return func(r *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: status, Status: http.StatusText(status), Body: io.NopCloser(strings.NewReader(body)), Request: r, Header: http.Header{}}, nil
	}
}

func hangs(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

func refuses(*http.Request) (*http.Response, error) { return nil, errors.New("connection refused") }

// listener is what Pulse tells.
type listener struct {
	mu    sync.Mutex
	err   error
	since time.Time // of the last turn
	turns int
}

func (l *listener) tell(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if (err == nil) != (l.err == nil) {
		l.turns, l.since = l.turns+1, time.Now()
	}
	l.err = err
}

func (l *listener) now() (since time.Time, turns int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.since, l.turns, l.err
}

// pulsing is a Pulse of a server.
func pulsing(t *testing.T) (*Cluster, *heart, *listener) {
	t.Helper()
	s, l, p := &heart{answer: says(http.StatusOK, "ok")}, &listener{}, &pulse{heard: time.Now()}
	cfg := &rest.Config{Host: "http://server/behind/it", Transport: &transport{next: s, heard: p.note}}
	if err := p.open(cfg); err != nil {
		t.Fatal(err)
	}
	if p.url != "http://server/behind/it/readyz" {
		t.Errorf("it is asked at %s", p.url)
	}
	c := &Cluster{pulse: p}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Pulse(ctx, l.tell)
	}()
	t.Cleanup(func() { cancel(); <-done })
	return c, s, l
}

// A server that stops answering, however it does, is missed within 11 s, not for
// one lost answer, and is well again with the first one.
func TestPulse(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		broken func(*http.Request) (*http.Response, error)
		says   string
	}{
		"hangs":        {hangs, "GET /readyz: no answer within 3s"},
		"is gone":      {refuses, "connection refused"},
		"cannot serve": {says(http.StatusInternalServerError, "[+]ping ok\n[-]etcd failed: reason withheld\n[-]shutdown failed: reason withheld\nreadyz check failed"), "Internal Server Error: etcd, shutdown"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				_, s, l := pulsing(t)
				time.Sleep(time.Minute)
				if _, turns, err := l.now(); err != nil || turns != 0 {
					t.Fatalf("well: %v, %d turns", err, turns)
				}
				s.set(c.broken)
				at := time.Now()
				time.Sleep(11*time.Second + time.Millisecond)
				synctest.Wait()
				since, _, err := l.now()
				var u *Unanswered
				if !errors.As(err, &u) || u.Code() != "api_unavailable" || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "has answered nothing for") {
					t.Fatalf("%s after %s: %v", name, time.Since(at), err)
				}
				if since.Sub(at) < pulseWithin {
					t.Errorf("said after %s: one lost answer is enough", since.Sub(at))
				}
				before := s.count()
				time.Sleep(time.Minute)
				if n := s.count() - before; n < 15 || n > 25 {
					t.Errorf("asked %d times in a minute of silence", n)
				}
				s.set(says(http.StatusForbidden, "no")) // an answer is an answer
				time.Sleep(pulseWithin + time.Millisecond)
				synctest.Wait()
				if _, turns, err := l.now(); err != nil || turns != 2 {
					t.Errorf("%s after it came back: %v, %d turns", pulseWithin, err, turns)
				}
			})
		})
	}
}

// One answer that is lost is nothing to tell of.
func TestPulseMissesOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, s, l := pulsing(t)
		s.set(func(r *http.Request) (*http.Response, error) {
			s.set(says(http.StatusOK, "ok"))
			return hangs(r)
		})
		time.Sleep(time.Minute)
		if _, turns, err := l.now(); err != nil || turns != 0 {
			t.Errorf("%v, %d turns", err, turns)
		}
	})
}

// While other requests are answered nothing is asked, and one that is answered in a
// silence ends it.
func TestPulseWhileOthersAreAnswered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, s, l := pulsing(t)
		for range 60 {
			c.pulse.note(http.StatusOK)
			time.Sleep(time.Second)
		}
		if n := s.count(); n != 0 {
			t.Errorf("asked %d times while others were answered", n)
		}
		s.set(hangs)
		for range 15 {
			c.pulse.note(http.StatusServiceUnavailable) // nobody is served
			time.Sleep(time.Second)
		}
		synctest.Wait()
		if _, _, err := l.now(); err == nil {
			t.Error("well while nobody is served")
		}
		c.pulse.note(http.StatusOK)
		time.Sleep(2 * pulseWithin)
		synctest.Wait()
		if _, _, err := l.now(); err != nil {
			t.Errorf("somebody was served: %v", err)
		}
	})
}
